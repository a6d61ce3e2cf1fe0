from __future__ import annotations

import math
import time
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, brier_score_loss, roc_auc_score

from probecascade.errors import DataError, UsageError
from probecascade.probes import (
    Interval,
    auprc,
    auroc,
    auroc_interval,
    brier,
    caught_at_keep,
    ece,
    pair_accuracy,
)


def wins(scores: list[float], failed: list[bool]) -> tuple[float, int]:
    """Pairs won by the failed episode, and all pairs, one by one."""
    pairs = [
        (a, b) for a, f in zip(scores, failed, strict=True) if f for b, g in zip(scores, failed, strict=True) if not g
    ]
    return sum(1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs), len(pairs)


rows = st.lists(st.tuples(st.integers(0, 6), st.booleans(), st.integers(0, 5)), min_size=2, max_size=60)


@settings(max_examples=150, deadline=None)
@given(rows)
def test_auroc_counts_pairs(rows: list[tuple[int, bool, int]]) -> None:
    scores = [s / 7 for s, _, _ in rows]
    failed = [f for _, f, _ in rows]
    won, pairs = wins(scores, failed)
    if not pairs:
        with pytest.raises(DataError, match="at least one of each"):
            auroc(scores, failed)
        return
    assert auroc(scores, failed) == won / pairs
    assert auroc(scores, failed) == pytest.approx(roc_auc_score(failed, scores), abs=1e-12)
    assert auroc([-s for s in scores], failed) == pytest.approx(1 - won / pairs, abs=1e-15)


@settings(max_examples=150, deadline=None)
@given(rows)
def test_pair_accuracy_counts_pairs_within_groups(rows: list[tuple[int, bool, int]]) -> None:
    by_group: dict[int, list[tuple[int, bool]]] = {}
    for score, label, group in rows:
        by_group.setdefault(group, []).append((score, label))
    parts = [wins([s for s, _ in part], [f for _, f in part]) for part in by_group.values()]
    won, pairs = sum(w for w, _ in parts), sum(p for _, p in parts)
    found = pair_accuracy([s for s, _, _ in rows], [f for _, f, _ in rows], [g for _, _, g in rows])
    assert found.n_pairs == pairs
    assert found.value == pytest.approx(won / pairs) if pairs else math.isnan(found.value)


def test_golden_values() -> None:
    scores = [0.1, 0.4, 0.4, 0.8, 0.3, 0.9]
    failed = [0, 0, 1, 1, 1, 0]
    # failed .4: beats .1, ties .4; .8: beats .1 and .4; .3: beats .1 -> 4.5 of 9
    assert auroc(scores, failed) == 0.5
    assert pair_accuracy(scores, failed, ["a", "a", "a", "b", "b", "b"]).value == 0.375
    assert auroc([0.2, 0.2, 0.9], [0, 1, 1]) == 0.75


def test_difficulty_of_the_task_shows_in_auroc_and_not_in_pair_accuracy() -> None:
    rng = np.random.default_rng(0)
    difficulty = np.repeat(rng.normal(size=80), 10)
    failed = rng.random(800) < 1 / (1 + np.exp(-2 * difficulty))
    scores = difficulty + 0.1 * rng.normal(size=800)
    assert auroc(scores, failed) > 0.8
    within = pair_accuracy(scores, failed, np.repeat(np.arange(80), 10))
    assert within.n_pairs > 500
    assert abs(within.value - 0.5) < 0.05


def test_the_interval_is_that_of_a_bootstrap_done_by_hand() -> None:
    rng = np.random.default_rng(1)
    groups = np.repeat(np.arange(20), 3)
    failed = rng.random(60) < 0.4
    scores = np.round(rng.normal(size=60) + failed, 1)
    found = auroc_interval(scores, failed, groups, resamples=400, seed=5)
    by_hand = np.random.default_rng(6)
    values = []
    for _ in range(400):
        members = np.concatenate([np.flatnonzero(groups == g) for g in by_hand.integers(20, size=20)])
        values.append(roc_auc_score(failed[members], scores[members]))
    assert found.value == auroc(scores, failed)
    assert (found.n, found.groups, found.skipped) == (60, 20, 0)
    np.testing.assert_allclose([found.low, found.high], np.quantile(values, [0.025, 0.975]), atol=0.03)


def test_the_interval_depends_on_the_seed_alone() -> None:
    rng = np.random.default_rng(2)
    scores, failed, groups = rng.normal(size=100), rng.random(100) < 0.5, np.arange(100)
    assert auroc_interval(scores, failed, groups, seed=1) == auroc_interval(scores, failed, groups, seed=1)
    assert auroc_interval(scores, failed, groups, seed=1) != auroc_interval(scores, failed, groups, seed=2)
    wide = auroc_interval(scores, failed, groups, confidence=0.99)
    narrow = auroc_interval(scores, failed, groups, confidence=0.5)
    assert wide.low < narrow.low < narrow.value < narrow.high < wide.high


def coverage(clustered: bool, by_group: bool, trials: int = 120) -> float:
    """Share of 90 % intervals that hold the true AUROC of scores N(1, 1) against N(0, 1)."""
    truth = 0.5 * (1 + math.erf(0.5))
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(trials):
        groups = np.repeat(np.arange(40), 4)
        failed = np.tile([True, False], 80) if not clustered else np.repeat(np.arange(40) % 2 == 0, 4)
        noise = np.repeat(rng.normal(size=40), 4) if clustered else rng.normal(size=160)
        interval = auroc_interval(
            noise + failed, failed, groups if by_group else np.arange(160), confidence=0.9, resamples=150
        )
        held += interval.low <= truth <= interval.high
    return held / trials


def test_the_interval_covers_and_one_that_ignores_groups_does_not() -> None:
    assert 0.82 <= coverage(clustered=False, by_group=True) <= 0.97
    assert coverage(clustered=True, by_group=True) >= 0.80
    assert coverage(clustered=True, by_group=False) < 0.70


def test_resamples_with_one_class_are_skipped_and_counted() -> None:
    found = auroc_interval([0.9, 0.1, 0.2, 0.3], [1, 0, 0, 0], ["a", "b", "c", "d"], resamples=1000)
    # No draw of group a: (3/4)^4 = .316 of the resamples; only group a: 1/256.
    assert 260 < found.skipped < 385
    # The one pair of disjoint groups is ranked rightly: that shows nearly nothing.
    assert (found.value, found.low, found.high) == (1.0, pytest.approx(0.025), 1.0)


def test_no_usable_resample_is_an_error() -> None:
    seed = next(s for s in range(20) if len(set(np.random.default_rng(s).integers(2, size=2))) == 1)
    with pytest.raises(DataError, match="All 1 resamples"):
        auroc_interval([0.9, 0.1], [1, 0], ["a", "b"], resamples=1, seed=seed)


def test_a_thousand_resamples_of_five_hundred_episodes_are_quick() -> None:
    rng = np.random.default_rng(0)
    scores, failed = rng.normal(size=500), rng.random(500) < 0.5
    taken = []
    for _ in range(3):
        start = time.perf_counter()
        found = auroc_interval(scores, failed, np.arange(500), resamples=1000)
        taken.append(time.perf_counter() - start)
    assert isinstance(found, Interval)
    assert min(taken) < 0.5


@pytest.mark.parametrize("scores", [[0.1, np.nan, 0.3], [0.1, np.inf, 0.3]])
def test_scores_that_are_not_finite_are_refused(scores: list[float]) -> None:
    for measure in (lambda: auroc(scores, [0, 1, 1]), lambda: pair_accuracy(scores, [0, 1, 1], [0, 0, 0])):
        with pytest.raises(DataError, match="1 of 3 scores are NaN or infinite"):
            measure()


def test_other_bad_input_is_refused() -> None:
    with pytest.raises(DataError, match="shape"):
        auroc([[0.1, 0.2]], [0, 1])
    with pytest.raises(DataError, match="one label per row"):
        auroc([0.1, 0.2], [0, 1, 1])
    with pytest.raises(UsageError, match="confidence"):
        auroc_interval([0.1, 0.2], [0, 1], [0, 1], confidence=95)
    with pytest.raises(UsageError, match="resample"):
        auroc_interval([0.1, 0.2], [0, 1], [0, 1], resamples=0)


@settings(max_examples=150, deadline=None)
@given(rows, st.sampled_from(["0.01", "0.3", "0.5", "0.95", "1", "1/3"]))
def test_the_other_metrics_agree_with_scikit_learn_and_with_brute_force(
    rows: list[tuple[int, bool, int]], keep: str
) -> None:
    scores = np.array([s / 7 for s, _, _ in rows])
    failed = np.array([f for _, f, _ in rows])
    if failed.all() or not failed.any():
        for metric in (auprc, brier, ece, caught_at_keep):
            with pytest.raises(DataError, match="at least one of each"):
                metric(scores, failed)
        return
    assert auprc(scores, failed) == pytest.approx(average_precision_score(failed, scores), abs=1e-12)
    assert brier(scores, failed) == pytest.approx(brier_score_loss(failed, scores), abs=1e-12)
    assert ece(scores, failed, bins=1) == pytest.approx(abs(scores.mean() - failed.mean()), abs=1e-12)
    successes = scores[~failed]
    sound = [t for t in [*scores, np.inf] if (successes < t).sum() >= Fraction(keep) * len(successes)]
    caught = float((scores[failed] >= min(sound)).sum() / failed.sum())
    assert caught_at_keep(scores, failed, keep) == caught
    turned = np.random.default_rng(0).permutation(len(scores))
    for metric in (auprc, brier, ece, caught_at_keep):
        assert metric(scores[turned], failed[turned]) == pytest.approx(metric(scores, failed), abs=1e-12)


def test_golden_values_of_the_other_metrics() -> None:
    scores = [0.2, 0.2, 0.6, 0.6, 0.9, 0.9, 1.0, 0.0]
    failed = [0, 0, 1, 0, 1, 1, 1, 0]
    assert auprc(scores, failed) == pytest.approx(3 / 4 * 1.0 + 1 / 4 * 4 / 5)
    assert brier(scores, failed) == pytest.approx((0.04 * 2 + 0.16 + 0.36 + 0.01 * 2) / 8)
    # bins of two by rank: {0, .2, .2}, {.6, .6}, {.9, .9}, {1}, the tie in the bin of its lowest rank
    assert ece(scores, failed, bins=4) == pytest.approx((0.4 + 0.2 + 0.2 + 0.0) / 8)
    assert caught_at_keep(scores, failed, 0.75) == 1.0
    assert caught_at_keep(scores, failed, 0.76) == 0.75


def test_a_share_is_taken_as_it_is_written() -> None:
    """55 of 100 successes, where floating-point arithmetic asks for 56."""
    assert math.ceil(0.55 * 100) == 56
    assert caught_at_keep(np.append(np.arange(100) / 100, 0.545), np.append(np.zeros(100), 1), 0.55) == 1.0


def test_calibrated_scores_have_a_small_ece_and_overconfident_ones_do_not() -> None:
    rng = np.random.default_rng(0)
    chance = rng.uniform(0.05, 0.95, size=20_000)
    failed = rng.random(20_000) < chance
    assert ece(chance, failed) < 0.012
    assert ece(np.clip(1.8 * chance - 0.4, 0, 1), failed) > 0.1


@pytest.mark.parametrize("metric", [brier, ece])
def test_scores_that_are_no_probabilities_are_refused(metric: Callable[..., float]) -> None:
    with pytest.raises(DataError, match=r"between -1 and 0.5 .*probabilities"):
        metric([-1.0, 0.5], [0, 1])


def test_a_keep_outside_its_range_and_no_bins_are_refused() -> None:
    for keep in (0, 1.5, -0.1):
        with pytest.raises(UsageError, match="share of successes"):
            caught_at_keep([0.1, 0.5], [0, 1], keep)
    with pytest.raises(UsageError, match="0 bins"):
        ece([0.1, 0.5], [0, 1], bins=0)
