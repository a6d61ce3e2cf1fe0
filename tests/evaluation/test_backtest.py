from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_runs import make_run

from probecascade.episode import Decision, Recording
from probecascade.errors import CascadeError, DataError, NothingToDoError
from probecascade.evaluation import Spending, backtest, backtest_run, read_off, replay_policy
from probecascade.policies import Cascade, FitResult, fit_cascade
from probecascade.probes import LogisticFitter
from probecascade.store import Run, assign_split
from probecascade.thresholds import recall_thresholds

NAN = float("nan")
QUICK = LogisticFitter(strengths=(1e-1,), folds=3)


def test_three_episodes_by_hand() -> None:
    """Doomed, doomed and successful, of 100, 60 and 80 tokens and 5, 3 and 4 calls; gates at two rounds."""
    scores = np.array([[0.9, 0.1], [0.2, NAN], [0.1, 0.8]])
    failed = np.array([True, True, False])
    spending = {
        "tokens": Spending(np.array([[70.0, 40.0], [30.0, NAN], [50.0, 20.0]]), np.array([100.0, 60.0, 80.0])),
        "calls": Spending(np.array([[5.0, 4.0], [3.0, NAN], [4.0, 3.0]]), np.array([5.0, 3.0, 4.0])),
    }
    final = np.array([[False, False], [False, False], [False, True]])
    result = backtest(scores, [0.5, 0.7], failed, spending, groups=["a", "b", "c"], final=final)
    assert result.first == (0, -1, 1)
    assert (result.caught_count, result.doomed, result.kept_count, result.successes) == (1, 2, 0, 1)
    assert (result.caught.value, result.kept.value, result.precision.value) == (0.5, 0.0, 0.5)
    tokens, calls = result.saved["tokens"], result.saved["calls"]
    assert (tokens.saved, tokens.total, tokens.doomed_saved, tokens.success_saved) == (
        90.0,
        240.0,
        70.0,
        20.0,
    )
    assert tokens.share.value == 90 / 240
    assert tokens.doomed_share.value == 70 / 240
    assert tokens.success_share.value == 20 / 240
    assert calls.saved == 8.0  # 5 after the first gate, its own round's call included, and 3
    early, late = result.gates
    assert (early.alive_doomed, early.alive_successes, early.fired_doomed, early.fired_successes) == (
        2,
        1,
        1,
        0,
    )
    assert (late.alive_doomed, late.alive_successes, late.fired_doomed, late.fired_successes) == (0, 1, 0, 1)
    assert (early.caught, early.kept, late.caught, late.kept) == (1, 1, 1, 0)
    assert (result.withheld_doomed, result.withheld_successes) == (0, 1)


def test_the_gate_that_comes_first_in_the_episode_is_the_one_that_counts() -> None:
    scores = np.array([[0.9, 0.9], [0.9, 0.9]])
    tokens = Spending(np.array([[70.0, 40.0], [10.0, 40.0]]), np.array([100.0, 100.0]))
    result = backtest(scores, [0.5, 0.5], np.array([True, False]), {"tokens": tokens}, groups=["a", "b"])
    assert result.first == (0, 1)
    assert result.saved["tokens"].saved == 110.0
    assert [g.alive_successes for g in result.gates] == [0, 1]  # the second gate ended it before the first


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 100_000))
def test_calibration_counts_are_found_again(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, k = int(rng.integers(4, 25)), int(rng.integers(1, 4))
    scores = np.round(rng.random((n, k)), 1)
    failed = rng.random(n) < 0.6
    failed[:2] = True, False
    after = np.tile(np.arange(k, 0, -1.0) * 10, (n, 1))
    stop = rng.integers(0, k + 1, n)
    beyond = np.arange(k) >= stop[:, None]
    scores[beyond], after[beyond] = NAN, NAN
    targets = [f"{(i + 1) / (k + 1):.3f}" for i in range(k)]
    fitted = recall_thresholds(scores, failed, targets)
    spending = {"tokens": Spending(after, np.full(n, 100.0))}
    result = backtest(scores, fitted.thresholds, failed, spending, groups=np.arange(n))
    for gate, outcome in zip(fitted.gates, result.gates, strict=True):
        assert (outcome.caught, outcome.alive_doomed, outcome.alive_successes) == (
            gate.caught,
            gate.alive_doomed,
            gate.alive_successes,
        )
        assert (outcome.fired_doomed, outcome.fired_successes) == (gate.fired_doomed, gate.fired_successes)
    assert result.kept_count == fitted.kept == result.gates[-1].kept
    tokens = result.saved["tokens"]
    assert tokens.saved == tokens.doomed_saved + tokens.success_saved <= tokens.total
    assert tokens.saved == sum(after[i, g] for i, g in enumerate(result.first) if g >= 0)


def test_thresholds_that_are_off_save_nothing() -> None:
    spending = {"tokens": Spending(np.array([[50.0], [50.0]]), np.array([100.0, 100.0]))}
    result = backtest(np.array([[1.0], [1.0]]), [np.inf], np.array([True, False]), spending, groups=["a", "b"])
    assert (result.caught_count, result.kept_count, result.saved["tokens"].saved) == (0, 1, 0.0)
    assert np.isnan(result.precision.value)
    assert result.precision.n == 0


def test_arrays_that_do_not_fit_are_refused() -> None:
    spending = {"tokens": Spending(np.array([[50.0]]), np.array([100.0]))}
    with pytest.raises(DataError, match="2 thresholds were given for 1 gates"):
        backtest(np.array([[0.5]]), [0.1, 0.2], np.array([True]), spending, groups=["a"])
    with pytest.raises(DataError, match="no 'tokens'"):
        backtest(np.array([[0.5]]), [0.1], np.array([True]), {}, groups=["a"])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("runs") / "run", outcomes=("aborted", "error"))


@pytest.fixture(scope="module")
def fitted(run: Run) -> FitResult:
    return fit_cascade(run, keep="0.9", gates=["action:1", "part:1", "action:3"], fitter=QUICK)


def test_the_calibration_split_gives_the_numbers_of_the_fit(run: Run, fitted: FitResult) -> None:
    result = backtest_run(fitted.cascade, run, "calibrate")
    counts = fitted.calibration.seen
    assert (result.caught_count, result.doomed) == (counts.caught_count, counts.doomed)
    assert (result.kept_count, result.successes) == (counts.kept_count, counts.successes)


def test_the_test_split_is_the_default_and_holds_test_episodes_only(run: Run, fitted: FitResult) -> None:
    result = backtest_run(fitted.cascade, run)
    test = run.episodes.labelled & (assign_split(run.episodes.group.tolist(), seed=0) == "test")
    assert len(result.first) == test.sum()
    assert result.saved["tokens"].total == run.episodes.tokens[test].sum()
    assert result.saved["calls"].total == run.episodes.calls[test].sum()
    assert result.saved["tokens"].saved > 0
    assert 0 < result.saved["seconds"].share.value < 1


def test_replaying_the_cascade_gives_the_same_decisions(run: Run, fitted: FitResult) -> None:
    result = backtest_run(fitted.cascade, run)
    test = np.flatnonzero(run.episodes.labelled & (assign_split(run.episodes.group.tolist(), seed=0) == "test"))
    names = [gate.checkpoint for gate in fitted.cascade.gates]
    decisions: list[Decision | None] = []
    for index, first in zip(test.tolist(), result.first, strict=True):
        recording = Recording(run.episode(index), run.hidden(index))
        decision = replay_policy(fitted.cascade, recording, layers=run.layers)
        assert (decision.gate if decision else "") == (names[first] if first >= 0 else "")
        decisions.append(decision)
    outcome = read_off("cascade", decisions, [run.episode(i) for i in test.tolist()])
    assert outcome.caught == result.caught
    assert outcome.kept == result.kept
    assert outcome.tokens_saved.value == result.saved["tokens"].share.value
    assert outcome.calls_saved.value == result.saved["calls"].share.value
    assert outcome.seconds_saved.value == pytest.approx(result.saved["seconds"].share.value)


def test_groups_that_fitted_the_cascade_are_refused(run: Run, fitted: FitResult, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="fitted the cascade"):
        backtest_run(fitted.cascade, run, "all")
    fresh = make_run(tmp_path / "fresh", groups=20, seed=9)
    assert len(backtest_run(fitted.cascade, fresh, "all").first) == 20
    moved = Cascade(
        fitted.cascade.gates,
        provenance={**fitted.cascade.provenance, "split": {"seed": 5, "shares": [50, 25, 25]}},
    )
    with pytest.raises(DataError, match="fitted the cascade"):
        backtest_run(moved, run)


def test_answers_withheld_are_counted_apart(run: Run) -> None:
    eager = fit_cascade(run, recalls="0.3,0.6", gates=["action:3", "action:4"], gate_answers=True, fitter=QUICK)
    result = backtest_run(eager.cascade, run)
    assert result.withheld_doomed > 0
    plain = backtest_run(Cascade(eager.cascade.gates, provenance=eager.cascade.provenance), run)
    assert (plain.withheld_doomed, plain.withheld_successes) == (0, 0)
    assert plain.caught_count < result.caught_count
    assert result.saved["tokens"].saved == plain.saved["tokens"].saved  # a withheld answer saves no token


def test_what_cannot_be_back_tested_is_refused(run: Run, fitted: FitResult, tmp_path: Path) -> None:
    other = Cascade(fitted.cascade.gates, provenance={**fitted.cascade.provenance, "run": {"dtype": "float16"}})
    with pytest.raises(CascadeError, match="dtype"):
        backtest_run(other, run)
    assert backtest_run(other, run, force=True).doomed > 0
    bare = Cascade(fitted.cascade.gates)
    with pytest.raises(DataError, match="records no split"):
        backtest_run(bare, run)
    empty = make_run(tmp_path / "empty", groups=0, outcomes=("error",))
    with pytest.raises(NothingToDoError, match="no labelled"):
        backtest_run(bare, empty, "all")
