"""After how many useless observations in a row to stop, chosen on development episodes under a stated cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from probecascade.episode import Episode
from probecascade.errors import DataError, UsageError

TRIED = (2, 3, 4, 5, 6, 7)
"""Lengths of the run that the study compares (arXiv 2610.06191)."""

CALL_COST = 0.05
"""Cost of a tool call in points, where a right answer earns 1."""


@dataclass(frozen=True, slots=True)
class TunedRule:
    """The chosen k; the mean utility, success and calls of every k that was tried, over the same `n` episodes."""

    k: int
    cost: float
    utility: Mapping[int, float]
    success: Mapping[int, float]
    calls: Mapping[int, float]
    n: int


def utility(success: float, calls: float, cost: float = CALL_COST) -> float:
    """What an answer is worth: correct minus `cost` per tool call. Shares and means may be given too."""
    return success - cost * calls


def tune_k(played: Mapping[int, Sequence[Episode]], cost: float = CALL_COST) -> TunedRule:
    """The k whose episodes have the highest mean utility; the smaller k, which calls less, on a tie.

    `played` maps each k to the development episodes of the rule at that k, on the same tasks, variants and seeds.
    Episodes that have no label under some k are left out under all. UsageError for a negative cost or no k, DataError
    for episodes that are not the same or none that is labelled.
    """
    if not played or not cost >= 0:
        raise UsageError(f"k was to be chosen among {list(played)} at a cost of {cost}: give episodes, and 0 or more.")
    by_key = {k: {each.episode_id: each for each in played[k]} for k in sorted(played)}
    keys = set(next(iter(by_key.values())))
    if any(set(found) != keys or len(found) < len(played[k]) for k, found in by_key.items()):
        raise DataError("the episodes differ from one k to another: play the same tasks and seeds once under each.")
    kept = sorted(key for key in keys if all(found[key].labelled for found in by_key.values()))
    if not kept:
        raise DataError("no development episode has a label under every k: play more tasks.")
    success = {k: sum(not found[key].failed for key in kept) / len(kept) for k, found in by_key.items()}
    calls = {k: sum(found[key].calls for key in kept) / len(kept) for k, found in by_key.items()}
    worth = {k: utility(success[k], calls[k], cost) for k in by_key}
    best = max(worth, key=lambda k: (round(worth[k], 12), -k))
    return TunedRule(best, cost, worth, success, calls, len(kept))
