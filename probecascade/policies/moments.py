"""A moment of a stored episode, as the agent loop showed it."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from probecascade.episode import Action, Checkpoint, Episode, Moment, Step


def stored_moment(
    episode: Episode,
    point: Checkpoint,
    hidden: Mapping[int, NDArray[np.float32]],
    max_rounds: int | None = None,
    max_tokens: int | None = None,
) -> Moment:
    """The moment that the agent loop showed at this checkpoint; without a limit nothing runs out.

    `hidden` maps layers to states, (d_model,). What the environment's refusal said is not stored.
    """
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
