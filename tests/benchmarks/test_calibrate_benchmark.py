"""The calibration benchmark on tiny sizes: what it prints, and that both searches agree. Times are not judged."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import calibrate as benchmark
from probecascade.testing.worlds import World
from probecascade.thresholds.allocation import Allocations

TINY = ("--episodes", "150", "--gates", "3", "--levels", "4", "--large-episodes", "300", "--large-gates", "2")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = benchmark.main([*TINY, "--repeats", "2", "--json", *arguments])
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) == 1
    report: dict[str, Any] = json.loads(printed)
    return code, report


def test_it_prints_one_object_with_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    code, report = run(capsys)
    assert code == 0
    for figure in ("speedup_vs_enumeration", "certify_ms", "large_seconds"):
        assert report[figure] > 0, figure
    assert report["large_gigabytes"] >= 0
    assert (report["objective_ratio"], report["same_thresholds"], report["allocations"]) == (1.0, True, 64)
    assert report["certified"]
    assert report["large_certified"]
    assert report["ran_on"]["threads"] == 1


def test_parts_can_be_measured_alone(capsys: pytest.CaptureFixture[str]) -> None:
    _, report = run(capsys, "--only", "certificate")
    assert sorted(report) == ["certified", "certify_ms", "ran_on"]


@pytest.mark.parametrize("n_gates", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["ties", "scales"])
def test_the_enumeration_finds_what_the_search_finds(name: str, n_gates: int) -> None:
    data = World(name, n_gates).sample(120, np.random.default_rng(n_gates))
    candidates = benchmark.levels_of(data, 4)
    for required in (0, int(0.9 * data.successes), data.successes):
        thresholds, kept, saved = benchmark.enumeration(data, candidates, required)
        found = Allocations.of(data, candidates).best(required)
        assert found is not None
        assert (found[0].tolist(), found[1], found[2]) == (thresholds.tolist(), kept, saved)


def test_searches_that_differ_are_told_by_the_exit_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = benchmark.enumeration

    def stricter(data: Any, candidates: Any, required: int) -> Any:
        return own(data, candidates, required + 1)

    monkeypatch.setattr(benchmark, "enumeration", stricter)
    code, report = run(capsys, "--only", "search")
    assert (code, report["same_thresholds"]) == (1, False)
    assert report["objective_ratio"] > 1.0


def test_memory_growth_is_seen() -> None:
    with benchmark.PeakMemory() as memory:
        held = np.ones(20_000_000)
    assert memory.growth > 0.9 * held.nbytes


def test_counts_that_cannot_be_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        benchmark.main(["--episodes", "0"])
    assert stopped.value.code == 2
    assert "0 is no count" in capsys.readouterr().err


def test_too_many_allocations_are_refused_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark.main(["--levels", "1000", "--only", "search", "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.strip().splitlines()) == 1
