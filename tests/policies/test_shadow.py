from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Generator, Sequence
from typing import Any

import pytest

from probecascade.episode import CONTINUE, Checkpoint, Decision, Moment, Question, Task
from probecascade.errors import DataError, UsageError
from probecascade.interfaces import Verdict
from probecascade.policies import FailOpen, Shadow

TASK = Task("t-1", "g", ())
MOMENT = Moment(Checkpoint("action", 1, 1, 0, 0, 0, 0, 0.0, False, ()), {}, (), "", None, "", 0, 0)
ABORT = Decision("abort", gate="action:1", score=0.9, threshold=0.5, reason="because")


class Scripted:
    """A policy whose watches answer with `answer(moment)`."""

    def __init__(self, answer: Callable[[Moment], Verdict]) -> None:
        self.layers: Sequence[int] = (3,)
        self.decide = answer

    def begin(self, task: Task) -> Scripted:
        return self


def asks(answer: Decision | Exception) -> Callable[[Moment], Generator[Question, str, Decision]]:
    def decide(moment: Moment) -> Generator[Question, str, Decision]:
        reply = yield Question("Is it going well?")
        assert reply == "no"
        if isinstance(answer, Exception):
            raise answer
        return answer

    return decide


def fails(error: Exception) -> Callable[[Moment], Verdict]:
    def decide(moment: Moment) -> Verdict:
        raise error

    return decide


def settle(verdict: Any) -> Decision:
    """Put the generator's question and answer "no"."""
    if isinstance(verdict, Decision):
        return verdict
    assert next(verdict).prompt == "Is it going well?"
    with pytest.raises(StopIteration) as stop:
        verdict.send("no")
    value = stop.value.value
    assert isinstance(value, Decision)
    return value


@pytest.mark.parametrize(
    "wanted",
    [
        ABORT,
        Decision("answer", gate="action:1", reason="because"),
        Decision(append="hurry", allow=("finish",)),
    ],
)
@pytest.mark.parametrize("asking", [False, True])
def test_shadow_never_aborts_answers_or_steers(wanted: Decision, asking: bool) -> None:
    policy = Shadow(Scripted(asks(wanted) if asking else lambda _: wanted))
    decision = settle(policy.begin(TASK).decide(MOMENT))
    assert (decision.action, decision.append, decision.allow) == ("continue", "", None)
    assert [(r.task_id, r.checkpoint, r.decision) for r in policy.records] == [("t-1", "action:1", wanted)]
    assert policy.layers == (3,)


def test_shadow_says_what_would_have_happened() -> None:
    decision = settle(Shadow(Scripted(lambda _: ABORT)).begin(TASK).decide(MOMENT))
    assert (decision.gate, decision.score, decision.threshold) == ("action:1", 0.9, 0.5)
    assert decision.reason == "shadow, would abort: because"


def test_shadow_keeps_scores_below_the_threshold_but_no_silence() -> None:
    scored = Decision(gate="action:1", score=0.1, threshold=0.5)
    policy = Shadow(Scripted(lambda _: scored))
    assert policy.begin(TASK).decide(MOMENT) == scored
    assert policy.records[0].decision == scored
    silent = Shadow(Scripted(lambda _: CONTINUE))
    assert silent.begin(TASK).decide(MOMENT) is CONTINUE
    assert silent.records == []


def test_shadow_does_not_hide_a_fault() -> None:
    with pytest.raises(RuntimeError, match="broken"):
        Shadow(Scripted(fails(RuntimeError("broken")))).begin(TASK).decide(MOMENT)


NAN_SCORE = Decision("abort", gate="action:1", score=math.nan, threshold=0.5)


@pytest.mark.parametrize(
    "answer",
    [fails(RuntimeError("broken")), asks(RuntimeError("broken")), lambda _: NAN_SCORE, asks(NAN_SCORE)],
    ids=["raises", "raises later", "no number", "no number later"],
)
def test_a_fault_is_passed_over_and_warned_of_once(
    answer: Callable[[Moment], Verdict], caplog: pytest.LogCaptureFixture
) -> None:
    policy = FailOpen(Scripted(answer))
    with (
        pytest.warns(RuntimeWarning, match="failed at action:1 and is passed over"),
        caplog.at_level(logging.WARNING),
    ):
        assert settle(policy.begin(TASK).decide(MOMENT)) is CONTINUE
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("error")
        assert settle(policy.begin(TASK).decide(MOMENT)) is CONTINUE
    assert policy.faults == 2
    assert len(caplog.records) == 1


def test_a_policy_that_cannot_begin_watches_nothing() -> None:
    class Unable(Scripted):
        def begin(self, task: Task) -> Scripted:
            raise RuntimeError("broken")

    policy = FailOpen(Unable(lambda _: ABORT))
    with pytest.warns(RuntimeWarning, match="failed at the start of t-1"):
        watch = policy.begin(TASK)
    assert watch.decide(MOMENT) is CONTINUE


def test_sound_decisions_pass_through_unchanged() -> None:
    for wanted in (ABORT, CONTINUE, Decision("abort", reason="a rule has no score")):
        policy = FailOpen(Scripted(lambda _, wanted=wanted: wanted))
        assert policy.begin(TASK).decide(MOMENT) is wanted
        assert policy.faults == 0
    assert settle(FailOpen(Scripted(asks(ABORT))).begin(TASK).decide(MOMENT)) is ABORT


def test_fail_closed_raises_the_fault() -> None:
    for answer, error in ((fails(RuntimeError("broken")), RuntimeError), (lambda _: NAN_SCORE, DataError)):
        policy = FailOpen(Scripted(answer), on_error="raise")
        with pytest.raises(error):
            policy.begin(TASK).decide(MOMENT)
    with pytest.raises(UsageError, match="on_error"):
        FailOpen(Scripted(lambda _: ABORT), on_error="ignore")  # type: ignore[arg-type]


def test_ctrl_c_is_no_fault() -> None:
    def interrupted(moment: Moment) -> Verdict:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        FailOpen(Scripted(interrupted)).begin(TASK).decide(MOMENT)
