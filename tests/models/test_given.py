"""Models that somebody has loaded already, and what keeps the states of two backends apart."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from made_runs import HEADER, LAYERS, WIDTH, make_episode
from made_runs import make_states as states_of
from numpy.random import default_rng
from tiny_models import clean_states, make_model, make_tokenizer, random_ids, relative_error
from torch import nn

from probecascade.episode import Recording
from probecascade.errors import CascadeError, DataError, ModelError, StoreError
from probecascade.evaluation.pooled import PooledRuns
from probecascade.models import adopt, load
from probecascade.models.attach import attach
from probecascade.models.engine import Engine
from probecascade.models.given import unwrap
from probecascade.models.identity import dtype_of, memory_checksum
from probecascade.models.requests import Conversation, Feed
from probecascade.policies import Cascade, Gate
from probecascade.policies.provenance import check_header, identity_of
from probecascade.probes import LinearProbe
from probecascade.store import Run, RunWriter

IDS = random_ids(20)
ALL = (0, 1, 2, 3)


class Wrapper:
    """As nnsight's `LanguageModel`: not a module, with the model at `_model` and its tokenizer beside it."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._model = model
        self.tokenizer = tokenizer


def bridge(model: Any, **facts: Any) -> Any:
    """As far as a `TransformerBridge` is looked at."""
    return SimpleNamespace(original_model=model, hook_dict={}, tokenizer=make_tokenizer(), **facts)


def feed() -> Conversation[Any]:
    fed = yield Feed(IDS, keep=tuple(range(len(IDS))))
    return fed.states


def test_a_model_of_transformers_needs_its_tokenizer() -> None:
    model, tokenizer = make_model("llama"), make_tokenizer()
    loaded = adopt(model, tokenizer, name="mine")
    assert loaded.model is model
    assert loaded.tokenizer is tokenizer
    assert loaded.bridge is None
    assert loaded.source.kind == "given"
    assert loaded.identity["model"] == "mine"
    assert loaded.identity["backend"] == "transformers"
    assert loaded.identity["dtype"] == "float32"
    assert adopt(model, tokenizer).identity["model"] == "LlamaForCausalLM"
    with pytest.raises(ModelError, match="comes without a tokenizer: give it as tokenizer="):
        adopt(model)
    for wrong in ("mine", 3):
        with pytest.raises(ModelError, match="is no tokenizer: give the model's own"):
            adopt(model, wrong)
    with pytest.raises(ModelError, match="NoneType is no tokenizer"):
        attach(cascade({"d_model": model.config.hidden_size}), model, None)


def test_the_identity_of_a_folder_is_that_of_loading_it_but_for_the_weights(tmp_path: Path) -> None:
    make_model("llama").save_pretrained(tmp_path / "tiny")
    make_tokenizer().save_pretrained(tmp_path / "tiny")
    found = load(str(tmp_path / "tiny"), device="cpu")
    given = adopt(found.model, found.tokenizer)
    assert {**given.identity, "weights": None} == {**found.identity, "weights": None}
    assert str(given.identity["weights"]).startswith("memory-sha256:")


def test_a_wrapper_of_nnsight_is_opened() -> None:
    model, tokenizer = make_model("llama"), make_tokenizer()
    loaded = adopt(Wrapper(model, tokenizer))
    assert loaded.model is model
    assert loaded.tokenizer is tokenizer
    (states,) = Engine(loaded.model, loaded.tokenizer, layers=ALL, slots=1).run([feed()])
    assert relative_error(states, clean_states(model, IDS)) < 1e-5


def test_weights_that_are_not_there_yet_are_refused() -> None:
    with pytest.raises(ModelError, match="not loaded yet: give dispatch=True"):
        adopt(Wrapper(make_model("llama").to("meta"), make_tokenizer()))


def test_a_bridge_is_opened_and_told_from_the_plain_model() -> None:
    model = make_model("llama")
    outer = bridge(model)
    assert unwrap(outer).model is model
    assert adopt(outer).identity["backend"] == "transformer-lens"
    with pytest.raises(ModelError, match="compatibility mode"):
        adopt(bridge(model, compatibility_mode=True))


@pytest.mark.parametrize("given", [None, "smollm2", nn.Linear(2, 2), SimpleNamespace(_model=3)])
def test_what_is_no_model_is_refused(given: Any) -> None:
    with pytest.raises(ModelError, match="is no loaded language model: give a decoder of transformers"):
        adopt(given, make_tokenizer())


def test_a_model_in_training_and_a_recurrent_one_are_refused() -> None:
    with pytest.raises(ModelError, match=r"training mode.*model\.eval\(\)"):
        adopt(make_model("llama").train(), make_tokenizer())
    with pytest.raises(ModelError, match="LlamaModel has no head and writes no text"):
        adopt(make_model("llama").model, make_tokenizer())
    with pytest.raises(ModelError, match="recurrent state"):
        adopt(make_model("mamba"), make_tokenizer())


# Weights ---------------------------------------------------------------------------------------------------------


def test_the_checksum_in_memory_sees_names_shapes_dtypes_and_numbers() -> None:
    model = make_model("llama")
    checksum = memory_checksum(model)
    assert memory_checksum(make_model("llama")) == checksum
    assert memory_checksum(make_model("llama", seed=1)) != checksum
    assert memory_checksum(make_model("llama", dtype=torch.bfloat16)) != checksum
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight.mul_(1.01)
    assert memory_checksum(model) != checksum


class Packed(nn.Module):
    """A linear layer whose weights are kept as two 4-bit numbers a byte, as bitsandbytes does on a GPU."""

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__()
        self.step = nn.Buffer(plain.weight.abs().amax() / 7)
        codes = ((plain.weight / self.step).round().clamp(-7, 7) + 8).to(torch.uint8)
        self.weight = nn.Parameter(codes[:, ::2] * 16 + codes[:, 1::2], requires_grad=False)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        codes = torch.stack([self.weight // 16, self.weight % 16], -1).flatten(1)
        return nn.functional.linear(states, ((codes.float() - 8) * self.step).to(states.dtype))


def quantised() -> Any:
    model = make_model("llama")
    model.config.quantization_config = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    for block in model.model.layers:
        for name in ("gate_proj", "up_proj", "down_proj"):
            setattr(block.mlp, name, Packed(getattr(block.mlp, name)))
        block.self_attn.q_proj = Packed(block.self_attn.q_proj)
    return model


def test_a_model_in_four_bits_is_read_as_it_computes_and_says_so() -> None:
    model = quantised()
    loaded = adopt(model, make_tokenizer())
    assert loaded.identity["dtype"] == "float32, bitsandbytes 4-bit" == dtype_of(model)
    (states,) = Engine(model, loaded.tokenizer, layers=ALL, slots=1).run([feed()])
    assert relative_error(states, clean_states(model, IDS)) < 1e-5
    assert relative_error(states, clean_states(make_model("llama"), IDS)) > 1e-2


def test_a_cascade_of_the_full_model_does_not_fit_the_one_in_four_bits() -> None:
    run = {"model": {"model": "tiny", "dtype": "float32"}}
    with pytest.raises(CascadeError, match=r"model\.dtype 'float32', but this is 'float32, bitsandbytes 4-bit'"):
        attach(cascade(run), quantised(), make_tokenizer())
    attach(cascade(run), make_model("llama"), make_tokenizer())


# Backends are not mixed ------------------------------------------------------------------------------------------


def cascade(run: dict[str, Any]) -> Cascade:
    probe = LinearProbe(torch.zeros(32).numpy(), torch.ones(32).numpy(), torch.ones(32).numpy(), 0.0)
    return Cascade([Gate("action:1", 1, probe, 0.5)], provenance={"run": run})


@pytest.mark.parametrize("said", [{}, {"backend": "transformers"}])
def test_a_cascade_of_plain_states_does_not_fit_a_bridge(said: dict[str, str]) -> None:
    run = {"model": {"model": "tiny", **said}}
    model = make_model("llama")
    with pytest.raises(CascadeError, match=r"model\.backend 'transformers', but this is 'transformer-lens'"):
        attach(cascade(run), bridge(model), make_tokenizer())
    attach(cascade(run), model, make_tokenizer())
    attach(cascade({"model": {"model": "tiny", "backend": "transformer-lens"}}), bridge(model), make_tokenizer())


def write(path: Path, **model: str) -> Path:
    header = {**HEADER, "model": {**HEADER["model"], **model}}
    with RunWriter(path, header, layers=LAYERS, d_model=WIDTH, dtype="float32") as writer:
        episode = make_episode(path.name, path.name, failed=True, rounds=3)
        writer.add(Recording(episode, states_of(episode, default_rng(0), failed=True)))
    return path


def test_runs_of_two_backends_are_neither_pooled_nor_continued(tmp_path: Path) -> None:
    old = write(tmp_path / "old")  # from before runs said which backend made them
    plain = write(tmp_path / "plain", backend="transformers")
    lens = write(tmp_path / "lens", backend="transformer-lens")
    assert len(PooledRuns([Run.open(old), Run.open(plain)])) == 2
    with pytest.raises(DataError, match="differ in model"):
        PooledRuns([Run.open(old), Run.open(lens)])
    check_header(identity_of(Run.open(old).header), Run.open(plain).header)
    with pytest.raises(CascadeError, match=r"model\.backend 'transformers', but this is 'transformer-lens'"):
        check_header(identity_of(Run.open(old).header), Run.open(lens).header)
    header = {**HEADER, "model": {**HEADER["model"], "backend": "transformer-lens"}}
    with (
        pytest.raises(StoreError, match=r"its model\.backend is"),
        RunWriter(old, header, layers=LAYERS, d_model=WIDTH, dtype="float32", resume=True),
    ):
        pass
