from __future__ import annotations

import math
import time
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from probecascade.errors import DataError
from probecascade.probes import LinearProbe
from probecascade.probes.scoring import row_logits


def random_probe(width: int, seed: int = 0) -> LinearProbe:
    rng = np.random.default_rng(seed)
    return LinearProbe(
        mean=rng.normal(size=width),
        scale=rng.uniform(0.1, 3.0, size=width),
        weight=rng.normal(size=width),
        bias=float(rng.normal()),
    )


def layouts(states: NDArray[np.floating]) -> list[NDArray[np.floating]]:
    """The same values, laid out in memory in other ways."""
    n, d = states.shape
    wide = np.full((n, 2 * d + 1), 7.0, dtype=states.dtype)
    wide[:, 1::2] = states
    tall = np.full((3 * n, d), 7.0, dtype=states.dtype)
    tall[::3] = states
    return [np.asfortranarray(states), wide[:, 1::2], tall[::3], states[:, ::-1].copy()[:, ::-1]]


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 40),
    width=st.integers(1, 600),
    dtype=st.sampled_from([np.float16, np.float32, np.float64]),
    seed=st.integers(0, 2**16),
)
def test_a_row_has_the_same_bits_alone_in_any_batch_layout_and_dtype(
    n: int, width: int, dtype: type[np.floating], seed: int
) -> None:
    probe = random_probe(width, seed)
    rng = np.random.default_rng(seed)
    states = (rng.normal(size=(n, width)) * 10).astype(dtype)
    batch = probe.score(states)
    alone = np.concatenate([probe.score(states[i : i + 1]) for i in range(n)])
    assert batch.dtype == np.float64
    assert batch.tobytes() == alone.tobytes()
    order = rng.permutation(n)
    assert probe.score(states[order]).tobytes() == batch[order].tobytes()
    for other in layouts(states):
        assert probe.score(other).tobytes() == batch.tobytes()
    assert probe.score(states.astype(np.float64)).tobytes() == batch.tobytes()


def test_rows_keep_their_bits_across_internal_blocks() -> None:
    probe = random_probe(1000)
    states = np.random.default_rng(3).normal(size=(700, 1000))
    whole = probe.score(states)
    for i in (0, 255, 256, 257, 511, 512, 699):
        assert probe.score(states[i : i + 1])[0] == whole[i]


def test_a_matrix_product_changes_its_bits_with_the_layout() -> None:
    """The untreated case: what the fixed order of summation is for."""
    rng = np.random.default_rng(0)
    states, weight = rng.normal(size=(256, 576)), rng.normal(size=576)
    assert (np.asfortranarray(states) @ weight != np.ascontiguousarray(states) @ weight).any()


@pytest.mark.parametrize("width", [1, 2, 3, 7, 8, 9, 576, 1023, 1025])
def test_logits_agree_with_exact_rational_arithmetic(width: int) -> None:
    probe = random_probe(width, seed=width)
    row = np.random.default_rng(width).normal(size=width)
    terms = zip(row, probe.mean, probe.scale, probe.weight, strict=True)
    exact = sum(
        ((Fraction(x) - Fraction(m)) / Fraction(s) * Fraction(w) for x, m, s, w in terms),
        Fraction(probe.bias),
    )
    logit = row_logits(row[None, :], probe.mean, probe.scale, probe.weight, probe.bias)[0]
    assert logit == pytest.approx(float(exact), abs=1e-12 * width)
    assert probe.score(row[None, :])[0] == pytest.approx(1 / (1 + math.exp(-float(exact))), abs=1e-12)


def test_golden_scores() -> None:
    probe = LinearProbe(
        mean=np.array([1.0, -2.0, 0.5]),
        scale=np.array([2.0, 1.0, 0.25]),
        weight=np.array([0.5, -1.0, 0.125]),
        bias=0.25,
    )
    # by hand: 0.5*(3-1)/2 - (0+2)/1 + 0.125*(1-0.5)/0.25 + 0.25 = -1; the second row is the mean: 0.25
    states = np.array([[3.0, 0.0, 1.0], [1.0, -2.0, 0.5]], dtype=np.float16)
    assert probe.score(states).tolist() == pytest.approx([0.2689414213699951, 0.5621765008857981], abs=1e-16)


def test_extreme_states_saturate_and_overflow_is_refused() -> None:
    probe = LinearProbe(mean=np.zeros(2), scale=np.ones(2), weight=np.array([1e10, -1e10]), bias=0.0)
    assert probe.score(np.array([[1e300, 0.0], [0.0, 1e300], [1.0, 1.0]])).tolist() == [1.0, 0.0, 0.5]
    with pytest.raises(DataError, match="1 of 2 rows are too large"):
        probe.score(np.array([[1e300, 1e300], [0.0, 0.0]]))


def test_no_rows_give_no_scores() -> None:
    assert random_probe(5).score(np.empty((0, 5))).shape == (0,)


def test_one_state_is_scored_in_a_fraction_of_a_millisecond() -> None:
    probe = random_probe(4096)
    state = np.random.default_rng(0).normal(size=(1, 4096)).astype(np.float32)
    taken = []
    for _ in range(200):
        start = time.perf_counter()
        probe.score(state)
        taken.append(time.perf_counter() - start)
    # Typically 0.07 ms; the best of many is what the code costs when nothing else holds the core.
    assert min(taken) < 2e-4
