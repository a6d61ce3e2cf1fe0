"""Probes from class means: mass-mean, and linear discriminant analysis with a shrunk covariance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from probecascade.probes.calibrated import calibrate_scores
from probecascade.probes.crossfit import (
    Array,
    ClassWeight,
    FittedProbe,
    Groups,
    Plan,
    Sample,
    cross_fit,
)
from probecascade.probes.fit import LinearPath
from probecascade.probes.inputs import as_matrix
from probecascade.probes.solver import principal_axes
from probecascade.probes.steps import Step, column_moments


@dataclass(frozen=True)
class MassMeanFitter:
    """The difference of the class means as direction; slope and bias from logistic regression on it.

    Source: Marks and Tegmark 2023. whiten: the direction is multiplied by the inverse of the pooled covariance
    within classes, shrunk as in `LDAFitter`; the direction is then that of LDA, and the probe equals
    `Calibrated(LDAFitter(), "platt")`. Slope and bias are fitted on cross-fitted projections, because in many
    dimensions the projections of training rows lie too far apart. folds, seed, class_weight, steps: as in
    `LogisticFitter`. Nothing is tuned, so `FittedProbe.strength` is 1.
    """

    whiten: bool = False
    folds: int = 5
    seed: int = 0
    class_weight: ClassWeight = None
    steps: tuple[Step, ...] = ()

    def fit(self, X: ArrayLike, failed: ArrayLike, groups: Groups) -> FittedProbe:
        """Fit on states X (n, width), failed and groups (n,). Raises as `LogisticFitter.fit` does."""
        plan = Plan(self.folds, self.seed, self.steps, self.class_weight)
        train = _train_whitened if self.whiten else _train_plain
        found = cross_fit(train, (1.0,), as_matrix(X, "states"), failed, groups, plan)
        sample = found.sample
        return calibrate_scores(found.fitted, sample.failed, found.folds, "platt", sample.weights)


@dataclass(frozen=True)
class LDAFitter:
    """Linear discriminant analysis: two Gaussians with one covariance, shrunk towards a diagonal.

    Features are divided by their standard deviation within classes, and their correlations shrunk towards the
    identity by the share of Ledoit and Wolf 2004. Scores follow from the Gaussian model without further fitting;
    where states are not Gaussian or dimensions many they are too sure of themselves: see `Calibrated`. Its
    direction is that of `MassMeanFitter(whiten=True)`. folds, seed, class_weight, steps: as in `LogisticFitter`.
    """

    folds: int = 5
    seed: int = 0
    class_weight: ClassWeight = None
    steps: tuple[Step, ...] = ()

    def fit(self, X: ArrayLike, failed: ArrayLike, groups: Groups) -> FittedProbe:
        """Fit on states X (n, width), failed and groups (n,). Raises as `LogisticFitter.fit` does."""
        plan = Plan(self.folds, self.seed, self.steps, self.class_weight)
        return cross_fit(_train_whitened, (1.0,), as_matrix(X, "states"), failed, groups, plan).fitted


def _train_plain(sample: Sample, _: tuple[float, ...]) -> LinearPath:
    """The direction of the mean difference, scaled so that projections have variance 1 within classes."""
    middle, gap, residuals = _centred(sample)
    spread = float(np.sqrt(np.square(residuals @ gap).mean()))
    return _path(sample, middle, np.ones_like(middle), gap / spread if spread else gap)


def _train_whitened(sample: Sample, _: tuple[float, ...]) -> LinearPath:
    """The direction and the slope of LDA.

    The shrunk correlations (1 - s) R + s m I are inverted on the principal axes of R, at most min(n, d), and
    outside of them, where they are s m I.
    """
    middle, gap, residuals = _centred(sample)
    scale = column_moments(residuals)[1]
    features, gap = residuals / scale, gap / scale
    axes, rotated = principal_axes(features)
    variances = np.square(rotated).mean(axis=0)
    level = float(variances.sum()) / len(gap)
    shrinkage = ledoit_wolf_shrinkage(rotated, len(gap))
    floor = shrinkage * level
    along = axes.T @ gap
    weight = axes @ (along / ((1 - shrinkage) * variances + floor))
    if len(variances) < len(gap):
        weight = weight + (gap - axes @ along) / (floor or 1.0)
    return _path(sample, middle, scale, weight)


def ledoit_wolf_shrinkage(rotated: Array, dimensions: int) -> float:
    """The share by which to shrink a covariance towards the identity times its mean variance (Ledoit and Wolf 2004).

    rotated: (n, rank), centred rows in the coordinates of their principal axes, of `dimensions` in all. As in
    scikit-learn's `ledoit_wolf_shrinkage(assume_centered=True)`, from n * rank numbers rather than d * d.
    """
    squares = np.square(rotated)
    of_squares = float(np.square(squares.mean(axis=0)).sum())  # squared Frobenius norm of the covariance
    level = float(squares.sum()) / (len(rotated) * dimensions)
    distance = of_squares / dimensions - level**2
    noise = (float(np.square(squares.sum(axis=1)).mean()) - of_squares) / (len(rotated) * dimensions)
    return min(noise / distance, 1.0) if distance > 0 else 1.0


def _centred(sample: Sample) -> tuple[Array, Array, Array]:
    """The point halfway between the class means, their difference, (d,) each, and rows less their class mean."""
    of_failed = sample.rows[sample.failed].mean(axis=0)
    of_success = sample.rows[~sample.failed].mean(axis=0)
    residuals = sample.rows - np.where(sample.failed[:, None], of_failed, of_success)
    middle, gap = (of_failed + of_success) / 2, of_failed - of_success
    # Where a feature is constant the means differ by rounding, which dividing by as small a spread would blow up.
    gap[np.abs(gap) <= len(residuals) * np.finfo(np.float64).eps * np.abs(middle)] = 0.0
    return middle, gap, residuals


def _path(sample: Sample, middle: Array, scale: Array, weight: Array) -> LinearPath:
    return LinearPath(middle, scale, weight[:, None], np.array([sample.log_odds]))
