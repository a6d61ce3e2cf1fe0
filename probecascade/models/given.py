"""Taking over a model that somebody has loaded already: of transformers, of TransformerLens, or inside nnsight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import nn

from probecascade.errors import ModelError
from probecascade.models import identity
from probecascade.models.catalogue import LENS, TRANSFORMERS, LoadedModel, ModelSource
from probecascade.models.hooks import check_readable
from probecascade.models.lens import mend_cache


@dataclass(frozen=True, slots=True)
class Unwrapped:
    """The transformers model inside a wrapper, with the wrapper's tokenizer and the bridge, where there are any."""

    model: Any
    tokenizer: Any
    bridge: Any = None

    @property
    def backend(self) -> str:
        """Which code computes its states."""
        return TRANSFORMERS if self.bridge is None else LENS


def unwrap(model: Any) -> Unwrapped:
    """The model to hook or drive: of a `TransformerBridge`, of nnsight's `LanguageModel`, or the model itself.

    A bridge's attention is made to find its cache (see `lens.mend_cache`); nothing else is changed. Raises ModelError
    for a bridge with processed weights, whose states are in other coordinates than the model's, and for weights that
    are not loaded yet.
    """
    inner = getattr(model, "original_model", None)
    if isinstance(inner, nn.Module) and hasattr(model, "hook_dict"):
        if getattr(model, "compatibility_mode", False):
            raise ModelError(
                "this TransformerBridge is in compatibility mode, where folded weights move the states: "
                "boot another one and leave that mode out."
            )
        mend_cache(inner)
        return Unwrapped(inner, getattr(model, "tokenizer", None), bridge=model)
    if isinstance(model, nn.Module):
        return Unwrapped(model, None)
    inner = getattr(model, "_model", None)  # nnsight
    if not isinstance(inner, nn.Module):
        return Unwrapped(model, None)
    if any(parameter.is_meta for parameter in inner.parameters()):
        raise ModelError("the weights of this model are not loaded yet: give dispatch=True where you wrap it.")
    return Unwrapped(inner, getattr(model, "tokenizer", None))


def adopt(model: Any, tokenizer: Any = None, *, name: str | None = None) -> LoadedModel:
    """A model that is loaded already, with the identity that runs record, as `load` gives it. No weight is copied.

    Args:
        model: a decoder-only model of transformers, a `TransformerBridge` (backend `transformer-lens`), or an
            nnsight `LanguageModel`; in eval mode.
        tokenizer: its tokenizer; by default the wrapper's own.
        name: what to record as the model's name; by default the folder or hub id that it was loaded from.

    Raises:
        ModelError: no such model, one in training mode, without a head, compiled or with a recurrent state, or no
            tokenizer.
    """
    found = unwrap(model)
    inner, tokenizer = found.model, tokenizer if tokenizer is not None else found.tokenizer
    if not isinstance(inner, nn.Module) or getattr(inner, "config", None) is None:
        raise ModelError(
            f"{type(model).__name__} is no loaded language model: give a decoder of transformers, a TransformerBridge, "
            "or an nnsight LanguageModel."
        )
    if tokenizer is None:
        raise ModelError(f"{type(model).__name__} comes without a tokenizer: give it as tokenizer=.")
    if inner.training:
        raise ModelError("this model is in training mode, where dropout blurs states: call model.eval().")
    check_readable(inner)
    head = getattr(inner, "get_output_embeddings", None)
    if head is not None and head() is None and not hasattr(inner, "lm_head"):
        raise ModelError(
            f"{type(inner).__name__} has no head and writes no text: give the whole model, such as one of "
            "AutoModelForCausalLM."
        )
    origin = str(getattr(inner.config, "_name_or_path", "") or "")
    is_folder = bool(origin) and Path(origin).is_dir()  # an empty path is the current folder
    known = name or (Path(origin).resolve().name if is_folder else origin) or type(inner).__name__
    return LoadedModel(
        model=inner,
        tokenizer=tokenizer,
        source=ModelSource(name=known, kind="given", path=Path(origin) if is_folder else None),
        identity=_identity(found, tokenizer, known),
        bridge=found.bridge,
    )


def _identity(found: Unwrapped, tokenizer: Any, name: str) -> Mapping[str, str | None]:
    return MappingProxyType(
        {
            "model": name,
            "revision": getattr(found.model.config, "_commit_hash", None),
            "tokenizer": identity.tokenizer_checksum(tokenizer),
            "chat_template": identity.template_checksum(getattr(tokenizer, "chat_template", None)),
            "weights": identity.memory_checksum(found.model),
            "dtype": identity.dtype_of(found.model),
            "backend": found.backend,
        }
    )
