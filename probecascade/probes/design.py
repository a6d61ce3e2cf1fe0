"""Rows prepared for many fits on parts of them: standardised over all rows, with their principal axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

Array = NDArray[np.float64]
Floats = NDArray[Any]  # float32 or float64
Labels = NDArray[np.bool_]
Index = NDArray[np.intp]

_NARROW = 1e-6  # below this variance of a standardised feature, only the rows tell what is constant
_ALIKE = 1.2


@dataclass(frozen=True, eq=False)
class Design:
    """rows: (n, d). mean, scale: (d,) of all rows or of some; features: (n, d), the rows standardised by them.

    axes: (d, rank), principal axes of the features; scores: (n, rank), the features along them; variance:
    (rank,), rising, of the scores. These are float32: they steer a search and decide no result.
    """

    rows: Array
    mean: Array
    scale: Array
    features: Array
    axes: Floats
    scores: Floats
    variance: Floats

    @classmethod
    def of(cls, rows: Array, train: Index | None = None) -> Design:
        """Standardise all rows by the moments of all, or of a training set, and find its principal axes."""
        inside = np.arange(len(rows)) if train is None else train
        mean, scale, _ = _moments(rows[inside])
        features = (rows - mean) / scale
        single = np.zeros(rows.shape, dtype=np.float32)
        single[inside] = features[inside]
        axes, variance = _principal_axes(single[inside])
        return cls(rows, mean, scale, features, axes, single @ axes, variance)

    def standards(self, trains: Sequence[Index]) -> tuple[Array, Array]:
        """Mean and inverse scale of the features over each training set, (n_fits, d).

        A feature that is constant over a training set gets the inverse scale 0, which keeps it out of the fit.
        """
        sets = members(trains, len(self.rows))
        sizes = sets.sum(axis=1, keepdims=True)
        mean = sets @ self.features / sizes
        variance = sets @ np.square(self.features) / sizes - np.square(mean)
        narrow = variance < _NARROW
        inverse = 1.0 / np.sqrt(np.where(narrow, 1.0, variance))
        for fit in map(int, np.flatnonzero(narrow.any(axis=1))):
            columns = np.flatnonzero(narrow[fit])
            own_mean, own_scale, constant = _moments(self.rows[np.ix_(trains[fit], columns)])
            mean[fit, columns] = (own_mean - self.mean[columns]) / self.scale[columns]
            inverse[fit, columns] = np.where(constant, 0.0, self.scale[columns] / own_scale)
        return mean, inverse

    def suits(self, trains: Sequence[Index]) -> Labels:
        """Over which training sets each feature that varies at all has nearly the scale it has here, (n_fits,)."""
        _, inverse = self.standards(trains)
        varies = (self.features != 0.0).any(axis=0)
        alike = (inverse > 1.0 / _ALIKE) & (inverse < _ALIKE)
        return np.asarray((alike | ~varies).all(axis=1))


def members(trains: Sequence[Index], n: int) -> Array:
    """(n_fits, n), 1 where a fit trains on a row and 0 elsewhere."""
    sets = np.zeros((len(trains), n))
    for inside, train in zip(sets, trains, strict=True):
        inside[train] = 1.0
    return sets


def _moments(rows: Array) -> tuple[Array, Array, Labels]:
    """Mean and standard deviation of each column, (d,), and which are constant: those get scale 1."""
    mean, scale = rows.mean(axis=0), rows.std(axis=0)
    # A constant column may show a spread of rounding size, which must not be blown up to unit variance.
    constant = scale <= len(rows) * np.finfo(np.float64).eps * np.abs(mean)
    mean[constant], scale[constant] = rows[0, constant], 1.0
    return mean, scale, constant


def _principal_axes(features: Floats) -> tuple[Floats, Floats]:
    """Axes (d, rank) and the variance along them (rank,), by the smaller Gram matrix."""
    n, d = features.shape
    if d <= n:
        values, vectors = eigh(features.T @ features, driver="evd")
        return vectors, np.maximum(values, 0.0) / n
    values, vectors = eigh(features @ features.T, driver="evd")
    kept = values > n * np.finfo(features.dtype).eps * max(float(values[-1]), 1e-30)
    return (features.T @ vectors[:, kept]) / np.sqrt(values[kept]), values[kept] / n
