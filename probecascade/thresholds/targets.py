"""Targets of recall and keep: parsed to exact fractions, so that no count is ever rounded by a float."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction

from probecascade.errors import UsageError

TargetLike = str | float | Decimal | Fraction


_FAR = re.compile(r"[eE][+-]?\d{3,}")


def parse_target(value: TargetLike, *, what: str = "target") -> Fraction:
    """The exact fraction that `value` is written as: `"0.95"`, `0.95` and `"19/20"` are all 19/20.

    A float counts as its shortest decimal text. UsageError unless it lies in (0, 1].
    """
    text = str(value).strip()
    try:
        if _FAR.search(text):  # an exponent of many digits would be written out in full
            raise ValueError(text)
        target = Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise UsageError(f"{what} {value!r} is not a number: give a share in (0, 1], such as 0.95.") from None
    if not 0 < target <= 1:
        raise UsageError(f"{what} {value} is outside (0, 1]: give a share such as 0.95.")
    return target


def parse_rising(values: str | Sequence[TargetLike], *, what: str = "recall target") -> tuple[Fraction, ...]:
    """Strictly rising targets from a sequence or from comma-separated text; UsageError otherwise."""
    parts: Sequence[TargetLike] = values.split(",") if isinstance(values, str) else values
    targets = tuple(parse_target(value, what=what) for value in parts)
    if not targets:
        raise UsageError(f"no {what} was given: give at least one share in (0, 1].")
    for i in range(1, len(targets)):
        if targets[i] <= targets[i - 1]:
            raise UsageError(
                f"{what}s must rise strictly from gate to gate, but {parts[i]} follows {parts[i - 1]}: "
                "they are cumulative, so raise or drop the later one."
            )
    return targets


def match_gates(targets: Sequence[Fraction], gates: Sequence[str]) -> None:
    """UsageError that says both counts unless there is one target per gate."""
    if len(targets) != len(gates):
        raise UsageError(
            f"{len(targets)} recall target(s) were given for {len(gates)} gate(s) "
            f"({', '.join(gates) or 'none'}): give one target per gate."
        )


def needed(target: Fraction, n: int) -> int:
    """ceil(target * n), in integers."""
    return -(-target.numerator * n // target.denominator)


def percent(target: Fraction) -> str:
    """The target as exact percent text: 19/20 -> "95 %", 1/3 -> "100/3 %"."""
    scaled = target * 100
    exact = 10**30 % scaled.denominator == 0
    return f"{Decimal(scaled.numerator) / Decimal(scaled.denominator):f} %" if exact else f"{scaled} %"
