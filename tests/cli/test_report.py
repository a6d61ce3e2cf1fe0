"""`probecascade report`: a page, figures and a record of the same; what exists is never written over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_runs import make_run

from probecascade import cli
from probecascade.evaluation import sweep_run
from probecascade.policies import fit_cascade
from probecascade.store import Run


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, a cascade fitted on it and a sweep of it."""
    folder = tmp_path_factory.mktemp("report")
    run = make_run(folder / "run", groups=120)
    fit_cascade(run, gates=("action:1", "part:1"), keep=0.8).cascade.save(folder / "cascade")
    sweep_run(run, checkpoints=("action:1", "part:1"), layers=(4,), baselines=("prompt",)).save(folder / "sweep")
    return folder


def test_page_figures_and_record(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, figures = tmp_path / "new" / "page.html", tmp_path / "figures"
    arguments = ["report", str(place / "run"), str(place / "cascade"), "--sweep", str(place / "sweep")]
    options = ["-o", str(page), "--figures", str(figures), "--limit-episodes", "30", "--json"]
    assert cli.main([*arguments, *options]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["bytes"] == page.stat().st_size
    assert record["episodes"] == {"shown": 30, "of": 120}
    assert record["verdicts"][0].startswith("Failure is predicted")
    assert any("catches" in sentence for sentence in record["cascade_verdicts"])
    names = [figure["name"] for figure in record["figures"]]
    assert sorted(path.name for path in figures.iterdir()) == sorted(
        f"{name}.{form}" for name in names for form in ("png", "pdf", "csv")
    )
    assert record["verdicts"][0] in page.read_text(encoding="utf-8")


def test_modes_of_a_file_go_before_the_rules_and_lines_fit_a_terminal(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run.open(place / "run")
    labels = tmp_path / "modes.csv"
    names = run.episodes.episode_id[run.episodes.failed].tolist()
    labels.write_text("episode_id,mode\n" + "".join(f"{name},lost_its_way\n" for name in names))
    arguments = ["report", str(place / "run"), str(place / "cascade"), "--sweep", str(place / "sweep")]
    assert cli.main([*arguments, "-o", str(tmp_path / "a.html"), "--labels", str(labels)]) == 2
    assert "lost_its_way" in capsys.readouterr().err
    assert not (tmp_path / "a.html").exists()
    assert cli.main([*arguments, "-o", str(tmp_path / "a.html"), "--labels", str(labels), "--allow-new"]) == 0
    told = capsys.readouterr().out
    assert max(map(len, told.splitlines())) <= 120
    assert "the cascade catches" in " ".join(told.split())
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert "lost_its_way" in page
    assert "wrong_answer" not in page
    assert cli.main([*arguments, "-o", str(tmp_path / "b.html"), "--allow-new"]) == 2
    assert "add --labels" in capsys.readouterr().err


@pytest.mark.slow
def test_without_a_cascade_or_a_sweep_it_sweeps_and_says_where(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = make_run(tmp_path / "run", groups=100, outcomes=("aborted",))
    monkeypatch.chdir(tmp_path)
    assert cli.main(["report", str(small.path)]) == 0
    told = capsys.readouterr().out
    assert "written to report.html" in told
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["-o", "{place}/taken.html"], "exists already"),
        (["--figures", "{place}/sweep"], "exists already"),
        (["--limit-episodes", "0"], "give 1 or more"),
        (["--sweep", "{place}/nothing"], "there is no sweep"),
        (["--transfer", "{place}/taken.html"], "is no JSON"),
        (["--transfer", "{place}/sweep/sweep.json"], "holds no transfer matrices"),
        (["-o", "{place}/taken.html/page.html"], "taken.html' is a file"),
        (["--figures", "{place}/taken.html/figures"], "taken.html' is a file"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], sentence: str
) -> None:
    (place / "taken.html").write_text("mine")
    given = [option.format(place=place) for option in options]
    output = [] if "-o" in given else ["-o", str(tmp_path / "page.html")]
    sweep = [] if "--sweep" in given else ["--sweep", str(place / "sweep")]
    assert cli.main(["report", str(place / "run"), *sweep, *output, *given]) == 2
    told = capsys.readouterr()
    assert sentence in told.err
    assert told.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
    assert (place / "taken.html").read_text() == "mine"


@pytest.mark.parametrize("matrices", ["[1]", '[{"kinds": []}]', '"abc"'])
def test_what_cannot_be_drawn_is_refused_before_the_sweep(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, matrices: str
) -> None:
    monkeypatch.setattr("probecascade.evaluation.Sweep.of", lambda *_, **__: pytest.fail("it swept"))
    file = tmp_path / "transfer.json"
    file.write_text(f'{{"matrices": {matrices}, "verdicts": []}}')
    assert cli.main(["report", str(place / "run"), "-o", str(tmp_path / "page.html"), "--transfer", str(file)]) == 2
    assert "holds no transfer matrices" in capsys.readouterr().err


def test_the_sweep_of_another_run_is_refused(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = make_run(tmp_path / "other", groups=121, seed=3)
    page = tmp_path / "page.html"
    assert cli.main(["report", str(other.path), "--sweep", str(place / "sweep"), "-o", str(page)]) == 2
    assert "the sweep is not of the run" in capsys.readouterr().err
    assert not page.exists()


def test_a_matrix_of_what_travels_is_taken_in(place: Path, tmp_path: Path) -> None:
    nothing = {"value": None, "low": None, "high": None}
    cell = {"n": 60, "failed": 30, "auroc": {"value": 0.7, "low": 0.6, "high": 0.8}}
    cell |= {"surface": nothing, "kept": nothing, "caught": nothing}
    cells = [{**cell, "train": a, "test": b} for a in "xy" for b in "xy"]
    matrix = {"checkpoint": "part:1", "kinds": ["x", "y"], "rows": ["x", "y"], "cells": cells}
    file, page = tmp_path / "transfer.json", tmp_path / "page.html"
    file.write_text(json.dumps({"matrices": [matrix], "verdicts": ["It travels <well>."]}))
    sweep = ["--sweep", str(place / "sweep")]
    assert cli.main(["report", str(place / "run"), *sweep, "--transfer", str(file), "-o", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert 'id="figure-transfer"' in text
    assert "It travels &lt;well&gt;." in text
    file.write_text(json.dumps({"matrices": [{"checkpoint": "part:1"}], "verdicts": []}))
    again = tmp_path / "again.html"
    assert cli.main(["report", str(place / "run"), *sweep, "--transfer", str(file), "-o", str(again)]) == 2
