"""Files of text games: unpacking archives of them safely, and the tasks that they are.

Known are ALFWorld's games (`game.tw-pddl`, https://arxiv.org/abs/2010.03768) and TextWorld's (`.z8` with its `.json`
beside it, https://arxiv.org/abs/1806.11532). Nothing needs to be installed to read them.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from probecascade.environments.tasks import write_whole
from probecascade.episode import Part, Task
from probecascade.errors import DataError, UsageError

ALFWORLD_SUFFIX, TEXTWORLD_SUFFIX = ".tw-pddl", ".z8"
LARGEST_FILE = 64 * 2**20

_GOAL = re.compile(r'"rhs":\s*"Your task is to: ([^"]+?)\.?"')


def unpack_games(archive: str | os.PathLike[str], folder: str | os.PathLike[str]) -> int:
    """Unpack the games of an archive (zip or tar) below a folder and return how many files there were.

    Only files of games are written, each under its path in the archive; nothing else in it is touched. Raises
    UsageError if the archive cannot be opened; DataError if it is damaged, a path leads out of the folder, a file is
    larger than 64 MiB or exists already with other content, or there is no game.
    """
    source, target = Path(archive), Path(folder)
    count = 0
    try:
        for name, size, read in _members(source):
            place = PurePosixPath(name)
            if not _is_game_file(place):
                continue
            if place.is_absolute() or ".." in place.parts or "\\" in name:
                raise DataError(f"{source.name} holds {name!r}, which leads out of the folder")
            if size > LARGEST_FILE:
                raise DataError(f"{source.name} holds {name!r} of {size} bytes; no game is so large")
            _write_new(target / place, read())
            count += 1
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, ValueError, lzma.LZMAError, zlib.error) as error:
        raise DataError(f"{source.name} is not a whole zip or tar archive ({error}); fetch it again") from error
    except OSError as error:
        raise UsageError(f"{source} cannot be unpacked to {target} ({error.strerror or error})") from error
    if not count:
        raise DataError(f"{source.name} holds no game; give an archive with {ALFWORLD_SUFFIX} or .z8 files")
    return count


def _members(source: Path) -> Iterator[tuple[str, int, Callable[[], bytes]]]:
    """Name, size and content of every plain file of an archive."""
    if zipfile.is_zipfile(source):
        with zipfile.ZipFile(source) as packed:
            for entry in packed.infolist():
                if not entry.is_dir() and not stat.S_ISLNK(entry.external_attr >> 16):
                    yield entry.filename, entry.file_size, partial(packed.read, entry)
        return
    with tarfile.open(source) as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isfile() else None
            if content is not None:
                yield member.name, member.size, content.read


def game_tasks(folder: str | os.PathLike[str]) -> list[Task]:
    """The games below a folder as tasks, in order of their paths; those that are marked as not solvable are left out.

    An ALFWorld game is called after its two folders, as in recorded runs of it, and its group is its type and scene:
    the same room with another object is no new ground. A TextWorld game is called after its path, its own group. The
    one part of a task is the goal, without answers: a game tells itself when it is won. `attributes["game"]` is the
    path of its file below the folder. Raises UsageError if there is no folder, DataError for a damaged game, for two
    of one name and if there is none.
    """
    root = Path(folder)
    if not root.is_dir():
        raise UsageError(f"there is no folder {root}; unpack the games and give their folder")
    tasks: dict[str, Task] = {}
    for path in game_paths(root):
        task = game_task(path, root)
        if task is None:
            continue
        if task.task_id in tasks:
            raise DataError(f"two games below {root} are called {task.task_id!r}; keep one of them")
        tasks[task.task_id] = task
    if not tasks:
        raise DataError(f"there is no game to play below {root}; give a folder with {ALFWORLD_SUFFIX} or .z8 files")
    return list(tasks.values())


def game_paths(root: Path) -> list[Path]:
    """The files of games below a folder, in order."""
    return sorted(path for path in root.rglob("*") if path.suffix in (ALFWORLD_SUFFIX, TEXTWORLD_SUFFIX))


def game_task(path: Path, root: Path) -> Task | None:
    """The task that one game is; None if it is marked as not solvable. DataError for a damaged game."""
    return _alfworld_task(path, root) if path.suffix == ALFWORLD_SUFFIX else _textworld_task(path, root)


def game_file(folder: str | os.PathLike[str], task: Task) -> Path:
    """Where the game of a task is. DataError for a task without one, or with one outside the folder."""
    game = task.attributes.get("game")
    if not isinstance(game, str):
        raise DataError(f"task {task.task_id!r} names no game; make tasks with game_tasks")
    place = PurePosixPath(game)
    if place.is_absolute() or ".." in place.parts:
        raise DataError(f"the game {game!r} of task {task.task_id!r} is outside the folder of games")
    return Path(folder) / game


def games_digest(folder: str | os.PathLike[str]) -> str:
    """SHA-256 of all games below a folder, their places included: another one after any change."""
    root, digest = Path(folder), hashlib.sha256()
    for path in game_paths(root):
        beside = [path.with_suffix(".json")] if path.suffix == TEXTWORLD_SUFFIX else []
        for part in filter(Path.is_file, (path, *beside)):
            content = hashlib.sha256(part.read_bytes()).hexdigest()
            digest.update(f"{part.relative_to(root).as_posix()}\0{content}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _alfworld_task(path: Path, root: Path) -> Task | None:
    game = read_game(path)
    if not game.get("solvable", True):
        return None
    grammar = game.get("grammar")
    goal = _GOAL.search(grammar) if isinstance(grammar, str) else None
    if goal is None or not all(isinstance(game.get(key), str) for key in ("pddl_domain", "pddl_problem")):
        raise DataError(f"{path} is no ALFWorld game: it lacks a goal, a domain or a problem; fetch it again")
    kind, _, rest = path.parent.parent.name.partition("-")
    scene = rest.rpartition("-")[2]
    attributes = {"set": "alfworld", "type": kind, "scene": scene, "game": path.relative_to(root).as_posix()}
    name = f"{path.parent.parent.name}/{path.parent.name}"
    return Task(name, f"{kind}-{scene}", (Part(goal[1], ()),), attributes=attributes)


def _textworld_task(path: Path, root: Path) -> Task:
    beside = path.with_suffix(".json")
    if not beside.is_file():
        raise DataError(f"{path} has no {beside.name} beside it, which says what is to be done; make the game anew")
    objective = read_game(beside).get("objective")
    if not isinstance(objective, str) or not objective.strip():
        raise DataError(f"{beside} tells no objective; make the game anew")
    name = path.relative_to(root).with_suffix("").as_posix()
    attributes = {"set": "textworld", "game": path.relative_to(root).as_posix()}
    return Task(name, name, (Part(objective, ()),), attributes=attributes)


def read_game(path: Path) -> dict[str, Any]:
    """The JSON of a game or of the file beside it. DataError, naming the file, if it cannot be read or is no JSON."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"the game {path} cannot be read ({error.strerror}); give the folder of the games") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON ({error}); fetch or make it again") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} holds no game; fetch or make it again")
    return content


def _is_game_file(place: PurePosixPath) -> bool:
    return place.suffix in (ALFWORLD_SUFFIX, TEXTWORLD_SUFFIX, ".json")


def _write_new(path: Path, content: bytes) -> None:
    if path.exists():
        if path.read_bytes() != content:
            raise DataError(f"{path} exists with other content; unpack into an empty folder")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content)
