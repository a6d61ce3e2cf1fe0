"""Tasks that no run holds, played live under several policies at once beside their twins without aborts."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from probecascade.cli.session import Session
from probecascade.episode import Episode, Recording, Task
from probecascade.errors import NothingToDoError
from probecascade.evaluation import PolicyOutcome, compare_twins, mean_interval, read_off, replay_policy
from probecascade.interfaces import StoppingPolicy
from probecascade.models.requests import Conversation

T = TypeVar("T")

FREE = "no abort"


@dataclass(frozen=True, slots=True)
class Row:
    """A policy's outcome; `live`: its episodes were run, and not read off the twins."""

    outcome: PolicyOutcome
    live: bool


def fresh_tasks(session: Session, known: Iterable[str], count: int) -> tuple[Task, ...]:
    """The first `count` tasks of groups beyond the recipe's, none of a group in `known`.

    NothingToDoError where there are none.
    """
    taken = set(known)
    found = tuple(itertools.islice((t for t in session.tasks.fresh() if t.group not in taken), count))
    if not found:
        raise NothingToDoError("no episodes to run: the recipe takes every task of its file; lower --groups.")
    return found


def play_together(
    session: Session, episodes: Sequence[tuple[Task, int]], policies: Mapping[str, StoppingPolicy]
) -> Iterator[tuple[str, Episode]]:
    """Play every episode (task, seed) without a policy (`FREE`) and under each, and yield them as they end.

    All share the engine's slots, task by task, so that no policy has the machine to itself.
    """
    every: Mapping[str, StoppingPolicy | None] = {FREE: None, **policies}
    played = session.engine.run(
        _named(name, session.conversation(task, seed, policy))
        for task, seed in episodes
        for name, policy in every.items()
    )
    for name, recording in played:
        yield name, recording.episode


def free_row(twins: Sequence[Episode]) -> Row:
    """The twins themselves: nothing is aborted."""
    return Row(read_off(FREE, [None] * len(twins), twins), True)


def live_row(name: str, live: Sequence[Episode], twins: Sequence[Episode]) -> Row:
    """A policy that ran live, judged by the twins; seconds are those that its own episodes took."""
    outcome = compare_twins(name, live, twins)
    labelled = [episode for episode in live if episode.outcome != "error"]
    own = mean_interval([e.seconds for e in labelled], [e.group for e in labelled])
    return Row(replace(outcome, seconds=own), True)


def replayed_row(name: str, policy: StoppingPolicy, twins: Sequence[Episode]) -> Row:
    """A policy that reads no hidden state, so that the twins determine its decisions. DataError if it reads one."""
    decisions = [
        replay_policy(policy, Recording(twin, np.empty((len(twin.checkpoints), 0, 0), np.float32)), layers=())
        for twin in twins
    ]
    return Row(read_off(name, decisions, twins), False)


def _named(name: str, conversation: Conversation[T]) -> Conversation[tuple[str, T]]:
    return name, (yield from conversation)
