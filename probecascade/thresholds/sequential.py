"""Sequential thresholds for cumulative recall of doomed episodes, in exact integer arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from probecascade.errors import DataError
from probecascade.thresholds.firing import OFF, BoolArray, FloatArray, GateScores
from probecascade.thresholds.targets import TargetLike, match_gates, needed, parse_rising


@dataclass(frozen=True, slots=True)
class RecallGate:
    """One gate's threshold and what it does on the calibration episodes.

    `caught` of `doomed` episodes are aborted at or before this gate; `alive_*` had reached it unaborted;
    `fired_*` are aborted by it. `reached` says whether `caught` meets the target.
    """

    target: Fraction
    threshold: float
    reached: bool
    caught: int
    doomed: int
    alive_doomed: int
    alive_successes: int
    fired_doomed: int
    fired_successes: int

    @property
    def off(self) -> bool:
        return self.threshold == OFF


@dataclass(frozen=True, slots=True)
class SequentialResult:
    """Thresholds in gate order, with both promises counted: failures caught, successes kept."""

    gates: tuple[RecallGate, ...]
    kept: int
    successes: int

    @property
    def thresholds(self) -> FloatArray:
        return np.array([gate.threshold for gate in self.gates], dtype=np.float64)

    @property
    def caught(self) -> int:
        return self.gates[-1].caught

    @property
    def doomed(self) -> int:
        return self.gates[-1].doomed

    @property
    def reached(self) -> bool:
        return all(gate.reached for gate in self.gates)


def recall_thresholds(scores: ArrayLike, failed: ArrayLike, recalls: str | Sequence[TargetLike]) -> SequentialResult:
    """Thresholds that catch the share `recalls[i]` of all doomed episodes at or before gate i.

    scores: (n_episodes, n_gates), NaN where the gate was not reached; failed: (n_episodes,) bool. The
    shares count every doomed episode, those that ended before the gate included. Gate i needs
    ceil(recalls[i] * n) minus those caught so far: its threshold is that order statistic among the doomed
    still alive, ties fire together. A target out of reach sets the gate to the lowest doomed score alive.
    DataError without a doomed episode, UsageError for targets that do not rise or do not match the gates.
    """
    data = GateScores.check(scores, failed)
    targets = parse_rising(recalls)
    match_gates(targets, [f"gate {i + 1}" for i in range(data.scores.shape[1])])
    if not data.doomed:
        raise DataError(f"none of the {len(data.failed)} calibration episodes failed: recall of failures needs one.")
    alive = np.ones(len(data.failed), dtype=np.bool_)
    gates = []
    caught = 0
    for column, target in zip(data.scores.T, targets, strict=True):
        gate, fired = _set_gate(column, data.failed, alive, target, caught)
        gates.append(gate)
        caught = gate.caught
        alive &= ~fired
    return SequentialResult(tuple(gates), int((alive & ~data.failed).sum()), data.successes)


def _set_gate(
    column: FloatArray, failed: BoolArray, alive: BoolArray, target: Fraction, caught: int
) -> tuple[RecallGate, BoolArray]:
    here = alive & ~np.isnan(column)
    descending = np.sort(column[here & failed])[::-1]
    doomed = int(failed.sum())
    need = needed(target, doomed) - caught
    useful = need > 0 and descending.size > 0
    threshold = float(descending[min(need, descending.size) - 1]) if useful else OFF
    fired = here & (column >= threshold)
    fired_doomed = int((fired & failed).sum())
    gate = RecallGate(
        target=target,
        threshold=threshold,
        reached=fired_doomed >= need,
        caught=caught + fired_doomed,
        doomed=doomed,
        alive_doomed=int(descending.size),
        alive_successes=int((here & ~failed).sum()),
        fired_doomed=fired_doomed,
        fired_successes=int((fired & ~failed).sum()),
    )
    return gate, fired
