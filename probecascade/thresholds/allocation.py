"""Exact search over allocations of levels to gates: summed-area tables instead of an enumeration.

An allocation picks one of L candidate thresholds for each of G gates, L**G in all. What an episode does under all of
them depends only on how many candidates of each gate its score reaches: on its cell in a grid of L + 1 steps per gate.
The allocations that keep an episode are those whose levels all lie above its cell. So counting each success in its
cell and summing along every axis gives the kept counts of all allocations at once, and likewise the tokens that each
gate saves, where it fires and no earlier one does. The work grows with L**G, not with L**G times the episodes.
Source: summed-area tables (Crow 1984), with one axis per gate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probecascade.errors import DataError
from probecascade.thresholds.firing import FloatArray, GateScores

IntArray = NDArray[np.intp]

_LARGEST = 1 << 26  # allocations held at once: half a gigabyte of counts and as much of savings


@dataclass(frozen=True, slots=True, eq=False)
class Allocations:
    """All allocations of candidate thresholds (n_gates, n_levels) on scored episodes.

    Both tables have one axis of n_levels per gate: `kept` counts the successes that no gate aborts, `saved` holds the
    tokens saved by both classes, strictly after the earliest gate that fires.
    """

    candidates: FloatArray
    kept: IntArray
    saved: FloatArray

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
        rising = np.sort(candidates, axis=1)
        columns = np.ascontiguousarray(data.scores.T)
        steps = np.stack([np.searchsorted(*pair, side="right") for pair in zip(rising, columns, strict=True)])
        steps[np.isnan(columns)] = 0  # NaN sorts above every level and fires none
        place = _places(candidates, rising)
        return cls(candidates, _kept(steps, data, n_levels)[place], _saved(steps, data, n_levels)[place])

    def best(self, required: int) -> tuple[FloatArray, int, float] | None:
        """Thresholds, kept and saved of the allocation that saves most while it keeps `required` successes.

        None where no allocation keeps as many. Of equal savings the one that keeps more, then the first.
        """
        allowed = self.kept >= required
        if not allowed.any():
            return None
        saved = np.where(allowed, self.saved, -1.0).ravel()
        ties = np.flatnonzero(saved == saved.max())
        place = int(ties[np.argmax(self.kept.ravel()[ties])])
        levels = np.unravel_index(place, self.kept.shape)
        thresholds: FloatArray = self.candidates[np.arange(len(levels)), levels]
        return thresholds, int(self.kept.ravel()[place]), float(saved[place])

    def frontier(self) -> tuple[IntArray, FloatArray]:
        """Rising kept counts, and the most that an allocation keeping at least so many saves; none dominated."""
        most = np.full(int(self.kept.max()) + 1, -1.0)
        np.maximum.at(most, self.kept.ravel(), self.saved.ravel())
        kept = np.flatnonzero(most >= 0.0)[::-1]
        best = np.maximum.accumulate(most[kept])
        new = np.concatenate([[True], best[1:] > best[:-1]])
        return kept[new][::-1], best[new][::-1]


def _places(candidates: FloatArray, rising: FloatArray) -> tuple[Any, ...]:
    """The index that brings a table of rising levels into the order of the candidates; a view of it where it can be."""
    for step in (1, -1):
        if np.array_equal(candidates, rising[:, ::step]):
            return (slice(None, None, step),) * len(candidates)
    return np.ix_(*np.argsort(np.argsort(candidates, axis=1, kind="stable"), axis=1))


def _kept(steps: IntArray, data: GateScores, n_levels: int) -> IntArray:
    """Successes that no gate aborts. steps: (n_gates, n_episodes), how many rising levels each score reaches."""
    table: IntArray = _histogram(steps[:, ~data.failed], n_levels, None)
    for axis in range(table.ndim):
        _accumulate(table, axis)
    return table


def _saved(steps: IntArray, data: GateScores, n_levels: int) -> FloatArray:
    """Tokens that each gate saves where it fires and none before it, summed over the gates."""
    n_gates = len(steps)
    costs = np.ascontiguousarray(data.cost_after.T)
    total = np.zeros((n_levels,) * n_gates)
    for gate in range(n_gates):
        before = _earlier(costs, gate)
        for kind in np.unique(before):
            axes = [g for g in range(n_gates) if g == gate or kind >> g & 1]
            place, rest = axes.index(gate), tuple(g for g in range(n_gates) if g not in axes)
            rows = before == kind
            cells = steps[:, rows][axes]
            cells[place] -= 1
            table = _histogram(cells, n_levels, costs[gate, rows])
            for k in range(len(axes)):
                _accumulate(table, k, down=k == place)
            total += np.expand_dims(table, rest)
    return total


def _earlier(costs: FloatArray, gate: int) -> IntArray:
    """(n_episodes,): the set of gates before this one in each episode, as the sum of their powers of 2.

    costs: (n_gates, n_episodes), NaN where a gate was not reached. The earlier gate has more still to spend; at equal
    costs (the same token) the first column counts as earlier. Where either was not reached they go by column, so
    that few sets are told apart.
    """
    own = costs[gate]
    found = np.zeros(costs.shape[1], dtype=np.intp)
    for other in range(gate):
        found += ~(costs[other] < own) * (1 << other)
    for other in range(gate + 1, len(costs)):
        found += (costs[other] > own) * (1 << other)
    return found


def _histogram(cells: IntArray, n_levels: int, weights: FloatArray | None) -> NDArray[Any]:
    """Episodes, or their weights, by cell: one axis of n_levels per row of `cells`; those outside are left out."""
    size = n_levels ** len(cells)
    flat = np.zeros(cells.shape[1], dtype=np.intp)
    for row in cells:
        flat = flat * n_levels + row
    flat[((cells < 0) | (cells >= n_levels)).any(axis=0)] = size
    return np.bincount(flat, weights, minlength=size + 1)[:size].reshape((n_levels,) * len(cells))


def _accumulate(table: NDArray[Any], axis: int, *, down: bool = False) -> None:
    """Running sums along one axis, in place; `down` from its end. Adding whole slabs is faster than cumsum."""
    slabs = np.moveaxis(table, axis, 0)
    if down:
        slabs = slabs[::-1]
    for step in range(1, len(slabs)):
        slabs[step] += slabs[step - 1]
