"""What each gate does, as shares with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from probecascade.bounds import clopper_pearson
from probecascade.intervals import DEFAULT, Interval, Resampling, ratio_interval, share_interval
from probecascade.thresholds import Backtest, GateScores

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class GateShares:
    """`alive`: of all episodes, those that come to the gate unaborted; `fired`: of those, aborted by it; up to and
    including it `caught` of all doomed, `kept` of all successes, and `saved` of all tokens."""

    alive: Interval
    fired: Interval
    caught: Interval
    kept: Interval
    saved: Interval


def shares_by_gate(
    data: GateScores,
    result: Backtest,
    groups: Sequence[Any] | NDArray[Any] | None = None,
    total: ArrayLike | None = None,
    resampling: Resampling = DEFAULT,
) -> tuple[GateShares, ...]:
    """The shares of each gate, in order, in a back-test of the same episodes.

    groups (n_episodes,): intervals resample whole groups; where every group is one episode, or none are given, those
    of counts are exact (Clopper-Pearson). total (n_episodes,): tokens of whole episodes; without it `saved` is of
    what is spent after the first gate that an episode reached.
    """
    n = len(data.failed)
    labels = np.arange(n) if groups is None else np.asarray(groups)
    grouped = len(np.unique(labels)) < n
    after = np.where(np.isnan(data.scores), 0.0, data.cost_after)
    spent = after.max(axis=1) if total is None else np.asarray(total, dtype=np.float64)
    first = np.array(result.first, dtype=np.intp)
    at_abort = after[np.arange(n), first]  # of no meaning where nothing fires
    alive = alive_at_gates(data, first)
    everyone = np.ones(n, dtype=np.bool_)

    def share(hits: BoolArray, among: BoolArray) -> Interval:
        if grouped or not among.any():
            return share_interval(hits, among, labels, resampling)
        k, m = int((hits & among).sum()), int(among.sum())
        return Interval(k / m, *clopper_pearson(k, m, confidence=resampling.confidence), m, m, 0)

    found = []
    for gate in range(data.scores.shape[1]):
        gone = (first >= 0) & (first <= gate)
        found.append(
            GateShares(
                alive=share(alive[:, gate], everyone),
                fired=share(first == gate, alive[:, gate]),
                caught=share(gone, data.failed),
                kept=share(~gone, ~data.failed),
                saved=ratio_interval(np.where(gone, at_abort, 0.0), spent, labels, resampling),
            )
        )
    return tuple(found)


def alive_at_gates(data: GateScores, first: NDArray[np.intp]) -> BoolArray:
    """(n_episodes, n_gates): the gates that an episode comes to before, or when, `first` (n_episodes,) aborts it.

    Which of two gates comes first is told by the tokens still to spend; equal ones go by gate order.
    """
    stop = np.take_along_axis(data.cost_after, np.maximum(first, 0)[:, None], axis=1)
    gates = np.arange(data.scores.shape[1])
    before = (data.cost_after > stop) | ((data.cost_after == stop) & (gates <= first[:, None]))
    reached: BoolArray = ~np.isnan(data.scores) & (before | (first < 0)[:, None])
    return reached
