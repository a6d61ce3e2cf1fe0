"""Loops on `model.generate`: one episode at a time, a careful batched one, and one with a cascade attached.

The first two drive the very conversations that the engine drives, so that template, parser, environment and limits
are the same.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache, StoppingCriteria, StoppingCriteriaList

from probecascade.agents.react import ReActAgent
from probecascade.cli.session import Session
from probecascade.episode import Recording, Task
from probecascade.interfaces import LanguageModel
from probecascade.models.requests import Fed, Feed, Request, Sample, Turn
from probecascade.policies import Cascade

Conversation = Generator[Request, Any, Recording]
Prefix = list[tuple[Tensor, Tensor]]
"""Keys and values of a text that all episodes begin with, per layer (1, kv_heads, n, head_dim)."""


def limited_agent(session: Session, model: LanguageModel, **limits: Any) -> ReActAgent:
    """The session's agent on this model, with the limits (fields of `AgentSettings`) that are given."""
    settings = dataclasses.replace(session.agent.settings, **limits)
    return ReActAgent(model, session.template, settings, sorted(session.agent.end_ids))


class Stateless:
    """What the agent needs of a language model that keeps no states: text to ids and back."""

    layers: Sequence[int] = ()

    def __init__(self, session: Session) -> None:
        self.encode, self.decode = session.engine.encode, session.engine.decode
        self.n_layers, self.d_model = session.engine.n_layers, session.engine.d_model

    def no_states(self, n: int) -> NDArray[np.float32]:
        """The states of n tokens, (n, 0, d_model)."""
        return np.zeros((n, 0, self.d_model), np.float32)


class Row:
    """One live episode: its ids so far, the turn that it waits for, and the states kept from `generate`'s outputs."""

    def __init__(self, conversation: Conversation, model: Stateless) -> None:
        self.conversation = conversation
        self.model = model
        self.ids: list[int] = []
        self.states: list[Tensor] = []
        self.result: Recording | None = None
        self.advance(None)

    def advance(self, reply: Turn | None) -> None:
        """Hand the turn to the episode, which goes on to the next turn that it needs."""
        try:
            request = self.conversation.send(reply)
            while isinstance(request, Feed):
                self.ids += request.ids
                request = self.conversation.send(Fed(self.model.no_states(len(request.keep)), 0.0))
        except StopIteration as stop:
            self.result = stop.value
        else:
            assert isinstance(request, Sample)
            self.request = request

    def answer(self, drawn: list[int], keep: int, hit_limit: bool) -> None:
        """Go on with the first `keep` of the ids that were drawn."""
        nothing = np.zeros(keep)
        self.ids += drawn[:keep]
        self.advance(Turn(drawn[:keep], nothing, nothing, self.model.no_states(keep), len(drawn), hit_limit, 0.0))


class TurnEnds(StoppingCriteria):  # type: ignore[misc]
    """Ends each row where the agent's own parser sees its turn complete; `ends` holds (drawn, kept, hit the limit)."""

    def __init__(self, rows: Sequence[Row], start: int) -> None:
        self.rows, self.start = rows, start
        self.ends: list[tuple[list[int], int, bool] | None] = [None] * len(rows)

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        for i, row in enumerate(self.rows):
            if self.ends[i] is None:
                drawn = input_ids[i, self.start :].tolist()
                keep = row.request.stop(drawn)
                full = keep is None and len(drawn) >= row.request.max_tokens
                if keep is not None or full:
                    self.ends[i] = (drawn, len(drawn) if keep is None else keep, full)
        return torch.tensor([end is not None for end in self.ends], device=input_ids.device)


@torch.inference_mode()
def generate_turns(session: Session, rows: Sequence[Row], prefix: Prefix | None) -> None:
    """One turn of every row by `generate`, left-padded; only what follows `prefix` (if any) is encoded."""
    model, device = session.engine.model, session.engine.device
    head = prefix[0][0].shape[2] if prefix else 0
    width = max(len(row.ids) for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        pad = width - len(row.ids)  # stands between the shared head and the row's own ids
        ids[i, :head], ids[i, head + pad :] = torch.tensor(row.ids[:head]), torch.tensor(row.ids[head:])
        mask[i, :head] = mask[i, head + pad :] = 1
    shared = {}
    if prefix:
        # Views: the keys are copied once, where the cache first grows.
        shared["cache"] = DynamicCache([tuple(x.expand(len(rows), -1, -1, -1) for x in pair) for pair in prefix])
    ends = TurnEnds(rows, width)
    out = model.generate(
        input_ids=ids.to(device),
        attention_mask=mask.to(device),
        do_sample=False,
        max_new_tokens=max(row.request.max_tokens for row in rows),
        pad_token_id=0,
        stopping_criteria=StoppingCriteriaList([ends]),
        output_hidden_states=True,
        return_dict_in_generate=True,
        **shared,
    )
    for i, (row, end) in enumerate(zip(rows, ends.ends, strict=True)):
        assert end is not None
        for step in (0, len(end[0]) - 1):  # the last token read, and the newest of the turn that has a state
            row.states.append(torch.stack([out.hidden_states[step][k][i, -1] for k in session.engine.layers]))
        row.answer(*end)


def play_by_generate(
    session: Session, episodes: Iterable[tuple[Task, int]], width: int, prefix: Prefix | None = None, **limits: int
) -> Iterator[Recording]:
    """Play episodes, `width` at a time: one is the loop of every tutorial; more are refilled after every round."""
    model = Stateless(session)
    agent = limited_agent(session, cast(LanguageModel, model), **limits)
    waiting = iter(episodes)
    live: list[Row] = []
    while True:
        for task, seed in itertools.islice(waiting, width - len(live)):
            live.append(Row(agent.play(task, session.tasks.environment(task, seed), seed), model))
        if not live:
            return
        generate_turns(session, live, prefix)
        yield from (row.result for row in live if row.result is not None)
        live = [row for row in live if row.result is None]


@torch.inference_mode()
def encode_head(session: Session) -> Prefix:
    """The worked examples that all episodes share, encoded once."""
    cache = DynamicCache()
    ids = torch.tensor([session.agent.head], device=session.engine.device)
    session.engine.model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1)
    return [(layer.keys, layer.values) for layer in cache.layers]


def attached_seconds(session: Session, cascade: Cascade, rounds: int = 20) -> list[float]:
    """Seconds that `EpisodeHandle.checkpoint` takes around the forward of the one token that has no state yet."""
    model, engine, marks = session.engine.model, session.engine, [0.0, 0.0]
    ids = torch.tensor([engine.encode(session.tasks.tasks[0].parts[0].question)], device=engine.device)
    spent = []
    cascade = Cascade([gate for gate in cascade.gates if gate.checkpoint.startswith("action")], gate_answers=True)
    with cascade.attach(model, engine.tokenizer, force=True) as hook, hook.episode("benchmark") as episode:
        begins = model.register_forward_pre_hook(lambda *_: marks.__setitem__(0, time.perf_counter()))
        ends = model.register_forward_hook(lambda *_: marks.__setitem__(1, time.perf_counter()), prepend=True)
        try:
            for _ in range(min(rounds, session.agent.settings.max_rounds)):
                out = model.generate(
                    input_ids=ids,
                    attention_mask=torch.ones_like(ids),
                    do_sample=False,
                    max_new_tokens=4,
                    pad_token_id=0,
                    suppress_tokens=sorted(session.agent.end_ids) or None,
                    stopping_criteria=hook.stopping_criteria(),
                    return_dict_in_generate=True,
                )
                started = time.perf_counter()
                episode.checkpoint("action", out)
                spent.append(time.perf_counter() - started - (marks[1] - marks[0]))
                ids = out.sequences
        finally:
            begins.remove()
            ends.remove()
    return spent
