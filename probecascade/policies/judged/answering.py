"""A policy that gives up, made to answer in its place: what is known by then may be enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from probecascade.episode import Decision, Moment, Task
from probecascade.interfaces import EpisodeWatch, StoppingPolicy
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
