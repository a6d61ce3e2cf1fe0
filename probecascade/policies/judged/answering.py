"""Policies of other kinds in a study of judges: made to answer where they would give up, and watched by judges."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace

from probecascade.episode import Answer, Decision, Moment, Question, Task
from probecascade.interfaces import EpisodeWatch, StoppingPolicy, Verdict
from probecascade.policies.judged.rules import begun, settled
from probecascade.policies.shadow import WrappedWatch


class Answering:
    """Any policy, such as a cascade, whose aborts become forced answers; thresholds and promises stay what they are."""

    def __init__(self, policy: StoppingPolicy) -> None:
        self.policy = policy
        self.layers: Sequence[int] = policy.layers

    def begin(self, task: Task) -> EpisodeWatch:
        """Watch one episode."""
        return WrappedWatch(self.policy.begin(task), _answered)


def _answered(moment: Moment, decision: Decision) -> Decision:
    return replace(decision, action="answer") if decision.action == "abort" else decision


class Noted:
    """A policy at work while another one takes notes: `policy` decides, what `noting` would do is passed over.

    The notes of both are kept, so that judges of evidence speak of episodes that something else stops. An abort of
    `noting` ends its notes, not the episode.
    """

    def __init__(self, policy: StoppingPolicy, noting: StoppingPolicy) -> None:
        self.policy, self.noting = policy, noting
        self.layers: Sequence[int] = tuple(sorted({*policy.layers, *noting.layers}))

    def begin(self, task: Task) -> EpisodeWatch:
        """Watch one episode."""
        return _Noted(self.policy.begin(task), self.noting.begin(task))


class _Noted:
    def __init__(self, deciding: EpisodeWatch, noting: EpisodeWatch) -> None:
        self._deciding, self._noting = deciding, noting

    def decide(self, moment: Moment) -> Verdict:
        return begun(self._both(moment))

    def _both(self, moment: Moment) -> Generator[Question, Answer, Decision]:
        notes = (yield from settled(self._noting.decide(moment))).notes
        decision = yield from settled(self._deciding.decide(moment))
        return replace(decision, notes={**notes, **decision.notes}) if notes else decision
