"""Is it worth looking less often? Gates that look where a signal says so, beside the same gates looking always."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from probecascade.errors import UsageError
from probecascade.evaluation.backtest import backtest_run, chosen_episodes
from probecascade.intervals import DEFAULT, Interval, Resampling, mean_interval, ratio_interval
from probecascade.policies import FitResult, TriggerShare, fit_cascade, look_less
from probecascade.policies.gates import looked_at
from probecascade.policies.scoring import spending_after
from probecascade.policies.trigger import Side
from probecascade.store import Run
from probecascade.thresholds import Backtest
from probecascade.thresholds.targets import TargetLike

Array = NDArray[np.float64]

SHARES: tuple[Fraction, ...] = (Fraction(1), Fraction(1, 2), Fraction(1, 4))


@dataclass(frozen=True, slots=True)
class TriggerRow:
    """A cascade whose gates look at a share of their moments, judged on the test episodes.

    `certified`: whether its targets are promised. `caught`: of the failures, those aborted; `kept`: of the
    successes, those not aborted; `saved`: of all tokens, those spent strictly after the abort. `looked`: of the
    visits of running episodes to gates that are not off, those at which the gate looked; `looks`: how many times
    an episode's states were read, on average. `*_gain`: the difference from the gates that always look, paired by
    episode. Intervals resample groups.
    """

    share: Fraction
    triggers: Mapping[str, str]
    certified: bool
    promise: str
    caught: Interval
    kept: Interval
    saved: Interval
    looked: Interval
    looks: Interval
    caught_gain: Interval
    kept_gain: Interval
    saved_gain: Interval
    looks_gain: Interval

    def record(self) -> dict[str, Any]:
        """As JSON values; NaN stands where there is nothing to take a share of."""
        return asdict(self) | {"share": float(self.share), "triggers": dict(self.triggers)}


def compare_triggers(
    run: Run,
    *,
    keep: TargetLike | None = None,
    recalls: str | Sequence[TargetLike] | None = None,
    signal: str = "entropy_mean",
    side: Side | None = None,
    shares: Sequence[Fraction] = SHARES,
    resampling: Resampling = DEFAULT,
    **options: Any,
) -> tuple[TriggerRow, ...]:
    """One row per share, the gates that always look first, all at the same promise, on the test episodes.

    Probes are fitted once, by `fit_cascade` with `options`; every share then has triggers learnt on the fit episodes
    and thresholds set on the calibration episodes (`look_less`). UsageError for a share outside (0, 1];
    NothingToDoError without a labelled test episode; else as `fit_cascade` raises.
    """
    if not shares or not all(0 < share <= 1 for share in shares):
        given = ", ".join(f"{float(share):g}" for share in shares) or "none"
        raise UsageError(f"the shares {given} were given: give one or more above 0 and at most 1, such as 1,0.5.")
    wanted = {share: TriggerShare(signal, share, side) for share in sorted({*shares} - {1}, reverse=True)}
    fitted = fit_cascade(run, keep=keep, recalls=recalls, **options)
    always = _Judged.of(fitted, run, resampling)
    rows = [_row(Fraction(1), always, always, resampling)]
    for share, trigger in wanted.items():
        less = look_less(fitted, run, trigger, seed=options.get("seed", 0))
        rows.append(_row(share, _Judged.of(less, run, resampling), always, resampling))
    return tuple(rows)


@dataclass(frozen=True, slots=True, eq=False)
class _Judged:
    """One cascade on the test episodes, (n_test,) each. `visits`: gates not off that an episode comes to, running."""

    result: FitResult
    outcome: Backtest
    failed: NDArray[np.bool_]
    group: NDArray[np.object_]
    aborted: Array
    saved: Array
    total: Array
    visits: Array
    looks: Array

    @classmethod
    def of(cls, result: FitResult, run: Run, resampling: Resampling) -> Self:
        cascade = result.cascade
        test = chosen_episodes(cascade, run, "test")
        outcome = backtest_run(cascade, run, "test", resampling=resampling)
        first = np.array(outcome.first)
        after = spending_after(run, [g.checkpoint for g in cascade.gates], gate_answers=cascade.gate_answers)
        tokens = after.tokens_after[test]
        stop = np.where(first >= 0, np.take_along_axis(tokens, np.maximum(first, 0)[:, None], axis=1)[:, 0], 0.0)
        live = np.array([not gate.off for gate in cascade.gates])
        running = live & ~np.isnan(tokens) & (np.nan_to_num(tokens, nan=-1.0) >= stop[:, None])
        return cls(
            result=result,
            outcome=outcome,
            failed=run.episodes.failed[test],
            group=run.episodes.group[test],
            aborted=(first >= 0).astype(np.float64),
            saved=stop,
            total=run.episodes.tokens[test].astype(np.float64),
            visits=running.sum(axis=1).astype(np.float64),
            looks=(running & looked_at(run, cascade.gates)[test]).sum(axis=1).astype(np.float64),
        )


def _row(share: Fraction, judged: _Judged, always: _Judged, resampling: Resampling) -> TriggerRow:
    result, group, failed = judged.result, judged.group, judged.failed
    aborted = judged.aborted - always.aborted
    return TriggerRow(
        share=share,
        triggers={g.checkpoint: str(g.trigger) for g in result.cascade.gates if g.trigger is not None},
        certified=result.calibration.certified,
        promise=result.cascade.promise,
        caught=judged.outcome.caught,
        kept=judged.outcome.kept,
        saved=judged.outcome.saved["tokens"].share,
        looked=ratio_interval(judged.looks, judged.visits, group, resampling),
        looks=mean_interval(judged.looks, group, resampling),
        caught_gain=ratio_interval(np.where(failed, aborted, 0.0), failed, group, resampling),
        kept_gain=ratio_interval(np.where(failed, 0.0, -aborted), ~failed, group, resampling),
        saved_gain=ratio_interval(judged.saved - always.saved, judged.total, group, resampling),
        looks_gain=mean_interval(judged.looks - always.looks, group, resampling),
    )
