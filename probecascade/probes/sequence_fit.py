"""Fitting sequence probes: a running mean, or attention pooling with one learnt query."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize
from scipy.special import expit, softmax

from probecascade.errors import DataError, UsageError
from probecascade.probes.crossfit import Array, ClassWeight, FittedProbe, Groups, Path, Plan, Sample, cross_fit
from probecascade.probes.fit import STRENGTHS, rising
from probecascade.probes.inputs import as_blocks
from probecascade.probes.sequence import SequenceProbe
from probecascade.probes.solver import logistic_path, principal_axes
from probecascade.probes.steps import Step, column_moments

_MOST_STEPS = 500
_QUERY_START = 1e-3
"""Length of the first query: at exactly 0 a zero weight would leave it without a gradient."""


@dataclass(frozen=True)
class SequenceFitter:
    """A linear head on the pooled states of several checkpoints, so that evidence accumulates over rounds.

    X is (n, blocks * d), one block per tap in order; an earlier checkpoint that an episode lacks is a block of
    NaN. pooling: "mean" over the blocks present, or "attention" with one learnt query (Bahdanau et al. 2015;
    as a probe: McKenzie et al. 2025), which starts as the mean and learns which states to trust. Each tap is
    standardised by itself. strengths: of the penalty on head and query, chosen as in `LogisticFitter`; the
    attention problem is not convex, what is found is the minimum next to the mean's. folds, seed,
    class_weight, steps: as in `LogisticFitter`; steps must be made for as many blocks.
    """

    blocks: int
    pooling: Literal["mean", "attention"] = "mean"
    strengths: tuple[float, ...] = STRENGTHS
    folds: int = 5
    seed: int = 0
    class_weight: ClassWeight = None
    steps: tuple[Step, ...] = ()

    def fit(self, X: ArrayLike, failed: ArrayLike, groups: Groups) -> FittedProbe:
        """Fit on states X (n, blocks * d), failed and groups (n,). Raises as `LogisticFitter.fit` does.

        UsageError on another pooling or no block.
        """
        if self.pooling not in ("mean", "attention"):
            raise UsageError(f"A pooling of {self.pooling!r} was given; give 'mean' or 'attention'.")
        if self.blocks < 1:
            raise UsageError(f"{self.blocks} blocks were given; give one per tap.")
        plan = Plan(self.folds, self.seed, self.steps, self.class_weight, self.blocks)
        rows = as_blocks(X, "states", self.blocks)
        return cross_fit(self._train, rising(self.strengths), rows, failed, groups, plan).fitted

    def _train(self, sample: Sample, values: tuple[float, ...]) -> Path:
        mean, scale = (m.reshape(self.blocks, -1) for m in column_moments(sample.rows))
        z = (sample.rows.reshape(-1, *mean.shape) - mean) / scale
        solve = _mean_path if self.pooling == "mean" else _attention_path
        return SequencePath(tuple(SequenceProbe(mean, scale, *found) for found in solve(z, sample, values)))


@dataclass(frozen=True, eq=False)
class SequencePath:
    """Sequence probes at several strengths."""

    models: tuple[SequenceProbe, ...]

    def logits(self, rows: Array) -> Array:
        mean, scale = self.models[0].mean, self.models[0].scale
        z = (rows.reshape(-1, *mean.shape) - mean) / scale
        return np.stack([_pooled(z, model.query) @ model.weight + model.bias for model in self.models], axis=1)

    def rebased(self, old: float, new: float) -> SequencePath:
        return SequencePath(tuple(replace(model, bias=new + (model.bias - old)) for model in self.models))

    def probe(self, place: int) -> SequenceProbe:
        return self.models[place]


Found = tuple[Array, float, Array | None]


def _pooled(z: Array, query: Array | None) -> Array:
    """Weighted means of the blocks present, (n, blocks, d) -> (n, d)."""
    present = ~np.isnan(z[..., 0])
    filled = np.where(present[..., None], z, 0.0)
    if query is None:
        return np.asarray(filled.sum(axis=1) / present.sum(axis=1, keepdims=True))
    share = softmax(np.where(present, filled @ query, -np.inf), axis=1)
    return np.asarray((share[..., None] * filled).sum(axis=1))


def _mean_path(z: Array, sample: Sample, values: tuple[float, ...]) -> list[Found]:
    """Ridge logistic regression on the means, which are standardised once more so that C means the same."""
    pooled = _pooled(z, None)
    centre, spread = column_moments(pooled)
    weights, biases = logistic_path((pooled - centre) / spread, sample.failed, values, sample.weights)
    weights /= spread[:, None]
    return [(w, float(b - w @ centre), None) for w, b in zip(weights.T, biases, strict=True)]


def _attention_path(z: Array, sample: Sample, values: tuple[float, ...]) -> list[Found]:
    """Head and query on the principal axes of all blocks present, each strength from the one before."""
    present = ~np.isnan(z[..., 0])
    axes, rotated = principal_axes(z[present])
    if not rotated.shape[1]:  # constant states tell nothing, nor which of them to trust
        return [(weight, bias, np.zeros_like(weight)) for weight, bias, _ in _mean_path(z, sample, values)]
    coordinates = np.zeros((*present.shape, rotated.shape[1]))
    coordinates[present] = rotated
    problem = _Attention(coordinates, present, sample)
    (start_weight, bias, _), *_ = _mean_path(np.where(present[..., None], coordinates, np.nan), sample, values[:1])
    query = start_weight * (_QUERY_START / max(float(np.linalg.norm(start_weight)), _QUERY_START))
    solution = np.concatenate([start_weight, query, [bias]])
    found: list[Found] = []
    for strength in values:
        solution = problem.solve(strength, solution)
        weight, query, bias = problem.split(solution)
        found.append((axes @ weight, float(bias), axes @ query))
    return found


@dataclass(frozen=True, eq=False)
class _Attention:
    """Minimise (|w|^2 + |q|^2) / 2 + C * sum_i s_i log-loss of w . pooled_i(q) + b."""

    coordinates: Array  # (n, blocks, rank), 0 where missing
    present: NDArray[np.bool_]  # (n, blocks)
    sample: Sample

    def split(self, point: Array) -> tuple[Array, Array, float]:
        rank = self.coordinates.shape[2]
        return point[:rank], point[rank:-1], float(point[-1])

    def solve(self, strength: float, start: Array) -> Array:
        n = len(self.present)
        spread = np.square(self.coordinates).sum(axis=(0, 1)) / self.present.sum()
        steps = 1.0 / np.sqrt(spread / 4 + 1.0 / (strength * n))
        scaling = np.concatenate([steps, steps, [2.0]])

        def objective(scaled: Array) -> tuple[float, Array]:
            value, gradient = self.value(scaled * scaling, strength)
            return value, gradient * scaling

        options = {"maxiter": _MOST_STEPS, "maxcor": 20, "gtol": 1e-5, "ftol": 1e-10}
        found = minimize(objective, start / scaling, jac=True, method="L-BFGS-B", options=options)
        if not found.success:
            raise DataError(f"The attention fit at strength {strength:g} did not converge; try smaller strengths.")
        return np.asarray(found.x * scaling, dtype=np.float64)

    def value(self, point: Array, strength: float) -> tuple[float, Array]:
        """The objective per row and unit of C, and its gradient."""
        weight, query, bias = self.split(point)
        sample, scale = self.sample, 1.0 / (strength * len(self.present))
        evidence = self.coordinates @ weight
        share = softmax(np.where(self.present, self.coordinates @ query, -np.inf), axis=1)
        logits = (share * evidence).sum(axis=1) + bias
        sign = np.where(sample.failed, 1.0, -1.0)
        pull = -sign * sample.weights * expit(-sign * logits) / len(sign)
        loss = float((sample.weights * np.logaddexp(0.0, -sign * logits)).mean())
        loss += scale * float(weight @ weight + query @ query) / 2
        of_evidence = pull[:, None] * share
        of_query = of_evidence * (evidence - (logits - bias)[:, None])
        flat = self.coordinates.reshape(-1, self.coordinates.shape[2])
        gradient = np.concatenate(
            [of_evidence.ravel() @ flat + scale * weight, of_query.ravel() @ flat + scale * query, [pull.sum()]]
        )
        return loss, gradient
