"""`transcripts`: a file of recorded runs is described, or refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from probecascade import cli

from .conftest import refused

STEPS = [
    {"thought": "Look.", "action": "search", "argument": "Ada", "observation": "No more results."},
    {"thought": "Known.", "action": "finish", "argument": "x", "observation": "Your answer is filed."},
]
SHARED = sorted((Path(__file__).parents[3] / "shared" / "data").glob("trajectories_*"))


def _file(folder: Path, *records: dict[str, Any] | str) -> Path:
    path = folder / "runs.jsonl"
    path.write_text("".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in records))
    return path


def _record(number: int, **changed: Any) -> dict[str, Any]:
    return {"traj_id": f"t{number}", "question": "Who?", "model": "m", "steps": STEPS, "success": True} | changed


def _described(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert cli.main(["transcripts", str(path), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [_record(0), _record(1, success=False), _record(2, success=None), _record(3, steps=[])]
    record = _described(_file(tmp_path, *runs, "no json"), capsys)
    faults = record.pop("faults")
    assert record == {
        "path": str(tmp_path / "runs.jsonl"),
        "format": "steps",
        "records": 4,
        "runs": 3,
        "groups": 1,
        "labelled": 2,
        "successes": 1,
        "success_share": 0.5,
        "steps": {"median": 2, "max": 2, "all": 6},
        "observation_kinds": {"not_found": 3, "finish": 3},
        "actions": {"search": 3, "finish": 3},
        "models": {"m": 3},
        "dropped": {"closing observations": 3, "rounds after finish": 0, "verdicts": 0},
    }
    assert [(fault["line"], fault["problem"]) for fault in faults[:2]] == [
        (3, "the record tells no outcome: kept without a label"),
        (4, "the record has no steps: left out"),
    ]
    assert faults[2]["line"] == 5


def test_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _file(tmp_path, *(_record(number, success=None) for number in range(12)))
    assert cli.main(["transcripts", str(path)]) == 0
    out = capsys.readouterr().out
    assert "layout        steps\n" in out
    assert "runs          12 of 12 records, in 1 groups\n" in out
    assert "success       – (no run has a label)\n" in out
    assert "left out      12 closing observations; 0 rounds after finish; 0 verdicts" in out
    assert "faults        12\n  line 1: the record tells no outcome: kept without a label\n" in out
    assert out.endswith("  and 2 more: --json prints all\n")


def test_what_a_file_holds_cannot_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _file(tmp_path, _record(0, model="\x1b[31mred"), _record(0))
    assert cli.main(["transcripts", str(path)]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unknown = _file(tmp_path, {"_id": 1})
    assert "is of no known layout: tried steps" in refused(["transcripts", str(unknown)], capsys)
    assert "there is no layout 'csv'" in refused(["transcripts", str(unknown), "--layout", "csv"], capsys)
    assert "cannot be read" in refused(["transcripts", str(tmp_path / "none.jsonl")], capsys)
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    assert "holds no record" in refused(["transcripts", str(empty)], capsys)


@pytest.mark.skipif(not SHARED, reason="no shared recorded runs beside the project")
@pytest.mark.parametrize("path", SHARED, ids=lambda path: path.name.split("_shared")[0])
def test_every_shared_file_is_described(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = _described(path, capsys)
    assert record["records"] == record["runs"] == record["labelled"] > 100
    assert 0.05 < record["success_share"] < 0.6
