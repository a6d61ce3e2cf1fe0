"""Episode attributes as columns: read from the transcripts, which hold them, without the rest of the episode."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probecascade.errors import UsageError
from probecascade.store.shard import ShardIndex, opened

COLUMNS: tuple[str, ...] = ("seed", "task_id", "group", "outcome")
"""Facts about every episode that are asked for as its attributes are."""


def read_attributes(shards: Sequence[ShardIndex]) -> tuple[Mapping[str, Any], ...]:
    """The attributes of every episode of these shards, in order. StoreError if a shard is damaged."""
    found: list[Mapping[str, Any]] = []
    for shard in shards:
        with opened(shard.path) as file:
            found += [json.loads(text.decode("ascii"))["attributes"] for text in file["episodes/transcript"][:]]
    return tuple(found)


def attribute_column(attributes: Sequence[Mapping[str, Any]], name: str, known: Sequence[str]) -> NDArray[np.object_]:
    """One attribute of every episode, (n_episodes,), None where an episode lacks it.

    `known` are further names that could have been asked for. UsageError, which names the nearest, if no episode has it.
    """
    if not any(name in own for own in attributes):
        names = sorted({*known, *(key for own in attributes for key in own)})
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(f"no episode has the attribute {name!r}: {hint}known are {', '.join(names)}.")
    column = np.empty(len(attributes), dtype=object)
    for index, own in enumerate(attributes):  # one by one: numpy would make a table of values that are lists
        column[index] = own.get(name)
    return column
