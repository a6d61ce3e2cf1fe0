"""L2 logistic regression for many training sets and strengths at once: Newton steps by conjugate gradients.

All fits see the same rows and differ in which of them they train on, so one matrix product serves them
all, and the rows that a fit does not train on get their logits from it too. Gradients and logits are exact,
in float64. Directions are found in float32 in the principal axes of all rows, where the Hessian is nearly
diagonal, as if every fit scaled its features alike; what that neglects costs steps and no accuracy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from scipy.special import expit

from probecascade.probes.design import Array, Design, Floats, Index, Labels, members
from probecascade.probes.solver import log_odds, logistic_path

_CLOSE = 5e-4  # the last Newton step moves no logit by more, as a share of their spread where that is below 1
_INEXACT = 0.1  # the preconditioned residual at which conjugate gradients stop, as a share of the first
_FAR = 0.25  # a step that moves a logit by more is shortened where it overshoots
_ROUNDING = 1e-13  # a step that moves no logit by more is noise, which would rank scores that are all the same
_FLAT = 0.05  # axes along which the data bend the loss by a smaller share of what the penalty does count as flat
_MOST_NEWTON, _MOST_GRADIENTS, _MOST_CUTS = 60, 500, 60
_TINY = np.float32(1e-30)


def solve(design: Design, failed: Labels, trains: Sequence[Index], strengths: Sequence[float]) -> Array:
    """Minimise |w|^2 / 2 + C * sum_i log(1 + exp(-y_i (w . x_i + b))) over each training set, for each C.

    failed: (n,), y = +1 where True; trains: row numbers of each fit, of both classes, over which x is
    standardised. That is the objective of scikit-learn's StandardScaler and LogisticRegression(C=C). Returns
    the logits of all rows, trained on or not, (n_fits, n_strengths, n). Up to a strength of 1 probabilities
    come within some 1e-5 of the minimum's, and where all are nearly alike within as small a share of their
    spread. Fits that such steps do not bring to rest are solved one by one; DataError where that fails too.
    """
    problem = _Problem.of(design, failed, trains, strengths)
    weights = np.zeros((len(problem.strength), design.rows.shape[1]))
    biases = np.repeat([log_odds(failed[train]) for train in trains], len(strengths))
    models = _Models(weights, biases, problem.view.products(weights, biases))
    active = np.arange(len(biases))
    for _ in range(_MOST_NEWTON):
        part, at = problem.take(active), models.take(active)
        step = _newton_step(design, part, at)
        reach = np.abs(step.logits).max(axis=1)
        models.add(active, _shares(part, at, step, reach), step)
        spread = np.minimum(np.ptp(models.logits[active], axis=1), 1.0)
        active = active[reach > np.maximum(_CLOSE * spread, _ROUNDING)]
        if not active.size:
            return models.logits.reshape(len(trains), len(strengths), -1)
    _solve_one_by_one(problem, failed, models.logits, active)
    return models.logits.reshape(len(trains), len(strengths), -1)


def _solve_one_by_one(problem: _Problem, failed: Labels, logits: Array, models: Index) -> None:
    """Put in the logits of those models whose steps did not come to rest, each solved in axes of its own.

    Where the scales of the features differ much between training sets, because few rows make a feature vary, the
    directions that all fits share are poor ones.
    """
    view = problem.view
    for model in models:
        rows = (view.features - view.mean[model]) * view.inverse[model]
        train = problem.trained[model] > 0
        weights, biases = logistic_path(rows[train], failed[train], (float(problem.strength[model]),))
        logits[model] = rows @ weights[:, 0] + biases[0]


@dataclass(frozen=True, eq=False)
class _Models:
    """One model, or one step between models, per row.

    weights: (n_models, d), of features standardised over the training rows; biases: (n_models,); logits:
    (n_models, n), of all rows.
    """

    weights: Array
    biases: Array
    logits: Array

    def take(self, models: Index) -> _Models:
        return _Models(self.weights[models], self.biases[models], self.logits[models])

    def add(self, models: Index, shares: Array, steps: _Models) -> None:
        self.weights[models] += shares[:, None] * steps.weights
        self.biases[models] += shares * steps.biases
        self.logits[models] += shares[:, None] * steps.logits


@dataclass(frozen=True, eq=False)
class _View:
    """How each model sees the features (n, d): by its own mean and inverse scale, (n_models, d)."""

    features: Floats
    mean: Floats
    inverse: Floats

    def products(self, weights: Floats, biases: Floats) -> Floats:
        """The logits w . x + b of all rows, (n_models, n)."""
        scaled = weights * self.inverse
        products: Floats = scaled @ self.features.T
        products += (biases - np.einsum("md,md->m", scaled, self.mean))[:, None]
        return products

    def gradient(self, pulls: Floats) -> tuple[Floats, Floats]:
        """Sums over rows: sum_i pull_i x_i, (n_models, d), and sum_i pull_i, (n_models,), of pulls (n_models, n)."""
        total = pulls.sum(axis=1)
        slope: Floats = pulls @ self.features
        slope -= total[:, None] * self.mean
        slope *= self.inverse
        return slope, total


@dataclass(frozen=True, eq=False)
class _Problem:
    """trained: (n_models, n), 1 or 0; failed: (n,), 1 or 0; strength: (n_models,)."""

    view: _View
    trained: Array
    failed: Array
    strength: Array

    @classmethod
    def of(cls, design: Design, failed: Labels, trains: Sequence[Index], strengths: Sequence[float]) -> _Problem:
        mean, inverse = design.standards(trains)
        fit = np.repeat(np.arange(len(trains)), len(strengths))
        view = _View(design.features, mean[fit], inverse[fit])
        trained = members(trains, len(failed))[fit]
        return cls(view, trained, failed.astype(np.float64), np.tile(np.asarray(strengths), len(trains)))

    def take(self, models: Index) -> _Problem:
        view = _View(self.view.features, self.view.mean[models], self.view.inverse[models])
        return _Problem(view, self.trained[models], self.failed, self.strength[models])


def _newton_step(design: Design, problem: _Problem, at: _Models) -> _Models:
    chance = expit(at.logits)
    slope, slope_bias = problem.view.gradient(problem.trained * (chance - problem.failed))
    slope += at.weights / problem.strength[:, None]
    curvature = problem.trained * (chance * (1.0 - chance))
    weights, biases = _direction(design, problem, curvature, -slope, -slope_bias)
    return _Models(weights, biases, problem.view.products(weights, biases))


def _shares(problem: _Problem, at: _Models, step: _Models, reach: Array) -> Array:
    """The share of each step to take, (n_models,): all of it, or less where the loss would rise again.

    The loss is convex, so along a step its derivative only grows. Where that ends clearly positive the step
    is cut to where a straight line through both ends crosses zero, and tried again.
    """
    shares = np.where(reach > _ROUNDING, 1.0, 0.0)
    far = np.flatnonzero(reach > _FAR)
    first = _derivative(problem, at, step, far, np.zeros(len(far)))
    for _ in range(_MOST_CUTS):
        last = _derivative(problem, at, step, far, shares[far])
        over = last > 0.5 * np.abs(first)
        far, first, last = far[over], first[over], last[over]
        if not far.size:
            break
        shares[far] *= np.clip(first / (first - last), 0.1, 0.9)
    return shares


def _derivative(problem: _Problem, at: _Models, step: _Models, models: Index, shares: Array) -> Array:
    """Of the loss along the step, after a share of it, for some of the models."""
    moves, turns = step.logits[models], step.weights[models]
    chance = expit(at.logits[models] + shares[:, None] * moves)
    weights = at.weights[models] + shares[:, None] * turns
    fit = np.einsum("mn,mn,mn->m", problem.trained[models], chance - problem.failed, moves)
    penalty = np.einsum("md,md->m", weights, turns) / problem.strength[models]
    return np.asarray(fit + penalty)


def _direction(
    design: Design, problem: _Problem, curvature: Array, pull: Array, pull_bias: Array
) -> tuple[Array, Array]:
    """Weights and biases whose product with the Hessian is about the pull, in float32.

    Along the axes where the data bend the loss by conjugate gradients, elsewhere by the strength alone. Weights
    are turned into those of the features as the design scales them, and penalised as if they were still the
    same: no more is neglected, and it is little, as the scales of a fit are nearly those of the design.
    """
    total, strength = curvature.sum(axis=1), problem.strength
    first = int(np.searchsorted(design.variance, _FLAT / np.max(total * strength)))
    axes, variance = design.axes[:, first:], design.variance[first:]
    hessian = _Hessian(
        design.scores[:, first:],
        problem.view.mean.astype(np.float32) @ axes,
        curvature.astype(np.float32),
        strength.astype(np.float32)[:, None],
        (total[:, None] * variance + 1.0 / strength[:, None]).astype(np.float32),
        np.maximum(total, _TINY).astype(np.float32),
    )
    inverse = problem.view.inverse
    scale = np.divide(1.0, inverse, out=np.zeros_like(inverse), where=inverse > 0).astype(np.float32)
    # Squares of small pulls would vanish in float32.
    size = np.maximum(np.abs(pull).max(axis=1), np.abs(pull_bias))
    size[size == 0.0] = 1.0
    single = scale * (pull / size[:, None]).astype(np.float32)
    along = single @ axes
    found, biases = _conjugate_gradients(hessian, along, (pull_bias / size).astype(np.float32))
    weights = scale * (hessian.strength * single + (found - hessian.strength * along) @ axes.T)
    return size[:, None] * weights, size * biases


@dataclass(frozen=True, eq=False)
class _Hessian:
    """Second derivatives of models along some axes.

    scores: (n, rank) of all rows; mean: (n_models, rank) over each one's training rows; curvature: (n_models,
    n) of the loss by the logits; strength: (n_models, 1). diagonal: (n_models, rank) and diagonal_bias:
    (n_models,), roughly its own.
    """

    scores: Floats
    mean: Floats
    curvature: Floats
    strength: Floats
    diagonal: Floats
    diagonal_bias: Floats

    def take(self, models: Labels) -> _Hessian:
        kept = (getattr(self, field.name)[models] for field in fields(self)[1:])
        return _Hessian(self.scores, *kept)

    def product(self, weights: Floats, biases: Floats) -> tuple[Floats, Floats]:
        pulls = weights @ self.scores.T
        pulls += (biases - np.einsum("mr,mr->m", weights, self.mean))[:, None]
        pulls *= self.curvature
        total = pulls.sum(axis=1)
        slope = pulls @ self.scores
        slope -= total[:, None] * self.mean
        slope += weights / self.strength
        return slope, total


def _conjugate_gradients(hessian: _Hessian, pull: Floats, pull_bias: Floats) -> tuple[Floats, Floats]:
    """Solve for each model until what is left of its pull is small; those that are done drop out."""
    weights, biases = np.zeros_like(pull), np.zeros_like(pull_bias)
    left, left_bias = pull.copy(), pull_bias.copy()
    way, way_bias = left / hessian.diagonal, left_bias / hessian.diagonal_bias
    size = _inner(left, left_bias, way, way_bias)
    enough = _INEXACT**2 * size
    active = np.arange(len(biases))
    for _ in range(_MOST_GRADIENTS):
        bent, bent_bias = hessian.product(way, way_bias)
        length = size / np.maximum(_inner(way, way_bias, bent, bent_bias), _TINY)
        weights[active] += length[:, None] * way
        biases[active] += length * way_bias
        left -= length[:, None] * bent
        left_bias -= length * bent_bias
        ahead, ahead_bias = left / hessian.diagonal, left_bias / hessian.diagonal_bias
        new = _inner(left, left_bias, ahead, ahead_bias)
        on = new > enough
        if not on.any():
            break
        turn = new / np.maximum(size, _TINY)
        way, way_bias, size = ahead + turn[:, None] * way, ahead_bias + turn * way_bias, new
        if not on.all():
            active, hessian = active[on], hessian.take(on)
            way, way_bias, left, left_bias = way[on], way_bias[on], left[on], left_bias[on]
            size, enough = size[on], enough[on]
    return weights, biases


def _inner(a: Floats, a_bias: Floats, b: Floats, b_bias: Floats) -> Floats:
    return np.asarray(np.einsum("mr,mr->m", a, b) + a_bias * b_bias)
