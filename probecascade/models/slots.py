"""Many conversations in one cache: every live episode owns a slot, and a forward takes tokens of any of them.

The tokens of one forward are laid end to end in a single row, so a batch that mixes long prompts with single
decoded tokens wastes nothing on padding and no position can be wrong because of a neighbour. Each token knows
its slot and position; attention runs segment by segment against the slot's own keys. Works through the attention
interface of transformers, hence for every decoder that uses it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.cache_utils import Cache

from probecascade.errors import ModelError
from probecascade.models.hooks import text_config

ATTENTION = "probecascade_slots"


@dataclass(frozen=True)
class Segment:
    """`count` tokens of one slot at positions start.. in a forward, beginning at flat index `offset`."""

    slot: int
    start: int
    count: int
    offset: int

    @property
    def end(self) -> int:
        return self.start + self.count


class SlotCache(Cache):  # type: ignore[misc]
    """Keys and values of all slots: per layer (n_slots, kv_heads, capacity, head_dim), allocated once."""

    def __init__(self, n_slots: int, capacity: int) -> None:
        super().__init__(layers=[])
        self.n_slots = n_slots
        self.capacity = capacity
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        self.plan: Plan | None = None
        self._written = [0] * n_slots  # positions of each slot that may hold something

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0  # positions are always given; nothing may derive them from a shared length

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new keys (1, kv_heads, n, head_dim) into their slots; attention reads the slots itself."""
        assert self.plan is not None
        if layer_idx not in self.keys:
            self.keys[layer_idx] = self._allocate(key_states)
            self.values[layer_idx] = self._allocate(value_states)
        slots, positions = self.plan.indices(key_states.device)
        self.keys[layer_idx][slots, :, positions] = key_states[0].transpose(0, 1)
        self.values[layer_idx][slots, :, positions] = value_states[0].transpose(0, 1)
        return key_states, value_states

    def _allocate(self, like: Tensor) -> Tensor:
        shape = (self.n_slots, like.shape[1], self.capacity, like.shape[3])
        # Written once so that the pages are resident from the start and memory does not creep up later.
        return torch.full(shape, 0.0, dtype=like.dtype, device=like.device)

    def clear(self, slot: int) -> None:
        """Forget what a slot holds.

        Positions after a conversation's end are masked, but a mask does not undo NaN (0 * NaN is NaN): without this a
        conversation whose keys overflowed in half precision would spoil the next one in its slot.
        """
        for stored in (*self.keys.values(), *self.values.values()):
            stored[slot, :, : self._written[slot]] = 0.0
        self._written[slot] = 0

    def begin(self, plan: Plan | None) -> None:
        """The tokens of the coming forward (None: no forward)."""
        self.plan = plan
        for segment in plan.segments if plan is not None else ():
            self._written[segment.slot] = max(self._written[segment.slot], segment.end)

    def copy_out(self, slot: int, length: int) -> list[tuple[Tensor, Tensor]]:
        """The first `length` keys and values of a slot, per layer, as copies."""
        return [(self.keys[i][slot, :, :length].clone(), self.values[i][slot, :, :length].clone()) for i in self.keys]

    def copy_in(self, slot: int, saved: Sequence[tuple[Tensor, Tensor]]) -> None:
        for layer, (keys, values) in zip(self.keys, saved, strict=True):
            self.keys[layer][slot, :, : keys.shape[1]] = keys
            self.values[layer][slot, :, : values.shape[1]] = values


class Plan:
    """Which tokens of which slots one forward holds, with the masks and indices that all layers share."""

    def __init__(self, segments: Sequence[Segment], shared: int = 0) -> None:
        self.segments = tuple(segments)
        self.singles = tuple(s for s in segments if s.count == 1)
        self.runs = tuple(s for s in segments if s.count > 1)
        self.shared = shared  # tokens at the head of every single's slot that are the same in all of them
        self.n_tokens = sum(s.count for s in segments)
        self.attended: set[int] = set()  # layers that attended to their slots in this forward
        self._cache: dict[tuple[str, torch.device], Any] = {}

    def positions(self, device: torch.device) -> Tensor:
        return self.indices(device)[1][None]

    def indices(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """(slots, positions) of every token, each (n_tokens,)."""
        key = ("indices", device)
        if key not in self._cache:
            slots = [s.slot for s in self.segments for _ in range(s.count)]
            positions = [s.start + i for s in self.segments for i in range(s.count)]
            self._cache[key] = (torch.tensor(slots, device=device), torch.tensor(positions, device=device))
        result: tuple[Tensor, Tensor] = self._cache[key]
        return result

    def decode(self, device: torch.device) -> DecodePlan:
        key = ("decode", device)
        if key not in self._cache:
            self._cache[key] = DecodePlan(self.singles, self.shared, device)
        result: DecodePlan = self._cache[key]
        return result

    def causal(self, run: Segment, window: int | None, device: torch.device) -> Tensor:
        """(count, end) bool mask of one multi-token segment: a token sees itself and what precedes it."""
        key = (f"causal:{run.offset}:{window}", device)
        if key not in self._cache:
            mask = torch.ones(run.count, run.end, dtype=torch.bool, device=device).tril_(run.start)
            if window is not None:
                mask.triu_(run.start - window + 1)
            self._cache[key] = mask
        result: Tensor = self._cache[key]
        return result


class DecodePlan:
    """Single-token segments of one forward, attended together."""

    def __init__(self, singles: Sequence[Segment], shared: int, device: torch.device) -> None:
        slots = [s.slot for s in singles]
        first, last = min(slots), max(slots) + 1
        self.length = max(s.end for s in singles)
        self.shared = shared
        self.offsets = torch.tensor([s.offset for s in singles], device=device)
        ends = torch.tensor([s.end for s in singles], device=device)
        # A slice of neighbouring slots is a view; picking scattered slots copies their keys. Slots in between that
        # have nothing to decode are computed and dropped where that costs less than the copy.
        self.view: slice | None = (
            slice(first, last) if len(slots) * 1.5 >= last - first and device.type == "cpu" else None
        )
        self.slots = torch.tensor(slots, device=device)
        if self.view is not None:
            self.rows = self.slots - first
            full = torch.ones(last - first, dtype=ends.dtype, device=device)
            full[self.rows] = ends
            ends = full
        self.mask = torch.arange(self.length, device=device)[None] < ends[:, None]  # (rows, length)

    def windowed(self, window: int | None) -> Tensor:
        if window is None:
            return self.mask
        ends = self.mask.sum(-1, keepdim=True)
        return self.mask & (torch.arange(self.length, device=self.mask.device)[None] >= ends - window)

    def pick(self, stored: Tensor, start: int) -> Tensor:
        """Keys or values of the rows from position `start` on, (rows, kv_heads, length - start, head_dim)."""
        part = stored[:, :, start : self.length]
        return part[self.view] if self.view is not None else part.index_select(0, self.slots)

    def spread(self, query: Tensor) -> Tensor:
        """Queries of the singles (n, heads, head_dim) laid out as the rows of `pick`."""
        if self.view is None:
            return query
        rows = query.new_zeros(self.view.stop - self.view.start, *query.shape[1:])
        rows[self.rows] = query
        return rows

    def gather(self, output: Tensor) -> Tensor:
        return output if self.view is None else output[self.rows]


_ACTIVE: ContextVar[tuple[SlotCache, Plan] | None] = ContextVar("probecascade_slots", default=None)


def _grouped_scores_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    plan: DecodePlan,
    head: tuple[Tensor, Tensor],
    scaling: float,
    window: int | None,
) -> Tensor:
    """Attention of single tokens with the shared head's keys read once for all rows. (rows, heads, dim) in and out.

    Reading every slot's own copy of a long shared prompt is what makes batched decoding slow on a CPU; one matrix
    product of all rows with the one shared copy gives the same scores.
    """
    rows, heads, dim = query.shape
    kv_heads, shared = head[0].shape[0], head[0].shape[1]
    group = heads // kv_heads
    # Scores in float32 also for a half-precision model: rounded to bfloat16 they would be off by percents.
    q = (query.float() * scaling).view(rows, kv_heads, group, dim)
    by_head = q.transpose(0, 1).reshape(kv_heads, rows * group, dim)
    scores = torch.empty(rows, kv_heads, group, plan.length, dtype=torch.float32, device=query.device)
    first = torch.bmm(by_head, head[0].float().transpose(1, 2))
    scores[..., :shared] = first.view(kv_heads, rows, group, shared).transpose(0, 1)
    scores[..., shared:] = torch.matmul(q, keys.float().transpose(2, 3))
    scores.masked_fill_(~plan.windowed(window)[:, None, None], float("-inf"))
    weights = torch.softmax(scores, dim=-1).to(query.dtype)
    first = weights[..., :shared].transpose(0, 1).reshape(kv_heads, rows * group, shared)
    out = torch.bmm(first, head[1]).view(kv_heads, rows, group, dim).transpose(0, 1)
    out = out + torch.matmul(weights[..., shared:], values)
    return out.reshape(rows, heads, dim)


def _dot_product_attention(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float, cap: float | None
) -> Tensor:
    """(rows, heads, n, dim) over keys (rows, kv_heads, length, dim); scores softly capped as in Gemma 2 if `cap`."""
    if cap is None:
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale, enable_gqa=True)
    group = query.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
    scores = torch.tanh(torch.matmul(query, keys.transpose(2, 3)) * (scale / cap)) * cap
    weights = torch.softmax(scores.float().masked_fill_(~mask, float("-inf")), dim=-1)
    return torch.matmul(weights.to(query.dtype), values)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention function in the form that transformers calls: query (1, heads, n, dim) -> (1, n, heads, dim)."""
    active = _ACTIVE.get()
    assert active is not None, "slot attention outside a slot forward"
    if kwargs.get("s_aux") is not None or kwargs.get("position_bias") is not None:
        raise ModelError(f"{type(module).__name__} uses attention sinks or position biases, which slots do not hold.")
    cap: float | None = kwargs.get("softcap")
    cache, plan = active
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    plan.attended.add(layer)
    keys, values = cache.keys[layer], cache.values[layer]
    _, heads, n, dim = query.shape
    scale = dim**-0.5 if scaling is None else scaling
    out = torch.empty(n, heads, values.shape[-1], dtype=query.dtype, device=query.device)
    if plan.singles:
        decode = plan.decode(query.device)
        rows = decode.spread(query[0, :, decode.offsets].transpose(0, 1))
        shared = decode.shared if sliding_window is None and cap is None else 0
        k, v = decode.pick(keys, shared), decode.pick(values, shared)
        if shared:
            slot = plan.singles[0].slot
            head = keys[slot, :, :shared], values[slot, :, :shared]
            result = _grouped_scores_attention(rows, k, v, decode, head, scale, sliding_window)
        else:
            mask = decode.windowed(sliding_window)[:, None, None]
            result = _dot_product_attention(rows[:, :, None], k, v, mask, scale, cap)[:, :, 0]
        out[decode.offsets] = decode.gather(result)
    for run in plan.runs:
        q = query[:, :, run.offset : run.offset + run.count]
        k, v = keys[run.slot : run.slot + 1, :, : run.end], values[run.slot : run.slot + 1, :, : run.end]
        mask = plan.causal(run, sliding_window, query.device)
        result = _dot_product_attention(q, k, v, mask, scale, cap)
        out[run.offset : run.offset + run.count] = result[0].transpose(0, 1)
    return out[None], None


AttentionInterface.register(ATTENTION, _attend)


@contextlib.contextmanager
def slot_attention(model: Any, cache: SlotCache, plan: Plan) -> Iterator[None]:
    """For the time of one forward the model attends through its slots; its own attention is put back afterwards."""
    config = text_config(model)
    before = config._attn_implementation
    token = _ACTIVE.set((cache, plan))
    cache.begin(plan)
    config._attn_implementation = ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = before
        cache.begin(None)
        _ACTIVE.reset(token)
