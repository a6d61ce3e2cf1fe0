"""Two cascades of the same gates on the same episodes: what adapting one to new conditions has changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probecascade.evaluation.resample import Measure, draw_groups, interval_of
from probecascade.intervals import DEFAULT, Resampling
from probecascade.policies import Cascade, score_run
from probecascade.policies.recalibrate import judged
from probecascade.store import Run
from probecascade.thresholds import Backtest

Labels = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class GateChange:
    """A gate before and after: AUROC and Brier score, {value, low, high} each, and their paired changes.

    n labelled episodes come there, of which so many failed. All are None where one class is missing.
    """

    checkpoint: str
    n: int
    failed: int
    auroc: dict[str, Any] | None
    brier: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Change:
    """Gate by gate, and what both cascades would have done to the episodes at their own thresholds."""

    gates: tuple[GateChange, ...]
    before: Backtest
    after: Backtest


def compare_cascades(
    before: Cascade, after: Cascade, run: Run, among: Labels, resampling: Resampling = DEFAULT
) -> Change | None:
    """Both cascades, whose gates stand at the same checkpoints, on these episodes of a run; None if there are none.

    among: (n_episodes,) bool, labelled ones. Intervals resample groups, both cascades on the same resamples.
    """
    if not among.any():
        return None
    tables = [score_run(run, cascade.gates, gate_answers=cascade.gate_answers) for cascade in (before, after)]
    failed, codes = run.episodes.failed, np.unique(run.episodes.group.astype(str), return_inverse=True)[1].reshape(-1)
    counts = draw_groups(int(codes.max()) + 1, resampling)
    gates = []
    for g, gate in enumerate(before.gates):
        there = among & ~np.isnan(tables[0].scores[:, g])
        n, lost = int(there.sum()), int((there & failed).sum())
        if not 0 < lost < n:
            gates.append(GateChange(gate.checkpoint, n, lost, None, None))
            continue
        measure = Measure(failed[there], codes[there], counts, 0.95)
        old, new = (measure.column(table.scores[there, g]) for table in tables)
        changes = {
            metric: {
                "before": measure.interval(old, metric, resampling.confidence),
                "after": measure.interval(new, metric, resampling.confidence),
                "change": interval_of(*new.less(old, metric), resampling.confidence),
            }
            for metric in ("auroc", "brier")
        }
        gates.append(GateChange(gate.checkpoint, n, lost, changes["auroc"], changes["brier"]))
    first, second = (judged(c, run, t, among, resampling) for c, t in zip((before, after), tables, strict=True))
    return Change(tuple(gates), first, second)
