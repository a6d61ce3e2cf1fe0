from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from probecascade.errors import DataError, UsageError
from probecascade.thresholds import GateScores, firing, first_firing, keep_thresholds, needed

NAN = float("nan")
World = tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.float64]]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    n, k = draw(st.integers(2, 30)), draw(st.integers(1, 4))
    seed = draw(st.integers(0, 2**32 - 1))
    distinct = draw(st.sampled_from([2, 5, 1000]))
    scale = draw(st.sampled_from([1.0, 1e-6, 1e6]))
    rng = np.random.default_rng(seed)
    scores = np.round(rng.random((n, k)) * distinct) / distinct * scale
    scores[rng.random((n, k)) < draw(st.sampled_from([0.0, 0.3, 0.9]))] = NAN
    failed = rng.random(n) < 0.5
    failed[0], failed[1] = True, False
    after = np.sort(rng.integers(0, 50, (n, k)), axis=1)[:, ::-1].astype(np.float64)
    return scores, failed, np.where(np.isnan(scores), NAN, after)


@settings(max_examples=400, deadline=None)
@given(worlds(), st.integers(1, 100))
def test_the_target_is_never_broken_on_the_calibration_episodes(world: World, percents: int) -> None:
    scores, failed, after = world
    result = keep_thresholds(scores, failed, after, f"{percents / 100}")
    fired = firing(scores, result.thresholds).any(axis=1)
    kept = int((~fired & ~failed).sum())
    assert kept >= needed(Fraction(percents, 100), int((~failed).sum()))
    assert result.kept == kept
    assert result.caught == (fired & failed).sum()
    assert result.successes - result.kept == sum(result.fired_successes)
    assert result.caught == sum(result.fired_doomed)
    assert not np.isneginf(result.thresholds).any()
    assert not np.isnan(result.thresholds).any()


@settings(max_examples=150, deadline=None)
@given(worlds(), st.integers(1, 99))
def test_with_one_gate_the_whole_allowance_is_used(world: World, percents: int) -> None:
    """One rising gate: the threshold is the order statistic itself, so one step lower breaks the target."""
    scores, failed, after = (part[:, :1] if part.ndim == 2 else part for part in world)
    result = keep_thresholds(scores, failed, np.where(np.isnan(after), NAN, 1.0), f"{percents / 100}")
    if not np.isfinite(result.thresholds[0]):
        return
    lower = scores[scores < result.thresholds[0]]
    success_scores = scores[~failed, 0]
    if lower.size and np.isin(lower.max(), success_scores):
        broken = int((~failed).sum()) - int((success_scores >= lower.max()).sum())
        assert broken < needed(Fraction(percents, 100), result.successes)


def sample(rng: np.random.Generator, n: int) -> World:
    """Two unlike gates, each the only one that sees half of the failures: allocation has to use both."""
    failed = rng.random(n) < 0.5
    early = failed & (rng.random(n) < 0.5)
    scores = rng.normal(size=(n, 2))
    scores[early, 0] += 3.0
    scores[failed & ~early, 1] += 3.0
    scores[:, 1] = scores[:, 1] * 40 + 500  # another scale
    after = np.column_stack([np.full(n, 300.0), np.full(n, 200.0)])
    return scores, failed, after


def saved_on(world: World, thresholds: NDArray[np.float64]) -> float:
    scores, _, after = world
    first = first_firing(scores, thresholds, after)
    return float(after[first >= 0, first[first >= 0]].sum())


def best_single_gate(world: World, keep: str) -> float:
    scores, failed, after = world
    best = 0.0
    for g in range(scores.shape[1]):
        only = keep_thresholds(scores[:, [g]], failed, after[:, [g]], keep)
        best = max(best, only.saved)
    return best


def test_the_allocation_beats_the_best_single_gate() -> None:
    world = sample(np.random.default_rng(0), 600)
    result = keep_thresholds(*world, "0.95")
    assert result.kept >= 0.95 * result.successes
    assert all(count > 30 for count in result.fired_doomed)
    assert result.saved == saved_on(world, result.thresholds)
    assert result.saved > 1.3 * best_single_gate(world, "0.95")


def test_the_allocation_comes_near_an_exhaustive_search() -> None:
    scores, failed, _ = world = sample(np.random.default_rng(1), 200)
    allowed = int((~failed).sum()) - needed(Fraction(19, 20), int((~failed).sum()))
    best = 0.0
    for first in range(allowed + 1):
        t0 = np.nextafter(np.sort(scores[~failed, 0])[::-1][first], np.inf)
        left = ~failed & ~(scores[:, 0] >= t0)
        spent = int((~failed).sum()) - int(left.sum())
        t1 = np.nextafter(np.sort(scores[left, 1])[::-1][allowed - spent], np.inf)
        best = max(best, saved_on(world, np.array([t0, t1])))
    assert keep_thresholds(*world, "0.95").saved >= 0.93 * best


def test_teachers_shape_the_region_and_the_count_still_holds() -> None:
    rng = np.random.default_rng(2)
    teachers = GateScores.check(*sample(rng, 600))
    world = sample(rng, 60)
    result = keep_thresholds(*world, "0.9", teachers=teachers)
    assert result.kept >= needed(Fraction(9, 10), result.successes)
    alone = keep_thresholds(*world, "0.9")
    assert not np.array_equal(alone.shape.slope, result.shape.slope)


def test_a_useless_or_reversed_gate_never_fires() -> None:
    scores, failed, after = sample(np.random.default_rng(3), 400)
    scores[:, 1] = -scores[:, 1]
    constant = np.full((400, 1), 0.5)
    result = keep_thresholds(np.hstack([scores, constant]), failed, np.hstack([after, after[:, 1:]]), "0.95")
    assert np.isinf(result.thresholds[1:]).all()
    assert np.isfinite(result.thresholds[0])


def test_gates_that_too_few_successes_reach_may_fire_on_all() -> None:
    scores = np.array([[0.9], [0.8], [0.1], [NAN], [NAN], [NAN], [NAN]])
    failed = np.array([True, True, False, False, False, False, False])
    result = keep_thresholds(scores, failed, np.where(np.isnan(scores), NAN, 10.0), "0.8")
    assert np.isfinite(result.thresholds).all()
    assert (result.kept, result.caught, result.saved) == (4, 2, 30.0)


def test_keeping_all_aborts_no_calibration_success() -> None:
    world = sample(np.random.default_rng(4), 300)
    result = keep_thresholds(*world, 1)
    assert result.kept == result.successes
    assert result.caught > 0


def test_bad_input_is_refused() -> None:
    scores, failed, after = sample(np.random.default_rng(6), 20)
    with pytest.raises(DataError, match="20 failed and 0 successful"):
        keep_thresholds(scores, np.ones(20, dtype=bool), after, "0.9")
    with pytest.raises(DataError, match="no finite cost"):
        keep_thresholds(scores, failed, np.full_like(after, NAN), "0.9")
    with pytest.raises(DataError, match="one cost per score"):
        keep_thresholds(scores, failed, after[:, 0], "0.9")
    with pytest.raises(UsageError, match=r"keep target 95 is outside \(0, 1\]"):
        keep_thresholds(scores, failed, after, 95)
