"""Directions read as tokens: by the model's own norm and head, whatever the architecture."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tiny_models import LAYERS, SUPPORTED, VOCAB, clean_states, final_norm, make_model, make_tokenizer, random_ids

from probecascade.errors import ModelError
from probecascade.models import unembed
from probecascade.models.hooks import unembed as logits_of
from probecascade.models.unembed import Lens, lens_layers, read_direction

WIDTH = 32


def states(model: Any, n: int = 40) -> NDArray[np.float32]:
    return clean_states(model, random_ids(n))[:, -1]


def noise(count: int = 50, length: float = 1.0) -> NDArray[np.float64]:
    drawn = np.random.default_rng(5).normal(size=(count, WIDTH))
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True) * length


def read(model: Any, step: NDArray[Any], references: NDArray[Any], **options: Any) -> Lens:
    return read_direction(model, make_tokenizer(), step, references, noise(), **options)


@pytest.mark.parametrize("kind", SUPPORTED)
def test_shifts_are_what_the_model_itself_does_with_a_state_and_a_small_step(kind: str) -> None:
    model = make_model(kind)
    state = torch.tensor(states(model)[-1], dtype=torch.float64)
    step = np.random.default_rng(1).normal(size=WIDTH) * 1e-3
    with torch.no_grad():
        model.double()
        change = (logits_of(model, state + torch.tensor(step)) - logits_of(model, state)).numpy()
        model.float()
    found = read(model, step, state.numpy()[None], top=VOCAB)
    order = [token.token for token in found.promoted]
    shifts = np.array([token.shift for token in found.promoted])
    # The model's own norm works in float32, whose rounding shows in so small a change.
    np.testing.assert_allclose(shifts, (change - change.mean())[order], atol=1e-2 * np.abs(change).max())
    assert found.norm == type(final_norm(model)).__name__
    assert list(shifts) == sorted(shifts, reverse=True)
    assert [token.token for token in found.suppressed] == order[::-1]


@pytest.mark.parametrize("kind", ["llama", "gpt2", "neox"])
@pytest.mark.parametrize("layer", [1, LAYERS])
def test_the_row_of_a_token_in_a_head_of_one_hot_rows_promotes_that_token(kind: str, layer: int) -> None:
    model = make_model(kind)
    weight = torch.zeros(VOCAB, WIDTH)
    weight[torch.arange(WIDTH) + 40, torch.arange(WIDTH)] = 1.0
    model.get_output_embeddings().weight = torch.nn.Parameter(weight, requires_grad=False)
    one_hot = np.eye(WIDTH)[7]
    found = read(model, one_hot, states(make_model(kind)), top=3)
    assert found.promoted[0].token == 47
    assert read(model, -one_hot, states(make_model(kind)), top=3).suppressed[0].token == 47


def test_the_weight_of_the_norm_is_folded_in() -> None:
    model = make_model()
    step, references = np.ones(WIDTH), states(model)
    before = read(model, step, references, top=1)
    weight = final_norm(model).weight
    weight.data = torch.linspace(-3.0, 3.0, WIDTH)
    assert read(model, step, references, top=1).promoted[0].token != before.promoted[0].token


def test_what_only_stretches_a_state_is_normed_away_and_a_layernorm_centres() -> None:
    llama = make_model()
    state = states(llama)[-1:]
    assert read(llama, state[0], state).spread < 1e-4 * read(llama, noise(1)[0] * np.linalg.norm(state), state).spread
    gpt2 = make_model("gpt2")
    assert read(gpt2, np.ones(WIDTH), states(gpt2)).spread < 1e-4 * read(gpt2, noise(1)[0], states(gpt2)).spread


@pytest.mark.parametrize(("kind", "tied"), [("llama", False), ("gpt2", True)])
def test_tied_heads_are_told_apart(kind: str, tied: bool) -> None:
    model = make_model(kind)
    assert read(model, noise(1)[0], states(model)).tied is tied


def test_a_token_that_every_direction_moves_is_marked_and_a_random_direction_is_not_special() -> None:
    model = make_model()
    model.get_output_embeddings().weight[9] *= 100
    references = states(model)
    found = read(model, noise(51)[50], references, top=5)
    loud = next(t for t in (*found.promoted, *found.suppressed) if t.token == 9)
    assert loud.random_share > 0.9
    quiet = [t.random_share for t in (*found.promoted, *found.suppressed) if t.token != 9]
    assert max(quiet) < 0.3
    assert found.random == 50


def test_a_long_step_spreads_logits_more_than_random_ones_but_is_no_more_peaked() -> None:
    model = make_model()
    step, references = noise(51)[50], states(model)
    found, long = read(model, step, references), read(model, 10 * step, references)
    assert 0 < found.spread_rank < 1 == long.spread_rank
    assert long.peak_rank == found.peak_rank < 1


def test_directions_of_another_model_and_empty_references_are_refused() -> None:
    model = make_model()
    with pytest.raises(ModelError, match="a step of width 31 cannot pass the head"):
        read(model, np.ones(31), states(model))
    with pytest.raises(ModelError, match="no reference state"):
        read(model, np.ones(WIDTH), np.zeros((0, WIDTH)))


def test_a_model_that_does_more_than_norm_and_head_is_refused() -> None:
    model = make_model()
    norm = final_norm(model)
    model.model.norm = torch.nn.Sequential(norm, torch.nn.Linear(WIDTH, WIDTH))
    with pytest.raises(ModelError, match="not through one norm and a head"):
        unembed.final_norm(model)


def test_no_hook_is_left_behind() -> None:
    model = make_model()
    references, before = states(model), [len(module._forward_hooks) for module in model.modules()]
    read(model, noise(1)[0], references)
    assert [len(module._forward_hooks) for module in model.modules()] == before


def test_how_far_a_layer_can_be_trusted_is_said() -> None:
    assert lens_layers(30, 30).startswith("the last layer")
    assert "block 30 is passed over" in lens_layers(29, 30)
    assert "blocks 26 to 30 are passed over" in lens_layers(25, 30)


def test_half_precision_is_read_in_float32() -> None:
    model = make_model(dtype=torch.bfloat16)
    references = clean_states(model, random_ids(40))[:, -1]
    found = read(model, noise(1)[0], references, top=VOCAB)
    assert len({token.shift for token in found.promoted}) > VOCAB * 0.9
