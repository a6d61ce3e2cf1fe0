"""Fitting linear probes: L2 logistic regression, strength and layer chosen by grouped cross-validation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import threadpool_limits

from probecascade.errors import DataError, UsageError
from probecascade.probes.crossval import Fold, grouped_folds
from probecascade.probes.inputs import as_labels, as_matrix, both_classes
from probecascade.probes.linear import LinearProbe, signal_features
from probecascade.probes.metrics import auroc
from probecascade.probes.scoring import row_scores
from probecascade.probes.solver import log_odds, logistic_path

Array = NDArray[np.float64]
Labels = NDArray[np.bool_]

STRENGTHS: tuple[float, ...] = tuple(float(10.0 ** (k / 2)) for k in range(-10, 1))
"""C from 1e-5 to 1 in half decades: from a bare class-mean difference to a nearly separating plane."""

_ONE_THREAD = 1024
"""Up to this many rows or columns more BLAS threads gain little and, on a busy machine, cost tenfold."""


@dataclass(frozen=True, eq=False)
class FittedProbe:
    """What a fit returns.

    probe: fitted on all rows. strength: the chosen C. folds: how many were made (fewer than asked where
    a class is rare). out_of_fold: (n,), each row scored by the model of a fold that lacks its group, at
    the chosen strength. auroc: of out_of_fold; slightly optimistic, as the same folds chose the strength.
    """

    probe: LinearProbe
    strength: float
    out_of_fold: Array
    auroc: float
    folds: int


@dataclass(frozen=True, eq=False)
class LayerChoice:
    """The chosen layer, its fit, and the cross-validated AUROC of every layer tried."""

    layer: int
    fitted: FittedProbe
    table: Mapping[int, float]


@dataclass(frozen=True)
class LogisticFitter:
    """Standardised L2 logistic regression whose strength C is chosen by grouped, stratified cross-validation.

    The strength with the least mean log-loss on held-out groups wins, the smaller C on a tie. Log-loss
    rather than AUROC: it uses how far every score is off and not only the order, so it moves smoothly
    along the path where AUROC is flat or jumps, and scores are promised to be probabilities.
    strengths: values of C as in scikit-learn, any order. folds: at most this many. seed: of the folds.
    """

    strengths: tuple[float, ...] = STRENGTHS
    folds: int = 5
    seed: int = 0

    def fit(
        self,
        X: ArrayLike,
        failed: ArrayLike,
        groups: Sequence[Any] | NDArray[Any],
        *,
        columns: tuple[str, ...] = (),
        roots: bool = False,
    ) -> FittedProbe:
        """Fit on states X (n, d_model), or, with `columns`, on those columns of signals X (n, len(SIGNALS)).

        failed: (n,) booleans; groups: (n,) names, never split between folds. Features that are constant
        get scale 1 and take no part. Raises DataError on non-finite rows, one-class labels, or fewer than
        two groups that hold each class; UsageError on strengths that are not positive.
        """
        uses: Literal["states", "signals"] = "signals" if columns else "states"
        rows = signal_features(X, columns, roots) if columns else as_matrix(X, "states")
        labels = as_labels(failed, len(rows))
        both_classes(labels)
        strengths = self._path()
        folds = grouped_folds(labels, groups, self.folds, self.seed)
        with threadpool_limits(1 if min(rows.shape) <= _ONE_THREAD else None, user_api="blas"):
            strength, out_of_fold = _cross_validate(rows, labels, folds, strengths)
            model = _fit_path(rows, labels, tuple(c for c in strengths if c <= strength))
        probe = LinearProbe(
            mean=model.mean,
            scale=model.scale,
            weight=model.weights[:, -1],
            bias=float(model.biases[-1]),
            uses=uses,
            columns=columns,
            roots=roots,
        )
        return FittedProbe(probe, strength, out_of_fold, auroc(out_of_fold, labels), len(folds))

    def _path(self) -> tuple[float, ...]:
        if not self.strengths or not all(0 < c < float("inf") for c in self.strengths):
            raise UsageError(f"The strengths {self.strengths} were given; give one or more positive finite numbers.")
        return tuple(sorted(set(self.strengths)))


def choose_layer(
    read: Callable[[int], ArrayLike],
    layers: Sequence[int],
    failed: ArrayLike,
    groups: Sequence[Any] | NDArray[Any],
    fitter: LogisticFitter,
) -> LayerChoice:
    """The layer whose probe has the best grouped cross-validated AUROC; the earlier layer on a tie.

    read(layer): states (n, d_model), called once per layer and let go before the next. All layers see the
    same folds. The AUROC of the best of several layers is optimistic, because chance favours the winner:
    quote it from episodes that took no part in the choice. Raises DataError without layers or on
    duplicates, and as `LogisticFitter.fit` does.
    """
    if not layers or len(set(layers)) != len(layers):
        raise DataError(f"The layers {list(layers)} were given; give one or more distinct layers.")
    fits = {layer: fitter.fit(read(layer), failed, groups) for layer in sorted(layers)}
    table = {layer: fitted.auroc for layer, fitted in fits.items()}
    best = max(table, key=lambda layer: table[layer])
    return LayerChoice(best, fits[best], table)


@dataclass(frozen=True, eq=False)
class _Path:
    mean: Array  # (d,)
    scale: Array  # (d,)
    weights: Array  # (d, n_strengths)
    biases: Array  # (n_strengths,)


def _fit_path(rows: Array, failed: Labels, strengths: tuple[float, ...]) -> _Path:
    mean = rows.mean(axis=0)
    scale = rows.std(axis=0)
    # A constant column may show a spread of rounding size, which must not be blown up to unit variance.
    constant = scale <= len(rows) * np.finfo(np.float64).eps * np.abs(mean)
    mean[constant], scale[constant] = rows[0, constant], 1.0
    weights, biases = logistic_path((rows - mean) / scale, failed, strengths)
    return _Path(mean, scale, weights, biases)


def _cross_validate(
    rows: Array, failed: Labels, folds: list[Fold], strengths: tuple[float, ...]
) -> tuple[float, Array]:
    """The strength with the least held-out log-loss, and the held-out scores (n,) at it.

    Each fold model's bias is moved by the difference between the log-odds of failure overall and in its
    training rows. A fold that happens to hold more failures leaves fewer to train on, so without this
    prior correction pooled scores would run against the labels.
    """
    overall = log_odds(failed)
    paths: list[_Path] = []
    loss = np.zeros(len(strengths))
    for train, test in folds:
        path = _fit_path(rows[train], failed[train], strengths)
        # In this order a bias that is just the log-odds becomes `overall` exactly, the same in every fold.
        biases = overall + (path.biases - log_odds(failed[train]))
        path = dataclasses.replace(path, biases=biases)
        paths.append(path)
        logits = ((rows[test] - path.mean) / path.scale) @ path.weights + path.biases
        loss += np.logaddexp(0.0, np.where(failed[test, None], -logits, logits)).sum(axis=0)
    best = int(np.argmin(loss))
    scores = np.empty(len(rows))
    for (_, test), path in zip(folds, paths, strict=True):
        scores[test] = row_scores(rows[test], path.mean, path.scale, path.weights[:, best], float(path.biases[best]))
    return strengths[best], scores
