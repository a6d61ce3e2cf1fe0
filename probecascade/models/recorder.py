"""What a hooked model was fed by a loop that is not ours, row by row, and the states that it gave.

A batch is kept as columns: ids (rows, columns) with the attention mask that tells ids from padding, on either
side. A state is found by the ids that lead up to it, never by an offset alone, so the state of another token, of
another conversation or of a token that was not fed yet cannot be taken for it.
"""

from __future__ import annotations

import contextlib
import inspect
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from probecascade.errors import ModelError
from probecascade.models.hooks import BlockHooks, check_readable, decoder_blocks, resolve_layers, self_test

States = Mapping[int, NDArray[np.float32]]

KEPT_COLUMNS = 1024
"""Columns whose states stay in memory besides those of the newest forward."""

NOTHING_RUN = "the model has run nothing yet"


@dataclass
class Chunk:
    """States of one forward that began at column `start`; per layer (rows, count, d_model), on its own device."""

    start: int
    count: int
    states: Mapping[int, Tensor]

    def read(self, row: int, column: int) -> States:
        """Each layer's state at one column, (d_model,), brought to the CPU layer by layer."""
        return {layer: hidden[row, column - self.start].float().cpu().numpy() for layer, hidden in self.states.items()}


@dataclass
class Track:
    """The ids that are in the model's cache (or were in its last forward), and the states kept of them.

    `prompt` counts the columns that a loop fed before it began to sample. `problem` says why nothing is known;
    `shifted` that padding moved the positions of some rows, whose states are then those of no clean forward.
    """

    ids: Tensor = field(default_factory=lambda: torch.zeros((0, 0), dtype=torch.long))
    mask: Tensor = field(default_factory=lambda: torch.zeros((0, 0), dtype=torch.bool))
    prompt: int = 0
    chunks: deque[Chunk] = field(default_factory=deque)
    cache: weakref.ref[Any] | None = None
    problem: str = NOTHING_RUN
    shifted: bool = False

    @property
    def columns(self) -> int:
        return int(self.ids.shape[1])

    def row_ids(self, row: int, columns: int | None = None) -> list[int]:
        """The row's ids without padding, of its first `columns` columns."""
        if row >= len(self.ids):
            return []
        kept: list[int] = self.ids[row, :columns][self.mask[row, :columns]].tolist()
        return kept

    def find(self, row: int, ids: Sequence[int]) -> States | None:
        """The states at the last of `ids`, if the row was fed exactly these ids first and they are still kept."""
        if not ids or row >= len(self.ids) or self.shifted:
            return None
        places = self.mask[row].nonzero()[: len(ids), 0]
        if len(places) < len(ids) or self.ids[row, places].tolist() != list(ids):
            return None
        column = int(places[-1])
        for chunk in self.chunks:
            if chunk.start <= column < chunk.start + chunk.count:
                return chunk.read(row, column)
        return None

    def holds(self, sequences: Tensor) -> bool:
        """Whether `sequences` (rows, columns) are what was fed, and at most one more column."""
        return (
            not self.problem
            and len(sequences) == len(self.ids)
            and self.columns <= sequences.shape[1] <= self.columns + 1
            and torch.equal(sequences[:, : self.columns], self.ids)
        )

    def full_mask(self, columns: int) -> Tensor:
        """(rows, columns): the mask, with ones for columns that were sampled since."""
        more = torch.ones((len(self.ids), columns - self.columns), dtype=torch.bool)
        return torch.cat([self.mask, more], dim=1)

    def truncate(self, columns: int) -> None:
        self.ids, self.mask = self.ids[:, :columns], self.mask[:, :columns]
        for chunk in self.chunks:
            chunk.count = min(chunk.count, columns - chunk.start)
        while self.chunks and self.chunks[-1].count <= 0:
            self.chunks.pop()

    def append(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        kept = sum(c.count for c in self.chunks) - chunk.count
        while len(self.chunks) > 1 and kept > KEPT_COLUMNS:
            kept -= self.chunks.popleft().count


@dataclass
class _Call:
    """One forward, as it was asked for."""

    ids: Tensor  # (rows, new columns)
    mask: Tensor  # (rows, all columns)
    past: int
    cache: Any
    shifted: bool


class Recorder:
    """Context manager: forward hooks that keep `track` up to date. They never raise into the model's forward.

    The constructor runs the hooks' self-test. Raises ModelError where hooks would be silent or dropout is on.
    """

    def __init__(self, model: Any, layers: Sequence[int]) -> None:
        config = getattr(model, "config", None)
        if not isinstance(model, torch.nn.Module) or config is None or config.is_encoder_decoder:
            raise ModelError(f"{type(model).__name__} cannot be hooked: give a decoder-only model from transformers.")
        check_readable(model)
        if model.training:
            raise ModelError("this model is in training mode, where dropout blurs states: call model.eval().")
        self.layers = resolve_layers(layers, len(decoder_blocks(model))) if layers else ()
        self_test(model)
        self.model: Any = model
        self.track = Track()
        self._signature = inspect.signature(model.forward)
        self._blocks = BlockHooks(model, self.layers, self._receive)
        self._handles: list[RemovableHandle] = []
        self._call: _Call | None = None
        self._arrived: dict[int, Tensor] = {}

    def __enter__(self) -> Recorder:
        self._blocks.__enter__()
        try:
            self._handles.append(self.model.register_forward_pre_hook(self._before, with_kwargs=True))
            self._handles.append(self.model.register_forward_hook(self._after))
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def remove(self) -> None:
        self._blocks.remove()
        while self._handles:
            self._handles.pop().remove()
        self.track = Track()

    # What the hooks see ------------------------------------------------------------------------------------------

    def _before(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._call = None
        self._arrived.clear()
        try:
            self._call = self._read_call(self._signature.bind_partial(*args, **kwargs).arguments)
        except Exception as error:  # a surprise in a hook must not stop the caller's forward
            self._forget(str(error))

    def _read_call(self, given: Mapping[str, Any]) -> _Call:
        given = {**given, **given.get("kwargs", {})}
        ids, cache = given.get("input_ids"), given.get("cache")
        if not isinstance(ids, Tensor) or ids.ndim != 2:
            raise ModelError("the model was run on embeddings, not on ids")
        past = int(cache.get_seq_length()) if cache is not None else 0
        mask = given.get("attention_mask")
        shape = (ids.shape[0], past + ids.shape[1])
        if mask is None:
            mask = torch.ones(shape, dtype=torch.bool)
        elif not isinstance(mask, Tensor) or tuple(mask.shape) != shape:
            raise ModelError(
                "the model was run with a ready-made attention mask, as for a static cache; use the dynamic one"
            )
        mask = mask.detach().cpu().bool()
        shifted = _shifted(mask, given.get("position_ids"), ids.shape[1])
        return _Call(ids.detach().cpu(), mask, past, cache, shifted)

    def _receive(self, layer: int, hidden: Tensor) -> None:
        # A copy, since a later block may write into the stream in place.
        self._arrived[layer] = hidden.detach().clone()

    def _after(self, module: Any, args: Any, output: Any) -> None:
        call, self._call = self._call, None
        if call is None:
            return
        states = dict(self._arrived)
        self._arrived.clear()
        missing = [layer for layer in self.layers if layer not in states]
        if missing:
            return self._forget(
                f"the hooks on layers {missing} gave nothing in a forward; a compiled model hides its blocks"
            )
        if any(tuple(h.shape[:2]) != tuple(call.ids.shape) for h in states.values()):
            return self._forget("the blocks gave states of another shape than the ids that were fed")
        try:
            self._extend(call, states, getattr(output, "cache", None))
        except Exception as error:  # as in `_before`
            self._forget(str(error))

    def _extend(self, call: _Call, states: Mapping[int, Tensor], returned: Any) -> None:
        track, cache = self.track, call.cache if call.cache is not None else returned
        count = call.ids.shape[1]
        continues = (
            call.past > 0
            and track.cache is not None
            and track.cache() is call.cache
            and call.past <= track.columns
            and len(call.ids) == len(track.ids)
        )
        if continues:
            track.truncate(call.past)
            track.ids = torch.cat([track.ids, call.ids], dim=1)
            track.prompt = track.prompt if count == 1 else track.columns
        elif call.past == 0:
            decoding = call.cache is None and _one_more(track, call.ids)
            self.track = track = Track(ids=call.ids, prompt=track.prompt if decoding else count, problem="")
        else:
            return self._forget("the model continued a cache that was filled elsewhere")
        track.mask = call.mask
        track.cache = weakref.ref(cache) if cache is not None else None
        track.shifted = track.shifted or call.shifted
        track.append(Chunk(call.past, count, states))

    def _forget(self, problem: str) -> None:
        self.track = Track(problem=problem)

    # What is fed on request --------------------------------------------------------------------------------------

    def extend(self, sequences: Tensor) -> bool:
        """Feed the columns of `sequences` (rows, columns) that the cache lacks, and leave the cache as it was.

        False, and nothing done, where there is no cache that can be continued and put back.
        """
        track, prompt = self.track, self.track.prompt
        cache = track.cache() if track.cache is not None else None
        new = sequences.shape[1] - track.columns
        if (
            cache is None
            or track.shifted
            or new < 1
            or not _restorable(cache)
            or cache.get_seq_length() != track.columns
        ):
            return False
        try:
            self._forward(sequences[:, -new:], track.full_mask(sequences.shape[1]), 1, cache=cache, use_cache=True)
        finally:
            grown = cache.get_seq_length() - (sequences.shape[1] - new)
            if grown > 0:
                cache.crop(-grown)
        self.track.prompt = prompt  # several columns at once look like a prompt, but nothing is sampled after them
        return self.track.columns == sequences.shape[1]

    def encode(self, ids: Sequence[int], n_logits: int = 1) -> tuple[States, Tensor]:
        """One forward over `ids` alone: states of the last one, and logits (n_logits, vocab) at the last `n_logits`.

        The track is left alone.

        Raises ModelError if the hooks gave nothing.
        """
        with self._aside():
            row = torch.tensor([list(ids)], dtype=torch.long)
            output = self._forward(row, torch.ones_like(row, dtype=torch.bool), n_logits, use_cache=False)
            states = self.track.find(0, ids)
            if states is None:
                raise ModelError(f"the states of a conversation cannot be read: {self.track.problem}.")
        logits: Tensor = output.logits[0, -n_logits:]
        return states, logits

    @contextlib.contextmanager
    def _aside(self) -> Iterator[None]:
        kept = self.track
        self.track = Track()
        try:
            yield
        finally:
            self.track = kept

    @torch.no_grad()
    def _forward(self, ids: Tensor, mask: Tensor, n_logits: int, **options: Any) -> Any:
        device = self.model.get_input_embeddings().weight.device
        if "position_ids" in self._signature.parameters:
            options["position_ids"] = _positions(mask)[:, -ids.shape[1] :].to(device)
        if "logits_to_keep" in self._signature.parameters:
            options["logits_to_keep"] = n_logits
        return self.model(input_ids=ids.to(device), attention_mask=mask.long().to(device), return_dict=True, **options)


def _positions(mask: Tensor) -> Tensor:
    """Position of every column, padding not counted. (rows, columns)"""
    return (mask.long().cumsum(-1) - 1).clamp_min(0)


def _shifted(mask: Tensor, given: Any, count: int) -> bool:
    """Whether padding moves the positions of the new columns: none were given, or they count it."""
    if bool(mask.all()):
        return False
    real, wanted = mask[:, -count:], _positions(mask)[:, -count:]
    if not isinstance(given, Tensor) or given.ndim != 2:
        return True
    return not torch.equal(given.detach().cpu().expand_as(wanted)[real], wanted[real])


def _one_more(track: Track, ids: Tensor) -> bool:
    """Whether a forward without a cache is the last one again with one sampled column more."""
    return len(ids) == len(track.ids) and ids.shape[1] == track.columns + 1 and torch.equal(ids[:, :-1], track.ids)


def _restorable(cache: Any) -> bool:
    """Whether columns can be taken off the cache again without loss."""
    return bool(getattr(cache, "is_croppable", False)) and not any(
        getattr(layer, "is_sliding", False) for layer in getattr(cache, "layers", ())
    )
