"""Writes that a crash cannot tear, and the lock that keeps a folder to one writer."""

from __future__ import annotations

import fcntl
import os
import uuid
from contextlib import suppress
from pathlib import Path

from probecascade.errors import StoreError


def write_synced(path: Path, data: bytes | memoryview) -> None:
    """A new file with this content, on the disk when the call returns. OSError if it exists."""
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes) -> None:
    """Put this content in place of the file at once: a reader sees the old or the new."""
    temporary = path.with_name(f".tmp-{path.name}-{uuid.uuid4().hex[:12]}")
    try:
        write_synced(temporary, data)
        os.replace(temporary, path)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make a rename in this folder survive a power cut, where the file system can."""
    folder = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems cannot sync a folder, and the rename stands anyway
            os.fsync(folder)
    finally:
        os.close(folder)


def take_lock(path: Path) -> int:
    """An exclusive lock on the folder, held until the descriptor is closed (or the process dies)."""
    lock = os.open(path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise StoreError(
            f"another process is writing to {str(path)!r}; wait until it has finished, or choose another folder."
        ) from error
    return lock


def remove_draft(draft: Path) -> None:
    """Take back a run folder that was begun and not renamed."""
    for leftover in (draft / "run.json", draft / ".lock"):
        with suppress(OSError):
            leftover.unlink()
    for folder in (draft / "shards", draft):
        with suppress(OSError):
            folder.rmdir()
