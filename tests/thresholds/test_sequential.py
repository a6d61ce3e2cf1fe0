from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from probecascade.errors import DataError, UsageError
from probecascade.thresholds import first_firing, recall_thresholds

NAN = float("nan")


@st.composite
def worlds(draw: st.DrawFn) -> tuple[NDArray[np.float64], NDArray[np.bool_], list[str]]:
    """Few distinct scores (ties), gates that are not reached, rising targets."""
    n, k = draw(st.integers(1, 14)), draw(st.integers(1, 4))
    cell = st.sampled_from([NAN, 0.0, 0.1, 0.25, 0.5, 0.5, 0.9, 1.0])
    scores = np.array(draw(st.lists(st.lists(cell, min_size=k, max_size=k), min_size=n, max_size=n)))
    failed = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    failed[draw(st.integers(0, n - 1))] = True
    percents = draw(st.lists(st.integers(1, 100), min_size=k, max_size=k, unique=True))
    return scores, failed, [f"{p / 100}" for p in sorted(percents)]


def brute_force(
    scores: NDArray[np.float64], failed: NDArray[np.bool_], targets: list[str]
) -> tuple[list[float], list[int], list[bool]]:
    """Gate by gate, the highest observed doomed score that meets the target, by trying them all."""
    alive = [True] * len(failed)
    doomed = [i for i in range(len(failed)) if failed[i]]
    thresholds: list[float] = []
    caught: list[int] = []
    reached: list[bool] = []
    for g, target in enumerate(targets):
        candidates = sorted({scores[i, g] for i in doomed if alive[i] and scores[i, g] == scores[i, g]}, reverse=True)

        def count(t: float, g: int = g, alive: list[bool] = alive) -> int:
            return sum(1 for i in doomed if not alive[i] or scores[i, g] >= t)

        goal = Fraction(target) * len(doomed)
        good = [t for t in [float("inf"), *candidates] if count(t) >= goal]
        chosen = good[0] if good else (candidates[-1] if candidates else float("inf"))
        thresholds.append(chosen)
        reached.append(bool(good))
        alive = [alive[i] and not scores[i, g] >= chosen for i in range(len(failed))]
        caught.append(sum(1 for i in doomed if not alive[i]))
    return thresholds, caught, reached


@settings(max_examples=300, deadline=None)
@given(worlds())
def test_thresholds_equal_a_brute_force_search(
    world: tuple[NDArray[np.float64], NDArray[np.bool_], list[str]],
) -> None:
    scores, failed, targets = world
    result = recall_thresholds(scores, failed, targets)
    thresholds, caught, reached = brute_force(scores, failed, targets)
    assert result.thresholds.tolist() == thresholds
    assert [g.caught for g in result.gates] == caught
    assert [g.reached for g in result.gates] == reached


@settings(max_examples=200, deadline=None)
@given(worlds())
def test_counts_are_those_of_running_the_thresholds(
    world: tuple[NDArray[np.float64], NDArray[np.bool_], list[str]],
) -> None:
    scores, failed, targets = world
    result = recall_thresholds(scores, failed, targets)
    first = first_firing(scores, result.thresholds)
    for g, gate in enumerate(result.gates):
        assert gate.fired_doomed == (failed & (first == g)).sum()
        assert gate.fired_successes == (~failed & (first == g)).sum()
        assert gate.caught == (failed & (first >= 0) & (first <= g)).sum()
        assert gate.doomed == failed.sum()
        if gate.reached:
            assert Fraction(gate.caught, gate.doomed) >= gate.target
        else:
            still = failed & ((first < 0) | (first > g)) & ~np.isnan(scores[:, g])
            assert not still.any()  # nothing reachable was left alive
    assert result.kept == (~failed & (first < 0)).sum()
    assert result.successes == (~failed).sum()


@settings(max_examples=100, deadline=None)
@given(worlds(), st.randoms())
def test_the_order_of_episodes_and_monotone_maps_change_nothing(
    world: tuple[NDArray[np.float64], NDArray[np.bool_], list[str]], random: st.DataObject
) -> None:
    scores, failed, targets = world
    order = list(range(len(failed)))
    random.shuffle(order)  # type: ignore[attr-defined]
    plain = recall_thresholds(scores, failed, targets)
    shuffled = recall_thresholds(scores[order], failed[order], targets)
    assert shuffled == plain
    mapped = recall_thresholds(np.exp(3 * scores), failed, targets)
    assert [(g.caught, g.fired_successes) for g in mapped.gates] == [(g.caught, g.fired_successes) for g in plain.gates]


@settings(max_examples=100, deadline=None)
@given(worlds(), st.integers(1, 99))
def test_a_higher_single_target_never_raises_the_threshold(
    world: tuple[NDArray[np.float64], NDArray[np.bool_], list[str]], percents: int
) -> None:
    scores, failed, _ = world
    one = scores[:, :1]
    lower = recall_thresholds(one, failed, [f"{percents / 100}"]).gates[0]
    higher = recall_thresholds(one, failed, [f"{(percents + 1) / 100}"]).gates[0]
    assert higher.threshold <= lower.threshold
    assert higher.caught >= lower.caught


def test_ties_fire_together() -> None:
    scores = np.array([[0.9], [0.7], [0.7], [0.7], [0.1]])
    failed = np.array([True, True, True, True, False])
    gate = recall_thresholds(scores, failed, ["0.5"]).gates[0]
    assert (gate.threshold, gate.caught, gate.reached) == (0.7, 4, True)


def test_a_gate_that_has_nothing_to_add_is_off() -> None:
    scores = np.array([[0.9, 0.9], [0.9, 0.8], [0.1, 0.7]])
    failed = np.array([True, True, False])
    result = recall_thresholds(scores, failed, ["0.5", "0.9"])
    assert result.gates[0].caught == 2  # tied at .9
    assert result.gates[1].off
    assert result.gates[1].reached
    assert result.reached
    assert result.kept == 1


def test_doomed_episodes_that_ended_earlier_count_as_not_caught() -> None:
    scores = np.array([[0.9], [0.8], [NAN], [NAN], [0.2]])
    failed = np.array([True, True, True, True, False])
    gate = recall_thresholds(scores, failed, ["0.75"]).gates[0]
    assert (gate.caught, gate.doomed, gate.reached, gate.threshold) == (2, 4, False, 0.8)
    unreached = recall_thresholds(np.full((5, 1), NAN), failed, ["0.75"]).gates[0]
    assert unreached.off
    assert not unreached.reached


def test_bad_input_is_refused_in_a_sentence() -> None:
    scores, failed = np.array([[0.5], [0.6]]), np.array([True, False])
    with pytest.raises(DataError, match="none of the 2 calibration episodes failed"):
        recall_thresholds(scores, np.array([False, False]), ["0.9"])
    with pytest.raises(UsageError, match=r"2 recall target\(s\) were given for 1 gate"):
        recall_thresholds(scores, failed, ["0.5", "0.9"])
    with pytest.raises(DataError, match="not booleans"):
        recall_thresholds(scores, np.array([1, 0]), ["0.9"])
    with pytest.raises(DataError, match="infinite"):
        recall_thresholds(np.array([[np.inf], [0.6]]), failed, ["0.9"])
    with pytest.raises(DataError, match="one row per episode"):
        recall_thresholds(np.array([0.5, 0.6]), failed, ["0.9"])
    with pytest.raises(DataError, match="labels were given for 2 episodes"):
        recall_thresholds(scores, np.array([True]), ["0.9"])
