"""When gates fire: the one definition that calibration, back-tests and the live cascade share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from probecascade.errors import DataError

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

OFF = float("inf")
"""Threshold of a gate that never fires."""

LOWEST = -float(np.finfo(np.float64).max)
"""Threshold of a gate that fires at every score."""

_LARGEST = 1e300  # differences of anything beyond may overflow


@dataclass(frozen=True, slots=True)
class GateScores:
    """Scored episodes on plain arrays.

    `scores` (n_episodes, n_gates) float64, NaN where the episode did not reach the gate; `failed`
    (n_episodes,) bool, the labels; `cost_after` (n_episodes, n_gates) tokens spent strictly after each
    gate, NaN only where the score is NaN.
    """

    scores: FloatArray
    failed: BoolArray
    cost_after: FloatArray

    @classmethod
    def check(cls, scores: ArrayLike, failed: ArrayLike, cost_after: ArrayLike | None = None) -> GateScores:
        """Validated arrays; without costs every abort counts as one. DataError in a sentence."""
        table = np.asarray(scores, dtype=np.float64)
        labels: NDArray[Any] = np.asarray(failed)
        if table.ndim != 2 or not table.shape[1]:
            raise DataError(f"scores have shape {table.shape}: give one row per episode and one column per gate.")
        if labels.dtype != np.bool_:
            raise DataError(f"labels are {labels.dtype}, not booleans: give True where the episode failed.")
        if labels.shape != table.shape[:1]:
            raise DataError(f"{labels.size} labels were given for {len(table)} episodes: give one per row of scores.")
        if np.isinf(table).any():
            raise DataError("scores hold infinite values: give finite scores, NaN where a gate was not reached.")
        if np.nanmax(np.abs(table), initial=0.0) > _LARGEST:
            raise DataError(
                f"scores reach {np.nanmax(np.abs(table)):.3g}, and beyond {_LARGEST:g} their differences may overflow: "
                "divide them all by the same number."
            )
        reached = ~np.isnan(table)
        costs = np.where(reached, 1.0, np.nan) if cost_after is None else np.asarray(cost_after, dtype=np.float64)
        if costs.shape != table.shape:
            raise DataError(f"costs have shape {costs.shape}, scores {table.shape}: give one cost per score.")
        if not np.isfinite(costs[reached]).all() or (costs[reached] < 0).any():
            raise DataError("a reached gate has no finite cost >= 0: give the tokens spent strictly after it.")
        return cls(table, labels, costs)

    def take(self, rows: NDArray[Any]) -> GateScores:
        """The episodes at these rows, indices or a mask."""
        return GateScores(self.scores[rows], self.failed[rows], self.cost_after[rows])

    def columns(self, gates: Sequence[int]) -> GateScores:
        """The same episodes at these gates alone."""
        chosen = list(gates)
        return GateScores(self.scores[:, chosen], self.failed, self.cost_after[:, chosen])

    @property
    def doomed(self) -> int:
        return int(self.failed.sum())

    @property
    def successes(self) -> int:
        return int((~self.failed).sum())


def stacked(parts: Sequence[GateScores]) -> GateScores:
    """The episodes of all parts, one below the other; they have the same gates."""
    return GateScores(
        np.concatenate([part.scores for part in parts]),
        np.concatenate([part.failed for part in parts]),
        np.concatenate([part.cost_after for part in parts]),
    )


def firing(scores: FloatArray, thresholds: FloatArray) -> BoolArray:
    """(n_episodes, n_gates): which gates the episode would fire were it never aborted. NaN never fires."""
    return np.greater_equal(scores, thresholds)


def first_firing(scores: FloatArray, thresholds: FloatArray, cost_after: FloatArray | None = None) -> NDArray[np.intp]:
    """(n_episodes,): index of the gate that aborts the episode, -1 where none fires.

    Gates of different kinds interleave differently from episode to episode, so the earliest firing gate
    is the one with the most still to spend; equal costs (the same token) and no costs go by gate order.
    """
    fired = firing(scores, thresholds)
    order = np.zeros_like(scores) if cost_after is None else cost_after
    first = np.argmax(np.where(fired, order, -1.0), axis=1)
    return np.where(fired.any(axis=1), first, -1).astype(np.intp)
