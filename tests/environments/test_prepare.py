"""The scripts of `data/`: each turns an official file into task files of our own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from probecascade.environments import load_tasks, prepare, prepare_fever

ROOT = Path(__file__).parents[2]
SETS = ("2wikimultihopqa", "bamboogle", "fever", "hotpotqa", "musique", "strategyqa")

HOTPOT: dict[str, Any] = {
    "_id": "h1",
    "question": "Where?",
    "answer": "Brosk",
    "supporting_facts": [["Ada", 0]],
    "context": [["Ada", ["Ada lives in Brosk."]]],
}


def written(path: Path, *records: Any) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", SETS)
def test_every_set_says_where_it_comes_from_and_under_what_licence(name: str) -> None:
    text = (ROOT / "data" / name / "README.md").read_text(encoding="utf-8")
    assert "| official file | https://" in text
    assert "| licence | " in text
    assert f"python data/{name}/prepare.py" in text
    assert "https://" in (ROOT / "data" / name / "prepare.py").read_text(encoding="utf-8")


def test_a_script_runs_from_any_folder(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "data" / "hotpotqa" / "prepare.py")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    source = written(tmp_path / "x.json", HOTPOT)
    done = subprocess.run(
        [*command, source, "own.jsonl.gz"], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert load_tasks(tmp_path / "own.jsonl.gz") == load_tasks(source)
    done = subprocess.run(
        [*command, "nowhere", "o.jsonl"], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith("prepare.py: the task file nowhere cannot be read")
    assert done.stderr.count("\n") == 1


def test_records_that_make_no_task_are_left_out_aloud(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = written(tmp_path / "x.json", HOTPOT, {**HOTPOT, "_id": "h2", "answer": ""}, {**HOTPOT, "_id": "h3"})
    assert prepare([source, str(tmp_path / "own.jsonl")], ("hotpotqa",), "") == 0
    assert [task.task_id for task in load_tasks(tmp_path / "own.jsonl")] == ["h1", "h3"]
    out = capsys.readouterr().out
    assert "2 tasks written" in out
    assert "1 records left out" in out
    assert "line 2, record 2: 'answer' is blank" in out
    assert prepare([source, str(tmp_path / "few.jsonl"), "--limit", "1"], ("hotpotqa",), "") == 0
    assert len(load_tasks(tmp_path / "few.jsonl")) == 1


def test_a_file_of_another_set_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = written(tmp_path / "x.json", HOTPOT)
    assert prepare([source, str(tmp_path / "own.jsonl")], ("musique",), "") == 2
    assert "has the layout hotpotqa; give a file of musique" in capsys.readouterr().err
    assert not (tmp_path / "own.jsonl").exists()


def test_fever_keeps_the_pages_of_its_evidence_and_a_share_of_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = tmp_path / "wiki-pages"
    dump.mkdir()
    others = [{"id": f"Boat_{n}", "text": "", "lines": f"0\tBoat {n} is a boat."} for n in range(200)]
    written(dump / "wiki-001.jsonl", {"id": "", "text": "", "lines": ""}, *others[:100])
    written(dump / "wiki-002.jsonl", {"id": "Ada", "text": "", "lines": "0\tAda is a poet."}, *others[100:])
    claims = written(
        tmp_path / "claims.jsonl",
        {"id": 1, "label": "SUPPORTS", "claim": "Ada is a poet.", "evidence": [[[1, 1, "Ada", 0]]]},
        {"id": 2, "label": "NOT ENOUGH INFO", "claim": "Ada owns a boat.", "evidence": [[[1, None, None, None]]]},
    )
    output = tmp_path / "fever.jsonl.gz"
    assert prepare_fever([claims, str(output), "--pages", str(dump), "--one-in", "10"], "") == 0
    kept = [json.loads(line)["title"] for line in (tmp_path / "fever.pages.jsonl").read_text().splitlines()]
    assert "Ada" in kept
    assert 5 <= len(kept) <= 45
    true, open_claim = load_tasks(output)
    assert true.attributes["supporting_facts"] == [["Ada", 0]]
    assert open_claim.parts[0].answers == ("NOT ENOUGH INFO",)
    assert len(true.paragraphs) > 1
    again = [claims, str(output), "--pages", str(tmp_path / "fever.pages.jsonl")]
    before = (tmp_path / "fever.pages.jsonl").read_bytes()
    assert prepare_fever(again, "") == 2
    assert "is both read and to be written" in capsys.readouterr().err
    assert (tmp_path / "fever.pages.jsonl").read_bytes() == before
