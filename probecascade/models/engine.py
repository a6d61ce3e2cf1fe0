"""The batched engine: drives many conversations at once over the slots of one cache.

A conversation is a generator that yields requests and receives replies:

- `Feed(ids, keep)` puts ids into the conversation and replies with the states at the offsets `keep` (and, where
  asked, with the log-probabilities of fed ids);
- `Sample(...)` draws a turn token by token and replies with a `Turn`; the turn's last token is fed too, so that
  its state exists before any tool is called, and no random number is drawn for it;
- `Rewind(length)` forgets everything after `length` ids, which makes side questions leave no trace.

What the generator returns is what `Engine.run` yields. Each slot keeps its keys between requests (only new ids are
encoded), a head that many conversations share is encoded once, and a finished conversation's slot is refilled at once.
Conversations share their forwards where the model attends through the attention interface of transformers; any other
decoder with a cache that can be taken back is run one conversation after the other.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probecascade.errors import ModelError
from probecascade.models.apart import ApartCache
from probecascade.models.hooks import (
    BlockHooks,
    check_readable,
    decoder_blocks,
    resolve_layers,
    self_test,
    text_config,
)
from probecascade.models.requests import Conversation, Fed, Feed, Request, Rewind, Sample, States, T, Turn
from probecascade.models.sampling import Draw, draw_tokens, score_tokens
from probecascade.models.slots import Plan, Segment, SlotCache, slot_attention

KEPT_HEADS = 4
"""Shared heads (few-shot prompts) whose keys stay in memory; least recently used ones go first."""


@dataclass
class _Slot:
    """One live conversation and where it stands."""

    index: int
    conversation: Conversation[Any]
    length: int = 0  # ids whose keys are in the cache
    pending: list[int] = field(default_factory=list)  # ids to feed next
    request: Request | None = None
    logits: Tensor | None = None  # of the last fed id, until the next id
    kept: list[NDArray[np.float32]] = field(default_factory=list)
    scored: list[NDArray[np.float64]] = field(default_factory=list)  # (n, 2): log-probability and entropy of fed ids
    draws: list[Draw] = field(default_factory=list)
    keep_count: int | None = None  # a sample that has ended keeps this many ids and waits for the last one's state
    hit_limit: bool = False
    shared: tuple[int, ...] = ()
    seconds: float = 0.0
    done: bool = False
    result: Any = None

    @property
    def ids(self) -> list[int]:
        return [d.id for d in self.draws]


class Engine:
    """A local causal language model that drives conversations over `slots` slots of `capacity` ids each.

    `layers` are the layers whose states are kept, in the order of the states' second axis. Constructing it runs
    the hooks' self-test and compares a forward through the slots with a plain one. `batched` says whether conversations
    share forwards. Raises ModelError for layers out of range or a model that the engine cannot drive: compiled, with a
    recurrent state (Mamba), or with a cache that gives other logits than the whole text.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        layers: Sequence[int] = (),
        slots: int = 32,
        capacity: int = 2048,
        max_batch_tokens: int = 2048,
    ) -> None:
        check_readable(model)
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.n_layers = len(decoder_blocks(model))
        config = text_config(model)
        self.d_model = int(config.hidden_size)
        self.layers = resolve_layers(layers, self.n_layers) if layers else ()
        self.slots = slots
        limit = getattr(config, "max_position_embeddings", None)
        self.capacity = min(capacity, int(limit)) if limit else capacity
        self.max_batch_tokens = max_batch_tokens
        self.device = next(model.parameters()).device
        self.tokens_computed = 0
        self._cache: SlotCache | ApartCache = SlotCache(slots, self.capacity)
        self._heads: OrderedDict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = OrderedDict()
        self._captured: dict[int, Tensor] = {}
        self._keep_index: Tensor | None = None
        self_test(model)
        self._prove_cache()
        self._running = False

    def encode(self, text: str, *, plain: bool = False) -> list[int]:
        """Ids of a piece of text, none added around it; with `plain`, special tokens in it are mere characters."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False, split_special_tokens=plain).input_ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens included, spaces as they are."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def run(self, conversations: Iterable[Conversation[T]]) -> Iterator[T]:
        """Drive the conversations, `slots` of them at a time, and yield their results as they finish.

        On any exit, live generators are closed and every hook is removed. Raises ModelError when the results of an
        earlier `run` are still being read, since both would write into the same slots.
        """
        if self._running:
            raise ModelError(
                "this engine is running already; read or close the earlier run first, or make a second engine."
            )
        self._running = True
        queue = iter(conversations)
        free = sorted(range(self.slots), reverse=True)
        live: dict[int, _Slot] = {}
        try:
            with BlockHooks(self.model, self.layers, self._receive):
                while True:
                    while free and (conversation := next(queue, None)) is not None:
                        slot = _Slot(free.pop(), conversation)
                        live[slot.index] = slot
                        self._admit(slot)
                    if not live:
                        return
                    self._tick([live[i] for i in sorted(live)])
                    for slot in [s for s in live.values() if s.done]:
                        del live[slot.index]
                        free.append(slot.index)
                        yield slot.result
        finally:
            self._running = False
            for slot in live.values():
                slot.conversation.close()

    @property
    def batched(self) -> bool:
        """Whether a forward takes tokens of several conversations at once."""
        return isinstance(self._cache, SlotCache)

    @torch.inference_mode()
    def _prove_cache(self) -> None:
        """Choose the cache: slots if the model attends to them, else one for each conversation.

        A short text in two ways of feeding must give the logits of a plain forward. A model driven without its past
        would give plausible nonsense.
        """
        ids = [i % int(text_config(self.model).vocab_size) for i in range(5, 12)]
        own: Tensor = self.model(input_ids=torch.tensor([ids], device=self.device), use_cache=False).logits[0, 3:]
        problem = self._trial(ids, own)
        if problem:
            self._cache = ApartCache(self.model)
            problem = self._trial(ids, own)
        if problem:
            raise ModelError(
                f"{type(self.model).__name__} cannot be driven with a cache ({problem}); "
                "give a decoder whose cache transformers can keep and crop."
            )
        self._cache.clear(0)
        self.tokens_computed = 0

    def _trial(self, ids: list[int], own: Tensor) -> str:
        """Why the cache does not hold the model's past, given its own logits after the fourth id on; else empty."""
        plan = Plan([Segment(0, 0, 4, 0)])
        try:
            rows = [self._run_model(ids[:4], plan, [3])]
            if self.batched and plan.attended != set(range(self.n_layers)):
                return "it does not attend through the attention interface of transformers"
            rows += [self._run_model([ids[p]], Plan([Segment(0, p, 1, 0)]), [0]) for p in range(4, len(ids))]
        except Exception as error:  # a foreign model may fail in any way
            return f"{type(error).__name__}: {error}"
        gap = float((torch.cat(rows).float() - own.float()).norm() / own.float().norm().clamp_min(1e-12))
        tolerance = 1e-4 if own.dtype == torch.float32 else 5e-2
        return "" if gap <= tolerance else f"relative error of its logits {gap:.2g}, allowed {tolerance:g}"

    # One turn of the wheel ---------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _tick(self, live: list[_Slot]) -> None:
        started = time.perf_counter()
        self._sample([s for s in live if isinstance(s.request, Sample) and not s.pending])
        feeding: list[tuple[_Slot, list[int]]] = []
        room = self.max_batch_tokens
        # Single decoded tokens first, then the shortest prompts: a long prompt never holds up the others.
        for slot in sorted((s for s in live if s.pending), key=lambda s: len(s.pending)):
            if room <= 0:
                break
            feeding.append((slot, slot.pending[:room]))
            room -= len(feeding[-1][1])
        if not feeding:
            return
        feeding.sort(key=lambda pair: pair[0].index)
        for together in [feeding] if self.batched else [[pair] for pair in feeding]:
            self._feed(together)
        spent = time.perf_counter() - started
        total = sum(len(chunk) for _, chunk in feeding)
        for slot, chunk in feeding:
            slot.seconds += spent * len(chunk) / total
        for slot, _ in feeding:
            if not slot.pending:
                self._complete(slot)

    def _sample(self, slots: list[_Slot]) -> None:
        """Draw the next id of each slot; a turn that ends keeps what its stop function says and is rewound to it."""
        if not slots:
            return
        requests = [s.request for s in slots if isinstance(s.request, Sample)]
        draws = draw_tokens(
            torch.stack([s.logits for s in slots if s.logits is not None]),
            [r.temperature for r in requests],
            [r.top_p for r in requests],
            [r.rng.random() if r.rng is not None and r.temperature > 0 else 0.0 for r in requests],
            [r.allowed(list(s.ids)) if r.allowed is not None else None for s, r in zip(slots, requests, strict=True)],
        )
        for slot, request, draw in zip(slots, requests, draws, strict=True):
            slot.draws.append(draw)
            slot.logits = None
            keep = request.stop(slot.ids)
            if keep is None and len(slot.draws) >= request.max_tokens:
                keep, slot.hit_limit = len(slot.draws), True
            slot.keep_count = keep
            if keep is None or keep >= len(slot.draws):
                slot.pending = [draw.id]
            else:
                slot.length -= len(slot.draws) - 1 - keep
                self._complete(slot)

    def _feed(self, feeding: list[tuple[_Slot, list[int]]]) -> None:
        """One forward over the chunks of several slots; stores kept states and the logits after each chunk."""
        segments, offset = [], 0
        for slot, chunk in feeding:
            segments.append(Segment(slot.index, slot.length, len(chunk), offset))
            offset += len(chunk)
        keep, owners = self._wanted(feeding, segments)
        ends = [i for i, (slot, chunk) in enumerate(feeding) if self._needs_logits(slot, chunk)]
        rows, ids, scored = self._asked_scores(feeding, segments)
        logits = self._forward(
            [i for _, chunk in feeding for i in chunk],
            segments,
            keep,
            [segments[i].offset + segments[i].count - 1 for i in ends] + rows,
            shared=self._shared_length([slot for slot, chunk in feeding if len(chunk) == 1]),
        )
        states = self._states(len(keep))
        for row, owner in enumerate(owners):
            owner.kept.append(states[row])
        for slot, chunk in feeding:
            slot.length += len(chunk)
            del slot.pending[: len(chunk)]
            slot.logits = None
        for row, i in enumerate(ends):
            feeding[i][0].logits = logits[row].clone() if rows else logits[row]  # a view would keep all rows alive
        if rows:
            for slot, pair in zip(scored, score_tokens(logits[len(ends) :], ids), strict=True):
                slot.scored.append(pair)

    def _forward(
        self, ids: list[int], segments: list[Segment], keep: list[int], ends: list[int], shared: int
    ) -> Tensor:
        """Logits (len(ends), vocab) at the flat indices `ends`; states at `keep` go to `self._captured`."""
        self._keep_index = torch.tensor(keep, device=self.device) if keep else None
        self._captured.clear()
        try:
            logits = self._run_model(ids, Plan(segments, shared), ends)
        finally:
            self._keep_index = None  # the hooks stay on between results, when the caller may use the model too
        self.tokens_computed += len(ids)
        if keep and set(self._captured) != set(self.layers):
            missing = sorted(set(self.layers) - set(self._captured))
            raise ModelError(
                f"the hooks on layers {missing} gave nothing in a forward; "
                "a compiled model hides its blocks: give the plain one."
            )
        return logits

    def _run_model(self, ids: list[int], plan: Plan, ends: list[int]) -> Tensor:
        """Logits (len(ends), vocab) at the flat indices `ends`."""
        if isinstance(self._cache, ApartCache):
            (segment,) = plan.segments
            return self._cache.forward(ids, segment, ends, self.device)
        with slot_attention(self.model, self._cache, plan):
            output = self.model(
                input_ids=torch.tensor([ids], device=self.device),
                position_ids=plan.positions(self.device),
                cache=self._cache,
                use_cache=True,
                logits_to_keep=torch.tensor(ends or [0], device=self.device),
            )
        logits: Tensor = output.logits[0]
        return logits

    def _receive(self, layer: int, hidden: Tensor) -> None:
        if self._keep_index is not None:
            self._captured[layer] = hidden[0].index_select(0, self._keep_index.to(hidden.device))

    def _states(self, n: int) -> States:
        if not n or not self.layers:
            return np.zeros((n, len(self.layers), self.d_model), np.float32)
        stacked = torch.stack([self._captured[layer].to(self.device) for layer in self.layers], dim=1)
        states: States = stacked.float().cpu().numpy()
        return states

    def _wanted(self, feeding: list[tuple[_Slot, list[int]]], segments: list[Segment]) -> tuple[list[int], list[_Slot]]:
        """Flat indices whose states may be asked for, and the slots that they belong to, in order."""
        keep: list[int] = []
        owners: list[_Slot] = []
        if not self.layers:
            return keep, owners
        for (slot, chunk), segment in zip(feeding, segments, strict=True):
            if isinstance(slot.request, Sample):
                offsets = [0]
            else:
                assert isinstance(slot.request, Feed)
                done = len(slot.request.ids) - len(slot.pending)
                offsets = [o - done for o in slot.request.keep if done <= o < done + len(chunk)]
            keep += [segment.offset + o for o in offsets]
            owners += [slot] * len(offsets)
        return keep, owners

    @staticmethod
    def _asked_scores(
        feeding: list[tuple[_Slot, list[int]]], segments: list[Segment]
    ) -> tuple[list[int], list[int], list[_Slot]]:
        """Flat indices whose logits tell the probability of an asked id, those ids, and their slots, in order."""
        rows: list[int] = []
        ids: list[int] = []
        owners: list[_Slot] = []
        for (slot, chunk), segment in zip(feeding, segments, strict=True):
            if isinstance(slot.request, Feed) and slot.request.score:
                done = len(slot.request.ids) - len(slot.pending)
                asked = [o for o in slot.request.score if done < o <= done + len(chunk)]
                rows += [segment.offset + o - 1 - done for o in asked]
                ids += [slot.request.ids[o] for o in asked]
                owners += [slot] * len(asked)
        return rows, ids, owners

    @staticmethod
    def _needs_logits(slot: _Slot, chunk: list[int]) -> bool:
        ended = slot.keep_count is not None and isinstance(slot.request, Sample) and not slot.request.resume
        return len(chunk) == len(slot.pending) and not ended

    @staticmethod
    def _shared_length(singles: list[_Slot]) -> int:
        """How many first ids all these slots have in common by construction (their shared heads)."""
        heads = {slot.shared for slot in singles}
        return len(next(iter(heads))) if len(heads) == 1 else 0

    # Requests ----------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _admit(self, slot: _Slot) -> None:
        """Start a conversation; its shared head is copied from the one encoding of it, or encoded now."""
        self._cache.clear(slot.index)
        self._advance(slot, None)
        request = slot.request
        if not isinstance(request, Feed):
            return
        shared = min(request.shared, len(request.ids) - 1)
        if shared <= 0 or any(o < shared for o in request.keep) or any(o <= shared for o in request.score):
            return
        head = tuple(request.ids[:shared])
        if head in self._heads:
            self._heads.move_to_end(head)
            self._cache.copy_in(slot.index, self._heads[head])
        else:
            for start in range(0, shared, self.max_batch_tokens):
                part = list(head[start : start + self.max_batch_tokens])
                self._forward(part, [Segment(slot.index, start, len(part), 0)], [], [], 0)
            self._heads[head] = self._cache.copy_out(slot.index, shared)
            while len(self._heads) > KEPT_HEADS:
                self._heads.popitem(last=False)
        slot.shared, slot.length, slot.pending = head, shared, list(request.ids[shared:])

    def _complete(self, slot: _Slot) -> None:
        """The ids that the request wanted in the cache are there: reply, unless a turn is still being drawn."""
        if slot.kept:
            states = np.stack(slot.kept)
        else:  # nothing was asked for, or no layer is kept: then one empty state for each id
            asked = len(slot.request.keep) if isinstance(slot.request, Feed) else len(slot.draws)
            states = np.zeros((0 if self.layers else asked, len(self.layers), self.d_model), np.float32)
        if isinstance(slot.request, Feed):
            scored = np.array(slot.scored).reshape(-1, 2)
            self._advance(slot, Fed(states, slot.seconds, scored[:, 0], scored[:, 1], self._following(slot)))
        elif slot.keep_count is not None:
            kept = slot.draws[: slot.keep_count]
            self._advance(
                slot,
                Turn(
                    ids=[d.id for d in kept],
                    logprobs=np.array([d.logprob for d in kept], np.float64),
                    entropies=np.array([d.entropy for d in kept], np.float64),
                    states=states[: slot.keep_count],
                    sampled=len(slot.draws),
                    hit_limit=slot.hit_limit,
                    seconds=slot.seconds,
                ),
            )

    @staticmethod
    @torch.inference_mode()
    def _following(slot: _Slot) -> NDArray[np.float64]:
        """Log-probabilities (nats) of the ids that a feed asks about as the next one."""
        assert isinstance(slot.request, Feed)
        if not slot.request.following:
            return np.zeros(0)
        assert slot.logits is not None
        every = torch.log_softmax(slot.logits.float(), dim=-1)
        found: NDArray[np.float64] = every[list(slot.request.following)].double().cpu().numpy()
        return found

    def _advance(self, slot: _Slot, reply: Any) -> None:
        """Hand the reply over and take the next request that needs the model; an impossible one is thrown back."""
        try:
            with torch.inference_mode(False):  # policies and tools run in here, and may train or differentiate
                request = slot.conversation.send(reply)
                while True:
                    problem = self._problem(slot, request)
                    if problem is not None:
                        request = slot.conversation.throw(problem)
                    elif isinstance(request, Rewind):
                        self._rewind(slot, request.length)
                        request = slot.conversation.send(None)
                    else:
                        break
        except StopIteration as stop:
            slot.done, slot.result, slot.request, slot.pending = True, stop.value, None, []
            return
        slot.request, slot.kept, slot.scored, slot.draws = request, [], [], []
        slot.keep_count, slot.hit_limit = None, False
        slot.pending = list(request.ids) if isinstance(request, Feed) else []

    @staticmethod
    def _rewind(slot: _Slot, length: int) -> None:
        slot.length, slot.logits = length, None
        if length < len(slot.shared):
            slot.shared = ()

    def _problem(self, slot: _Slot, request: Request) -> ModelError | None:
        """Why a request cannot be served, in one sentence; None where it can."""
        longest = slot.length
        if isinstance(request, Feed):
            if (
                not request.ids
                or list(request.keep) != sorted(set(request.keep))
                or not all(0 <= k < len(request.ids) for k in request.keep)
            ):
                return ModelError(
                    f"a Feed of {len(request.ids)} ids with keep={request.keep} was asked for; "
                    "give ids, and rising offsets within them."
                )
            if list(request.score) != sorted(set(request.score)) or not all(
                1 <= o < len(request.ids) for o in request.score
            ):
                return ModelError(
                    f"a Feed of {len(request.ids)} ids with score={request.score} was asked for; give rising offsets "
                    "from 1 on: what comes first has no probability of its own."
                )
            longest += len(request.ids)
        elif isinstance(request, Sample):
            if slot.logits is None:
                return ModelError(
                    "a Sample was asked for when nothing had just been fed; feed the prompt or observation first."
                )
            if request.max_tokens < 1 or not request.temperature >= 0 or not 0 < request.top_p <= 1:
                return ModelError(
                    f"a Sample with max_tokens={request.max_tokens}, temperature={request.temperature} and "
                    f"top_p={request.top_p} was asked for; "
                    "give at least 1 token, a temperature >= 0 and 0 < top_p <= 1."
                )
            if request.temperature > 0 and request.rng is None:
                return ModelError(
                    "a Sample with temperature > 0 needs its own rng, so that neighbours cannot disturb it."
                )
            longest += request.max_tokens
        elif not 0 <= request.length <= slot.length:
            return ModelError(
                f"a Rewind to {request.length} ids was asked for, but the conversation has {slot.length}."
            )
        if longest > self.capacity:
            return ModelError(
                f"the conversation could grow to {longest} ids, but a slot holds {self.capacity}; "
                "lower the agent's limits or raise the capacity."
            )
        return None
