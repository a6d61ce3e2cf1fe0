"""Who a recorded run is: its id, its task, and the group that must not straddle a split."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from probecascade.agents.recorded.draft import text_of

_IDS = ("traj_id", "run_id", "episode_id", "trajectory_id", "id")
_TASKS = ("task_key", "instance_id", "task_id")
_NO_WORD = re.compile(r"[\W_]+")
_READABLE = 120  # characters of a question that is its group's name


def normalised(question: str) -> str:
    """A question without case, punctuation and repeated blanks; a long one is cut and ends in its hash."""
    words = _NO_WORD.sub(" ", unicodedata.normalize("NFKC", question).casefold()).strip()
    if len(words) <= _READABLE:
        return words
    return f"{words[:_READABLE]} {hashlib.sha256(words.encode()).hexdigest()[:12]}"


def identity(record: Mapping[str, Any], question: str, otherwise: str) -> tuple[str, str, str]:
    """(run_id, task_id, group) of a record; `otherwise` is an id for a run that has none.

    The group is the file's own (`group`), else its key of the task, else the question as it is asked, normalised, so
    that two agents on one question share it. A key that is itself a question is normalised like one.
    """
    task = _first(record, _TASKS)
    group = _first(record, ("group",)) or task or normalised(question) or otherwise
    if any(letter.isspace() for letter in group):
        group = normalised(group)
    return _first(record, _IDS) or _of_trial(record, task) or otherwise, task or group, group


def _of_trial(record: Mapping[str, Any], task: str) -> str:
    trial = _first(record, ("trial",))
    return f"{task}-{trial}" if task and trial else ""


def _first(record: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    """The first of the keys whose value is a text or whole number that is not blank."""
    for key in keys:
        value = record.get(key)
        if isinstance(value, str | int) and not isinstance(value, bool) and str(value).strip():
            return text_of(str(value).strip())
    return ""
