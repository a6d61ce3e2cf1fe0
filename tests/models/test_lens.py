"""TransformerLens as a second backend: the same states as the plain model, or a refusal.

The bridge's import takes seconds and every bridge half a second, so most of these tests are among the slow ones.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_architectures import ALL_LAYERS, HEAD, PROMPTS, episode, model_of
from tiny_models import (
    BRIDGED,
    LAYERS,
    clean_states,
    generated,
    make_model,
    make_tokenizer,
    random_ids,
    relative_error,
)

from probecascade.errors import ModelError, UsageError
from probecascade.models import adopt, load
from probecascade.models.attach import attach
from probecascade.models.engine import Engine
from probecascade.models.lens import build_bridge, check_agreement, layer_states, mend_cache
from probecascade.models.quiet import quiet_loading
from probecascade.models.requests import Conversation, Feed
from probecascade.testing import RecordingPolicy

IDS = random_ids(24)


@pytest.fixture
def boot() -> Callable[[Any], Any]:
    """What a user of TransformerLens does: a bridge that takes a model of transformers over for good."""
    pytest.importorskip("transformer_lens.model_bridge")
    from transformer_lens.model_bridge import TransformerBridge

    def boot(model: Any) -> Any:
        with quiet_loading():
            return TransformerBridge.boot_transformers(
                "local/tiny", hf_model=model, tokenizer=make_tokenizer(), device="cpu"
            )

    return boot


def named(kind: str) -> Any:
    model = make_model(kind)
    model.config.architectures = [type(model).__name__]  # as in every model that was loaded from a folder
    return model


def feed(ids: list[int]) -> Conversation[np.ndarray]:
    fed = yield Feed(ids, keep=tuple(range(len(ids))))
    return fed.states


# The same states and ids -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", BRIDGED)
def test_a_bridge_plays_as_the_plain_model_does(kind: str) -> None:
    pytest.importorskip("transformer_lens.model_bridge")
    plain, tokenizer = model_of(kind), make_tokenizer()
    bridge = build_bridge(plain, tokenizer)
    engine = Engine(bridge.original_model, tokenizer, layers=ALL_LAYERS, slots=3, capacity=96, max_batch_tokens=20)
    for ids, states, n in engine.run(episode(prompt, 3 + i) for i, prompt in enumerate(PROMPTS)):
        assert relative_error(states, clean_states(plain, ids)[len(HEAD) :]) < 1e-5
        assert ids[-n:] == generated(plain, ids[:-n], n)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gemma2", "neox", "qwen2"])
def test_half_precision(kind: str) -> None:
    pytest.importorskip("transformer_lens.model_bridge")
    plain = model_of(kind, torch.bfloat16)
    engine = Engine(build_bridge(plain, make_tokenizer()).original_model, make_tokenizer(), layers=ALL_LAYERS, slots=1)
    (states,) = engine.run([feed(IDS)])
    assert relative_error(states, clean_states(plain, IDS)) < 5e-2


@pytest.mark.slow
def test_a_layer_is_what_the_bridges_hook_names_show_with_what_the_user_did_there() -> None:
    pytest.importorskip("transformer_lens.model_bridge")
    bridge = build_bridge(model_of("llama"), make_tokenizer())
    engine = Engine(bridge.original_model, make_tokenizer(), layers=ALL_LAYERS, slots=1)
    (states,) = engine.run([feed(IDS)])
    _, cache = bridge.run_with_cache(torch.tensor([IDS]))
    shown = [cache["blocks.0.hook_in"], *(cache[f"blocks.{k}.hook_out"] for k in range(LAYERS))]
    assert relative_error(states, torch.stack([h[0] for h in shown], 1).numpy()) < 1e-5
    with bridge.hooks(fwd_hooks=[("blocks.1.hook_out", lambda tensor, hook: torch.zeros_like(tensor))]):
        (zeroed,) = engine.run([feed(IDS)])
    assert not zeroed[:, 2].any()
    np.testing.assert_allclose(zeroed[:, 1], states[:, 1], rtol=1e-5)
    assert relative_error(zeroed[:, 3], states[:, 3]) > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "gpt2", "mixtral"])
def test_the_callers_model_and_tokenizer_are_unharmed(kind: str) -> None:
    pytest.importorskip("transformer_lens.model_bridge")
    model, tokenizer = make_model(kind), make_tokenizer("left")
    classes = [type(module) for module in model.modules()]
    attention = model.config._attn_implementation
    before = model(input_ids=torch.tensor([IDS])).logits
    bridge = build_bridge(model, tokenizer)
    list(Engine(bridge.original_model, tokenizer, layers=[1], slots=1).run([feed(IDS)]))
    assert [type(module) for module in model.modules()] == classes
    assert model.config._attn_implementation == attention
    assert model.config.architectures is None
    assert torch.equal(model(input_ids=torch.tensor([IDS])).logits, before)
    assert tokenizer.padding_side == "left"
    assert (tokenizer.bos_token, tokenizer.pad_token) == (None, "<pad>")
    own = {parameter.data_ptr() for parameter in model.parameters()}
    assert own & {parameter.data_ptr() for parameter in bridge.original_model.parameters()}  # no second set of weights


# Where it cannot be had ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "message"),
    [("falcon_40b", "TransformerLens cannot run FalconForCausalLM"), ("falcon_alibi", "layer 1 of FalconForCausalLM")],
)
def test_architectures_that_it_does_not_run_as_transformers_does_are_refused(kind: str, message: str) -> None:
    pytest.importorskip("transformer_lens.model_bridge")
    with pytest.raises(ModelError, match=f'{message}.*use backend = "transformers"'):
        build_bridge(make_model(kind), make_tokenizer())


def test_a_layer_that_differs_is_named() -> None:
    plain = layer_states(make_model("llama"))
    check_agreement(plain, {layer: states * 3 for layer, states in plain.items()}, "Tiny")  # the cosine is one
    for layer in ALL_LAYERS:
        other = dict(plain)
        other[layer] = plain[layer] + 0.1 * plain[layer].roll(1, -1)
        with pytest.raises(ModelError, match=rf"layer {layer} of Tiny is another under TransformerLens \(cosine 0\.9"):
            check_agreement(plain, other, "Tiny")


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformer_lens", None)
    monkeypatch.setitem(sys.modules, "transformer_lens.model_bridge", None)
    with pytest.raises(UsageError, match=r'not installed: pip install "probecascade\[lens\]"'):
        build_bridge(make_model("llama"), make_tokenizer())


def test_an_unknown_backend_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(UsageError, match=r"'transformer_lens' is not one of .*; did you mean 'transformer-lens'"):
        load("no-such-model", backend="transformer_lens")


# Models that are loaded already ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt2", "llama", "olmo2"])
def test_a_users_own_bridge_is_taken_over_and_its_cache_is_mended(kind: str, boot: Callable[[Any], Any]) -> None:
    plain = make_model(kind)
    bridge = boot(named(kind))
    wanted = generated(plain, IDS, 8)
    assert generated(bridge.original_model, IDS, 8) != wanted  # untreated, every sampled token forgets its past
    loaded = adopt(bridge)
    assert loaded.bridge is bridge
    assert loaded.tokenizer is bridge.tokenizer
    assert loaded.identity["backend"] == "transformer-lens"
    assert generated(loaded.model, IDS, 8) == wanted
    mend_cache(loaded.model)
    assert generated(loaded.model, IDS, 8) == wanted
    (states,) = Engine(loaded.model, loaded.tokenizer, layers=ALL_LAYERS, slots=1).run([feed(IDS)])
    assert relative_error(states, clean_states(plain, IDS)) < 1e-5


@pytest.mark.slow
def test_a_bridge_in_compatibility_mode_is_refused(boot: Callable[[Any], Any]) -> None:
    bridge = boot(named("gpt2"))
    with quiet_loading():
        bridge.enable_compatibility_mode()
    with pytest.raises(ModelError, match="compatibility mode, where folded weights move the states"):
        adopt(bridge)


@pytest.mark.slow
def test_a_hook_on_a_users_bridge(boot: Callable[[Any], Any]) -> None:
    plain, bridge = make_model("llama"), boot(named("llama"))
    policy = RecordingPolicy(ALL_LAYERS)
    with attach(policy, bridge, bridge.tokenizer) as hook, hook.episode("t") as handle:
        inputs = torch.tensor([IDS])
        out = bridge.original_model.generate(
            inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=4, do_sample=False, pad_token_id=0
        )
        handle.checkpoint("action", out)
    (moment,) = policy.moments["t"]
    assert out[0, len(IDS) :].tolist() == generated(plain, IDS, 4)
    clean = clean_states(plain, out[0].tolist())[-1]
    assert relative_error(np.stack([moment.hidden[layer] for layer in ALL_LAYERS]), clean) < 1e-5


@pytest.mark.slow
def test_a_folder_loads_in_either_backend(tmp_path: Path) -> None:
    pytest.importorskip("transformer_lens.model_bridge")
    make_model("llama").save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    plain, lens = (load(str(tmp_path), device="cpu", backend=name) for name in ("transformers", "transformer-lens"))
    assert plain.bridge is None
    assert {**plain.identity, "backend": "transformer-lens"} == dict(lens.identity)
    engines = [Engine(found.model, found.tokenizer, layers=ALL_LAYERS, slots=1) for found in (plain, lens)]
    first, second = (next(engine.run([feed(IDS)])) for engine in engines)
    assert relative_error(first, second) < 1e-5
