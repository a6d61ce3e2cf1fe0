"""One cache of transformers per slot, for decoders that do not attend through the attention interface.

Such a model (ALiBi, attention sinks, a bridge of TransformerLens) cannot be told that the tokens of one row belong to
several conversations, so a forward holds tokens of one conversation only. That is slower and otherwise the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from probecascade.errors import ModelError
from probecascade.models.slots import Segment


class ApartCache:
    """The pasts of all slots. Whole keys are kept in every layer, so that a sliding window can be taken back too."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._taken = inspect.signature(model.forward).parameters
        self._caches: dict[int, Any] = {}

    def clear(self, slot: int) -> None:
        """Forget what a slot holds."""
        self._caches.pop(slot, None)

    def copy_out(self, slot: int, length: int) -> list[tuple[Tensor, Tensor]]:
        """The first `length` keys and values of a slot, per layer, as copies."""
        layers = self._caches[slot].layers
        return [(layer.keys[:, :, :length].clone(), layer.values[:, :, :length].clone()) for layer in layers]

    def copy_in(self, slot: int, saved: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Make copies of `saved` all that a slot holds."""
        cache = DynamicCache()
        for layer, (keys, values) in enumerate(saved):
            cache.update(keys.clone(), values.clone(), layer)
        self._caches[slot] = cache

    def forward(self, ids: list[int], segment: Segment, ends: Sequence[int], device: torch.device) -> Tensor:
        """Run `ids`, one segment, after its slot's past. Logits (len(ends), vocab) at the offsets `ends`.

        Raises ModelError where the model did not write its past into the cache that it was given.
        """
        cache = self._caches.setdefault(segment.slot, DynamicCache())
        surplus = cache.get_seq_length() - segment.start
        if surplus > 0:
            cache.crop(-surplus)
        elif surplus < 0:
            raise ModelError(f"{type(self.model).__name__} ran {segment.start} ids and its cache holds fewer.")
        options: dict[str, Any] = {"cache": cache, "use_cache": True}
        if "position_ids" in self._taken:
            options["position_ids"] = torch.arange(segment.start, segment.end, device=device)[None]
        if "logits_to_keep" in self._taken:
            options["logits_to_keep"] = torch.tensor(ends or [0], device=device)
        output = self.model(input_ids=torch.tensor([ids], device=device), **options)
        logits: Tensor = output.logits[0]
        return logits if "logits_to_keep" in self._taken else logits[list(ends)]
