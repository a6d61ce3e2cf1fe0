"""What a calibration is given and what every method returns: plain records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from probecascade.errors import DataError, UsageError
from probecascade.thresholds.firing import BoolArray, FloatArray, GateScores
from probecascade.thresholds.targets import TargetLike, parse_target, percent

Unit = Literal["episode", "group"]


@dataclass(frozen=True, slots=True)
class Targets:
    """What is asked: `catch`, cumulative shares of the doomed by gate (index, share), and `keep`, or None.

    A share counts what any gate up to and including that one aborts.
    """

    catch: tuple[tuple[int, Fraction], ...] = ()
    keep: Fraction | None = None

    @classmethod
    def parse(cls, catch: Mapping[int, TargetLike] | None, keep: TargetLike | None, n_gates: int) -> Targets:
        """Checked targets. UsageError for none, shares outside (0, 1) or not rising, or unknown gates."""
        wanted = [] if catch is None else [(_gate(g, n_gates), _share(v, "catch target")) for g, v in catch.items()]
        wanted.sort()
        for (g, low), (h, high) in pairwise(wanted):
            if high <= low:
                raise UsageError(
                    f"the catch target {percent(high)} at gate {h} does not rise above {percent(low)} at gate {g}: "
                    "they are cumulative, so raise or drop the later one."
                )
        if not wanted and keep is None:
            raise UsageError("neither a catch nor a keep target was given: give at least one, such as keep=0.95.")
        return cls(tuple(wanted), None if keep is None else _share(keep, "keep target"))


def _gate(value: Any, n_gates: int) -> int:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not 0 <= value < n_gates:
        raise UsageError(f"catch names the gate {value!r}: give gate indices from 0 to {n_gates - 1}.")
    return int(value)


def _share(value: TargetLike, what: str) -> Fraction:
    share = parse_target(value, what=what)
    if share == 1:
        raise UsageError(f"{what} {value} cannot be promised of new episodes: give a share below 1, such as 0.95.")
    return share


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Labelled, scored episodes and their groups, in an order that does not depend on how they were given.

    `group` (n_episodes,) int codes; episodes of one group (runs of one task) may depend on each other.
    """

    data: GateScores
    group: NDArray[np.intp]

    @classmethod
    def of(cls, data: GateScores, groups: Sequence[Any] | NDArray[Any] | None) -> Sample:
        """Rows in canonical order. DataError unless there is one group per episode."""
        n = len(data.failed)
        if groups is None:
            codes = np.arange(n)
        else:
            labels = np.asarray(groups)
            if labels.shape != (n,):
                raise DataError(f"{labels.size} groups were given for {n} episodes: give one per row of scores.")
            codes = np.unique(labels.astype(str), return_inverse=True)[1].ravel()
        # Negative zero ties with zero: left as it is, the order given would decide which becomes a threshold.
        data = replace(data, scores=data.scores + 0.0)
        keys = [data.failed, *np.nan_to_num(data.cost_after, nan=-1.0).T, *np.nan_to_num(data.scores, nan=-_HUGE).T]
        order = np.lexsort(keys if groups is None else [*keys, codes])
        sample = cls(data, codes).take(order)
        return replace(sample, group=np.arange(n)) if groups is None else sample

    @property
    def n_groups(self) -> int:
        return len(np.unique(self.group))

    @property
    def dependent(self) -> bool:
        """Whether some group holds more than one episode."""
        return self.n_groups < len(self.group)

    def take(self, rows: NDArray[Any]) -> Sample:
        """The episodes at these rows, indices or a mask."""
        data = self.data
        return Sample(GateScores(data.scores[rows], data.failed[rows], data.cost_after[rows]), self.group[rows])


_HUGE = float(np.finfo(np.float64).max)


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """One calibration: its episodes, targets and settings. `delta` is 1 - confidence."""

    sample: Sample
    targets: Targets
    delta: float
    unit: Unit
    teachers: Sample | None
    seed: int

    def rng(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)


@dataclass(frozen=True, slots=True)
class Certificate:
    """One target: whether it is promised, and the count behind it.

    `among` are the certifying episodes (or groups), `seen` of which missed the target where `allowed` may;
    `allowed` is None where the bound is no count. `missing`: how many more certifying successful (keep) or
    doomed (catch) ones, or groups, it would take at what was seen; None where no number would do.
    """

    kind: Literal["keep", "catch"]
    gate: int | None
    target: Fraction
    certified: bool
    among: int
    allowed: int | None
    seen: int
    missing: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Thresholds (n_gates,), the certificates that stand behind them (none: nothing is promised), and notes."""

    thresholds: FloatArray
    certificates: tuple[Certificate, ...] = ()
    notes: tuple[str, ...] = ()


def pick(rng: np.random.Generator, among: BoolArray, share: float) -> BoolArray:
    """(n,) mask of a random ceil(share * n) of those marked in `among`."""
    rows = np.flatnonzero(among)
    chosen = np.zeros(len(among), dtype=np.bool_)
    chosen[rng.permutation(rows)[: int(np.ceil(share * rows.size))]] = True
    return chosen
