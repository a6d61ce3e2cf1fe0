from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probecascade.errors import UsageError
from probecascade.thresholds import match_gates, needed, parse_rising, parse_target, percent
from probecascade.thresholds.targets import TargetLike


@pytest.mark.parametrize(
    "value",
    ["0.95", 0.95, Decimal("0.95"), Fraction(19, 20), "19/20", " .95 ", np.float64(0.95), np.float32(0.95)],
)
def test_every_spelling_of_a_target_is_the_same_fraction(value: TargetLike) -> None:
    assert parse_target(value) == Fraction(19, 20)


@pytest.mark.parametrize("value", ["0", "1.01", "-0.5", "95", "nan", "inf", "ninety", "", True, "1/0"])
def test_a_target_outside_the_unit_interval_is_refused(value: TargetLike) -> None:
    with pytest.raises(UsageError, match=r"\(0, 1\]"):
        parse_target(value)


@given(st.integers(1, 400), st.integers(1, 1000))
def test_the_needed_count_is_the_smallest_that_meets_the_target(n: int, thousandths: int) -> None:
    target = parse_target(f"{thousandths / 1000:.3f}")
    count = needed(target, n)
    assert count * 1000 >= thousandths * n > (count - 1) * 1000


def test_the_needed_count_never_suffers_from_floats() -> None:
    import math

    pairs = [(k, n) for n in range(1, 200) for k in range(1, n + 1)]
    assert all(needed(Fraction(k, n), n) == k for k, n in pairs)
    # The float formula that this replaces is wrong for many of them.
    assert sum(math.ceil(n * (k / n)) != k for k, n in pairs) > 100
    assert needed(parse_target(0.07), 100) == 7
    assert math.ceil(0.07 * 100) == 8


def test_targets_must_rise_strictly() -> None:
    assert parse_rising("0.9, 0.95,0.99") == parse_rising([0.9, "0.95", Decimal("0.99")])
    for bad in ("0.9,0.9", [0.9, 0.5], "0.9,0.90"):
        with pytest.raises(UsageError, match="must rise strictly"):
            parse_rising(bad)
    with pytest.raises(UsageError, match="no recall target"):
        parse_rising([])


def test_a_mismatch_with_the_gates_says_both_counts() -> None:
    with pytest.raises(UsageError, match=r"3 recall target\(s\) were given for 2 gate\(s\) \(action:1, action:2\)"):
        match_gates(parse_rising("0.5,0.6,0.7"), ["action:1", "action:2"])
    match_gates(parse_rising("0.5"), ["part:1"])


def test_percent_is_exact_text() -> None:
    assert percent(parse_target("0.95")) == "95 %"
    assert percent(parse_target("0.999")) == "99.9 %"
    assert percent(Fraction(1, 3)) == "100/3 %"
