"""Moments of invented episodes, and a way to answer the questions that a judge puts."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import numpy as np

from probecascade.episode import SIGNALS, Answer, Checkpoint, Moment, Part, Question, Step, Task
from probecascade.policies.judged import EvidenceJudge, Judgement

TASK = Task("task-1", "group-1", (Part("Which river runs through Brosk?", ("Sel",)),))
BRANN = "Brosk is a town on the river Sel that runs south."
OTHER = "Quark soup is a kind of soup."


def moment(
    observations: Sequence[str],
    *,
    kind: str = "observation",
    thought: str = "",
    hidden: Mapping[int, Any] | None = None,
    kinds: Mapping[int, str] | None = None,
    final: bool = False,
    rounds: int = 8,
) -> Moment:
    """The moment after these observations, or at the action that follows them."""
    steps = tuple(
        Step(r, 1, "", "", "search", "x", text, (kinds or {}).get(r, "content"), 5, 5, "action")
        for r, text in enumerate(observations, 1)
    )
    turn = len(steps) + (kind == "action")
    point = Checkpoint(kind, turn, turn, 0, 0, 0, len(steps), 0.0, final, (0.0,) * len(SIGNALS))
    seen = observations[-1] if observations else ""
    return Moment(point, hidden or {}, steps, thought, None, seen, rounds - turn, 100)


def told(value: Any, answer: Callable[[Question], Answer] = lambda question: Answer("")) -> Any:
    """What comes of a judge or rule whose questions are answered so."""
    if not isinstance(value, Generator):
        return value
    try:
        question = next(value)
        while True:
            question = value.send(answer(question))
    except StopIteration as stop:
        return stop.value


def judgement(judge: EvidenceJudge, seen: Moment, answer: Callable[[Question], Answer] | None = None) -> Judgement:
    """What a judge says at a moment."""
    said = told(judge.begin(TASK).judge(seen), answer or (lambda question: Answer("")))
    assert isinstance(said, Judgement)
    return said


def state(*values: float) -> np.ndarray:
    return np.array(values, np.float32)
