from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from probecascade.errors import DataError, UsageError
from probecascade.probes import LinearProbe, LogisticFitter, auroc, choose_layer, grouped_folds
from probecascade.probes.solver import logistic_path

Rows = NDArray[np.float64]
Labels = NDArray[np.bool_]


def planted(n: int, d: int, strength: float = 2.0, seed: int = 0) -> tuple[Rows, Labels, NDArray[np.int64]]:
    """Correlated states of uneven scale whose first direction tells failures apart; groups of two."""
    rng = np.random.default_rng(seed)
    latent = rng.normal(size=(n, d)) * np.arange(1, d + 1) ** -0.5
    failed = rng.random(n) < 1 / (1 + np.exp(-strength * latent[:, 0]))
    states = latent @ np.linalg.qr(rng.normal(size=(d, d)))[0] * rng.uniform(0.1, 20, size=d) + rng.normal(size=d)
    return states, failed, np.arange(n) // 2


@pytest.mark.parametrize(("n", "d"), [(120, 200), (300, 40), (60, 60)])
@pytest.mark.parametrize("strength", [1e-4, 1e-2, 1.0])
def test_it_equals_standard_scaler_and_logistic_regression(n: int, d: int, strength: float) -> None:
    states, failed, groups = planted(n, d)
    probe = LogisticFitter(strengths=(strength,)).fit(states, failed, groups).probe
    scaler = StandardScaler().fit(states)
    reference = LogisticRegression(C=strength, solver="newton-cholesky", tol=1e-10, max_iter=1000)
    reference.fit(scaler.transform(states), failed)
    largest = np.abs(reference.coef_).max()
    np.testing.assert_allclose(probe.weight, reference.coef_[0], atol=1e-4 * largest)
    np.testing.assert_allclose(probe.bias, reference.intercept_[0], atol=1e-4)
    np.testing.assert_allclose(probe.score(states), reference.predict_proba(scaler.transform(states))[:, 1], atol=1e-5)


@pytest.mark.parametrize(("n", "d"), [(60, 90), (200, 20)])
@pytest.mark.parametrize("l1_ratio", [0.0, 0.3, 1.0])
def test_elastic_net_and_class_weights_equal_scikit_learns(n: int, d: int, l1_ratio: float) -> None:
    states, failed, groups = planted(n, d)
    failed &= np.arange(n) % 3 > 0
    for class_weight, strength in ((None, 0.03), ("balanced", 0.3)):
        fitter = LogisticFitter((strength,), l1_ratio=l1_ratio, class_weight=class_weight)  # type: ignore[arg-type]
        probe = fitter.fit(states, failed, groups).probe
        assert isinstance(probe, LinearProbe)
        features = StandardScaler().fit_transform(states)
        reference = LogisticRegression(
            C=strength, l1_ratio=l1_ratio, solver="saga", tol=1e-9, max_iter=100_000, class_weight=class_weight
        ).fit(features, failed)
        np.testing.assert_allclose(probe.weight, reference.coef_[0], atol=2e-4)
        expected = reference.predict_proba(features)[:, 1]
        if not probe.weight.any():  # saga stops before its intercept has settled
            expected = np.full(n, 0.5 if class_weight else failed.mean())
        np.testing.assert_allclose(probe.score(states), expected, atol=2e-4)
        if l1_ratio:
            np.testing.assert_array_equal(probe.weight == 0, np.abs(reference.coef_[0]) < 1e-5)


def test_an_l1_ratio_outside_its_range_is_refused() -> None:
    states, failed, groups = planted(40, 3)
    with pytest.raises(UsageError, match="share in"):
        LogisticFitter(l1_ratio=1.5).fit(states, failed, groups)


def test_the_path_meets_the_optimality_condition_at_every_strength() -> None:
    states, failed, _ = planted(80, 150)
    features = (states - states.mean(axis=0)) / states.std(axis=0)
    strengths = (1e-5, 1e-3, 1e-1, 10.0, 1e3)
    weights, biases = logistic_path(features, failed, strengths)
    for k, strength in enumerate(strengths):
        residual = failed - 1 / (1 + np.exp(-(features @ weights[:, k] + biases[k])))
        scale = np.abs(weights[:, k]).max()
        np.testing.assert_allclose(weights[:, k], strength * features.T @ residual, atol=1e-3 * scale)
        assert abs(residual.sum()) < 1e-4


def test_a_search_that_does_not_converge_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    states, failed, groups = planted(80, 150)
    monkeypatch.setattr("probecascade.probes.solver._MOST_STEPS", 1)
    with pytest.raises(DataError, match="strength 1 did not converge"):
        LogisticFitter(strengths=(1.0,)).fit(states, failed, groups)


def test_out_of_fold_scores_come_from_models_that_never_saw_the_group() -> None:
    states, failed, groups = planted(200, 20)
    fitted = LogisticFitter(strengths=(0.01,)).fit(states, failed, groups)
    overall = np.log(failed.mean() / (1 - failed.mean()))
    for train, test in grouped_folds(failed, groups, 5, 0):
        scaler = StandardScaler().fit(states[train])
        reference = LogisticRegression(C=0.01, tol=1e-10).fit(scaler.transform(states[train]), failed[train])
        shift = overall - np.log(failed[train].mean() / (1 - failed[train].mean()))
        logits = reference.decision_function(scaler.transform(states[test])) + shift
        np.testing.assert_allclose(fitted.out_of_fold[test], 1 / (1 + np.exp(-logits)), atol=1e-4)
    assert fitted.auroc == auroc(fitted.out_of_fold, failed)
    assert fitted.folds == 5


def test_the_strength_has_the_least_held_out_log_loss() -> None:
    states, failed, groups = planted(150, 60)
    strengths = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)

    def loss(strength: float) -> float:
        scores = LogisticFitter(strengths=(strength,)).fit(states, failed, groups).out_of_fold
        return float(-np.log(np.where(failed, scores, 1 - scores)).mean())

    fitted = LogisticFitter(strengths=strengths[::-1]).fit(states, failed, groups)
    assert fitted.strength == min(strengths, key=loss)
    assert strengths[0] < fitted.strength < strengths[-1]


def test_a_planted_direction_is_found_and_shuffled_labels_give_chance() -> None:
    states, failed, groups = planted(300, 100, strength=3.0)
    assert LogisticFitter().fit(states, failed, groups).auroc > 0.8
    rng = np.random.default_rng(0)
    fitter = LogisticFitter(strengths=(1e-4, 1e-2))
    chance = [fitter.fit(states, rng.permutation(failed), np.arange(300)).auroc for _ in range(12)]
    assert abs(np.mean(chance) - 0.5) < 0.03
    # The untreated case: scored on the very rows it was fitted on, noise looks like knowledge.
    shuffled = rng.permutation(failed)
    assert auroc(fitter.fit(states, shuffled, np.arange(300)).probe.score(states), shuffled) > 0.6


def test_groups_that_share_a_state_do_not_leak() -> None:
    """Labels are drawn per group and states identify the group: only a split that tears groups could tell."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(50), 6)
    states = rng.normal(size=(50, 80))[groups] + 0.01 * rng.normal(size=(300, 80))
    failed = np.repeat(rng.permutation(np.arange(50) % 2 == 0), 6)
    assert abs(LogisticFitter().fit(states, failed, groups).auroc - 0.5) < 0.15
    assert LogisticFitter().fit(states, failed, np.arange(300)).auroc > 0.95


def test_folds_of_uneven_failure_rates_do_not_push_the_auroc_below_chance() -> None:
    """Without the prior correction an uninformative state scores far below .5 here."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(8), 25)
    failed = rng.random(200) < np.repeat(rng.uniform(0.1, 0.9, size=8), 25)
    fitted = LogisticFitter(strengths=(1e-5,)).fit(np.full((200, 3), 0.1), failed, groups)
    assert np.ptp(fitted.out_of_fold) == 0
    assert fitted.auroc == 0.5
    uncorrected = np.empty(200)
    for train, test in grouped_folds(failed, groups, 5, 0):
        uncorrected[test] = failed[train].mean()
    assert auroc(uncorrected, failed) < 0.4


def test_constant_features_take_no_part() -> None:
    states, failed, groups = planted(100, 10)
    constant = np.hstack([states, np.full((100, 1), 0.1), np.zeros((100, 1))])
    with_constants = LogisticFitter().fit(constant, failed, groups).probe
    without = LogisticFitter().fit(states, failed, groups).probe
    assert with_constants.scale[10:].tolist() == [1.0, 1.0]
    assert with_constants.weight[10:].tolist() == [0.0, 0.0]
    np.testing.assert_allclose(with_constants.score(constant), without.score(states), atol=1e-6)


def test_three_failures_of_three_hundred_use_three_folds_and_give_probabilities() -> None:
    states, _, _ = planted(300, 10)
    failed = np.zeros(300, dtype=bool)
    failed[[5, 150, 280]] = True
    fitted = LogisticFitter().fit(states, failed, np.arange(300))
    assert fitted.folds == 3
    assert (fitted.out_of_fold > 0).all()
    assert fitted.probe.score(states).mean() == pytest.approx(0.01, abs=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"failed": np.zeros(20, dtype=bool)}, "0 failed and 20 successful"),
        ({"failed": np.ones(20, dtype=bool)}, "20 failed and 0 successful"),
        (
            {"failed": np.arange(20) < 3, "groups": np.repeat([0, 1, 2, 3], [3, 5, 6, 6])},
            "1 groups hold a failed",
        ),
        ({"failed": np.zeros(19, dtype=bool)}, "Labels have shape"),
        ({"groups": np.arange(19)}, "Groups have shape"),
        ({"X": np.full((20, 4), np.nan)}, "20 of 20 states hold NaN"),
        ({"X": np.zeros(20)}, r"shape \(20,\)"),
        ({"X": np.zeros((0, 4)), "failed": np.zeros(0), "groups": np.zeros(0)}, "0 failed and 0 successful"),
    ],
)
def test_data_that_admit_no_fit_are_refused(change: dict[str, Any], message: str) -> None:
    rng = np.random.default_rng(0)
    sound: dict[str, Any] = {
        "X": rng.normal(size=(20, 4)),
        "failed": np.arange(20) % 2,
        "groups": np.arange(20),
    }
    LogisticFitter().fit(**sound)
    with pytest.raises(DataError, match=message):
        LogisticFitter().fit(**sound | change)


@pytest.mark.parametrize("strengths", [(), (0.0, 1.0), (-1.0,), (float("inf"),)])
def test_strengths_that_are_not_positive_are_refused(strengths: tuple[float, ...]) -> None:
    states, failed, groups = planted(40, 3)
    with pytest.raises(UsageError, match="positive finite"):
        LogisticFitter(strengths=strengths).fit(states, failed, groups)


def test_the_layer_that_knows_is_chosen_and_each_is_read_once() -> None:
    told, failed, groups = planted(200, 30, strength=3.0)
    noise = np.random.default_rng(5).normal(size=(3, 200, 30))
    layers: dict[int, Rows] = {4: noise[0], 8: told, 12: told, 16: noise[1]}
    read: list[int] = []

    def read_layer(layer: int) -> Rows:
        read.append(layer)
        return layers[layer]

    fitter = LogisticFitter()
    choice = choose_layer(read_layer, [16, 12, 8, 4], failed, groups, fitter)
    assert choice.layer == 8  # 12 ties with it exactly, and is later
    assert sorted(read) == [4, 8, 12, 16]
    assert choice.table[8] == choice.table[12] == choice.fitted.auroc > max(choice.table[4], choice.table[16])
    alone = fitter.fit(told, failed, groups)
    assert choice.fitted.probe.score(told).tobytes() == alone.probe.score(told).tobytes()


@pytest.mark.parametrize("layers", [[], [3, 3]])
def test_no_or_repeated_layers_are_refused(layers: list[int]) -> None:
    states, failed, groups = planted(40, 3)
    with pytest.raises(DataError, match="distinct layers"):
        choose_layer(lambda _: states, layers, failed, groups, LogisticFitter())
