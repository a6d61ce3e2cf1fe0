"""The sweep benchmark on tiny sizes: what it prints, and that both sides agree. Times are not judged."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import sweep as benchmark

TINY = ("--layers", "2", "--checkpoints", "2", "--episodes", "240", "--dims", "12", "--folds", "3")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = benchmark.main([*TINY, "--json", *arguments])
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) == 1
    report: dict[str, Any] = json.loads(printed)
    return code, report


@pytest.mark.parametrize("nested", [(), ("--inner-folds", "2", "--dtype", "float64")])
def test_it_prints_one_object_and_both_sides_agree(capsys: pytest.CaptureFixture[str], nested: tuple[str, ...]) -> None:
    code, report = run(capsys, *nested, "--repeats", "2")
    assert code == 0
    assert report["speedup_vs_sklearn"] == pytest.approx(report["sklearn_seconds"] / report["sweep_seconds"])
    assert report["auroc_difference"] <= benchmark.MOST_DIFFERENCE
    assert report["gigabytes"] >= 0
    assert 0.4 < report["auroc_lowest"] < report["auroc_highest"] < 1.0
    assert report["ran_on"]["threads"] == 1
    assert (report["ran_on"]["layers"], report["ran_on"]["inner_folds"]) == (2, 2 if nested else None)


def test_sides_that_differ_are_told_by_the_exit_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = benchmark.looped
    monkeypatch.setattr(benchmark, "looped", lambda *given: -own(*given))
    code, report = run(capsys)
    assert code == 1
    assert report["auroc_difference"] > benchmark.MOST_DIFFERENCE


def test_the_states_have_a_falling_spectrum_and_a_direction_that_is_clearest_in_the_middle() -> None:
    failed, groups = benchmark.labels(400, 0)
    assert len(groups) == len(failed) == 400
    made = benchmark.states(failed, 5, 60, (0, 0))
    assert {rows.dtype for rows in made.values()} == {np.dtype(np.float32)}
    variances = np.linalg.eigvalsh(np.cov(made[0].T))
    assert variances[-1] > 1000 * variances[0]
    gaps = [np.linalg.norm(rows[failed].mean(axis=0) - rows[~failed].mean(axis=0)) for rows in made.values()]
    assert gaps[2] > max(gaps[0], gaps[4])


def test_counts_that_cannot_be_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        benchmark.main(["--layers", "0"])
    assert stopped.value.code == 2
    assert "0 is no count" in capsys.readouterr().err


def test_too_few_folds_are_refused_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark.main([*TINY, "--folds", "1", "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "ask for two or more" in captured.err
