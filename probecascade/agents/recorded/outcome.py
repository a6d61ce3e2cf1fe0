"""The label of a recorded run, from the fields in which published files keep it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probecascade.agents.recorded.draft import is_finite

_TRUTHS = ("success", "resolved", "is_correct", "correct", "target")
_NUMBERS = ("reward", "score")
_OUTCOMES = {"success": False, "failure": True, "failed": True, "truncated": True}
_NO_LABEL = ("error", "aborted", "unlabelled")  # outcomes of the project's own
_WORDS = {"true": True, "false": False, "success": True, "failure": False, "failed": False}


def recorded_outcome(record: Mapping[str, Any]) -> tuple[bool | None, float | None]:
    """(failed, reward) as the record has them, None where it has not.

    In order: the project's own `outcome`; a truth value (`success`, `resolved`, ...), also in OpenHands' test report;
    a number (`reward`, `score`), of which 1 is success. A greater one is on a scale that nothing tells, so no label.
    """
    reward = next((number for key in _NUMBERS if (number := _number(record.get(key))) is not None), None)
    outcome = record.get("outcome")
    if isinstance(outcome, str):
        word = outcome.strip().lower()
        if word in _OUTCOMES or word in _NO_LABEL:
            return _OUTCOMES.get(word), reward
    for place in (record, _inside(record, "info"), _inside(_inside(record, "test_result"), "report")):
        for key in _TRUTHS:
            success = _truth(place.get(key))
            if success is not None:
                return not success, reward
    return (None if reward is None or reward > 1.0 else reward < 1.0), reward


def _inside(record: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = record.get(key)
    return value if isinstance(value, Mapping) else {}


def _truth(value: object) -> bool | None:
    if isinstance(value, str):
        return _WORDS.get(value.strip().lower())
    if isinstance(value, bool):
        return value
    return bool(value) if isinstance(value, int | float) and value in (0, 1) else None


def _number(value: object) -> float | None:
    return float(value) if is_finite(value) else None
