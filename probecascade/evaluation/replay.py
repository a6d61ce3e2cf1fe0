"""Replaying a policy over a recorded episode: what it would have decided, from what was stored."""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence

import numpy as np
from numpy.typing import NDArray

from probecascade.episode import (
    CONTINUE,
    Action,
    Checkpoint,
    Decision,
    Episode,
    Moment,
    Recording,
    Step,
    Task,
)
from probecascade.errors import DataError, UsageError
from probecascade.interfaces import StoppingPolicy


def replay_policy(
    policy: StoppingPolicy,
    recording: Recording,
    task: Task | None = None,
    *,
    layers: Sequence[int],
    max_rounds: int | None = None,
    max_tokens: int | None = None,
) -> Decision | None:
    """The first decision to abort or answer that `policy` takes on this episode; None if it takes none.

    `layers` names the columns of `recording.hidden`, (n_checkpoints, n_layers, d_model). The limits give
    the moments their rounds and tokens left; None means without limit. DataError if a layer that the policy
    needs is not recorded; UsageError for a policy that asks the model or steers the episode, since the
    record cannot tell what would have followed.
    """
    episode = recording.episode
    missing = sorted(set(policy.layers) - set(layers))
    if missing:
        raise DataError(f"the policy needs layers {missing}, but the recording holds {sorted(layers)}.")
    if len(recording.hidden) != len(episode.checkpoints):
        raise DataError(
            f"the recording of {episode.episode_id} holds {len(recording.hidden)} states for "
            f"{len(episode.checkpoints)} checkpoints: give one per checkpoint."
        )
    watch = policy.begin(task or Task(episode.task_id, episode.group, ()))
    columns = {layer: layers.index(layer) for layer in policy.layers}
    for point, states in zip(episode.checkpoints, recording.hidden, strict=True):
        hidden = {layer: states[column] for layer, column in columns.items()}
        verdict = watch.decide(_moment(episode, point, hidden, max_rounds, max_tokens))
        if isinstance(verdict, Generator):
            raise UsageError("the policy asks the model at its checkpoints: run it live instead of replaying it.")
        if verdict.action != CONTINUE.action:
            return verdict
        if verdict.append or verdict.allow is not None:
            raise UsageError(f"the policy steers the episode at {point.name}: run it live instead of replaying it.")
    return None


def _moment(
    episode: Episode,
    point: Checkpoint,
    hidden: dict[int, NDArray[np.float32]],
    max_rounds: int | None,
    max_tokens: int | None,
) -> Moment:
    """The moment that the agent loop showed at this checkpoint."""
    observed = point.kind == "observation"
    done = tuple(s for s in episode.steps if s.round < point.round or (observed and s.round == point.round))
    current = next((step for step in episode.steps if step.round == point.round), None)
    return Moment(
        checkpoint=point,
        hidden=hidden,
        transcript=done,
        thought="" if current is None or point.kind == "prompt" else current.thought,
        action=None if current is None or point.kind in ("prompt", "thought") else _action(current),
        observation=done[-1].observation if done else "",
        rounds_left=sys.maxsize if max_rounds is None else max_rounds - point.round,
        tokens_left=sys.maxsize if max_tokens is None else max_tokens - point.tokens,
        turn="" if current is None or point.kind in ("prompt", "thought", "observation") else current.text,
    )


def _action(step: Step) -> Action:
    # a turn that held no action is stored without a name, whatever followed it
    return Action(step.action, step.argument, valid=bool(step.action) and step.observation_kind != "invalid")
