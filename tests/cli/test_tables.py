"""How results look: widths, thresholds that nothing reaches, and plurals."""

from __future__ import annotations

import math

import pytest

from probecascade.cli.tables import WIDTH, folded, table, threshold_text, wrapped
from probecascade.thresholds.promise import counted


@pytest.mark.parametrize(
    ("threshold", "shown"), [(0.81594, "0.8159"), (1.0, "1.0000"), (1.0243, "never"), (math.inf, "never")]
)
def test_a_threshold_that_no_probability_reaches_is_never(threshold: float, shown: str) -> None:
    assert threshold_text(threshold) == shown


def test_a_wide_table_goes_on_below_with_its_first_column() -> None:
    titles = ["checkpoint", *(f"a_long_signal_{i}" for i in range(9))]
    rows = [[name, *(f"{name}.{i}" for i in range(9))] for name in ("prompt", "action:1")]
    text = folded(titles, rows)
    assert max(map(len, text.splitlines())) <= WIDTH
    first, second = text.split("\n\n")
    assert [line.split()[0] for line in (*first.splitlines()[2:], *second.splitlines()[2:])] == [
        "prompt",
        "action:1",
    ] * 2
    assert {word for line in (first, second) for word in line.split()} >= {*titles, *(c for row in rows for c in row)}
    narrow = titles[:3], [row[:3] for row in rows]
    assert folded(*narrow) == table(*narrow)


def test_a_sentence_is_wrapped_between_words_and_never_inside_a_path() -> None:
    path = "/a" * 80
    lines = wrapped(f"{'word ' * 40}{path} the-end").splitlines()
    assert path in lines
    assert all(len(line) <= WIDTH for line in lines if line != path)


def test_one_is_singular() -> None:
    assert [counted(n, "success") for n in (0, 1, 2)] == ["0 successes", "1 success", "2 successes"]
    assert counted(1, "episode") == "1 episode"
