"""What a calibration is given and what every method returns: plain records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from hashlib import sha256
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from probecascade.bounds import smallest_sample
from probecascade.errors import DataError, UsageError
from probecascade.thresholds.firing import LOWEST, OFF, BoolArray, FloatArray, GateScores
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

    `group` (n_episodes,) int codes; episodes of one group (runs of one task) may depend on each other. `digest` is a
    hash of the whole, the same for every order of the rows and every rising map of a gate's scores.
    """

    data: GateScores
    group: NDArray[np.intp]
    digest: int = 0

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
        keys = [data.failed, *np.nan_to_num(data.cost_after, nan=-1.0).T, *np.nan_to_num(data.scores, nan=LOWEST).T]
        order = np.lexsort(keys if groups is None else [*keys, codes])
        sample = cls(data.take(order), np.arange(n) if groups is None else codes[order])
        return replace(sample, digest=_digest(sample))

    @property
    def n_groups(self) -> int:
        return len(np.unique(self.group))

    @property
    def dependent(self) -> bool:
        """Whether some group holds more than one episode."""
        return self.n_groups < len(self.group)

    def take(self, rows: NDArray[Any]) -> Sample:
        """The episodes at these rows, indices or a mask."""
        return Sample(self.data.take(rows), self.group[rows], self.digest)


def _digest(sample: Sample) -> int:
    ranks = [np.unique(column, return_inverse=True)[1].ravel() for column in sample.data.scores.T]
    parts = [*ranks, sample.data.failed, sample.data.cost_after, sample.group]
    return int.from_bytes(sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts)).digest()[:8], "big")


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """One calibration: its episodes, targets and settings. `delta` is 1 - confidence."""

    sample: Sample
    targets: Targets
    delta: float
    unit: Unit
    teachers: Sample | None
    seed: int
    largest_group: int | None = None

    def rng(self, purpose: str) -> np.random.Generator:
        """A stream of its own for each purpose.

        The rows stand in the order of their scores, so that a seed alone would choose the same ranks whatever the
        data, and nothing would be random about it but the seed: the content is part of it.
        """
        return np.random.default_rng([self.seed, *purpose.encode(), self.sample.digest])

    @property
    def dependent(self) -> bool:
        """Whether whole episodes are promised of groups that hold several."""
        return self.sample.dependent and self.unit == "episode"


@dataclass(frozen=True, slots=True)
class Certificate:
    """One target: whether it is promised, and the count behind it.

    `among` are the certifying episodes (or groups), `seen` of which missed the target where `allowed` may;
    `allowed` is None where the bound is no count. `missing`: how many more certifying successful (keep) or
    doomed (catch) ones it would take at what was seen; None where no number would do, or where it was not tested
    (`tested` is False) because another target failed before it. `counts` says of what `among` and `missing` are.
    """

    kind: Literal["keep", "catch"]
    gate: int | None
    target: Fraction
    certified: bool
    among: int
    allowed: int | None
    seen: int
    missing: int | None
    counts: Unit = "episode"
    tested: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Thresholds (n_gates,), the certificates that stand behind them (none: nothing is promised), and notes."""

    thresholds: FloatArray
    certificates: tuple[Certificate, ...] = ()
    notes: tuple[str, ...] = ()


def refused(problem: Problem, note: str = "") -> Found:
    """All gates off and no target certified, before anything was tested."""
    keep = problem.targets.keep
    unit: Unit = "group" if problem.dependent else problem.unit
    certificates = [] if keep is None else [Certificate("keep", None, keep, False, 0, None, 0, None, unit, False)]
    certificates += [
        Certificate("catch", gate, share, False, 0, None, 0, None, unit, False) for gate, share in problem.targets.catch
    ]
    return Found(np.full(problem.sample.data.scores.shape[1], OFF), tuple(certificates), (note,) if note else ())


def more_needed(there: int, apart: float, share: Fraction, delta: float) -> int | None:
    """How many more of a class until those that certify, all but the share `apart`, are enough without a miss."""
    enough = smallest_sample(share, delta=delta)
    if enough is None:
        return None
    total = max(there, int(enough / (1 - apart)) - 2)
    while total - int(np.ceil(apart * total)) < enough:
        total += 1
    return total - there


def pick(rng: np.random.Generator, among: BoolArray, share: float) -> BoolArray:
    """(n,) mask of a random ceil(share * n) of those marked in `among`."""
    rows = np.flatnonzero(among)
    chosen = np.zeros(len(among), dtype=np.bool_)
    chosen[rng.permutation(rows)[: int(np.ceil(share * rows.size))]] = True
    return chosen
