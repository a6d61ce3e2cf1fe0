"""Several runs of one model as one table of episodes, and the episodes of it that an attribute picks out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probecascade.errors import DataError, UsageError
from probecascade.store import Run

Labels = NDArray[np.bool_]

_SAME = ("model", "n_layers", "layer_convention", "final_norm")


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

    Groups of the same name are the same group, in whatever run they are. UsageError for runs of other layers,
    DataError for runs of another model.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        if not runs:
            raise UsageError("no run was given: give at least one.")
        self.runs = tuple(runs)
        first = self.runs[0]
        for other in self.runs[1:]:
            _check_alike(first, other)
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
        """One attribute of every episode, (n_episodes,), None where it lacks it. UsageError if all do."""
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
        """The episodes of each value of an attribute, (n_episodes,) bool, values in order; those without it in none."""
        column = self.attributes(name)
        values = {label(value): value for value in column if value is not None}
        order = sorted(values, key=lambda text: (not _is_number(values[text]), _sort_key(values[text]), text))
        return {text: np.array([value is not None and label(value) == text for value in column]) for text in order}

    def matching(self, conditions: Mapping[str, str]) -> Labels:
        """The episodes whose attributes have all these values, (n_episodes,) bool.

        Numbers are compared as numbers. UsageError for a value that no episode has.
        """
        chosen = np.ones(len(self), dtype=np.bool_)
        for name, wanted in conditions.items():
            masks = self.by_value(name)
            text = next((text for text in masks if _equal(text, wanted)), None)
            if text is None:
                raise UsageError(f"no episode has {name} = {wanted}: the values are {', '.join(masks)}.")
            chosen &= masks[text]
        return chosen


def label(value: Any) -> str:
    """A value of an attribute as text: 0.5 as `0.5`, true as `true`."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{float(value):g}" if _is_number(value) and not isinstance(value, int) else str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _sort_key(value: Any) -> float:
    return float(value) if _is_number(value) else 0.0


def _equal(text: str, wanted: str) -> bool:
    try:
        return text == wanted or float(text) == float(wanted)
    except ValueError:
        return False


def _check_alike(first: Run, other: Run) -> None:
    if (other.layers, other.d_model) != (first.layers, first.d_model):
        raise UsageError(
            f"{str(other.path)!r} holds layers {list(other.layers)} of width {other.d_model}, but {str(first.path)!r} "
            f"layers {list(first.layers)} of width {first.d_model}: give runs with the same layers."
        )
    for key in _SAME:
        if other.header.get(key) != first.header.get(key):
            raise DataError(
                f"{str(other.path)!r} and {str(first.path)!r} differ in {key}: states of another model cannot be "
                "compared; give runs of one model."
            )
