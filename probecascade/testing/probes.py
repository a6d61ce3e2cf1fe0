"""The contract check and the fake of `interfaces.Probe`."""

from __future__ import annotations

import math
import warnings
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probecascade.episode import SIGNALS
from probecascade.errors import ProbecascadeError
from probecascade.interfaces import Probe
from probecascade.probes import BLOCKS, Shown, reads
from probecascade.testing.promises import expect


@dataclass(frozen=True, slots=True)
class ConstantProbe:
    """A fake that gives every row the same score."""

    value: float

    def score(self, states: NDArray[Any], signals: NDArray[Any] | None = None) -> NDArray[np.float64]:
        """`value` for each row of states (n, d_model)."""
        return np.full(len(states), self.value)


@dataclass(frozen=True, slots=True)
class EvidenceProbe:
    """A fake that reads states, signals, text and checks; whatever changes in one of them changes the score.

    Missing blocks of states and checks that were not supplied count as zeros.
    """

    reads: frozenset[str] = frozenset({"states", "signals", "text", "checks"})

    def score(
        self,
        states: NDArray[Any],
        signals: NDArray[Any] | None = None,
        *,
        texts: Sequence[str],
        checks: Mapping[str, NDArray[np.float64]],
    ) -> NDArray[np.float64]:
        """P(failure) of each row, (n,)."""
        shown = [states, np.empty((len(states), 0)) if signals is None else signals]
        shown.append(np.stack([*(checks[name] for name in sorted(checks)), np.zeros(len(states))], axis=1))
        scores = []
        for row, text in enumerate(texts):
            values = [float(value) for part in shown for value in np.nan_to_num(part[row].astype(np.float64))]
            total = math.fsum(math.tanh(value / (k + 2)) for k, value in enumerate(values))
            scores.append(0.5 + math.atan(total + zlib.crc32(text.encode()) / 2**32) / math.pi)
        return np.array(scores, dtype=np.float64)


def check_probe(probe: Probe, d_model: int, checks: Sequence[str] = ()) -> None:
    """Check that a probe keeps the contract of `Probe` on states of width `d_model`, and on all else that it reads.

    checks: names of the environment's checks that it knows. Raises AssertionError, naming the broken promise.
    """
    expect(isinstance(probe, Probe), "a probe has score(states, signals)")
    expect(reads(probe) <= set(BLOCKS), f"`reads` names some of {', '.join(BLOCKS)}")
    rng = np.random.default_rng(0)
    shown = Shown(
        states=rng.normal(scale=3.0, size=(33, d_model)).astype(np.float16).astype(np.float32),
        signals=np.abs(rng.normal(scale=9.0, size=(33, len(SIGNALS)))).astype(np.float32),
        texts=[" ".join(rng.choice(_WORDS, size=k)) for k in range(33)],
        checks={name: np.where(rng.random(33) < 0.2, np.nan, rng.normal(size=33)) for name in checks},
    )
    states, signals = shown.states, shown.signals
    kept = shown.take(np.arange(33))
    assert states is not None
    assert kept.states is not None
    scores = shown.score(probe)
    expect(isinstance(scores, np.ndarray) and scores.dtype == np.float64, "scores are a float64 array")
    expect(scores.shape == (33,), "there is one score per row, shape (n,)")
    expect(bool(((scores >= 0) & (scores <= 1)).all()), "a score lies in [0, 1]")
    unchanged = np.array_equal(states, kept.states) and np.array_equal(signals, kept.signals)
    expect(unchanged, "scoring leaves its inputs alone")
    expect(np.array_equal(shown.score(probe), scores), "equal rows get equal scores, whenever asked")
    alone = [float(shown.take(np.array([i])).score(probe)[0]) for i in range(33)]
    expect(alone == scores.tolist(), "a row has the same score, bit for bit, alone and in a batch")
    turned = shown.take(np.arange(33)[::-1])
    turned = replace(turned, states=np.asfortranarray(turned.states), signals=np.asfortranarray(turned.signals))
    expect(np.array_equal(turned.score(probe)[::-1], scores), "neither order nor memory layout changes a score")
    half = replace(shown, states=states.astype(np.float16)).score(probe)
    expect(np.array_equal(half, scores), "a score depends on the values, not on the dtype that holds them")
    expect(shown.take(np.arange(0)).score(probe).shape == (0,), "no row has no score")
    _check_faulty_rows(probe, shown)


_WORDS = ("Thought", "Action", "Search[Ada]", "Observation", "could", "not", "find", "Ödegård", "3", "_")


def _check_faulty_rows(probe: Probe, shown: Shown) -> None:
    for fault in (np.nan, np.inf):
        bad_states, bad_signals = np.array(shown.states), shown.signals.copy()
        bad_states[3], bad_signals[3] = fault, fault
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                scores = replace(shown, states=bad_states, signals=bad_signals).score(probe)
        except ProbecascadeError:
            continue
        inside = bool(((scores >= 0) & (scores <= 1)).all())
        expect(inside, f"a row of {fault} is refused with a ProbecascadeError or still scored in [0, 1]")
