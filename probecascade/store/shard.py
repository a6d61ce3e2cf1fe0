"""Reading one shard: its columns at once, its vectors by slices, its episodes one by one.

Files are opened anew for every read: no handle is ever shared with a forked process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from probecascade.episode import SIGNALS, Checkpoint, Episode, Step
from probecascade.errors import StoreError
from probecascade.store import schema
from probecascade.store.transcript import OUTCOMES, load_transcript


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """A shard's columns without its vectors, transcripts and token ids. `rows` maps a name to its slice."""

    path: Path
    episodes: Mapping[str, NDArray[Any]]
    checkpoints: Mapping[str, NDArray[Any]]
    signals: NDArray[np.float32]
    checks: Mapping[str, NDArray[np.float64]]
    rows: Mapping[str, slice]

    @property
    def n_episodes(self) -> int:
        return len(self.episodes["episode_id"])


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A whole shard, open for reading. StoreError naming the file if it is damaged or gone."""
    try:
        # Whole shards never change, so the lock would protect nothing, and some file systems have none.
        with h5py.File(path, "r", locking=False) as file:
            yield file
    except FileNotFoundError as error:
        raise StoreError(f"shard {str(path)!r} is gone; restore it, or open the run again without it.") from error
    except (OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise StoreError(
            f"shard {str(path)!r} is damaged ({error}); restore it from a copy, or move it out of the run "
            "and extract with --resume to redo its episodes."
        ) from error


def read_index(path: Path, layers: Sequence[int], d_model: int, dtype: str) -> ShardIndex:
    """Columns of a shard. StoreError naming the file if it is damaged or not what the run says it holds."""
    with opened(path) as file:
        version = int(file.attrs["format"])
        if version > schema.FORMAT:
            raise StoreError(
                f"shard {str(path)!r} has format {version}, newer than {schema.FORMAT}; update probecascade."
            )
        episodes = _read_columns(file["episodes"], schema.EPISODE_COLUMNS)
        checkpoints = _read_columns(file["checkpoints"], schema.CHECKPOINT_COLUMNS)
        n_rows = len(checkpoints["kind"])
        signals = np.empty((n_rows, len(SIGNALS)), dtype=np.float32)
        for slot, name in enumerate(SIGNALS):
            signals[:, slot] = file["checkpoints/signals"][name][:]
        stored = file["checkpoints"].get("checks", {})
        checks = {str(name): stored[name][:].astype(np.float64) for name in stored}
        unknown = set(episodes["outcome"]) - set(OUTCOMES)
        if unknown:
            raise ValueError(f"unknown outcomes {sorted(unknown)}")
        _check_hidden(path, file["hidden"], layers, (n_rows, d_model), dtype)
    return ShardIndex(path, episodes, checkpoints, signals, checks, _name_slices(path, checkpoints))


def _read_columns(group: Any, columns: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    read: dict[str, NDArray[Any]] = {}
    for name, kind in columns.items():
        stored = group[name][:]
        if kind is schema.TEXT:
            # Object, not fixed-width, strings: numpy drops a trailing NUL from the latter.
            values = np.empty(len(stored), dtype=object)
            values[:] = [schema.decode_text(value) for value in stored]
        else:
            values = stored.astype(kind)
        read[name] = values
    lengths = {name: len(values) for name, values in read.items()}
    if len(set(lengths.values())) != 1:
        raise ValueError(f"columns differ in length: {lengths}")
    return read


def _check_hidden(path: Path, group: Any, layers: Sequence[int], shape: tuple[int, int], dtype: str) -> None:
    stored = sorted(int(name) for name in group)
    if stored != sorted(layers):
        raise StoreError(
            f"shard {str(path)!r} holds layers {stored}, but the run holds {sorted(layers)}; it belongs to "
            "another run: move it out."
        )
    for layer in layers:
        data = group[str(layer)]
        said = data.attrs.get("dtype")
        if data.dtype.kind == "V":
            raise StoreError(
                f"shard {str(path)!r} holds layer {layer} as opaque values ({data.dtype}) that cannot be "
                f"read as numbers; expected {dtype}, with bfloat16 as uint16 and the attribute "
                "dtype='bfloat16': write it again with probecascade."
            )
        if data.shape != shape or data.dtype != schema.DTYPES[dtype] or said != dtype:
            raise StoreError(
                f"shard {str(path)!r} holds layer {layer} as {said or data.dtype} of shape {data.shape}, but "
                f"the run says {dtype} of shape {shape}; it belongs to another run: move it out."
            )


def _name_slices(path: Path, checkpoints: Mapping[str, NDArray[Any]]) -> dict[str, slice]:
    kinds = checkpoints["kind"]
    numbers = np.where(kinds == "prompt", 0, checkpoints["index"])  # `prompt` is one name whatever its index
    if not len(kinds):
        return {}
    changed = (kinds[1:] != kinds[:-1]) | (numbers[1:] != numbers[:-1])
    starts = np.concatenate(([0], np.flatnonzero(changed) + 1))
    stops = np.concatenate((starts[1:], [len(kinds)]))
    names = [schema.checkpoint_name(str(kinds[start]), int(numbers[start])) for start in starts]
    if len(set(names)) != len(names):
        raise StoreError(f"shard {str(path)!r} is damaged (rows of one checkpoint lie apart); restore it from a copy.")
    return {name: slice(int(a), int(b)) for name, a, b in zip(names, starts, stops, strict=True)}


def read_states(path: Path, layer: int, rows: slice, dtype: str) -> NDArray[np.float32]:
    """One contiguous slice of one layer, (n, d_model) float32; nothing else is read."""
    with opened(path) as file:
        return schema.decode(file["hidden"][str(layer)][rows], dtype)


def read_hidden(path: Path, layers: Sequence[int]) -> NDArray[Any]:
    """All states of a shard, (n_rows, n_layers, d_model) in the stored dtype."""
    with opened(path) as file:
        return np.stack([file["hidden"][str(layer)][:] for layer in layers], axis=1)


def read_episode(index: ShardIndex, row: int) -> Episode:
    """The full record of the episode in this row of the shard."""
    with opened(index.path) as file:
        group = file["episodes"]
        begin, end = (int(offset) for offset in group["token_offset"][row : row + 2])
        token_ids = group["token_ids"][begin:end].astype(np.int32)
        steps, attributes, decision = load_transcript(group["transcript"][row].decode("ascii"))
    fact = {name: values[row] for name, values in index.episodes.items()}
    return Episode(
        episode_id=fact["episode_id"],
        task_id=fact["task_id"],
        group=fact["group"],
        seed=int(fact["seed"]),
        outcome=fact["outcome"],
        reward=float(fact["reward"]),
        reason=fact["reason"],
        steps=steps,
        checkpoints=tuple(read_checkpoint(index, position) for position in rows_of(index, row)),
        token_ids=token_ids,
        prompt_tokens=int(fact["prompt_tokens"]),
        generated=int(fact["generated"]),
        observed=int(fact["observed"]),
        calls=int(fact["calls"]),
        seconds=float(fact["seconds"]),
        side_tokens=int(fact["side_tokens"]),
        doomed_round=_optional(fact["doomed_round"]),
        doomed_tokens=_optional(fact["doomed_tokens"]),
        decision=decision,
        attributes=attributes,
    )


def read_steps(index: ShardIndex) -> list[tuple[Step, ...]]:
    """The steps of every episode of the shard, in its order."""
    with opened(index.path) as file:
        return [load_transcript(text.decode("ascii"))[0] for text in file["episodes"]["transcript"][:]]


def rows_of(index: ShardIndex, row: int) -> NDArray[np.intp]:
    """Checkpoint rows of the episode in this row, in the episode's own order."""
    rows = np.flatnonzero(index.checkpoints["episode"] == row)
    return rows[np.argsort(index.checkpoints["ordinal"][rows], kind="stable")]


def _optional(value: Any) -> int | None:
    return None if value < 0 else int(value)


def read_checkpoint(index: ShardIndex, row: int) -> Checkpoint:
    """The checkpoint in this row of the shard's checkpoints."""

    def fact(name: str, kind: Callable[[Any], Any]) -> Any:
        return kind(index.checkpoints[name][row])

    return Checkpoint(
        kind=fact("kind", str),
        index=fact("index", int),
        round=fact("round", int),
        position=fact("position", int),
        tokens=fact("tokens", int),
        generated=fact("generated", int),
        calls=fact("calls", int),
        seconds=fact("seconds", float),
        final=fact("final", bool),
        signals=tuple(index.signals[row].tolist()),
        checks={name: float(values[row]) for name, values in index.checks.items() if not np.isnan(values[row])},
    )
