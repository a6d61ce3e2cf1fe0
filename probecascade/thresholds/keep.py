"""Thresholds that keep a share of the successes and save the most tokens, on the calibration episodes.

All gates share one *index*, the logarithm of the tokens that an abort is expected to gain for each success
it risks. Aborting exactly where the index exceeds a level `t` is the Lagrangian solution of "save the most
at a bounded loss"; the regions are nested in `t`, so the allowed loss fixes `t` as one order statistic.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from probecascade.errors import DataError
from probecascade.thresholds.firing import OFF, BoolArray, FloatArray, GateScores, first_firing
from probecascade.thresholds.targets import TargetLike, needed, parse_target

_ROUNDS = 6  # of the gains' fixed-point iteration; they settle within four in every world tried
_FLAT = 1e-6  # a standardised slope below this is rounding, not evidence
_RIDGE = 1e-3  # per episode, on the standardised slope: bounds it when the classes separate


@dataclass(frozen=True, slots=True)
class IndexShape:
    """Affine index per gate, `intercept + slope * score`; a gate with slope 0 never fires."""

    intercept: FloatArray
    slope: FloatArray

    def index(self, scores: FloatArray) -> FloatArray:
        """(n_episodes, n_gates), -inf where a gate was not reached or never fires."""
        usable = ~np.isnan(scores) & (self.slope > 0)
        values: FloatArray = self.intercept + self.slope * np.where(usable, scores, 0.0)
        return np.where(usable, values, -np.inf)


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


def learn_shape(teachers: GateScores, *, loss: float) -> IndexShape:
    """The index per gate: logit P(failed | score) plus the log of the tokens gained by an abort there.

    The gain is net of what later gates would still gain at the operating level, where the share `loss` of
    the successes is aborted; both depend on each other, hence the iteration. Gates whose score does not
    rise with failure, or that doomed or successful teachers never reached, get slope 0.
    """
    n_gates = teachers.scores.shape[1]
    fits = [_logistic(teachers.scores[:, g], teachers.failed) for g in range(n_gates)]
    base = np.array([fit[0] for fit in fits], dtype=np.float64)
    slope = np.array([fit[1] for fit in fits], dtype=np.float64)
    gains = np.array([_mean(teachers.cost_after[teachers.failed, g]) for g in range(n_gates)], dtype=np.float64)
    slope[gains <= 0] = 0.0
    floor = 1e-3 * gains.max() if gains.any() else 1.0
    log_gains = np.log(np.maximum(gains, floor))
    shape = IndexShape(base + log_gains, slope)
    for _ in range(_ROUNDS):
        index = shape.index(teachers.scores)
        # The smallest observed level at which at most this share of the teaching successes is aborted.
        reach = np.sort(index.max(axis=1)[~teachers.failed])[::-1]
        level = float(reach[min(int(loss * reach.size), reach.size - 1)])
        net = np.log(np.maximum(_net_gains(index > level, teachers), floor))
        log_gains = (log_gains + net) / 2.0  # halfway, because the full step can oscillate
        shape = IndexShape(base + log_gains, slope)
    return shape


def _net_gains(fires: BoolArray, teachers: GateScores) -> FloatArray:
    """Mean tokens that an abort at each gate gains over leaving the doomed episode to the later gates."""
    costs = np.where(np.isnan(teachers.cost_after), -1.0, teachers.cost_after)[teachers.failed]
    fires = fires[teachers.failed]
    net = np.zeros(costs.shape[1])
    for g in range(costs.shape[1]):
        here = costs[:, g] >= 0
        own = costs[here, g][:, None]
        later = (costs[here] < own) | ((costs[here] == own) & (np.arange(costs.shape[1]) > g))
        still = np.where(later & fires[here], costs[here], 0.0).max(axis=1, initial=0.0)
        net[g] = _mean(own[:, 0] - still)
    return net


def _mean(values: FloatArray) -> float:
    values = values[~np.isnan(values)]
    return float(values.mean()) if values.size else 0.0


def _logistic(scores: FloatArray, failed: BoolArray) -> tuple[float, float]:
    """Intercept and slope of logit P(failed | score), ridge on the slope; (0, 0) where it does not rise."""
    reached = ~np.isnan(scores)
    y = failed[reached].astype(np.float64)
    if not 0 < y.sum() < y.size:
        return 0.0, 0.0
    centre, spread = float(scores[reached].mean()), float(scores[reached].std())
    if spread <= 0.0:
        return 0.0, 0.0
    design = np.stack([np.ones_like(y), (scores[reached] - centre) / spread], axis=1)
    penalty = np.array([0.0, _RIDGE * y.size])
    beta = np.zeros(2)
    for _ in range(60):
        p = expit(design @ beta)
        gradient = design.T @ (y - p) - penalty * beta
        hessian = (design * (p * (1.0 - p))[:, None]).T @ design + np.diag(penalty + 1e-9)
        step = np.clip(np.linalg.solve(hessian, gradient), -3.0, 3.0)  # a full Newton step may overshoot
        beta += step
        if np.abs(step).max() < 1e-10:
            break
    if beta[1] < _FLAT:
        return 0.0, 0.0
    slope = float(beta[1]) / spread
    return float(beta[0]) - slope * centre, slope


def _cut(shape: IndexShape, data: GateScores, allowed: int) -> FloatArray:
    """Per-gate thresholds of the largest region that costs at most `allowed` calibration successes.

    Each is one float above the boundary of the region, moved where rounding would let the threshold and the
    index disagree about a score that was seen: the count then holds whatever the arithmetic did.
    """
    index = shape.index(data.scores)
    reach = index.max(axis=1)
    level = np.sort(reach[~data.failed])[::-1][allowed]
    thresholds = np.full(len(shape.slope), OFF)
    seen = index[np.isfinite(index)]
    if not seen.size:
        return thresholds
    # Where fewer successes than may be lost reach any gate, every score that was seen may fire.
    level = max(level, np.nextafter(seen.min(), -np.inf))
    for g in np.flatnonzero(shape.slope > 0):
        inside = data.scores[index[:, g] > level, g]
        outside = data.scores[np.isfinite(index[:, g]) & (index[:, g] <= level), g]
        boundary = np.nextafter((level - shape.intercept[g]) / shape.slope[g], np.inf)
        boundary = min(boundary, inside.min(initial=np.inf))
        thresholds[g] = max(boundary, np.nextafter(outside.max(initial=-np.inf), np.inf))
    return thresholds
