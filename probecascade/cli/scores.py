"""Scored episodes from a CSV file; whatever is refused is named by line and column."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probecascade.errors import DataError
from probecascade.thresholds import GateScores

FloatArray = NDArray[np.float64]

AFTER = ":after"
_NAMED = ("episode", "failed", "group", "tokens")
_LABELS = {"1": True, "true": True, "0": False, "false": False}


@dataclass(frozen=True, slots=True, eq=False)
class ScoreTable:
    """The episodes of one file. `ids`, `groups` (n_episodes,) text and `total` (n_episodes,) tokens are None where
    the file has no such column; `costs` says whether it has the tokens after each gate."""

    path: str
    gates: tuple[str, ...]
    data: GateScores
    ids: NDArray[np.str_] | None
    groups: NDArray[np.str_] | None
    total: FloatArray | None
    costs: bool

    @property
    def cost_after(self) -> FloatArray | None:
        return self.data.cost_after if self.costs else None

    @property
    def labels(self) -> NDArray[Any]:
        """(n_episodes,) the group of each episode; without groups each is its own."""
        if self.groups is not None:
            return self.groups
        return self.ids if self.ids is not None else np.arange(len(self.data.failed))

    def take(self, rows: NDArray[np.bool_]) -> ScoreTable:
        """The episodes that are marked."""
        data = self.data
        return replace(
            self,
            data=GateScores(data.scores[rows], data.failed[rows], data.cost_after[rows]),
            ids=None if self.ids is None else self.ids[rows],
            groups=None if self.groups is None else self.groups[rows],
            total=None if self.total is None else self.total[rows],
        )


def read_scores(path: str | Path, like: ScoreTable | None = None) -> ScoreTable:
    """Read `episode`, `failed`, `group`, `tokens`, one column per gate and its `<gate>:after`.

    `failed` is 0, 1, true or false; the others of the four are optional. An empty score (or nan) means that the
    gate was not reached. `like`: another file whose gates, and costs or their lack, this one must share.
    DataError with line and column.
    """
    lines = _Lines(str(path), *_cells(path))
    gates = _gates(lines)
    if like is not None:
        gates = _same(lines, gates, like)
    costs = any(name.endswith(AFTER) for name in lines.columns)
    scores = np.stack([_numbers(lines, gate) for gate in gates], axis=1)
    after = np.stack([_costs(lines, gate, scores[:, g]) for g, gate in enumerate(gates)], axis=1) if costs else None
    failed = _labels(lines)
    total = None
    if "tokens" in lines.columns:
        total = _numbers(lines, "tokens")
        least = np.zeros(len(total)) if after is None else np.where(np.isnan(after), 0.0, after).max(axis=1)
        lines.refuse(
            "tokens", ~(total >= least), "the tokens of the whole episode are expected, none fewer than after a gate"
        )
    return ScoreTable(
        path=str(path),
        gates=gates,
        data=GateScores.check(scores, failed, after),
        ids=_ids(lines),
        groups=_texts(lines, "group"),
        total=total,
        costs=costs,
    )


def refuse_overlap(table: ScoreTable, other: ScoreTable) -> None:
    """DataError where an episode or a group is in both files."""
    for what, ours, theirs in (("group", table.groups, other.groups), ("episode", table.ids, other.ids)):
        if ours is None or theirs is None:
            continue
        shared = np.intersect1d(ours, theirs)
        if shared.size:
            raise DataError(
                f"{shared.size} {what}s are in both {table.path} and {other.path} (first: {str(shared[0])!r}): "
                f"give each {what} to one of them."
            )


def _cells(path: str | Path) -> tuple[list[str], list[list[str]], list[int]]:
    """Header, rows and the line on which each row ends."""
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise DataError(f"{path}, line {line}: this is not UTF-8 text: save the file as UTF-8.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): give the path of a CSV file.") from error
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows, numbers = [], []
    try:
        for row in reader:
            if row:
                rows.append([cell.strip() for cell in row])
                numbers.append(reader.line_num)
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: this is not CSV ({error}): correct it.") from error
    if len(rows) < 2:
        raise DataError(f"{path} holds {len(rows)} lines: give a header and one line for each episode.")
    header = rows[0]
    for row, number in zip(rows, numbers, strict=True):
        if len(row) != len(header):
            last = header[min(len(row), len(header)) - 1]
            raise DataError(
                f"{path}, line {number}: {len(row)} cells stand where the header has {len(header)} columns, the last "
                f"that has both is {last!r}: give each line as many."
            )
    return header, rows[1:], numbers[1:]


class _Lines:
    """The cells by column, and where each stands in the file."""

    def __init__(self, path: str, header: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int]) -> None:
        self.path = path
        for place, name in enumerate(header):
            if not name or name in header[:place]:
                what = f"the name {name!r} comes twice" if name else f"column {place + 1} has no name"
                raise DataError(f"{path}, line 1, column {name or place + 1!r}: {what}: name each column once.")
        self.columns: dict[str, tuple[str, ...]] = dict(zip(header, zip(*rows, strict=True), strict=True))
        self._numbers = numbers

    def refuse(self, name: str, wrong: NDArray[np.bool_], expected: str) -> None:
        """DataError for the first row that is marked, if one is."""
        if wrong.any():
            row = int(np.argmax(wrong))
            raise self.error(name, row, f"the cell is {self.columns[name][row]!r}, but {expected}")

    def error(self, name: str, row: int | None, sentence: str) -> DataError:
        line = 1 if row is None else self._numbers[row]
        return DataError(f"{self.path}, line {line}, column {name!r}: {sentence}.")

    def line(self, row: int) -> int:
        return self._numbers[row]


def _gates(lines: _Lines) -> tuple[str, ...]:
    if "failed" not in lines.columns:
        raise DataError(
            f"{lines.path}, line 1: no column is called 'failed' (there are {', '.join(map(repr, lines.columns))}): "
            "give the label of each episode, 1 where it failed, in a file separated by commas."
        )
    gates = tuple(name for name in lines.columns if name not in _NAMED and not name.endswith(AFTER))
    if not gates:
        raise DataError(f"{lines.path}, line 1: there is no column of scores: give one per gate, named like the gate.")
    priced = [name for name in lines.columns if name.endswith(AFTER)]
    for name in priced:
        if name.removesuffix(AFTER) not in gates:
            raise lines.error(name, None, f"there is no gate {name.removesuffix(AFTER)!r} to which these tokens belong")
    for gate in gates:
        if priced and gate + AFTER not in priced:
            raise lines.error(
                gate, None, f"{gate + AFTER!r} is missing: give the tokens after every gate, or after none"
            )
    return gates


def _same(lines: _Lines, gates: tuple[str, ...], like: ScoreTable) -> tuple[str, ...]:
    if set(gates) != set(like.gates):
        raise DataError(
            f"{lines.path}, line 1: the gates are {', '.join(gates)}, those of {like.path} {', '.join(like.gates)}: "
            "give both files the same ones."
        )
    if any(name.endswith(AFTER) for name in lines.columns) != like.costs:
        raise DataError(
            f"{lines.path}, line 1: of this file and {like.path} one gives the tokens after each gate and the other "
            "does not: give them in both."
        )
    return like.gates


def _numbers(lines: _Lines, name: str) -> FloatArray:
    """(n_episodes,) float64, NaN where the cell is empty."""
    cells = lines.columns[name]
    try:
        values = np.array([float(cell) if cell else np.nan for cell in cells])
    except ValueError:
        row = next(row for row, cell in enumerate(cells) if cell and not _is_number(cell))
        raise lines.error(name, row, f"the cell is {cells[row]!r}, but a number is expected") from None
    lines.refuse(name, np.isinf(values), "a finite number is expected")
    return values


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _costs(lines: _Lines, gate: str, scores: FloatArray) -> FloatArray:
    after = _numbers(lines, gate + AFTER)
    reached = ~np.isnan(scores)
    lines.refuse(
        gate + AFTER, reached & ~(after >= 0), "the tokens after a gate that was reached, 0 or more, are expected"
    )
    lines.refuse(
        gate + AFTER, ~reached & ~np.isnan(after), f"the episode has no score at {gate!r}, so no tokens after it"
    )
    return after


def _labels(lines: _Lines) -> NDArray[np.bool_]:
    found = [_LABELS.get(cell.lower()) for cell in lines.columns["failed"]]
    wrong = np.array([label is None for label in found])
    lines.refuse("failed", wrong, "0, 1, true or false is expected; leave out episodes without a label")
    return np.array(found, dtype=np.bool_)


def _texts(lines: _Lines, name: str) -> NDArray[np.str_] | None:
    if name not in lines.columns:
        return None
    texts = np.array(lines.columns[name], dtype=np.str_)
    lines.refuse(name, texts == "", "a name is expected; drop the column if there are none")
    return texts


def _ids(lines: _Lines) -> NDArray[np.str_] | None:
    ids = _texts(lines, "episode")
    if ids is None:
        return None
    seen: dict[str, int] = {}
    for row, name in enumerate(lines.columns["episode"]):
        before = seen.setdefault(name, row)
        if before != row:
            raise lines.error(
                "episode",
                row,
                f"the episode {name!r} stands on line {lines.line(before)} already, and a repeated episode would make "
                "a certificate look stronger than it is: give each once",
            )
    return ids
