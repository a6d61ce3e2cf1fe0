"""Conversations that begin alike, held as one: what they have in common is computed once.

The episodes of one task under several policies ask the same of the model until a policy first steers or stops one of
them. No conversation knows of the others, and each gets what it would have got alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Sequence
from typing import Any, Generic, TypeVar

from probecascade.errors import ModelError
from probecascade.models.requests import Conversation, Fed, Feed, Request, Rewind, Sample, Turn

T = TypeVar("T")


def together(conversations: Sequence[Conversation[T]]) -> Conversation[list[T]]:
    """One conversation that holds several and returns what each returned, in their order.

    Requests that are equal after equal ids are put to the engine once. Where conversations part, one is led to its
    end before the next goes on from the parting; side questions (`Feed.aside`) come first, so that those who ask are
    back when the others go on. `seconds` are what a conversation would have taken alone, shared requests counted
    whole; random numbers are drawn as if alone. ModelError where equal requests stop at different tokens.
    """
    members = [_Member(conversation) for conversation in conversations]
    ids: list[int] = []
    clock = 0.0
    try:
        for member in members:
            member.advance(None)
        while waiting := [member for member in members if member.request is not None]:
            first = max(waiting, key=lambda member: (member.aside is not None, len(member.ids)))
            group = [member for member in waiting if member.alike(first)]
            clock, ids = yield from _placed(first, ids, clock)
            try:
                reply = yield _asked(group)
            except Exception as error:  # the model refuses the request, which is its askers' affair
                for member in group:
                    member.advance(error)
                continue
            spent = 0.0
            if isinstance(reply, Fed | Turn):
                spent, clock = reply.seconds - clock, reply.seconds
            for member in group:
                member.take(reply, spent)
            ids = list(first.ids)
    finally:
        for member in members:
            member.conversation.close()
    return [member.result for member in members]


class _Member(Generic[T]):
    """One conversation: the ids that it believes the model to hold, and the request that it waits for."""

    result: T

    def __init__(self, conversation: Conversation[T]) -> None:
        self.conversation = conversation
        self.ids: list[int] = []
        self.request: Request | None = None
        self.aside: int | None = None  # how many ids there were when a side question began
        self.seconds = 0.0

    def alike(self, other: _Member[T]) -> bool:
        """Whether both wait for the same after the same."""
        return self is other or (
            self.aside == other.aside and _key(self.request) == _key(other.request) and self.ids == other.ids
        )

    def take(self, reply: Any, spent: float) -> None:
        """Give the reply to its request, which took so many seconds."""
        request, self.seconds = self.request, self.seconds + spent
        if isinstance(request, Feed):
            self.ids += request.ids
        elif isinstance(request, Sample):
            self.ids += reply.ids
        elif isinstance(request, Rewind):
            del self.ids[request.length :]
        if isinstance(reply, Fed | Turn):
            reply = dataclasses.replace(reply, seconds=self.seconds)
        self.advance(reply)

    def advance(self, reply: Any) -> None:
        """Let it go on, with a reply or an error, to its next request or to its end."""
        try:
            throws = isinstance(reply, Exception)
            self.request = self.conversation.throw(reply) if throws else self.conversation.send(reply)
        except StopIteration as stop:
            self.request, self.result = None, stop.value
        self._settle()

    def _settle(self) -> None:
        """Whether it is aside: from a side question until the ids before it, with what follows them, are back."""
        request, length = self.request, len(self.ids)
        feeds = len(request.ids) if isinstance(request, Feed) else 0
        if isinstance(request, Feed) and request.aside:
            self.aside = length if self.aside is None else self.aside
        elif self.aside is not None and length <= self.aside and not isinstance(request, Rewind):
            self.aside = self.aside if length + feeds == self.aside and feeds else None


def _key(request: Request | None) -> Any:
    """Equal for requests to which one answer will do; of what ends a turn that is assumed, and checked."""
    if not isinstance(request, Sample):
        return request
    return ("sample", request.max_tokens, request.temperature, request.top_p, request.resume, request.allowed)


def _placed(member: _Member[Any], ids: list[int], clock: float) -> Generator[Request, Any, tuple[float, list[int]]]:
    """Bring the model, which holds `ids`, to those of the member, ready for what it asks."""
    if ids == member.ids:
        return clock, ids
    length = 0
    for one, other in zip(ids, member.ids, strict=False):
        if one != other:
            break
        length += 1
    if isinstance(member.request, Sample):  # it needs what the model expects after the last id
        length = min(length, len(member.ids) - 1)
    yield Rewind(length)
    if length < len(member.ids):
        fed: Fed = yield Feed(member.ids[length:])
        clock = fed.seconds
    return clock, list(member.ids)


def _asked(group: Sequence[_Member[Any]]) -> Request:
    """The request of a group, whose turns end where all of them say."""
    request = group[0].request
    assert request is not None
    if not isinstance(request, Sample) or len(group) == 1:
        return request
    samples = [member.request for member in group if isinstance(member.request, Sample)]
    own = request.rng

    def stop(ids: list[int]) -> int | None:
        ends = {sample.stop(ids) for sample in samples}
        if len(ends) > 1:
            raise ModelError(
                f"conversations that are held together end the same turn at different tokens ({ends}): hold them apart."
            )
        if own is not None and request.temperature > 0:
            for sample in samples[1:]:
                if sample.rng is not None and sample.rng is not own:
                    sample.rng.random()
        return ends.pop()

    return dataclasses.replace(request, stop=stop)
