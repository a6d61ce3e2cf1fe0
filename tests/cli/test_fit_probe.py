"""`fit` with other probes than the plain one: options, recipes, refusals, and what is shown of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made_runs import make_run

from probecascade import cli
from probecascade.policies import Cascade


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("made") / "atlas", groups=120).path


def fitted(made: Path, output: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    given = () if "--recipe" in arguments else ("--keep", "0.8", "--gates", "action:2,action:3", "--layers", "2,4")
    assert cli.main(["fit", str(made), *given, *arguments, "-o", str(output), "--json"]) == 0
    record: dict[str, Any] = json.loads(capsys.readouterr().out)
    return record


@pytest.mark.parametrize(
    ("arguments", "sees"),
    [
        (("--probe", "mass-mean-whitened", "--steps", "layernorm,pca:3", "--calibrated", "platt"), ["4", "4"]),
        (("--probe", "sequence-mean", "--class-weight", "balanced"), ["4, 1 earlier", "4, 2 earlier"]),
        (("--last-layers", "2", "--calibrated", "isotonic"), ["2+4", "2+4"]),
        (("--last-layers", "2:average"), ["2+4", "2+4"]),
        (("--fuse", "signals,text", "--layers", "4"), ["4 + signals + text"] * 2),
        (("--fuse", "text", "--fusion", "late", "--probe", "lda", "--layers", "4"), ["4 + text"] * 2),
        (("--uses", "signals", "--fuse", "text"), ["signals + text"] * 2),
    ],
)
def test_each_kind_is_fitted_and_shown(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], sees: list[str]
) -> None:
    record = fitted(made, tmp_path / "c", capsys, *arguments)
    assert [gate["sees"] for gate in record["gates"]] == sees
    assert cli.main(["inspect", str(tmp_path / "c")]) == 0
    shown = capsys.readouterr().out
    assert all(text in shown for text in sees)
    assert cli.main(["eval", str(tmp_path / "c"), str(made), "--split", "test", "--json"]) == 0
    evaluated = json.loads(capsys.readouterr().out)
    assert evaluated["kept"] == record["held_out"]["kept"]
    assert cli.main(["inspect", str(made), "--episode", "3", "--cascade", str(tmp_path / "c"), "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["scores"]) <= {"action:2", "action:3"}


def test_a_recipe_says_it_and_options_go_before_it(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "calibrate.toml"
    recipe.write_text(
        '[targets]\nkeep = 0.8\n[gates]\nnames = ["action:2", "action:3"]\n[probe]\nlayers = [2, 4]\n'
        'kind = "lda"\nsteps = ["layernorm"]\ncalibrated = "platt"\nclass_weight = "balanced"\nlast_layers = 2\n'
        'pooled = "average"\nfuse = ["text"]\nfusion = "late"\nsurvivors = true\n'
    )
    given = ("--recipe", str(recipe))
    fitted(made, tmp_path / "a", capsys, *given)
    said = Cascade.load(tmp_path / "a").provenance["probe"]
    assert said == {
        "kind": "lda",
        "steps": ["layernorm"],
        "calibrated": "platt",
        "class_weight": "balanced",
        "last_layers": 2,
        "pooled": "average",
        "fuse": ["text"],
        "fusion": "late",
        "survivors": True,
    }
    fitted(
        made, tmp_path / "b", capsys, *given, "--probe", "logistic", "--steps", "", "--last-layers", "1", "--fuse", ""
    )
    plain = Cascade.load(tmp_path / "b").provenance["probe"]
    assert set(plain) == {"calibrated", "class_weight", "survivors"}  # `fusion` goes with what it was about


def test_survivors_are_fewer_and_said(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    targets = ("--recall", "0.4,0.6", "--method", "empirical", "--gates", "action:1,action:2")
    counts = {}
    for name, more in (("all", ()), ("survivors", ("--survivors",))):
        assert cli.main(["fit", str(made), *targets, *more, "-o", str(tmp_path / name), "--json"]) == 0
        counts[name] = [gate["fit_doomed"] for gate in json.loads(capsys.readouterr().out)["gates"]]
    assert counts["survivors"][0] == counts["all"][0]
    assert counts["survivors"][1] < counts["all"][1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--probe", "logistc"], "There is no probe 'logistc'; did you mean 'logistic'?"),
        (["--calibrated", "plat"], "did you mean 'platt'"),
        (["--class-weight", "heavy"], "There is no class weight 'heavy'"),
        (["--steps", "pca"], "give 'pca:' with the number of components"),
        (["--last-layers", "many"], "--last-layers is 'many': give how many"),
        (["--last-layers", "2:sum"], "--last-layers is '2:sum': give how many"),
        (["--last-layers", "4"], "the last 4 layers were asked for, and 3 are there"),
        (["--fuse", "smell"], "name signals, text or checks once each"),
        (["--fuse", "checks"], "no probe can be fitted at action:2: no check is recorded"),
        (["--fusion", "middle"], "--fusion is 'middle': give early or late"),
        (["--fusion", "late"], "late fusion is about what is fused, and nothing is: add --fuse"),
        (["--fusion", "early"], "--fusion is about what --fuse adds, and nothing is fused"),
        (
            ["--steps", "average"],
            "the step average makes one of several layers or checkpoints, and the probe reads one",
        ),
        (["--steps", "average", "--last-layers", "2:average"], "the step average makes one of several"),
        (["--last-layers", "1:average"], "one layer has nothing to average"),
        (["--uses", "signals", "--fuse", "signals"], "the probe reads signals already"),
        (["--probe", "mlp", "--fuse", "text"], "ask for late fusion"),
        (["--uses", "signals", "--probe", "mlp"], "a probe on signals is a logistic regression"),
    ],
)
def test_a_wrong_option_is_refused_and_writes_nothing(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    command = ["fit", str(made), "--keep", "0.8", "--gates", "action:2", "-o", str(tmp_path / "c")]
    assert cli.main([*command, *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert words in err
    assert list(tmp_path.iterdir()) == []


def test_paper_with_recall_is_refused_before_a_probe_is_fitted(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object, **more: object) -> None:
        raise AssertionError("a probe was fitted")

    monkeypatch.setattr("probecascade.policies.probing.choose_layer", fail)
    command = ["fit", str(made), "--recall", "0.5", "--gates", "action:2", "--method", "paper"]
    assert cli.main([*command, "-o", str(tmp_path / "c")]) == 2
    assert "method 'paper' sets thresholds for a keep target alone" in capsys.readouterr().err


def test_a_cascade_changed_by_hand_is_refused(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fitted(made, tmp_path / "c", capsys, "--layers", "4")
    text = tmp_path / "c" / "cascade.json"
    record = json.loads(text.read_text())
    record["gates"][0]["threshold"] = 0.01
    text.write_text(json.dumps(record))
    assert cli.main(["eval", str(tmp_path / "c"), str(made)]) == 2
    assert "changed by hand" in capsys.readouterr().err
