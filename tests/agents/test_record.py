from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from short_episodes import AGAIN, FINISH, KINDS, NOTHING, PAGE, RIGHT, SEARCH, TASK, WRONG, play

from probecascade.episode import SIGNALS, Decision, Moment, Observation
from probecascade.evaluation import replay_policy
from probecascade.policies import Shadow
from probecascade.testing import RecordingPolicy

NEXT = Observation("Who was her tutor?", "next_part")
BUSY = Observation("The wiki is busy.", "tool_error")
INVALID = Observation("A turn must end with an action.", "invalid")

LONG = (
    [SEARCH, AGAIN, " Hm.", FINISH, SEARCH, FINISH],
    [NOTHING, BUSY, INVALID, NEXT, PAGE, RIGHT],
)


def test_signals_of_a_short_episode_by_hand() -> None:
    played = play(*LONG)
    rows = {c.name: dict(zip(SIGNALS, c.signals, strict=True)) for c in played.episode.checkpoints}
    counts = {
        name: tuple(int(row[k]) for k in ("round", "failed_actions", "repeated_actions", "not_found"))
        for name, row in rows.items()
    }
    assert counts == {
        "prompt": (0, 0, 0, 0),
        "thought:1": (1, 0, 0, 0),
        "action:1": (1, 0, 0, 0),
        "observation:1": (1, 0, 0, 1),
        "thought:2": (2, 0, 0, 1),
        "action:2": (2, 0, 1, 1),  # the same search again
        "observation:2": (2, 1, 1, 1),  # which met a busy tool
        "action:3": (3, 2, 1, 1),  # no action at all
        "observation:3": (3, 2, 1, 1),
        "thought:4": (4, 2, 1, 1),
        "action:4": (4, 2, 1, 1),
        "part:1": (4, 2, 1, 1),
        "observation:4": (4, 2, 1, 1),
        "thought:5": (5, 2, 1, 1),
        "action:5": (5, 2, 1, 1),  # in a new part the same search repeats nothing
        "observation:5": (5, 2, 1, 1),
        "thought:6": (6, 2, 1, 1),
        "action:6": (6, 2, 1, 1),
        "part:2": (6, 2, 1, 1),
    }


def test_the_models_own_numbers_are_those_of_the_turn_so_far() -> None:
    played = play([SEARCH, FINISH])
    episode, model = played.episode, played.model
    ends = {c.round: c.position + 1 for c in episode.checkpoints if c.kind == "action"}
    for point in episode.checkpoints:
        row = dict(zip(SIGNALS, point.signals, strict=True))
        assert row["tokens_so_far"] == point.tokens == point.position + 1 - episode.prompt_tokens
        if point.kind == "prompt":
            assert (row["turn_tokens"], row["logprob_mean"], row["logprob_min"], row["entropy_mean"]) == (0, 0, 0, 0)
            continue
        step = episode.steps[point.round - 1]
        first = ends[point.round] - step.turn_tokens
        turn = episode.token_ids[first : first + step.turn_tokens].tolist()
        if point.kind == "thought":
            turn = turn[: point.position + 1 - first]
        assert row["turn_tokens"] == len(turn)
        logprobs = [model.logprob(i) for i in turn]
        assert row["logprob_mean"] == pytest.approx(math.fsum(logprobs) / len(turn))
        assert row["logprob_min"] == min(logprobs)
        assert row["entropy_mean"] == pytest.approx(math.fsum(model.entropy(i) for i in turn) / len(turn))


def test_calls_generated_and_seconds_up_to_each_checkpoint() -> None:
    played = play([SEARCH, AGAIN, FINISH], [PAGE, BUSY, RIGHT])
    points = {c.name: c for c in played.episode.checkpoints}
    assert [points[n].calls for n in ("action:1", "observation:1", "action:2", "observation:2", "action:3")] == [
        0,
        1,
        1,
        2,
        2,
    ]
    assert played.episode.calls == 2  # a finish calls no tool
    turns = [s.turn_tokens for s in played.episode.steps]
    assert points["action:2"].generated == points["observation:2"].generated == turns[0] + turns[1]
    seconds = [c.seconds for c in played.episode.checkpoints]
    assert seconds == sorted(seconds)
    assert played.episode.seconds == points["action:3"].seconds
    assert points["action:2"].seconds == points["action:2"].position + 1  # the fake takes a second a token


def test_the_thought_is_charged_its_own_tokens_alone() -> None:
    played = play([SEARCH, FINISH])
    points = {c.name: c for c in played.episode.checkpoints}
    assert points["thought:1"].generated == len(played.model.encode(" Look her up."))
    assert points["action:1"].generated == len(played.model.encode(SEARCH))


def test_doom_is_recorded_when_the_environment_knows_of_it() -> None:
    doomed = replace(NEXT, doomed=True)
    played = play([SEARCH, FINISH, SEARCH, FINISH], [PAGE, doomed, replace(PAGE, doomed=True), WRONG])
    point = next(c for c in played.episode.checkpoints if c.name == "part:1")
    assert played.episode.doomed_round == 2
    assert played.episode.doomed_tokens == point.tokens
    free = play([SEARCH, FINISH]).episode
    assert (free.doomed_round, free.doomed_tokens) == (None, None)


def test_the_record_says_whose_episode_it_is() -> None:
    episode = play([FINISH], [RIGHT]).episode
    assert (episode.episode_id, episode.task_id, episode.group, episode.seed) == ("task-1~7", "task-1", "group-1", 7)
    assert episode.attributes == {"hops": 1}


def test_steps_tell_the_episode() -> None:
    episode = play(*LONG).episode
    assert [s.round for s in episode.steps] == [1, 2, 3, 4, 5, 6]
    assert [s.part for s in episode.steps] == [1, 1, 1, 1, 2, 2]
    assert [s.action for s in episode.steps] == ["search", "search", "", "finish", "search", "finish"]
    assert [s.observation_kind for s in episode.steps] == [o.kind for o in LONG[1]]
    assert [s.observation for s in episode.steps] == [o.text for o in LONG[1]]
    assert [s.thought for s in episode.steps][:3] == ["Look her up.", "Once more.", "Hm."]
    assert "".join(s.text for s in episode.steps) == "".join(LONG[0])


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
def test_states_are_rounded_to_the_stores_dtype_before_anything_reads_them(dtype: str) -> None:
    policy = RecordingPolicy(layers=[2, 0])
    played = play([SEARCH, FINISH], policy=policy, store_dtype=dtype)
    exact = play([SEARCH, FINISH]).recording.hidden
    kept = played.recording.hidden
    assert kept.dtype == np.float32
    assert np.array_equal(kept, exact) == (dtype == "float32")
    np.testing.assert_allclose(kept, exact, rtol=1e-2)
    if dtype == "float16":
        np.testing.assert_array_equal(kept, exact.astype(np.float16).astype(np.float32))
    for row, moment in zip(kept, policy.moments["task-1"], strict=True):
        assert set(moment.hidden) == {0, 2}
        np.testing.assert_array_equal(moment.hidden[0], row[0])
        np.testing.assert_array_equal(moment.hidden[2], row[2])


def plain(moment: Moment) -> dict[str, Any]:
    """A moment's fields, comparable. Why an action is invalid is not stored."""
    fields = {name: getattr(moment, name) for name in Moment.__slots__}
    fields["hidden"] = {layer: state.tolist() for layer, state in moment.hidden.items()}
    fields["action"] = replace(moment.action, problem="") if moment.action else None
    return fields


@pytest.mark.parametrize("abort_at", [None, "thought:2", "action:2", "observation:2", "part:1"])
def test_a_replay_shows_the_moments_of_the_live_loop(abort_at: str | None) -> None:
    abort = Decision(action="abort", reason="enough")
    answers = {abort_at: abort} if abort_at else {}
    live, again = RecordingPolicy([1, 0], answers), RecordingPolicy([1, 0], answers)
    played = play(*LONG, policy=live, max_rounds=9, max_episode_tokens=300)
    decision = replay_policy(again, played.recording, TASK, layers=[0, 1, 2], max_rounds=9, max_tokens=300)
    assert decision == (abort if abort_at else None)
    assert decision == played.episode.decision
    shown, replayed = live.moments["task-1"], again.moments["task-1"]
    assert len(shown) == len(replayed)
    for here, there in zip(shown, replayed, strict=True):
        assert plain(here) == plain(there)


def test_shadow_decisions_are_kept_and_stop_nothing() -> None:
    def scored(moment: Moment) -> Decision:
        name = moment.checkpoint.name
        return Decision(action="abort", gate=name, score=0.7, threshold=0.5, reason="0.7 >= 0.5")

    played = play([SEARCH, FINISH], policy=Shadow(RecordingPolicy(answers={"action:1": scored, "action:2": scored})))
    assert played.episode.outcome == "success"
    assert played.episode.attributes["scores"] == {"action:1": 0.7, "action:2": 0.7}
    assert played.episode.decision is not None
    assert (played.episode.decision.gate, played.episode.decision.action) == ("action:1", "continue")


def test_scores_below_the_threshold_are_kept_without_a_decision() -> None:
    quiet = Decision(gate="action:1", score=0.2, threshold=0.5)
    episode = play([SEARCH, FINISH], policy=RecordingPolicy(answers={"action:1": quiet})).episode
    assert episode.decision is None
    assert episode.attributes["scores"] == {"action:1": 0.2}


def test_budget_left_is_what_the_moment_says() -> None:
    policy = RecordingPolicy()
    played = play([SEARCH, FINISH], policy=policy, max_rounds=5, max_episode_tokens=200, checkpoints=KINDS)
    for moment in policy.moments["task-1"]:
        assert moment.rounds_left == 5 - moment.checkpoint.round
        assert moment.tokens_left == 200 - moment.checkpoint.tokens
    assert len(policy.moments["task-1"]) == len(played.episode.checkpoints)
