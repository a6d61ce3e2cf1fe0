"""`probecascade sweep`: the answer in words, tables that fit a terminal, the same numbers as JSON, CSV and folder."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from made_runs import make_run

from probecascade import cli
from probecascade.evaluation import SweepResult
from probecascade.evaluation.sweep_result import METRICS

INTERVAL = {"value", "low", "high", "n", "groups"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep") / "run"
    make_run(folder, groups=100, outcomes=("aborted",))
    return folder


def test_the_answer_comes_in_words_and_tables_that_fit(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sweep", str(run), "--checkpoints", "prompt,action:1,observation:1,part:1,action:5"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 120
    first, answer, *_ = text.split("\n\n")
    assert "100 labelled episodes of 100 groups" in first
    assert answer.replace("\n  ", " ").startswith(
        "Failure is predicted better than chance from action:1 on, of the 4 checkpoints swept, by the logistic probe "
        "at layer 4"
    )
    assert "The probe beats the prompt-only probe" in answer
    assert "Too few groups hold both a failure and a success" in answer
    assert "It is predicted best at part:1" in answer.replace("\n  ", " ")
    (grid,) = [part for part in text.split("\n\n") if part.startswith("AUROC by layer")]
    titles, _, *rows = grid.splitlines()
    assert titles.split() == ["AUROC", "by", "layer", "0", "2", "4"]
    assert [row.split()[0] for row in rows] == ["prompt", "action:1", "observation:1", "part:1"]
    assert rows[-1].endswith("+")  # layer 4 at part:1 is above chance
    assert "skipped, as fewer than 20 groups of a class come there: action:5" in text


def test_json_folder_and_csv_hold_the_same_numbers(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--checkpoints", "prompt,part:1", "--layers", "0,-1", "--probe", "logistic,mass-mean", "--seed", "3"]
    places = ["-o", str(tmp_path / "found"), "--csv", str(tmp_path / "tables" / "found.csv")]
    assert cli.main(["sweep", str(run), *options, *places, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["layers"] == [0, 4]
    assert record["probes"] == ["logistic", "mass-mean"]
    assert (record["episodes"], record["folds"], record["seed"]) == (100, 5, 3)
    assert len(record["cells"]) == 8
    for row in [*record["cells"], *record["baselines"], *record["selected"]]:
        assert all(set(row[name]) >= INTERVAL for name in METRICS)
    (early, late) = record["selected"]
    assert sum(late["chosen"].values()) == sum(late["chosen_probes"].values()) == 5
    assert set(late["gains"]) == {"majority", "prompt", "surface", "tfidf", "embedding", "random"}
    assert set(early["gains"]) == {"majority", "surface", "embedding", "random"}
    loaded = SweepResult.load(tmp_path / "found")
    assert loaded.record() == record
    assert set(loaded.scores) == {"prompt", "part:1"}
    with (tmp_path / "tables" / "found.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(record["cells"]) + len(record["baselines"]) + len(record["selected"])
    assert [row["probe"] for row in rows if row["row"] == "baseline"] == [row["name"] for row in record["baselines"]]
    (chosen,) = [row for row in rows if row["row"] == "selected" and row["checkpoint"] == "part:1"]
    assert float(chosen["auroc_low"]) == late["auroc"]["low"]
    assert chosen["pair_accuracy"] == ""


def test_without_baselines_only_probes_are_shown(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sweep", str(run), "--checkpoints", "prompt", "--baselines", "none"]) == 0
    text = capsys.readouterr().out
    assert text.split("\n\n")[1].startswith("No probe predicts failure better than chance at any of 1 checkpoint")
    assert "beats" not in text
    assert "beyond" not in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--checkpoints", "part:9"], "the checkpoints part:9 are not in"),
        (["--layers", "3"], "layers 3 are not stored"),
        (["--probe", "logistc"], "logistic"),
        (["--baselines", "surfaces"], "name some of majority, prompt, surface"),
        (["--folds", "0"], "0 folds were asked for"),
        (["--keep", "0"], "a keep of 0 was given"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(
    run: Path, tmp_path: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["sweep", str(run), *arguments, "-o", str(tmp_path / "new")]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert not list(tmp_path.iterdir())


def test_what_is_there_is_never_replaced(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.csv").write_text("kept", encoding="utf-8")
    assert cli.main(["sweep", str(run), "--csv", str(tmp_path / "mine.csv")]) == 2
    assert "exists already" in capsys.readouterr().err
    assert cli.main(["sweep", str(run), "-o", str(tmp_path)]) == 2
    for option in ("-o", "--csv"):  # told before the work, not after it
        assert cli.main(["sweep", str(run), option, str(tmp_path / "mine.csv" / "deeper" / "place")]) == 2
        assert "mine.csv' is a file: choose another place" in capsys.readouterr().err
    assert (tmp_path / "mine.csv").read_text(encoding="utf-8") == "kept"
