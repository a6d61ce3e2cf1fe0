"""Choosing a target by prices: against a brute force, at the extremes, and without looking at what is judged."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from probecascade.bounds import allowed_misses
from probecascade.errors import DataError, UsageError
from probecascade.intervals import Resampling
from probecascade.thresholds import GateScores, first_firing
from probecascade.thresholds.operating import KEEPS, OperatingPoint, _folds, _path, choose_target, frontier

FEW = Resampling(resamples=200)
KEEP_GRID = tuple(Fraction(k, 10) for k in (5, 7, 8, 9))


def world(n: int, n_gates: int, *, seed: int = 0, told: float = 1.5) -> tuple[GateScores, np.ndarray]:
    """Half of the episodes fail; `told` standard deviations between the classes; 100 tokens between gates."""
    rng = np.random.default_rng(seed)
    failed = np.arange(n) % 2 == 0
    scores = rng.normal(size=(n, n_gates)) + told * failed[:, None]
    after = np.tile(100.0 * np.arange(n_gates, 0, -1), (n, 1))
    short = rng.random(n) < 0.2
    scores[short, -1] = np.nan
    after[short, -1] = np.nan
    return GateScores.check(scores, failed, after), np.full(n, 100.0 * (n_gates + 1))


def by_hand(
    data: GateScores, total: np.ndarray, price: float, worth: float, folds: np.ndarray
) -> dict[Fraction, float]:
    """Value of an episode per keep target at a single gate, episode by episode in plain Python."""
    values = {}
    for keep in KEEP_GRID:
        earned = 0.0
        for i in range(len(total)):
            others = [
                float(s)
                for s, failed, fold in zip(data.scores[:, 0], data.failed, folds, strict=True)
                if fold != folds[i] and not failed
            ]
            limit = sorted(others, reverse=True)[int((1 - keep) * len(others))]
            if data.scores[i, 0] > limit:
                earned -= price * (total[i] - data.cost_after[i, 0])
            else:
                earned += (0.0 if data.failed[i] else worth) - price * total[i]
        values[keep] = earned / len(total)
    return values


@pytest.mark.parametrize("worth", [50.0, 150.0, 600.0])
def test_the_choice_equals_a_brute_force_at_one_gate(worth: float) -> None:
    rng = np.random.default_rng(3)
    failed = np.arange(60) % 2 == 0
    scores = (rng.normal(size=60) + 2.0 * failed)[:, None]
    total = rng.integers(150, 300, size=60).astype(np.float64)
    data = GateScores.check(scores, failed, (total - rng.integers(50, 150, size=60))[:, None])
    chosen = choose_target(data, total, 1.0, worth, keeps=KEEP_GRID, resampling=FEW)
    expected = by_hand(data, total, 1.0, worth, _folds(data, np.arange(60), 0))
    assert {point.keep: point.value for point in chosen.points} == pytest.approx(expected)
    never = worth * 0.5 - total.mean()
    assert chosen.never == pytest.approx(never)
    best = max(expected, key=lambda keep: (expected[keep], keep))
    assert chosen.best.keep == best
    assert chosen.keep == (best if expected[best] > never else None)
    assert chosen.gain.value == pytest.approx(expected[best] - never)
    for keep, over in chosen.over_neighbours.items():
        assert over.value == pytest.approx(expected[best] - expected[keep])


def test_extreme_prices_give_the_extreme_ends() -> None:
    data, total = world(400, 3)
    free = choose_target(data, total, 0.0, 1.0, resampling=FEW)
    assert free.keep is None
    assert "never aborting is worth most" in free.sentence
    worthless = choose_target(data, total, 1.0, 0.0, resampling=FEW)
    assert worthless.keep == KEEPS[0]
    assert worthless.best.saved == max(point.saved for point in worthless.points)
    assert list(worthless.over_neighbours) == [KEEPS[1]]


def test_the_dearer_a_success_the_higher_the_target() -> None:
    data, total = world(600, 3)
    keeps = [
        float(choose_target(data, total, 0.01, worth, resampling=FEW).keep or 1) for worth in (0.5, 2.0, 8.0, 32.0, 1e4)
    ]
    assert keeps == sorted(keeps)
    assert len(set(keeps)) > 2


def test_the_curve_is_nested_and_its_gains_add_up() -> None:
    data, total = world(300, 3)
    path = frontier(data)
    fired = path.first >= 0
    assert (fired[1:] <= fired[:-1]).all()
    chosen = choose_target(data, total, 0.01, 2.0, resampling=FEW)
    base = float((~data.failed).mean())
    for point, gates in zip(chosen.points, path.first, strict=True):
        kept = sum(not failed and gate < 0 for failed, gate in zip(data.failed, gates, strict=True))
        saved = sum(data.cost_after[i, gate] for i, gate in enumerate(gates) if gate >= 0)
        assert point.kept == pytest.approx(kept / data.successes)
        assert point.saved == pytest.approx(saved / total.sum())
        assert point.value == pytest.approx(2.0 * base * point.kept - 0.01 * total.mean() * (1 - point.saved))
        assert point.gain == pytest.approx(point.value - chosen.never)
        assert abs(point.kept - float(point.keep)) < 0.08


def test_no_episode_is_judged_by_what_its_fold_has_shaped() -> None:
    data, _ = world(200, 2)
    before = frontier(data).first
    folds = _folds(data, np.arange(200), 0)
    scores = data.scores.copy()
    scores[folds == 0, 0] = scores[folds == 0, 0][::-1]
    changed = frontier(GateScores(scores, data.failed, data.cost_after)).first
    moved = scores[:, 0] != data.scores[:, 0]
    alone = np.flatnonzero((folds == 0) & ~moved)
    assert (changed[:, alone] == before[:, alone]).all()
    scores[folds == 0] = data.scores[folds == 0][::-1]
    limits_moved = frontier(GateScores(scores, data.failed, data.cost_after)).first
    assert (limits_moved[:, folds != 0] != before[:, folds != 0]).any()


def test_scores_that_know_nothing_gain_nothing_by_being_many() -> None:
    """Twelve gates of noise look useful to whoever judges them on the episodes that shaped them."""
    failed = np.arange(80) % 2 == 0
    costs = np.tile(20 + np.arange(12.0, 0, -1), (80, 1))
    fair: list[float] = []
    flattered: list[float] = []
    for seed in range(10):
        data = GateScores.check(np.random.default_rng(seed).normal(size=(80, 12)), failed, costs)
        (limits,) = _path(data, [Fraction(2, 10)])
        for ahead, aborted in (
            (fair, frontier(data, keeps=[Fraction(8, 10)]).first[0] >= 0),
            (flattered, first_firing(data.scores, limits, costs) >= 0),
        ):
            ahead.append(aborted[failed].mean() - aborted[~failed].mean())
    error = np.sqrt(2 * 0.2 * 0.8 / 40 / 10)
    assert np.mean(fair) < 2 * error
    assert np.mean(flattered) > 3 * error


def test_groups_stay_whole_and_rows_may_come_in_any_order() -> None:
    data, total = world(240, 2)
    groups = np.array([f"task {i % 40}" for i in range(240)])
    folds = _folds(data, groups, 0)
    assert all(len(set(folds[groups == name])) == 1 for name in set(groups))
    order = np.random.default_rng(1).permutation(240)
    shuffled = GateScores(data.scores[order], data.failed[order], data.cost_after[order])
    one = choose_target(data, total, 0.01, 2.0, groups=groups, resampling=FEW)
    other = choose_target(shuffled, total[order], 0.01, 2.0, groups=groups[order], resampling=FEW)
    assert [point.kept for point in one.points] == [point.kept for point in other.points]
    assert one.keep == other.keep
    assert one.gain.groups == 40


def test_a_target_is_judged_by_what_its_certificate_will_keep() -> None:
    data, total = world(600, 2)
    chosen = choose_target(
        data, total, 0.01, 2.0, certifying=100, keeps=[Fraction(9, 10), Fraction(99, 100)], resampling=FEW
    )
    (point,) = chosen.points  # 100 successes certify no 99 %
    misses = allowed_misses(100, Fraction(1, 10), delta=0.05)
    assert point.kept == pytest.approx(1 - (misses + 0.5) / 100, abs=0.02)
    with pytest.raises(UsageError, match="20 successes can certify no keep target of 90 % or more"):
        choose_target(data, total, 0.01, 2.0, certifying=20, keeps=[Fraction(9, 10)])


def test_both_numbers_and_the_assumptions_are_said() -> None:
    data, total = world(400, 2)
    chosen: OperatingPoint = choose_target(data, total, 0.01, 2.0, resampling=FEW)
    assert chosen.keep is not None
    for words in ("failures caught", "successes kept", "tokens saved", "worth nothing", "not tried again", "linear"):
        assert words in chosen.sentence
    assert "chosen on the episodes that certify it, it would no longer be promised" in chosen.sentence
    low, value, high = chosen.gain.low, chosen.gain.value, chosen.gain.high
    assert 0 < low < value < high
    assert f"{value:+.4g} [{low:+.4g}, {high:+.4g}]" in chosen.sentence


@pytest.mark.parametrize(
    ("price", "worth", "words"),
    [(-1.0, 1.0, "price per token is -1.0"), (1.0, float("nan"), "worth per success is nan")],
)
def test_prices_that_cannot_be_are_refused(price: float, worth: float, words: str) -> None:
    data, total = world(40, 2)
    with pytest.raises(UsageError, match=words):
        choose_target(data, total, price, worth)


def test_episodes_from_which_nothing_can_be_learnt_are_refused() -> None:
    data, total = world(40, 2)
    with pytest.raises(DataError, match="1 groups hold a failure and 1 a success"):
        choose_target(data, total, 1.0, 1.0, groups=np.zeros(40))
    with pytest.raises(DataError, match="episode 0 spends 100 tokens in total, but 200 after"):
        choose_target(data, np.full(40, 100.0), 1.0, 1.0)
    with pytest.raises(DataError, match=r"total costs have shape \(3,\)"):
        choose_target(data, total[:3], 1.0, 1.0)
    with pytest.raises(DataError, match="3 groups were given for 40 episodes"):
        choose_target(data, total, 1.0, 1.0, groups=np.arange(3))
    with pytest.raises(UsageError, match="must lie in"):
        choose_target(data, total, 1.0, 1.0, keeps=[Fraction(1)])
