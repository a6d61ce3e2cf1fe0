from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made_runs import make_episode

from probecascade.episode import Decision, Episode
from probecascade.errors import DataError, NothingToDoError, UsageError
from probecascade.evaluation import compare_twins, read_off


def twin(name: str, *, failed: bool, rounds: int = 4, seed: int = 0, outcome: str | None = None) -> Episode:
    """Four rounds: 55 tokens, 4 calls, 5.5 seconds."""
    return make_episode(name, f"group of {name}", failed=failed, rounds=rounds, seed=seed, outcome=outcome)


def aborted(episode: Episode, gate: str) -> Episode:
    """The same episode, ended at this checkpoint."""
    index = next(i for i, point in enumerate(episode.checkpoints) if point.name == gate)
    point = episode.checkpoints[index]
    return replace(
        episode,
        outcome="aborted",
        reason="aborted",
        checkpoints=episode.checkpoints[: index + 1],
        token_ids=episode.token_ids[: point.position + 1],
        generated=point.tokens,
        observed=0,
        calls=point.calls,
        seconds=99.0,  # the clock of another batch says nothing about what was saved
        decision=Decision("abort", gate=gate, score=0.9, threshold=0.5),
    )


def answered(episode: Episode, gate: str, *, success: bool) -> Episode:
    """The same episode, made to answer at this checkpoint with five other tokens."""
    cut = aborted(episode, gate)
    return replace(
        cut,
        outcome="success" if success else "failure",
        token_ids=np.append(cut.token_ids, np.full(5, -7, dtype=np.int32)),
        generated=cut.generated + 5,
        calls=cut.calls + 1,
        seconds=2.0,
        decision=Decision("answer", gate=gate),
    )


def diverged(episode: Episode, at: int) -> Episode:
    ids = episode.token_ids.copy()
    ids[at] += 1
    return replace(episode, token_ids=ids)


TWINS = [twin("a", failed=True), twin("b", failed=True), twin("c", failed=False), twin("d", failed=False)]


def test_an_abort_is_credited_with_what_the_twin_spends_after_it() -> None:
    live = [aborted(TWINS[0], "action:2"), TWINS[1], aborted(TWINS[2], "observation:3"), TWINS[3]]
    outcome = compare_twins("probe", live, TWINS)
    # a stops at 25 of 55 tokens with 1 call made, c at 45 with 3.
    assert outcome.tokens_saved.value == (30 + 10) / 220
    assert outcome.calls_saved.value == (3 + 1) / 16
    assert outcome.seconds_saved.value == pytest.approx((3.0 + 1.0) / 22)
    assert outcome.seconds.value == pytest.approx((22 - 4.0) / 4)
    assert (outcome.caught.value, outcome.caught.n) == (0.5, 2)
    assert (outcome.kept.value, outcome.kept.n) == (0.5, 2)
    assert (outcome.success.value, outcome.success.n) == (0.25, 4)
    assert (outcome.n, outcome.diverged, outcome.unlabelled, outcome.read_off) == (4, 0, 0, False)


def test_diverged_twins_are_counted_and_left_out() -> None:
    prompt = 4
    live = [
        diverged(aborted(TWINS[0], "action:2"), prompt + 3),  # before the abort
        diverged(TWINS[1], -1),  # never aborted: every id counts
        aborted(TWINS[2], "action:2"),
        replace(TWINS[3], token_ids=TWINS[3].token_ids[:-1]),
    ]
    outcome = compare_twins("probe", live, [TWINS[0], TWINS[1], diverged(TWINS[2], -1), TWINS[3]])
    assert (outcome.n, outcome.diverged) == (1, 3)  # c's twin differs only after the abort
    assert outcome.caught.n == 0
    assert outcome.kept.value == 0.0


def test_errors_are_counted_apart_and_never_as_failures() -> None:
    live = [replace(TWINS[0], outcome="error"), TWINS[1], TWINS[2]]
    outcome = compare_twins("probe", live, [*TWINS[:2], replace(TWINS[2], outcome="error")])
    assert (outcome.n, outcome.unlabelled) == (1, 2)


def test_twins_are_matched_by_task_and_seed() -> None:
    twins = [twin("a", failed=True, seed=1), twin("a", failed=False, seed=2, rounds=3)]
    outcome = compare_twins("probe", [aborted(twins[1], "action:1"), twins[0]], twins)
    assert (outcome.caught.value, outcome.kept.value) == (0.0, 0.0)
    assert (outcome.success.n, outcome.success.groups) == (2, 1)  # one group, two episodes


def test_an_episode_made_to_answer_is_judged_by_its_own_end() -> None:
    live = [answered(TWINS[0], "action:2", success=True), answered(TWINS[2], "action:3", success=False)]
    outcome = compare_twins("verifier", live, [TWINS[0], TWINS[2]])
    assert outcome.success.value == 0.5
    assert outcome.caught.value == 0.0  # it was not aborted
    assert outcome.kept.value == 0.0  # the answer cost the success
    assert outcome.tokens_saved.value == ((55 - 30) + (55 - 45)) / 110
    assert outcome.calls_saved.value == ((4 - 2) + (4 - 3)) / 8
    assert outcome.diverged == 0


def test_reading_off_twins_equals_running_live() -> None:
    gates = ["action:2", None, "part:1", "observation:1"]
    decisions = [None if gate is None else Decision("abort", gate=gate) for gate in gates]
    live = [episode if gate is None else aborted(episode, gate) for gate, episode in zip(gates, TWINS, strict=True)]
    ran, read = compare_twins("p", live, TWINS), read_off("p", decisions, TWINS)
    assert read == replace(ran, read_off=True)


def test_no_aborts_keep_all_and_save_nothing() -> None:
    outcome = read_off("no abort", [None] * 4, TWINS)
    assert (outcome.caught.value, outcome.kept.value, outcome.success.value) == (0.0, 1.0, 0.5)
    assert outcome.tokens_saved.value == outcome.calls_saved.value == outcome.seconds_saved.value == 0.0
    assert outcome.seconds.value == 5.5
    assert outcome.kept.low < 1.0


def test_continue_decisions_and_unlabelled_twins_are_no_aborts() -> None:
    twins = [*TWINS, twin("e", failed=True, outcome="error")]
    scored = Decision("continue", gate="action:1", score=0.1, threshold=0.5)
    outcome = read_off("p", [scored, None, None, None, Decision("abort", gate="action:1")], twins)
    assert (outcome.n, outcome.unlabelled, outcome.caught.value) == (4, 1, 0.0)


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(DataError, match="has no twin"):
        compare_twins("p", TWINS, TWINS[1:])
    with pytest.raises(DataError, match="twins hold the episode 'a-0' twice"):
        compare_twins("p", TWINS, [*TWINS, TWINS[0]])
    with pytest.raises(DataError, match="live episodes hold the episode 'a-0'"):
        compare_twins("p", [TWINS[0], TWINS[0]], TWINS)
    with pytest.raises(NothingToDoError, match="1 diverged"):
        compare_twins("p", [diverged(TWINS[0], 0)], TWINS)
    with pytest.raises(DataError, match="records no checkpoint 'action:9'"):
        read_off("p", [Decision("abort", gate="action:9")], TWINS[:1])
    with pytest.raises(UsageError, match="run it live"):
        read_off("p", [Decision("answer", gate="action:1")], TWINS[:1])
    with pytest.raises(DataError, match="2 decisions were given for 1 twins"):
        read_off("p", [None, None], TWINS[:1])
