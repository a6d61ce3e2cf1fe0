"""Exploration: whose aborts are let through, and what is left of them in the record."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
import pytest

from probecascade.episode import CONTINUE, Checkpoint, Decision, Moment, Question, Task
from probecascade.errors import DataError, UsageError
from probecascade.interfaces import StoppingPolicy, Verdict
from probecascade.policies import Cascade, Coin, Explore, Gate
from probecascade.probes import LinearProbe
from probecascade.store import assign_split
from probecascade.testing import RecordingPolicy, check_policy

MOMENT = Moment(Checkpoint("action", 1, 1, 0, 0, 0, 0, 0.0, False, ()), {}, (), "", None, "", 0, 0)
ABORT = Decision("abort", gate="action:1", score=0.9, threshold=0.5, reason="because")
LET_THROUGH = "let through by exploration: because"
IDS = [f"task-{i}" for i in range(20_000)]


def decided(policy: StoppingPolicy, task: str) -> Verdict:
    return policy.begin(Task(task, "g", ())).decide(MOMENT)


def explored(share: str, seed: int = 0) -> np.ndarray:
    coin = Coin.of(share, seed)
    return np.array([coin.explores(task) for task in IDS])


@pytest.mark.parametrize("share", ["0.05", "0.5", "2/3"])
def test_the_share_is_kept_and_its_tasks_are_those_of_the_seed(share: str) -> None:
    chosen, p = explored(share), float(Coin.of(share, 0).share)
    assert abs(chosen.mean() - p) < 4 * np.sqrt(p * (1 - p) / len(IDS))
    other = explored(share, seed=1)
    assert abs((chosen & other).mean() - p * p) < 4 * np.sqrt(p * p * (1 - p * p) / len(IDS))
    assert not (explored("0.04") & ~chosen).any()  # a smaller share explores none that a larger one does not


def test_the_coin_is_independent_of_the_split_that_the_same_seed_makes() -> None:
    chosen, test = explored("0.25"), assign_split(IDS, seed=0) == "test"
    assert abs(chosen[test].mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / test.sum())


def test_an_explored_abort_goes_on_and_is_recorded() -> None:
    policy = Explore(RecordingPolicy(layers=(3,), answers={"action:1": ABORT}), "0.3", seed=5)
    assert policy.layers == (3,)
    seen = set()
    for task in IDS[:50]:
        decision = decided(policy, task)
        assert isinstance(decision, Decision)
        assert (decision.gate, decision.score, decision.threshold) == ("action:1", 0.9, 0.5)
        if policy.coin.explores(task):
            assert (decision.action, decision.reason) == ("continue", LET_THROUGH)
        else:
            assert decision is ABORT
        seen.add(decision.action)
    assert seen == {"continue", "abort"}


def test_later_aborts_of_an_explored_episode_pass_as_well() -> None:
    watch = Explore(RecordingPolicy(answers={"action:1": ABORT}), "1").begin(Task("t", "g", ()))
    for _ in range(3):
        decision = watch.decide(MOMENT)
        assert isinstance(decision, Decision)
        assert decision.action == "continue"


@pytest.mark.parametrize(
    "wanted", [CONTINUE, Decision("answer", reason="enough"), Decision(append="hurry", allow=("finish",))]
)
def test_only_aborts_are_touched(wanted: Decision) -> None:
    assert decided(Explore(RecordingPolicy(answers={"action:1": wanted}), "1"), "t") is wanted


def test_a_policy_that_asks_the_model_is_explored_after_its_answer() -> None:
    def ask(moment: Moment) -> Generator[Question, str, Decision]:
        reply = yield Question("Is it going well?")
        return ABORT if reply == "no" else CONTINUE

    verdict = decided(Explore(RecordingPolicy(answers={"action:1": ask}), "1"), "t")
    assert isinstance(verdict, Generator)
    assert next(verdict).prompt == "Is it going well?"
    with pytest.raises(StopIteration) as stop:
        verdict.send("no")
    assert stop.value.value.reason == LET_THROUGH


def test_it_keeps_the_contract_of_a_policy() -> None:
    gate = Gate("action:1", 2, LinearProbe(np.zeros(4), np.ones(4), np.ones(4), 0.0), 0.1)
    for share in ("0.5", "1"):
        check_policy(lambda share=share: Explore(Cascade([gate]), share), 4)


@pytest.mark.parametrize("share", ["0", "1.5", "-0.1", "some", "nan"])
def test_a_share_that_cannot_be_right_is_refused(share: str) -> None:
    with pytest.raises(UsageError, match="exploration share"):
        Explore(RecordingPolicy(), share)


def test_the_coin_comes_back_from_a_runs_header() -> None:
    coin = Coin.of(0.05, 7)
    assert Coin.recorded({"policy": {"explore": coin.record()}}) == coin
    assert Coin.recorded({"policy": {"cascade": "c", "shadow": True}}) is None
    assert Coin.recorded({}) is None
    with pytest.raises(DataError, match="has no share and seed"):
        Coin.recorded({"policy": {"explore": {"share": "1/20"}}})
