"""Exact binomial (Clopper-Pearson) bounds on a proportion, from integer counts only."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr, betaincinv

from probecascade.errors import DataError

FloatArray = NDArray[np.float64]


def _counts(k: ArrayLike, n: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    hits: NDArray[Any] = np.asarray(k)
    trials: NDArray[Any] = np.asarray(n)
    for name, values in (("k", hits), ("n", trials)):
        if values.dtype.kind not in "iu":
            raise DataError(
                f"{name} must hold whole counts, not {values.dtype}: pass the counts, never a rate times n."
            )
    if np.any(hits < 0) or np.any(hits > trials):
        raise DataError("counts must satisfy 0 <= k <= n: check which count was passed first.")
    return hits.astype(np.int64), trials.astype(np.int64)


def _level(confidence: float) -> float:
    if not 0.0 < confidence < 1.0:
        raise DataError(f"confidence {confidence} is outside (0, 1): give a number such as 0.95.")
    return 1.0 - confidence


def lower_bound(k: ArrayLike, n: ArrayLike, *, confidence: float = 0.95) -> FloatArray:
    """One-sided lower bound on p after `k` hits in `n` trials: the p with P(Bin(n, p) >= k) = 1 - confidence.

    Integer arrays that broadcast; 0 where k == 0. Source: Clopper and Pearson 1934.
    """
    hits, trials = _counts(k, n)
    bound = betaincinv(np.maximum(hits, 1), trials - hits + 1, _level(confidence))
    return np.where(hits == 0, 0.0, bound)


def upper_bound(k: ArrayLike, n: ArrayLike, *, confidence: float = 0.95) -> FloatArray:
    """One-sided upper bound on p: the p with P(Bin(n, p) <= k) = 1 - confidence; 1 where k == n."""
    hits, trials = _counts(k, n)
    return 1.0 - lower_bound(trials - hits, trials, confidence=confidence)


def allowed_misses(n: int, share: Fraction | float, *, delta: float) -> int:
    """The largest x with P(Bin(n, share) <= x) <= delta: so few misses show a rate below `share`; -1 if none do."""
    if n < 1 or not _unlikely(0, n, share, delta):
        return -1
    low, high = 0, n
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _unlikely(middle, n, share, delta) else (low, middle)
    return low


def _unlikely(x: int, n: int, share: Fraction | float, delta: float) -> bool:
    """P(Bin(n, share) <= x) <= delta, in integers where rounding could decide; floats count as their decimal text."""
    probability = float(bdtr(x, n, float(share)))
    if n > _LARGEST_EXACT or abs(probability - delta) > 1e-9 * delta:
        return probability <= delta
    exact, limit = Fraction(str(share)), Fraction(str(delta))
    hit, miss = exact.numerator, exact.denominator - exact.numerator
    every: int = exact.denominator**n
    term: int = miss**n
    below = term
    for i in range(1, x + 1):
        term = term * (n - i + 1) * hit // (i * miss)
        below += term
    return below * limit.denominator <= limit.numerator * every


_LARGEST_EXACT = 10_000  # trials; beyond, the integers would take seconds
_OUT_OF_REACH = 10**9  # trials; rates that differ by rounding alone would be searched for ever


def smallest_sample(share: Fraction | float, *, delta: float, misses: Fraction | float = 0.0) -> int | None:
    """The smallest n that allows floor(misses * n) misses of a rate below `share`; None where none in reach does.

    Without misses it is ceil(ln delta / ln(1 - share)): 29 for a share of .10, 59 for .05, 299 for .01 at delta .05.
    With misses it is exact below 2,000, and from there about 0.1 % too large at most.
    """
    if misses >= share:
        return None
    n = max(1, math.ceil(math.log(delta) / math.log1p(-float(share)) - 1e-9))
    end = max(2 * n, _OUT_OF_REACH)
    while n <= end:
        if _unlikely(math.floor(misses * n), n, share, delta):
            return n
        n += max(1, n // 1000)
    return None


def clopper_pearson(k: int, n: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Two-sided interval for p: each side misses with probability at most (1 - confidence) / 2."""
    one_sided = 1.0 - _level(confidence) / 2.0
    return float(lower_bound(k, n, confidence=one_sided)), float(upper_bound(k, n, confidence=one_sided))
