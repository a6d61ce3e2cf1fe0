"""What a conversation may ask of the engine, and what it gets back. Plain data: needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
States = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Feed:
    """Put `ids` into the conversation; the reply is a `Fed` with the states at the offsets `keep`, which rise.

    The first `shared` ids are the same in many conversations and are encoded once for all of them (only
    honoured at the start of a conversation). `score` are rising offsets, from 1 on, of ids whose log-probability
    given all ids before them is asked for; `following` are ids whose log-probability as the next one after the last
    of `ids` is. `aside` says that the ids will be taken back: a side question.
    """

    ids: Sequence[int]
    keep: tuple[int, ...] = ()
    shared: int = 0
    score: tuple[int, ...] = ()
    following: tuple[int, ...] = ()
    aside: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """Draw a turn. `stop(ids)` is asked after every token: None to go on, else how many of the ids to keep.

    `temperature` 0 is greedy and draws no random number; otherwise one number of `rng` per token.
    `allowed(ids)` may narrow the next token to a list of ids (None: no limit). With `resume` the turn may be
    continued by another Sample right after the reply.
    """

    stop: Callable[[list[int]], int | None]
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    rng: np.random.Generator | None = None
    allowed: Callable[[list[int]], Sequence[int] | None] | None = None
    resume: bool = False


@dataclass(frozen=True, slots=True)
class Rewind:
    """Forget all ids after the first `length`; reply: None."""

    length: int


@dataclass(frozen=True, slots=True)
class Fed:
    """Reply to a Feed: states (len(keep), n_layers, d_model), and the seconds spent on the conversation so far.

    A forward's wall time is shared among its conversations by their number of ids. `logprobs` and `entropies` (nats),
    (len(score),) each, are those of the ids at the offsets `score`, as in a `Turn`; `following`, (len(following),),
    are log-probabilities of ids that might come next.
    """

    states: States
    seconds: float
    logprobs: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    entropies: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    following: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True, slots=True)
class Turn:
    """What was sampled, end markers and surplus dropped. All arrays have one entry per kept id.

    `logprobs` and `entropies` (nats) are those of the model's own distribution at temperature 1; `states[i]` is
    the state when id i was the input, (n, n_layers, d_model). `sampled` counts what was drawn, surplus included.
    """

    ids: list[int]
    logprobs: NDArray[np.float64]
    entropies: NDArray[np.float64]
    states: States
    sampled: int
    hit_limit: bool
    seconds: float


Request = Feed | Sample | Rewind
Conversation = Generator[Request, Any, T]
