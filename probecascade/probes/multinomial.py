"""Exact L2 multinomial logistic regression along a path of strengths, in the coordinates of the principal axes."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax
from threadpoolctl import threadpool_limits

from probecascade.errors import DataError
from probecascade.probes.solver import principal_axes

Array = NDArray[np.float64]

_TOLERANCE = 1e-5  # on the gradient in the rescaled coordinates, where the Hessian is near the identity
_UNSOLVED = 1e-2
_MOST_STEPS = 2000


def multinomial_path(
    features: Array, classes: NDArray[np.intp], n_classes: int, strengths: tuple[float, ...]
) -> tuple[Array, Array]:
    """Minimise sum_k |w_k|^2 / 2 - C * sum_i log softmax(W x_i + b)[class_i] for each C.

    features: (n, d), centred. classes: (n,) in 0..n_classes-1, each of which occurs. strengths: rising C, each solved
    from the last. Returns weights (n_strengths, n_classes, d) and biases (n_strengths, n_classes) of mean 0. This is
    the objective of scikit-learn's LogisticRegression(C=C) with three or more classes. DataError where the search
    does not converge.
    """
    axes, rotated = principal_axes(features)
    n, rank = rotated.shape
    shares = np.bincount(classes, minlength=n_classes) / n
    curvature = np.maximum(shares * (1 - shares), 1e-4)[:, None]
    spread = np.append(np.square(rotated).sum(axis=0), n)
    point = np.hstack([np.zeros((n_classes, rank)), np.log(shares)[:, None]])
    weights = np.empty((len(strengths), n_classes, features.shape[1]))
    biases = np.empty((len(strengths), n_classes))
    with threadpool_limits(1, user_api="blas"):
        for s, strength in enumerate(strengths):
            pull = np.append(np.full(rank, 1.0 / strength), 0.0)
            point = _solve(rotated, classes, strength, 1.0 / np.sqrt(curvature * spread + pull), point)
            weights[s] = point[:, :-1] @ axes.T
            biases[s] = point[:, -1] - point[:, -1].mean()
    return weights, biases


def _solve(rotated: Array, classes: NDArray[np.intp], strength: float, steps: Array, start: Array) -> Array:
    """Weights and biases, (n_classes, rank + 1), found from `start` in the coordinates point / steps."""
    n, rows = len(rotated), np.arange(len(rotated))

    def objective(scaled: Array) -> tuple[float, Array]:
        point = scaled.reshape(start.shape) * steps
        logs = log_softmax(rotated @ point[:, :-1].T + point[:, -1], axis=1)
        value = np.square(point[:, :-1]).sum() / (2 * strength) - logs[rows, classes].sum()
        excess = np.exp(logs)
        excess[rows, classes] -= 1.0
        gradient = np.empty_like(point)
        gradient[:, :-1] = excess.T @ rotated + point[:, :-1] / strength
        gradient[:, -1] = excess.sum(axis=0)
        return float(value), (gradient * steps).ravel()

    options = {"maxiter": _MOST_STEPS, "maxcor": 20, "gtol": _TOLERANCE * math.sqrt(n), "ftol": 1e-12}
    found = minimize(objective, (start / steps).ravel(), jac=True, method="L-BFGS-B", options=options)
    if np.abs(found.jac).max() > _UNSOLVED * math.sqrt(n):
        raise DataError(f"the fit of the failure modes at strength {strength:g} did not converge: drop strong ones.")
    return np.asarray(found.x.reshape(start.shape) * steps, dtype=np.float64)
