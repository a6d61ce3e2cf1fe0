"""The report of `validity.py` as markdown tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Row = Mapping[str, Any]
Column = tuple[str, Callable[[Sequence[Row]], str]]


def as_markdown(report: Mapping[str, Any]) -> str:
    """All tables, with what their columns mean."""
    head = (
        f"{report['calibrations']} calibrations per cell, populations of {report['population']} episodes, seed "
        f"{report['seed']}. A share of broken promises: mean over the cells (worst cell); a promise that holds at .05 "
        f"stays below {report['bound']:.3f} in 99 of 100 cells. Saved: mean tokens, nothing where nothing is promised, "
        "over those of the oracle that knows the population, and of its shape with all successes certifying.\n"
    )
    parts = [head]
    for title, part, keys, columns in _TABLES:
        rows = [row for row in report["rows"] if row["part"] == part]
        if rows:
            parts.append(f"### {title}\n\n{table(rows, keys, columns)}\n")
    if report["shrinking"]:
        parts.append(f"### Learners that try to break adaptive shrinking\n\n{_shrinking(report['shrinking'])}\n")
    return "\n".join(parts)


def table(rows: Sequence[Row], keys: Sequence[str], columns: Sequence[Column]) -> str:
    """One line per combination of the keys, in the order of the rows."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(_text(row, key) for key in keys), []).append(row)
    lines = [[*keys, "cells", *(name for name, _ in columns)]]
    lines += [[*key, str(len(group)), *(show(group) for _, show in columns)] for key, group in groups.items()]
    return _markdown(lines)


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    ruled = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in ruled)


def _text(row: Row, key: str) -> str:
    if key == "promise":
        catch = ", ".join(f"gate {gate}" for gate in row["catch"])
        return " and ".join(
            part for part in (f"keep {row['keep']}" if row["keep"] else "", catch and f"catch by {catch}") if part
        )
    return "" if row[key] is None else str(row[key])


def _values(rows: Sequence[Row], key: str) -> list[float]:
    return [float(row[key]) for row in rows if row[key] is not None]


def _share(key: str) -> Callable[[Sequence[Row]], str]:
    def show(rows: Sequence[Row]) -> str:
        values = _values(rows, key)
        return f"{np.mean(values):.3f}" if values else ""

    return show


def _with_worst(key: str, worst: Callable[[Sequence[float]], float]) -> Callable[[Sequence[Row]], str]:
    def show(rows: Sequence[Row]) -> str:
        values = _values(rows, key)
        return f"{np.mean(values):.3f} ({worst(values):.3f})" if values else ""

    return show


_CERTIFIED: Column = ("certified", _with_worst("certified", min))
_FIRES: Column = ("promised and fires", _with_worst("fires", min))
_KEEP_BROKEN: Column = ("keep broken", _with_worst("keep_broken", max))
_CATCH_BROKEN: Column = ("catch broken", _with_worst("catch_broken", max))
_ANY_BROKEN: Column = ("any broken", _with_worst("broken", max))
_OF_ORACLE: Column = ("saved / oracle", _with_worst("saved_of_oracle", min))
_OF_SHAPE: Column = ("saved / oracle shape", _with_worst("saved_of_shape", min))
_BOTH_NUMBERS: tuple[Column, ...] = (("caught", _share("caught")), ("kept", _share("kept")))
_TABLES: Sequence[tuple[str, str, Sequence[str], Sequence[Column]]] = (
    (
        "Keep, by method",
        "keep",
        ("keep", "n", "method"),
        (_CERTIFIED, _FIRES, _KEEP_BROKEN, _OF_ORACLE, _OF_SHAPE, *_BOTH_NUMBERS),
    ),
    ("Keep, by world", "keep", ("method", "world", "gates"), (_CERTIFIED, _KEEP_BROKEN, _OF_ORACLE, _OF_SHAPE)),
    ("Catch", "catch", ("n", "method"), (_CERTIFIED, _CATCH_BROKEN, *_BOTH_NUMBERS)),
    (
        "Catch and keep together",
        "both",
        ("rho", "n", "promise", "world", "method"),
        (_CERTIFIED, _KEEP_BROKEN, _CATCH_BROKEN, _ANY_BROKEN, *_BOTH_NUMBERS),
    ),
    (
        "Another share of doomed episodes after deployment (calibrated at .55)",
        "shift",
        ("deployed", "promise", "method"),
        (_CERTIFIED, _KEEP_BROKEN, _CATCH_BROKEN, *_BOTH_NUMBERS),
    ),
    (
        "Groups of 4 to 8 episodes, n groups",
        "groups",
        ("promise", "n", "correlation", "method"),
        (_CERTIFIED, _KEEP_BROKEN, _CATCH_BROKEN, _OF_ORACLE, *_BOTH_NUMBERS),
    ),
)


def _shrinking(rows: Sequence[Row]) -> str:
    lines = [["learner", "certifying", "keep", "broken", "exact level", "level + 2.33 standard errors"]]
    for row in rows:
        shares = [f"{row[key]:.4f}" for key in ("broken", "nominal", "bound")]
        lines.append([row["learner"], str(row["certifying"]), str(row["keep"]), *shares])
    return _markdown(lines)
