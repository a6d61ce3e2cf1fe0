from __future__ import annotations

import pytest

from probecascade.episode import CONTINUE, Action, Checkpoint, Moment, Step, Task
from probecascade.interfaces import StoppingPolicy
from probecascade.policies import (
    FailedSearches,
    FirstRepeatedFailedSearch,
    Never,
    RepeatedActions,
    TokenLimit,
    TranscriptRule,
)

Turn = tuple[str, str, str]  # action, argument, kind of observation


def decisions(rule: TranscriptRule, turns: list[Turn], *, kind: str = "action", tokens: int = 30) -> list[str]:
    """What the rule says at every turn's checkpoint, `tokens` more spent at each; the last turn is final."""
    watch = rule.begin(Task("t", "g", ()))
    steps = tuple(
        Step(r, 1, "", "", action, argument, "", observed, 0, 0, "action")
        for r, (action, argument, observed) in enumerate(turns, start=1)
    )
    said = []
    for r, (action, argument, _) in enumerate(turns, start=1):
        point = Checkpoint(kind, r, r, 0, tokens * r, 0, r - 1, 0.0, r == len(turns), ())
        said.append(watch.decide(Moment(point, {}, steps[: r - 1], "", Action(action, argument), "", 0, 0)))
    return [decision.action if decision is CONTINUE else decision.reason for decision in said]


FLAKY: list[Turn] = [
    ("search", "Ada Vell", "tool_error"),
    ("search", "ada  vell", "content"),
    ("search", "Orim", "not_found"),
    ("search", "Orim", "not_found"),
    ("finish", "X", "finish"),
]


def test_never_lets_everything_pass() -> None:
    assert decisions(Never(), FLAKY) == ["continue"] * 5
    assert isinstance(Never(), StoppingPolicy)


def test_a_repeat_of_a_failed_search_is_seen_whatever_its_spelling() -> None:
    said = decisions(FirstRepeatedFailedSearch(), FLAKY)
    assert said[0] == said[2] == "continue"
    assert said[1] == "search for 'ada  vell' failed before and is repeated at action:2"
    assert said[3] == "search for 'Orim' failed before and is repeated at action:4"


def test_a_repeat_in_another_part_or_of_a_success_does_not_count() -> None:
    turns: list[Turn] = [
        ("search", "a", "not_found"),
        ("finish", "x", "next_part"),
        ("search", "a", "content"),
        ("search", "a", "content"),
        ("search", "b", "content"),
    ]
    assert decisions(FirstRepeatedFailedSearch(), turns) == ["continue"] * 5
    repeated = decisions(RepeatedActions(1), turns)
    assert repeated[:3] == ["continue"] * 3
    assert repeated[3] == "1 repeated actions at action:4"


@pytest.mark.parametrize(("k", "first"), [(1, 2), (2, 4), (3, None)])
def test_failed_searches_are_counted_over_the_episode(k: int, first: int | None) -> None:
    said = decisions(FailedSearches(k), FLAKY)
    fired = [r for r, text in enumerate(said, start=1) if text != "continue"]
    # The fourth search's failure is known only at the final turn, which is no gate.
    assert (fired[0] if fired else None) == first


@pytest.mark.parametrize(("k", "first"), [(1, 2), (2, 4), (3, None)])
def test_repeats_are_counted_with_the_current_action(k: int, first: int | None) -> None:
    turns: list[Turn] = [
        ("search", "a", "content"),
        ("search", "A", "content"),
        ("search", "b", "content"),
        ("search", "b", "content"),
        ("finish", "", "finish"),
    ]
    fired = [r for r, text in enumerate(decisions(RepeatedActions(k), turns), start=1) if text != "continue"]
    assert (fired[0] if fired else None) == first


def test_the_token_limit_fires_at_the_first_action_that_reached_it() -> None:
    said = decisions(TokenLimit(90), FLAKY)
    assert said[:3] == ["continue", "continue", "90 tokens spent at action:3"]


@pytest.mark.parametrize("rule", [FirstRepeatedFailedSearch(), FailedSearches(), RepeatedActions(), TokenLimit(1)])
def test_rules_decide_at_actions_only_and_never_at_the_last(rule: TranscriptRule) -> None:
    for kind in ("thought", "observation", "part"):
        assert decisions(rule, FLAKY, kind=kind) == ["continue"] * 5
    assert decisions(rule, FLAKY)[-1] == "continue"
