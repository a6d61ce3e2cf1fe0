"""Metrics on resamples of whole groups: as the plain ones say, all at once, and a level over many cells."""

from __future__ import annotations

import numpy as np
import pytest

from probecascade.evaluation.resample import Column, Measure, above_chance, draw_groups, interval_of, mean_column
from probecascade.intervals import Resampling
from probecascade.probes import auprc, auroc, auroc_interval, brier, caught_at_keep, pair_accuracy

PLAIN = {"auroc": auroc, "auprc": auprc, "brier": brier, "caught_at_keep": lambda s, y: caught_at_keep(s, y, 0.9)}


def drawn(n: int = 90, groups: int = 30, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    codes = rng.integers(groups, size=n)
    failed = rng.random(n) < 0.4
    scores = np.round(np.clip(0.3 * failed + 0.7 * rng.random(n), 0, 1), 2)  # some scores tie
    return scores, failed, codes


def test_a_resample_is_measured_as_its_episodes_written_out_would_be() -> None:
    scores, failed, codes = drawn()
    counts = draw_groups(30, Resampling(resamples=300, seed=1))
    column = Measure(failed, codes, counts, 0.9).column(scores)
    for b in (0, 17, 255, 256, 299):
        rows = np.repeat(np.arange(len(scores)), counts[codes, b].astype(int))
        for name, metric in PLAIN.items():
            assert column.draws[name][b] == pytest.approx(metric(scores[rows], failed[rows]), abs=1e-5), name
        # copies of one group are groups of their own: pairs do not cross them
        wins = pairs = 0.0
        for group in range(30):
            found = pair_accuracy(scores[codes == group], failed[codes == group], codes[codes == group])
            if found.n_pairs:
                wins += counts[group, b] * found.value * found.n_pairs
                pairs += counts[group, b] * found.n_pairs
        assert column.draws["pair_accuracy"][b] == pytest.approx(wins / pairs, abs=1e-5)


def test_every_group_drawn_once_gives_the_values_themselves() -> None:
    scores, failed, codes = drawn(seed=2)
    column = Measure(failed, codes, np.ones((30, 1), dtype=np.float32), 0.95).column(scores)
    for name, value in column.values.items():
        assert column.draws[name][0] == pytest.approx(value, abs=1e-6), name


def test_intervals_agree_with_the_bootstrap_of_one_column() -> None:
    scores, failed, codes = drawn(n=400, groups=120, seed=3)
    measure = Measure(failed, codes, draw_groups(120, Resampling(resamples=4000)), 0.95)
    ours = measure.interval(measure.column(scores), "auroc", 0.95)
    other = auroc_interval(scores, failed, codes, resamples=4000)
    assert ours["value"] == other.value
    assert ours["low"] == pytest.approx(other.low, abs=0.006)
    assert ours["high"] == pytest.approx(other.high, abs=0.006)
    assert (ours["n"], ours["groups"]) == (400, len(set(codes.tolist())))


def test_a_column_less_itself_is_nothing_and_a_mean_lies_between() -> None:
    scores, failed, codes = drawn(seed=4)
    measure = Measure(failed, codes, draw_groups(30, Resampling(resamples=100)), 0.95)
    column, other = measure.column(scores), measure.column(1 - scores)
    value, draws = column.less(column, "auroc")
    assert interval_of(value, draws, 0.95) == {"value": 0, "low": 0, "high": 0}
    assert mean_column([column, other]).values["auroc"] == pytest.approx(0.5)
    assert mean_column([column, other]).draws["auroc"] == pytest.approx(np.full(100, 0.5), abs=1e-6)


def test_without_pairs_there_is_no_pair_accuracy() -> None:
    scores, failed, _ = drawn(seed=5)
    codes = np.arange(len(scores))
    measure = Measure(failed, codes, draw_groups(len(scores), Resampling(resamples=50)), 0.95)
    found = measure.interval(measure.column(scores), "pair_accuracy", 0.95)
    assert found == {"value": None, "low": None, "high": None, "n": 90, "groups": 0, "n_pairs": 0}


def simulated(rng: np.random.Generator, cells: int, shift: float) -> tuple[list[float], list[np.ndarray]]:
    values = shift + rng.normal(0.5, 0.03, size=cells)
    return list(values), [value + rng.normal(0, 0.03, size=400) for value in values]


def test_one_cell_of_many_must_show_more_than_a_single_cell() -> None:
    rng = np.random.default_rng(0)
    single = many = 0
    for _ in range(200):
        values, draws = simulated(rng, 60, 0.0)
        single += any(above_chance([v], [d], 0.95)[0] for v, d in zip(values, draws, strict=True))
        many += any(above_chance(values, draws, 0.95))
    assert single > 60  # cell by cell, chance is mistaken for a signal in most sweeps
    assert many <= 10


def test_a_signal_is_still_seen_among_many_cells() -> None:
    rng = np.random.default_rng(1)
    values, draws = simulated(rng, 60, 0.0)
    values[7] += 0.25
    draws[7] = draws[7] + 0.25
    above = above_chance(values, draws, 0.95)
    assert above[7]
    assert sum(above) == 1
    assert above_chance([], [], 0.95) == []
    assert above_chance([1.0, 0.5], [np.ones(9), np.full(9, 0.5)], 0.95) == [True, False]


def test_a_mean_of_columns_keeps_absence() -> None:
    nothing = Column({"pair_accuracy": float("nan")}, {"pair_accuracy": np.full(3, np.nan)})
    assert np.isnan(mean_column([nothing, nothing]).values["pair_accuracy"])


def separated(groups: int, mixed: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    failed = np.arange(2 * groups) % 2 == 0
    codes = np.arange(2 * groups) // 2 if mixed else np.arange(2 * groups)
    return np.where(failed, 0.9, 0.1), failed, codes


def test_scores_that_separate_the_classes_are_not_called_certain() -> None:
    scores, failed, codes = separated(30)
    measure = Measure(failed, codes, draw_groups(60, Resampling(resamples=200)), 0.95)
    column = measure.column(scores)
    for metric in ("auroc", "caught_at_keep"):
        assert np.nanstd(column.draws[metric]) == 0  # the bootstrap itself has no width
        found = measure.interval(column, metric, 0.95)
        assert (found["value"], found["high"]) == (1.0, 1.0)
        assert found["low"] == pytest.approx(0.025 ** (1 / 30))  # 30 trials without a miss
    assert 0.5 < measure.interval(column, "auprc", 0.95)["low"] < 0.9
    turned = measure.interval(measure.column(1 - scores), "auroc", 0.95)
    assert (turned["value"], turned["low"]) == (0.0, 0.0)
    assert turned["high"] == pytest.approx(1 - 0.025 ** (1 / 30))


def test_groups_that_hold_both_classes_are_trials_of_half_as_many_pairs() -> None:
    scores, failed, codes = separated(30, mixed=True)
    measure = Measure(failed, codes, draw_groups(30, Resampling(resamples=200)), 0.95)
    column = measure.column(scores)
    assert measure.interval(column, "auroc", 0.95)["low"] == pytest.approx(0.025 ** (1 / 15))
    assert measure.interval(column, "pair_accuracy", 0.95)["low"] == pytest.approx(0.025 ** (1 / 30))


def test_a_gain_of_separated_scores_is_as_wide_as_they_are() -> None:
    scores, failed, codes = separated(30)
    measure = Measure(failed, codes, draw_groups(60, Resampling(resamples=200)), 0.95)
    column, other = measure.column(scores), measure.column(scores**2)
    both = measure.gain(column, other, "auroc", 0.95)
    assert both["low"] == pytest.approx(0.025 ** (1 / 30) - 1)
    assert both["high"] == pytest.approx(1 - 0.025 ** (1 / 30))
    noisy = np.where(np.arange(60) < 12, 0.5, scores)
    rival = measure.column(noisy)
    gain = measure.gain(column, rival, "auroc", 0.95)
    assert gain["low"] < interval_of(*column.less(rival, "auroc"), 0.95)["low"] < gain["value"]
