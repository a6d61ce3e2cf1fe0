"""The search over allocations against a brute force that walks every allocation and every episode."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from probecascade.errors import DataError
from probecascade.testing.worlds import World
from probecascade.thresholds import OFF, GateScores
from probecascade.thresholds.allocation import Allocations

NAN = float("nan")
Problem = tuple[GateScores, NDArray[np.float64]]


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Few distinct scores and costs, so that ties abound; the candidates come in any order, some twice, some off."""
    n, n_gates, n_levels = draw(st.integers(1, 12)), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    distinct = draw(st.sampled_from([1, 2, 5, 1000]))
    scores = rng.integers(0, distinct, (n, n_gates)) / 8.0
    scores[rng.random((n, n_gates)) < draw(st.sampled_from([0.0, 0.3, 0.9]))] = NAN
    costs = rng.integers(0, draw(st.sampled_from([1, 3, 400])), (n, n_gates)).astype(np.float64)
    if draw(st.booleans()):  # gates in the order of their columns, as where every episode passes them alike
        costs = np.sort(costs, axis=1)[:, ::-1]
    failed = rng.random(n) < draw(st.sampled_from([0.0, 0.5, 1.0]))
    candidates = rng.integers(-1, distinct + 1, (n_gates, n_levels)) / 8.0
    candidates[rng.random(candidates.shape) < 0.2] = OFF
    return GateScores(scores, failed, np.where(np.isnan(scores), NAN, costs)), candidates


def judged(data: GateScores, thresholds: Sequence[float]) -> tuple[int, float]:
    """Kept successes and saved tokens, episode by episode: the firing gate with the most still to spend aborts."""
    kept, saved = 0, 0.0
    for scores, failed, costs in zip(data.scores.tolist(), data.failed, data.cost_after.tolist(), strict=True):
        left = [cost for score, cost, limit in zip(scores, costs, thresholds, strict=True) if score >= limit]
        kept += not failed and not left
        saved += max(left, default=0.0)
    return kept, saved


def all_judged(problem: Problem) -> list[tuple[int, float, tuple[float, ...]]]:
    """Every allocation in order, with what it keeps and saves."""
    return [(*judged(problem[0], limits), limits) for limits in itertools.product(*problem[1].tolist())]


@settings(max_examples=250, deadline=None)
@given(problems())
def test_every_allocation_is_judged_as_the_brute_force_judges_it(problem: Problem) -> None:
    data, candidates = problem
    found = Allocations.of(data, candidates)
    every = all_judged(problem)
    assert found.kept.ravel().tolist() == [kept for kept, _, _ in every]
    assert found.saved.ravel().tolist() == [saved for _, saved, _ in every]


@settings(max_examples=250, deadline=None)
@given(problems(), st.integers(0, 13))
def test_the_best_allocation_is_that_of_the_brute_force(problem: Problem, required: int) -> None:
    data, candidates = problem
    allowed = [(saved, kept, thresholds) for kept, saved, thresholds in all_judged(problem) if kept >= required]
    found = Allocations.of(data, candidates).best(required)
    if not allowed:
        assert found is None
        return
    assert found is not None
    saved, kept, thresholds = max(allowed, key=lambda one: one[:2])  # the first of equals
    assert (found[0].tolist(), found[1], found[2]) == (list(thresholds), kept, saved)


@settings(max_examples=250, deadline=None)
@given(problems())
def test_the_frontier_is_that_of_the_brute_force(problem: Problem) -> None:
    data, candidates = problem
    judged_all = {one[:2] for one in all_judged(problem)}
    undominated = sorted(
        (kept, saved)
        for kept, saved in judged_all
        if not any((k >= kept and s > saved) or (k > kept and s >= saved) for k, s in judged_all)
    )
    kept, saved = Allocations.of(data, candidates).frontier()
    assert list(zip(kept.tolist(), saved.tolist(), strict=True)) == undominated


def test_on_many_episodes_the_best_is_what_its_own_thresholds_do() -> None:
    data = World("ties", 6).sample(800, np.random.default_rng(3))
    successes = data.scores[~data.failed]
    candidates = np.append(np.nanquantile(successes, [0.8, 0.9, 0.95], axis=0).T, np.full((6, 1), OFF), axis=1)
    required = int(0.9 * data.successes)
    best = Allocations.of(data, candidates).best(required)
    assert best is not None
    assert best[1] >= required
    assert best[1:] == judged(data, best[0].tolist())


@pytest.mark.parametrize(
    ("shape", "told"),
    [((2, 3), "given for 2 gates, scores for 3"), ((3, 500), "500 levels at 3 gates are 125000000 allocations")],
)
def test_candidates_that_cannot_be_are_refused(shape: tuple[int, int], told: str) -> None:
    data = World("normal", 3).sample(10, np.random.default_rng(0))
    with pytest.raises(DataError, match=told):
        Allocations.of(data, np.zeros(shape))
