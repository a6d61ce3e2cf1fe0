from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probecascade.errors import DataError, UsageError
from probecascade.evaluation import Resampling, mean_interval, ratio_interval, share_interval
from probecascade.thresholds import clopper_pearson


def test_a_ratio_is_the_ratio_of_sums() -> None:
    interval = ratio_interval([1.0, 0.0, 5.0], [2.0, 0.0, 8.0], ["a", "b", "b"])
    assert interval.value == 0.6
    assert interval.n == 2  # an episode without a denominator does not count
    assert interval.groups == 2
    assert (interval.low, interval.high) == (0.5, 0.625)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 30))
def test_the_value_lies_in_its_interval_and_order_changes_nothing(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    bottom = rng.integers(1, 50, n).astype(float)
    top = np.floor(bottom * rng.random(n))
    groups = rng.integers(0, n, n)
    interval = ratio_interval(top, bottom, groups)
    assert interval.value == top.sum() / bottom.sum()
    assert interval.low <= interval.value <= interval.high
    assert interval.low >= 0
    assert interval.high <= 1
    order = rng.permutation(n)
    assert ratio_interval(top[order], bottom[order], groups[order]) == interval


def test_the_bootstrap_is_that_of_drawing_groups_one_by_one() -> None:
    rng = np.random.default_rng(1)
    groups = np.repeat(np.arange(40), 3)
    bottom = rng.integers(1, 9, 120).astype(float)
    top = bottom * (rng.random(120) < 0.4)
    interval = ratio_interval(top, bottom, groups, Resampling(resamples=4000))
    ratios = []
    for _ in range(4000):
        rows = np.concatenate([np.flatnonzero(groups == g) for g in rng.integers(0, 40, 40)])
        ratios.append(top[rows].sum() / bottom[rows].sum())
    np.testing.assert_allclose([interval.low, interval.high], np.quantile(ratios, [0.025, 0.975]), atol=0.012)


def test_dependent_episodes_widen_the_interval() -> None:
    hits = np.repeat(np.random.default_rng(2).random(40) < 0.5, 6)
    everyone = np.ones(240, dtype=bool)
    by_group = share_interval(hits, everyone, np.repeat(np.arange(40), 6))
    pooled = share_interval(hits, everyone, np.arange(240))
    assert by_group.high - by_group.low > 2 * (pooled.high - pooled.low)
    assert (by_group.n, by_group.groups, pooled.groups) == (240, 40, 240)


def test_coverage_over_fresh_worlds() -> None:
    """A share of .3 over 60 groups of 1 to 4 dependent episodes: about 95 intervals in 100 hold it."""
    rng = np.random.default_rng(3)
    covered = 0
    for trial in range(200):
        sizes = rng.integers(1, 5, 60)
        hits = rng.random(int(sizes.sum())) < np.repeat(rng.beta(3, 7, 60), sizes)
        interval = share_interval(
            hits, np.ones_like(hits), np.repeat(np.arange(60), sizes), Resampling(resamples=400, seed=trial)
        )
        covered += interval.low <= 0.3 <= interval.high
    assert 180 <= covered <= 198


@pytest.mark.parametrize("hit", [True, False])
def test_unanimous_shares_claim_no_certainty(hit: bool) -> None:
    hits = np.full(60, hit)
    interval = share_interval(hits, np.ones(60, dtype=bool), np.repeat(np.arange(30), 2))
    low, high = clopper_pearson(30 if hit else 0, 30)
    assert (interval.value, interval.low, interval.high, interval.n, interval.groups) == (
        float(hit),
        low,
        high,
        60,
        30,
    )
    assert high - low > 0.1


def test_shares_count_only_those_among_whom_they_are_taken() -> None:
    hits, among = np.array([True, True, False, True]), np.array([True, False, True, True])
    interval = share_interval(hits, among, [1, 2, 3, 4])
    assert interval.value == pytest.approx(2 / 3)
    assert interval.n == 3
    nobody = share_interval(hits, np.zeros(4, dtype=bool), [1, 2, 3, 4])
    assert np.isnan([nobody.value, nobody.low, nobody.high]).all()
    assert nobody.n == 0


def test_a_mean_weighs_episodes_alike() -> None:
    interval = mean_interval([1.0, 2.0, 6.0], ["a", "a", "b"])
    assert interval.value == 3.0
    assert interval.low == 1.5
    assert interval.high == 6.0


def test_seed_and_confidence_are_kept() -> None:
    rng = np.random.default_rng(4)
    values, groups = rng.random(50), np.arange(50)
    assert mean_interval(values, groups) == mean_interval(values, groups)
    assert mean_interval(values, groups, Resampling(seed=1)) != mean_interval(values, groups)
    wide, narrow = (mean_interval(values, groups, Resampling(confidence=c)) for c in (0.99, 0.8))
    assert wide.low < narrow.low < narrow.high < wide.high


def test_bad_input_is_refused() -> None:
    for bad in ({"confidence": 95.0}, {"confidence": 0.0}, {"resamples": 0}):
        with pytest.raises(UsageError, match="confidence between 0 and 1"):
            Resampling(**bad)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="differ in shape"):
        ratio_interval([1.0], [1.0, 2.0], ["a"])
    with pytest.raises(DataError, match="finite"):
        ratio_interval([np.nan], [1.0], ["a"])
    with pytest.raises(DataError, match="finite"):
        ratio_interval([1.0], [-1.0], ["a"])


def test_many_groups_of_few_kinds_are_resampled_by_counting_kinds() -> None:
    rng = np.random.default_rng(3)
    n = 20_000
    hits, among = rng.random(n) < 0.2, rng.random(n) < 0.5
    shares = share_interval(hits, among, np.arange(n))
    kept = int((hits & among).sum()) / int(among.sum())
    error = np.sqrt(kept * (1 - kept) / among.sum())
    assert shares.value == pytest.approx(kept)
    assert (shares.high - shares.low) / (2 * 1.96 * error) == pytest.approx(1, abs=0.1)
