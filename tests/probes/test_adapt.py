"""Frozen probes moved to new rows: what each way computes, and through which kinds of probes it reaches."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from probecascade.errors import DataError
from probecascade.probes import LinearProbe, Shown
from probecascade.probes import adapt as module
from probecascade.probes.adapt import PRIOR, recentred, refitted, rescored
from probecascade.probes.calibrated import CalibratedProbe, Platt
from probecascade.probes.piped import PipedProbe
from probecascade.probes.steps import LayerNorm

WIDTH = 6
RNG = np.random.default_rng(0)
PROBE = LinearProbe(RNG.normal(size=WIDTH), np.exp(RNG.normal(size=WIDTH)), RNG.normal(size=WIDTH), -0.4)


def shown(rows: np.ndarray) -> Shown:
    return Shown(states=rows, signals=np.zeros((len(rows), 9), np.float32))


def labelled(n: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    rows = rng.normal(loc=2, scale=3, size=(n, WIDTH))
    return rows, rng.random(n) < expit(rows[:, 0] - 2)


def test_mean_and_variance_are_weighted_by_rows_and_prior() -> None:
    rows, _ = labelled(60)
    new = recentred(PROBE, shown(rows))
    assert isinstance(new, LinearProbe)
    share = 60 / (60 + PRIOR)
    np.testing.assert_allclose(new.mean, share * rows.mean(axis=0) + (1 - share) * PROBE.mean, rtol=1e-12)
    np.testing.assert_allclose(new.scale**2, share * rows.var(axis=0) + (1 - share) * PROBE.scale**2, rtol=1e-12)
    np.testing.assert_array_equal(new.weight, PROBE.weight)
    assert new.bias == PROBE.bias


def test_with_many_rows_a_shift_and_a_stretch_leave_no_trace() -> None:
    rows, _ = labelled(20_000)
    stretch, shift = np.exp(RNG.normal(size=WIDTH)), RNG.normal(size=WIDTH)
    at_home = recentred(PROBE, shown(rows)).score(rows)
    abroad = recentred(PROBE, shown(rows * stretch + shift)).score(rows * stretch + shift)
    np.testing.assert_allclose(abroad, at_home, atol=0.02)
    assert np.abs(PROBE.score(rows * stretch + shift) - PROBE.score(rows)).max() > 0.3


def test_a_feature_that_is_constant_in_the_new_rows_keeps_its_scale() -> None:
    rows, _ = labelled(60)
    rows[:, 2] = 5.0
    new = recentred(PROBE, shown(rows))
    assert isinstance(new, LinearProbe)
    assert new.scale[2] == PROBE.scale[2]


def test_slope_and_bias_are_found_and_the_slope_stays_positive() -> None:
    rng = np.random.default_rng(3)
    logits = rng.normal(scale=2, size=20_000)
    failed = rng.random(len(logits)) < expit(0.5 * logits - 1)
    flat = CalibratedProbe(PROBE, Platt(1.0, 0.0))  # any probe that is not linear itself
    new = rescored(flat, expit(logits), failed)
    assert isinstance(new, CalibratedProbe)
    assert isinstance(new.map, Platt)
    assert new.map.slope == pytest.approx(0.5, abs=0.05)
    assert new.map.intercept == pytest.approx(-1, abs=0.08)
    against = rescored(PROBE, expit(logits), ~(logits > 0))  # the labels say the opposite of the scores
    assert isinstance(against, LinearProbe)
    assert 0 < against.weight[0] / PROBE.weight[0] < 0.01


def test_two_rows_move_a_score_and_do_not_make_it_certain() -> None:
    new = rescored(PROBE, np.array([0.3, 0.7]), np.array([False, True]))
    assert isinstance(new, LinearProbe)
    assert 1 < new.weight[0] / PROBE.weight[0] < 3
    with pytest.raises(DataError, match="at least one of each"):
        rescored(PROBE, np.array([0.3, 0.7]), np.array([True, True]))


def test_the_ridge_towards_nothing_is_scikit_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, failed = labelled(300)
    start = recentred(LinearProbe(np.zeros(WIDTH), np.ones(WIDTH), np.zeros(WIDTH), 0.0), shown(rows))
    assert isinstance(start, LinearProbe)
    monkeypatch.setattr(module, "STRENGTHS", (0.01,))
    ours = refitted(LinearProbe(np.zeros(WIDTH), np.ones(WIDTH), np.zeros(WIDTH), 0.0), shown(rows), failed, range(300))
    assert isinstance(ours, LinearProbe)
    theirs = LogisticRegression(C=0.01, tol=1e-8).fit((rows - start.mean) / start.scale, failed)
    np.testing.assert_allclose(ours.weight, theirs.coef_[0], atol=2e-4)
    assert ours.bias == pytest.approx(theirs.intercept_[0], abs=2e-4)


def test_noise_teaches_no_direction_and_signal_does() -> None:
    rows, failed = labelled(400)
    noise = np.random.default_rng(5).random(400) < 0.5
    still = refitted(PROBE, shown(rows), noise, range(400))
    turned = refitted(PROBE, shown(rows), failed, range(400))
    assert isinstance(still, LinearProbe)
    assert isinstance(turned, LinearProbe)
    fresh, truth = labelled(2000, seed=9)
    old = ((PROBE.score(fresh) > 0.5) == truth).mean()
    assert ((turned.score(fresh) > 0.5) == truth).mean() > max(old, 0.8)
    for values in (still, turned):
        assert values.weight.shape == PROBE.weight.shape
        assert not values.weight.flags.writeable


def test_it_reaches_the_linear_part_of_composed_probes() -> None:
    rows, failed = labelled(60)
    inside = recentred(PROBE, shown(rows))
    wrapped = recentred(CalibratedProbe(PROBE, Platt(2.0, 0.1)), shown(rows))
    assert isinstance(wrapped, CalibratedProbe)
    np.testing.assert_array_equal(wrapped.probe.score(rows), inside.score(rows))
    assert wrapped.map == Platt(2.0, 0.1)
    norm = LayerNorm()
    piped = recentred(PipedProbe((norm,), PROBE), shown(rows))
    assert isinstance(piped, PipedProbe)
    normed = norm.apply(rows)
    np.testing.assert_array_equal(piped.score(rows), recentred(PROBE, shown(normed)).score(normed))
    for new in (wrapped, piped, refitted(PipedProbe((norm,), PROBE), shown(rows), failed, range(60))):
        alone = np.concatenate([new.score(row[None]) for row in rows])
        np.testing.assert_array_equal(new.score(rows), alone)
    with pytest.raises(DataError, match="no new episode comes"):
        recentred(PROBE, shown(rows[:0]))
