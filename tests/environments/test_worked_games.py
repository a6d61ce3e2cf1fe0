"""The worked examples of text games: won by their commands, told as the games tell, about things of no game."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from probecascade.environments import Example, game_tasks, unpack_games, worked_games
from probecascade.environments.game_files import read_game

NEW = (
    'action PutObject { template :: "move {o} to {r}"; }\n"GotoLocation.feedback": [ { "rhs": "You arrive at {r.name}. '
    '#examineReceptacle.feedback#" } ]'
)


def household(folder: Path, grammar: str = "") -> tuple[Example, ...]:
    """The examples for a folder with one game of ALFWorld of this grammar."""
    path = folder / "kind-Mug-None-Desk-1" / "trial" / "game.tw-pddl"
    path.parent.mkdir(parents=True)
    goal = '{"rhs": "Your task is to: put some mug on desk."}'
    game = {"pddl_domain": "", "pddl_problem": "", "grammar": f"{grammar}\n{goal}"}
    path.write_text(json.dumps(game), encoding="utf-8")
    return worked_games(folder, game_tasks(folder))


def commands(example: Example) -> list[str]:
    return [turn.action.argument for part in example for turn in part.turns]


def texts(example: Example) -> str:
    return "\n".join([example[0].question, *(turn.observation for turn in example[0].turns)])


def test_examples_suit_the_games_of_the_folder(tmp_path: Path) -> None:
    errands = household(tmp_path)
    assert len(errands) == 3
    (tmp_path / "a.z8").write_bytes(b"")
    (tmp_path / "a.json").write_text('{"objective": "Take it."}')
    tasks = game_tasks(tmp_path)
    *same, rooms = worked_games(tmp_path, tasks)
    assert tuple(same) == errands
    assert rooms[0].question.startswith("-= Boathouse =-")
    assert worked_games(tmp_path, [t for t in tasks if t.attributes["set"] == "textworld"]) == (rooms,)


def test_commands_are_worded_as_in_the_games(tmp_path: Path) -> None:
    umbrella, *_ = household(tmp_path / "old")
    assert commands(umbrella)[-1] == "put umbrella 2 in/on coatstand 1"
    assert "You arrive at loc 5. The trunk 1 is closed." in texts(umbrella)
    umbrella, *_ = household(tmp_path / "new", NEW)
    assert commands(umbrella)[-1] == "move umbrella 2 to coatstand 1"
    assert "You arrive at trunk 1. The trunk 1 is closed." in texts(umbrella)


def test_only_the_last_answer_is_left_out_and_thoughts_are_one_line(tmp_path: Path) -> None:
    for example in household(tmp_path):
        (part,) = example
        assert [bool(turn.observation) for turn in part.turns] == [True] * (len(part.turns) - 1) + [False]
        assert all(turn.action.name == "do" and "\n" not in turn.thought for turn in part.turns)


def test_real_games_tell_as_the_examples_do_and_of_other_things(tmp_path: Path, shared: Callable[[str], Path]) -> None:
    unpack_games(shared("alfworld_games_shared.tar.xz"), tmp_path)
    tasks = game_tasks(tmp_path)
    files = [tmp_path / task.attributes["game"] for task in tasks]
    grammar = read_game(files[0])["grammar"]
    spoken = re.findall(r'"rhs": "([^"]+)"', grammar)
    sentences = [piece for form in spoken for piece in re.split(r"(?<=[.]) |\\n", form)]
    errands = worked_games(tmp_path, tasks)
    for example in errands:
        for command in commands(example):
            assert any(told(command, form) for form in re.findall(r'template :: "([^"]+)"', grammar)), command
        for sentence in re.split(r"(?<=[.]) |\n", texts(example).strip()):
            assert any(told(sentence, form) for form in [*sentences, "Your task is to: {goal}."]), sentence
    named = set(re.findall(r"([a-z]+) \d", "\n".join(map(texts, errands))))
    objects = [read_game(path)["pddl_problem"].partition("(:init")[0] for path in files]
    held = {word.removesuffix("Type").lower() for text in objects for word in re.findall(r"(?m)^\s*(\w+) - ", text)}
    assert {"umbrella", "trunk", "teapot", "lantern"} <= named
    assert {"mug", "drawer"} <= held
    assert named.isdisjoint(held)


def told(sentence: str, form: str) -> bool:
    """Whether a form of the grammar, with anything for its slots, makes the sentence."""
    pieces = re.split(r"\{[^{}]*\}|\[[^\]]*\]|#[^#]+#", form)
    return any(pieces) and re.fullmatch(".+".join(map(re.escape, pieces)), sentence) is not None
