"""Which of many candidate gates serve the targets at least loss, judged on teaching episodes alone."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations

import numpy as np

from probecascade.errors import UsageError
from probecascade.thresholds.firing import FloatArray, GateScores, first_firing
from probecascade.thresholds.sequential import recall_thresholds
from probecascade.thresholds.shape import learn_shape

_EXHAUSTIVE = 20_000  # sets of gates that are all tried for recall targets


def choose_gates(
    teachers: GateScores, recalls: Sequence[Fraction], keep: Fraction | None, *, max_gates: int, seed: int = 0
) -> tuple[int, ...]:
    """Column indices, rising, of the gates to use.

    With recalls: of all sets of one gate per target, the one whose sequential thresholds miss the fewest targets,
    then lose the fewest successes, then save most. With keep alone: gates are added one by one while they save more at
    that keep, shaped on one half of the teachers and judged on the other, both ways. UsageError where there
    are fewer candidates than recalls, or `max_gates` is below 1.
    """
    n_gates = teachers.scores.shape[1]
    if max_gates < 1:
        raise UsageError(f"at most {max_gates} gates were allowed: allow at least one.")
    if not recalls:
        assert keep is not None
        return _for_keep(teachers, keep, max_gates, seed)
    if len(recalls) > n_gates:
        raise UsageError(f"{len(recalls)} recall targets were given for {n_gates} candidate gates: give fewer targets.")
    candidates: Sequence[int] = range(n_gates)
    while len(list_of := list(combinations(candidates, len(recalls)))) > _EXHAUSTIVE:
        candidates = candidates[::2]  # neighbours tell nearly the same
    return min(list_of, key=lambda columns: _recall_loss(teachers.columns(columns), recalls))


def _recall_loss(data: GateScores, recalls: Sequence[Fraction]) -> tuple[int, int, float]:
    found = recall_thresholds(data.scores, data.failed, recalls)
    missed = sum(not gate.reached for gate in found.gates)
    return missed, found.successes - found.kept, -_saved(data, found.thresholds)


def _for_keep(teachers: GateScores, keep: Fraction, max_gates: int, seed: int) -> tuple[int, ...]:
    halves = _halves(teachers, seed)
    chosen: list[int] = []
    best = 0.0
    while len(chosen) < max_gates:
        tried = {
            g: _saved_at(halves, sorted([*chosen, g]), keep) for g in range(teachers.scores.shape[1]) if g not in chosen
        }
        if not tried:
            break
        gate = max(tried, key=lambda g: tried[g])
        if chosen and tried[gate] <= best:
            break
        chosen.append(gate)
        best = tried[gate]
    return tuple(sorted(chosen))


def _halves(teachers: GateScores, seed: int) -> tuple[GateScores, GateScores]:
    """Random halves of each class."""
    rng = np.random.default_rng(seed)
    first = np.zeros(len(teachers.failed), dtype=np.bool_)
    for label in (True, False):
        rows = rng.permutation(np.flatnonzero(teachers.failed == label))
        first[rows[: (len(rows) + 1) // 2]] = True
    return teachers.take(first), teachers.take(~first)


def _saved_at(halves: tuple[GateScores, GateScores], columns: list[int], keep: Fraction) -> float:
    """Tokens saved on each half at the level that loses 1 - keep of its successes, shaped on the other half."""
    total = 0.0
    for shape_on, judge_on in (halves, halves[::-1]):
        shape_data, data = shape_on.columns(columns), judge_on.columns(columns)
        loss = float(1 - keep)
        shape = learn_shape(shape_data, loss=loss)
        reach = np.sort(shape.index(data.scores).max(axis=1)[~data.failed])[::-1]
        if reach.size:
            total += _saved(data, shape.cut(float(reach[min(int(loss * reach.size), reach.size - 1)])))
    return total


def _saved(data: GateScores, thresholds: FloatArray) -> float:
    first = first_firing(data.scores, thresholds, data.cost_after)
    fired = first >= 0
    return float(data.cost_after[fired, first[fired]].sum())
