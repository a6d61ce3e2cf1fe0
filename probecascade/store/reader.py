"""Reading a run: columns at once, vectors one checkpoint and layer at a time, records one episode at a
time."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from probecascade.episode import LABELLED, Episode, Step, stored_text
from probecascade.errors import StoreError
from probecascade.store import schema
from probecascade.store.attributes import COLUMNS, attribute_column, read_attributes
from probecascade.store.layout import bytes_on_disk, list_incomplete, list_shards, read_header
from probecascade.store.shard import (
    ShardIndex,
    read_checkpoint,
    read_episode,
    read_hidden,
    read_index,
    read_states,
    read_steps,
    rows_of,
)


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeTable:
    """One row per episode, (n_episodes,) each, in the order in which the episodes were added.

    Text columns are object arrays of str. `seconds` is wall time; `doomed_round` and `doomed_tokens` are -1
    where nothing is known; `failed` is True for failure and truncated, and says nothing where `labelled` is
    False.
    """

    episode_id: NDArray[np.object_]
    task_id: NDArray[np.object_]
    group: NDArray[np.object_]
    seed: NDArray[np.int64]
    outcome: NDArray[np.object_]
    reward: NDArray[np.float64]
    reason: NDArray[np.object_]
    rounds: NDArray[np.int64]
    tokens: NDArray[np.int64]
    generated: NDArray[np.int64]
    observed: NDArray[np.int64]
    prompt_tokens: NDArray[np.int64]
    calls: NDArray[np.int64]
    seconds: NDArray[np.float64]
    side_tokens: NDArray[np.int64]
    doomed_round: NDArray[np.int64]
    doomed_tokens: NDArray[np.int64]
    failed: NDArray[np.bool_]
    labelled: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.episode_id)


@dataclass(frozen=True, slots=True, eq=False)
class CheckpointRows:
    """All states of one checkpoint name, (n,) each, in episode order. `episode` indexes the run's episodes.

    `position`, `tokens`, `generated`, `calls` and `seconds` are those of `episode.Checkpoint`; `signals` is
    (n, len(SIGNALS)) in the order of `episode.SIGNALS`. `ordinal` counts the checkpoints of an episode in the
    order in which they came. `checks` maps the name of every check in the run to (n,) float64, NaN where the
    environment did not supply it.
    """

    episode: NDArray[np.int64]
    ordinal: NDArray[np.int64]
    round: NDArray[np.int64]
    position: NDArray[np.int64]
    tokens: NDArray[np.int64]
    generated: NDArray[np.int64]
    calls: NDArray[np.int64]
    seconds: NDArray[np.float64]
    final: NDArray[np.bool_]
    signals: NDArray[np.float32]
    checks: Mapping[str, NDArray[np.float64]]

    def __len__(self) -> int:
        return len(self.episode)


class Run:
    """What was stored in a run folder when it was opened; a writer at work on it does no harm.

    Holds columns in memory and no open file, so that it can be pickled and used after a fork. Open it by
    `Run.open`.
    """

    def __init__(
        self,
        path: Path,
        header: Mapping[str, Any],
        shards: Sequence[ShardIndex],
        *,
        skipped: tuple[str, ...] = (),
        incomplete: int = 0,
    ) -> None:
        self.path = path
        self.header = dict(header)
        self.layers: tuple[int, ...] = tuple(header["layers"])
        self.d_model: int = header["d_model"]
        self.dtype: str = header["dtype"]
        self.skipped = skipped
        self.incomplete = incomplete
        self._shards = tuple(shards)
        self._recent: tuple[Path, NDArray[Any]] | None = None
        self._begin = np.cumsum([0, *(shard.n_episodes for shard in shards)])

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, skip_damaged: bool = False) -> Self:
        """The run in this folder: its header and its whole shards.

        Unfinished shards are left alone and counted in `incomplete`. A damaged shard raises StoreError, or
        with `skip_damaged` is left out and its file name listed in `skipped`. An episode id in two shards
        raises StoreError.
        """
        folder = Path(path)
        header = read_header(folder)
        shards: list[ShardIndex] = []
        skipped: list[str] = []
        incomplete = len(list_incomplete(folder))
        for file in list_shards(folder):
            try:
                shards.append(read_index(file, header["layers"], header["d_model"], header["dtype"]))
            except StoreError:
                if not skip_damaged:
                    raise
                skipped.append(file.name)
        _check_unique(shards)
        return cls(folder, header, shards, skipped=tuple(skipped), incomplete=incomplete)

    def __len__(self) -> int:
        return int(self._begin[-1])

    def __getstate__(self) -> dict[str, Any]:
        # what is cached from the shards is read again sooner than sent
        return {key: value for key, value in self.__dict__.items() if key != "_steps"} | {"_recent": None}

    @cached_property
    def episodes(self) -> EpisodeTable:
        """Facts about all episodes, one row each."""
        columns = {name: self._column(name) for name in EpisodeTable.__dataclass_fields__ if name in _STORED}
        outcome = columns["outcome"]
        return EpisodeTable(
            **columns,
            failed=np.isin(outcome.astype(str), ("failure", "truncated")),
            labelled=np.isin(outcome.astype(str), LABELLED),
        )

    @cached_property
    def checkpoint_names(self) -> tuple[str, ...]:
        """Names that occur, in order: prompt, then by first round, thought < action < events <
        observation."""
        order: dict[str, tuple[bool, int, int, str, int]] = {}
        for shard in self._shards:
            for name, rows in shard.rows.items():
                kind, index = shard.checkpoints["kind"][rows.start], shard.checkpoints["index"][rows.start]
                first = int(shard.checkpoints["round"][rows].min())
                key = schema.checkpoint_order(str(kind), int(index), first)
                order[name] = min(key, order.get(name, key))
        return tuple(sorted(order, key=lambda name: order[name]))

    def attributes(self, name: str) -> NDArray[np.object_]:
        """One attribute of every episode, (n_episodes,), None where an episode lacks it.

        `seed`, `task_id`, `group`, `outcome` and `run` (the folder's name) can be asked for like any other. UsageError
        that names the nearest if no episode has the attribute, StoreError if a shard is damaged.
        """
        if name == "run":
            column = np.empty(len(self), dtype=object)
            column[:] = self.path.resolve().name
            return column
        if name in COLUMNS:
            return np.array(getattr(self.episodes, name).tolist(), dtype=object)
        return attribute_column(self._attributes, name, ("run", *COLUMNS))

    @cached_property
    def _attributes(self) -> tuple[Mapping[str, Any], ...]:
        return read_attributes(self._shards)

    def rows(self, name: str) -> CheckpointRows:
        """Facts about all states of this checkpoint. StoreError names the stored ones if it is unknown."""
        found = self._slices(name)
        columns = {
            column: np.concatenate([shard.checkpoints[column][rows] for _, shard, rows in found])
            for column in ("ordinal", "round", "position", "tokens", "generated", "calls", "seconds", "final")
        }
        episode = np.concatenate([shard.checkpoints["episode"][rows] + begin for begin, shard, rows in found])
        signals = np.concatenate([shard.signals[rows] for _, shard, rows in found])
        absent = [np.full(rows.stop - rows.start, np.nan) for _, _, rows in found]
        checks = {
            check: np.concatenate(
                [
                    shard.checks[check][rows] if check in shard.checks else gap
                    for (_, shard, rows), gap in zip(found, absent, strict=True)
                ]
            )
            for check in self.check_names
        }
        return CheckpointRows(episode=episode, signals=signals, checks=checks, **columns)

    @cached_property
    def check_names(self) -> tuple[str, ...]:
        """Names of the checks that the environment supplied anywhere in the run, sorted."""
        return tuple(sorted({name for shard in self._shards for name in shard.checks}))

    def texts(self, name: str) -> list[str]:
        """What the agent had written and read at this checkpoint, row for row those of `rows(name)`.

        The same text as live (`agents.transcript.text_at`). StoreError as for `rows`, or where a shard is damaged.
        """
        found = []
        for begin, shard, rows in self._slices(name):
            for row in range(rows.start, rows.stop):
                episode = int(begin + shard.checkpoints["episode"][row])
                found.append(stored_text(self._steps[episode], read_checkpoint(shard, row)))
        return found

    @cached_property
    def _steps(self) -> list[tuple[Step, ...]]:
        return [steps for shard in self._shards for steps in read_steps(shard)]

    def states(self, name: str, layer: int) -> NDArray[np.float32]:
        """Hidden states of this checkpoint at one layer, (n, d_model) float32, row for row those of
        `rows(name)`.

        Reads nothing but these rows. Negative layers count from the last block. StoreError if the checkpoint
        or the layer is not stored, or a shard is damaged.
        """
        wanted = self._stored_layer(layer)
        found = self._slices(name)
        states = np.empty((sum(rows.stop - rows.start for _, _, rows in found), self.d_model), dtype=np.float32)
        done = 0
        for _, shard, rows in found:
            count = rows.stop - rows.start
            states[done : done + count] = read_states(shard.path, wanted, rows, self.dtype)
            done += count
        return states

    def episode(self, index: int) -> Episode:
        """The full record of one episode. Signals come back as float32 values, sequences in attributes as
        lists."""
        shard, row = self._locate(index)
        return read_episode(shard, row)

    def hidden(self, index: int) -> NDArray[np.float32]:
        """States of one episode, (n_checkpoints, n_layers, d_model) float32, in the order of its checkpoints.

        Keeps the shard it read last in memory: rows are grouped by checkpoint, so one episode lies scattered
        in its shard, and whoever replays a run asks for one episode after the other.
        """
        shard, row = self._locate(index)
        if self._recent is None or self._recent[0] != shard.path:
            self._recent = shard.path, read_hidden(shard.path, self.layers)
        return schema.decode(self._recent[1][rows_of(shard, row)], self.dtype)

    def describe(self) -> dict[str, Any]:
        """What the run holds, as JSON values: counts by outcome and checkpoint, layers, bytes, and what is
        missing."""
        refused = {
            name: int(self._column(f"rejected_{name}").sum()) if self._shards else 0
            for name in ("non_finite", "overflow")
        }
        return {
            "path": str(self.path),
            "model": self.header.get("model"),
            "episodes": len(self),
            "groups": len(set(self.episodes.group)),
            "outcomes": dict(sorted(Counter(self.episodes.outcome.tolist()).items())),
            "labelled": int(self.episodes.labelled.sum()),
            "layers": list(self.layers),
            "layer_convention": self.header.get("layer_convention"),
            "d_model": self.d_model,
            "dtype": self.dtype,
            "checkpoints": {
                name: sum(r.stop - r.start for _, _, r in self._slices(name)) for name in self.checkpoint_names
            },
            "bytes": bytes_on_disk(self.path),
            "shards": len(self._shards),
            "incomplete": self.incomplete,
            "skipped": list(self.skipped),
            "rejected": sum(refused.values()),
            "rejected_by_reason": refused,
        }

    def _column(self, name: str) -> NDArray[Any]:
        kind = schema.EPISODE_COLUMNS[name]
        empty = np.empty(0, dtype=object if kind is schema.TEXT else kind)
        return np.concatenate([empty, *(shard.episodes[name] for shard in self._shards)])

    def _slices(self, name: str) -> list[tuple[int, ShardIndex, slice]]:
        """(index of the shard's first episode, shard, rows) of each shard that holds this checkpoint."""
        found = [
            (int(begin), shard, shard.rows[name])
            for begin, shard in zip(self._begin[:-1], self._shards, strict=True)
            if name in shard.rows
        ]
        if not found:
            known = ", ".join(self.checkpoint_names) or "none"
            raise StoreError(f"checkpoint {name!r} is not in {str(self.path)!r}; stored are: {known}.")
        return found

    def _stored_layer(self, layer: int) -> int:
        wanted = schema.resolve_layer(layer, schema.n_layers_of(self.header))
        if wanted not in self.layers:
            raise StoreError(
                f"layer {layer} is not stored in {str(self.path)!r}; stored are: {', '.join(map(str, self.layers))}."
            )
        return wanted

    def _locate(self, index: int) -> tuple[ShardIndex, int]:
        if not 0 <= index < len(self):
            raise StoreError(f"episode {index} is not in {str(self.path)!r}; it holds {len(self)}, counted from 0.")
        place = int(np.searchsorted(self._begin, index, side="right")) - 1
        return self._shards[place], int(index - self._begin[place])


_STORED = frozenset(schema.EPISODE_COLUMNS)


def _check_unique(shards: Sequence[ShardIndex]) -> None:
    seen: dict[str, str] = {}
    for shard in shards:
        for episode_id in shard.episodes["episode_id"]:
            first = seen.setdefault(episode_id, shard.path.name)
            if first != shard.path.name:
                raise StoreError(
                    f"episode {episode_id!r} is in both {first} and {str(shard.path)!r}; move one of them out."
                )
