"""Opening episodes: what a forgotten `with` says, and the warning of gates that the loop never asks."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import make_model, make_tokenizer

from probecascade.errors import UsageError
from probecascade.models.attach import attach
from probecascade.policies import Cascade, Gate
from probecascade.probes import LinearProbe
from probecascade.thresholds import OFF

TOKENIZER = make_tokenizer()


@pytest.fixture(scope="module")
def model() -> Any:
    return make_model("llama")


def cascade(*checkpoints: str, threshold: float = 1.0) -> Cascade:
    probe = LinearProbe(np.zeros(32), np.ones(32), np.full(32, 0.01), 0.0)
    return Cascade([Gate(name, 2, probe, threshold) for name in checkpoints])


def turn(model: Any, hook: Any, episode: Any, kind: str = "action", **options: Any) -> None:
    out = model.generate(
        torch.tensor([[1, 2, 3, episode.round]]),
        attention_mask=torch.ones((1, 4), dtype=torch.long),
        pad_token_id=TOKENIZER.pad_token_id,
        do_sample=False,
        max_new_tokens=3,
        stopping_criteria=hook.stopping_criteria(),
        return_dict_in_generate=True,
    )
    episode.checkpoint(kind, out, **options)


def play(model: Any, hook: Any, name: str, turns: int) -> Any:
    with hook.episode(name) as episode:
        for _ in range(turns):
            turn(model, hook, episode)
    return episode


def test_an_episode_without_with_says_what_to_write(model: Any) -> None:
    with attach(cascade("action:1"), model, TOKENIZER) as hook:
        episode: Any = hook.episode("t")
        with pytest.raises(UsageError, match=r"write `with hook\.episode\(\.\.\.\) as episode:`"):
            episode.checkpoint("action")
        episodes: Any = hook.episodes(["a", "b"])
        with pytest.raises(UsageError, match="not open yet"):
            episodes[0]
        assert not hasattr(copy.copy(episode), "__len__")  # nothing opened, nothing hidden
        assert play(model, hook, "t", 1).scores.keys() == {"action:1"}


def test_gates_that_were_never_asked_are_warned_of_once(model: Any) -> None:
    with attach(cascade("action:1", "part:1", "part:2"), model, TOKENIZER) as hook:
        with pytest.warns(
            RuntimeWarning, match=r"the gates at part:1, part:2 was asked.*checkpoint\(\"part\", out, index"
        ):
            play(model, hook, "a", 1)
        play(model, hook, "b", 1)


def test_a_loop_that_asks_for_nothing_is_told_of_every_live_gate(model: Any) -> None:
    gates = [*cascade("action:2", "observation:3").gates, *cascade("part:1", threshold=OFF).gates]
    with (
        attach(Cascade(gates), model, TOKENIZER) as hook,
        pytest.warns(
            RuntimeWarning, match=r"the gates at action:2, observation:3 was asked.*\"action\".*\"observation\""
        ),
    ):
        play(model, hook, "a", 0)


@pytest.mark.parametrize("case", ["asked elsewhere", "too short", "aborted", "off", "left by an error"])
def test_no_warning_where_the_loop_may_be_right(model: Any, case: str) -> None:
    policy = {
        "too short": cascade("action:1", "observation:2", "action:4"),
        "aborted": cascade("action:1", "part:1", threshold=0.0),
        "off": Cascade([*cascade("action:1").gates, *cascade("part:1", threshold=OFF).gates]),
    }.get(case, cascade("action:1", "part:1"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with attach(policy, model, TOKENIZER) as hook:
            if case == "asked elsewhere":
                with hook.episode("first") as episode:
                    turn(model, hook, episode)
                    turn(model, hook, episode, "part", index=1)
            if case == "left by an error":
                with pytest.raises(KeyError, match="mine"), hook.episode("second"):
                    raise KeyError("mine")
            else:
                assert play(model, hook, "second", 1).aborted == (case == "aborted")
