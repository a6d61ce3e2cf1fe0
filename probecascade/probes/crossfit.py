"""What all fitters share: grouped cross-validation of what is tuned, out-of-fold scores, a last fit on all rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import threadpool_limits

from probecascade.errors import UsageError
from probecascade.probes.crossval import Fold, grouped_folds
from probecascade.probes.inputs import as_group_codes, as_labels, both_classes
from probecascade.probes.kinds import FrozenProbe
from probecascade.probes.metrics import auroc
from probecascade.probes.piped import compose
from probecascade.probes.solver import log_odds
from probecascade.probes.steps import FrozenStep, Step

Array = NDArray[np.float64]
Labels = NDArray[np.bool_]
Groups = Sequence[Any] | NDArray[Any]
ClassWeight = Literal["balanced"] | None

_ONE_THREAD = 1024
"""Up to this many rows or columns more BLAS threads gain little and, on a busy machine, cost tenfold."""


@dataclass(frozen=True, eq=False)
class FittedProbe:
    """What a fit returns.

    probe: fitted on all rows. strength: the value that was tuned or estimated (C of a logistic or sequence
    probe, weight decay of an MLP, the share of shrinkage of a covariance). folds: how many were made (fewer
    than asked where a class is rare). out_of_fold: (n,), each row scored by the model of a fold that lacks
    its group, at the chosen strength. auroc: of out_of_fold; slightly optimistic where the same folds chose
    the strength.
    """

    probe: FrozenProbe
    strength: float
    out_of_fold: Array
    auroc: float
    folds: int


class Fitter(Protocol):
    """Frozen settings of a fit; the folds that it makes are `grouped_folds(failed, groups, folds, seed)`."""

    @property
    def folds(self) -> int: ...
    @property
    def seed(self) -> int: ...

    def fit(self, X: ArrayLike, failed: ArrayLike, groups: Groups) -> FittedProbe:
        """Fit on X (n, width), failed (n,) booleans and groups (n,), which are never split between folds."""


@dataclass(frozen=True, eq=False)
class Sample:
    """Training rows as a head sees them: rows (n, d) after the steps, labels, weights (n,), group codes (n,)."""

    rows: Array
    failed: Labels
    weights: Array
    codes: NDArray[np.intp]

    def take(self, index: NDArray[np.intp]) -> Sample:
        return Sample(self.rows[index], self.failed[index], self.weights[index], self.codes[index])

    @property
    def log_odds(self) -> float:
        """Of failure, as the weights count; exactly 0 where they balance the classes."""
        if self.weights[self.failed][0] == self.weights[~self.failed][0]:
            return log_odds(self.failed)
        return 0.0


class Path(Protocol):
    """Models of one head at several values of what is tuned."""

    def logits(self, rows: Array) -> Array:
        """(n, d) -> (n, n_values), fast rather than bit-exact; to compare values by."""

    def rebased(self, old: float, new: float) -> Path:
        """With the biases moved from log-odds `old` to `new`; a bias that is `old` becomes exactly `new`."""

    def probe(self, place: int) -> FrozenProbe:
        """The frozen model at the value of this place."""


Train = Callable[[Sample, tuple[float, ...]], Path]
"""A head: how to train models at the given values, each from the last where that helps."""


@dataclass(frozen=True)
class Plan:
    """How a fitter cross-validates."""

    folds: int
    seed: int
    steps: tuple[Step, ...] = ()
    class_weight: ClassWeight = None
    blocks: int = 1


@dataclass(frozen=True, eq=False)
class CrossFit:
    """The chosen value, each row's held-out score at it, the folds, and all rows as a `Sample`."""

    fitted: FittedProbe
    folds: tuple[Fold, ...]
    sample: Sample


def cross_fit(
    train: Train, values: tuple[float, ...], rows: Array, failed: ArrayLike, groups: Groups, plan: Plan
) -> CrossFit:
    """Choose the value with the least held-out log-loss, score every row out of fold at it, and fit on all rows.

    values: rising in how closely they fit; the first wins a tie. Steps are fitted on a fold's training rows
    alone. Raises DataError on one-class labels or fewer than two groups that hold each class.
    """
    labels = as_labels(failed, len(rows))
    both_classes(labels)
    sample = Sample(rows, labels, sample_weights(labels, plan.class_weight), as_group_codes(groups, len(rows)))
    folds = grouped_folds(labels, groups, plan.folds, plan.seed)
    with threadpool_limits(1 if min(rows.shape) <= _ONE_THREAD else None, user_api="blas"):
        best, out_of_fold = _cross_validate(train, values, sample, folds, plan)
        steps, kept = _through(plan.steps, sample)
        # All values up to the best, as in the folds: each is solved from the one before.
        path = train(kept, values[: best + 1])
    probe = compose(steps, path.probe(best), plan.blocks)
    fitted = FittedProbe(probe, values[best], out_of_fold, auroc(out_of_fold, labels), len(folds))
    return CrossFit(fitted, tuple(folds), sample)


def sample_weights(failed: Labels, class_weight: ClassWeight) -> Array:
    """Weights (n,) of mean 1 that give both classes equal mass (`balanced`), or all ones.

    Raises UsageError on anything else.
    """
    if class_weight is None:
        return np.ones(len(failed))
    if class_weight != "balanced":
        raise UsageError(f"A class weight of {class_weight!r} was given; give 'balanced' or None.")
    share = float(failed.mean())
    weights: Array = np.where(failed, 0.5 / share, 0.5 / (1 - share))
    return weights


def _cross_validate(
    train: Train, values: tuple[float, ...], sample: Sample, folds: list[Fold], plan: Plan
) -> tuple[int, Array]:
    """The place of the value with the least held-out log-loss, and the held-out scores (n,) at it.

    Each fold model's bias is moved by the difference between the log-odds of failure overall and in its
    training rows. A fold that happens to hold more failures leaves fewer to train on, so without this
    prior correction pooled scores would run against the labels.
    """
    models: list[tuple[tuple[FrozenStep, ...], Path]] = []
    loss = np.zeros(len(values))
    for train_rows, test_rows in folds:
        part = sample.take(train_rows)
        part = Sample(part.rows, part.failed, sample_weights(part.failed, plan.class_weight), part.codes)
        steps, part = _through(plan.steps, part)
        path = train(part, values).rebased(part.log_odds, sample.log_odds)
        held_out = sample.rows[test_rows]
        for step in steps:
            held_out = step.apply(held_out)
        if len(values) > 1:
            margin = np.where(sample.failed[test_rows, None], 1.0, -1.0) * path.logits(held_out)
            loss += (sample.weights[test_rows, None] * np.logaddexp(0.0, -margin)).sum(axis=0)
        models.append((steps, path))
    best = int(np.argmin(loss))
    scores = np.empty(len(sample.rows))
    for (_, test_rows), (steps, path) in zip(folds, models, strict=True):
        scores[test_rows] = compose(steps, path.probe(best), plan.blocks).score(sample.rows[test_rows])
    return best, scores


def _through(steps: tuple[Step, ...], sample: Sample) -> tuple[tuple[FrozenStep, ...], Sample]:
    """The steps fitted on a sample, each on what the one before makes of it, and the sample after all of them."""
    fitted: list[FrozenStep] = []
    rows = sample.rows
    for step in steps:
        fitted.append(step.fit(rows))
        rows = fitted[-1].apply(rows)
    return tuple(fitted), Sample(rows, sample.failed, sample.weights, sample.codes)
