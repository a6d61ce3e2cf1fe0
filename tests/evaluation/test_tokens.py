"""Scores at every token: those at checkpoints are the stored ones, and nothing is lost on the way to the page."""

from __future__ import annotations

import dataclasses
import html
import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probecascade.agents.react import AgentSettings, ReActAgent
from probecascade.agents.templates import plain_template
from probecascade.environments import AtlasSettings, atlas_environment, atlas_examples, atlas_tasks
from probecascade.episode import SIGNALS, Recording
from probecascade.errors import UsageError
from probecascade.evaluation.tokens import TokenScore, shades, token_html, token_scores
from probecascade.policies import Gate
from probecascade.probes import LinearProbe
from probecascade.testing import ScriptedModel

LAYERS = (0, 2)


def linear(width: int) -> LinearProbe:
    rng = np.random.default_rng(0)
    return LinearProbe(mean=rng.normal(size=width), scale=np.ones(width), weight=rng.normal(size=width), bias=0.2)


class Pools:
    """Scores by the mean of the blocks that are there."""

    reads = frozenset({"states"})

    def score(self, states: NDArray[Any], signals: NDArray[Any] | None = None) -> NDArray[np.float64]:
        return np.nanmean(np.asarray(states, np.float64) > 0, axis=1)


@pytest.fixture(scope="module")
def played() -> tuple[ScriptedModel, Recording]:
    settings = AtlasSettings(groups=1, parts=1)
    (task,) = atlas_tasks(settings)
    said = [" I look <it> up.\nAction: Search[Nobody]", " I give up.\nAction: Finish[none]"]
    model = ScriptedModel(said, layers=LAYERS)
    agent = ReActAgent(model, plain_template(atlas_examples(settings)), AgentSettings(store_dtype="float16"))
    (recording,) = model.run([agent.play(task, atlas_environment(settings, 0), 0)])
    return model, recording


def test_scores_at_checkpoints_are_the_stored_ones(played: tuple[ScriptedModel, Recording]) -> None:
    model, recording = played
    probe = linear(4)
    gate = Gate("action:1", 2, probe, 0.5)
    tokens = token_scores(model, gate, recording.episode, dtype="float16")
    stored = probe.score(recording.hidden[:, 1])
    marked = {name: token for token in tokens for name in token.checkpoints}
    assert list(marked) == [point.name for point in recording.episode.checkpoints]
    assert "action:1" in marked
    for point, score in zip(recording.episode.checkpoints, stored, strict=True):
        assert marked[point.name].score == score
        assert marked[point.name].position == point.position
    for token in tokens:
        assert token.log_odds == pytest.approx(np.log(token.score / (1 - token.score)), abs=1e-6)


def test_every_token_is_there_once(played: tuple[ScriptedModel, Recording]) -> None:
    model, recording = played
    episode = recording.episode
    tokens = token_scores(model, Gate("action:1", 2, linear(4), 0.5), episode, dtype="float16")
    assert [token.position for token in tokens] == list(range(episode.prompt_tokens - 1, len(episode.token_ids)))
    assert "".join(t.text for t in tokens) == model.decode(episode.token_ids[episode.prompt_tokens - 1 :].tolist())


def test_earlier_taps_are_those_of_the_episode_and_scores_begin_with_the_last_of_them(
    played: tuple[ScriptedModel, Recording],
) -> None:
    model, recording = played
    episode, hidden = recording.episode, recording.hidden
    gate = Gate("observation:1", 2, linear(8), 0.5, taps=(("action:1", 0), ("observation:1", 2)))
    tokens = token_scores(model, gate, episode, dtype="float16")
    place = {point.name: i for i, point in enumerate(episode.checkpoints)}
    begin = episode.checkpoints[place["action:1"]].position
    assert all(np.isnan(t.score) == (t.position < begin) for t in tokens)
    row = np.concatenate([hidden[place["action:1"], 0], hidden[place["observation:1"], 1]])
    (marked,) = [token for token in tokens if "observation:1" in token.checkpoints]
    assert marked.score == gate.probe.score(row[None])[0]


def test_a_tap_that_the_episode_never_came_by_is_missing(played: tuple[ScriptedModel, Recording]) -> None:
    model, recording = played
    gate = Gate("observation:1", 2, Pools(), 0.5, taps=(("part:7", 0), ("observation:1", 2)))
    tokens = token_scores(model, gate, recording.episode, dtype="float16")
    assert all(np.isfinite(token.score) for token in tokens)
    assert all(np.isfinite(token.log_odds) for token in tokens)


class Reader(Pools):
    reads = frozenset({"states", "text"})


def test_probes_that_read_more_than_states_are_refused(played: tuple[ScriptedModel, Recording]) -> None:
    model, recording = played
    surface = LinearProbe(
        mean=np.zeros(1), scale=np.ones(1), weight=np.ones(1), bias=0.0, uses="signals", columns=(SIGNALS[0],)
    )
    for gate, what in ((Gate("action:1", None, surface, 0.5), "signals"), (Gate("action:1", 2, Reader(), 0.5), "text")):
        with pytest.raises(UsageError, match=f"reads {what}, which exist at checkpoints only"):
            token_scores(model, gate, recording.episode, dtype="float16")


class Bytes:
    """A model whose ids are bytes."""

    layers = (0,)

    def decode(self, ids: Any) -> str:
        return bytes(ids).decode(errors="replace")

    def run(self, conversations: Any) -> Any:
        for conversation in conversations:
            request = next(conversation)
            states = np.ones((len(request.keep), 1, 4), np.float32)
            try:
                conversation.send(type("Fed", (), {"states": states})())
            except StopIteration as stop:
                yield stop.value


def test_a_character_of_several_tokens_is_shown_at_its_last(played: tuple[ScriptedModel, Recording]) -> None:
    ids = np.array([*"a→é".encode(), 0xE2, 0x86], np.int32)  # and a character that was cut off
    episode = dataclasses.replace(played[1].episode, token_ids=ids, prompt_tokens=1, checkpoints=())
    model: Any = Bytes()
    tokens = token_scores(model, Gate("action:1", 0, linear(4), 0.5), episode, dtype="float32")
    assert [token.text for token in tokens] == ["a", "", "", "→", "", "é", "", "\ufffd"]


def test_the_fragment_holds_the_text_escaped_coloured_by_rank() -> None:
    texts, odds = ["<b>", " & ", '"\n'], [2.0, -1.0, np.nan]
    tokens = [
        TokenScore(i, text, float(np.exp(odds[i])), odds[i], ("part:1",) * (i == 1)) for i, text in enumerate(texts)
    ]
    found = token_html(tokens)
    assert "<b>" not in found
    shown = re.sub(r"<sup>.*?</sup>|<[^>]+>", "", found)
    assert html.unescape(shown) == "".join(texts)
    assert found.count("<span") == 2
    assert "<sup>part:1 0.37</sup>" in found
    colours = re.findall(r"rgb\((\d+),(\d+),(\d+)\)", found)
    assert int(colours[0][0]) > int(colours[0][2])  # the higher is orange
    assert int(colours[1][0]) < int(colours[1][2])  # the lower is blue
    np.testing.assert_array_equal(shades(tokens), [0.75, 0.25, np.nan])
