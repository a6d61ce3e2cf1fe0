"""`fit` and `eval` from the command line: the user's own words, every table, every refusal, and no torch."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from made_runs import make_run
from signing import write_signed

from probecascade import cli
from probecascade.evaluation import backtest_run
from probecascade.policies import Cascade, score_run
from probecascade.store import Run

from .conftest import refused

NO_TORCH = """
import sys
from importlib.abc import MetaPathFinder

class Block(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers", "accelerate", "gguf", "huggingface_hub"):
            raise ImportError(name + " is blocked")

sys.meta_path.insert(0, Block())
from probecascade.cli import main
sys.exit(max(main(line.split()) for line in sys.argv[1:]))
"""


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of 240 invented episodes that gates part:1 and part:2 by its recipe."""
    return make_run(tmp_path_factory.mktemp("made") / "atlas", outcomes=("error", "aborted", "error")).path


def test_recall_in_the_users_own_words(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "cascades" / "atlas"
    command = ["fit", str(made), "--recall", "0.9,0.95,0.99", "--gates", "part:1,action:3,action:4"]
    assert cli.main([*command, "-o", str(output)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    cascade, run = Cascade.load(output), Run.open(made)
    counted = cascade.provenance["episodes"]
    test = backtest_run(cascade, run, "test")
    labelled = f"{counted['fit']} fit, {counted['calibrate']} calibrate, {test.doomed + test.successes} test"
    assert f"labelled episodes: {labelled}" in out
    assert "note: 3 of 243 episodes have no label and are left out (1 aborted, 2 error)." in out
    assert [gate.target for gate in cascade.gates] == ["90 %", "95 %", "99 %"]
    for gate in cascade.gates:
        assert re.search(rf"^{gate.checkpoint} +{gate.layer} ", out, re.MULTILINE)
    assert "On the calibration episodes" in out
    assert cascade.promise in " ".join(out.split())
    assert "gates:" not in out
    assert max(map(len, out.replace(f"{output} {made}", "").splitlines())) <= 120
    assert f"next: probecascade eval {output} {made} --split test" in out


def test_the_choice_of_gates_is_said(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options, words in (
        (["--recall", "0.5"], "gates: part:1 (the first of the recipe's part:1, part:2, one for each target;"),
        (["--recall", "0.2,0.5,0.6"], "gates: action:1, action:2, action:3 (one round for each target, since"),
        (["--keep", "0.9"], "(all action and part checkpoints that 20 failures and 20 successes to fit on reach)"),
    ):
        capsys.readouterr()
        assert cli.main(["fit", str(made), *options, "--layers", "4", "-o", str(tmp_path / "c"), "--overwrite"]) == 0
        out = capsys.readouterr().out
        assert words in " ".join(out.split())
        header = next(line for line in out.splitlines() if line.startswith("gate ") and "threshold" in line)
        assert ("target" in header) == ("--recall" in options)


def test_the_held_out_numbers_are_stored_and_are_those_of_eval(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = str(tmp_path / "keep")
    assert cli.main(["fit", str(made), "--keep", "0.95", "-o", output, "--json"]) == 0
    fitted = json.loads(capsys.readouterr().out)
    assert cli.main(["eval", output, str(made), "--split", "test", "--json"]) == 0
    evaluated = json.loads(capsys.readouterr().out)
    held_out = json.loads((tmp_path / "keep" / "cascade.json").read_text())["held_out"]
    assert fitted["held_out"] == held_out
    assert {key: held_out[key] for key in ("caught", "kept", "saved")} == {
        key: evaluated[key] for key in ("caught", "kept", "saved")
    }
    assert all(0.5 < found["value"] <= 1 for found in held_out["auroc"].values())
    assert fitted["split"]["seed"] == 0
    assert fitted["split"]["shares"] == [50, 25, 25]


def test_the_probes_find_the_layer_that_tells(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["fit", str(made), "--recall", "0.5", "--json"]
    assert cli.main([*command, "-o", str(tmp_path / "all")]) == 0
    (gate,) = json.loads(capsys.readouterr().out)["gates"]
    assert gate["checkpoint"] == "part:1"
    assert gate["layer"] == 4  # where `made_runs` puts most of it
    assert cli.main([*command, "-o", str(tmp_path / "some"), "--layers", "0,2"]) == 0
    (gate,) = json.loads(capsys.readouterr().out)["gates"]
    assert sorted(gate["auroc_by_layer"]) == ["0", "2"]
    assert cli.main([*command, "-o", str(tmp_path / "surface"), "--uses", "signals"]) == 0
    (gate,) = json.loads(capsys.readouterr().out)["gates"]
    assert gate["layer"] is None


def test_a_recipe_says_it_all_and_options_go_before_it(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "calibrate.toml"
    recipe.write_text(
        '[targets]\nrecall = [0.6, 0.8]\n[gates]\nnames = ["action:2", "action:3"]\nanswers = true\n'
        "[split]\nshares = [40, 40, 20]\nseed = 7\n[probe]\nlayers = [4]\nstrengths = [0.01]\n"
    )
    command = ["fit", str(made), "--recipe", str(recipe), "--json"]
    assert cli.main([*command, "-o", str(tmp_path / "a")]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [gate["checkpoint"] for gate in record["gates"]] == ["action:2", "action:3"]
    assert {gate["strength"] for gate in record["gates"]} == {0.01}
    assert record["split"]["shares"] == [40, 40, 20]
    assert record["split"]["seed"] == 7
    assert Cascade.load(tmp_path / "a").gate_answers
    options = ["--keep", "0.9", "--gates", "action:2", "--shares", "50,30,20", "--split-seed", "1"]
    assert cli.main([*command, *options, "-o", str(tmp_path / "b")]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["gates"][0]["target"] == ""
    assert record["calibration"]["targets"] == {"catch": {}, "keep": "9/10"}
    assert record["split"]["shares"] == [50, 30, 20]
    assert record["split"]["seed"] == 1


def test_a_target_out_of_reach_is_marked_and_strict_makes_it_three(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # action:5 is no gate where it finishes the episode, and no episode is longer: nobody is left to catch.
    command = ["fit", str(made), "--recall", "0.99", "--gates", "action:4"]
    assert cli.main([*command, "-o", str(tmp_path / "a"), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["reached"] is False
    assert record["gates"][0]["reached"] is False
    counts = record["gates"][0]["counts"]
    assert counts["caught"] == counts["alive_doomed"] < counts["doomed"]
    assert any("are not caught by action:4 on the calibration episodes" in warning for warning in record["warnings"])
    capsys.readouterr()
    assert cli.main([*command, "-o", str(tmp_path / "b"), "--strict"]) == 3
    err = capsys.readouterr().err
    assert err.startswith("probecascade: --strict: not certified: catch 99 % by action:4: ")
    assert err.count("\n") == 1
    assert (tmp_path / "b" / "cascade.json").is_file()


def test_fit_eval_and_inspect_never_reach_torch(made: Path, tmp_path: Path) -> None:
    output = str(tmp_path / "cascade")
    lines = (
        f"fit {made} --keep 0.95 -o {output}",
        f"eval {output} {made}",
        f"inspect {output}",
        f"inspect {made} --episode 0 --cascade {output}",
    )
    done = subprocess.run([sys.executable, "-c", NO_TORCH, *lines], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "labelled test episodes" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no target was given: add --recall"),
        (["--recall", "1", "--gates", "action:1"], "catch target 1 cannot be promised of new episodes"),
        (["--keep", "0.9", "--method", "guess"], "method is 'guess': give one of certified, empirical"),
        (["--keep", "0.9", "--unit", "run"], "unit is 'run': give 'episode' or 'group'"),
        (["--recall", "0.9,0.8"], "must rise strictly from gate to gate, but 0.8 follows 0.9"),
        (["--recall", "0.9,0.9"], "must rise strictly from gate to gate, but 0.9 follows 0.9"),
        (["--recall", "0.9,much"], "recall target 'much' is not a number"),
        (["--keep", "1.5"], "keep target 1.5 is outside (0, 1]"),
        (
            ["--recall", "0.8,0.9,0.95", "--gates", "part:1,action:2"],
            "3 recall target(s) were given for 2 gate(s) (part:1, action:2)",
        ),
        (["--keep", "0.9", "--gates", "action:99"], "the gate 'action:99' is not in this run"),
        (["--keep", "0.9", "--layers", "3"], "layer 3 is not stored in"),
        (["--keep", "0.9", "--layers", "2,2"], "--layers 2,2 names a layer twice"),
        (["--keep", "0.9", "--uses", "tea"], "--uses is 'tea': give states or signals"),
        (["--keep", "0.9", "--shares", "50,50"], "--shares 50,50 names 2 shares"),
        (["--keep", "0.9", "--shares", "50,25,26"], "are not three whole percentages that sum to 100"),
    ],
)
def test_a_wrong_option_is_refused_and_writes_nothing(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert words in refused(["fit", str(made), "-o", str(tmp_path / "c"), *arguments], capsys)
    assert list(tmp_path.iterdir()) == []


def test_a_cascade_is_not_overwritten_unless_asked(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["fit", str(made), "--recall", "0.5", "-o", str(tmp_path / "c")]
    assert cli.main(command) == 0
    capsys.readouterr()
    assert "exists already: choose another folder, or add --overwrite" in refused(command, capsys)
    assert cli.main([*command, "--overwrite"]) == 0


@pytest.mark.parametrize(("groups", "failed"), [(0, None), (60, True), (60, False)])
def test_labels_of_one_class_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], groups: int, failed: bool | None
) -> None:
    make_run(tmp_path / "run", groups=groups, failed=failed)
    output = tmp_path / "cascade"
    words = refused(["fit", str(tmp_path / "run"), "--keep", "0.9", "-o", str(output)], capsys)
    assert "both are needed, so extract more groups" in words
    assert not output.exists()


def test_a_damaged_shard_is_named(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(made, tmp_path / "run")
    shard = sorted((tmp_path / "run" / "shards").glob("*.h5"))[0]
    shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])
    for arguments in (
        ["fit", str(tmp_path / "run"), "--keep", "0.9", "-o", str(tmp_path / "c")],
        ["inspect", str(tmp_path / "run")],
    ):
        assert shard.name in refused(arguments, capsys)
    assert not (tmp_path / "c").exists()


def test_eval_says_what_it_is_of(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = str(tmp_path / "c")
    assert cli.main(["fit", str(made), "--recall", "0.8,0.9", "--gates", "part:1,action:3", "-o", output]) == 0
    capsys.readouterr()
    assert cli.main(["eval", output, str(made)]) == 0
    out = capsys.readouterr().out
    result = backtest_run(Cascade.load(output), Run.open(made), "test")
    total = result.doomed + result.successes
    assert f"{total} labelled test episodes of {made}: {result.doomed} failures" in out
    assert f"{100 * result.caught.value:.1f} %" in out
    assert f"{result.caught_count}/{result.doomed}" in out
    assert "shaped this cascade" not in out
    assert cli.main(["eval", output, str(made), "--split", "calibrate"]) == 0
    assert "the calibrate episodes shaped this cascade" in capsys.readouterr().out


def test_eval_refuses_groups_it_was_fitted_on_other_models_and_unknown_splits(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "c"
    assert cli.main(["fit", str(made), "--recall", "0.8", "-o", str(output)]) == 0
    capsys.readouterr()
    assert "fitted the cascade, so its numbers" in refused(["eval", str(output), str(made), "--split", "all"], capsys)
    assert "--split is 'train'" in refused(["eval", str(output), str(made), "--split", "train"], capsys)
    assert "there is no run at" in refused(["eval", str(output), str(tmp_path / "no")], capsys)
    assert "there is no cascade at" in refused(["eval", str(tmp_path / "no"), str(made)], capsys)
    record = json.loads((output / "cascade.json").read_text())
    record["provenance"]["run"]["model"]["weights"] = "sha256:other"
    write_signed(output, {"provenance": record["provenance"]})
    assert "the cascade was fitted with model.weights" in refused(["eval", str(output), str(made)], capsys)
    assert cli.main(["eval", str(output), str(made), "--force"]) == 0


@pytest.mark.parametrize("more", [(), ("--trigger", "entropy_mean:0.5"), ("--billing", "api")])
def test_a_run_is_scored_once_and_the_held_out_numbers_are_those_of_eval(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    scored: list[int] = []
    plain = score_run

    def counted(*given: object, **options: object) -> object:
        scored.append(1)
        return plain(*given, **options)

    output = tmp_path / "c"
    with monkeypatch.context() as patch:
        for place in ("policies.fit", "evaluation.backtest", "policies"):
            patch.setattr(sys.modules[f"probecascade.{place}"], "score_run", counted)
        assert cli.main(["fit", str(made), "--keep", "0.9", "--layers", "4", "-o", str(output), *more]) == 0
    assert len(scored) == 1
    cascade = Cascade.load(output)
    again = backtest_run(cascade, Run.open(made), "test")
    assert cascade.held_out["caught"]["count"] == again.caught_count
    assert cascade.held_out["kept"]["count"] == again.kept_count
    assert cascade.held_out["saved"]["tokens"]["value"] == again.saved["tokens"].share.value


def test_a_gate_that_nobody_reaches_is_said_in_words(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "c"
    assert cli.main(["fit", str(made), "--keep", "0.9", "--gates", "action:1", "--layers", "4", "-o", str(output)]) == 0
    record = json.loads((output / "cascade.json").read_text())
    gate = record["gates"][0] | {"checkpoint": "action:9", "taps": [["action:9", 4]]}
    write_signed(output, {"gates": [gate]})
    capsys.readouterr()
    assert cli.main(["eval", str(output), str(made)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "test episodes come to action:9 with anything left to do: nothing is known of that gate" in text
    assert cli.main(["eval", str(output), str(made), "--json"]) == 0
    (note,) = json.loads(capsys.readouterr().out)["gate_notes"]
    assert "come to action:9" in note
