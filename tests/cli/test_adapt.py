"""`adapt`: before and after, the folder it writes, the command that follows, and that nothing old is lost."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "policies"))
from varied_runs import make_varied, same, stretched

from probecascade import cli
from probecascade.policies import Cascade, fit_cascade
from probecascade.probes import LogisticFitter


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("adapt")
    home = make_varied(place / "home", {"plain": same}, groups=200)
    quick = LogisticFitter(strengths=(1e-2,), folds=3)
    fit_cascade(home, keep="0.9", gates=["action:1", "action:2"], layers=[2], fitter=quick).cascade.save(place / "old")
    make_varied(place / "new", {"terse": stretched(1)}, groups=160, seed=3)
    return place


def command(folder: Path, output: Path, *options: str) -> list[str]:
    return ["adapt", str(folder / "old"), str(folder / "new"), "-o", str(output), *options]


def test_it_shows_before_and_after_and_the_next_command_works(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "moved"
    assert cli.main(command(folder, output, "--how", "recentre", "--episodes", "80")) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "adapted (recentre) on 80 of 160 episodes, compared on 80 labelled ones of other groups" in out
    assert "old probes, old thresholds: failures caught" in out
    assert "Nothing is promised: the probes were adapted" in out
    assert Cascade.load(output).provenance["adapted"][0]["how"] == "recentre"
    # All but the lines that hold a path.
    assert max(len(line) for line in out.splitlines() if str(tmp_path) not in line) <= 120
    assert re.search(r"action:2 .* 0\.\d{3} → 0\.\d{3}, [+-]0\.\d{3} \[", out)
    following = shlex.split(out.strip().splitlines()[-1])
    assert following[:2] == ["probecascade", "recalibrate"]
    assert cli.main(following[1:]) == 0
    assert "80 episodes are of groups that adapted the cascade and are left out" in capsys.readouterr().out
    assert (tmp_path / "moved-recalibrated" / "cascade.json").is_file()


def test_json_has_paired_changes(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(command(folder, tmp_path / "moved", "--how", "refit", "--json")) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["adapted_on"], record["held_out"]) == (80, 80)
    gate = record["gates"][1]
    assert gate["checkpoint"] == "action:2"
    rise = gate["auroc"]["change"]
    assert rise["value"] == pytest.approx(gate["auroc"]["after"]["value"] - gate["auroc"]["before"]["value"])
    assert rise["low"] <= rise["value"] <= rise["high"]
    assert record["before"]["gates"][0]["threshold"] == record["after"]["gates"][0]["threshold"]
    assert record["next"].startswith("probecascade recalibrate ")


def test_a_run_of_known_groups_asks_for_fresh_ones(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["adapt", str(folder / "old"), str(folder / "home"), "--how", "bias", "-o", str(tmp_path / "moved")]
    assert cli.main(arguments) == 0
    out = capsys.readouterr().out
    assert "next, with a run of fresh groups" in out
    assert " runs/fresh -o " in out.splitlines()[-1]


def test_nothing_old_is_overwritten_unless_asked(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "moved"
    assert cli.main(command(folder, output, "--how", "recentre")) == 0
    before = (output / "cascade.json").read_bytes()
    capsys.readouterr()
    assert cli.main(command(folder, output, "--how", "bias")) == 2
    assert "exists already" in capsys.readouterr().err
    assert (output / "cascade.json").read_bytes() == before
    assert cli.main(command(folder, output, "--how", "bias", "--overwrite")) == 0
    assert (output / "cascade.json").read_bytes() != before


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--how", "rotate"], "how is 'rotate': give one of recentre, bias, refit"),
        (["--how", "bias", "--episodes", "0"], "episodes is 0"),
        (["--how", "bias", "--episodes", "1"], "the gate at action:1 cannot be adapted"),
        (["--how", "bias", "--seed", "-3"], "seed is -3"),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(
    options: list[str], said: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(command(folder, tmp_path / "moved", *options)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1
    assert not (tmp_path / "moved").exists()
