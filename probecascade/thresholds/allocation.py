"""Exact search over allocations of levels to gates: two matrix products instead of an enumeration.

An allocation picks one of L candidate thresholds for each of G gates, L**G in all. The gates are cut in two halves.
A success is kept by an allocation iff it is kept by both of its halves, and an episode's saving is that of the
first half where it fires there, else that of the second: the kept counts and the savings of all pairs of
half-allocations are products of matrices with one row per half-allocation and one column per episode.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probecascade.errors import DataError
from probecascade.thresholds.firing import BoolArray, FloatArray, GateScores

_LARGEST = 1 << 26  # pairs of half-allocations held at once: half a gigabyte of savings


@dataclass(frozen=True, slots=True, eq=False)
class Allocations:
    """All allocations of candidate thresholds (n_gates, n_levels) on scored episodes.

    `kept` (n_first, n_second) counts the successes that no gate aborts, `saved` the tokens saved by both classes.
    """

    candidates: FloatArray
    kept: NDArray[np.int64]
    saved: FloatArray
    cut: int

    @classmethod
    def of(cls, data: GateScores, candidates: FloatArray) -> Allocations:
        """Evaluate every allocation. DataError where the candidates do not fit the gates or are far too many."""
        n_gates, n_levels = candidates.shape
        if n_gates != data.scores.shape[1]:
            raise DataError(
                f"candidates are given for {n_gates} gates, scores for {data.scores.shape[1]}: give one row each."
            )
        if n_levels**n_gates > _LARGEST:
            raise DataError(
                f"{n_levels} levels at {n_gates} gates are {n_levels**n_gates} allocations: give fewer levels or gates."
            )
        cut = (n_gates + 1) // 2
        costs = np.where(np.isnan(data.cost_after), 0.0, data.cost_after)
        first = _half(data.scores[:, :cut], costs[:, :cut], candidates[:cut])
        second = _half(data.scores[:, cut:], costs[:, cut:], candidates[cut:])
        successes = ~data.failed
        # Counts up to 2**24 are exact in float32, whose product takes half the time.
        exact = np.float32 if data.successes < 1 << 24 else np.float64
        kept = first[0][:, successes].astype(exact) @ second[0][:, successes].astype(exact).T
        if _in_time_order(data):
            saved = first[1].sum(axis=1)[:, None] + first[0].astype(np.float64) @ second[1].T
        else:  # whichever half fires earlier, that is with more still to spend
            saved = np.stack([np.maximum(row, second[1]).sum(axis=1) for row in first[1]])
        return cls(candidates, kept.astype(np.int64), saved, cut)

    def best(self, required: int) -> tuple[FloatArray, int, float] | None:
        """Thresholds, kept and saved of the allocation that saves most while it keeps `required` successes.

        None where no allocation keeps as many. Of equal savings the one that keeps more, then the first.
        """
        allowed = self.kept >= required
        if not allowed.any():
            return None
        saved = np.where(allowed, self.saved, -1.0)
        ties = np.argwhere(saved == saved.max())
        a, b = ties[np.argmax(self.kept[tuple(ties.T)])]
        return self.thresholds(int(a), int(b)), int(self.kept[a, b]), float(self.saved[a, b])

    def frontier(self) -> tuple[NDArray[np.int64], FloatArray]:
        """Rising kept counts, and the most that an allocation keeping at least so many saves; dominated ones left out."""
        order = np.lexsort((self.saved.ravel(), self.kept.ravel()))[::-1]
        kept, saved = self.kept.ravel()[order], self.saved.ravel()[order]
        best = np.maximum.accumulate(saved)
        new = np.concatenate([[True], saved[1:] > best[:-1]])
        return kept[new][::-1], saved[new][::-1]

    def thresholds(self, first: int, second: int) -> FloatArray:
        """(n_gates,) of the allocation with these two halves."""
        n_levels = self.candidates.shape[1]
        digits = [
            *np.unravel_index(first, (n_levels,) * self.cut),
            *(
                np.unravel_index(second, (n_levels,) * (len(self.candidates) - self.cut))
                if self.cut < len(self.candidates)
                else ()
            ),
        ]
        return np.array([self.candidates[g, int(level)] for g, level in enumerate(digits)])


def _half(scores: FloatArray, costs: FloatArray, candidates: FloatArray) -> tuple[BoolArray, FloatArray]:
    """(n_allocations, n_episodes) each: whether no gate of the half fires, and the tokens saved where one does."""
    alive = np.ones((1, len(scores)), dtype=np.bool_)
    saved = np.zeros((1, len(scores)))
    for g in range(len(candidates)):
        fires = np.greater_equal(scores[None, :, g], candidates[g][:, None])
        here = np.where(fires, costs[None, :, g], 0.0)
        saved = np.maximum(saved[:, None, :], here[None, :, :]).reshape(-1, len(scores))
        alive = (alive[:, None, :] & ~fires[None, :, :]).reshape(-1, len(scores))
    return alive, saved


def _in_time_order(data: GateScores) -> bool:
    """Whether no episode reaches a later gate with more left to spend than at an earlier one."""
    filled = np.where(np.isnan(data.cost_after), np.inf, data.cost_after)
    least = np.minimum.accumulate(filled, axis=1)
    later = np.where(np.isnan(data.cost_after), -np.inf, data.cost_after)
    return bool((later[:, 1:] <= least[:, :-1]).all())
