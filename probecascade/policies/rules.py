"""Rules on the transcript alone, the rivals of a probe; they decide at `action:r`, before the tool call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from probecascade.episode import CONTINUE, Decision, Moment, Step, Task

FAILED_SEARCH = ("not_found", "tool_error")
"""Kinds of observation that say a search brought nothing."""


class TranscriptRule:
    """A rule that looks at one moment and needs no hidden state. Turns that finish are no gates."""

    layers: Sequence[int] = ()

    def begin(self, task: Task) -> Self:
        """The watch of one episode: the rule itself, since the transcript is all its memory."""
        return self

    def decide(self, moment: Moment) -> Decision:
        """Abort at an action checkpoint where the rule finds a problem."""
        if moment.checkpoint.kind != "action" or moment.checkpoint.final:
            return CONTINUE
        problem = self.problem(moment)
        if not problem:
            return CONTINUE
        name = moment.checkpoint.name
        return Decision(action="abort", gate=name, reason=f"{problem} at {name}")

    def problem(self, moment: Moment) -> str:
        """What is wrong at this moment, in a few words; empty where nothing is."""
        raise NotImplementedError


class Never(TranscriptRule):
    """Aborts nothing: the episode as it is."""

    def problem(self, moment: Moment) -> str:
        return ""


class FirstRepeatedFailedSearch(TranscriptRule):
    """Aborts at the first search that repeats one which already found nothing in this part of the task."""

    def problem(self, moment: Moment) -> str:
        if moment.action is None or moment.action.name != "search":
            return ""
        wanted = normalise(moment.action.argument)
        failed = any(
            step.action == "search" and step.observation_kind in FAILED_SEARCH and normalise(step.argument) == wanted
            for step in _this_part(moment)
        )
        return f"search for {moment.action.argument!r} failed before and is repeated" if failed else ""


class FailedSearches(TranscriptRule):
    """Aborts at the first action after the k-th search of the episode that found nothing."""

    def __init__(self, k: int = 1) -> None:
        self.k = k

    def problem(self, moment: Moment) -> str:
        count = sum(step.observation_kind in FAILED_SEARCH for step in _earlier(moment))
        return f"{count} searches found nothing" if count >= self.k else ""


class RepeatedActions(TranscriptRule):
    """Aborts at the k-th action that repeats one already tried in this part, the current action included."""

    def __init__(self, k: int = 1) -> None:
        self.k = k

    def problem(self, moment: Moment) -> str:
        if moment.action is None:
            return ""
        taken = [(step.action, normalise(step.argument)) for step in _this_part(moment)]
        taken.append((moment.action.name, normalise(moment.action.argument)))
        repeats = len(taken) - len(set(taken))
        return f"{repeats} repeated actions" if repeats >= self.k else ""


class TokenLimit(TranscriptRule):
    """Aborts at the first action by which the episode has spent this many tokens."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def problem(self, moment: Moment) -> str:
        spent = moment.checkpoint.tokens
        return f"{spent} tokens spent" if spent >= self.tokens else ""


def normalise(argument: str) -> str:
    """The argument without case and surplus blanks, so that respelt repeats count as repeats."""
    return " ".join(argument.casefold().split())


def _earlier(moment: Moment) -> tuple[Step, ...]:
    return tuple(step for step in moment.transcript if step.round < moment.checkpoint.round)


def _this_part(moment: Moment) -> tuple[Step, ...]:
    """Earlier steps of the part that the current turn belongs to."""
    earlier = _earlier(moment)
    starts = [i + 1 for i, step in enumerate(earlier) if step.observation_kind == "next_part"]
    return earlier[starts[-1] if starts else 0 :]
