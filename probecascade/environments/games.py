"""Text games: TextWorld's own and ALFWorld's, as environments to act in.

They need `textworld[pddl]` and `alfworld`, the extra `games`; see https://arxiv.org/abs/1806.11532 and
https://arxiv.org/abs/2010.03768. Glulx games (`.ulx`) are not played by TextWorld since its version 1.7.
"""

from __future__ import annotations

import importlib.util
import os
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from probecascade.environments.game_files import ALFWORLD_SUFFIX, game_file, read_game
from probecascade.episode import Action, Foresight, Observation, Task
from probecascade.errors import DataError, UsageError

STEPS = 50
"""Commands of an episode, as in ALFWorld's own evaluation."""

LONGEST_COMMAND = 120

_EXTRA = "text games need the extra `games`: pip install 'probecascade[games]' (in a clone: pip install -e '.[games]')"

_STATUS = re.compile(r"\n>[^\n]*\Z|\n>\s*\Z")  # the prompt of a Z-machine and its line of room and score
_BANNER = re.compile(r"\A-= Welcome to TextWorld[^\n]*=-\s*")
_META = frozenset(("q", "quit", "restart", "restore", "save", "script", "transcript", "undo", "unscript", "verify"))

# Engines of PDDL games that are over, to be used again: each has loaded a planner of its own, which TextWorld never
# gives back and which crashes the end of the process once it is unloaded.
_idle: list[Any] = []


def check_games_extra() -> None:
    """UsageError where the extra `games` is not installed."""
    if not all(importlib.util.find_spec(name) for name in ("alfworld", "textworld")):
        raise UsageError(_EXTRA)


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
        path = game_file(self.folder, task)
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
        """A finish is final, and so is the last command of the budget; that a command will win is not foreseen.

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
        last = action.name == "finish" or self._done + 1 == self.steps
        return Foresight(final=last and not self._refusal(action), checks=checks)

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
        if hasattr(game, "downward_lib"):
            _idle.append(game)
        else:
            game.close()


def _open(path: Path) -> Any:
    """The game at a path, ready to be reset, telling what an episode needs to know."""
    try:
        import textworld
        from alfworld.agents.utils.misc import Demangler
        from textworld.envs.pddl import PddlEnv
    except ImportError as error:
        raise UsageError(_EXTRA) from error
    told = dict.fromkeys(("won", "lost", "moves", "admissible_commands"), True)
    if path.suffix != ALFWORLD_SUFFIX:
        told |= {"description": True, "objective": True}
        return textworld.start(str(path), textworld.EnvInfos(**told, extras=["walkthrough"]))
    game = _idle.pop() if _idle else PddlEnv(textworld.EnvInfos(**told))
    game.load(read_game(path))  # not the path: TextWorld would leave the file open
    names = Demangler(game_infos=game._entity_infos)
    for info in game._entity_infos.values():
        info.name = names.demangle_alfred_name(info.id)
    return game


def _said(feedback: str) -> str:
    """What a game said, without its prompt and blank lines."""
    lines = (" ".join(line.split()) for line in _STATUS.sub("", feedback).splitlines())
    return "\n".join(line for line in lines if line)
