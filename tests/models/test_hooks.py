from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import LAYERS, SUPPORTED, clean_states, final_norm, make_model, random_ids, relative_error
from torch import Tensor, nn

from probecascade.errors import ModelError
from probecascade.models.hooks import BlockHooks, decoder_blocks, resolve_layers, self_test, unembed

IDS = random_ids(9)


def record(model: Any, layers: list[int]) -> dict[int, Tensor]:
    seen: dict[int, Tensor] = {}
    with torch.no_grad(), BlockHooks(model, layers, seen.__setitem__):
        model(input_ids=torch.tensor([IDS]), use_cache=False)
    return seen


def n_hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.mark.parametrize("kind", SUPPORTED)
def test_layer_0_enters_block_0_and_layer_k_leaves_block_k(kind: str) -> None:
    model = make_model(kind)
    clean = clean_states(model, IDS)
    seen = record(model, [0, 1, 2, LAYERS])
    assert sorted(seen) == [0, 1, 2, LAYERS]
    for layer, hidden in seen.items():
        assert hidden.shape == (1, len(IDS), 32)
        np.testing.assert_array_equal(hidden[0].numpy(), clean[:, layer])


def test_layer_0_of_a_llama_is_its_embedding() -> None:
    model = make_model("llama")
    embedded = model.get_input_embeddings()(torch.tensor([IDS]))
    torch.testing.assert_close(record(model, [0])[0], embedded, rtol=0, atol=0)


@pytest.mark.parametrize("kind", SUPPORTED)
def test_the_last_layer_differs_from_transformers_own_by_the_final_norm_alone(kind: str) -> None:
    model = make_model(kind)
    last = record(model, [LAYERS])[LAYERS]
    with torch.no_grad():
        tuple_last = model(input_ids=torch.tensor([IDS]), output_hidden_states=True).hidden_states[-1]
        torch.testing.assert_close(final_norm(model)(last), tuple_last)
    assert not torch.allclose(last, tuple_last, atol=1e-2)


@pytest.mark.parametrize("layer", range(LAYERS + 1))
def test_any_single_layer_works_alone(layer: int) -> None:
    model = make_model("gpt2")
    assert list(record(model, [layer])) == [layer]


def test_the_configuration_of_hidden_states_changes_nothing() -> None:
    plain, asked = make_model("llama"), make_model("llama")
    asked.config.output_hidden_states = True
    for layer, hidden in record(plain, [0, LAYERS]).items():
        torch.testing.assert_close(record(asked, [0, LAYERS])[layer], hidden, rtol=0, atol=0)


def test_layers_resolve_and_keep_their_order() -> None:
    assert resolve_layers([-1, -2], 3) == (3, 2)
    assert resolve_layers([2, 0, -1], 3) == (2, 0, 3)
    assert resolve_layers([-4], 3) == (0,)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([4], "layer 4 does not exist"),
        ([0, -5], "layer -5 does not exist"),
        ([3, -1], r"layer -1 \(= 3\) is given twice"),
        ([1, 1], "given twice"),
        ([], "no layer was given"),
    ],
)
def test_layers_that_cannot_be_are_refused(layers: list[int], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        resolve_layers(layers, 3)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, GeneratorExit])
def test_hooks_are_removed_on_every_way_out(error: type[BaseException]) -> None:
    model = make_model("llama")
    with BlockHooks(model, [0, 1, 3], lambda layer, hidden: None):
        assert n_hooks(model) == 3
    assert n_hooks(model) == 0
    with pytest.raises(error), BlockHooks(model, [0, 1, 3], lambda layer, hidden: None):
        raise error
    assert n_hooks(model) == 0


def test_hooks_set_before_a_layer_that_fails_are_removed() -> None:
    model = make_model("llama")
    with pytest.raises(IndexError), BlockHooks(model, [1, 99], lambda layer, hidden: None):
        pass
    assert n_hooks(model) == 0


def test_a_receiver_that_raises_leaves_no_hook() -> None:
    model = make_model("llama")

    def receive(layer: int, hidden: Tensor) -> None:
        raise ValueError("full")

    with pytest.raises(ValueError, match="full"), BlockHooks(model, [1], receive):
        model(input_ids=torch.tensor([IDS]))
    assert n_hooks(model) == 0


class Block(nn.Module):
    """A block in the old style, which returns a tuple, or something else."""

    def __init__(self, inner: nn.Module, wrap: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.inner, self.wrap = inner, wrap

    def forward(self, hidden_states: Tensor, **kwargs: Any) -> Any:
        return self.wrap(self.inner(hidden_states, **kwargs))


class Unwrap(nn.Module):
    def __init__(self, block: Block) -> None:
        super().__init__()
        self.block = block

    def forward(self, hidden_states: Tensor, **kwargs: Any) -> Tensor:
        value: Tensor = self.block(hidden_states, **kwargs)[0]
        return value


def test_a_block_may_return_a_tuple() -> None:
    model = make_model("llama")
    clean = clean_states(model, IDS)
    stack = nn.Module()
    stack.config = model.config
    stack.layers = nn.ModuleList(Block(block, lambda h: (h, None)) for block in model.model.layers)
    model.model.layers = nn.ModuleList(Unwrap(block) for block in stack.layers)
    seen: dict[int, Tensor] = {}
    with torch.no_grad(), BlockHooks(stack, [0, 2, 3], seen.__setitem__):
        model(input_ids=torch.tensor([IDS]), use_cache=False)
    for layer, hidden in seen.items():
        assert relative_error(hidden[0].numpy(), clean[:, layer]) < 1e-6
    assert sorted(seen) == [0, 2, 3]


def test_a_block_that_returns_something_else_is_refused() -> None:
    stack = nn.Module()
    stack.config = make_model("llama").config
    blocks = [Block(nn.Identity(), lambda h: {"hidden": h}) for _ in range(LAYERS)]
    stack.layers = nn.ModuleList(blocks)
    with (
        pytest.raises(ModelError, match="returned dict, not a tensor"),
        BlockHooks(stack, [1], lambda layer, hidden: None),
    ):
        blocks[0](torch.zeros(1, 2, 3))


def test_a_model_without_a_list_of_blocks_is_refused() -> None:
    model = make_model("llama")
    model.config.num_hidden_layers = LAYERS + 1
    with pytest.raises(ModelError, match="no list of 4 decoder blocks"):
        decoder_blocks(model)


# The self-test ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SUPPORTED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_self_test_passes_and_leaves_nothing_behind(kind: str, dtype: torch.dtype) -> None:
    model = make_model(kind, dtype=dtype)
    self_test(model)
    assert n_hooks(model) == 0


@pytest.mark.parametrize("kind", SUPPORTED)
def test_the_last_state_gives_the_models_own_logits(kind: str) -> None:
    model = make_model(kind)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([IDS]), use_cache=False).logits
        own = unembed(model, record(model, [LAYERS])[LAYERS])
    assert float((own - logits).norm() / logits.norm()) < 1e-5


def test_a_perturbed_stream_is_refused() -> None:
    model = make_model("llama")
    # As in the fault this guards against: what the hook sees is nearly, but not, what the head reads.
    final_norm(model).register_forward_pre_hook(lambda _, args: (args[0] + 0.05 * args[0].roll(1, -1),))
    with pytest.raises(ModelError, match="does not reproduce the model's logits"):
        # The norm that `unembed` calls must be the plain one.
        _self_test_with_plain_norm(model)


def _self_test_with_plain_norm(model: Any) -> None:
    norm = final_norm(model)
    hooks = dict(norm._forward_pre_hooks)
    inner = model.model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        norm._forward_pre_hooks.update(hooks)
        try:
            return inner(*args, **kwargs)
        finally:
            norm._forward_pre_hooks.clear()

    model.model.forward = forward
    norm._forward_pre_hooks.clear()
    self_test(model)


def test_a_block_that_runs_twice_is_refused() -> None:
    model = make_model("llama")
    block = model.model.layers[1]

    class Twice(nn.Module):
        def forward(self, hidden_states: Tensor, **kwargs: Any) -> Tensor:
            block(hidden_states, **kwargs)
            value: Tensor = block(hidden_states, **kwargs)
            return value

    # The list of blocks keeps the inner one, so its hook fires twice.
    class Blocks(nn.ModuleList):
        def __iter__(self) -> Any:
            return iter([self[0], twice, self[2]])

        def __getitem__(self, place: Any) -> Any:
            if isinstance(place, slice):
                return [*self][place]
            return super().__getitem__(place)

    twice = Twice()
    model.model.layers = Blocks(list(model.model.layers))
    with pytest.raises(ModelError, match="layer 2 fired 2 times"):
        self_test(model)


def test_hidden_blocks_are_refused() -> None:
    model = make_model("llama")
    blocks = list(model.model.layers)
    model.model.layers = nn.ModuleList(nn.Identity() for _ in blocks)

    def forward(input_ids: Tensor, **kwargs: Any) -> Any:
        return type("Output", (), {"logits": torch.zeros(1, input_ids.shape[1], 264)})

    model.forward = forward
    with pytest.raises(ModelError, match="fired 0 times in one forward instead of once"):
        self_test(model)


def test_a_compiled_model_is_refused_or_its_hooks_fire() -> None:
    model = make_model("llama")
    compiled = torch.compile(model, backend="eager")
    ids = torch.arange(5, 13)[None]
    with torch.no_grad():
        compiled(input_ids=ids, use_cache=False)  # compiled without hooks: later ones are not looked for
    try:
        self_test(compiled)
    except ModelError:
        pass
    else:
        seen: dict[int, Tensor] = {}
        with torch.no_grad(), BlockHooks(compiled, [0, 3], seen.__setitem__):
            compiled(input_ids=ids, use_cache=False)
        assert sorted(seen) == [0, 3]
    finally:
        torch.compiler.reset()


def test_a_model_whose_states_cannot_be_verified_is_refused() -> None:
    with pytest.raises(ModelError, match="no final norm under a known name"):
        self_test(_without_norm())


def _without_norm() -> Any:
    model = make_model("llama")
    model.model.closing = model.model.norm
    inner = model.model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        model.model.norm = model.model.closing
        try:
            return inner(*args, **kwargs)
        finally:
            del model.model.norm

    model.model.forward = forward
    del model.model.norm
    return model
