"""`calibrate`: thresholds from scores on plain arrays, by any method, with the promise that stands behind them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from probecascade.errors import DataError, UsageError
from probecascade.intervals import DEFAULT, Resampling
from probecascade.thresholds.backtest import Backtest, Spending, backtest
from probecascade.thresholds.certified import certified
from probecascade.thresholds.empirical import empirical
from probecascade.thresholds.feasibility import Feasibility, predict
from probecascade.thresholds.firing import OFF, FloatArray, GateScores
from probecascade.thresholds.problem import Certificate, Found, Problem, Sample, Targets, Unit
from probecascade.thresholds.promise import promise
from probecascade.thresholds.rivals import maxrank, paper, single, uniform
from probecascade.thresholds.targets import TargetLike, percent

METHODS: Mapping[str, Callable[[Problem], Found]] = {
    "certified": certified,
    "empirical": empirical,
    "paper": paper,
    "uniform": uniform,
    "single": single,
    "maxrank": maxrank,
}
"""By name: what turns a checked problem into thresholds."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """Thresholds (n_gates,), inf where a gate is off; a gate fires when score >= threshold.

    `certified` says whether every target is promised for new episodes, `certificates` what stands behind each;
    `needed` the missing numbers of "doomed" and "successful" episodes (of groups, where the promise is made for
    them), None where no number would do. `promise` is the sentence. `data` and `groups` are the calibration
    episodes, `seen` is what the thresholds do on them, which flatters. `largest_group`: the most episodes that a
    group can hold, where that was given.
    """

    method: str
    thresholds: FloatArray
    targets: Targets
    confidence: float
    unit: Unit
    certificates: tuple[Certificate, ...]
    gates: tuple[str, ...]
    notes: tuple[str, ...]
    data: GateScores = field(repr=False)
    groups: Sequence[Any] | NDArray[Any] | None = field(repr=False)
    largest_group: int | None = None

    @cached_property
    def seen(self) -> Backtest:
        return judge(self.thresholds, self.data, self.groups)

    @property
    def certified(self) -> bool:
        return bool(self.certificates) and all(certificate.certified for certificate in self.certificates)

    @property
    def needed(self) -> dict[str, int | None]:
        worst: dict[str, int | None] = {"doomed": 0, "successful": 0}
        for kind, who in (("catch", "doomed"), ("keep", "successful")):
            own = [certificate for certificate in self.certificates if certificate.kind == kind]
            missing = [certificate.missing for certificate in own if certificate.tested] or [c.missing for c in own]
            known = [more for more in missing if more is not None]
            worst[who] = max(known, default=0) if len(known) == len(missing) else None
        return worst

    @property
    def promise(self) -> str:
        return promise(self)

    def record(self) -> dict[str, Any]:
        """All of it as JSON values in full precision; thresholds that are off are None."""
        return {
            "method": self.method,
            "gates": list(self.gates),
            "thresholds": [None if value == OFF else float(value) for value in self.thresholds],
            "targets": {
                "catch": {self.gates[gate]: str(share) for gate, share in self.targets.catch},
                "keep": None if self.targets.keep is None else str(self.targets.keep),
            },
            "confidence": self.confidence,
            "unit": self.unit,
            **({} if self.largest_group is None else {"largest_group": self.largest_group}),
            "certified": self.certified,
            "certificates": [
                {
                    "kind": c.kind,
                    "gate": None if c.gate is None else self.gates[c.gate],
                    "target": str(c.target),
                    "certified": c.certified,
                    "among": c.among,
                    "allowed": c.allowed,
                    "seen": c.seen,
                    "missing": c.missing,
                    "counts": c.counts,
                    "tested": c.tested,
                }
                for c in self.certificates
            ],
            "needed": self.needed,
            "promise": self.promise,
            "notes": list(self.notes),
        }

    def evaluate(
        self,
        scores: ArrayLike,
        failed: ArrayLike,
        groups: Sequence[Any] | NDArray[Any] | None = None,
        cost_after: ArrayLike | None = None,
        *,
        cost_total: ArrayLike | None = None,
        resampling: Resampling = DEFAULT,
    ) -> Backtest:
        """Caught by gate, kept and saved on other episodes, with intervals clustered by group.

        The arrays are those of `calibrate`. `cost_total` (n_episodes,) are the tokens of whole episodes; without
        it, savings are shares of what is spent after the first gate that an episode reached, the most that could
        be saved.
        """
        return judge(self.thresholds, GateScores.check(scores, failed, cost_after), groups, cost_total, resampling)


def judge(
    thresholds: FloatArray,
    data: GateScores,
    groups: Sequence[Any] | NDArray[Any] | None = None,
    cost_total: ArrayLike | None = None,
    resampling: Resampling = DEFAULT,
) -> Backtest:
    """What thresholds do to scored episodes, in the one currency that their costs are given in."""
    if cost_total is None:
        total = np.where(np.isnan(data.scores), 0.0, data.cost_after).max(axis=1)
    else:
        total = np.asarray(cost_total, dtype=np.float64)
        if total.shape != data.failed.shape or not np.isfinite(total).all():
            raise DataError(f"total costs have shape {total.shape}: give one finite number for each episode.")
    return backtest(
        data.scores,
        thresholds,
        data.failed,
        {"tokens": Spending(data.cost_after, total)},
        groups=np.arange(len(data.failed)) if groups is None else groups,
        resampling=resampling,
    )


def calibrate(
    scores: ArrayLike,
    failed: ArrayLike,
    groups: Sequence[Any] | NDArray[Any] | None = None,
    cost_after: ArrayLike | None = None,
    *,
    catch: Mapping[int, TargetLike] | None = None,
    keep: TargetLike | None = None,
    confidence: float = 0.95,
    unit: Unit = "episode",
    teachers: GateScores | Sequence[Any] | None = None,
    method: str = "certified",
    seed: int = 0,
    ids: Sequence[Any] | NDArray[Any] | None = None,
    gates: Sequence[str] | None = None,
    largest_group: int | None = None,
) -> Calibration:
    """Thresholds that catch stated shares of the doomed episodes, keep a stated share of the successes, or both.

    scores: (n_episodes, n_gates) float, NaN where an episode did not reach the gate, columns in the order of
    the gates; failed: (n_episodes,) bool; groups: (n_episodes,) labels, episodes of one label may depend on
    each other; cost_after: (n_episodes, n_gates) tokens spent strictly after each gate, NaN only where the score
    is (None: every abort saves one).
    catch: cumulative shares of all doomed episodes by gate index, {0: 0.50, 2: 0.80}; keep: the share of the
    successes that no gate aborts. `confidence` is that of each promise. `unit`: whether the promise counts
    "episode"s or "group"s, each once. `teachers`: out-of-fold (scores, failed, cost_after, groups), the last
    two optional, of the episodes that fitted the probes; they shape the thresholds and certify nothing. `ids` are
    refused where one comes twice; `largest_group` is the most episodes that a group can hold, for promises per
    episode of dependent ones (None: the most seen, and the promise says so); `gates` are names for the promise.
    See docs/guarantees.md for what each method promises and why.

    DataError on arrays that do not fit together; UsageError on targets or settings that cannot be right.
    """
    if method not in METHODS:
        raise UsageError(f"method is {method!r}: give one of {', '.join(METHODS)}.")
    if largest_group is not None and largest_group < 1:
        raise UsageError(f"a largest group of {largest_group} was given: give the most episodes that a group can hold.")
    problem, data = _problem(scores, failed, groups, cost_after, catch, keep, confidence, unit, teachers, seed, ids)
    problem = replace(problem, largest_group=largest_group)
    names = _names(gates, data.scores.shape[1])
    found = METHODS[method](problem)
    return Calibration(
        method=method,
        thresholds=found.thresholds,
        targets=problem.targets,
        confidence=confidence,
        unit=unit,
        certificates=found.certificates,
        gates=names,
        notes=(*found.notes, *_copies(problem.sample, ids), *_out_of_order(data, problem.targets, names)),
        data=data.take(np.arange(len(data.failed))),  # a copy: `seen` is counted later, whatever becomes of the arrays
        groups=None if groups is None else np.array(groups),
        largest_group=largest_group,
    )


def feasibility(
    scores: ArrayLike,
    failed: ArrayLike,
    groups: Sequence[Any] | NDArray[Any] | None = None,
    cost_after: ArrayLike | None = None,
    *,
    catch: Mapping[int, TargetLike],
    keep: TargetLike,
    confidence: float = 0.95,
    teachers: GateScores | Sequence[Any] | None = None,
    seed: int = 0,
) -> Feasibility | None:
    """What `calibrate` is likely to certify with the same arguments, read only from episodes that certify nothing.

    None where no episode is left to read. Errors are those of `calibrate`.
    """
    return predict(
        _problem(scores, failed, groups, cost_after, catch, keep, confidence, "episode", teachers, seed, None)[0]
    )


def _problem(
    scores: ArrayLike,
    failed: ArrayLike,
    groups: Sequence[Any] | NDArray[Any] | None,
    cost_after: ArrayLike | None,
    catch: Mapping[int, TargetLike] | None,
    keep: TargetLike | None,
    confidence: float,
    unit: Unit,
    teachers: GateScores | Sequence[Any] | None,
    seed: int,
    ids: Sequence[Any] | NDArray[Any] | None,
) -> tuple[Problem, GateScores]:
    data = GateScores.check(scores, failed, cost_after)
    n_gates = data.scores.shape[1]
    if unit not in ("episode", "group"):
        raise UsageError(f"unit is {unit!r}: give 'episode' or 'group'.")
    if not 0.0 < confidence < 1.0:
        raise UsageError(f"confidence {confidence} is outside (0, 1): give a number such as 0.95.")
    if np.isinf(data.cost_after).any():
        raise DataError("costs hold infinite values: give finite tokens, NaN where a gate was not reached.")
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise UsageError(f"seed is {seed!r}: give a whole number of at least 0.")
    _refuse_duplicates(ids, len(data.failed))
    targets = Targets.parse(catch, keep, n_gates)
    _refuse_one_class(data)
    problem = Problem(
        sample=Sample.of(data, groups),
        targets=targets,
        delta=float(1 - Fraction(str(confidence))),  # exact: 1.0 - 0.95 is a little more than 0.05
        unit=unit,
        teachers=None if teachers is None else _teachers(teachers, n_gates, groups),
        seed=seed,
    )
    return problem, data


def _copies(sample: Sample, ids: Sequence[Any] | NDArray[Any] | None) -> tuple[str, ...]:
    """A note where every episode looks like a copy of another and no ids say otherwise."""
    data = sample.data
    table = np.column_stack([data.scores, data.cost_after, data.failed])
    counts = np.unique(table, axis=0, return_counts=True, equal_nan=True)[1]
    if ids is not None or counts.min() < 2 or len(counts) < 20:
        return ()
    return ("every episode comes twice or more; if these are copies, nothing is promised: give ids to refuse them.",)


def _out_of_order(data: GateScores, targets: Targets, names: Sequence[str]) -> list[str]:
    """A note for each catch target that counts gates which some episodes reach only after later ones."""
    found = []
    for gate, share in targets.catch:
        before, after = data.cost_after[:, : gate + 1], data.cost_after[:, gate + 1 :]
        rows = np.nan_to_num(before, nan=np.inf).min(axis=1) < np.nan_to_num(after, nan=-1.0).max(axis=1, initial=-1.0)
        if count := int((rows & data.failed).sum()):
            found.append(
                f"{count} failed episodes reach a gate up to {names[gate]} only after a later one: {percent(share)} "
                "counts an abort at either, whichever comes first."
            )
    return found


def _names(gates: Sequence[str] | None, n_gates: int) -> tuple[str, ...]:
    names = tuple(gates) if gates is not None else tuple(f"gate {g}" for g in range(n_gates))
    if len(names) != n_gates:
        raise UsageError(f"{len(names)} gates were named for {n_gates} columns of scores: name one per column.")
    if len(set(names)) != n_gates:
        raise UsageError(f"gate names come twice in {', '.join(names)}: give each gate a name of its own.")
    return names


def _refuse_duplicates(ids: Sequence[Any] | NDArray[Any] | None, n: int) -> None:
    if ids is None:
        return
    labels, counts = np.unique(np.asarray(ids).astype(str), return_counts=True)
    if counts.sum() != n:
        raise DataError(f"{counts.sum()} ids were given for {n} episodes: give one per row of scores.")
    if (counts > 1).any():
        raise DataError(
            f"{int((counts > 1).sum())} episode ids come twice (first: {labels[counts > 1][0]!r}): a repeated episode "
            "would make a certificate look stronger than it is; give each episode once."
        )


def _refuse_one_class(data: GateScores) -> None:
    if not data.doomed or not data.successes:
        raise DataError(
            f"the calibration episodes hold {data.doomed} failed and {data.successes} successful ones: "
            "thresholds need both."
        )
    if np.isnan(data.scores).all():
        raise DataError(
            "none of the calibration episodes has a score at any gate (NaN: it was not reached, or did not look): "
            "give gates that some of them reach."
        )


def _teachers(
    given: GateScores | Sequence[Any], n_gates: int, certifying: Sequence[Any] | NDArray[Any] | None
) -> Sample:
    groups = None
    if not isinstance(given, GateScores):
        if len(given) not in (2, 3, 4):
            raise DataError(
                f"{len(given)} arrays of teachers were given: give scores, failed, cost_after and groups, "
                "or the first two or three of them."
            )
        groups = given[3] if len(given) == 4 else None
        shared = set() if groups is None or certifying is None else set(map(str, groups)) & set(map(str, certifying))
        if shared:
            raise DataError(
                f"{len(shared)} groups both teach and certify (first: {min(shared)!r}): teachers shape the "
                "thresholds, so give episodes of other groups."
            )
        given = GateScores.check(*given[:3])
    if given.scores.shape[1] != n_gates:
        raise DataError(f"the teachers have {given.scores.shape[1]} gates, the episodes {n_gates}: score them alike.")
    if not given.doomed or not given.successes:
        raise DataError(
            f"the teachers hold {given.doomed} failed and {given.successes} successful episodes: give both."
        )
    return Sample.of(given, groups)
