"""Recorded episodes read again by their model: other layers, from the very ids that were stored."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from probecascade.episode import Episode, Recording
from probecascade.interfaces import LanguageModel
from probecascade.models.requests import Fed, Feed, Request
from probecascade.store.schema import cast


def reread(model: LanguageModel, episode: Episode, *, shared: int, dtype: str) -> Generator[Request, Any, Recording]:
    """The episode with its states at the layers that `model` keeps, as a conversation for the engine.

    The stored ids are fed, nothing is sampled, and states are rounded to the store's `dtype`; they differ from those
    of the first reading only as a batch of another shape changes the last bits. The first `shared` ids are those of
    a head that many episodes have in common, which is encoded once.
    """
    positions = sorted({checkpoint.position for checkpoint in episode.checkpoints})
    if not positions:
        return Recording(episode, np.zeros((0, len(model.layers), model.d_model), np.float32))
    ids = episode.token_ids.tolist()[: positions[-1] + 1]
    fed: Fed = yield Feed(ids, keep=tuple(positions), shared=shared if positions[0] >= shared else 0)
    place = {position: row for row, position in enumerate(positions)}
    rows = [place[checkpoint.position] for checkpoint in episode.checkpoints]
    return Recording(episode, cast(fed.states[rows], dtype))


def common_head(episodes: list[Episode]) -> int:
    """How many first ids all these episodes have in common, at most their shortest prompt less one."""
    head = episodes[0].token_ids
    longest = min(episode.prompt_tokens for episode in episodes) - 1
    for episode in episodes[1:]:
        same = head[:longest] == episode.token_ids[:longest]
        longest = longest if same.all() else int(np.argmin(same))
    return max(longest, 0)
