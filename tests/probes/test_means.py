from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.covariance import LedoitWolf, ledoit_wolf_shrinkage
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from probecascade.errors import DataError, UsageError
from probecascade.probes import Calibrated, LDAFitter, LinearProbe, MassMeanFitter, Standardise, auroc, fitter_named
from probecascade.probes.means import ledoit_wolf_shrinkage as shrinkage_on_axes
from probecascade.probes.solver import principal_axes

Rows = NDArray[np.float64]


def gaussian(n: int, d: int, seed: int = 0) -> tuple[Rows, NDArray[np.bool_], NDArray[np.int64]]:
    """Two Gaussians with one correlated covariance of uneven scale."""
    rng = np.random.default_rng(seed)
    failed = rng.random(n) < 0.35
    mixing = rng.normal(size=(d, d)) * rng.exponential(size=d)
    states = rng.normal(size=(n, d)) @ mixing + failed[:, None] * rng.normal(size=d) + 5 * rng.normal(size=d)
    return states, failed, np.arange(n) // 2


def direction(probe: object) -> Rows:
    assert isinstance(probe, LinearProbe)
    return probe.weight / probe.scale


def cosine(a: Rows, b: Rows) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.mark.parametrize(("n", "d"), [(200, 8), (60, 60), (40, 120)])
def test_the_share_of_shrinkage_is_that_of_scikit_learn(n: int, d: int) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(n, d)) * rng.uniform(0.2, 3, size=d)
    rows -= rows.mean(axis=0)
    expected = ledoit_wolf_shrinkage(rows, assume_centered=True)
    assert shrinkage_on_axes(principal_axes(rows)[1], d) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("n", "d"), [(300, 6), (80, 100)])
def test_lda_is_the_gaussian_model_with_the_shrunk_pooled_covariance(n: int, d: int) -> None:
    states, failed, groups = gaussian(n, d)
    means = np.stack([states[~failed].mean(axis=0), states[failed].mean(axis=0)])
    residuals = states - means[failed.astype(int)]
    scale = residuals.std(axis=0)
    covariance = LedoitWolf(assume_centered=True).fit(residuals / scale).covariance_ * np.outer(scale, scale)
    weight = np.linalg.solve(covariance, means[1] - means[0])
    logits = (states - means.mean(axis=0)) @ weight + np.log(failed.mean() / (1 - failed.mean()))
    probe = LDAFitter().fit(states, failed, groups).probe
    np.testing.assert_allclose(probe.score(states), expit(logits), rtol=1e-7)


def test_lda_nears_scikit_learns_with_many_rows() -> None:
    states, failed, groups = gaussian(20_000, 5)
    reference = LinearDiscriminantAnalysis(solver="lsqr").fit(states, failed).predict_proba(states)[:, 1]
    np.testing.assert_allclose(LDAFitter(folds=2).fit(states, failed, groups).probe.score(states), reference, atol=0.01)


def test_mass_mean_points_along_the_difference_of_means_and_is_calibrated_on_it() -> None:
    states, failed, groups = gaussian(400, 30)
    fitted = MassMeanFitter().fit(states, failed, groups)
    gap = states[failed].mean(axis=0) - states[~failed].mean(axis=0)
    assert cosine(direction(fitted.probe), gap) == pytest.approx(1, abs=1e-12)
    assert fitted.out_of_fold.mean() == pytest.approx(failed.mean(), abs=0.02)
    assert fitted.strength == 1


def test_the_whitened_mass_mean_is_lda_with_platts_calibration() -> None:
    states, failed, groups = gaussian(150, 80)
    lda = LDAFitter().fit(states, failed, groups)
    whitened = MassMeanFitter(whiten=True).fit(states, failed, groups)
    platt = Calibrated(LDAFitter(), "platt").fit(states, failed, groups)
    assert cosine(direction(lda.probe), direction(whitened.probe)) == pytest.approx(1, abs=1e-12)
    np.testing.assert_allclose(whitened.probe.score(states), platt.probe.score(states), rtol=1e-9)
    np.testing.assert_allclose(whitened.out_of_fold, platt.out_of_fold, rtol=1e-9)


def test_whitening_helps_where_noise_is_uneven_and_not_where_it_is_even() -> None:
    rng = np.random.default_rng(0)
    n, d = 400, 20
    failed = rng.random(n) < 0.5
    turn = np.linalg.qr(rng.normal(size=(d, d)))[0]
    groups = np.arange(n)
    gain = {}
    for name, spread in (("uneven", np.geomspace(8, 0.5, d)), ("even", np.ones(d))):
        states = (rng.normal(size=(n, d)) * spread + 0.35 * failed[:, None]) @ turn
        plain, whitened = (MassMeanFitter(whiten=w).fit(states, failed, groups).auroc for w in (False, True))
        gain[name] = whitened - plain
    assert gain["uneven"] > 0.1
    assert abs(gain["even"]) < 0.02


def test_balanced_classes_move_the_prior_and_not_the_direction() -> None:
    states, failed, groups = gaussian(300, 10)
    plain = LDAFitter().fit(states, failed, groups).probe
    balanced = LDAFitter(class_weight="balanced").fit(states, failed, groups).probe
    assert direction(balanced).tolist() == direction(plain).tolist()
    assert isinstance(plain, LinearProbe)
    assert isinstance(balanced, LinearProbe)
    assert plain.bias == pytest.approx(np.log(failed.sum() / (~failed).sum()))
    assert balanced.bias == 0
    with pytest.raises(UsageError, match="'balanced' or None"):
        LDAFitter(class_weight="equal").fit(states, failed, groups)  # type: ignore[arg-type]


def test_states_that_tell_nothing_score_the_overall_rate_in_every_fold() -> None:
    failed = np.arange(60) % 3 == 0
    for name in ("lda", "mass-mean", "mass-mean-whitened"):
        fitted = fitter_named(name).fit(np.full((60, 4), 0.1), failed, np.arange(60) // 5)
        assert np.ptp(fitted.out_of_fold) < 0.05
        assert fitted.probe.score(np.full((1, 4), 0.1))[0] == pytest.approx(1 / 3, abs=0.02)
    assert np.ptp(LDAFitter().fit(np.full((60, 4), 0.1), failed, np.arange(60) // 5).out_of_fold) == 0


def test_a_feature_without_spread_within_classes_keeps_scores_finite() -> None:
    states, failed, groups = gaussian(60, 3)
    perfect = np.hstack([states, failed[:, None].astype(float), np.zeros((60, 1))])
    for name in ("lda", "mass-mean", "mass-mean-whitened"):
        fitted = fitter_named(name).fit(perfect, failed, groups)
        assert np.isfinite(fitted.probe.score(perfect)).all()
    assert auroc(LDAFitter().fit(perfect[:, 3:], failed, groups).out_of_fold, failed) == 1


def test_standardising_first_weighs_features_by_their_spread() -> None:
    states, failed, groups = gaussian(300, 12)
    probe = MassMeanFitter(steps=(Standardise(),)).fit(states, failed, groups).probe
    gap = states[failed].mean(axis=0) - states[~failed].mean(axis=0)
    assert cosine(direction(probe), gap / states.var(axis=0)) == pytest.approx(1, abs=1e-12)


def test_data_without_an_answer_are_refused() -> None:
    states, failed, groups = gaussian(30, 3)
    for fitter in (LDAFitter(), MassMeanFitter()):
        with pytest.raises(DataError, match="at least one of each"):
            fitter.fit(states, np.ones(30), groups)
        with pytest.raises(DataError, match="NaN or infinity"):
            fitter.fit(np.full((30, 3), np.nan), failed, groups)
