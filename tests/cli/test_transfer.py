"""`transfer`: the matrix in words, tables and JSON, one cell of it, and every refusal."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "policies"))
from varied_runs import make_varied, same, stretched

from probecascade import cli

from .conftest import refused as refused_command


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("varied") / "run"
    make_varied(folder, {"plain": same, "polite": stretched(1), "terse": stretched(2)}, groups=80)
    return folder


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    return refused_command(["transfer", *arguments], capsys)


def test_it_says_what_is_lost_and_shows_all_matrices(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["transfer", str(run), "--by", "wording", "--checkpoints", "action:2", "--layers", "2"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[0].startswith("action:2: trained on another kind, a probe loses 0.")
    for title in ("AUROC of the probe on hidden states", "AUROC of the surface baseline", "successes kept / failures"):
        assert any(line.startswith(title) for line in lines)
    for row in ("plain", "polite", "terse", "all kinds", "all others"):
        assert sum(line.startswith(row) for line in lines) == 3
    assert "episodes: plain 80 (" in out
    assert max(map(len, lines)) <= 120


def test_json_holds_the_same_and_the_recipe_names_the_gates(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["transfer", str(run), "--by", "temperature", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["by"] == "temperature"
    assert record["without_the_attribute"] == 0
    assert [matrix["checkpoint"] for matrix in record["matrices"]] == ["part:1"]  # part:2 is in no episode
    matrix = record["matrices"][0]
    assert matrix["kinds"] == ["0.1", "0.5"]
    assert matrix["rows"] == ["0.1", "0.5", "all kinds"]
    assert len(matrix["cells"]) == 6
    assert {"auroc", "surface", "loss", "kept", "caught", "layers", "n", "failed"} <= set(matrix["cells"][0])
    assert record["verdicts"][0].startswith("part:1: ")


def test_one_cell(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--train-on", "wording=plain", "--test-on", "wording=terse", "--checkpoints", "action:2"]
    assert cli.main(["transfer", str(run), *asked]) == 0
    out = capsys.readouterr().out
    assert "action:2: trained on wording=plain and tested on wording=terse, a probe loses " in out
    rows = [line for line in out.splitlines() if line.startswith("wording=")]
    assert len(rows) == 3
    assert rows[2].startswith("wording=plain – wording=terse ")
    assert cli.main(["transfer", str(run), *asked, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["asked"] == ["wording=plain", "wording=terse"]
    assert record["matrices"][0]["rows"] == ["wording=plain", "wording=terse"]


def test_conditions_may_be_several_and_overlap(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--train-on", "wording=plain", "--test-on", "temperature=0.5", "--checkpoints", "action:2", "--json"]
    assert cli.main(["transfer", str(run), *asked]) == 0
    cells = json.loads(capsys.readouterr().out)["matrices"][0]["cells"]
    assert {cell["test"]: cell["n"] for cell in cells} == {"wording=plain": 80, "temperature=0.5": 120}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give --by ATTRIBUTE, or both --train-on and --test-on"),
        (["--by", "wording", "--train-on", "wording=plain", "--test-on", "wording=terse"], "give --by ATTRIBUTE, or"),
        (["--train-on", "wording=plain"], "both --train-on and --test-on"),
        (["--train-on", "plain", "--test-on", "wording=terse"], "--train-on is 'plain': give attributes and values"),
        (["--train-on", "wording=plain", "--test-on", "wording=rude"], "no episode has wording = rude"),
        (["--train-on", "wording=plain", "--test-on", "wording=plain"], "one kind and the same"),
        (["--by", ""], "no episode has the attribute ''"),
        (["--by", "worldly"], "no episode has the attribute 'worldly'"),
        (["--by", "run"], "--by run needs two kinds, but every episode has the run run: take one that varies"),
        (["--by", "world"], "no episode records a world: let it vary by one run for each `seed` under [tasks] in"),
        (["--train-on", "wording=plain,", "--test-on", "wording=terse"], "a value that holds a comma in double quotes"),
        (["--train-on", "wording=plain", "--test-on", 'wording=pl"ain'], 'no episode has wording = pl"ain'),
        (["--train-on", "wording=plain", "--test-on", 'wording="plain"'], "are the very same episodes at part:1"),
        (["--by", "wording", "--checkpoints", "action:8"], "checkpoint 'action:8' is not in"),
        (["--by", "wording", "--layers", "7"], "layer"),
        (["--by", "wording", "--keep", "1.5"], "keep target"),
        (["--by", "wording", "--folds", "1"], "folds"),
        (["--by", "wording", "--seed", "-1"], "seed of -1"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: list[str], said: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused([str(run), *arguments], capsys)


@pytest.mark.parametrize(
    ("by", "key"), [("wording", "`wordings` under [agent]"), ("temperature", "`temperature` under [agent]")]
)
def test_what_does_not_vary_is_said_to_come_from_the_recipe(
    by: str, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_varied(tmp_path / "run", {"plain": same}, groups=1)
    said = refused([str(tmp_path / "run"), "--by", by], capsys)
    assert f"--by {by} needs two kinds, but every episode has the {by} " in said
    assert key in said


def test_a_value_with_a_comma_is_given_in_quotes() -> None:
    from probecascade.cli.transfer import _conditions

    given = ' site = "Paris, \\"Texas\\"" ,world=3'
    assert _conditions(given, "--train-on") == {"site": '"Paris, \\"Texas\\""', "world": "3"}


def test_a_folder_that_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no run at" in refused([str(tmp_path / "none"), "--by", "wording"], capsys)
