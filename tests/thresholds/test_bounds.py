"""Clopper-Pearson bounds against brute-force binomial sums: every k of every n up to 400."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from probecascade.errors import DataError
from probecascade.thresholds import clopper_pearson, lower_bound, upper_bound


def all_counts(limit: int) -> tuple[np.ndarray, np.ndarray]:
    n = np.repeat(np.arange(1, limit + 1), np.arange(2, limit + 2))
    k = np.concatenate([np.arange(m + 1) for m in range(1, limit + 1)])
    return k, n


@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_one_sided_bounds_solve_the_binomial_sums(confidence: float) -> None:
    k, n = all_counts(400)
    low = lower_bound(k, n, confidence=confidence)
    high = upper_bound(k, n, confidence=confidence)
    some, not_all = k > 0, k < n
    np.testing.assert_allclose(binom.sf(k[some] - 1, n[some], low[some]), 1 - confidence, rtol=1e-8)
    np.testing.assert_allclose(binom.cdf(k[not_all], n[not_all], high[not_all]), 1 - confidence, rtol=1e-8)
    assert (low[~some] == 0).all()
    assert (high[~not_all] == 1).all()
    assert ((low < k / n) | ~some).all()
    assert ((high > k / n) | ~not_all).all()


def test_one_sided_bounds_agree_with_sums_written_out() -> None:
    from math import comb

    for n in (1, 2, 7, 20):
        for k in range(1, n + 1):
            p = float(lower_bound(k, n))
            tail = sum(comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))
            assert tail == pytest.approx(0.05, rel=1e-9)


def test_two_sided_interval_splits_the_error() -> None:
    low, high = clopper_pearson(8, 10)
    assert binom.sf(7, 10, low) == pytest.approx(0.025)
    assert binom.cdf(8, 10, high) == pytest.approx(0.025)
    assert clopper_pearson(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("n", "target"), [(29, 0.90), (59, 0.95), (299, 0.99)])
def test_smallest_numbers_without_a_miss(n: int, target: float) -> None:
    assert lower_bound(n, n) >= target > lower_bound(n - 1, n - 1)


def test_rates_and_impossible_counts_are_refused() -> None:
    with pytest.raises(DataError, match="whole counts"):
        lower_bound(0.95 * 20, 20)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="0 <= k <= n"):
        upper_bound(5, 4)
    with pytest.raises(DataError, match="confidence"):
        lower_bound(1, 2, confidence=1.0)
