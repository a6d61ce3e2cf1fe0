"""Monitors after deployment: how often they cry wolf, how soon they find the wolf, and that they can be resumed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probecascade.errors import DataError, UsageError
from probecascade.thresholds import CatchMonitor, ExchangeabilityMonitor, KeepMonitor
from probecascade.thresholds.monitor import ODDS, PACES, log_wealth, rank_pays, rate_pays, wager

FALSE_ALARM = 0.05
BARRIER = -math.log(FALSE_ALARM)


def alarms(pays: Callable[[int], NDArray[np.float64]], streams: int, length: int) -> NDArray[np.int64]:
    """(streams,): how many episodes each stream took to its alarm, `length` + 1 where there was none."""
    n_bets = pays(0).shape[-1]
    capital, shares = np.zeros((streams, len(PACES))), np.full((streams, len(PACES), n_bets), 1 / n_bets)
    first = np.full(streams, length + 1)
    for t in range(length):
        capital, shares = wager(capital, shares, pays(t))
        first = np.where((first > length) & (log_wealth(capital) >= BARRIER), t + 1, first)
    return first


def at_most(count: int, n: int, rate: float) -> bool:
    """Whether `count` of `n` is compatible with a rate of at most `rate` (2.33 standard errors)."""
    return count <= n * rate + 2.33 * math.sqrt(n * rate * (1 - rate))


def observed(rng: np.random.Generator, aborted: NDArray[np.float64], explore: float, streams: int) -> NDArray[np.bool_]:
    """(streams, length): which successes with a known outcome are would-be aborts.

    aborted (length,): their true share, hidden ones included, as the stream goes on.
    """
    share = explore * aborted / (1 - aborted + explore * aborted)
    drawn: NDArray[np.bool_] = rng.random((streams, len(aborted))) < share
    return drawn


def keep_alarms(a: NDArray[np.float64], keep: float, explore: float, streams: int, seed: int) -> NDArray[np.int64]:
    fired = observed(np.random.default_rng(seed), a, explore, streams)
    pays = rate_pays(explore * (1 - keep) / keep)
    return alarms(lambda t: pays[fired[:, t].astype(int)], streams, len(a))


@pytest.mark.parametrize(("keep", "explore"), [(0.95, 0.05), (0.90, 0.2), (0.95, 1.0)])
def test_a_kept_promise_alarms_no_more_often_than_stated_over_a_long_stream(keep: float, explore: float) -> None:
    first = keep_alarms(np.full(2500, 1 - keep), keep, explore, streams=400, seed=1)
    assert at_most(int((first <= 2500).sum()), 400, FALSE_ALARM)


def test_a_test_for_one_sample_size_cries_wolf_when_it_is_looked_at_again_and_again() -> None:
    fired = observed(np.random.default_rng(1), np.full(2500, 0.05), 1.0, 400).cumsum(axis=1)
    n = np.arange(1, 2501)
    z = (fired - 0.05 * n) / np.sqrt(0.05 * 0.95 * n)
    assert (z[:, 100:] > 1.645).any(axis=1).mean() > 4 * FALSE_ALARM


@pytest.mark.parametrize(("explore", "soon"), [(0.05, 2000), (0.2, 600), (1.0, 180)])
def test_three_times_the_allowed_abort_rate_is_found(explore: float, soon: int) -> None:
    first = keep_alarms(np.full(2 * soon, 0.15), 0.95, explore, streams=150, seed=2)
    assert (first <= 2 * soon).mean() >= 0.95
    assert np.median(first) <= soon


def test_a_change_after_a_long_good_time_is_found() -> None:
    good, bad = np.full(1500, 0.02), np.full(1000, 0.15)
    first = keep_alarms(np.concatenate([good, bad]), 0.95, 0.2, streams=100, seed=3)
    assert (first <= 1500).mean() <= FALSE_ALARM
    assert (first <= 2500).mean() >= 0.9


def test_aborted_successes_are_counted_by_the_share_that_was_let_through() -> None:
    """From the coin to the estimate: nothing is fed but episodes with an outcome."""
    rng = np.random.default_rng(4)
    explore, n = 0.25, 4000
    fires, succeeds = rng.random(n) < 0.3, rng.random(n) < 0.5
    fires &= ~succeeds | (rng.random(n) < 0.3)
    let_through = rng.random(n) < explore
    keep, catch = KeepMonitor("0.8", explore), CatchMonitor("0.2", explore)
    for fired, success, through in zip(fires, succeeds, let_through, strict=True):
        if not fired or through:
            (keep if success else catch).update(bool(fired))
    assert keep.kept == pytest.approx((~fires[succeeds]).mean(), abs=0.03)
    assert catch.caught == pytest.approx(fires[~succeeds].mean(), abs=0.03)
    assert not keep.alarm
    assert not catch.alarm
    assert keep.passed + keep.aborted < succeeds.sum()


@pytest.mark.parametrize(("caught", "low", "high"), [(0.8, 0.0, 0.09), (0.5, 0.95, 1.0)])
def test_catch_is_watched_likewise(caught: float, low: float, high: float) -> None:
    explore, catch = 0.1, 0.8
    rng = np.random.default_rng(5)
    missed = rng.random((200, 1500)) < (1 - caught) / (1 - caught + explore * caught)
    pays = rate_pays((1 - catch) / catch / explore)
    first = alarms(lambda t: pays[missed[:, t].astype(int)], 200, 1500)
    assert low <= (first <= 1500).mean() <= high


@pytest.mark.parametrize("odds", [0.0026, 0.05, 1.0, 20.0])
def test_no_bet_wins_at_any_allowed_rate(odds: float) -> None:
    pays = rate_pays(odds)
    for share in (1.0, 0.5, 0.0):
        q = share * odds / (1 + odds)
        assert ((1 - q) * pays[0] + q * pays[1] <= 1 + 1e-12).all()
    q = odds / (1 + odds)
    assert (1 - q) * pays[0] + q * pays[1] == pytest.approx(np.ones(len(ODDS)))
    assert (rank_pays(np.linspace(0, 1, 101)) > 0).all()
    assert rank_pays((np.arange(10_000) + 0.5) / 10_000).mean(axis=0) == pytest.approx(1.0, abs=1e-6)


def test_the_monitor_is_the_wager_of_its_episodes() -> None:
    fired = np.random.default_rng(6).random(300) < 0.1
    monitor = KeepMonitor("0.95", 0.2)
    for value in fired:
        monitor.update(value)
    pays = rate_pays(0.2 * 0.05 / 0.95)
    first = alarms(lambda t: pays[fired[t : t + 1].astype(int)], 1, 300)
    assert monitor.alarm == bool(first[0] <= 300)
    assert monitor.alarm
    quiet = monitor.log_wealth
    for _ in range(500):
        monitor.update(False)
    assert monitor.log_wealth < quiet
    assert monitor.alarm  # it stays


SCORES: dict[str, Callable[[np.random.Generator, int], NDArray[np.float64]]] = {
    "smooth": lambda rng, n: rng.normal(size=n),
    "ties": lambda rng, n: rng.integers(0, 4, size=n) / 4,
    "one value": lambda rng, n: np.full(n, 0.5),
    "half unreached": lambda rng, n: np.where(rng.random(n) < 0.5, np.nan, rng.random(n)),
}


def watched(scores: NDArray[np.float64], reference: int, seed: int) -> bool:
    monitor = ExchangeabilityMonitor(scores[:reference], seed=seed)
    return any(monitor.update(score) for score in scores[reference:].tolist())


@pytest.mark.parametrize("world", SCORES)
def test_exchangeable_streams_rarely_alarm(world: str) -> None:
    rng = np.random.default_rng(7)
    found = sum(watched(SCORES[world](rng, 260), 60, seed) for seed in range(150))
    assert at_most(found, 150, FALSE_ALARM)


@pytest.mark.parametrize(
    "later",
    [
        lambda rng, n: rng.normal(size=n) + 0.8,
        lambda rng, n: rng.normal(size=n) - 0.8,
        lambda rng, n: 3 * rng.normal(size=n),
        lambda rng, n: np.full(n, np.nan),
    ],
    ids=["higher", "lower", "wider", "unreached"],
)
def test_a_change_of_the_scores_is_found(later: Callable[[np.random.Generator, int], NDArray[np.float64]]) -> None:
    rng = np.random.default_rng(8)
    found = [watched(np.concatenate([rng.normal(size=250), later(rng, 150)]), 200, seed) for seed in range(20)]
    assert sum(found) >= 18


@pytest.mark.parametrize("world", SCORES)
def test_ranks_are_uniform_whatever_the_ties(world: str) -> None:
    rng = np.random.default_rng(9)
    ranks = []
    for seed in range(400):
        scores = SCORES[world](rng, 12)
        ranks.append(ExchangeabilityMonitor(scores[:11], seed=seed).rank(float(scores[11])))
    gaps = np.sort(ranks) - (np.arange(400) + 0.5) / 400
    assert np.abs(gaps).max() < 1.63 / 20  # Kolmogorov at .01


def test_an_unreached_gate_counts_as_the_lowest_score() -> None:
    monitor = ExchangeabilityMonitor([0.1, 0.2, math.nan])
    assert monitor.rank(math.nan) > 0.5
    assert monitor.rank(0.3) < 0.25


MONITORS: dict[str, tuple[Callable[[], Any], Callable[[np.random.Generator], Any]]] = {
    "keep": (lambda: KeepMonitor("0.95", 0.05), lambda rng: bool(rng.random() < 0.3)),
    "catch": (lambda: CatchMonitor("0.5", 0.5, false_alarm=0.01), lambda rng: bool(rng.random() < 0.3)),
    "exchangeability": (
        lambda: ExchangeabilityMonitor([0.1, math.nan, 0.3], seed=3),
        lambda rng: math.nan if rng.random() < 0.1 else float(rng.random()),
    ),
}


@pytest.mark.parametrize("kind", MONITORS)
def test_a_monitor_goes_on_where_it_stopped(kind: str) -> None:
    make, draw = MONITORS[kind]
    rng = np.random.default_rng(10)
    through = make()
    for _ in range(40):
        through.update(draw(rng))
    resumed = type(through).resume(json.loads(json.dumps(through.state(), allow_nan=False)))
    assert resumed.state() == through.state()
    for _ in range(40):
        value = draw(rng)
        assert resumed.update(value) == through.update(value)
    assert resumed.state() == through.state()
    assert resumed.log_wealth == through.log_wealth != 0


def test_a_state_of_another_kind_or_version_is_refused() -> None:
    state = KeepMonitor("0.9", 0.1).state()
    with pytest.raises(DataError, match=r"cannot be resumed by the catch monitor .*that of the keep monitor"):
        CatchMonitor.resume(state)
    for broken in (
        {},
        {**state, "settings": {"explore": 0.1}},
        {**state, "shares": [[1.0]]},
        {**state, "counters": {}},
    ):
        with pytest.raises(DataError, match="give what its state"):
            KeepMonitor.resume(broken)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: KeepMonitor("0.95", 0.0), UsageError, "an exploration share of 0.0 was given"),
        (lambda: KeepMonitor("0.95", 1.5), UsageError, "nothing is known of those that are aborted"),
        (lambda: KeepMonitor("1", 0.5), UsageError, "a keep target of 1 is broken by the first miss"),
        (lambda: CatchMonitor("much", 0.5), UsageError, "catch target 'much' is not a number"),
        (lambda: KeepMonitor("0.95", 0.5, false_alarm=0), UsageError, "the false-alarm rate 0 is outside"),
        (lambda: KeepMonitor("0.95", 0.5).update(0.7), DataError, "0.7 is no boolean"),  # type: ignore[arg-type]
        (lambda: ExchangeabilityMonitor([[0.1]]), DataError, "reference scores have shape"),
        (lambda: ExchangeabilityMonitor([math.inf]), DataError, "a score is inf"),
        (lambda: ExchangeabilityMonitor([0.1]).update(-math.inf), DataError, "a score is -inf"),
        (lambda: ExchangeabilityMonitor([0.1], seed=-1), UsageError, "seed is -1"),
    ],
)
def test_what_cannot_be_right_is_refused(make: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make()


def test_nothing_is_estimated_from_nothing() -> None:
    assert math.isnan(KeepMonitor("0.9", 0.1).kept)
    assert math.isnan(CatchMonitor("0.9", 0.1).caught)
