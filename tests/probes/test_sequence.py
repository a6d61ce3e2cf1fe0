from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import check_grad
from scipy.special import expit

from probecascade.errors import DataError, UsageError
from probecascade.probes import LogisticFitter, SequenceFitter, SequenceProbe
from probecascade.probes.crossfit import Sample
from probecascade.probes.sequence_fit import _Attention

Rows = NDArray[np.float64]


def spread(n: int, blocks: int, d: int, strength: float, seed: int = 0) -> tuple[Rows, NDArray[np.bool_]]:
    """The same weak evidence at every checkpoint, under noise of its own."""
    rng = np.random.default_rng(seed)
    failed = rng.random(n) < 0.5
    states = rng.normal(size=(n, blocks, d))
    states[:, :, 0] += strength * np.where(failed, 1, -1)[:, None]
    return states.reshape(n, blocks * d), failed


@pytest.mark.parametrize("pooling", ["mean", "attention"])
def test_evidence_spread_over_checkpoints_accumulates(pooling: str) -> None:
    blocks, d = 5, 6
    states, failed = spread(400, blocks, d, 0.4)
    groups = np.arange(400)
    fitter = SequenceFitter(blocks, pooling, strengths=(1e-3, 1e-2, 1e-1), folds=3)  # type: ignore[arg-type]
    pooled = fitter.fit(states, failed, groups)
    single = LogisticFitter(folds=3).fit(states[:, -d:], failed, groups)
    assert pooled.auroc > single.auroc + 0.08
    early = states.copy()
    early[::2, : 2 * d] = np.nan
    assert single.auroc < fitter.fit(early, failed, groups).auroc < pooled.auroc


def test_attention_finds_the_checkpoint_that_tells_where_the_mean_dilutes_it() -> None:
    rng = np.random.default_rng(0)
    n, blocks, d = 600, 6, 8
    failed = rng.random(n) < 0.5
    states = rng.normal(size=(n, blocks, d))
    telling = rng.integers(blocks, size=n)
    states[np.arange(n), telling, 0] += 3  # what marks the telling block
    states[np.arange(n), telling, 1] += np.where(failed, 1.5, -1.5)
    states = states.reshape(n, -1)
    aurocs = {
        pooling: SequenceFitter(blocks, pooling, strengths=(1e-2, 1e-1, 1.0), folds=3)  # type: ignore[arg-type]
        .fit(states, failed, np.arange(n))
        .auroc
        for pooling in ("mean", "attention")
    }
    assert aurocs["attention"] > aurocs["mean"] + 0.05


def test_one_block_pooled_by_the_mean_is_logistic_regression() -> None:
    states, failed = spread(150, 1, 7, 0.5)
    groups = np.arange(150)
    pooled = SequenceFitter(1).fit(states, failed, groups)
    logistic = LogisticFitter().fit(states, failed, groups)
    assert pooled.strength == logistic.strength
    np.testing.assert_allclose(pooled.out_of_fold, logistic.out_of_fold, rtol=1e-6)
    np.testing.assert_allclose(pooled.probe.score(states), logistic.probe.score(states), rtol=1e-6)


@pytest.mark.parametrize("query", [None, np.array([0.5, -1.0, 0.2])])
def test_scores_are_those_of_the_formula_over_the_blocks_present(query: Rows | None) -> None:
    rng = np.random.default_rng(0)
    probe = SequenceProbe(rng.normal(size=(4, 3)), rng.uniform(0.5, 2, size=(4, 3)), rng.normal(size=3), 0.4, query)
    states = rng.normal(size=(6, 4, 3))
    states[1, :2] = np.nan
    states[2, [0, 3]] = np.nan
    states[3, 1:] = np.nan
    for row, score in zip(states, probe.score(states.reshape(6, 12)), strict=True):
        kept = np.isfinite(row[:, 0])
        z = ((row - probe.mean) / probe.scale)[kept]
        share = np.ones(len(z)) if query is None else np.exp(z @ query)
        assert score == pytest.approx(expit((share / share.sum()) @ z @ probe.weight + probe.bias), rel=1e-12)


def test_attention_withstands_huge_queries() -> None:
    probe = SequenceProbe(np.zeros((2, 1)), np.ones((2, 1)), np.ones(1), 0.0, np.array([1e6]))
    scores = probe.score(np.array([[1.0, 2.0], [2.0, -1.0], [np.nan, -3.0]]))
    np.testing.assert_allclose(scores, expit([2.0, 2.0, -3.0]), rtol=1e-12)


def test_the_gradient_of_attention_agrees_with_finite_differences() -> None:
    rng = np.random.default_rng(0)
    present = rng.random((12, 3)) < 0.7
    present[:, 2] = True
    coordinates = rng.normal(size=(12, 3, 4)) * present[..., None]
    failed = np.arange(12) % 2 == 0
    sample = Sample(np.zeros((12, 12)), failed, rng.uniform(0.5, 2, size=12), np.arange(12))
    problem = _Attention(coordinates, present, sample)
    point = rng.normal(size=9)
    error = check_grad(lambda p: problem.value(p, 0.3)[0], lambda p: problem.value(p, 0.3)[1], point)
    assert error < 1e-6


def test_attention_solves_to_a_minimum_that_is_no_worse_than_the_mean() -> None:
    states, failed = spread(200, 3, 5, 0.4)
    z = states.reshape(200, 3, 5)
    sample = Sample(states, failed, np.ones(200), np.arange(200))
    problem = _Attention(z, np.ones((200, 3), dtype=bool), sample)
    start = np.zeros(11)
    start[5:10] = 1e-3
    found = problem.solve(0.1, start)
    assert np.abs(problem.value(found, 0.1)[1]).max() < 1e-4
    without = problem.solve(0.1, np.concatenate([found[:5], np.zeros(5), found[-1:]]))
    assert problem.value(found, 0.1)[0] <= problem.value(without, 0.1)[0] + 1e-6


def test_rows_and_settings_that_cannot_be_are_refused() -> None:
    states, failed = spread(40, 2, 3, 0.5)
    groups = np.arange(40)
    for blocks, message in ((4, "no multiple of their 4 taps"),):
        with pytest.raises(DataError, match=message):
            SequenceFitter(blocks).fit(states, failed, groups)
    with pytest.raises(UsageError, match="0 blocks"):
        SequenceFitter(0).fit(states, failed, groups)
    with pytest.raises(UsageError, match="'mean' or 'attention'"):
        SequenceFitter(2, "max").fit(states, failed, groups)  # type: ignore[arg-type]
    for fault in (np.s_[0, 0], np.s_[0, :]):
        broken = states.copy()
        broken[fault] = np.nan
        with pytest.raises(DataError, match="1 of 40 states"):
            SequenceFitter(2).fit(broken, failed, groups)
    with pytest.raises(DataError, match="NaN or infinity"):
        LogisticFitter().fit(np.where(np.arange(6) < 3, np.nan, states), failed, groups)
    for parts in (
        (np.zeros(3), np.ones(3), np.ones(3)),
        (np.zeros((2, 3)), np.ones((2, 3)), np.ones(2)),
        (np.zeros((2, 3)), np.zeros((2, 3)), np.ones(3)),
        (np.zeros((2, 3)), np.ones((2, 3)), np.full(3, np.inf)),
    ):
        with pytest.raises(DataError, match="sequence probe"):
            SequenceProbe(*parts, 0.0)


@pytest.mark.parametrize("pooling", ["mean", "attention"])
def test_constant_states_tell_nothing(pooling: str) -> None:
    failed = np.arange(60) % 3 == 0
    fitter = SequenceFitter(2, pooling, strengths=(1e-2, 1.0), folds=3)  # type: ignore[arg-type]
    states = np.ones((60, 8))
    states[::2, :4] = np.nan
    fitted = fitter.fit(states, failed, np.arange(60))
    assert isinstance(fitted.probe, SequenceProbe)
    assert not fitted.probe.weight.any()
    assert fitted.probe.query is None or not fitted.probe.query.any()
    assert fitted.probe.score(states) == pytest.approx(1 / 3)
