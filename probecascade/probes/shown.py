"""What a probe may be shown of episodes at one checkpoint: states, surface signals, text and checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probecascade.episode import SIGNALS

_USUAL = frozenset({"states", "signals"})


def reads(probe: Any) -> frozenset[str]:
    """What this probe looks at, out of states, signals, text and checks."""
    return frozenset(getattr(probe, "reads", _USUAL))


def signals_read(probe: Any, layer: int | None) -> tuple[str, ...]:
    """Names of the surface signals that a probe reads which stands at this layer (None: at none)."""
    if "signals" not in reads(probe):
        return ()
    while not hasattr(probe, "columns") and hasattr(probe, "probe"):  # a wrapper, such as a calibration
        probe = probe.probe
    named: tuple[str, ...] = tuple(getattr(probe, "columns", ()))
    return named or (SIGNALS if layer is None else ())


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """What a probe is shown of n episodes at one checkpoint.

    states: (n, width) float32, the taps side by side, None without taps. signals: (n, n_signals). texts: n texts,
    and checks: (n,) float64 by name, NaN where not supplied; both None for a probe that does not read them.
    """

    states: NDArray[Any] | None
    signals: NDArray[Any]
    texts: Sequence[str] | None = None
    checks: Mapping[str, NDArray[np.float64]] | None = None

    def __len__(self) -> int:
        return len(self.signals)

    def take(self, rows: NDArray[Any]) -> Shown:
        """These rows alone, given as indices or as booleans."""
        kept = np.arange(len(self))[rows]
        return Shown(
            states=None if self.states is None else self.states[kept],
            signals=self.signals[kept],
            texts=None if self.texts is None else [self.texts[k] for k in kept],
            checks=None if self.checks is None else {name: values[kept] for name, values in self.checks.items()},
        )

    def score(self, probe: Any) -> NDArray[np.float64]:
        """P(failure) of each row by this probe, (n,)."""
        states = np.empty((len(self), 0), dtype=np.float32) if self.states is None else self.states
        if reads(probe) <= _USUAL:
            scores: NDArray[np.float64] = probe.score(states, self.signals)
        else:
            scores = probe.score(states, self.signals, texts=self.texts, checks=self.checks)
        return scores
