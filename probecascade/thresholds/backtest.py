"""What thresholds would have done to recorded episodes: caught, kept and saved, strictly after the gate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from probecascade.errors import DataError
from probecascade.intervals import DEFAULT, Interval, Resampling, ratio_interval, share_interval
from probecascade.thresholds.firing import BoolArray, FloatArray, GateScores, first_firing


@dataclass(frozen=True, slots=True, eq=False)
class Spending:
    """What episodes cost in one currency: `after` each gate (n_episodes, n_gates), NaN where it was not
    reached, and in `total` (n_episodes,)."""

    after: FloatArray
    total: FloatArray


@dataclass(frozen=True, slots=True)
class GateOutcome:
    """One gate's counts: alive when it is reached, aborted by it, and cumulative up to it."""

    alive_doomed: int
    alive_successes: int
    fired_doomed: int
    fired_successes: int
    caught: int  # doomed episodes aborted at or before this gate
    kept: int  # successes that no gate up to this one aborts


@dataclass(frozen=True, slots=True)
class Saving:
    """One currency, spent strictly after the gates that fired. `share` is of all that all episodes spend.

    `doomed_share` and `success_share` are the parts of `share` that come from aborted doomed episodes and
    from aborted would-be successes. The sums are exact.
    """

    saved: float
    total: float
    doomed_saved: float
    success_saved: float
    share: Interval
    doomed_share: Interval
    success_share: Interval


@dataclass(frozen=True, slots=True)
class Backtest:
    """Outcome of thresholds on labelled episodes. Counts are exact; intervals resample groups.

    `precision` is the share of aborts that hit doomed episodes. `withheld_doomed` and `withheld_successes`
    are those aborts that came on the turn that finished the episode: they save nothing but the answer.
    """

    doomed: int
    successes: int
    caught: Interval
    kept: Interval
    precision: Interval
    caught_count: int
    kept_count: int
    gates: tuple[GateOutcome, ...]
    saved: Mapping[str, Saving]
    withheld_doomed: int
    withheld_successes: int
    first: tuple[int, ...]  # per episode, the index of the gate that aborts it, -1 where none does


def backtest(
    scores: ArrayLike,
    thresholds: ArrayLike,
    failed: ArrayLike,
    spending: Mapping[str, Spending],
    *,
    groups: Sequence[Any] | NDArray[Any],
    final: ArrayLike | None = None,
    resampling: Resampling = DEFAULT,
) -> Backtest:
    """Run thresholds (n_gates,) over recorded scores (n_episodes, n_gates), NaN where a gate was not reached.

    `spending` must hold "tokens", which also says which gate of an episode came first; what an episode
    spends after the first gate that fires is saved. `final` marks gates on the turn that finishes the
    episode. DataError on arrays that do not fit together.
    """
    if "tokens" not in spending:
        raise DataError("the spending holds no 'tokens': give at least those, after each gate and in total.")
    data = GateScores.check(scores, failed, spending["tokens"].after)
    limits = np.asarray(thresholds, dtype=np.float64)
    if limits.shape != data.scores.shape[1:]:
        raise DataError(f"{limits.size} thresholds were given for {data.scores.shape[1]} gates: give one per gate.")
    first = first_firing(data.scores, limits, data.cost_after)
    fired = first >= 0
    at = np.maximum(first, 0)[:, None]
    withheld = np.zeros(len(first), dtype=np.bool_)
    if final is not None:
        withheld = fired & np.take_along_axis(np.asarray(final, dtype=np.bool_), at, axis=1)[:, 0]
    return Backtest(
        doomed=data.doomed,
        successes=data.successes,
        caught=share_interval(fired, data.failed, groups, resampling),
        kept=share_interval(~fired, ~data.failed, groups, resampling),
        precision=share_interval(data.failed, fired, groups, resampling),
        caught_count=int((fired & data.failed).sum()),
        kept_count=int((~fired & ~data.failed).sum()),
        gates=_gate_outcomes(data, first),
        saved={name: _saving(spent, at, fired, data.failed, groups, resampling) for name, spent in spending.items()},
        withheld_doomed=int((withheld & data.failed).sum()),
        withheld_successes=int((withheld & ~data.failed).sum()),
        first=tuple(first.tolist()),
    )


def _gate_outcomes(data: GateScores, first: NDArray[np.intp]) -> tuple[GateOutcome, ...]:
    """Counts by gate. An episode is alive at a gate that it reached no later than the one that aborted it."""
    stop = np.take_along_axis(data.cost_after, np.maximum(first, 0)[:, None], axis=1)
    reached = ~np.isnan(data.scores)
    gates = np.arange(data.scores.shape[1])
    before = (data.cost_after > stop) | ((data.cost_after == stop) & (gates <= first[:, None]))
    alive = reached & (before | (first < 0)[:, None])
    outcomes = []
    for g in gates:
        gone = (first >= 0) & (first <= g)
        outcomes.append(
            GateOutcome(
                alive_doomed=int((alive[:, g] & data.failed).sum()),
                alive_successes=int((alive[:, g] & ~data.failed).sum()),
                fired_doomed=int(((first == g) & data.failed).sum()),
                fired_successes=int(((first == g) & ~data.failed).sum()),
                caught=int((gone & data.failed).sum()),
                kept=int((~gone & ~data.failed).sum()),
            )
        )
    return tuple(outcomes)


def _saving(
    spent: Spending,
    at: NDArray[np.intp],
    fired: BoolArray,
    failed: BoolArray,
    groups: Sequence[Any] | NDArray[Any],
    resampling: Resampling,
) -> Saving:
    after = np.take_along_axis(np.asarray(spent.after, dtype=np.float64), at, axis=1)[:, 0]
    saved = np.where(fired, after, 0.0)
    of_doomed, of_successes = np.where(failed, saved, 0.0), np.where(failed, 0.0, saved)
    return Saving(
        saved=float(saved.sum()),
        total=float(np.sum(spent.total)),
        doomed_saved=float(of_doomed.sum()),
        success_saved=float(of_successes.sum()),
        share=ratio_interval(saved, spent.total, groups, resampling),
        doomed_share=ratio_interval(of_doomed, spent.total, groups, resampling),
        success_share=ratio_interval(of_successes, spent.total, groups, resampling),
    )
