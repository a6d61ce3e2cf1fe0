"""The folder of a study: what was begun in it, and the episodes that it holds. Nothing stored is ever lost."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from probecascade.environments.tasks import write_whole
from probecascade.errors import DataError, StoreError
from probecascade.store.durable import take_lock

EPISODES, ABOUT, TORN = "episodes.jsonl", "study.json", "episodes.torn"
DEVELOPMENT = "development"
"""The folder, in that of a study, of the run on which its judges learn."""

_IDENTITY = ("model", "template", "recipe_identity", "study", "capture", "files", "development", "cascade")
"""What may not change when a study goes on: its judges are learnt once, for all of its episodes."""


@contextlib.contextmanager
def opened(folder: Path, header: Mapping[str, Any]) -> Iterator[None]:
    """Make the folder, or see that it holds this very study, and keep others out while it is played.

    StoreError for a folder that holds something else, or that another process plays.
    """
    if folder.exists() and not (folder / ABOUT).exists() and any(folder.iterdir()):
        raise StoreError(f"{str(folder)!r} holds no {ABOUT}, so it is no study: restore it, or choose another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    lock = take_lock(folder)
    try:
        _begin(folder, header)
        yield
    finally:
        os.close(lock)


def _begin(folder: Path, header: Mapping[str, Any]) -> None:
    kept = folder / ABOUT
    if not kept.exists():
        write_whole(kept, json.dumps(header, indent=2).encode())
        return
    try:
        stored = json.loads(kept.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"{kept} cannot be read ({error}): restore it, or choose another folder.") from error
    if not isinstance(stored, dict):
        raise StoreError(f"{kept} is no description of a study: restore it, or choose another folder.")
    wanted = json.loads(json.dumps(header))
    for key in _IDENTITY:
        if stored.get(key) != wanted.get(key):
            hint = " (groups in [tasks] has a say in it: --limit plays fewer)" if key == "development" else ""
            raise StoreError(
                f"{str(folder)!r} holds a study that differs in {key!r}{hint}: give the recipe, model and files that "
                "it was begun with, or choose another folder."
            )


def told(folder: Path, header: Mapping[str, Any], learnt: Mapping[str, Any]) -> None:
    """Keep what was learnt and what it cost beside what was begun."""
    write_whole(folder / ABOUT, json.dumps({**header, "learnt": learnt}, indent=2).encode())


def stored(path: Path) -> set[tuple[str, str]]:
    """Episodes and conditions that the file holds.

    A last line that is torn, as a killed process leaves it, is moved to a file of its own; DataError for any other
    line that is no episode.
    """
    if not path.exists():
        return set()
    content = path.read_bytes()
    *lines, last = content.split(b"\n")
    found = {_key(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)}
    if last:
        try:
            found.add(_key(last, str(path)))
        except DataError:
            _move(path, len(content) - len(last), last)
        else:
            with path.open("ab") as file:  # all of it is there but the end of its line
                file.write(b"\n")
    return found


def _key(line: bytes, where: str) -> tuple[str, str]:
    try:
        record = json.loads(line)
        return record["episode_id"], record["condition"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{where} is no episode of a study: restore the file.") from error


def _move(path: Path, length: int, torn: bytes) -> None:
    with path.with_name(TORN).open("ab") as file:
        file.write(torn + b"\n")
        file.flush()
        os.fsync(file.fileno())
    with path.open("r+b") as file:
        file.truncate(length)
        os.fsync(file.fileno())
