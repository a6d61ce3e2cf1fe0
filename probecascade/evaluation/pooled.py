"""Several runs of one model as one table of episodes, and the episodes of it that an attribute picks out."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probecascade.errors import DataError, UsageError
from probecascade.store import Run
from probecascade.store.schema import stated_backend

Labels = NDArray[np.bool_]

EVERY, OTHERS = MIXTURES = ("all kinds", "all others")
"""What mixtures of several kinds are called, where kinds are told apart by their values."""

_SAME = ("model", "n_layers", "layer_convention", "final_norm")
_EXACT = 1e16  # below it every float that is a whole number is written with all its digits
_NAMED = 12  # values or kinds that a sentence lists


@dataclass(frozen=True, slots=True, eq=False)
class PooledRows:
    """The labelled episodes of all runs that come to one checkpoint, (n,) each; `episode` counts over the runs.

    Turns that finish an episode are left out unless the checkpoint knows no other (`closing`). read(layer): their
    states, (n, d_model) float32. signals: (n, n_signals).
    """

    name: str
    closing: bool
    episode: NDArray[np.int64]
    failed: Labels
    codes: NDArray[np.intp]
    signals: NDArray[np.float32]
    read: Callable[[int], NDArray[np.float32]]

    def take(self, use: Labels) -> PooledRows:
        """The marked rows alone; `codes` number their groups from 0 without a gap."""
        codes = np.unique(self.codes[use], return_inverse=True)[1].reshape(-1)
        return PooledRows(
            name=self.name,
            closing=self.closing,
            episode=self.episode[use],
            failed=self.failed[use],
            codes=codes,
            signals=self.signals[use],
            read=lambda layer: self.read(layer)[use],
        )


class PooledRuns:
    """Runs one after the other: `failed`, `labelled`, `group` and `codes` (of the groups) are (n_episodes,).

    Groups of the same name are the same group, in whatever run they are. UsageError for runs of other layers or one
    that is given twice, DataError for runs of another model.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        if not runs:
            raise UsageError("no run was given: give at least one.")
        self.runs = tuple(runs)
        first = self.runs[0]
        for other in self.runs[1:]:
            _check_alike(first, other)
        _check_once([run.path for run in runs])
        self.layers = first.layers
        self.n_layers: int = first.header["n_layers"]
        self.failed: Labels = np.concatenate([run.episodes.failed for run in self.runs])
        self.labelled: Labels = np.concatenate([run.episodes.labelled for run in self.runs])
        self.group: NDArray[np.object_] = np.concatenate([run.episodes.group for run in self.runs])
        self.codes: NDArray[np.intp] = np.unique(self.group.astype(str), return_inverse=True)[1].reshape(-1)
        self._begin = np.cumsum([0, *(len(run) for run in self.runs)])

    def __len__(self) -> int:
        return len(self.failed)

    @property
    def checkpoint_names(self) -> tuple[str, ...]:
        """Names that occur in any of the runs, each run's in its own order."""
        return tuple(dict.fromkeys(name for run in self.runs for name in run.checkpoint_names))

    def attributes(self, name: str) -> NDArray[np.object_]:
        """One attribute of every episode, (n_episodes,), None where it lacks it. UsageError if all do.

        `run` is the folder's name, with as many of the folders above it as tell the runs apart.
        """
        if name == "run":
            return np.repeat(np.array(_told_apart([run.path for run in self.runs]), dtype=object), np.diff(self._begin))
        columns: list[NDArray[np.object_]] = []
        for run in self.runs:
            column = np.full(len(run), None, dtype=object)
            with contextlib.suppress(UsageError):
                column = run.attributes(name)
            columns.append(column)
        found = np.concatenate(columns)
        if all(value is None for value in found):
            self.runs[0].attributes(name)  # names what there is
        return found

    def rows(self, name: str) -> PooledRows:
        """The episodes that come to this checkpoint. StoreError if no run holds it."""
        having = [
            (begin, run) for begin, run in zip(self._begin, self.runs, strict=False) if name in run.checkpoint_names
        ]
        if not having:
            self.runs[0].rows(name)  # says what is stored
        every = [run.rows(name) for _, run in having]
        closing = all(bool(rows.final.all()) for rows in every)
        uses = [
            run.episodes.labelled[r.episode] & (closing | ~r.final) for (_, run), r in zip(having, every, strict=True)
        ]
        parts = list(zip(having, every, uses, strict=True))
        episode = np.concatenate([rows.episode[use] + begin for (begin, _), rows, use in parts])
        return PooledRows(
            name=name,
            closing=closing,
            episode=episode,
            failed=self.failed[episode],
            codes=self.codes[episode],
            signals=np.concatenate([rows.signals[use] for _, rows, use in parts]),
            read=lambda layer: np.concatenate([run.states(name, layer)[use] for (_, run), _, use in parts]),
        )

    def by_value(self, name: str) -> dict[str, Labels]:
        """The episodes of each value of an attribute, (n_episodes,) bool, values in order; those without it in none.

        A value is named as `labels` has it.
        """
        return {text: mask for text, (_, mask) in self._values(name).items()}

    def matching(self, conditions: Mapping[str, str]) -> Labels:
        """The episodes whose attributes have all these values, (n_episodes,) bool.

        Numbers are compared as numbers, and a value in double quotes is text, written as JSON writes it. UsageError
        for a value that no episode has.
        """
        chosen = np.ones(len(self), dtype=np.bool_)
        for name, wanted in conditions.items():
            values = self._values(name)
            found = wanted if wanted in values else next((t for t in values if _equal(values[t][0], t, wanted)), None)
            if found is None:
                raise UsageError(f"no episode has {name} = {wanted}: the values are {listed(list(values))}.")
            chosen &= values[found][1]
        return chosen

    def _values(self, name: str) -> dict[str, tuple[Any, Labels]]:
        """Each value of an attribute by its label, with the episodes that have it; numbers first, in their order."""
        column = self.attributes(name)
        places: dict[Hashable, int] = {}
        codes = np.array([-1 if v is None else places.setdefault(_key(v), len(places)) for v in column], dtype=np.intp)
        values = [column[np.flatnonzero(codes == place)[0]] for place in range(len(places))]
        named = list(zip(labels(values), values, range(len(values)), strict=True))
        named.sort(key=lambda entry: (not _is_number(entry[1]), entry[1] if _is_number(entry[1]) else 0, entry[0]))
        return {text: (value, codes == place) for text, value, place in named}


def labels(values: Sequence[Any]) -> list[str]:
    """A text for each of these distinct values, no two alike and none that of a mixture: 0.5 as `0.5`, true as `true`.

    Text stands as it is, or in double quotes where it could be taken for another value or for a mixture of kinds.
    """
    plain = [None if isinstance(value, str) else _label(value) for value in values]
    taken = {*MIXTURES, *plain}
    return [_quoted(value, taken) if text is None else text for text, value in zip(plain, values, strict=True)]


def _quoted(text: str, taken: Container[str | None]) -> str:
    return json.dumps(text, ensure_ascii=False) if text in taken or text.startswith('"') else text


def _label(value: Any) -> str:
    """A value that is no text: whole numbers as such, others with all digits that tell them apart."""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < _EXACT else repr(value)
    return str(value) if _is_number(value) else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _key(value: Any) -> Hashable:
    """Equal for values that are of one kind: 1 and 1.0 are, true and 1 are not."""
    if isinstance(value, str) or _is_number(value):
        return value  # type: ignore[no-any-return]
    return ("json", json.dumps(value, sort_keys=True))


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _equal(value: Any, text: str, wanted: str) -> bool:
    """Whether `wanted` means this value, whose label is `text`."""
    if isinstance(value, str):
        return value in (wanted, _unquoted(wanted))
    if not _is_number(value):
        return False
    try:
        return Decimal(text) == Decimal(wanted)
    except InvalidOperation:
        return False


def _unquoted(text: str) -> Any:
    try:
        return json.loads(text) if text.startswith('"') else None
    except ValueError:
        return None


def listed(texts: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    more = len(texts) - _NAMED
    return ", ".join(texts[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _told_apart(paths: Sequence[Path]) -> list[str]:
    """The last parts of each path: one, or as many as it takes until no two are alike."""
    parts = [path.resolve().parts for path in paths]
    for count in range(1, max(map(len, parts))):
        names = ["/".join(own[-count:]) for own in parts]
        if len(set(names)) == len(names):
            return names
    return [str(path.resolve()) for path in paths]


def _check_once(paths: Sequence[Path]) -> None:
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise UsageError(f"the run {str(path)!r} is given twice: give each run once.")
        seen.add(path.resolve())


def _check_alike(first: Run, other: Run) -> None:
    if (other.layers, other.d_model) != (first.layers, first.d_model):
        raise UsageError(
            f"{str(other.path)!r} holds layers {list(other.layers)} of width {other.d_model}, but {str(first.path)!r} "
            f"layers {list(first.layers)} of width {first.d_model}: give runs with the same layers."
        )
    for key in _SAME:
        if stated_backend(other.header).get(key) != stated_backend(first.header).get(key):
            raise DataError(
                f"{str(other.path)!r} and {str(first.path)!r} differ in {key}: states of another model cannot be "
                "compared; give runs of one model."
            )
