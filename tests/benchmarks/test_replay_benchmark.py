"""The replay benchmark on a tiny model: both sides read the same ids and keep the same states. Times are not judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import replay as benchmark
import torch

from tests.cli.conftest import save_model


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "theirs.jsonl"
    steps: list[dict[str, Any]] = [
        {"thought": "I look.", "action": "search", "argument": "A city", "observation": "A city. " * 9},
        {"thought": "I know.", "action": "finish", "argument": "A land", "observation": ""},
    ]
    lines = [
        {
            "traj_id": f"r{n}",
            "task_key": f"t{n}",
            "question": f"Where is {n}?",
            "success": True,
            "steps": steps[n % 2 :],
        }
        for n in range(5)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_it_prints_one_object_with_every_figure(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(save_model(tmp_path / "tiny"))
    command = [str(file), "--model", model, "--device", "cpu", "--layers", "0,1,2", "--runs", "4", "--repeats", "2"]
    assert benchmark.main([*command, "--json"]) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 1
    report = json.loads(out)
    assert (report["runs"], report["layers"]) == (4, [0, 1, 2])
    assert report["shortest"] < report["longest"] < report["tokens"]
    assert {name: len(times) for name, times in report["seconds"].items()} == {"replay": 2, "one_by_one": 2}
    assert report["speedup"] > 0
    assert report["furthest_apart"] < 1e-3  # float16 in the store
    assert report["ran_on"]["threads"] == torch.get_num_threads()


def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark.main([str(tmp_path / "none.jsonl")]) == 2
    assert "benchmarks/replay.py: " in capsys.readouterr().err
