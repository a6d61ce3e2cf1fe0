"""Batched logistic regression: the same models as scikit-learn's, and choices that never see a test fold."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from probecascade.errors import DataError, UsageError
from probecascade.probes import LogisticFitter, auroc, grouped_folds, newton
from probecascade.probes import batched as module
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


@pytest.mark.parametrize(("n", "d"), [(200, 24), (60, 150), (60, 60), (100, 1)])
@pytest.mark.parametrize("make", [plain, with_a_rare_class, with_heavy_tails])
def test_scores_are_those_of_scikit_learn(make: Any, n: int, d: int) -> None:
    assert_agreement(*make(n, d))


@pytest.mark.parametrize(("n", "d"), [(200, 24), (60, 100)])
@pytest.mark.parametrize("make", [with_constant_columns, with_doubled_columns, with_a_column_of_one_row])
def test_columns_without_information_are_no_trouble(make: Any, n: int, d: int) -> None:
    assert_agreement(*make(n, d))


def assert_agreement(rows: Array, failed: Any, groups: Any) -> None:
    folds = grouped_folds(failed, groups, 4, 0)
    scores = expit(held_out_logits(Design.of(rows), failed, folds, STRENGTHS))
    for strength, ours in zip(STRENGTHS, scores, strict=True):
        np.testing.assert_allclose(ours, by_scikit_learn(rows, failed, folds, strength), atol=1e-4, rtol=0)


def test_scores_that_are_nearly_alike_keep_their_order() -> None:
    """At tiny strengths all scores are near the base rate, and only differences from it rank them."""
    rows, failed, groups = episodes(120, 40)
    folds = grouped_folds(failed, groups, 4, 0)
    (ours,) = held_out_logits(Design.of(rows), failed, folds, (1e-7,))
    theirs = by_scikit_learn(rows, failed, folds, 1e-7)
    theirs = np.log(theirs / (1.0 - theirs))
    assert np.ptp(theirs) < 1e-3
    np.testing.assert_allclose(ours, theirs, atol=1e-3 * np.ptp(theirs), rtol=0)


@pytest.mark.parametrize("seed", range(5))
def test_states_that_are_all_the_same_rank_nothing(seed: int) -> None:
    _, failed, groups = episodes(101, 4, seed=seed)
    same = np.full((101, 4), (0.1, 0.0, -7.3, 1e5 / 3))
    found = sweep_layers(lambda layer: same, [0], failed, groups, folds=grouped_folds(failed, groups, 4, 0))
    assert len(np.unique(found.scores)) == 1
    assert found.train_auroc.tolist() == [[0.5] * 4]


def test_classes_that_separate_are_fitted_at_great_strengths() -> None:
    rows, failed, groups = episodes(120, 60, planted=8.0)
    folds = grouped_folds(failed, groups, 3, 0)
    (ours,) = expit(held_out_logits(Design.of(rows), failed, folds, (1e4,)))
    np.testing.assert_allclose(ours, by_scikit_learn(rows, failed, folds, 1e4), atol=1e-4, rtol=0)


def test_steps_that_overshoot_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four failures among many: from the base rate a whole Newton step moves logits by hundreds, then to and fro."""
    rng = np.random.default_rng(0)
    rows, failed = rng.normal(size=(800, 200)), np.zeros(800, dtype=bool)
    failed[:4] = True
    rows[:4] *= 3.0
    folds = grouped_folds(failed, np.arange(800), 4, 0)
    (ours,) = expit(held_out_logits(Design.of(rows), failed, folds, (0.01,)))
    np.testing.assert_allclose(ours, by_scikit_learn(rows, failed, folds, 0.01), atol=1e-4, rtol=0)
    left: list[int] = []
    monkeypatch.setattr(newton, "_solve_one_by_one", lambda problem, failed, logits, models: left.extend(models))
    held_out_logits(Design.of(rows), failed, folds, (0.01,))
    assert not left
    monkeypatch.setattr(newton, "_FAR", np.inf)
    held_out_logits(Design.of(rows), failed, folds, (0.01,))
    assert left


def test_without_nesting_it_chooses_and_scores_as_the_fitter_does() -> None:
    rows, failed, groups = episodes(150, 30)
    fitted = LogisticFitter(folds=4, seed=3).fit(rows, failed, groups)
    found = sweep_layers(
        lambda layer: rows, [7], failed, groups, folds=grouped_folds(failed, groups, 4, 3), inner_folds=None
    )
    assert found.chosen.tolist() == [[fitted.strength] * 4]
    np.testing.assert_allclose(found.scores[0], fitted.out_of_fold, atol=1e-5)
    assert np.isnan(found.train_auroc).all()


def test_nested_choices_are_those_of_the_fitter_on_the_training_rows() -> None:
    rows, failed, groups = episodes(150, 30)
    folds = grouped_folds(failed, groups, 4, 0)
    found = sweep_layers(lambda layer: rows, [0], failed, groups, folds=folds, inner_folds=3, seed=5)
    for fold, (train, test) in enumerate(folds):
        fitted = LogisticFitter(folds=3, seed=5).fit(rows[train], failed[train], groups[train])
        assert found.chosen[0, fold] == fitted.strength
        assert found.train_auroc[0, fold] == pytest.approx(fitted.auroc, abs=1e-3)
        own, overall = failed[train].mean(), failed.mean()
        shift = np.log(overall / (1 - overall)) - np.log(own / (1 - own))
        logits = np.log(fitted.probe.score(rows[test]) / (1 - fitted.probe.score(rows[test])))
        np.testing.assert_allclose(found.scores[0, test], expit(logits + shift), atol=1e-5)


def test_a_choice_inside_a_fold_never_sees_its_test_rows() -> None:
    """Test rows are spoilt and their labels mixed: only a choice on the folds themselves takes notice."""
    rows, failed, groups = episodes(200, 10, planted=3.0)
    folds = grouped_folds(failed, groups, 4, 0)
    _, test = folds[0]
    spoilt, mixed = rows.copy(), failed.copy()
    spoilt[test] = 50.0 * np.random.default_rng(1).normal(size=(len(test), 10))
    mixed[test] = np.random.default_rng(2).permutation(failed[test])

    def sweep(states: Array, labels: Any, inner: int | None) -> Any:
        return sweep_layers(lambda layer: states, [0], labels, groups, folds=folds, inner_folds=inner)

    clean, after = sweep(rows, failed, 3), sweep(spoilt, mixed, 3)
    assert after.chosen[0, 0] == clean.chosen[0, 0]
    assert after.train_auroc[0, 0] == pytest.approx(clean.train_auroc[0, 0], abs=1e-3)
    assert sweep(spoilt, mixed, None).chosen[0, 0] != sweep(rows, failed, None).chosen[0, 0]


def test_noise_stays_at_chance_when_layer_and_strength_are_chosen_inside() -> None:
    """The layer of the best out-of-fold AUROC is above chance, the one that train_auroc chooses is not."""
    nested, best = [], []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        layers = rng.normal(size=(6, 80, 8))
        failed, groups = rng.random(80) < 0.6, np.arange(80) // 2
        folds = grouped_folds(failed, groups, 4, seed)
        found = sweep_layers(
            lambda layer, layers=layers: layers[layer], range(6), failed, groups, folds=folds, strengths=STRENGTHS
        )
        scores = np.empty(80)
        for fold, (_, test) in enumerate(folds):
            scores[test] = found.scores[np.argmax(found.train_auroc[:, fold]), test]
        nested.append(auroc(scores, failed))
        best.append(max(auroc(of_layer, failed) for of_layer in found.scores))
    assert abs(np.mean(nested) - 0.5) < 3 * np.std(nested) / np.sqrt(30)
    assert np.mean(best) > 0.55


def test_a_planted_direction_is_found_in_its_layer() -> None:
    strengths = {3: 0.0, 8: 2.0, 9: 5.0}
    states = {layer: episodes(300, 40, planted=planted, seed=1) for layer, planted in strengths.items()}
    _, failed, groups = states[3]
    folds = grouped_folds(failed, groups, 5, 0)
    found = sweep_layers(lambda layer: states[layer][0], list(states), failed, groups, folds=folds)
    values = [auroc(scores, failed) for scores in found.scores]
    assert found.layers == (3, 8, 9)
    assert values[0] < 0.6 < values[1] < values[2]
    assert (found.train_auroc[2] > found.train_auroc[0] + 0.2).all()


def test_two_groups_of_a_class_leave_nothing_to_choose_by() -> None:
    rows, _, groups = episodes(60, 5)
    failed = np.isin(groups, (4, 20))
    folds = grouped_folds(failed, groups, 5, 0)
    found = sweep_layers(lambda layer: rows, [0], failed, groups, folds=folds, strengths=STRENGTHS)
    assert found.chosen.tolist() == [[STRENGTHS[0]] * 2]
    assert np.isnan(found.train_auroc).all()
    np.testing.assert_allclose(found.scores[0], by_scikit_learn(rows, failed, folds, STRENGTHS[0]), atol=1e-4)


def test_neither_threads_nor_slices_change_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = {layer: episodes(90, 20, seed=layer)[0] for layer in range(5)}
    _, failed, groups = episodes(90, 20)
    folds = grouped_folds(failed, groups, 4, 0)
    reading, reads = threading.Lock(), []

    def read(layer: int) -> Array:
        assert reading.acquire(blocking=False), "two threads read at a time"
        reads.append(layer)
        rows = layers[layer]
        reading.release()
        return rows

    alone = sweep_layers(read, list(layers), failed, groups, folds=folds)
    assert reads == list(layers)
    together = sweep_layers(read, list(layers), failed, groups, folds=folds, threads=3)
    assert sorted(reads[5:]) == list(layers)
    assert (together.scores == alone.scores).all()
    monkeypatch.setattr(module, "_AT_ONCE", 1)
    sliced = sweep_layers(read, list(layers), failed, groups, folds=folds)
    np.testing.assert_allclose(sliced.scores, alone.scores, atol=1e-5)
    assert (sliced.chosen == alone.chosen).all()


def test_a_layer_is_let_go_before_the_next_is_read() -> None:
    _, failed, groups = episodes(60, 10)
    held: list[weakref.ref[Array]] = []

    def read(layer: int) -> Array:
        assert all(of_layer() is None for of_layer in held)
        rows = episodes(60, 10, seed=layer)[0]
        held.append(weakref.ref(rows))
        return rows

    sweep_layers(read, range(4), failed, groups, folds=grouped_folds(failed, groups, 3, 0), strengths=STRENGTHS)
    assert len(held) == 4


@pytest.mark.parametrize(("n", "d"), [(90, 30), (60, 120)])
def test_fits_that_steps_do_not_bring_to_rest_are_solved_one_by_one(
    monkeypatch: pytest.MonkeyPatch, n: int, d: int
) -> None:
    rows, failed, groups = with_a_column_of_one_row(n, d)
    folds = grouped_folds(failed, groups, 4, 0)
    usual = held_out_logits(Design.of(rows), failed, folds, (1e-3, 0.1, 1.0))
    monkeypatch.setattr(newton, "_MOST_NEWTON", 1)
    alone = held_out_logits(Design.of(rows), failed, folds, (1e-3, 0.1, 1.0))
    assert not np.array_equal(alone, usual)
    np.testing.assert_allclose(expit(alone), expit(usual), atol=1e-4)


@pytest.mark.parametrize(
    ("changed", "error", "match"),
    [
        ({"strengths": ()}, UsageError, "give one or more positive"),
        ({"strengths": (1.0, -1.0)}, UsageError, "give one or more positive"),
        ({"threads": 0}, UsageError, "0 threads"),
        ({"folds": []}, DataError, "make them with grouped_folds"),
        ({"folds": [(np.arange(60), np.arange(60))]}, DataError, "make them with grouped_folds"),
        ({"failed": np.ones(60, dtype=bool)}, DataError, "at least one of each"),
        ({"read": lambda layer: np.zeros((59, 4))}, DataError, "Layer 3 has 59 rows for 60 labels"),
        ({"read": lambda layer: np.full((60, 4), np.nan)}, DataError, "60 of 60 states of layer 3 hold NaN"),
    ],
)
def test_bad_input_is_refused(changed: dict[str, Any], error: type[Exception], match: str) -> None:
    rows, failed, groups = episodes(60, 4)
    given: dict[str, Any] = {"read": lambda layer: rows, "failed": failed, "folds": grouped_folds(failed, groups, 3, 0)}
    given |= changed
    with pytest.raises(error, match=match):
        sweep_layers(given.pop("read"), [3], given.pop("failed"), groups, **given)
