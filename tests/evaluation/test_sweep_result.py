"""A sweep's folder: whole or absent, never over another, back bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from probecascade.errors import StoreError
from probecascade.evaluation import SweepResult


def made_result() -> SweepResult:
    rng = np.random.default_rng(0)
    interval = {"value": 0.7, "low": 0.6, "high": 0.8, "n": 12, "groups": 9}
    row = {"checkpoint": "action:1", "n": 12, "failed": 5, "closing": False, "auroc": interval}
    scores = rng.random(12)
    scores[3] = np.nan
    return SweepResult(
        run="runs/some",
        episodes=12,
        groups=9,
        failed=5,
        folds=5,
        seed=0,
        confidence=0.95,
        keep=0.95,
        checkpoints=["action:1"],
        layers=[0, 2],
        probes=["logistic"],
        skipped=[{"checkpoint": "action:9", "n": 2, "failed": 1, "reason": "few"}],
        absent=[],
        own_folds=[],
        cells=[row | {"layer": 2, "probe": "logistic"}],
        baselines=[row | {"name": "surface"}],
        selected=[row | {"probe": "logistic", "chosen": {"2": 5}}],
        verdicts=["a sentence"],
        scores={"action:1": scores},
        baseline_scores={"surface": {"action:1": rng.random(12)}},
        fold={"action:1": np.arange(12) % 5},
    )


def test_a_saved_sweep_comes_back_bit_for_bit(tmp_path: Path) -> None:
    made = made_result()
    made.save(tmp_path / "deep" / "sweep")
    loaded = SweepResult.load(tmp_path / "deep" / "sweep")
    assert loaded.record() == made.record() == json.loads(json.dumps(made.record()))
    assert loaded.scores["action:1"].tobytes() == made.scores["action:1"].tobytes()
    stored = loaded.baseline_scores["surface"]["action:1"]
    assert stored.tobytes() == made.baseline_scores["surface"]["action:1"].tobytes()
    assert loaded.fold["action:1"].tolist() == made.fold["action:1"].tolist()


def test_nothing_is_written_over_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "mine").write_text("kept")
    with pytest.raises(StoreError, match="exists already"):
        made_result().save(tmp_path / "sweep")
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["mine", "sweep"]


@pytest.mark.parametrize("name", ["sweep.json", "scores.safetensors"])
def test_a_damaged_folder_is_named(tmp_path: Path, name: str) -> None:
    made_result().save(tmp_path / "sweep")
    (tmp_path / "sweep" / name).write_bytes(b"{torn")
    with pytest.raises(StoreError, match="holds a damaged sweep"):
        SweepResult.load(tmp_path / "sweep")


def test_other_folders_and_later_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no sweep at"):
        SweepResult.load(tmp_path)
    made_result().save(tmp_path / "sweep")
    text = (tmp_path / "sweep" / "sweep.json").read_text()
    (tmp_path / "sweep" / "sweep.json").write_text(text.replace('"format": 1', '"format": 2'))
    with pytest.raises(StoreError, match="newer than 1"):
        SweepResult.load(tmp_path / "sweep")
