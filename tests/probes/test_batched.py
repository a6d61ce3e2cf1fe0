"""Batched logistic regression: the same models as scikit-learn's, and choices that never see a test fold."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from probecascade.errors import DataError, UsageError
from probecascade.probes import LogisticFitter, auroc, grouped_folds
from probecascade.probes import batched as module
from probecascade.probes import newton
from probecascade.probes.batched import held_out_logits, sweep_layers
from probecascade.probes.crossval import Fold
from probecascade.probes.design import Design

Array = NDArray[np.float64]
STRENGTHS = (1e-4, 1e-2, 1.0)


def episodes(n: int, d: int, *, planted: float = 1.0, seed: int = 0, share: float = 0.6) -> tuple[Array, Any, Any]:
    """States whose axes have falling variance, labels that some axes lean on, two episodes a group."""
    rng = np.random.default_rng(seed)
    failed = rng.random(n) < share
    axes = rng.normal(size=(n, d)) / np.sqrt(np.arange(1, d + 1))
    axes[:, : max(1, d // 4)] += planted * 0.3 * (failed[:, None] - 0.5)
    turn, _ = np.linalg.qr(rng.normal(size=(d, d)))
    return 3.0 * axes @ turn + rng.normal(size=d), failed, np.arange(n) // 2


def by_scikit_learn(rows: Array, failed: Any, folds: list[Fold], strength: float) -> Array:
    """Out-of-fold P(failure) with each fold's bias moved to the overall log-odds."""
    scores = np.empty(len(rows))
    for train, test in folds:
        scaler = StandardScaler().fit(rows[train])
        model = LogisticRegression(C=strength, tol=1e-10, max_iter=100_000)
        model.fit(scaler.transform(rows[train]), failed[train])
        rate, own = failed.mean(), failed[train].mean()
        shift = np.log(rate / (1 - rate)) - np.log(own / (1 - own))
        scores[test] = expit(model.decision_function(scaler.transform(rows[test])) + shift)
    return scores


def plain(n: int, d: int) -> tuple[Array, Any, Any]:
    return episodes(n, d)


def with_constant_columns(n: int, d: int) -> tuple[Array, Any, Any]:
    rows, failed, groups = episodes(n, d)
    rows[:, 0], rows[:, 1] = 1e5 / 3, 0.0
    return rows, failed, groups


def with_doubled_columns(n: int, d: int) -> tuple[Array, Any, Any]:
    rows, failed, groups = episodes(n, d)
    rows[:, d // 2 :] = rows[:, : d - d // 2]
    return rows, failed, groups


def with_a_column_of_one_row(n: int, d: int) -> tuple[Array, Any, Any]:
    """It is constant in the training rows of the fold that tests that row, and nearly so with another one."""
    rows, failed, groups = episodes(n, d)
    rows[:, 0], rows[:, 1] = 2.5, 4.0 + 1e-5 * rows[:, 0]
    rows[3, 0], rows[4, 1] = 7.0, 1e4
    return rows, failed, groups


def with_a_rare_class(n: int, d: int) -> tuple[Array, Any, Any]:
    rows, _, groups = episodes(n, d)
    return rows, np.arange(n) % (n // 3) == 0, groups


def with_heavy_tails(n: int, d: int) -> tuple[Array, Any, Any]:
    rows, failed, groups = episodes(n, d)
    return np.sign(rows) * rows**4, failed, groups


@pytest.mark.parametrize(("n", "d"), [(240, 24), (60, 150), (90, 90), (200, 1)])
@pytest.mark.parametrize("make", [plain, with_a_rare_class, with_heavy_tails])
def test_scores_are_those_of_scikit_learn(make: Any, n: int, d: int) -> None:
    assert_agreement(*make(n, d))


@pytest.mark.parametrize(("n", "d"), [(240, 24), (60, 150)])
@pytest.mark.parametrize("make", [with_constant_columns, with_doubled_columns, with_a_column_of_one_row])
def test_columns_without_information_are_no_trouble(make: Any, n: int, d: int) -> None:
    assert_agreement(*make(n, d))


def assert_agreement(rows: Array, failed: Any, groups: Any) -> None:
    folds = grouped_folds(failed, groups, 4, 0)
    scores = expit(held_out_logits(Design.of(rows), failed, folds, STRENGTHS))
    for strength, ours in zip(STRENGTHS, scores, strict=True):
        np.testing.assert_allclose(ours, by_scikit_learn(rows, failed, folds, strength), atol=1e-4, rtol=0)


def test_classes_that_separate_are_fitted_at_great_strengths() -> None:
    rows, failed, groups = episodes(120, 60, planted=8.0)
    folds = grouped_folds(failed, groups, 3, 0)
    (ours,) = expit(held_out_logits(Design.of(rows), failed, folds, (1e4,)))
    np.testing.assert_allclose(ours, by_scikit_learn(rows, failed, folds, 1e4), atol=1e-4, rtol=0)
