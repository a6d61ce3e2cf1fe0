"""`steer`: the same tasks with states changed and unchanged, on a tiny model whose lotteries no state can win."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from probecascade import cli
from probecascade.cli.steer import count_conditions


@pytest.fixture(scope="module")
def cascade(lottery_run: Path) -> Path:
    output = lottery_run / "steered"
    options = ["--recall", "0.9", "--gates", "observation:1", "--layers", "1"]
    assert cli.main(["fit", str(lottery_run / "run"), *options, "-o", str(output)]) == 0
    return output


def steered(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> Mapping[str, Any]:
    capsys.readouterr()
    assert cli.main(["steer", *arguments, "--json"]) == 0
    record: Mapping[str, Any] = json.loads(capsys.readouterr().out)
    return record


def test_pushes_change_what_is_said_and_not_who_wins(
    lottery_run: Path, lottery: None, cascade: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = str(lottery_run / "recipe.toml")
    options = ["--cascade", str(cascade), "--strength", "1,300", "--controls", "1", "--limit", "8"]
    record = steered([recipe, *options], capsys)
    assert (record["gate"], record["layer"], record["mode"], record["episodes"]) == ("observation:1", 1, "add", 8)
    names = [condition["name"] for condition in record["conditions"]]
    assert names == ["no change", "+1σ", "−1σ", "random 1, 1σ", "+300σ", "−300σ", "random 1, 300σ"]
    assert len(names) == count_conditions((1, 300), 1)
    assert record["sigma"] > 0
    assert len({condition["success"]["value"] for condition in record["conditions"]}) == 1
    effects = {effect["name"]: effect for effect in record["effects"]}
    assert list(effects) == ["+1σ", "−1σ", "+300σ", "−300σ"]
    for effect in effects.values():
        assert effect["n"] == 8
        assert effect["direction"]["success"]["value"] == 0
        assert effect["direction"]["success"]["high"] > 0.3  # eight groups exclude little
        assert effect["verdict"].endswith("no effect of the direction is shown.")
    assert effects["+300σ"]["untouched"] < effects["+1σ"]["untouched"] or effects["+300σ"]["untouched"] == 0
    assert steered([recipe, *options], capsys) == record


def test_the_coordinate_can_be_held(
    lottery_run: Path, lottery: None, cascade: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(lottery_run / "recipe.toml"), "--cascade", str(cascade), "--mode", "remove", "--limit", "4"]
    record = steered([*arguments, "--controls", "2", "--tasks", "all"], capsys)
    names = [condition["name"] for condition in record["conditions"]]
    assert names == ["no change", "direction held", "random 1 held", "random 2 held"]
    (effect,) = record["effects"]
    assert len(effect["each_control"]) == 2
    capsys.readouterr()
    assert cli.main(["steer", *arguments, "--controls", "0"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "turns without an action" in out
    assert max(map(len, out.splitlines())) <= 120
    assert "without a control" in out
    assert "fewer than 20 groups were played" in out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--mode", "push"], 2, "--mode is 'push': give add or remove"),
        (["--tasks", "train"], 2, "--tasks is 'train'"),
        (["--strength", "2,x"], 2, "--strength is '2,x': give distinct numbers above 0"),
        (["--strength", "-2"], 2, "--strength is '-2'"),
        (["--strength", "2,2"], 2, "--strength is '2,2'"),
        (["--mode", "remove", "--strength", "10"], 2, "--strength says how far `add` pushes"),
        (["--seed", "-1", "--mode", "push"], 2, "--seed is -1: give a whole number"),
        (["--strength", "1e300"], 2, "a push of 1e+300σ is beyond what float32 can hold"),
        (["--gate", "action:7"], 2, "the cascade has the gates observation:1"),
        (["--limit", "0"], 1, "there is no test task"),
        (["--limit", "1"], 2, "1 of the unchanged episodes come to observation:1"),
    ],
)
def test_a_wrong_option_is_one_sentence(
    lottery_run: Path,
    lottery: None,
    cascade: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    words: str,
) -> None:
    capsys.readouterr()
    assert cli.main(["steer", str(lottery_run / "recipe.toml"), "--cascade", str(cascade), *arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert err.count("\n") == 1


def test_another_model_is_refused(
    lottery: None, cascade: Path, other_model: Path, write_recipe: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    command = ["steer", str(write_recipe(4, model=other_model)), "--cascade", str(cascade), "--tasks", "all"]
    assert cli.main(command) == 2
    assert "model.weights" in capsys.readouterr().err
