"""`quickstart`: the whole of it on a tiny model, resumed, interrupted, refused, and what it says."""

from __future__ import annotations

import importlib
import json
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from probecascade import cli
from probecascade.cli import tasks
from probecascade.cli.recipes import read_extract
from probecascade.policies import Cascade
from probecascade.store import Run, RunWriter, assign_split

from .conftest import Lottery

quickstart = importlib.import_module("probecascade.cli.quickstart")  # the verb hides its module
FRESH = 12
ROWS = [
    "no abort",
    "first repeated failed search",
    "surface cascade keep .95",
    "probe cascade recall .90/.95",
    "probe cascade keep .95",
]


@dataclass(frozen=True)
class Done:
    """A quickstart that found all but the last shard of its run, and the same once more for people."""

    folder: Path
    record: Mapping[str, Any]
    text: str


@pytest.fixture(scope="module")
def done(lottery_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = tmp_path_factory.mktemp("quickstart") / "a b"
    shutil.copytree(lottery_run / "run", folder / "runs" / "atlas")
    sorted((folder / "runs" / "atlas" / "shards").glob("*.h5"))[-1].unlink()
    assert len(Run.open(folder / "runs" / "atlas")) < 200
    said: list[str] = []
    command = ["quickstart", "-o", str(folder), "--fresh", str(FRESH)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "atlas_environment", lambda settings, seed: Lottery())
        patch.setattr(quickstart, "RECIPE", read_extract(lottery_run / "recipe.toml"))
        for extra in (["--json"], []):
            patch.setattr("typer.echo", lambda text, err=False: said.append(text))
            patch.setattr("tqdm.tqdm.write", said.append)
            assert cli.main([*command, *extra]) == 0
            if extra:
                (answer,) = said
                said.clear()
    return Done(folder, json.loads(answer), "\n".join(said))


def test_the_built_in_recipe_is_the_one_in_the_folder() -> None:
    assert read_extract(Path(__file__).parents[2] / "extract" / "quickstart.toml") == quickstart.RECIPE


def test_the_json_has_every_number(done: Done) -> None:
    record = done.record
    assert record["model"]["dtype"] == "float32"
    assert record["tasks"]["fresh"] == FRESH
    assert record["success_share"]["value"] == 0.5
    assert record["success_share"]["n"] == 200
    assert [row["name"] for row in record["policies"]] == ROWS
    assert [row["live"] for row in record["policies"]] == [True, False, False, True, True]
    for row in record["policies"]:
        assert row["n"] == FRESH
        assert row["diverged"] == row["unlabelled"] == 0
        for key in ("success", "caught", "kept", "tokens_saved", "calls_saved", "seconds"):
            assert {"value", "low", "high", "n"} <= set(row[key])
        assert row["seconds"]["value"] > 0
    free = record["policies"][0]
    assert (free["success"]["value"], free["caught"]["value"], free["kept"]["value"]) == (0.5, 0.0, 1.0)
    assert free["tokens_saved"]["value"] == 0
    assert record["seconds"] > sum(row["seconds"]["value"] for row in record["policies"] if row["live"])


def test_auroc_stands_beside_its_baselines(done: Done) -> None:
    auroc = done.record["auroc"]
    assert {"prompt", "action:1", "observation:1", "part:1", "part:2"} <= set(auroc)
    assert auroc["prompt"]["probe"] == auroc["prompt"]["prompt"]
    for row in auroc.values():
        assert set(row) == {"probe", "prompt", "surface"}
        assert len({interval["n"] for interval in row.values()}) == 1  # the same episodes
        for interval in row.values():
            assert 0 <= interval["low"] <= interval["value"] <= interval["high"] <= 1
            assert 190 <= interval["n"] <= 200  # a turn without a token has no state
    assert auroc["observation:1"]["probe"]["value"] > 0.95  # it spells out who wins


def test_a_run_that_is_there_is_gone_on_with(done: Done) -> None:
    run = Run.open(done.folder / "runs" / "atlas")
    assert len(run) == 200
    assert len(run.header["resumed"]) >= 1
    assert "200 of them are stored" in done.text


def test_live_rows_are_what_the_cascades_would_decide(
    done: Done, lottery_run: Path, lottery: None, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, row in zip(("surface", "recall", "keep"), done.record["policies"][2:], strict=True):
        capsys.readouterr()
        command = ["run", str(lottery_run / "recipe.toml"), "--cascade", str(done.folder / "cascades" / name)]
        assert cli.main([*command, "--tasks", "fresh", "--limit", str(FRESH), "--shadow", "--json"]) == 0
        shadow = json.loads(capsys.readouterr().out)["policies"][1]
        for key in ("success", "caught", "kept", "tokens_saved", "calls_saved"):
            assert row[key] == shadow[key]
    assert done.record["policies"][3]["caught"]["value"] > 0.5


def test_the_cascades_know_nothing_of_the_test_split(done: Done) -> None:
    groups = Run.open(done.folder / "runs" / "atlas").episodes.group.tolist()
    test = [group for group, name in zip(groups, assign_split(groups, seed=0).tolist(), strict=True) if name == "test"]
    for name in ("recall", "keep", "surface"):
        cascade = Cascade.load(done.folder / "cascades" / name)
        assert cascade.held_out["episodes"] == len(test) > 0
        assert not cascade.overlap(test)
        assert cascade.overlap(groups)
    assert [gate.target for gate in Cascade.load(done.folder / "cascades" / "recall").gates] == ["90 %", "95 %"]


def test_what_it_prints_comes_in_order(done: Done) -> None:
    marks = [
        "model  tiny in float32",
        "tasks  200 errands",
        "success 50.0 %",
        "AUROC at",
        "On the calibration episodes",
        "12 fresh episodes",
        *ROWS,
        "read off the twins: such a policy",
        "<- aborted here",
        "without the abort it went on for",
        "to try next:",
    ]
    places = [done.text.index(mark) for mark in marks[:6]]
    table = done.text.index(marks[5])
    places += [done.text.index(mark, table) for mark in marks[6:]]
    assert places == sorted(places)
    shown = done.text[: done.text.index("done in ")].splitlines()
    assert max(len(line) for line in shown if "stored in" not in line) <= 121  # that of the policies' table


def test_the_next_commands_run_as_printed(done: Done, capsys: pytest.CaptureFixture[str]) -> None:
    commands = [line for line in done.text.splitlines() if line.startswith("  probecascade ")]
    assert len(commands) == 3
    for command in commands:
        assert cli.main(shlex.split(command)[1:]) == 0, command
    assert (done.folder / "cascades" / "keep-90").is_dir()


def test_inspect_of_the_folder_points_to_the_run(done: Done, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", str(done.folder)]) == 2
    assert f"but holds one: give {str(done.folder / 'runs' / 'atlas')!r}" in capsys.readouterr().err


def test_ctrl_c_keeps_what_is_stored_and_says_how_to_go_on(
    lottery_run: Path,
    lottery: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    add, added = RunWriter.add, 0

    def interrupted(self: RunWriter, recording: Any) -> None:
        nonlocal added
        added += 1
        if added == 4:
            raise KeyboardInterrupt
        add(self, recording)

    monkeypatch.setattr(RunWriter, "add", interrupted)
    monkeypatch.setattr(quickstart, "RECIPE", read_extract(lottery_run / "recipe.toml"))
    folder = tmp_path / "quick start"
    assert cli.main(["quickstart", "-o", str(folder), "--groups", "30", "--slots", "4"]) == 130
    err = capsys.readouterr().err
    assert f"3 episodes are stored in {folder / 'runs' / 'atlas'}" in err
    assert f"\n  probecascade quickstart -o '{folder}' --groups 30 --slots 4\n" in err
    assert len(Run.open(folder / "runs" / "atlas")) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--groups", "0"], "--groups is 0: give at least 1"),
        (["--fresh", "0"], "--fresh is 0: give at least 1"),
        (["--slots", "-1"], "--slots is -1: give at least 1"),
        (["--dtype", "float8"], "float8"),
        (["--device", "abacus"], "the device 'abacus' cannot be used here"),
        (["-o", "taken"], "'taken' is a file: choose another folder"),
    ],
)
def test_a_wrong_option_is_one_sentence(
    lottery_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.setattr(quickstart, "RECIPE", read_extract(lottery_run / "recipe.toml"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").touch()
    assert cli.main(["quickstart", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["taken"]


@pytest.mark.parametrize("change", ["model", "seed"])
def test_a_folder_of_another_quickstart_is_refused(
    done: Done,
    lottery_run: Path,
    other_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: str,
) -> None:
    recipe = read_extract(lottery_run / "recipe.toml")
    if change == "model":
        recipe = replace(recipe, model=replace(recipe.model, name=str(other_model)))
    monkeypatch.setattr(quickstart, "RECIPE", recipe)
    extra = ["--seed", "7"] if change == "seed" else []
    assert cli.main(["quickstart", "-o", str(done.folder), *extra]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("probecascade: cannot resume ")
    assert "choose another folder" in err
    assert err.count("\n") == 1


def test_too_few_episodes_are_refused_and_kept(
    lottery_run: Path,
    lottery: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(quickstart, "RECIPE", read_extract(lottery_run / "recipe.toml"))
    assert cli.main(["quickstart", "-o", str(tmp_path / "few"), "--groups", "20", "--fresh", "2"]) == 2
    out, err = capsys.readouterr()
    assert "too few episodes of a class for any AUROC" in out
    assert "extract more" in err
    assert err.count("\n") == 1
    assert len(Run.open(tmp_path / "few" / "runs" / "atlas")) == 20
