from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import expit, logit
from sklearn.calibration import _sigmoid_calibration

from probecascade.errors import DataError, UsageError
from probecascade.probes import (
    Calibrated,
    CalibratedProbe,
    FittedProbe,
    LDAFitter,
    LinearProbe,
    LogisticFitter,
    MLPFitter,
    auroc,
    brier,
    ece,
    grouped_folds,
)
from probecascade.probes.calibrated import Isotonic, Platt, _fit_isotonic, _fit_platt


def overconfident(n: int, d: int, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.int64]]:
    """Ten near-copies of each episode: the Gaussian model takes them for ten times as much to learn from."""
    rng = np.random.default_rng(seed)
    groups = np.arange(n) // 10
    own = rng.normal(size=(n // 10, d))
    failed = rng.random(n // 10) < expit(1.5 * own[:, 0])
    return own[groups] + 0.1 * rng.normal(size=(n, d)), failed[groups], groups


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_calibration_mends_probabilities_and_keeps_the_order(method: str) -> None:
    states, failed, groups = overconfident(1000, 40)
    raw = LDAFitter().fit(states, failed, groups)
    mended = Calibrated(LDAFitter(), method).fit(states, failed, groups)  # type: ignore[arg-type]
    assert brier(mended.out_of_fold, failed) < brier(raw.out_of_fold, failed) - 0.01
    assert ece(mended.out_of_fold, failed) < ece(raw.out_of_fold, failed) - 0.03
    fresh, truth, _ = overconfident(3000, 40, seed=1)
    before, after = raw.probe.score(fresh), mended.probe.score(fresh)
    assert ece(after, truth) < ece(before, truth) - 0.03
    assert auroc(after, truth) == pytest.approx(auroc(before, truth), abs=1e-9)
    order = np.argsort(before, kind="stable")
    assert (np.diff(after[order]) >= -1e-15).all()
    assert mended.folds == raw.folds
    assert mended.auroc == auroc(mended.out_of_fold, failed)


def test_platt_is_taken_into_a_linear_probe_and_wraps_any_other() -> None:
    states, failed, groups = overconfident(120, 8)
    assert isinstance(Calibrated(LDAFitter(folds=3)).fit(states, failed, groups).probe, LinearProbe)
    mlp = Calibrated(MLPFitter(hidden=(4,), members=1, folds=3)).fit(states, failed, groups).probe
    assert isinstance(mlp, CalibratedProbe)
    assert mlp.reads == {"states", "signals"}


def test_platt_agrees_with_scikit_learn_and_recovers_a_known_map() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(scale=2, size=20_000)
    failed = rng.random(20_000) < expit(0.4 * logits - 1)
    found = _fit_platt(expit(logits), failed, np.ones(20_000))
    slope, intercept = _sigmoid_calibration(logits, failed)
    assert (found.slope, found.intercept) == pytest.approx((-slope, -intercept), abs=1e-3)
    assert (found.slope, found.intercept) == pytest.approx((0.4, -1), abs=0.06)


def test_scores_of_0_and_1_and_scores_that_mislead_keep_finite_maps_of_positive_slope() -> None:
    scores = np.array([0.0, 0.2, 0.9, 1.0, 0.4, 1.0])
    failed = np.array([True, True, False, False, True, False])
    for fit in (_fit_platt, _fit_isotonic):
        mapped = fit(scores, failed, np.ones(6)).apply(np.linspace(0, 1, 101))
        assert np.isfinite(mapped).all()
        assert (np.diff(mapped) >= 0).all()
    separated = _fit_platt(np.array([0.0, 0.0, 1.0, 1.0]), np.array([False, False, True, True]), np.ones(4))
    assert 0 < separated.apply(np.array([0.0]))[0] < 0.3
    assert 0.7 < separated.apply(np.array([1.0]))[0] < 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=2, max_size=80))
def test_the_isotonic_map_never_turns_two_scores_round(pairs: list[tuple[float, bool]]) -> None:
    scores = np.array([s for s, _ in pairs])
    failed = np.array([f for _, f in pairs])
    fitted = _fit_isotonic(scores, failed, np.ones(len(pairs)))
    grid = np.sort(np.r_[scores, np.linspace(0, 1, 200), fitted.x, np.nextafter(fitted.x[1:], 0)])
    mapped = fitted.apply(grid)
    assert (np.diff(mapped) >= 0).all()
    assert mapped[0] >= 0
    assert mapped[-1] <= 1


def test_the_isotonic_map_recovers_a_curve_that_platt_cannot_bend_to() -> None:
    rng = np.random.default_rng(0)
    scores = rng.random(20_000)
    truth = np.where(scores < 0.5, 0.1, 0.9)
    failed = rng.random(20_000) < truth
    away = np.abs(scores - 0.5) > 0.05
    isotonic = np.abs(_fit_isotonic(scores, failed, np.ones(20_000)).apply(scores) - truth)[away].mean()
    platt = np.abs(_fit_platt(scores, failed, np.ones(20_000)).apply(scores) - truth)[away].mean()
    assert isotonic < 0.03 < 0.06 < platt


@dataclass(frozen=True)
class Memoriser:
    """A fitter whose held-out scores are random numbers that tell nothing."""

    folds: int = 5
    seed: int = 0

    def fit(self, X: NDArray[np.float64], failed: NDArray[np.bool_], groups: NDArray[np.int64]) -> FittedProbe:
        probe = LinearProbe(np.zeros(1), np.ones(1), np.ones(1), 0.0)
        scores = probe.score(X)
        return FittedProbe(probe, 1.0, scores, auroc(scores, failed), self.folds)


def test_a_rows_own_label_has_no_part_in_its_held_out_calibration() -> None:
    """On noise an isotonic map fits the rows it has seen better than their rate does, and others worse."""
    rng = np.random.default_rng(0)
    found, leaky = [], []
    for _ in range(12):
        x, failed, groups = rng.normal(size=(150, 1)), rng.permutation(np.arange(150) % 2 == 0), np.arange(150)
        fitted = Calibrated(Memoriser(), "isotonic").fit(x, failed, groups)
        found.append(brier(fitted.out_of_fold, failed))
        leaky.append(brier(fitted.probe.score(x), failed))
        folds = grouped_folds(failed, groups, 5, 0)
        train, test = folds[0]
        again = _fit_isotonic(expit(x[train, 0]), failed[train], np.ones(len(train)))
        np.testing.assert_allclose(fitted.out_of_fold[test], again.apply(expit(x[test, 0])), rtol=1e-12)
    assert np.mean(found) > 0.25
    assert np.mean(leaky) < 0.249


def test_balanced_weights_are_undone_by_calibration() -> None:
    rng = np.random.default_rng(0)
    states = rng.normal(size=(600, 5))
    failed = rng.random(600) < expit(states[:, 0] - 2.5)
    fitter = LogisticFitter(strengths=(0.1,), class_weight="balanced")
    plain = fitter.fit(states, failed, np.arange(600)).out_of_fold
    mended = Calibrated(fitter).fit(states, failed, np.arange(600)).out_of_fold
    assert plain.mean() == pytest.approx(0.5, abs=0.08)
    assert mended.mean() == pytest.approx(failed.mean(), abs=0.01)


def test_maps_and_methods_that_cannot_be_are_refused() -> None:
    with pytest.raises(DataError, match="positive slope"):
        Platt(0.0, 1.0)
    for x, y in (([0, 1], [0, 1.5]), ([0, 0.5, 0.5, 1], [0, 0.2, 0.4, 1]), ([0, 1], [1, 0]), ([0, 0.5, 1], [0, 1])):
        with pytest.raises(DataError, match="knots"):
            Isotonic(np.array(x, dtype=float), np.array(y, dtype=float))
    states, failed, groups = overconfident(60, 3)
    with pytest.raises(UsageError, match="platt or isotonic"):
        Calibrated(LDAFitter(), "beta").fit(states, failed, groups)  # type: ignore[arg-type]
    assert logit(Platt(2.0, 0.5).apply(np.array([0.5]))[0]) == pytest.approx(0.5)
