"""Stored episodes read again: added checkpoints equal those of an episode that kept them from the start."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from short_episodes import AGAIN, FINISH, NOTHING, PAGE, RIGHT, SEARCH, TEMPLATE, play
from test_replay import recorded

from probecascade.agents.react import AgentSettings
from probecascade.agents.replay import replay
from probecascade.agents.reread import ADDABLE, Reread, laid_again, reread, tolerance
from probecascade.episode import Checkpoint, Decision, Episode, Recording
from probecascade.errors import StoreError
from probecascade.testing import RecordingPolicy, ScriptedModel

TURNS, TOOLS = [SEARCH, AGAIN, FINISH], [NOTHING, PAGE, RIGHT]


def knowing(episode: Episode) -> ScriptedModel:
    """A fake that can decode the episode: it knows the pieces that it has encoded only."""
    model = ScriptedModel(TURNS)
    for step in episode.steps:
        model.encode(step.text + step.observation)
    for text in (TEMPLATE.head, TEMPLATE.first, "Where was Ada born?", TEMPLATE.observation, TEMPLATE.cue):
        model.encode(text)
    return model


def again(recording: Recording, *add: str, layers: tuple[int, ...] = (0, 1, 2), **changes: Any) -> Recording:
    model = knowing(recording.episode)
    wanted = Reread(layers, (0, 1, 2), "float32", 0, 1e-6, add)
    (found,) = model.run([reread(model, recording.episode, recording.hidden, dataclasses.replace(wanted, **changes))])
    return found


def timeless(episode: Episode) -> list[Checkpoint]:
    return [dataclasses.replace(point, seconds=0.0) for point in episode.checkpoints]


@pytest.mark.parametrize(
    "kept", [("prompt",), ("action",), ("prompt", "observation"), ("thought", "part"), ("turn_mean", "action")]
)
def test_what_is_added_is_what_a_live_episode_would_have_kept(kept: tuple[str, ...]) -> None:
    whole = play(TURNS, TOOLS, checkpoints=(*ADDABLE, *kept)).recording
    few = play(TURNS, TOOLS, checkpoints=kept).recording
    found = again(few, *(kind for kind in ADDABLE if kind not in kept))
    assert timeless(found.episode) == timeless(whole.episode)
    np.testing.assert_allclose(found.hidden, whole.hidden, rtol=1e-6)
    assert dataclasses.replace(found.episode, checkpoints=()).steps == few.episode.steps
    seconds = [c.seconds for c in found.episode.checkpoints]
    assert seconds == sorted(seconds)
    assert seconds[-1] <= found.episode.seconds


def test_stored_checkpoints_stay_as_they_are() -> None:
    few = play(TURNS, TOOLS, checkpoints=("action",)).recording
    found = again(few, "thought")
    kept = [i for i, c in enumerate(found.episode.checkpoints) if c.kind == "action"]
    assert [found.episode.checkpoints[i] for i in kept] == list(few.episode.checkpoints)
    np.testing.assert_array_equal(found.hidden[kept], few.hidden)


def test_other_layers_alone() -> None:
    few = play(TURNS, TOOLS, checkpoints=("action",)).recording
    found = again(few, layers=(2, 0))
    np.testing.assert_array_equal(found.hidden, few.hidden[:, [2, 0]])
    assert found.episode.checkpoints == few.episode.checkpoints


@pytest.mark.parametrize("add", [(), ("thought",)])
def test_a_state_that_does_not_come_out_again_is_refused(add: tuple[str, ...]) -> None:
    few = play(TURNS, TOOLS, checkpoints=("action",)).recording
    other = few.hidden.copy()
    other[1, 2] *= 1.01
    with pytest.raises(StoreError, match="action:2 of episode 'task-1~7' comes out another at layer 2"):
        again(dataclasses.replace(few, hidden=other), *add)
    found = again(dataclasses.replace(few, hidden=other), *add, tolerance=0.02)
    assert len(found.episode.checkpoints) == 3 + 3 * len(add)


@pytest.mark.parametrize("at", ["prompt", "thought:1", "action:2", "observation:1"])
def test_episodes_that_were_aborted_have_the_checkpoints_that_they_reached(at: str) -> None:
    def kept(*kinds: str) -> Recording:
        policy = RecordingPolicy(answers={at: Decision("abort")})
        return play(TURNS, TOOLS, policy, checkpoints=kinds).recording

    kinds = ("prompt", "thought", "action", "observation")
    assert timeless(again(kept("thought"), "prompt", "action", "observation").episode) == timeless(kept(*kinds).episode)


def test_the_round_limit_leaves_an_observation_that_was_never_fed() -> None:
    whole = play(TURNS, TOOLS, checkpoints=ADDABLE, max_rounds=2).recording
    few = play(TURNS, TOOLS, checkpoints=("prompt",), max_rounds=2).recording
    assert timeless(again(few, *ADDABLE[1:]).episode) == timeless(whole.episode)


def test_a_replayed_run_is_read_again_with_its_dropped_rounds() -> None:
    run = recorded(play(TURNS, TOOLS).episode)
    model = ScriptedModel([])

    def read(limit: int, *kinds: str) -> Recording:
        settings = AgentSettings(checkpoints=kinds, store_dtype="float32")
        (found,) = model.run([replay(model, run, TEMPLATE, settings, limit)])
        return found  # type: ignore[no-any-return]

    length = len(read(10_000, "prompt").episode.token_ids)
    for limit in (length, length - 1):
        whole, few = read(limit, *ADDABLE), read(limit, "action")
        found = again(few, *(kind for kind in ADDABLE if kind != "action"))
        assert timeless(found.episode) == timeless(whole.episode)
        np.testing.assert_allclose(found.hidden, whole.hidden, rtol=1e-6)


def test_nothing_is_added_where_the_pieces_do_not_fit() -> None:
    few = play(TURNS, TOOLS, checkpoints=("action",)).recording
    steps = tuple(dataclasses.replace(s, turn_tokens=s.turn_tokens - 1) for s in few.episode.steps)
    odd = dataclasses.replace(few, episode=dataclasses.replace(few.episode, steps=steps))
    assert laid_again(knowing(odd.episode), odd.episode) is None
    assert again(odd, "thought").episode.checkpoints == few.episode.checkpoints


def test_an_episode_without_checkpoints_is_kept() -> None:
    few = play(TURNS, TOOLS, checkpoints=()).recording
    assert again(few).hidden.shape == (0, 3, 4)
    assert [c.kind for c in again(few, "action").episode.checkpoints] == ["action"] * 3


def test_the_tolerance_knows_what_rounds() -> None:
    assert tolerance("float32", "float16") < tolerance("float32", "bfloat16") < tolerance("bfloat16", "float16")
