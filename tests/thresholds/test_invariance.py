"""What must not matter does not: the order of the episodes, the scale of a rank, the seed; and regions are nested."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probecascade.thresholds import METHODS, OFF, Calibration, calibrate, firing

NAN = float("nan")
Floats = NDArray[np.float64]
Arrays = dict[str, Any]
BOTH = {"keep": 0.7, "catch": {1: 0.3, 2: 0.5}}
KEEP = {"keep": 0.8}
CATCH = {"catch": {0: 0.2, 2: 0.5}}


def episodes(n: int, seed: int, *, gates: int = 3, sixteenths: bool = True) -> Arrays:
    """Scores with ties, zeros of both signs and unreached gates; groups of four; costs with ties."""
    rng = np.random.default_rng(seed)
    failed = rng.random(n) < 0.5
    scores = rng.normal(size=(n, gates)) + 1.5 * failed[:, None]
    if sixteenths:
        scores = np.round(scores * 16) / 16
    scores[rng.random((n, gates)) < 0.15] = NAN
    scores[rng.random((n, gates)) < 0.05] = 0.0
    scores = np.where((scores == 0) & (rng.random((n, gates)) < 0.5), -0.0, scores)
    costs = np.sort(rng.integers(0, 20, (n, gates)), axis=1)[:, ::-1].astype(np.float64)
    return {"scores": scores, "failed": failed, "cost_after": np.where(np.isnan(scores), NAN, costs)}


def with_groups(arrays: Arrays) -> Arrays:
    n = len(arrays["failed"])
    return {**arrays, "groups": [f"task {i // 4}" for i in range(n)], "ids": [f"run {i}" for i in range(n)]}


def taught(seed: int, n: int = 60) -> tuple[Any, ...]:
    known = with_groups(episodes(n, seed))
    return known["scores"], known["failed"], known["cost_after"], [f"taught {name}" for name in known["groups"]]


def permuted(arrays: Arrays, order: NDArray[np.intp]) -> Arrays:
    return {name: np.asarray(values)[order] for name, values in arrays.items()}


SETTINGS = [
    *((method, unit, KEEP) for method in METHODS for unit in ("episode", "group")),
    *(
        (method, unit, t)
        for method in ("certified", "empirical")
        for unit in ("episode", "group")
        for t in (CATCH, BOTH)
    ),
]


@pytest.mark.parametrize("grouped", [False, True], ids=["alone", "groups"])
@pytest.mark.parametrize(("method", "unit", "targets"), SETTINGS)
def test_the_order_of_the_episodes_changes_no_bit(method: str, unit: Any, targets: Arrays, grouped: bool) -> None:
    arrays = episodes(72, seed=4)
    if grouped:
        arrays = with_groups(arrays)
    settings: Arrays = {"method": method, "unit": unit, "confidence": 0.7, **targets}
    first = calibrate(**arrays, **settings)
    rng = np.random.default_rng(5)
    for order in (np.arange(72)[::-1], rng.permutation(72)):
        assert_same(calibrate(**permuted(arrays, order), **settings), first)


@pytest.mark.parametrize("method", ["certified", "empirical"])
def test_nor_does_it_choose_between_the_two_zeros(method: str) -> None:
    """The threshold is a doomed episode's score, here a zero whose sign must not tell who came first."""
    scores = np.array([[-0.0], [0.0]] * 20 + [[-1.0]] * 20)
    failed = np.arange(60) < 40
    found = [
        calibrate(scores[order], failed[order], catch={0: 0.6}, confidence=0.8, method=method).thresholds
        for order in (np.arange(60), np.arange(60)[::-1])
    ]
    assert found[0] == 0.0
    assert found[0].tobytes() == found[1].tobytes()


@pytest.mark.parametrize("targets", [KEEP, CATCH, BOTH], ids=["keep", "catch", "both"])
@pytest.mark.parametrize("unit", ["episode", "group"])
def test_nor_does_the_order_of_the_teachers(unit: Any, targets: Arrays) -> None:
    arrays, known = with_groups(episodes(72, seed=4)), taught(6)
    first = calibrate(**arrays, **targets, unit=unit, confidence=0.7, teachers=known)
    order = np.random.default_rng(7).permutation(60)
    turned = tuple(np.asarray(part)[order] for part in known)
    assert_same(calibrate(**arrays, **targets, unit=unit, confidence=0.7, teachers=turned), first)


def assert_same(second: Calibration, first: Calibration) -> None:
    assert second.thresholds.tobytes() == first.thresholds.tobytes()
    assert second.certificates == first.certificates
    assert second.promise == first.promise


MAPS: dict[str, Callable[[Floats], Floats]] = {
    "exp": np.exp,
    "cube": lambda s: s**3,
    "steep": lambda s: np.sign(s) * np.expm1(3 * np.abs(s)),
    "far": lambda s: 1e6 + 1e3 * s,
}
RANKED = [("paper", KEEP), ("uniform", KEEP), ("single", KEEP), ("maxrank", KEEP), ("empirical", CATCH)]


def mapped(scores: Floats, gate: int, rising: Callable[[Floats], Floats]) -> Floats:
    turned = scores.copy()
    turned[:, gate] = rising(scores[:, gate])
    return turned


@pytest.mark.parametrize("rising", MAPS.values(), ids=MAPS)
@pytest.mark.parametrize(("method", "targets"), RANKED)
def test_rank_methods_decide_alike_whatever_the_scale_of_a_gate(
    method: str, targets: Arrays, rising: Callable[[Floats], Floats]
) -> None:
    """On the calibration episodes and on fresh ones, whose scores fall between those."""
    fresh = episodes(300, seed=9, sixteenths=False)["scores"]
    aborted = 0
    for seed in range(3):
        arrays = episodes(120, seed=seed)
        first = calibrate(**arrays, **targets, method=method, confidence=0.8)
        for gate in range(3):
            turned = {**arrays, "scores": mapped(arrays["scores"], gate, rising)}
            second = calibrate(**turned, **targets, method=method, confidence=0.8)
            for scores in (arrays["scores"], fresh):
                decided = firing(mapped(scores, gate, rising), second.thresholds)
                np.testing.assert_array_equal(decided, firing(scores, first.thresholds))
                aborted += int(decided.any(axis=1).sum())
    assert aborted


@pytest.mark.parametrize("method", ["certified", "empirical"])
def test_the_shaped_methods_decide_alike_under_affine_maps(method: str) -> None:
    fresh = episodes(300, seed=9, sixteenths=False)["scores"]
    for seed in range(3):
        arrays = episodes(120, seed=seed)
        first = calibrate(**arrays, **KEEP, method=method, confidence=0.8)
        for factor in (0.25, 1024.0):
            turned = {**arrays, "scores": mapped(arrays["scores"], 1, lambda s, by=factor: by * s)}
            second = calibrate(**turned, **KEEP, method=method, confidence=0.8)
            np.testing.assert_array_equal(second.thresholds, first.thresholds * [1.0, factor, 1.0])
        turned = {**arrays, "scores": mapped(arrays["scores"], 1, MAPS["far"])}
        second = calibrate(**turned, **KEEP, method=method, confidence=0.8)
        decided = firing(mapped(fresh, 1, MAPS["far"]), second.thresholds)
        np.testing.assert_array_equal(decided, firing(fresh, first.thresholds))


@pytest.mark.parametrize("method", ["certified", "empirical"])
def test_bent_scales_may_move_the_shaped_methods_but_never_their_count(method: str) -> None:
    """docs/guarantees.md, section 7: such a map may change the shape. The certificate counts all the same."""
    moved = 0
    for seed in range(4):
        arrays = episodes(160, seed=seed)
        first = calibrate(**arrays, **KEEP, method=method, confidence=0.8)
        turned = {**arrays, "scores": mapped(arrays["scores"], 0, MAPS["steep"])}
        second = calibrate(**turned, **KEEP, method=method, confidence=0.8)
        moved += not np.array_equal(
            firing(turned["scores"], second.thresholds), firing(arrays["scores"], first.thresholds)
        )
        for before, after in zip(first.certificates, second.certificates, strict=True):
            assert (before.among, before.allowed, before.certified) == (after.among, after.allowed, after.certified)
            assert after.allowed is not None
            assert after.seen <= after.allowed
    assert moved


LADDER = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


@pytest.mark.parametrize("with_teachers", [False, True], ids=["alone", "teachers"])
@pytest.mark.parametrize("method", ["certified", "maxrank"])
def test_a_stricter_keep_fires_nowhere_that_a_laxer_one_does_not(method: str, with_teachers: bool) -> None:
    for seed in range(3):
        arrays, known = episodes(140, seed=seed), taught(40 + seed) if with_teachers else None
        results = [calibrate(**arrays, keep=keep, confidence=0.8, method=method, teachers=known) for keep in LADDER]
        assert_nested([result for result in results if result.certified])


@pytest.mark.parametrize("with_teachers", [False, True], ids=["alone", "teachers"])
@pytest.mark.parametrize("method", ["certified", "maxrank"])
def test_more_confidence_fires_nowhere_that_less_does_not(method: str, with_teachers: bool) -> None:
    for seed in range(3):
        arrays, known = episodes(140, seed=seed), taught(40 + seed) if with_teachers else None
        results = [
            calibrate(**arrays, keep=0.8, confidence=level, method=method, teachers=known)
            for level in (0.5, 0.7, 0.8, 0.9, 0.95, 0.99)
        ]
        assert_nested([result for result in results if result.certified])


def assert_nested(results: list[Calibration]) -> None:
    """Each region lies in the one before, and somewhere it is smaller."""
    assert len(results) >= 4
    for lax, strict in pairwise(results):
        assert (strict.thresholds >= lax.thresholds).all()
        assert strict.seen.kept_count >= lax.seen.kept_count
    assert (results[-1].thresholds > results[0].thresholds).any()
    assert np.isfinite(results[0].thresholds).any()


@pytest.mark.parametrize(
    ("method", "targets"), [("uniform", KEEP), ("empirical", BOTH), ("empirical", CATCH), ("certified", KEEP)]
)
def test_methods_that_split_nothing_ignore_the_seed(method: str, targets: Arrays) -> None:
    arrays = episodes(100, seed=1)
    first, second = (calibrate(**arrays, **targets, method=method, seed=seed) for seed in (0, 1))
    assert_same(second, first)


def test_with_teachers_a_keep_certificate_splits_nothing() -> None:
    arrays = episodes(100, seed=1)
    first, second = (calibrate(**arrays, **KEEP, teachers=taught(2), seed=seed) for seed in (0, 1))
    assert first.certified
    assert_same(second, first)


@pytest.mark.parametrize(
    ("method", "targets"), [("certified", BOTH), ("single", KEEP), ("maxrank", KEEP), ("paper", KEEP)]
)
def test_the_seed_changes_the_split_and_never_the_counts(method: str, targets: Arrays) -> None:
    arrays = episodes(120, seed=1, sixteenths=False)
    results = [calibrate(**arrays, **targets, method=method, confidence=0.8, seed=seed) for seed in range(5)]
    assert len({result.thresholds.tobytes() for result in results}) > 1
    assert len({tuple((c.among, c.allowed) for c in result.certificates) for result in results}) == 1
    again = calibrate(**arrays, **targets, method=method, confidence=0.8, seed=3)
    assert_same(again, results[3])


def test_gates_without_a_catch_target_or_after_the_last_stay_off() -> None:
    arrays = episodes(200, seed=3)
    result = calibrate(**arrays, catch={0: 0.3}, confidence=0.8)
    assert result.certified
    assert result.thresholds[0] < OFF
    assert (result.thresholds[1:] == OFF).all()
