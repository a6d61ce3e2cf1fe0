"""AUROC by checkpoint: cross-fitted, beside prompt-only and surface probes, and in words who beats whom."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from probecascade.cli.auroc import CheckpointAuroc, auroc_by_checkpoint, worthwhile
from probecascade.cli.quickstart_text import auroc_report
from probecascade.probes import Interval
from probecascade.store import Run


def interval(value: float, low: float, high: float) -> Interval:
    return Interval(value, low, high, 100, 100, 0)


def test_only_checkpoints_with_enough_of_both_classes_are_measured(lottery_run: Path) -> None:
    run = Run.open(lottery_run / "run")
    assert worthwhile(run, ("prompt", "part:3", "part:9")) == ("prompt", "part:3")
    assert list(auroc_by_checkpoint(run, ())) == []


def test_a_shuffled_label_is_worth_nothing_and_not_less(lottery_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the shift by the log-odds of the folds, pooled scores of an idle probe run against the labels."""
    run = Run.open(lottery_run / "run")
    shuffled = np.random.default_rng(1).permutation(run.episodes.failed)
    monkeypatch.setitem(run.__dict__, "episodes", _with_failed(run, shuffled))
    (row,) = auroc_by_checkpoint(run, ("observation:1",))
    for found in (row.probe, row.surface, row.prompt):
        assert 0.35 < found.value < 0.65


def _with_failed(run: Run, failed: np.ndarray) -> object:
    from dataclasses import replace

    return replace(run.episodes, failed=failed)


def test_a_probe_that_beats_nothing_is_said_not_to() -> None:
    good, same = interval(0.2, 0.1, 0.3), interval(0.01, -0.05, 0.07)
    third = interval(0.8, 0.7, 0.9)
    rows = [
        CheckpointAuroc("prompt", False, third, third, third, interval(0, 0, 0), same),
        CheckpointAuroc("part:1", False, third, third, third, good, same),
        CheckpointAuroc("part:2", True, third, third, third, same, good),
    ]
    text = auroc_report(rows)
    assert "part:2 (last turn)" in text
    assert "the probe beats the surface baseline at part:2 (+0.200 [+0.100, +0.300])" in text
    assert "the probe is not shown to beat the surface baseline at prompt (+0.010 [-0.050, +0.070]), part:1 (" in text
    assert "the probe beats the prompt-only probe at part:1 (" in text
    assert "the probe is not shown to beat the prompt-only probe at part:2 (" in text


def test_what_is_at_chance_beats_nothing_even_where_its_rival_is_worse() -> None:
    worse, good = interval(0.4, 0.33, 0.48), interval(0.1, 0.02, 0.2)
    rows = [
        CheckpointAuroc("action:1", False, interval(0.52, 0.43, 0.6), worse, worse, good, good),
        CheckpointAuroc("part:1", False, interval(0.8, 0.7, 0.9), worse, worse, good, good),
    ]
    text = auroc_report(rows)
    assert "not shown to be better than chance at action:1\n" in text
    assert "the probe beats the prompt-only probe at part:1 (" in text
    assert text.count("action:1") == 2  # in the table and in that sentence
    assert "lie somewhat below one half (docs/workbench.md says why)" in " ".join(text.split())
