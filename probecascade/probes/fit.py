"""Logistic regression, ridge or elastic net, and the choice of a layer by grouped cross-validation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from numpy.typing import ArrayLike

from probecascade.errors import DataError, UsageError
from probecascade.probes.crossfit import (
    Array,
    ClassWeight,
    FittedProbe,
    Fitter,
    Groups,
    Plan,
    Sample,
    Train,
    cross_fit,
)
from probecascade.probes.inputs import as_matrix
from probecascade.probes.linear import LinearProbe, signal_features
from probecascade.probes.solver import elastic_net_path, logistic_path
from probecascade.probes.steps import Step, column_moments

STRENGTHS: tuple[float, ...] = tuple(float(10.0 ** (k / 2)) for k in range(-10, 1))
"""C from 1e-5 to 1 in half decades: from a bare class-mean difference to a nearly separating plane."""


@dataclass(frozen=True, eq=False)
class LayerChoice:
    """The chosen layer, its fit, and the cross-validated AUROC of every layer tried."""

    layer: int
    fitted: FittedProbe
    table: Mapping[int, float]


@dataclass(frozen=True)
class LogisticFitter:
    """Standardised logistic regression whose strength C is chosen by grouped, stratified cross-validation.

    The strength with the least mean log-loss on held-out groups wins, the smaller C on a tie. Log-loss
    rather than AUROC: it uses how far every score is off and not only the order, so it moves smoothly
    along the path where AUROC is flat or jumps, and scores are promised to be probabilities.
    strengths: values of C as in scikit-learn, any order. folds: at most this many. seed: of the folds.
    l1_ratio: share of the L1 norm in the penalty, 0 for ridge, above it the elastic net (Zou and Hastie 2005),
    which sets weights to exactly 0. class_weight: with "balanced" both classes weigh the same, and scores are
    P(failure) as if they were equally common. steps: preprocessing, fitted inside the folds.
    """

    strengths: tuple[float, ...] = STRENGTHS
    folds: int = 5
    seed: int = 0
    l1_ratio: float = 0.0
    class_weight: ClassWeight = None
    steps: tuple[Step, ...] = ()

    def fit(
        self,
        X: ArrayLike,
        failed: ArrayLike,
        groups: Groups,
        *,
        columns: tuple[str, ...] = (),
        roots: bool = False,
    ) -> FittedProbe:
        """Fit on states X (n, d_model), or, with `columns`, on those columns of signals X (n, len(SIGNALS)).

        failed: (n,) booleans; groups: (n,) names, never split between folds. Features that are constant
        get scale 1 and take no part. Raises DataError on non-finite rows, one-class labels, or fewer than
        two groups that hold each class; UsageError on settings out of range, or steps on signals.
        """
        if not 0 <= self.l1_ratio <= 1:
            raise UsageError(f"An l1_ratio of {self.l1_ratio} was given; give a share in [0, 1].")
        if columns and self.steps:
            raise UsageError("Steps were given for a probe on signals; only states have them.")
        rows = signal_features(X, columns, roots) if columns else as_matrix(X, "states")
        plan = Plan(self.folds, self.seed, self.steps, self.class_weight)
        fitted = cross_fit(logistic_train(self.l1_ratio), rising(self.strengths), rows, failed, groups, plan).fitted
        if columns and isinstance(fitted.probe, LinearProbe):
            probe = dataclasses.replace(fitted.probe, uses="signals", columns=columns, roots=roots)
            return dataclasses.replace(fitted, probe=probe)
        return fitted


def choose_layer(
    read: Callable[[int], ArrayLike],
    layers: Sequence[int],
    failed: ArrayLike,
    groups: Groups,
    fitter: Fitter,
) -> LayerChoice:
    """The layer whose probe has the best grouped cross-validated AUROC; the earlier layer on a tie.

    read(layer): states (n, d_model), called once per layer and let go before the next. All layers see the
    same folds. The AUROC of the best of several layers is optimistic, because chance favours the winner:
    quote it from episodes that took no part in the choice. Raises DataError without layers or on
    duplicates, and as `fitter.fit` does.
    """
    if not layers or len(set(layers)) != len(layers):
        raise DataError(f"The layers {list(layers)} were given; give one or more distinct layers.")
    fits = {layer: fitter.fit(read(layer), failed, groups) for layer in sorted(layers)}
    table = {layer: fitted.auroc for layer, fitted in fits.items()}
    best = max(table, key=lambda layer: table[layer])
    return LayerChoice(best, fits[best], table)


@dataclass(frozen=True, eq=False)
class LinearPath:
    """Linear models at several strengths: mean, scale (d,), weights (d, n_strengths), biases (n_strengths,)."""

    mean: Array
    scale: Array
    weights: Array
    biases: Array

    def logits(self, rows: Array) -> Array:
        logits: Array = ((rows - self.mean) / self.scale) @ self.weights + self.biases
        return logits

    def rebased(self, old: float, new: float) -> LinearPath:
        return dataclasses.replace(self, biases=new + (self.biases - old))

    def probe(self, place: int) -> LinearProbe:
        return LinearProbe(self.mean, self.scale, self.weights[:, place], float(self.biases[place]))


def logistic_train(l1_ratio: float = 0.0) -> Train:
    """The head that fits a standardised logistic regression at rising strengths C."""

    def train(sample: Sample, values: tuple[float, ...]) -> LinearPath:
        mean, scale = column_moments(sample.rows)
        features = (sample.rows - mean) / scale
        if l1_ratio:
            found = elastic_net_path(features, sample.failed, values, l1_ratio, sample.weights, sample.log_odds)
        else:
            found = logistic_path(features, sample.failed, values, sample.weights)
        return LinearPath(mean, scale, *found)

    return train


def rising(strengths: tuple[float, ...], what: str = "strengths") -> tuple[float, ...]:
    """Distinct values in rising order. Raises UsageError unless all are positive and finite."""
    if not strengths or not all(0 < c < float("inf") for c in strengths):
        raise UsageError(f"The {what} {strengths} were given; give one or more positive finite numbers.")
    return tuple(sorted(set(strengths)))
