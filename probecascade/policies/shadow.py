"""Wrappers around any policy: one that only watches, one that survives the policy's own faults."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from probecascade.episode import CONTINUE, Answer, Decision, Moment, Question, Task
from probecascade.errors import DataError, UsageError
from probecascade.interfaces import EpisodeWatch, StoppingPolicy, Verdict

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ShadowRecord:
    """What the policy wanted at one checkpoint of one episode."""

    task_id: str
    checkpoint: str
    decision: Decision


class Shadow:
    """Lets a policy see every episode and stop none; what it wanted is kept in `records`.

    Each returned decision is a `continue` without steers that still carries gate, score and threshold, and
    a reason that says what would have happened. Checkpoints of which the policy said nothing are not kept.
    """

    def __init__(self, policy: StoppingPolicy) -> None:
        self.policy = policy
        self.layers: Sequence[int] = policy.layers
        self.records: list[ShadowRecord] = []

    def begin(self, task: Task) -> EpisodeWatch:
        """Watch one episode."""

        def note(moment: Moment, decision: Decision) -> Decision:
            if decision == CONTINUE:
                return decision
            self.records.append(ShadowRecord(task.task_id, moment.checkpoint.name, decision))
            if decision.action == "continue":
                return replace(decision, append="", allow=None)
            reason = f"shadow, would {decision.action}: {decision.reason}"
            return replace(decision, action="continue", reason=reason, append="", allow=None)

        return WrappedWatch(self.policy.begin(task), note)


class FailOpen:
    """Keeps a faulty policy from breaking the run: the episode goes on, and the first fault is warned of.

    A fault is an exception in `begin` or `decide`, or a decision that compares a score that is no number
    with a threshold. `faults` counts them. With `on_error="raise"` a fault is raised instead (fail closed).
    """

    def __init__(self, policy: StoppingPolicy, on_error: Literal["continue", "raise"] = "continue") -> None:
        if on_error not in ("continue", "raise"):
            raise UsageError(f"on_error {on_error!r} is unknown: give 'continue' or 'raise'.")
        self.policy = policy
        self.on_error = on_error
        self.layers: Sequence[int] = policy.layers
        self.faults = 0

    def begin(self, task: Task) -> EpisodeWatch:
        """Watch one episode."""
        try:
            inner = self.policy.begin(task)
        except Exception as error:
            self._report(error, f"the start of {task.task_id}")
            return _Unwatched()
        return WrappedWatch(inner, self._checked, self._survive)

    def _checked(self, moment: Moment, decision: Decision) -> Decision:
        if math.isnan(decision.score) and not math.isnan(decision.threshold):
            raise DataError(f"the score at {moment.checkpoint.name} is no number.")
        return decision

    def _survive(self, moment: Moment, error: Exception) -> Decision:
        self._report(error, moment.checkpoint.name)
        return CONTINUE

    def _report(self, error: Exception, where: str) -> None:
        self.faults += 1
        if self.on_error == "raise":
            raise error
        if self.faults == 1:
            text = f"the stopping policy failed at {where} and is passed over there: {type(error).__name__}: {error}"
            _log.warning(text, exc_info=error)
            warnings.warn(text, RuntimeWarning, stacklevel=2)


class _Unwatched:
    """The watch of an episode whose policy could not begin."""

    def decide(self, moment: Moment) -> Verdict:
        return CONTINUE


class WrappedWatch:
    """Passes every decision of a watch through `finish`, and its exceptions, if asked, through `rescue`."""

    def __init__(
        self,
        inner: EpisodeWatch,
        finish: Callable[[Moment, Decision], Decision],
        rescue: Callable[[Moment, Exception], Decision] | None = None,
    ) -> None:
        self._inner = inner
        self._finish = finish
        self._rescue = rescue

    def decide(self, moment: Moment) -> Verdict:
        try:
            verdict = self._inner.decide(moment)
            if isinstance(verdict, Decision):
                return self._finish(moment, verdict)
        except Exception as error:
            return self._rescued(moment, error)
        return self._drive(moment, verdict)

    def _drive(
        self, moment: Moment, verdict: Generator[Question, Answer, Decision]
    ) -> Generator[Question, Answer, Decision]:
        try:
            decision = yield from verdict
            return self._finish(moment, decision)
        except Exception as error:
            return self._rescued(moment, error)

    def _rescued(self, moment: Moment, error: Exception) -> Decision:
        if self._rescue is None:
            raise error
        return self._rescue(moment, error)
