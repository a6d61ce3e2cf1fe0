"""Score worlds are what their documentation says, and a population judges as episodes are judged one by one."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from probecascade.errors import DataError, UsageError
from probecascade.testing import WORLDS, Population, World
from probecascade.thresholds import GateScores, first_firing


def auroc(data: GateScores, gate: int) -> float:
    reached = ~np.isnan(data.scores[:, gate])
    return float(roc_auc_score(data.failed[reached], data.scores[reached, gate]))


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("n_gates", [3, 6])
def test_a_world_is_what_it_says(name: str, n_gates: int) -> None:
    data = World(name, n_gates, failure=0.4).sample(30_000, np.random.default_rng(1))
    reached = ~np.isnan(data.scores)
    assert GateScores.check(data.scores, data.failed, data.cost_after) is not None
    assert np.array_equal(reached, ~np.isnan(data.cost_after))
    assert data.failed.mean() == pytest.approx(0.4, abs=0.01)
    assert auroc(data, 0) == pytest.approx(0.74, abs=0.01)
    assert auroc(data, n_gates - 1) == pytest.approx(0.90, abs=0.01)
    assert auroc(data, 1) == pytest.approx(0.5, abs=0.02) if name == "scales" else auroc(data, 1) > 0.75
    costs = np.nan_to_num(data.cost_after)
    assert (np.diff(costs, axis=1) <= 0).all()
    assert np.array_equal(costs, np.round(costs))
    share_at_last = [reached[data.failed == label, -1].mean() for label in (True, False)]
    assert 0.3 < share_at_last[1] < share_at_last[0] < 0.9


def test_worlds_differ_in_ties_tails_and_scales() -> None:
    rng = np.random.default_rng(2)
    drawn = {name: World(name, 3).sample(20_000, rng) for name in WORLDS}
    assert len(np.unique(drawn["ties"].scores[~np.isnan(drawn["ties"].scores)])) == 21
    heavy = drawn["heavy"]
    last = heavy.scores[heavy.failed, -1]
    assert (last == np.nanmax(heavy.scores)).sum() > 0.1 * (~np.isnan(last)).sum()
    centre, spread = np.nanmedian(heavy.scores[~heavy.failed, 0]), np.nanstd(drawn["normal"].scores[~heavy.failed, 0])
    assert np.nanmin(heavy.scores) < centre - 10 * spread
    spreads = np.nanstd(drawn["scales"].scores, axis=0)
    assert (spreads[1:] / spreads[:-1] > 7).all()


@pytest.mark.parametrize("correlation", [-0.7, 0.0, 0.7])
def test_groups_share_their_difficulty_and_their_level(correlation: float) -> None:
    data, group = World("normal", 3).sample_groups(6_000, (4, 8), np.random.default_rng(3), correlation)
    sizes = np.bincount(group)
    assert (sizes.min(), sizes.max()) == (4, 8)
    assert data.failed.mean() == pytest.approx(0.55, abs=0.02)
    doomed = np.bincount(group, data.failed) / sizes
    assert doomed.var() > 2 * 0.55 * 0.45 / 6  # far more than groups of independent episodes would differ
    level = np.full(len(sizes), np.nan)
    easy = ~data.failed
    some = np.bincount(group[easy], minlength=len(sizes)) > 0
    level[some] = (
        np.bincount(group[easy], data.scores[easy, 0], len(sizes))
        / np.bincount(group[easy], minlength=len(sizes)).clip(1)
    )[some]
    found = np.corrcoef(doomed[some], level[some])[0, 1]
    assert found * np.sign(correlation) > 0.3 if correlation else abs(found) < 0.06


def test_a_population_judges_as_episodes_are_judged_one_by_one() -> None:
    rng = np.random.default_rng(4)
    data, group = World("heavy", 3).sample_groups(300, (1, 5), rng, 0.3)
    thresholds = np.array([2.0, np.inf, 1.0])
    first = first_firing(data.scores, thresholds, data.cost_after)
    fired = first >= 0
    saved = np.where(fired, np.take_along_axis(data.cost_after, np.maximum(first, 0)[:, None], 1)[:, 0], 0.0)
    population = Population(data, group)
    for unit, each in (("episode", np.ones(len(group))), ("group", 1.0 / np.bincount(group)[group])):
        outcome = population.outcome(thresholds, unit)
        assert outcome.kept == pytest.approx(np.average(~fired[~data.failed], weights=each[~data.failed]))
        assert outcome.saved == pytest.approx(np.average(saved, weights=each))
        for gate in range(3):
            by_now = (fired & (first <= gate))[data.failed]
            assert outcome.caught[gate] == pytest.approx(np.average(by_now, weights=each[data.failed]))


def test_draws_are_episodes_of_the_population_in_its_own_shares() -> None:
    rng = np.random.default_rng(6)
    population = Population(World("normal", 2, failure=0.3).sample(50, rng))
    drawn = population.sample(20_000, rng)
    known = {(*row, failed) for row, failed in zip(population.data.scores, population.data.failed, strict=True)}
    assert {(*row, failed) for row, failed in zip(drawn.scores[:200], drawn.failed[:200], strict=True)} <= known
    assert drawn.failed.mean() == pytest.approx(population.data.failed.mean(), abs=0.02)
    thresholds = [0.8, 1.2]
    among_draws, truth = Population(drawn).outcome(thresholds), population.outcome(thresholds)
    assert among_draws.kept == pytest.approx(truth.kept, abs=0.02)
    assert among_draws.saved == pytest.approx(truth.saved, rel=0.05)
    shifted = population.sample(20_000, rng, failure=0.9)
    assert shifted.failed.mean() == pytest.approx(0.9, abs=0.01)
    assert Population(shifted).outcome(thresholds).kept == pytest.approx(truth.kept, abs=0.04)


def test_groups_are_drawn_whole() -> None:
    rng = np.random.default_rng(7)
    data, group = World("normal", 2).sample_groups(40, (1, 6), rng, 0.5)
    shuffled = rng.permutation(len(group))
    mixed = GateScores(data.scores[shuffled], data.failed[shuffled], data.cost_after[shuffled])
    drawn, labels = Population(mixed, group[shuffled]).sample_groups(300, rng)
    assert np.array_equal(np.unique(labels), np.arange(300))
    whole = {tuple(sorted(data.scores[group == g, 0])) for g in range(40)}
    found = [tuple(sorted(drawn.scores[labels == g, 0])) for g in range(300)]
    assert set(found) <= whole
    assert len(set(found)) > 30


def test_a_gate_fires_at_its_threshold() -> None:
    data = GateScores.check([[1.0], [1.0], [0.5]], np.array([True, False, False]), [[8.0], [4.0], [2.0]])
    outcome = Population(data).outcome([1.0])
    assert (outcome.caught.tolist(), outcome.kept, outcome.saved) == ([1.0], 0.5, 4.0)


def test_the_same_seed_gives_the_same_episodes() -> None:
    one, two = (World("heavy", 3).sample(50, np.random.default_rng(5)) for _ in range(2))
    np.testing.assert_array_equal(one.scores, two.scores)
    np.testing.assert_array_equal(one.cost_after, two.cost_after)


def test_what_cannot_be_is_refused() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(UsageError, match="the world is 'flat': give one of normal, heavy, ties, scales"):
        World("flat", 3)
    with pytest.raises(UsageError, match="0 gates"):
        World("normal", 0)
    with pytest.raises(UsageError, match=r"share of doomed episodes is 1\.0"):
        World("normal", 3, failure=1.0)
    with pytest.raises(UsageError, match="groups of 8 to 4 episodes"):
        World("normal", 3).sample_groups(10, (8, 4), rng, 0.0)
    with pytest.raises(UsageError, match=r"a correlation of 1\.5"):
        World("normal", 3).sample_groups(10, (4, 8), rng, 1.5)
    some = World("normal", 3).sample(20, rng)
    with pytest.raises(DataError, match="2 thresholds were given for 3 gates"):
        Population(some).outcome([0.5, 0.5])
    with pytest.raises(DataError, match="3 group numbers from 0 to 2 were given for 20 episodes"):
        Population(some, np.arange(3))
    with pytest.raises(DataError, match="0 successes were given: a population needs both"):
        Population(GateScores(some.scores, np.ones(20, dtype=np.bool_), some.cost_after))
