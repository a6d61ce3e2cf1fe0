"""The contract check and the fake of `interfaces.Probe`."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probecascade.episode import SIGNALS
from probecascade.errors import ProbecascadeError
from probecascade.interfaces import Probe
from probecascade.testing.promises import expect


@dataclass(frozen=True, slots=True)
class ConstantProbe:
    """A fake that gives every row the same score."""

    value: float

    def score(self, states: NDArray[Any], signals: NDArray[Any] | None = None) -> NDArray[np.float64]:
        """`value` for each row of states (n, d_model)."""
        return np.full(len(states), self.value)


def check_probe(probe: Probe, d_model: int) -> None:
    """Check that a probe keeps the contract of `Probe` on states of width `d_model`, and on signals if it reads them.

    Raises AssertionError, naming the broken promise.
    """
    expect(isinstance(probe, Probe), "a probe has score(states, signals)")
    rng = np.random.default_rng(0)
    states = rng.normal(scale=3.0, size=(33, d_model)).astype(np.float16).astype(np.float32)
    signals = np.abs(rng.normal(scale=9.0, size=(33, len(SIGNALS)))).astype(np.float32)
    kept_states, kept_signals = states.copy(), signals.copy()
    scores = probe.score(states, signals)
    expect(isinstance(scores, np.ndarray) and scores.dtype == np.float64, "scores are a float64 array")
    expect(scores.shape == (33,), "there is one score per row, shape (n,)")
    expect(bool(((scores >= 0) & (scores <= 1)).all()), "a score lies in [0, 1]")
    unchanged = np.array_equal(states, kept_states) and np.array_equal(signals, kept_signals)
    expect(unchanged, "scoring leaves its inputs alone")
    expect(np.array_equal(probe.score(states, signals), scores), "equal rows get equal scores, whenever asked")
    alone = [float(probe.score(states[i : i + 1], signals[i : i + 1])[0]) for i in range(len(states))]
    expect(alone == scores.tolist(), "a row has the same score, bit for bit, alone and in a batch")
    turned = probe.score(np.asfortranarray(states[::-1]), np.asfortranarray(signals[::-1]))
    expect(np.array_equal(turned[::-1], scores), "neither order nor memory layout changes a score")
    half = probe.score(states.astype(np.float16), signals)
    expect(np.array_equal(half, scores), "a score depends on the values, not on the dtype that holds them")
    expect(probe.score(states[:0], signals[:0]).shape == (0,), "no row has no score")
    _check_faulty_rows(probe, states, signals)


def _check_faulty_rows(probe: Probe, states: NDArray[Any], signals: NDArray[Any]) -> None:
    for fault in (np.nan, np.inf):
        bad_states, bad_signals = states.copy(), signals.copy()
        bad_states[3], bad_signals[3] = fault, fault
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                scores = probe.score(bad_states, bad_signals)
        except ProbecascadeError:
            continue
        inside = bool(((scores >= 0) & (scores <= 1)).all())
        expect(inside, f"a row of {fault} is refused with a ProbecascadeError or still scored in [0, 1]")
