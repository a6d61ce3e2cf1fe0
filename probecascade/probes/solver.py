"""Exact L2 logistic regression along a path of strengths, fast where rows are fewer than dimensions.

The penalty is invariant under rotation, so the problem is solved in the coordinates of the principal
axes: at most min(n, d) of them, and there the Hessian is nearly diagonal, which a rescaling undoes.
L-BFGS then needs a few dozen cheap steps per strength instead of hundreds of costly ones.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.optimize import minimize
from scipy.special import expit

from probecascade.errors import DataError

Array = NDArray[np.float64]

_TOLERANCE = 1e-6  # on the gradient in the rescaled coordinates, where the Hessian is near the identity
_UNSOLVED = 1e-3
_MOST_STEPS = 2000


def log_odds(failed: NDArray[np.bool_]) -> float:
    """Logarithm of failures over successes, both of which there must be."""
    return float(np.log(failed.sum() / (~failed).sum()))


def logistic_path(
    features: Array, failed: NDArray[np.bool_], strengths: tuple[float, ...], sample_weights: Array | None = None
) -> tuple[Array, Array]:
    """Minimise |w|^2 / 2 + C * sum_i s_i log(1 + exp(-y_i (w . x_i + b))) for each C, y = +1 where failed.

    features: (n, d), centred; failed: (n,), both classes; strengths: rising C, each solved from the last;
    sample_weights: s, (n,), positive, all 1 unless given. Returns weights (d, n_strengths) and biases
    (n_strengths,). This is the objective of scikit-learn's LogisticRegression(C=C). Raises DataError where
    the search does not converge.
    """
    axes, rotated = principal_axes(features)
    share = np.ones(len(failed)) if sample_weights is None else sample_weights
    n, rank = rotated.shape
    weights = np.zeros((rank, len(strengths)))
    biases = np.full(len(strengths), float(np.log(share[failed].sum() / share[~failed].sum())))
    if not rank:
        return axes @ weights, biases
    spread = np.square(rotated).sum(axis=0)
    solution = np.append(np.zeros(rank), biases[0])
    for k, strength in enumerate(strengths):
        p = expit(rotated @ solution[:-1] + solution[-1])
        curvature = max(float(np.mean(p * (1 - p))), 1e-4)
        steps = 1.0 / np.sqrt(np.append(curvature * spread + 1.0 / strength, curvature * n))
        solution = _solve(rotated, failed, share, strength, steps, solution)
        weights[:, k], biases[k] = solution[:-1], solution[-1]
    return axes @ weights, biases


def principal_axes(features: Array) -> tuple[Array, Array]:
    """Orthonormal axes (d, rank) by rising variance, and the centred features in their coordinates (n, rank).

    From an eigendecomposition of the smaller Gram matrix, several times quicker than an SVD. Axes with
    less than 1e-12 of the largest variance are rounding and dropped.
    """
    n, d = features.shape
    wide = d > n
    values, vectors = eigh(features @ features.T if wide else features.T @ features, driver="evd")
    kept = values > 1e-12 * max(float(values[-1]), 1e-300)
    vectors = vectors[:, kept]
    if not wide:
        return vectors, features @ vectors
    lengths = np.sqrt(values[kept])
    return (features.T @ vectors) / lengths, vectors * lengths


def _solve(
    rotated: Array, failed: NDArray[np.bool_], share: Array, strength: float, steps: Array, start: Array
) -> Array:
    """Weights and bias, (rank + 1,), found from `start` in the coordinates (weights, bias) / steps."""
    sign = np.where(failed, 1.0, -1.0)
    transposed = np.ascontiguousarray(rotated.T)

    def objective(scaled: Array) -> tuple[float, Array]:
        point = scaled * steps
        weight = point[:-1]
        margin = sign * (rotated @ weight + point[-1])
        pull = -sign * share * expit(-margin)
        value = float((share * np.logaddexp(0.0, -margin)).sum() + weight @ weight / (2 * strength))
        gradient = np.append(transposed @ pull + weight / strength, pull.sum())
        return value, gradient * steps

    options = {"maxiter": _MOST_STEPS, "maxcor": 20, "gtol": _TOLERANCE, "ftol": 1e-15}
    found = minimize(objective, start / steps, jac=True, method="L-BFGS-B", options=options)
    if np.abs(found.jac).max() > _UNSOLVED:
        raise DataError(f"The logistic fit at strength {strength:g} did not converge; try smaller strengths.")
    return np.asarray(found.x * steps, dtype=np.float64)


def elastic_net_path(
    features: Array,
    failed: NDArray[np.bool_],
    strengths: tuple[float, ...],
    l1_ratio: float,
    sample_weights: Array,
    start_bias: float,
) -> tuple[Array, Array]:
    """Minimise (1 - r) |w|^2 / 2 + r |w|_1 + C * sum_i s_i log(1 + exp(-y_i (w . x_i + b))) for each C, r = l1_ratio.

    As `logistic_path`; the objective of scikit-learn's elastic net. The weights are split in their positive and
    negative parts, both bounded by 0 from below, which makes the objective smooth and L-BFGS-B exact zeros.
    """
    n, d = features.shape
    sign = np.where(failed, 1.0, -1.0)
    transposed = np.ascontiguousarray(features.T)
    weights, biases = np.zeros((d, len(strengths))), np.empty(len(strengths))
    solution = np.append(np.zeros(2 * d), start_bias)
    bounds = [(0.0, None)] * (2 * d) + [(None, None)]

    for k, strength in enumerate(strengths):
        scale = 1.0 / (strength * n)  # the objective per row and unit of C, so that one tolerance suits all

        def objective(point: Array, scale: float = scale) -> tuple[float, Array]:
            up, down, bias = point[:d], point[d:-1], point[-1]
            weight = up - down
            margin = sign * (features @ weight + bias)
            pull = -sign * sample_weights * expit(-margin) / n
            shrink = (1 - l1_ratio) * scale * weight
            slope = transposed @ pull + shrink
            penalty = scale * ((1 - l1_ratio) * (weight @ weight) / 2 + l1_ratio * (up + down).sum())
            value = float((sample_weights * np.logaddexp(0.0, -margin)).sum() / n + penalty)
            return value, np.concatenate([slope + l1_ratio * scale, l1_ratio * scale - slope, [pull.sum()]])

        options = {"maxiter": _MOST_STEPS, "maxfun": 4 * _MOST_STEPS, "maxcor": 20, "gtol": 1e-6, "ftol": 1e-13}
        found = minimize(objective, solution, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        if not found.success:
            raise DataError(f"The elastic net at strength {strength:g} did not converge; try smaller strengths.")
        solution = found.x
        weights[:, k], biases[k] = solution[:d] - solution[d:-1], solution[-1]
    return weights, biases
