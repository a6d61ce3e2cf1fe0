"""Worked examples for text games, as `TextGameEnvironment` tells them: invented errands with things of no data set."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from probecascade.environments.examples import Example, ExamplePart, ExampleTurn
from probecascade.environments.game_files import ALFWORLD_SUFFIX, game_file, read_game
from probecascade.episode import Action, Task

_PUT = re.compile(r'action PutObject \{\s*template :: "([^"]*)"')
_ARRIVED = re.compile(r'"GotoLocation\.feedback": \[\s*\{\s*"rhs": "([^#"]*)#')


@dataclass(frozen=True, slots=True)
class _Manner:
    """What differs between releases of ALFWorld: how a thing is put down, and what is said on arrival."""

    putting: str = "put {o} in/on {r}"
    arrived: str = "You arrive at {lend.name}. "

    @classmethod
    def of(cls, path: Path) -> _Manner:
        """The manner of a game."""
        grammar = str(read_game(path).get("grammar"))
        putting, arrived = _PUT.search(grammar), _ARRIVED.search(grammar)
        return cls(putting[1] if putting else cls().putting, arrived[1] if arrived else cls().arrived)

    def put(self, thing: str, place: str) -> str:
        return self.putting.replace("{o}", thing).replace("{r}", place)

    def at(self, place: str, number: int, seen: str) -> str:
        arrived = self.arrived.replace("{lend.name}", f"loc {number}").replace("{r.name}", place)
        return f"{arrived}{seen}"


def worked_games(folder: str | os.PathLike[str], tasks: Iterable[Task]) -> tuple[Example, ...]:
    """Worked examples for the tasks of `game_tasks(folder)`: errands where there are games of ALFWorld, a round
    through rooms where there are games of TextWorld.

    Commands and answers are worded as in the first game of ALFWorld. All examples are won, which ends them.
    """
    files = [game_file(folder, task) for task in tasks]
    household = next((path for path in files if path.suffix == ALFWORLD_SUFFIX), None)
    errands = () if household is None else _errands(_Manner.of(household))
    return errands + ((_ROOMS,) if any(path.suffix != ALFWORLD_SUFFIX for path in files) else ())


def _played(said: str, *turns: tuple[str, str, str]) -> Example:
    """One game: what it says at first, and (thought, command, answer) turns; the last answer is not read."""
    rounds = (ExampleTurn(thought, Action("do", command), answer) for thought, command, answer in turns)
    return (ExamplePart(said, tuple(rounds)),)


def _errands(manner: _Manner) -> tuple[Example, ...]:
    room = "You are in the middle of a room. Looking quickly around you, you see"
    return (
        _played(
            f"{room} a bench 1, a coatstand 1, a trunk 2, and a trunk 1.\n"
            "Your task is to: put some umbrella in coatstand.",
            (
                "I need to find an umbrella first. It may be on bench 1.",
                "go to bench 1",
                manner.at("bench 1", 3, "On the bench 1, you see a glove 2, and a glove 1."),
            ),
            (
                "There is no umbrella on bench 1. Next I look into trunk 1.",
                "go to trunk 1",
                manner.at("trunk 1", 5, "The trunk 1 is closed."),
            ),
            (
                "Trunk 1 is closed. I need to open it.",
                "open trunk 1",
                "You open the trunk 1. The trunk 1 is open. In it, you see a scarf 1, and a umbrella 2.",
            ),
            (
                "Here is umbrella 2. I need to take it.",
                "take umbrella 2 from trunk 1",
                "You pick up the umbrella 2 from the trunk 1.",
            ),
            (
                "I have umbrella 2. I need to bring it to coatstand 1.",
                "go to coatstand 1",
                manner.at("coatstand 1", 2, "On the coatstand 1, you see nothing."),
            ),
            ("Now I put umbrella 2 there.", manner.put("umbrella 2", "coatstand 1"), ""),
        ),
        _played(
            f"{room} a hob 1, a trolley 1, and a washtub 1.\nYour task is to: put a clean teapot in trolley.",
            (
                "I need to find a teapot first. It may be on hob 1.",
                "go to hob 1",
                manner.at("hob 1", 4, "On the hob 1, you see a teapot 1."),
            ),
            (
                "Here is teapot 1. I need to take it.",
                "take teapot 1 from hob 1",
                "You pick up the teapot 1 from the hob 1.",
            ),
            (
                "I have teapot 1. I need to clean it at washtub 1.",
                "go to washtub 1",
                manner.at("washtub 1", 1, "On the washtub 1, you see a sponge 1."),
            ),
            (
                "Now I clean teapot 1.",
                "clean teapot 1 with washtub 1",
                "You clean the teapot 1 using the washtub 1.",
            ),
            (
                "Teapot 1 is clean. I need to bring it to trolley 1.",
                "go to trolley 1",
                manner.at("trolley 1", 6, "On the trolley 1, you see a napkin 1."),
            ),
            ("Now I put teapot 1 there.", manner.put("teapot 1", "trolley 1"), ""),
        ),
        _played(
            f"{room} a bookcase 1, and a workbench 1.\nYour task is to: look at map under the lantern.",
            (
                "I need to find a map first. It may be on bookcase 1.",
                "go to bookcase 1",
                manner.at("bookcase 1", 2, "On the bookcase 1, you see a map 3."),
            ),
            (
                "Here is map 3. I need to take it.",
                "take map 3 from bookcase 1",
                "You pick up the map 3 from the bookcase 1.",
            ),
            (
                "I have map 3. Next I look for a lantern on workbench 1.",
                "go to workbench 1",
                manner.at("workbench 1", 7, "On the workbench 1, you see a lantern 1."),
            ),
            ("Here is lantern 1. I need to use it.", "use lantern 1", ""),
        ),
    )


_ROOMS = _played(
    "-= Boathouse =-\nYou are in a boathouse. A quiet one.\n"
    "You can see a barrel. The barrel is closed. There is a stool here, too. The stool is bare.\n"
    "There is an exit to the east. It has no door.\n"
    "Please do this for me. First, go to the east. Then, take the oar from the shed. After that, go back to the west "
    "and put the oar on the stool.",
    (
        "I need to go east first.",
        "go east",
        "-= Shed =-\nYou are in a shed. An old one.\nThere is an exit to the west. It has no door.\n"
        "There is an oar on the floor.",
    ),
    ("Here is the oar. I need to take it.", "take oar", "You pick up the oar from the ground."),
    (
        "I have the oar. I need to go back to the west.",
        "go west",
        "-= Boathouse =-\nYou are in a boathouse. A quiet one.\n"
        "You can see a barrel. The barrel is closed. There is a stool here, too. The stool is bare.\n"
        "There is an exit to the east. It has no door.",
    ),
    ("Now I put the oar on the stool.", "put oar on stool", ""),
)
