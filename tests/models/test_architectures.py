"""Every supported architecture, tiny and random: the same states and the same ids as the model by itself.

The sliding windows are shorter than any conversation here, and the attention caps low enough to bite.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tiny_models import (
    APART,
    BATCHED,
    LAYERS,
    clean_states,
    generated,
    make_model,
    make_tokenizer,
    random_ids,
    relative_error,
)

from probecascade.errors import ModelError
from probecascade.models.attach import attach
from probecascade.models.engine import Engine
from probecascade.models.hooks import BlockHooks, self_test, unembed
from probecascade.models.recorder import Recorder
from probecascade.models.requests import Conversation, Feed, Rewind, Sample
from probecascade.testing import RecordingPolicy

EVERY = (*BATCHED, *APART)
ALL_LAYERS = tuple(range(LAYERS + 1))
HEAD = random_ids(9, seed=9)
PROMPTS = [random_ids(n, seed=n) for n in (1, 14, 6, 31)]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 5e-2}


@cache
def model_of(kind: str, dtype: torch.dtype = torch.float32) -> Any:
    return make_model(kind, dtype=dtype)


@pytest.mark.parametrize("kind", EVERY)
def test_a_layer_is_what_the_models_own_tuple_says(kind: str) -> None:
    model, ids = model_of(kind), random_ids(24)
    seen: dict[int, torch.Tensor] = {}
    with torch.no_grad(), BlockHooks(model, ALL_LAYERS, seen.__setitem__):
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits
    states = torch.stack([seen[layer][0] for layer in ALL_LAYERS], 1)
    assert relative_error(states.numpy(), clean_states(model, ids)) < 1e-6
    with torch.no_grad():
        own = unembed(model, seen[LAYERS])
    assert float((own - logits).norm() / logits.norm()) < 1e-5


@pytest.mark.parametrize("kind", EVERY)
def test_the_self_test_passes_in_half_precision(kind: str) -> None:
    self_test(model_of(kind, torch.bfloat16))


def episode(prompt: Sequence[int], n: int) -> Conversation[tuple[list[int], NDArray[np.float32], int]]:
    """Two rounds with a side question between them: all ids, states after the shared head, length of the first turn."""
    first = [*HEAD, *prompt]
    fed = yield Feed(first, keep=tuple(range(len(HEAD), len(first))), shared=len(HEAD))
    turn = yield Sample(stop=lambda ids: None, max_tokens=n)
    yield Feed(random_ids(7, seed=n))
    yield Sample(stop=lambda ids: None, max_tokens=2)
    yield Rewind(len(first) + n)
    observation = random_ids(3, seed=40 + n)
    told = yield Feed(observation, keep=(0, 1, 2))
    last = yield Sample(stop=lambda ids: n if len(ids) == n + 2 else None, max_tokens=n + 2)
    ids = first + turn.ids + observation + last.ids
    return ids, np.concatenate([fed.states, turn.states, told.states, last.states]), n


def cases(first: Any, second: Any) -> list[Any]:
    """Every architecture both ways; the second of all but a few is left to the slow tests."""
    quick = ("llama", "gemma2", "mixtral", "falcon_alibi")
    return [pytest.param(kind, first) for kind in EVERY] + [
        pytest.param(kind, second, marks=() if kind in quick else pytest.mark.slow) for kind in EVERY
    ]


@pytest.mark.parametrize(("kind", "dtype"), cases(torch.float32, torch.bfloat16))
def test_conversations_of_different_lengths_in_few_slots(kind: str, dtype: torch.dtype) -> None:
    model = model_of(kind, dtype)
    engine = Engine(model, make_tokenizer(), layers=ALL_LAYERS, slots=3, capacity=96, max_batch_tokens=20)
    assert engine.batched == (kind in BATCHED)
    results = list(engine.run(episode(prompt, 3 + i) for i, prompt in enumerate(PROMPTS)))
    assert len(results) == len(PROMPTS)
    for ids, states, n in results:
        clean = clean_states(model, ids)[len(HEAD) :]
        if dtype == torch.float32:
            assert relative_error(states, clean) < TOLERANCE[dtype]
            start = len(ids) - 2 * n - 3
            assert ids[start : start + n] == generated(model, ids[:start], n)
            assert ids[-n:] == generated(model, ids[:-n], n)
        else:  # rounding may send a token to another expert, so the typical state is asked for
            gaps = np.linalg.norm(states - clean, axis=-1) / np.linalg.norm(clean, axis=-1)
            assert np.median(gaps, axis=0).max() < TOLERANCE[dtype]


@pytest.mark.parametrize(("kind", "side"), cases("left", "right"))
def test_rows_of_a_padded_batch_in_a_loop_that_is_not_ours(kind: str, side: str) -> None:
    model, rows = model_of(kind), pad(PROMPTS, side)
    with Recorder(model, ALL_LAYERS) as recorder:
        out = model.generate(**rows, max_new_tokens=5, do_sample=False, pad_token_id=0)
        wholes = [prompt + out[row, rows["input_ids"].shape[1] :].tolist() for row, prompt in enumerate(PROMPTS)]
        # The last sampled id has no state yet.
        found = [recorder.track.find(row, whole[:-1]) for row, whole in enumerate(wholes)]
        encoded = [recorder.encode(whole[:-1])[0] for whole in wholes]
    for whole, own, anew in zip(wholes, found, encoded, strict=True):
        clean = clean_states(model, whole[:-1])[-1]
        assert relative_error(stacked(anew), clean) < 1e-5
        # To the right of padding `generate` goes on from wrong positions, and says so: nothing is found there.
        assert (own is None) == (side == "right" or kind in WITHOUT_POSITIONS)
        assert own is None or relative_error(stacked(own), clean) < 1e-5
    if side == "left":
        for whole, prompt in zip(wholes, PROMPTS, strict=True):
            assert whole[len(prompt) :] == generated(model, prompt, 5)


WITHOUT_POSITIONS = ("bloom",)
"""Nobody can see in the call whether padding moved the positions, so the states of padded rows are read anew."""


def pad(rows: Sequence[Sequence[int]], side: str) -> dict[str, torch.Tensor]:
    width = max(map(len, rows))
    order = (lambda a, b: a + b) if side == "left" else (lambda a, b: b + a)
    blank = [[0] * (width - len(row)) for row in rows]
    return {
        "input_ids": torch.tensor([order(b, list(r)) for b, r in zip(blank, rows, strict=True)]),
        "attention_mask": torch.tensor([order(b, [1] * len(r)) for b, r in zip(blank, rows, strict=True)]),
    }


def stacked(states: Any) -> NDArray[np.float32]:
    return np.stack([states[layer] for layer in ALL_LAYERS])


@pytest.mark.parametrize("kind", ["mamba", "recurrent_gemma"])
@pytest.mark.filterwarnings("ignore")  # reference kernels of transformers
def test_a_recurrent_state_is_refused(kind: str) -> None:
    model = model_of(kind)
    for start in (lambda: Engine(model, make_tokenizer(), layers=[1]), lambda: Recorder(model, [1])):
        with pytest.raises(ModelError, match="keeps a recurrent state, which cannot be taken back"):
            start()


# Tokenizers ------------------------------------------------------------------------------------------------------


def quirky(quirk: str) -> Any:
    """A byte-level tokenizer; ids 0 and 1 are signs of its alphabet too."""
    tokenizer = make_tokenizer("left")
    if quirk == "pad id 0":
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(0)
    elif quirk == "pad == eos":
        tokenizer.pad_token = tokenizer.eos_token
    elif quirk == "no pad":
        tokenizer.pad_token = None
    elif quirk == "bos":
        tokenizer.add_special_tokens({"bos_token": "<start>"})
    return tokenizer


@pytest.mark.parametrize("quirk", ["pad id 0", "pad == eos", "no pad", "no bos", "bos"])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_tokenizers_quirks_move_no_state(kind: str, quirk: str) -> None:
    model, tokenizer, policy = model_of(kind), quirky(quirk), RecordingPolicy(ALL_LAYERS)
    settings = (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.padding_side)
    texts = ["!", "Who wrote it?", "!!a"] if quirk != "no pad" else ["Who wrote it?"]
    batch = tokenizer(texts, padding=len(texts) > 1, return_tensors="pt")
    with attach(policy, model, tokenizer) as hook, hook.episodes(map(str, range(len(texts)))) as handles:
        out = model.generate(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            max_new_tokens=5,
            do_sample=False,
            pad_token_id=tokenizer.pad_token_id,
        )
        for handle in handles:
            handle.checkpoint("prompt", out)
            handle.checkpoint("part", tokens=real_ids(batch, out, handles.index(handle)), index=1)
    engine = Engine(model, tokenizer, layers=ALL_LAYERS, slots=3, capacity=64)
    for row, text in enumerate(texts):
        prompt = tokenizer(text).input_ids
        assert engine.encode(text) == prompt  # this tokenizer puts nothing before a text, whatever tokens it has
        whole = real_ids(batch, out, row)
        assert whole == prompt + generated(model, prompt, 5)
        told, ended = policy.moments[str(row)]
        clean = clean_states(model, whole)
        assert told.checkpoint.position == len(prompt) - 1
        assert relative_error(stacked(told.hidden), clean[len(prompt) - 1]) < 1e-5
        assert relative_error(stacked(ended.hidden), clean[-1]) < 1e-5
    assert settings == (
        tokenizer.pad_token_id,
        tokenizer.eos_token_id,
        tokenizer.bos_token_id,
        tokenizer.padding_side,
    )


def real_ids(batch: Any, out: torch.Tensor, row: int) -> list[int]:
    mask = torch.nn.functional.pad(
        batch.attention_mask[row], (0, out.shape[1] - batch.attention_mask.shape[1]), value=1
    )
    ids: list[int] = out[row][mask.bool()].tolist()
    return ids


def test_a_bridge_or_wrapper_is_not_driven_unopened() -> None:
    class Bridge(torch.nn.Module):
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.original_model, self.hook_dict, self.config = model, {}, model.config

    with pytest.raises(ModelError, match=r"open it with probecascade\.models\.adopt"):
        Engine(Bridge(model_of("llama")), make_tokenizer(), layers=[1])
