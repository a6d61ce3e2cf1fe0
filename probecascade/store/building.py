"""Building the bytes of one shard from finished episodes.

A shard is built in memory and written as plain bytes, so that a full disk is an ordinary OSError and never a
half-closed HDF5 file.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from probecascade.episode import SIGNALS, Episode
from probecascade.store import schema
from probecascade.store.transcript import checkpoint_columns, dump_transcript, episode_columns

_CHUNK_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Entry:
    """An episode ready to be stored: `hidden` is (n_checkpoints, n_layers, d_model) in the stored dtype."""

    episode: Episode
    transcript: str
    hidden: NDArray[Any]
    rejected_non_finite: int
    rejected_overflow: int


def make_entry(episode: Episode, hidden: NDArray[Any], non_finite: int, overflow: int) -> Entry:
    """An entry whose transcript is JSON already, so that a value JSON cannot hold is refused at once."""
    return Entry(episode, dump_transcript(episode), hidden, non_finite, overflow)


def build_shard(entries: Sequence[Entry], layers: Sequence[int], dtype: str) -> memoryview:
    """The bytes of an HDF5 file with these episodes in this order."""
    buffer = io.BytesIO()
    with h5py.File(buffer, "x") as file:
        file.attrs["format"] = schema.FORMAT
        _write_episodes(file.create_group("episodes"), entries)
        order = _row_order(entries)
        _write_checkpoints(file.create_group("checkpoints"), entries, order)
        hidden = file.create_group("hidden")
        for slot, layer in enumerate(layers):
            rows = [entries[number].hidden[ordinal, slot] for number, ordinal in order]
            width = entries[0].hidden.shape[2]
            data = np.array(rows, dtype=schema.DTYPES[dtype]).reshape(len(rows), width)
            _write_hidden(hidden, str(layer), data, dtype)
    return buffer.getbuffer()


def _row_order(entries: Sequence[Entry]) -> list[tuple[int, int]]:
    """(episode row, ordinal) of every checkpoint, grouped by name; episodes keep their order in a group."""
    by_name: dict[str, list[tuple[int, int]]] = {}
    for number, entry in enumerate(entries):
        for ordinal, checkpoint in enumerate(entry.episode.checkpoints):
            by_name.setdefault(checkpoint.name, []).append((number, ordinal))
    return [row for rows in by_name.values() for row in rows]


def _write_hidden(group: Any, name: str, data: NDArray[Any], dtype: str) -> None:
    options: dict[str, Any] = {}
    if len(data):
        rows = max(1, min(len(data), _CHUNK_BYTES // max(1, data[0].nbytes)))
        options = {"chunks": (rows, data.shape[1]), "fletcher32": True}
    group.create_dataset(name, data=data, **options).attrs["dtype"] = dtype


def _write_episodes(group: Any, entries: Sequence[Entry]) -> None:
    rows = [
        episode_columns(entry.episode)
        | {"rejected_non_finite": entry.rejected_non_finite, "rejected_overflow": entry.rejected_overflow}
        for entry in entries
    ]
    _write_columns(group, schema.EPISODE_COLUMNS, rows)
    _write_text(group, "transcript", [entry.transcript.encode("ascii") for entry in entries])
    ids = [np.asarray(entry.episode.token_ids, dtype=np.int32) for entry in entries]
    group.create_dataset("token_ids", data=np.concatenate(ids))
    group.create_dataset("token_offset", data=np.cumsum([0, *map(len, ids)], dtype=np.int64))


def _write_checkpoints(group: Any, entries: Sequence[Entry], order: Sequence[tuple[int, int]]) -> None:
    kept = [entries[number].episode.checkpoints[ordinal] for number, ordinal in order]
    rows = [
        checkpoint_columns(checkpoint) | {"episode": number, "ordinal": ordinal}
        for checkpoint, (number, ordinal) in zip(kept, order, strict=True)
    ]
    _write_columns(group, schema.CHECKPOINT_COLUMNS, rows)
    signals = group.create_group("signals")
    for slot, name in enumerate(SIGNALS):
        column = np.array([checkpoint.signals[slot] for checkpoint in kept], dtype=np.float32)
        signals.create_dataset(name, data=column)
    names = sorted({name for checkpoint in kept for name in checkpoint.checks})
    if names:
        checks = group.create_group("checks")
        for name in names:
            data = np.array([checkpoint.checks.get(name, np.nan) for checkpoint in kept], dtype=np.float64)
            checks.create_dataset(name, data=data)


def _write_columns(group: Any, columns: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    for name, kind in columns.items():
        if kind is schema.TEXT:
            _write_text(group, name, [schema.encode_text(row[name]) for row in rows])
        else:
            group.create_dataset(name, data=np.array([row[name] for row in rows], dtype=kind))


def _write_text(group: Any, name: str, values: Sequence[bytes]) -> None:
    data = np.empty(len(values), dtype=object)
    data[:] = values
    group.create_dataset(name, data=data, dtype=h5py.string_dtype("utf-8"))
