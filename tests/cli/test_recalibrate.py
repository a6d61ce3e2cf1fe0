"""`recalibrate` from the command line: what it says, what it writes, what it refuses, and no torch."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from made_runs import make_run

from probecascade import cli
from probecascade.policies import Cascade, recalibrate
from probecascade.policies.gates import MIN_CLASS
from probecascade.store import Run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`old` (fitted for a keep of .9), the run of it, and `new`, a run of fresh groups."""
    path = tmp_path_factory.mktemp("recalibrate")
    make_run(path / "run")
    make_run(path / "new", groups=300, seed=1, outcomes=("error",))
    command = ["fit", str(path / "run"), "--keep", "0.9", "--gates", "action:1,action:2", "--layers", "4"]
    assert cli.main([*command, "-o", str(path / "old"), "--json"]) == 0
    return path


def test_both_thresholds_are_shown_on_the_new_episodes(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert cli.main(["recalibrate", str(folder / "old"), str(folder / "new"), "-o", str(tmp_path / "c")]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    old, new = Cascade.load(folder / "old"), Cascade.load(tmp_path / "c")
    found = recalibrate(old, Run.open(folder / "new"))
    assert new.thresholds.tolist() == found.cascade.thresholds.tolist()
    assert f"300 labelled episodes of {folder / 'new'}: {found.before.doomed} failures" in out
    assert "note: 1 of 301 episodes have no label" in out
    for gate, renewed in zip(old.gates, new.gates, strict=True):
        assert re.search(rf"^{gate.checkpoint} +{gate.threshold:.4f} +{renewed.threshold:.4f} ", out, re.MULTILINE)
    caught, kept = 100 * found.before.caught.value, 100 * found.before.kept.value
    assert re.search(rf"old thresholds on these episodes: failures caught {caught:.1f} %.* kept {kept:.1f} %", out)
    assert re.search(rf"new thresholds, which they set: .* kept {100 * found.after.kept.value:.1f} %", out)
    assert new.promise in " ".join(out.split())
    assert f"written to {tmp_path / 'c'}" in out


def test_json_holds_the_same_numbers(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    command = ["recalibrate", str(folder / "old"), str(folder / "new"), "-o", str(tmp_path / "c"), "--json"]
    assert cli.main([*command, "--recall", "0.3,0.6", "--method", "empirical", "--confidence", "0.8"]) == 0
    record = json.loads(capsys.readouterr().out)
    stored = json.loads((tmp_path / "c" / "cascade.json").read_text())
    assert record["calibration"] == stored["calibration"]
    assert record["calibration"]["targets"] == {"catch": {"action:1": "3/10", "action:2": "3/5"}, "keep": None}
    assert (record["calibration"]["method"], record["calibration"]["confidence"]) == ("empirical", 0.8)
    assert record["before"]["episodes"] == record["after"]["episodes"] == 300
    assert record["after"]["caught"]["count"] >= 0.6 * record["after"]["doomed"]
    assert record["after"]["gates"][0]["caught"] >= 0.3 * record["after"]["doomed"]
    assert record["before"]["gates"][0]["threshold"] == Cascade.load(folder / "old").gates[0].threshold


def test_an_old_cascade_is_replaced_only_when_asked(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["recalibrate", str(folder / "old"), str(folder / "new"), "-o", str(tmp_path / "c")]
    assert cli.main(command) == 0
    before = (tmp_path / "c" / "cascade.json").read_text()
    capsys.readouterr()
    assert cli.main([*command, "--keep", "0.8"]) == 2
    assert "exists already: choose another folder, or add --overwrite" in capsys.readouterr().err
    assert (tmp_path / "c" / "cascade.json").read_text() == before
    assert cli.main([*command, "--keep", "0.8", "--overwrite"]) == 0
    assert Cascade.load(tmp_path / "c").calibration["targets"]["keep"] == "4/5"


def test_a_refusal_is_one_sentence_and_writes_nothing(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for run, words in (("run", "shaped the cascade already"), ("absent", "there is no run at")):
        capsys.readouterr()
        assert cli.main(["recalibrate", str(folder / "old"), str(folder / run), "-o", str(tmp_path / "c")]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert words in err
        assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_too_few_episodes_are_refused_unless_forced(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = make_run(tmp_path / "few", groups=30, seed=5).episodes
    failed = int(few.failed.sum())
    rarest = min(failed, 30 - failed)
    assert 0 < rarest < MIN_CLASS
    command = ["recalibrate", str(folder / "old"), str(tmp_path / "few"), "-o", str(tmp_path / "c")]
    capsys.readouterr()
    assert cli.main(command) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"{failed} failures and {30 - failed} successes with a label are too few" in err
    assert f"20 of each are needed, about {math.ceil(20 * 30 / rarest)} live episodes; record more" in err
    assert not (tmp_path / "c").exists()
    assert cli.main([*command, "--force", "--method", "empirical"]) == 0
    assert Cascade.load(tmp_path / "c").calibration["method"] == "empirical"


def test_a_lost_promise_is_said_aloud(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit = ["fit", str(folder / "run"), "--keep", "0.8", "--gates", "action:2", "--layers", "4", "--json"]
    assert cli.main([*fit, "-o", str(tmp_path / "certified")]) == 0
    assert Cascade.load(tmp_path / "certified").calibration["certified"]
    command = ["recalibrate", str(tmp_path / "certified"), str(folder / "new"), "-o"]
    capsys.readouterr()
    assert cli.main([*command, str(tmp_path / "a"), "--method", "empirical"]) == 0
    assert "note: WARNING, THE PROMISE IS LOST: " in capsys.readouterr().out
    assert cli.main([*command, str(tmp_path / "b")]) == 0
    assert Cascade.load(tmp_path / "b").calibration["certified"]
    assert "WARNING" not in capsys.readouterr().out


def test_swapped_arguments_are_named(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("recalibrate", "eval"):
        capsys.readouterr()
        more = ["-o", str(tmp_path / "c")] if verb == "recalibrate" else []
        assert cli.main([verb, str(folder / "new"), str(folder / "old"), *more]) == 2
        assert "is a run: give the cascade first and the run second" in capsys.readouterr().err


def test_it_never_reaches_torch(folder: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from probecascade.cli import main; code = main(sys.argv[1:]); "
        "sys.exit(code or bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    arguments = ["recalibrate", str(folder / "old"), str(folder / "new"), "-o", str(tmp_path / "c")]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
