"""The script behind the figures of the workbench: it writes what the report shows, and removes only what it made."""

from __future__ import annotations

from pathlib import Path

import pytest
import workbench
from made_runs import make_run

from probecascade.evaluation import sweep_run
from probecascade.policies import fit_cascade


def test_figures_tables_and_words_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run", groups=120)
    fit_cascade(run, gates=("action:1", "part:1"), keep=0.8).cascade.save(tmp_path / "cascade")
    sweep = sweep_run(run, checkpoints=("action:1", "part:1"), layers=(4,), baselines=("prompt",))
    sweep.save(tmp_path / "sweep")
    figures = tmp_path / "docs" / "figures"
    given = [str(tmp_path / "run"), str(tmp_path / "cascade"), "--sweep", str(tmp_path / "sweep")]
    assert workbench.main([*given, "--output", str(figures)]) == 0
    text = (figures / "README.md").read_text(encoding="utf-8")
    assert f"- {sweep.verdicts[0]}" in text
    for row in sweep.selected:
        assert f"| {row['checkpoint']} | {row['n']} ({row['failed']}) | 4 | {row['auroc']['value']:.3f} [" in text
    for name in ("auroc-by-layer", "auroc-by-round", "caught-by-gate"):
        assert (figures / f"{name}.svg").read_text(encoding="utf-8").startswith("<?xml")
        assert (figures / f"{name}.csv").stat().st_size > 100
        assert f"({name}.svg)" in text
    (figures / "mine.txt").write_text("mine")
    assert workbench.main([*given, "--output", str(figures)]) == 2
    assert (figures / "mine.txt").read_text() == "mine"
    assert "holds other files" in capsys.readouterr().err
