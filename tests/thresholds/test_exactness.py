"""Tables and thresholds against brute force: exact fractions, and searches over every candidate threshold.

The searches share nothing with the code under test but the canonical order of the episodes and its random picks, which
say who chooses and who certifies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from probecascade.thresholds import OFF, Calibration, GateScores, allowed_misses, calibrate, smallest_sample
from probecascade.thresholds.problem import Problem, Sample, Targets, pick
from probecascade.thresholds.shape import learn_shape

NAN = float("nan")
LOWEST = -float(np.finfo(np.float64).max)
SHARES = [Fraction(s) for s in ("1/10", "1/20", "3/100", "1/100", "1/5", "1/2")]
DELTAS = [Fraction(d) for d in ("1/20", "1/10", "1/100")]
World = tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.float64]]


def most_misses(n: int, share: Fraction, delta: Fraction) -> int:
    """The largest x with P(Bin(n, share) <= x) <= delta, in integers."""
    hit, total = share.numerator, share.denominator
    limit = delta.numerator * total**n
    below = 0
    for x in range(n + 1):
        below += math.comb(n, x) * hit**x * (total - hit) ** (n - x)
        if below * delta.denominator > limit:
            return x - 1
    return n


@cache
def table(share: Fraction, delta: Fraction) -> tuple[int, ...]:
    """For n from 0 to 400."""
    return (-1, *(most_misses(n, share, delta) for n in range(1, 401)))


@pytest.mark.parametrize("delta", DELTAS, ids=str)
@pytest.mark.parametrize("share", SHARES, ids=str)
def test_allowed_misses_equal_sums_of_fractions(share: Fraction, delta: Fraction) -> None:
    assert tuple(allowed_misses(n, share, delta=float(delta)) for n in range(401)) == table(share, delta)


@pytest.mark.parametrize("delta", DELTAS, ids=str)
@pytest.mark.parametrize("share", SHARES, ids=str)
def test_smallest_samples_equal_a_search_through_the_tables(share: Fraction, delta: Fraction) -> None:
    exact = table(share, delta)
    for misses in [Fraction(0), *(share * Fraction(i, 10) for i in (1, 2, 4, 5, 6))]:
        enough = [n for n in range(1, 401) if exact[n] >= math.floor(misses * n)]
        found = smallest_sample(share, delta=float(delta), misses=misses)
        assert found is not None
        assert found == enough[0] if enough else found > 400
    assert smallest_sample(share, delta=float(delta), misses=share) is None


@pytest.mark.parametrize(("share", "delta"), [("1/2", "1/2"), ("1/4", "1/4"), ("7/10", "3/10"), ("19/20", "1/20")])
def test_a_level_that_is_met_exactly_counts_as_met(share: str, delta: str) -> None:
    """Fair coins at delta 1/2, for one: with odd n the sum is 1/2 to the last bit, which floats miss at n = 9."""
    for n in range(1, 60):
        exact = most_misses(n, Fraction(share), Fraction(delta))
        assert allowed_misses(n, Fraction(share), delta=float(Fraction(delta))) == exact
    assert smallest_sample(Fraction(share), delta=float(Fraction(delta))) == 1 + (share == "1/4") * 4


@pytest.mark.parametrize(("share", "misses"), [("7/10", 0.7), ("2/3", 2 / 3), ("1/10", 0.1 - 1e-12)])
def test_rates_that_differ_by_rounding_alone_admit_no_sample(share: str, misses: float) -> None:
    """7/10 as a float lies below 7/10: without an end the search would go on for ever."""
    assert smallest_sample(Fraction(share), delta=0.05, misses=misses) is None


@st.composite
def worlds(draw: st.DrawFn, gates: int = 4, most: int = 12) -> World:
    """Up to `most` episodes with ties, unreached gates and whole costs that fall from gate to gate or do not."""
    n, k = draw(st.sampled_from([most, most - 1, most - 3, most // 2, 2])), draw(st.integers(1, gates))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    distinct = draw(st.sampled_from([1000, 3, 1, 0]))
    scores = rng.integers(0, distinct + 1, (n, k)) / 4.0 - 0.5
    scores[rng.random((n, k)) < draw(st.sampled_from([0.0, 0.3, 0.7]))] = NAN
    scores[0, 0] = 0.25
    failed = rng.random(n) < draw(st.sampled_from([0.2, 0.5]))
    failed[:2] = rng.permutation([True, False])
    costs = rng.integers(0, 9, (n, k)).astype(np.float64)
    if draw(st.booleans()):
        costs = np.sort(costs, axis=1)[:, ::-1]
    return scores, failed, np.where(np.isnan(scores), NAN, costs)


keeps = st.sampled_from([Fraction(k) for k in ("3/10", "2/5", "1/2", "7/10", "81/100", "9/10")])
confidences = st.sampled_from([Fraction(c) for c in ("1/2", "7/10", "9/10")])


def in_order(world: World) -> GateScores:
    return Sample.of(GateScores.check(*world), None).data


def roles(world: World) -> np.random.Generator:
    """The stream that tells certifying episodes from others."""
    sample = Sample.of(GateScores.check(*world), None)
    return Problem(sample, Targets((), Fraction(1, 2)), 0.05, "episode", None, 0).rng("roles")


def candidates(values: NDArray[np.float64]) -> list[float]:
    """Every threshold that tells these values apart, rising."""
    present = np.unique(values[~np.isnan(values)])
    return [LOWEST, *(float(np.nextafter(v, math.inf)) for v in present), OFF]


def reached(values: NDArray[np.float64], threshold: float) -> int:
    return sum(1 for v in values if not math.isnan(v) and v >= threshold)


def lowest(values: NDArray[np.float64], allowed: int) -> float:
    """The lowest threshold that at most `allowed` values reach, found by trying all."""
    return next(t for t in candidates(values) if reached(values, t) <= allowed) if allowed >= 0 else OFF


def rows_of(picked: NDArray[np.bool_], failed: NDArray[np.bool_]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    return np.flatnonzero(picked), np.flatnonzero(~failed & ~picked)


@settings(max_examples=40, deadline=None)
@given(worlds(), keeps, confidences)
def test_single_is_the_order_statistic_of_its_best_gate(world: World, keep: Fraction, confidence: Fraction) -> None:
    result = calibrate(*world[:2], None, world[2], keep=keep, confidence=float(confidence), method="single")
    data = in_order(world)
    choosers, certifying = rows_of(pick(roles(world), ~data.failed, 0.30), data.failed)
    m = len(certifying)
    allowed = most_misses(m, 1 - keep, 1 - confidence) if m else -1
    expected = [OFF] * data.scores.shape[1]
    if allowed >= 0:
        lost = math.floor((allowed + Fraction(1, 2)) / m * len(choosers))
        gains = []
        for scores, costs in zip(data.scores.T, data.cost_after.T, strict=True):
            threshold = lowest(scores[choosers], lost)
            gains.append(sum(c for s, c, f in zip(scores, costs, data.failed, strict=True) if f and s >= threshold))
        best = gains.index(max(gains))
        expected[best] = lowest(data.scores[certifying, best], allowed)
    assert result.thresholds.tolist() == expected
    assert result.certified == (allowed >= 0)
    assert_recounted(result, data.scores[certifying], allowed)


def assert_recounted(result: Calibration, certifying: NDArray[np.float64], allowed: int) -> None:
    """The certificate counts what it says, and a region that is certified holds no more than it may."""
    (certificate,) = result.certificates
    inside = sum(any(s >= t for s, t in zip(row, result.thresholds, strict=True)) for row in certifying)
    assert certificate.among == len(certifying)
    assert certificate.seen == inside
    assert inside <= max(allowed, 0)
    assert certificate.allowed == max(allowed, 0)


@settings(max_examples=40, deadline=None)
@given(worlds(), keeps, confidences)
def test_maxrank_is_the_order_statistic_of_the_largest_rank(world: World, keep: Fraction, confidence: Fraction) -> None:
    result = calibrate(*world[:2], None, world[2], keep=keep, confidence=float(confidence), method="maxrank")
    data = in_order(world)
    reference, certifying = rows_of(pick(roles(world), ~data.failed, 0.5), data.failed)

    def rank(gate: int, score: float) -> Fraction:
        known = [s for s in data.scores[reference, gate] if not math.isnan(s)]
        return Fraction(sum(s < score for s in known), len(known)) if known and not math.isnan(score) else Fraction(-1)

    gates = range(data.scores.shape[1])
    allowed = most_misses(len(certifying), 1 - keep, 1 - confidence) if len(certifying) else -1
    expected = [OFF for _ in gates]
    if allowed >= 0:
        level = sorted((max(rank(g, data.scores[e, g]) for g in gates) for e in certifying), reverse=True)[allowed]
        for g in gates:
            tries = candidates(data.scores[reference, g])[:-1]
            expected[g] = next((t for t in tries if rank(g, t) > level), OFF)
    assert result.thresholds.tolist() == expected
    assert_recounted(result, data.scores[certifying], allowed)


@settings(max_examples=40, deadline=None)
@given(worlds(), keeps)
@example((np.arange(11.0)[:, None], np.arange(11) == 10, np.ones((11, 1))), Fraction(9, 10))
@example((np.column_stack([np.arange(11.0)] * 2), np.arange(11) == 10, np.ones((11, 2))), Fraction(81, 100))
def test_uniform_keeps_an_even_share_at_every_gate(world: World, keep: Fraction) -> None:
    result = calibrate(*world[:2], None, world[2], keep=keep, method="uniform")
    successes = world[0][~world[1]]
    k = successes.shape[1]
    for threshold, column in zip(result.thresholds, successes.T, strict=True):
        n = int((~np.isnan(column)).sum())
        fits = [t for t in candidates(column) if (n - reached(column, t)) ** k >= keep * n**k]
        assert threshold == fits[0]
    assert not result.certificates


@settings(max_examples=40, deadline=None)
@given(worlds(gates=3, most=24), keeps, st.sampled_from([Fraction(3, 10), Fraction(1, 2)]))
def test_paper_is_the_best_of_all_its_allocations(world: World, keep: Fraction, confidence: Fraction) -> None:
    result = calibrate(*world[:2], None, world[2], keep=keep, confidence=float(confidence), method="paper")
    data = in_order(world)
    n, k = data.scores.shape
    order = roles(world).permutation(n)
    search, levels = np.sort(order[: n // 2]), np.sort(order[n // 2 :])
    bounds = [levels_of(data.scores[levels, g][~data.failed[levels]], 1 - confidence) for g in range(k)]
    kept_least = min(keep + Fraction(2, 100), Fraction(1)) * int((~data.failed[search]).sum())
    best: tuple[float, int] | None = None
    expected: tuple[float, ...] = ()
    for thresholds in product(*bounds):
        saved, kept = 0.0, 0
        for e in search:
            spared = [data.cost_after[e, g] for g in range(k) if data.scores[e, g] >= thresholds[g]]
            saved += max(spared, default=0.0)
            kept += not spared and not data.failed[e]
        if kept >= kept_least and (best is None or (saved, kept) > best):
            best, expected = (saved, kept), thresholds
    assert tuple(result.thresholds.tolist()) == expected
    assert not result.certificates


def levels_of(values: NDArray[np.float64], delta: Fraction) -> list[float]:
    n = int((~np.isnan(values)).sum())
    shares = [Fraction(s, 100) for s in (99, 98, 95, 90, 85)]
    return [OFF, *(lowest(values, most_misses(n, 1 - share, delta) if n else -1) for share in shares)]


def teachers(k: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Enough clear cases that every gate's score is taken to rise with failure."""
    failed = np.arange(60) % 2 == 0
    return np.random.default_rng(1).normal(size=(60, k)) + 3.0 * failed[:, None], failed


@settings(max_examples=40, deadline=None)
@given(worlds(gates=1), keeps, confidences)
def test_the_certified_keep_threshold_of_one_gate_is_the_order_statistic(
    world: World, keep: Fraction, confidence: Fraction
) -> None:
    """With teachers every success certifies; along one gate there is a single best region to find."""
    scores, failed, costs = world
    scores = scores / 64 if np.nanmax(scores) > 4 else scores  # into the range of the teachers
    result = calibrate(scores, failed, None, costs, keep=keep, confidence=float(confidence), teachers=teachers(1))
    successes = scores[~failed]
    allowed = most_misses(len(successes), 1 - keep, 1 - confidence)
    assert result.certified == (allowed >= 0)
    assume(allowed >= 0)
    assert_recounted(result, successes, allowed)
    assume(result.thresholds[0] < OFF or allowed >= np.isfinite(successes).sum())  # else the gate was not taken to rise
    threshold = lowest(successes[:, 0], allowed)
    np.testing.assert_array_equal(scores >= result.thresholds, scores >= threshold)
    if math.isfinite(threshold) and threshold > LOWEST:
        assert result.thresholds[0] == pytest.approx(threshold, rel=1e-12, abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(worlds(gates=4), confidences, st.sampled_from([(0.2,), (0.2, 0.5), (0.1, 0.3, 0.6), (0.1, 0.2, 0.4, 0.5)]))
def test_certified_catch_thresholds_are_the_largest_in_sequence(
    world: World, confidence: Fraction, shares: Sequence[float]
) -> None:
    scores, failed, costs = world
    shares = shares[: scores.shape[1]]
    result = calibrate(scores, failed, None, costs, catch=dict(enumerate(shares)), confidence=float(confidence))
    left = scores[failed]
    n = len(left)
    delta = Fraction(str(float(1 - confidence) / len(shares)))  # each target's part, as the float that is divided
    allowed = [most_misses(n, 1 - Fraction(str(s)), delta) for s in shares]
    expected, missed = [], []
    for gate, x in enumerate(allowed):
        falling = sorted({s for s in left[:, gate] if not math.isnan(s)}, reverse=True)
        enough = [t for t in falling if len(left) - reached(left[:, gate], t) <= max(x, 0)]
        expected.append(OFF if len(left) <= max(x, 0) or not falling else [*enough, falling[-1]][0])
        left = left[~(left[:, gate] >= expected[-1])]
        missed.append(len(left))
    met = [x >= 0 and m <= x for x, m in zip(allowed, missed, strict=True)]
    promised = [all(met[: i + 1]) for i in range(len(met))]  # nothing after the first that is missed
    assert [c.certified for c in result.certificates] == promised
    assert [c.seen for c in result.certificates] == missed
    if any(promised):
        assert result.thresholds.tolist() == [*expected, *[OFF] * (scores.shape[1] - len(shares))]


@settings(max_examples=60, deadline=None)
@given(worlds(gates=4, most=24), confidences, st.sampled_from([{1: 0.3}, {3: 0.5}, {1: 0.2, 3: 0.5}, {0: 0.1, 2: 0.4}]))
def test_certified_catch_thresholds_of_several_gates_are_the_highest_of_their_shape(
    world: World, confidence: Fraction, catch: dict[int, float]
) -> None:
    """Gates between two targets move together along one index; every level of it is tried here."""
    scores, failed, costs = world
    assume(scores.shape[1] > max(catch))
    known = teachers(scores.shape[1])
    scores = scores / 64 if np.nanmax(scores) > 4 else scores  # into the range of the teachers
    result = calibrate(scores, failed, None, costs, catch=catch, confidence=float(confidence), teachers=known)
    shape = learn_shape(GateScores.check(*known), loss=0.3)
    left = scores[failed]
    n, delta = len(left), Fraction(str(float(1 - confidence) / len(catch)))
    missed, start, met = [], 0, []
    fired = np.zeros(n, dtype=np.bool_)
    for end, share in catch.items():
        allowed = most_misses(n, 1 - Fraction(str(share)), delta)
        block = list(range(start, end + 1))
        index = shape.columns(block).index(scores[failed][:, block]).max(axis=1)
        index[fired] = -np.inf
        levels = sorted({v for v in index if math.isfinite(v)}, reverse=True)
        enough = [v for v in levels if n - int(fired.sum()) - int((index >= v).sum()) <= max(allowed, 0)]
        if n - int(fired.sum()) > max(allowed, 0) and levels:
            fired = fired | (index >= [*enough, levels[-1]][0])
        missed.append(n - int(fired.sum()))
        met.append(allowed >= 0 and missed[-1] <= allowed)
        start = end + 1
    assert [c.seen for c in result.certificates] == missed
    assert [c.certified for c in result.certificates] == [all(met[: i + 1]) for i in range(len(met))]
    if result.certificates[0].certified:
        np.testing.assert_array_equal((scores[failed] >= result.thresholds).any(axis=1), fired)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(-1e300, 1e300, allow_nan=False) | st.sampled_from([0.0, -0.0, 5e-324, -5e-324]), min_size=8),
    st.sampled_from(["single", "maxrank"]),
    keeps,
)
def test_no_scale_breaks_the_recount_of_the_rank_methods(values: list[float], method: str, keep: Fraction) -> None:
    scores = np.array([values, values[::-1]]).T
    failed = np.arange(len(values)) % 3 == 0
    result = calibrate(scores, failed, keep=keep, confidence=0.5, method=method)
    data = Sample.of(GateScores.check(scores, failed), None).data
    share = 0.30 if method == "single" else 0.5
    picked = pick(roles((scores, failed, np.ones_like(scores))), ~data.failed, share)
    certifying = rows_of(picked, data.failed)[1]
    assert_recounted(result, data.scores[certifying], most_misses(len(certifying), 1 - keep, Fraction(1, 2)))


@settings(max_examples=40, deadline=None)
@given(worlds(most=40), keeps, st.sampled_from([1.0, -1.0, 5e-324, -1e-310, 1e-300, 1e-160, 1e-9, 1e9, -1e140, 1e200]))
def test_no_scale_breaks_the_recount_of_certified(world: World, keep: Fraction, scale: float) -> None:
    """The teachers are on the same scale."""
    scores, failed, costs = world
    known, labels = teachers(scores.shape[1])
    given_teachers = (known * abs(scale), labels)
    result = calibrate(scores * scale, failed, None, costs, keep=keep, confidence=0.7, teachers=given_teachers)
    successes = (scores * scale)[~failed]
    allowed = most_misses(len(successes), 1 - keep, Fraction(3, 10))
    assert result.certified == (allowed >= 0)
    if allowed >= 0:
        assert_recounted(result, successes, allowed)


def test_scores_whose_squares_overflow_are_certified_all_the_same() -> None:
    scores, labels = teachers(2)
    result = calibrate(scores * 1e200, labels, keep=0.5, confidence=0.7)
    assert result.certified
