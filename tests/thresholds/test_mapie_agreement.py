"""The single-gate keep promise against MAPIE's binary risk control, an independent implementation of Learn then Test.

MAPIE calls an episode positive where its score >= λ, for every λ of a grid that is fixed beforehand. With "failed" as
the positive class its false positive rate is the share of the successes that are aborted, so "false positive rate at
most 1 - keep" is our keep promise; recall of the success class, with the score turned round, is the same once more.

For k aborted among n successes its p-value is the smaller of Hoeffding's bound and the binomial tail, both at the count
ceil(n * (k / n)). For a loss that is 0 or 1 Hoeffding's bound is never below the tail, so the p-value is our exact
binomial sum wherever n * (k / n) rounds to k, and that of k + 1 where it rounds to a little more: there alone MAPIE may
stop one score earlier. Recall turned into a loss is 1 - (1 - k / n), which rounds up more often.

A fixed sequence from cautious to eager stops at the first λ that fails, like our order statistic. Where the grid
holds every point at which the successes' scores step, both must choose the same region; on any other grid, and under
Holm's correction, MAPIE's region lies inside ours.
"""

from __future__ import annotations

import numpy as np
import pytest
from mapie.risk_control import BinaryClassificationController
from numpy.typing import NDArray
from scipy.stats import binom

from probecascade.thresholds import calibrate

Floats = NDArray[np.float64]
CELLS = [
    (60, 0.8, 0.9),
    (60, 0.9, 0.9),
    *((n, keep, confidence) for n in (150, 400) for keep in (0.8, 0.9, 0.95) for confidence in (0.9, 0.95)),
]


def episodes(n: int, seed: int, distinct: int = 256) -> tuple[Floats, NDArray[np.bool_]]:
    """Scores in (0, 1) on a grid that floats hold exactly, with ties."""
    rng = np.random.default_rng(seed)
    failed = rng.random(n) < 0.4
    raw = 1.0 / (1.0 + np.exp(-rng.normal(size=n) - 1.5 * failed))
    return np.clip(np.round(raw * distinct), 1, distinct - 1) / distinct, failed


def ours(scores: Floats, failed: NDArray[np.bool_], keep: float, confidence: float) -> float:
    """The certified threshold when every success certifies, because other episodes teach."""
    known, labels = episodes(200, seed=99)
    result = calibrate(scores[:, None], failed, keep=keep, confidence=confidence, teachers=(known[:, None], labels))
    assert result.certified
    assert result.seen.caught_count > 0
    return float(result.thresholds[0])


def probabilities(scores: Floats) -> Floats:
    return np.stack([1.0 - scores, scores], axis=1)


def controller(risk: str, level: float, confidence: float, grid: Floats, method: str) -> BinaryClassificationController:
    return BinaryClassificationController(
        probabilities,
        risk=risk,
        target_level=level,
        confidence_level=confidence,
        list_predict_params=grid,
        fwer_method=method,
    )


def steps(scores: Floats) -> Floats:
    """The lowest thresholds, rising, that spare each of these scores and all below."""
    return np.nextafter(np.unique(scores), np.inf)


def losses(scores: Floats, failed: NDArray[np.bool_], grid: Floats) -> NDArray[np.int64]:
    return np.greater_equal(scores[~failed, None], grid).sum(axis=0)


@pytest.mark.parametrize(("n", "keep", "confidence"), CELLS)
def test_false_positive_rate_control_chooses_the_same_region(n: int, keep: float, confidence: float) -> None:
    scores, failed = episodes(n, seed=n)
    grid = steps(scores[~failed])
    risk = controller("fpr", round(1 - keep, 2), confidence, grid, "fixed_sequence").calibrate(
        scores, failed.astype(int)
    )
    counts, m = losses(scores, failed, grid), int((~failed).sum())
    exact = binom.cdf(counts, m, round(1 - keep, 2))
    rounds_up = np.ceil(m * (counts / m)) > counts
    np.testing.assert_allclose(risk.p_values[~rounds_up, 0], exact[~rounds_up], rtol=1e-9)
    assert (risk.p_values[:, 0] >= exact * (1 - 1e-9)).all()

    threshold = ours(scores, failed, keep, confidence)
    theirs = float(risk.valid_predict_params.min())
    assert theirs >= threshold or not np.any((scores >= theirs) & (scores < threshold))
    if not rounds_up[grid >= min(theirs, threshold)].any():
        np.testing.assert_array_equal(scores >= theirs, scores >= threshold)


def test_the_cells_agree_in_earnest() -> None:
    """In all but a few cells no rounding interferes, so that the equality above is tested and not skipped."""
    clean = 0
    for n, keep, confidence in CELLS:
        scores, failed = episodes(n, seed=n)
        threshold = ours(scores, failed, keep, confidence)
        grid = steps(scores[~failed])
        counts, m = losses(scores, failed, grid[grid >= threshold]), int((~failed).sum())
        clean += not (np.ceil(m * (counts / m)) > counts).any()
    assert clean >= 0.8 * len(CELLS)


@pytest.mark.parametrize(("n", "keep", "confidence"), CELLS)
def test_recall_of_the_success_class_is_the_same_promise(n: int, keep: float, confidence: float) -> None:
    """Kept where 1 - score >= λ: with λ = 1 - s it aborts what scores above s. Never outside our region."""
    scores, failed = episodes(n, seed=n)
    grid = np.unique(1.0 - scores[~failed])
    risk = controller("recall", keep, confidence, grid, "fixed_sequence").calibrate(1.0 - scores, (~failed).astype(int))
    aborted = 1.0 - scores < risk.valid_predict_params.max()
    fires = scores >= ours(scores, failed, keep, confidence)
    assert not (aborted & ~fires).any()
    assert np.unique(scores[fires & ~aborted & ~failed]).size <= 1


def test_neither_certifies_too_few_successes() -> None:
    scores, failed = episodes(60, seed=60)
    assert int((~failed).sum()) < 59
    assert not calibrate(scores[:, None], failed, keep=0.95, method="single").certified
    risk = controller("fpr", 0.05, 0.95, steps(scores[~failed]), "fixed_sequence")
    with pytest.warns(UserWarning, match="No predict parameters were found"):
        risk.calibrate(scores, failed.astype(int))


@pytest.mark.parametrize(("n", "keep", "confidence"), CELLS)
def test_its_default_grid_and_correction_stay_inside_our_region(n: int, keep: float, confidence: float) -> None:
    scores, failed = episodes(n, seed=n)
    coarse = np.linspace(0, 0.99, 100)
    for method in ("bonferroni_holm", "fixed_sequence"):
        p_values = binom.cdf(losses(scores, failed, coarse), int((~failed).sum()), round(1 - keep, 2))
        if p_values.min() > (1 - confidence) / 100:
            continue
        risk = controller("fpr", round(1 - keep, 2), confidence, coarse, method).calibrate(scores, failed.astype(int))
        outside = (scores >= risk.valid_predict_params.min()) & (scores < ours(scores, failed, keep, confidence))
        assert not outside[~failed].any()
