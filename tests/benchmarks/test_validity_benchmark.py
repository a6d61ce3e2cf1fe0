"""The validity harness on tiny sizes: what it runs and prints, and that it counts what is broken."""

from __future__ import annotations

import json
from typing import Any

import adversaries
import numpy as np
import pytest
import trials
import validity

from probecascade.testing.worlds import WORLDS, World
from probecascade.thresholds import OFF, calibrate

SIZE = 4_000
CELL = trials.Cell("keep", World("normal", 3), 150, 0.9)
TINY = ("--quick", "--calibrations", "2", "--population", "3000", "--jobs", "1")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    assert validity.main([*TINY, *arguments]) == 0
    captured = capsys.readouterr()
    return captured.out, captured.err


def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """One cell of every part."""
    own = validity.cells

    def first_of_each(parts: Any, quick: bool) -> list[trials.Cell]:
        return list({cell.part: cell for cell in own(parts, quick) if cell.n < 400 or cell.part != "keep"}.values())

    monkeypatch.setattr(validity, "cells", first_of_each)


def test_it_prints_a_table_for_every_part(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    few(monkeypatch)
    printed, progress = run(capsys)
    assert printed.count("###") == 7
    for method in ("paper", "maxrank", "certified + teachers", "pooled dependent runs", "cheat"):
        assert f"| {method}" in printed, method
    tables = [line for line in printed.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in tables}) <= 7
    assert "calibration" in progress
    assert "nan" not in printed


def test_json_holds_a_row_for_every_cell_and_method(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few(monkeypatch)
    printed, _ = run(capsys, "--json", "--parts", "keep", "groups")
    assert len(printed.splitlines()) == 1
    report = json.loads(printed)
    assert report["shrinking"] == []
    assert [row["method"] for row in report["rows"]] == [
        entrant.name for part in ("keep", "groups") for entrant in trials.ENTRANTS[part]
    ]
    for row in report["rows"]:
        assert row["calibrations"] == 2
        assert row["broken"] >= max(row["keep_broken"], row["catch_broken"])


def test_processes_find_what_one_finds(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    few(monkeypatch)
    alone, together = (run(capsys, "--parts", "keep", "--json", "--jobs", jobs)[0] for jobs in ("1", "2"))
    assert json.loads(alone) == json.loads(together)


def test_every_part_has_every_world() -> None:
    for quick, gates in ((True, 1), (False, 2)):
        every = validity.cells(validity.PARTS, quick)
        for part in ("keep", "catch", "both", "shift"):
            seen = {(cell.world.name, cell.world.n_gates) for cell in every if cell.part == part}
            assert len(seen) == gates * len(WORLDS)
        assert {cell.correlation for cell in every if cell.part == "groups"} == {-0.7, 0.0, 0.7}
        assert len({repr(cell) for cell in every}) == len(every)


def test_draws_are_the_same_in_any_batch() -> None:
    entrants = trials.ENTRANTS["keep"]
    whole = trials.run_trials(CELL, entrants, range(4), SIZE, 7)
    parts = [trials.run_trials(CELL, entrants, draws, SIZE, 7) for draws in (range(2), range(2, 4))]
    for name, found in whole.items():
        assert found == parts[0][name] + parts[1][name]


def test_the_oracle_loses_what_it_may() -> None:
    truth = trials.Truth.of(CELL, SIZE, 0)
    assert truth.oracle is not None
    assert 0.9 <= truth.oracle.kept < 0.901
    cell = trials.Cell("both", World("normal", 3), 400, 0.9, ((1, 0.0), (2, 0.0)), 0.5)
    both = trials.Truth.of(cell, SIZE, 0)
    assert both.oracle is not None
    assert both.catch == {gate: pytest.approx(0.5 * both.oracle.caught[gate], abs=1e-4) for gate in (1, 2)}


@pytest.mark.parametrize(("shift", "kept", "broken"), [(-10.0, 0.0, True), (10.0, 1.0, False)])
def test_a_broken_promise_is_counted(shift: float, kept: float, broken: bool) -> None:
    rng = np.random.default_rng(0)
    truth = trials.Truth.of(CELL, SIZE, 0)
    data = CELL.world.sample(150, rng)
    result = calibrate(data.scores + shift, data.failed, cost_after=data.cost_after, keep=0.9)
    trial = truth.judge(result)
    assert result.certified
    assert (trial.kept, trial.keep_broken, trial.catch_broken) == (pytest.approx(kept, abs=0.01), broken, False)


def test_what_is_not_promised_is_not_counted() -> None:
    data = CELL.world.sample(40, np.random.default_rng(0))  # too few successes for any certificate
    result = calibrate(data.scores - 10.0, data.failed, cost_after=data.cost_after, keep=0.9)
    trial = trials.Truth.of(CELL, SIZE, 0).judge(result)
    assert not result.certified
    assert not np.isposinf(result.thresholds).all()
    assert (trial.keep_broken, trial.fires, trial.saved) == (False, False, 0.0)


def test_the_share_of_successes_is_exact() -> None:
    assert adversaries.success_share(np.full(3, OFF)) == 0.0
    assert adversaries.success_share(np.full(3, -OFF)) == 1.0
    assert adversaries.success_share(np.array([0.0, OFF, OFF])) == pytest.approx((0.5 + 0.9331928) / 2)
    assert adversaries.nominal(59, 0.95) == pytest.approx(0.95**59)


@pytest.mark.parametrize("name", adversaries.ADVERSARIES)
def test_only_the_cheat_reads_what_it_must_not(name: str) -> None:
    rng = np.random.default_rng(1)
    scores = rng.normal(size=(200, 3))
    data = trials.GateScores(scores, np.arange(200) >= 140, np.ones((200, 3)))
    scores[:140] = scores[:140][np.argsort(scores[:140].max(axis=1))]  # the hidden ones are the highest
    weights = np.ones(200)
    weights[60:140] = 0.0
    other = scores.copy()
    other[60:140] += np.abs(rng.normal(size=(80, 3)))
    shapes = []
    for given in (scores, other):
        learner = adversaries.ADVERSARIES[name](
            trials.GateScores(given, data.failed, data.cost_after), np.random.default_rng(2)
        )
        learner.neutral()
        shapes.append(learner.fit(weights, loss=0.1))
    same = np.array_equal(shapes[0].intercept, shapes[1].intercept)
    assert same != name.startswith("cheat")


@pytest.mark.parametrize("arguments", [("--calibrations", "0"), ("--jobs", "x"), ("--parts", "nothing")])
def test_options_that_cannot_be_are_refused(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        validity.main(arguments)
    assert stopped.value.code == 2
    assert capsys.readouterr().out == ""
