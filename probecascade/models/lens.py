"""TransformerLens as a second backend: the same model, its blocks run inside a `TransformerBridge`.

A bridge (TransformerLens 4) puts its own components, which fire hook points, in the place of a transformers model's
blocks, and computes attention anew inside them. The transformers model that holds those components is still a decoder
like any other, so the engine and the hook drive it as they drive any: layer 0 is what `blocks.0.hook_in` shows, layer
k what `blocks.{k-1}.hook_out` shows. It is the backend for those who patch or watch hook points while an agent plays;
it is slower, for the bridge knows nothing of slots and conversations run one after the other.

Nothing is taken on trust: `build_bridge` compares every layer with the plain model, and refuses the bridge where they
part.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from probecascade.errors import ModelError, UsageError
from probecascade.models.hooks import BlockHooks, check_readable, decoder_blocks, text_config
from probecascade.models.quiet import quiet_loading

AGREEMENT = 0.999
"""Cosine that a state of the bridge must exceed with the same state of the plain model, at every layer."""

_LENGTH = 24  # ids of the text on which they are compared


def build_bridge(model: Any, tokenizer: Any) -> Any:
    """A `TransformerBridge` around a copy of `model`, which shares its weights; `original_model` is what to drive.

    Model and tokenizer are left as they were. The bridge is in eager attention, on the model's device and in its
    dtype, and its weights are not processed.

    Raises ModelError where TransformerLens does not know the architecture, or a layer's states differ from the
    model's own (cosine of `AGREEMENT` or less at some token); UsageError where the extra `lens` is not installed.
    """
    check_readable(model)
    # Only the modules are copied: tensors that the copy meets are taken to be copied already.
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    own = copy.deepcopy(model, shared)
    name = type(model).__name__
    own.config.architectures = [name]
    with quiet_loading():
        bridge_class = _bridge_class()
        own.set_attn_implementation("eager")  # as in the bridge, so that rounding is no difference
        plain = layer_states(own)
        try:
            bridge = bridge_class.boot_transformers(
                f"local/{name}",
                hf_model=own,
                tokenizer=copy.deepcopy(tokenizer),
                device=str(next(model.parameters()).device),
                dtype=model.dtype,
            )
            mend_cache(bridge.original_model)
            bridged = layer_states(bridge.original_model)
        except Exception as error:  # a foreign architecture fails in any way
            reason = (str(error).strip().splitlines() or [""])[0][:120]
            raise ModelError(
                f"TransformerLens cannot run {name} in {model.dtype} ({type(error).__name__}: {reason}): "
                'use backend = "transformers".'
            ) from error
    check_agreement(plain, bridged, name)
    return bridge


def mend_cache(model: nn.Module) -> None:
    """Let the attention components of a bridged model find the cache of past keys; doing so twice changes nothing.

    Since transformers 5.24 at the latest the cache is called `cache`, while TransformerLens 4.3 looks for
    `past_key_values`: each sampled token would be computed without its past, in `bridge.generate` too.
    """
    for module in model.modules():
        update = getattr(module, "_update_kv_cache", None)
        if update is not None and "_update_kv_cache" not in vars(module):
            vars(module)["_update_kv_cache"] = functools.partial(_update_cache, update)


def _update_cache(update: Any, k: Tensor, v: Tensor, **kwargs: Any) -> Any:
    if kwargs.get("past_key_values") is None and kwargs.get("cache") is not None:
        kwargs["past_key_values"] = kwargs["cache"]
    return update(k, v, **kwargs)


def check_agreement(plain: Mapping[int, Tensor], bridged: Mapping[int, Tensor], name: str) -> None:
    """ModelError naming the first layer whose states (tokens, d_model) are not the same, up to `AGREEMENT`."""
    for layer, states in sorted(plain.items()):
        cosine = float(torch.cosine_similarity(states, bridged[layer], dim=-1).min())
        if not cosine > AGREEMENT:
            raise ModelError(
                f"layer {layer} of {name} is another under TransformerLens (cosine {cosine:.4f} with the plain model, "
                f'wanted more than {AGREEMENT}): use backend = "transformers".'
            )


@torch.inference_mode()
def layer_states(model: Any) -> dict[int, Tensor]:
    """Layer -> states (tokens, d_model) in float64 of one forward over a short made-up text."""
    ids = torch.arange(5, 5 + _LENGTH, device=next(model.parameters()).device)[None]
    states: dict[int, Tensor] = {}

    def keep(layer: int, hidden: Tensor) -> None:
        states[layer] = hidden[0].double()

    with BlockHooks(model, range(len(decoder_blocks(model)) + 1), keep):
        model(input_ids=ids % int(text_config(model).vocab_size), use_cache=False)
    return states


def _bridge_class() -> Any:
    try:
        from transformer_lens.model_bridge import TransformerBridge
    except ImportError as error:
        raise UsageError(
            "the backend 'transformer-lens' needs TransformerLens, which is not installed: "
            'pip install "probecascade[lens]".'
        ) from error
    return TransformerBridge
