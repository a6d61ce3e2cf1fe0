"""When a gate looks: a surface signal of the turn decides whether its probe is asked at all.

A gate that does not look cannot fire. For the thresholds that is a score below all others, so a certificate from
scores in which such moments are left out holds for the cascade that leaves them out live.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from math import ceil
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from probecascade.episode import SIGNALS
from probecascade.errors import DataError, UsageError
from probecascade.thresholds.targets import parse_target

Side = Literal["above", "below"]

_LOW_IS_UNSURE = ("logprob_mean", "logprob_min")


@dataclass(frozen=True, slots=True)
class Trigger:
    """A gate looks where `signal` is at or `above` (or at or `below`) `value`; equal values look together.

    signal: a column of `episode.SIGNALS`. UsageError for another one, another side or a value that is not finite.
    """

    signal: str
    side: Side
    value: float

    def __post_init__(self) -> None:
        check_signal(self.signal)
        _check_side(self.side)
        if not np.isfinite(self.value):
            raise UsageError(f"a trigger on {self.signal} was given the value {self.value}: give a finite number.")

    def looks(self, signals: ArrayLike) -> NDArray[np.bool_]:
        """(n,): where the gate looks, given signals (n, len(SIGNALS)). DataError where its own is not known."""
        values = np.asarray(signals, dtype=np.float32)[:, SIGNALS.index(self.signal)].astype(np.float64)
        if np.isnan(values).any():
            raise DataError(f"a trigger reads {self.signal}, which is not known at this moment: give it to the gate.")
        looked: NDArray[np.bool_] = values >= self.value if self.side == "above" else values <= self.value
        return looked

    def record(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """The trigger that `record()` came from. UsageError, KeyError or TypeError on anything else."""
        return cls(record["signal"], record["side"], float(record["value"]))

    def __str__(self) -> str:
        return f"{self.signal} {'>=' if self.side == 'above' else '<='} {self.value:.7g}"


@dataclass(frozen=True, slots=True)
class TriggerShare:
    """A trigger to be learnt: look at the share of a gate's moments that is highest (or lowest) in a signal.

    side: `above` unless given, `below` for log-probabilities, of which the low ones show doubt. UsageError for a
    signal that is not one of `episode.SIGNALS`, or a share outside (0, 1).
    """

    signal: str
    share: Fraction
    side: Side | None = None

    def __post_init__(self) -> None:
        check_signal(self.signal)
        if self.side is None:
            object.__setattr__(self, "side", "below" if self.signal in _LOW_IS_UNSURE else "above")
        _check_side(self.side)
        if not 0 < self.share < 1:
            raise UsageError(
                f"a trigger was given the share {self.share}: give one between 0 and 1, or no trigger to look "
                "at every gate."
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """`entropy_mean:0.5`, or with a side, `entropy_mean:0.5:below`. UsageError on anything else."""
        signal, _, rest = text.partition(":")
        share, _, side = rest.partition(":")
        try:
            wanted = parse_target(share)
        except UsageError:
            raise UsageError(
                f"the trigger is {text!r}: give a signal and a share of the moments, such as entropy_mean:0.5."
            ) from None
        return cls(signal.strip(), wanted, _check_side(side.strip()) if side else None)

    def learn(self, signals: ArrayLike) -> Trigger:
        """The trigger that looks at least at this share of these moments, (n, len(SIGNALS)); DataError without any.

        Its value is the signal of a moment, so it looks at more than the share where moments tie there.
        """
        values = np.asarray(signals, dtype=np.float32)[:, SIGNALS.index(self.signal)]
        if not values.size or np.isnan(values).any():
            raise DataError(f"a trigger on {self.signal} cannot be learnt: give one or more moments that record it.")
        rising = np.sort(values)
        wanted = ceil(self.share * values.size)
        if self.side == "below":
            return Trigger(self.signal, "below", float(rising[wanted - 1]))
        return Trigger(self.signal, "above", float(rising[values.size - wanted]))


def check_signal(signal: str) -> None:
    """UsageError unless this is a surface signal."""
    if signal not in SIGNALS:
        raise UsageError(f"a trigger cannot read {signal!r}: give one of {', '.join(SIGNALS)}.")


def _check_side(side: Any) -> Side:
    if side == "above":
        return "above"
    if side == "below":
        return "below"
    raise UsageError(f"a trigger was given the side {side!r}: give above or below.")
