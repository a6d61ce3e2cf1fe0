"""Writing a run: one writer at a time, whole shards only, nothing ever overwritten."""

from __future__ import annotations

import errno
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from probecascade.episode import SIGNALS, Recording
from probecascade.errors import DuplicateEpisodeError, StoreError
from probecascade.store import schema
from probecascade.store.building import Entry, build_shard, make_entry
from probecascade.store.durable import remove_draft, replace_file, sync_folder, take_lock, write_synced
from probecascade.store.layout import (
    check_resumable,
    full_header,
    json_bytes,
    list_incomplete,
    list_shards,
    now,
    read_header,
    shard_number,
)
from probecascade.store.shard import read_index
from probecascade.store.transcript import check_episode

_FLUSH_BYTES = 64 * 1024 * 1024
_TOLERATED = 0.1  # share of refused checkpoints that a run survives ...
_TOLERATED_FROM = 50  # ... once this many were offered


@dataclass(slots=True)
class _OpenShard:
    """Episodes that will become one file, by id."""

    final: Path
    entries: dict[str, Entry] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(entry.hidden.nbytes for entry in self.entries.values())


class RunWriter:
    """Adds episodes to a run folder; as a context manager it stores what was added even after Ctrl-C.

    `path` is created together with `run.json`; an existing one needs `resume=True`, and then the header must
    agree with the stored one in all that decides what the vectors mean. `header` holds JSON values under the
    caller's own keys (`model`, `n_layers`, `template`, `checkpoints`, `recipe`, `versions`, ...). `layers`
    may count from the last block (negative) if the header states `n_layers`. A shard is written after
    `flush_episodes` episodes, or when `flush_seconds` have passed since the last one (looked at whenever an
    episode is added), or sooner if it grows big.

    Raises StoreError: path exists, header differs, layers or dtype cannot be stored, another writer is at
    work.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        header: Mapping[str, Any],
        *,
        layers: Sequence[int],
        d_model: int,
        dtype: str = "float16",
        resume: bool = False,
        flush_episodes: int = 32,
        flush_seconds: float = 60.0,
    ) -> None:
        self.path = Path(path)
        if d_model < 1:
            raise StoreError(f"d_model is {d_model}; expected the width of the model's hidden states.")
        self.d_model = d_model
        self.dtype = schema.check_dtype(dtype)
        self.layers = schema.resolve_layers(layers, schema.n_layers_of(header))
        self._flush_episodes = flush_episodes
        self._flush_seconds = flush_seconds
        self._stored: set[str] = set()
        self._offered = self._non_finite = self._overflow = 0
        self._failed = False
        self._lock = -1
        full = full_header(header, layers=self.layers, d_model=d_model, dtype=dtype)
        if not self.path.exists():
            self.header = full
            self._create()
        elif resume:
            self._resume(full)
        else:
            raise StoreError(
                f"{str(self.path)!r} exists already; add --resume to continue that run, or choose another folder."
            )
        number = 1 + max((shard_number(shard) for shard in list_shards(self.path)), default=-1)
        self._open = self._open_shard(number)
        self._flushed_at = time.monotonic()

    @property
    def stored(self) -> frozenset[str]:
        """Ids of the episodes in whole shards, those of earlier writers included."""
        return frozenset(self._stored)

    @property
    def pending(self) -> int:
        """Episodes added but not yet in a whole shard."""
        return len(self._open.entries)

    @property
    def rejected(self) -> int:
        """Checkpoints of this run that were left out: NaN, infinite, or beyond the stored dtype."""
        return self._non_finite + self._overflow

    def add(self, recording: Recording) -> None:
        """Take an episode with its hidden states, (n_checkpoints, n_layers, d_model), layers as the writer's.

        A checkpoint with a non-finite state or signal, or with a value that the dtype cannot hold, is left
        out and counted; the episode stays. Raises DuplicateEpisodeError, or StoreError for shapes or values
        that cannot be stored, when more than 10 % of the checkpoints had to be left out, and when the disk
        refuses the shard.
        """
        self._settle()
        if self._lock < 0:
            raise StoreError(f"the writer of {str(self.path)!r} is closed; open a new one with resume=True.")
        episode = recording.episode
        if episode.episode_id in self._stored or episode.episode_id in self._open.entries:
            raise DuplicateEpisodeError(
                f"episode {episode.episode_id!r} is already in {str(self.path)!r}; skip the ids in `stored`, "
                "or give the repeat an id of its own."
            )
        check_episode(episode)
        entry = self._entry(recording)
        self._open.entries[episode.episode_id] = entry
        self._offered += len(episode.checkpoints)
        self._non_finite += entry.rejected_non_finite
        self._overflow += entry.rejected_overflow
        big = self._open.nbytes >= _FLUSH_BYTES
        late = time.monotonic() - self._flushed_at >= self._flush_seconds
        if big or late or len(self._open.entries) >= self._flush_episodes:
            self.flush()
        self._check_tolerance()

    def flush(self) -> None:
        """Write what was added as one whole shard: under a temporary name, synced, then renamed."""
        self._settle()
        shard = self._open
        if not shard.entries:
            return
        temporary = shard.final.with_name(f".tmp-{shard.final.name}")
        try:
            write_synced(temporary, build_shard(list(shard.entries.values()), self.layers, self.dtype))
            os.replace(temporary, shard.final)
        except OSError as error:
            self._failed = True
            raise self._write_error(error) from error
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()
        sync_folder(shard.final.parent)
        self._settle()

    def close(self) -> None:
        """Store what was added and let go of the folder. Does nothing the second time."""
        if self._lock < 0:
            return
        try:
            if not self._failed:
                self.flush()
        finally:
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _settle(self) -> None:
        """Count the open shard as stored once its file is there.

        The rename, not a line of Python after it, is what stores a shard: Ctrl-C may come between the two,
        and the same episodes must not be written twice.
        """
        shard = self._open
        if shard.entries and shard.final.exists():
            self._stored.update(shard.entries)
            self._open = self._open_shard(shard_number(shard.final) + 1)
            self._flushed_at = time.monotonic()
            self._failed = False

    def _open_shard(self, number: int) -> _OpenShard:
        return _OpenShard(self.path / "shards" / f"{number:05d}-{uuid.uuid4().hex[:12]}.h5")

    def _entry(self, recording: Recording) -> Entry:
        episode, hidden = recording.episode, np.asarray(recording.hidden)
        expected = (len(episode.checkpoints), len(self.layers), self.d_model)
        if hidden.shape != expected or hidden.dtype.kind != "f":
            raise StoreError(
                f"episode {episode.episode_id!r} came with states of shape {hidden.shape} and dtype "
                f"{hidden.dtype}; expected floats of shape {expected}: checkpoints, layers, d_model."
            )
        with np.errstate(over="ignore"):
            signals = np.array([c.signals for c in episode.checkpoints], dtype=np.float32)
        finite = np.isfinite(hidden).all(axis=(1, 2))
        finite &= np.isfinite(signals.reshape(len(hidden), len(SIGNALS))).all(axis=1)
        encoded = schema.encode(hidden, self.dtype)
        keep = np.asarray(finite & schema.is_finite(encoded, self.dtype).all(axis=(1, 2)))
        kept = tuple(c for c, good in zip(episode.checkpoints, keep.tolist(), strict=True) if good)
        return make_entry(
            replace(episode, checkpoints=kept),
            encoded[keep],
            non_finite=int((~finite).sum()),
            overflow=int((finite & ~keep).sum()),
        )

    def _check_tolerance(self) -> None:
        if self._offered < _TOLERATED_FROM or self.rejected <= _TOLERATED * self._offered:
            return
        raise StoreError(
            f"{self.rejected} of {self._offered} checkpoints were left out of {str(self.path)!r} "
            f"({self._non_finite} NaN or infinite, {self._overflow} too large for {self.dtype}), more than "
            f"{_TOLERATED:.0%}; store another dtype (bfloat16, float32) or check the model."
        )

    def _write_error(self, error: OSError) -> StoreError:
        kept = f"what was stored ({len(self._stored)} episodes) stays readable"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return StoreError(f"disk full while writing to {str(self.path)!r}; {kept}; free space and resume.")
        reason = error.strerror or error
        return StoreError(f"cannot write to {str(self.path)!r} ({reason}); {kept}; mend that and resume.")

    def _create(self) -> None:
        """Fill a folder beside the final one and rename it: a run never exists without its `run.json`."""
        draft = self.path.with_name(f".{self.path.name}.tmp-{uuid.uuid4().hex[:12]}")
        try:
            (draft / "shards").mkdir(parents=True)
            write_synced(draft / "run.json", json_bytes(self.header))
            self._lock = take_lock(draft)
            draft.rename(self.path)
            sync_folder(self.path.parent)
        except BaseException as error:
            self._release()
            remove_draft(draft)
            if not isinstance(error, OSError):
                raise
            reason = error.strerror or error
            raise StoreError(
                f"cannot create the run folder {str(self.path)!r} ({reason}); choose another folder."
            ) from error

    def _resume(self, full: Mapping[str, Any]) -> None:
        stored = read_header(self.path)
        check_resumable(self.path, stored, full)
        self._lock = take_lock(self.path)
        try:
            self._read_stored()
            stale = list_incomplete(self.path)
            for leftover in stale:
                leftover.unlink()
            note = {
                "at": now(),
                "episodes": len(self._stored),
                "incomplete_removed": len(stale),
                "versions": full["versions"],
            }
            # Read again under the lock: another writer may have finished between the check and the lock.
            current = read_header(self.path)
            self.header = current | {"resumed": [*current.get("resumed", []), note]}
            replace_file(self.path / "run.json", json_bytes(self.header))
        except OSError as error:
            self._release()
            raise StoreError(f"cannot resume {str(self.path)!r} ({error.strerror or error}).") from error
        except BaseException:
            self._release()
            raise

    def _read_stored(self) -> None:
        for path in list_shards(self.path):
            index = read_index(path, self.layers, self.d_model, self.dtype)
            self._stored.update(index.episodes["episode_id"])
            self._non_finite += int(index.episodes["rejected_non_finite"].sum())
            self._overflow += int(index.episodes["rejected_overflow"].sum())
            self._offered += len(index.checkpoints["kind"])
        self._offered += self.rejected

    def _release(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
