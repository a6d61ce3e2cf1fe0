"""Reading the residual stream of a decoder by hooks on its blocks.

Layer 0 is the embedding output (what enters the first block), layer k the output of block k, *before* the
final norm; negatives count from the last block. `output_hidden_states` is never used: its last entry is
normed in some models and not in others, and it can be switched off from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from probecascade.errors import ModelError

Receive = Callable[[int, Tensor], None]


def check_readable(model: Any) -> None:
    """ModelError for what cannot be read block by block: a wrapper, a compiled model, one with a recurrent state."""
    if not isinstance(model, nn.Module) or hasattr(model, "original_model"):
        raise ModelError(
            f"{type(model).__name__} is no model of transformers: if it holds one (TransformerBridge, nnsight), "
            "open it with probecascade.models.adopt."
        )
    if hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None) is not None:
        raise ModelError("this model is compiled, which hides its blocks from hooks: give the plain model.")
    if getattr(model, "_is_stateful", False):
        raise ModelError(
            f"{type(model).__name__} keeps a recurrent state, which cannot be taken back to an earlier token: "
            "give a decoder that only attends."
        )


def text_config(model: Any) -> Any:
    """The configuration of the model's decoder: its own, or the text part of a model that also sees or hears."""
    config = model.config
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _decoder(model: Any) -> nn.Module:
    """The model without its head, and without encoders of pictures or sound."""
    found = model.get_decoder() if hasattr(model, "get_decoder") else None
    return found if isinstance(found, nn.Module) else model


def decoder_blocks(model: nn.Module) -> nn.ModuleList:
    """The decoder's blocks in order, whatever the architecture calls them.

    Raises ModelError where no module list has as many entries as the configuration has layers.
    """
    wanted = int(text_config(model).num_hidden_layers)
    for _, module in _decoder(model).named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == wanted:
            return module
    raise ModelError(
        f"{type(model).__name__} has no list of {wanted} decoder blocks to hook; "
        "give a decoder-only model from transformers whose layers are modules."
    )


def resolve_layers(layers: Sequence[int], n_layers: int) -> tuple[int, ...]:
    """Layers as non-negative numbers, in the order given; negatives count from the last block.

    >>> resolve_layers([0, -1], 30)
    (0, 30)

    Raises ModelError for a layer out of range or named twice (-1 and `n_layers` are the same one).
    """
    resolved: list[int] = []
    for layer in layers:
        index = layer + n_layers + 1 if layer < 0 else layer
        if not 0 <= index <= n_layers:
            raise ModelError(
                f"layer {layer} does not exist: this model has layers 0 (embedding output) to {n_layers}, "
                f"or -1 (the last) to {-n_layers - 1}; choose among these."
            )
        if index in resolved:
            raise ModelError(f"layer {layer} (= {index}) is given twice; name each layer once.")
        resolved.append(index)
    if not resolved:
        raise ModelError("no layer was given; name at least one.")
    return tuple(resolved)


def _first_tensor(output: Any) -> Tensor:
    value = output[0] if isinstance(output, tuple) else output
    if not isinstance(value, Tensor):
        raise ModelError(
            f"a decoder block returned {type(value).__name__}, not a tensor or a tuple that starts with one."
        )
    return value


class BlockHooks:
    """Context manager that hands each asked layer's states to `receive(layer, hidden)`, (batch, tokens, d_model).

    The hooks are removed on every way out: normal, exception, KeyboardInterrupt.
    """

    def __init__(self, model: nn.Module, layers: Sequence[int], receive: Receive) -> None:
        self.model = model
        self.layers = tuple(layers)
        self.receive = receive
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> BlockHooks:
        blocks = decoder_blocks(self.model)
        try:
            for layer in self.layers:
                if layer == 0:
                    self._handles.append(blocks[0].register_forward_pre_hook(self._embedding, with_kwargs=True))
                else:
                    self._handles.append(blocks[layer - 1].register_forward_hook(self._block(layer)))
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def remove(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    def _embedding(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.receive(0, _first_tensor(args[0] if args else kwargs["hidden_states"]))

    def _block(self, layer: int) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            self.receive(layer, _first_tensor(output))

        return hook


def unembed(model: nn.Module, hidden: Tensor) -> Tensor:
    """Logits from last-block states: the model's own final norm, head, scale and soft cap.

    (..., d_model) -> (..., vocab). Raises ModelError where there is no final norm under a known name.
    """
    inner = _decoder(model)
    for name in ("norm", "ln_f", "final_layer_norm", "final_layernorm", "final_norm"):
        norm = getattr(inner, name, None)
        if isinstance(norm, nn.Module):
            break
    else:
        raise ModelError(
            f"{type(model).__name__} has no final norm under a known name, so its states cannot be verified."
        )
    head = model.get_output_embeddings()  # type: ignore[operator]
    logits: Tensor = head(norm(hidden))
    config = text_config(model)
    if getattr(config, "logits_scaling", None):  # Granite divides
        logits = logits / config.logits_scaling
    if getattr(config, "logit_scale", None):  # Cohere multiplies
        logits = logits * config.logit_scale
    cap = getattr(config, "final_logit_softcapping", None)
    return torch.tanh(logits / cap) * cap if cap else logits


@torch.no_grad()
def self_test(model: nn.Module) -> None:
    """One plain forward that proves the hooks: each fires exactly once, and the last layer's state gives the logits.

    Raises ModelError. Run at start, so that a silently ignored hook (a compiled model, a renamed block) never
    fills a store with nothing, and a perturbed state is never taken for the real one.
    """
    n_layers = len(decoder_blocks(model))
    fired: dict[int, list[Tensor]] = {}
    ids = torch.arange(5, 13, device=next(model.parameters()).device)[None] % int(text_config(model).vocab_size)
    with BlockHooks(model, range(n_layers + 1), lambda layer, h: fired.setdefault(layer, []).append(h)):
        logits: Tensor = model(input_ids=ids, use_cache=False).logits
    for layer in range(n_layers + 1):
        count = len(fired.get(layer, []))
        if count != 1:
            raise ModelError(
                f"the hook on layer {layer} fired {count} times in one forward instead of once; "
                "a compiled or wrapped model hides its blocks: give the plain one."
            )
    own = unembed(model, fired[n_layers][0]).float()
    tolerance = 1e-4 if logits.dtype == torch.float32 else 5e-2
    error = float((own - logits.float()).norm() / logits.float().norm().clamp_min(1e-12))
    if not error <= tolerance:
        raise ModelError(
            f"the last layer's state does not reproduce the model's logits (relative error {error:.2g}, "
            f"allowed {tolerance:g}); this architecture changes the stream after its last block and is not supported."
        )
