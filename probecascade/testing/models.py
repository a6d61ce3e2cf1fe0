"""The fake of `interfaces.LanguageModel`: turns are scripted text, requests are those of the real engine."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probecascade.errors import ModelError
from probecascade.models.requests import Conversation, Fed, Feed, Rewind, Sample, T, Turn

_PIECE = re.compile(r" ?\w+|\s|.", re.DOTALL)

Text = str | Sequence[str]


class ScriptedModel:
    """A fake that says `turns` in order, whatever it is told; it needs no torch.

    The turn that it says follows from the text alone, as in a real model: after the k-th `cue` that was fed since
    the prompt, the rest of turn k. A turn is a text, or a list of texts that are one token each. Where the text after
    the cue is not the beginning of that turn, `otherwise` is said (a forced answer); after a text of `answers`, its
    answer (a side question). What is over is followed by the end token. One conversation runs at a time.

    `conversations` holds the ids of each finished conversation, as they were left in the cache.
    """

    END = "<end>"

    def __init__(
        self,
        turns: Sequence[Text],
        *,
        cue: str = "\nThought:",
        otherwise: Text = "",
        answers: Mapping[str, str] | None = None,
        layers: Sequence[int] = (0, 1, 2),
        d_model: int = 4,
        capacity: int = 10_000,
    ) -> None:
        self.turns = tuple(turns)
        self.cue = cue
        self.otherwise = otherwise
        self.answers = dict(answers or {})
        self.layers = layers
        self.n_layers = 2
        self.d_model = d_model
        self.capacity = capacity
        self.conversations: list[list[int]] = []
        self._pieces: dict[int, str] = {0: self.END}

    @property
    def end_id(self) -> int:
        return 0

    def encode(self, text: str, *, plain: bool = False) -> list[int]:
        """One id per word (the space before it included), blank or sign; the end token where it is written."""
        parts = [text] if plain else re.split(f"({self.END})", text)
        return [i for part in parts for i in self._encode_part(part, plain)]

    def _encode_part(self, text: str, plain: bool) -> list[int]:
        if text == self.END and not plain:
            return [0]
        return self._known(_PIECE.findall(text))

    def _known(self, pieces: Sequence[str]) -> list[int]:
        """Their ids, which follow from the pieces alone, so that two models give a text the same ids."""
        ids = [1 + zlib.crc32(piece.encode()) % (2**31 - 1) for piece in pieces]
        for token, piece in zip(ids, pieces, strict=True):
            if self._pieces.setdefault(token, piece) != piece:
                raise ModelError(f"{piece!r} and {self._pieces[token]!r} have the same id; change one of them.")
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids."""
        return "".join(self._pieces[i] for i in ids)

    def state(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """The states of the last of `ids` given those before it, (n_layers, d_model): a function of all of them."""
        rng = np.random.default_rng([len(ids), *ids])
        every = rng.normal(size=(self.n_layers + 1, self.d_model)).astype(np.float32)
        return every[list(self.layers)]

    @staticmethod
    def logprob(token: int) -> float:
        """What the fake gives as the log-probability of a sampled id."""
        return -(token % 8 + 1) / 8

    @staticmethod
    def entropy(token: int) -> float:
        """What the fake gives as the entropy of the distribution that the id was sampled from."""
        return token % 4 / 4

    def run(self, conversations: Iterable[Conversation[T]]) -> Iterator[T]:
        """Drive the conversations one after the other and yield what each returns."""
        for conversation in conversations:
            ids: list[int] = []
            base: int | None = None
            reply: Any = None
            try:
                request = conversation.send(None)
                while True:
                    problem = self._problem(ids, request)
                    if problem is not None:
                        request = conversation.throw(problem)
                        continue
                    if isinstance(request, Feed):
                        reply = self._feed(ids, request)
                        base = self.decode(ids).count(self.cue) if base is None else base
                    elif isinstance(request, Sample):
                        reply = self._sample(ids, request, base or 0)
                    else:
                        reply = None
                        del ids[request.length :]
                    request = conversation.send(reply)
            except StopIteration as stop:
                self.conversations.append(ids)
                yield stop.value

    def _problem(self, ids: list[int], request: Feed | Sample | Rewind) -> ModelError | None:
        coming = 0
        if isinstance(request, Feed):
            coming = len(request.ids)
        elif isinstance(request, Sample):
            coming = request.max_tokens
            if request.temperature > 0 and request.rng is None:
                return ModelError("a Sample with temperature > 0 needs its own rng.")
        if len(ids) + coming > self.capacity:
            return ModelError(f"the conversation could grow to {len(ids) + coming} ids of {self.capacity}.")
        return None

    def _feed(self, ids: list[int], request: Feed) -> Fed:
        start = len(ids)
        ids += request.ids
        scored = [request.ids[offset] for offset in request.score]
        return Fed(
            self._states([ids[: start + k + 1] for k in request.keep]),
            float(len(ids)),
            np.array([self.logprob(i) for i in scored], np.float64),
            np.array([self.entropy(i) for i in scored], np.float64),
            self._following(ids, request.following),
        )

    def _following(self, ids: list[int], asked: Sequence[int]) -> NDArray[np.float64]:
        """As `logprob`, but an id that the script would not say next is much less likely."""
        said = next(iter(self._coming(self.decode(ids), 0)), 0) if asked else 0
        return np.array([self.logprob(i) - (0.0 if i == said else 2.0) for i in asked], np.float64)

    def _states(self, prefixes: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        if not prefixes:
            return np.zeros((0, len(self.layers), self.d_model), np.float32)
        return np.stack([self.state(prefix) for prefix in prefixes])

    def _sample(self, ids: list[int], request: Sample, base: int) -> Turn:
        coming = iter(self._coming(self.decode(ids), base))
        drawn: list[int] = []
        keep: int | None = None
        while keep is None and len(drawn) < request.max_tokens:
            if request.rng is not None and request.temperature > 0:
                request.rng.random()
            token = next(coming, 0)
            allowed = request.allowed(list(drawn)) if request.allowed is not None else None
            drawn.append(token if allowed is None or token in allowed else allowed[0])
            keep = request.stop(list(drawn))
        kept = drawn[:keep]
        start = len(ids)
        ids += kept
        return Turn(
            ids=kept,
            logprobs=np.array([self.logprob(i) for i in kept], np.float64),
            entropies=np.array([self.entropy(i) for i in kept], np.float64),
            states=self._states([ids[: start + k + 1] for k in range(len(kept))]),
            sampled=len(drawn),
            hit_limit=keep is None,
            seconds=float(len(ids)),
        )

    def _coming(self, text: str, base: int) -> list[int]:
        """The ids that follow `text` in the script."""
        for question, answer in self.answers.items():
            if text.endswith(question):
                return self.encode(answer)
        said = text.rsplit(self.cue, 1)[-1]
        number = text.count(self.cue) - base
        turn = self._tokens(self.turns[number]) if number < len(self.turns) else []
        for place in range(len(turn) + 1):
            if self.decode(turn[:place]) == said:
                return turn[place:]
        return self._tokens(self.otherwise)

    def _tokens(self, text: Text) -> list[int]:
        return self.encode(text) if isinstance(text, str) else self._known(text)
