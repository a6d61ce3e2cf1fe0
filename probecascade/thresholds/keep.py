"""Thresholds that keep a share of the successes and save the most tokens, on the calibration episodes."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from probecascade.errors import DataError
from probecascade.thresholds.firing import OFF, FloatArray, GateScores, first_firing
from probecascade.thresholds.shape import IndexShape, learn_shape
from probecascade.thresholds.targets import TargetLike, needed, parse_target


@dataclass(frozen=True, slots=True)
class KeepResult:
    """Thresholds and what they do on the calibration episodes, recounted from the thresholds themselves."""

    target: Fraction
    thresholds: FloatArray
    shape: IndexShape
    kept: int
    successes: int
    caught: int
    doomed: int
    saved: float  # tokens strictly after the gates that fired, doomed and successes together
    fired_doomed: tuple[int, ...]
    fired_successes: tuple[int, ...]


def keep_thresholds(
    scores: ArrayLike,
    failed: ArrayLike,
    cost_after: ArrayLike,
    keep: TargetLike,
    *,
    teachers: GateScores | None = None,
) -> KeepResult:
    """Thresholds under which at least ceil(keep * n) of the n calibration successes are never aborted.

    scores, cost_after: (n_episodes, n_gates), NaN where the gate was not reached; failed: (n_episodes,)
    bool. `teachers` (out-of-fold scores of the episodes that fitted the probes) shape the allocation of the
    allowed aborts over the gates; without them the calibration episodes do, which saves less on new ones.
    DataError unless there are both doomed and successful episodes.
    """
    data = GateScores.check(scores, failed, cost_after)
    target = parse_target(keep, what="keep target")
    for name, group in (("calibration", data), ("teaching", teachers or data)):
        if not group.doomed or not group.successes:
            raise DataError(
                f"the {name} episodes hold {group.doomed} failed and {group.successes} successful ones: "
                "a keep target needs both."
            )
    allowed = data.successes - needed(target, data.successes)
    shape = learn_shape(teachers or data, loss=(allowed + 0.5) / data.successes)
    thresholds = _cut(shape, data, allowed)
    first = first_firing(data.scores, thresholds, data.cost_after)
    fired = first >= 0
    gates = range(len(thresholds))
    return KeepResult(
        target=target,
        thresholds=thresholds,
        shape=shape,
        kept=int((~fired & ~data.failed).sum()),
        successes=data.successes,
        caught=int((fired & data.failed).sum()),
        doomed=data.doomed,
        saved=float(data.cost_after[fired, first[fired]].sum()),
        fired_doomed=tuple(int((data.failed & (first == g)).sum()) for g in gates),
        fired_successes=tuple(int((~data.failed & (first == g)).sum()) for g in gates),
    )


def _cut(shape: IndexShape, data: GateScores, allowed: int) -> FloatArray:
    """Per-gate thresholds of the largest region that costs at most `allowed` calibration successes."""
    index = shape.index(data.scores)
    seen = index[np.isfinite(index)]
    if not seen.size:
        return np.full(len(shape.slope), OFF)
    level = float(np.sort(index.max(axis=1)[~data.failed])[::-1][allowed])
    # Where fewer successes than may be lost reach any gate, every score that was seen may fire.
    return shape.cut(max(level, float(np.nextafter(seen.min(), -np.inf))))
