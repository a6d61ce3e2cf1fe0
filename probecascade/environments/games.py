"""Text games: TextWorld's own (`.z8` with its `.json` beside it) and ALFWorld's (`game.tw-pddl`), as tasks to play.

They need `textworld[pddl]` and `alfworld`, the extra `games`; see https://arxiv.org/abs/1806.11532 and
https://arxiv.org/abs/2010.03768. Glulx games (`.ulx`) are not played by TextWorld since its version 1.7.
"""

from __future__ import annotations

import json
import os
import re
import tarfile
import warnings
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from probecascade.episode import Action, Foresight, Observation, Part, Task
from probecascade.errors import DataError, UsageError

ALFWORLD_SUFFIX, TEXTWORLD_SUFFIX = ".tw-pddl", ".z8"
STEPS = 50
"""Commands of an episode, as in ALFWorld's own evaluation."""

LONGEST_COMMAND = 120
LARGEST_FILE = 64 * 2**20

_GOAL = re.compile(r'"rhs":\s*"Your task is to: ([^"]+?)\.?"')
_STATUS = re.compile(r"\n>[^\n]*\Z|\n>\s*\Z")  # the prompt of a Z-machine and its line of room and score
_BANNER = re.compile(r"\A-= Welcome to TextWorld[^\n]*=-\s*")
_META = frozenset(("q", "quit", "restart", "restore", "save", "script", "transcript", "undo", "unscript", "verify"))


def unpack_games(archive: str | os.PathLike[str], folder: str | os.PathLike[str]) -> int:
    """Unpack the games of a tar archive (plain, gz, bz2 or xz) below a folder and return how many files there were.

    Only files of games are written, each under its path in the archive; nothing else in it is touched. Raises
    UsageError if the archive cannot be opened; DataError if it is damaged, a path leads out of the folder, a file is
    larger than 64 MiB or exists already with other content, or there is no game.
    """
    source, target = Path(archive), Path(folder)
    count = 0
    try:
        with tarfile.open(source) as tar:
            for member in tar:
                place = PurePosixPath(member.name)
                if not member.isfile() or not _is_game_file(place):
                    continue
                if place.is_absolute() or ".." in place.parts or "\\" in member.name:
                    raise DataError(f"{source.name} holds {member.name!r}, which leads out of the folder")
                if member.size > LARGEST_FILE:
                    raise DataError(f"{source.name} holds {member.name!r} of {member.size} bytes; no game is so large")
                content = tar.extractfile(member)
                assert content is not None  # it is a file
                _write_new(target / place, content.read())
                count += 1
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise DataError(f"{source.name} is not a whole tar archive ({error}); fetch it again") from error
    except OSError as error:
        raise UsageError(f"{source} cannot be unpacked to {target} ({error.strerror or error})") from error
    if not count:
        raise DataError(f"{source.name} holds no game; give an archive with {ALFWORLD_SUFFIX} or .z8 files")
    return count


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
    for path in sorted(root.rglob("*")):
        if path.suffix not in (ALFWORLD_SUFFIX, TEXTWORLD_SUFFIX):
            continue
        task = _alfworld_task(path, root) if path.suffix == ALFWORLD_SUFFIX else _textworld_task(path, root)
        if task is None:
            continue
        if task.task_id in tasks:
            raise DataError(f"two games below {root} are called {task.task_id!r}; keep one of them")
        tasks[task.task_id] = task
    if not tasks:
        raise DataError(f"there is no game to play below {root}; give a folder with {ALFWORLD_SUFFIX} or .z8 files")
    return list(tasks.values())


class TextGameEnvironment:
    """`do[command]` plays a command; `finish[...]` gives up.

    An episode ends when the game is won (reward 1.0) or lost, after `steps` commands, and with a finish (0.0). Whether
    a game that goes on can still be won is not known. A command that the game did not carry out is answered with an
    observation of kind `invalid`, in the game's own words; commands about the game itself (save, undo, quit) are
    refused. `folder` is that of `game_tasks`.

    One instance plays one episode at a time; several may play at once.
    """

    tools: Sequence[str] = ("do", "finish")
    usage = "Do[command] or Finish[reason]"

    def __init__(self, folder: str | os.PathLike[str], steps: int = STEPS) -> None:
        if steps < 1:
            raise UsageError(f"the number of commands is {steps}; an episode needs at least 1")
        self.folder = Path(folder)
        self.steps = steps
        self._game: Any = None
        self._over = True

    def __del__(self) -> None:
        self._close()

    def reset(self, task: Task) -> str:
        """Start the game of a task and return what it says at first: the scene, then the goal.

        Raises UsageError where the extra `games` is not installed, DataError for a task without a game or a game that
        cannot be played.
        """
        self._close()
        path = self.folder / _game_of(task)
        try:
            with warnings.catch_warnings(action="ignore"):  # that the Z-machine keeps no score of unknown games
                self._game = _open(path)
                self._state = self._game.reset()
        except (UsageError, DataError):
            raise
        except Exception as error:  # a foreign engine fails in any way
            problem = (str(error).strip().splitlines() or [""])[0][:120]
            raise DataError(f"{path} cannot be played ({type(error).__name__}: {problem}); fetch it again") from error
        self._over = False
        self._done = 0
        if path.suffix == ALFWORLD_SUFFIX:
            return _said(_BANNER.sub("", self._state.feedback))
        return _said(f"{self._state.description}\n{self._state.objective}")

    @property
    def admissible(self) -> tuple[str, ...]:
        """The commands that the game lists as possible now."""
        self._live()
        return tuple(self._state.admissible_commands)

    @property
    def plan(self) -> tuple[str, ...]:
        """Commands that win from here, by the planner of a PDDL game, from the start by the maker of a TextWorld game.

        The planner is not asked before: it takes its time. Empty if it finds none.
        """
        self._live()
        if hasattr(self._game, "downward_lib"):
            return tuple(self._game._pddl_state.replan(self._state["_entity_infos"]))
        return tuple(self._state["extra.walkthrough"] or ())

    def foresee(self, action: Action) -> Foresight:
        """A finish is final; that a command will win is not foreseen.

        Checks, 0 or 1: `tool_exists`; `argument_well_formed`: not empty, on one line, at most `LONGEST_COMMAND`
        long; `admissible`: the game lists the command as possible now (any case).
        """
        self._live()
        usable = action.valid and action.name in self.tools
        written = action.argument.strip()
        formed = usable and 0 < len(written) <= LONGEST_COMMAND and "\n" not in written
        checks = {
            "tool_exists": float(usable),
            "argument_well_formed": float(formed),
            "admissible": float(formed and action.name == "do" and self._listed(written) is not None),
        }
        return Foresight(final=action.name == "finish" and not self._refusal(action), checks=checks)

    def step(self, action: Action) -> Observation:
        """Play a command or give up. Raises UsageError before `reset` and after the end."""
        self._live()
        refusal = self._refusal(action)
        if refusal:
            return Observation(f"Invalid action. {refusal}", "invalid")
        if action.name == "finish":
            return self._ended("Finished.", won=False)
        before = self._state.moves
        command = " ".join(action.argument.split())
        self._state, _, done = self._game.step(self._listed(command) or command)
        self._done += 1
        text = _said(self._state.feedback) or "Nothing happens."
        if done or self._done == self.steps:
            return self._ended(text, bool(self._state.won))
        return Observation(text, "content" if self._state.moves > before else "invalid")

    def _ended(self, text: str, won: bool) -> Observation:
        self._close()
        return Observation(text, "finish", True, float(won), not won)

    def _live(self) -> None:
        if self._over:
            raise UsageError("no game is being played; call reset(task) first")

    def _refusal(self, action: Action) -> str:
        if not action.valid:
            return action.problem
        if action.name not in self.tools:
            return f"There is no tool {action.name!r}; use {self.usage}."
        written = action.argument.split()
        if not written:
            return f"{action.name.capitalize()}[] is empty; write something between the brackets."
        if action.name == "do" and len(" ".join(written)) > LONGEST_COMMAND:
            return f"A command has at most {LONGEST_COMMAND} characters."
        if action.name == "do" and written[0].casefold() in _META:
            return f"{written[0]!r} is no command of the game."
        return ""

    def _listed(self, command: str) -> str | None:
        """The admissible command that is meant, in the game's own spelling."""
        wanted = " ".join(command.split()).casefold()
        return next((listed for listed in self._state.admissible_commands if listed.casefold() == wanted), None)

    def _close(self) -> None:
        self._over = True
        game, self._game = getattr(self, "_game", None), None
        if game is None:
            return
        game.close()
        if hasattr(game, "downward_lib"):
            from fast_downward import close_lib

            close_lib(game.downward_lib)  # each game has a library of its own, which TextWorld never gives back


def _open(path: Path) -> Any:
    """The game at a path, ready to be reset, telling what an episode needs to know."""
    try:
        import textworld
        from alfworld.agents.utils.misc import Demangler
        from textworld.envs.pddl import PddlEnv
    except ImportError as error:
        raise UsageError("text games need the extra `games`: pip install 'probecascade[games]'") from error
    told = dict.fromkeys(("won", "lost", "moves", "admissible_commands"), True)
    if path.suffix != ALFWORLD_SUFFIX:
        told |= {"description": True, "objective": True}
        return textworld.start(str(path), textworld.EnvInfos(**told, extras=["walkthrough"]))
    game = PddlEnv(textworld.EnvInfos(**told))
    game.load(_read_json(path))  # not the path: TextWorld would leave the file open
    names = Demangler(game_infos=game._entity_infos)
    for info in game._entity_infos.values():
        info.name = names.demangle_alfred_name(info.id)
    return game


def _said(feedback: str) -> str:
    """What a game said, without its prompt and blank lines."""
    lines = (" ".join(line.split()) for line in _STATUS.sub("", feedback).splitlines())
    return "\n".join(line for line in lines if line)


def _game_of(task: Task) -> str:
    game = task.attributes.get("game")
    if not isinstance(game, str):
        raise DataError(f"task {task.task_id!r} names no game; make tasks with game_tasks")
    place = PurePosixPath(game)
    if place.is_absolute() or ".." in place.parts:
        raise DataError(f"the game {game!r} of task {task.task_id!r} is outside the folder of games")
    return game


def _alfworld_task(path: Path, root: Path) -> Task | None:
    game = _read_json(path)
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
    objective = _read_json(beside).get("objective")
    if not isinstance(objective, str) or not objective.strip():
        raise DataError(f"{beside} tells no objective; make the game anew")
    name = path.relative_to(root).with_suffix("").as_posix()
    attributes = {"set": "textworld", "game": path.relative_to(root).as_posix()}
    return Task(name, name, (Part(objective, ()),), attributes=attributes)


def _read_json(path: Path) -> dict[str, Any]:
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
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
