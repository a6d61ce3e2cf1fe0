"""How the gates share one budget of aborts: an index per gate, and the learner that fits it.

All gates share one *index*, the logarithm of the tokens that an abort is expected to gain for each success
it risks. Aborting exactly where the index exceeds a level is the Lagrangian solution of "save the most at a
bounded loss", and the regions are nested in the level.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from probecascade.thresholds.firing import LOWEST, OFF, BoolArray, FloatArray, GateScores

_ROUNDS = 6  # of the gains' fixed-point iteration from scratch; they settle within four in every world tried
_FLAT = 1e-6  # a standardised slope below this is rounding, not evidence
_RIDGE = 1e-2  # per episode, on the standardised slope: bounds it when the classes separate
_SETTLED = 1e-6  # a Newton step below this changes no threshold that matters
_SURE = 30.0  # log odds beyond which nothing changes
_GAIN_ROWS = 4096  # doomed episodes that the gains are averaged over: more changes no digit that matters


@dataclass(frozen=True, slots=True)
class IndexShape:
    """Index per gate: `intercept + slope * standard(score)`; a gate with slope 0 never fires.

    Scores are standardised by `centre` and `scale`, and far tails are bent: beyond `BEND` scales a step counts for
    `_TAIL` of one, so that a few extreme scores do not flatten the curve for all others.
    """

    intercept: FloatArray
    slope: FloatArray
    centre: FloatArray
    scale: FloatArray

    def index(self, scores: FloatArray) -> FloatArray:
        """(n_episodes, n_gates), -inf where a gate was not reached or never fires."""
        usable = ~np.isnan(scores) & (self.slope > 0)
        with np.errstate(over="ignore"):
            filled = np.where(usable, scores, self.centre)
            values = self.intercept + self.slope * standard(filled, self.centre, self.scale)
        return np.where(usable, values, -np.inf)

    def columns(self, gates: Sequence[int]) -> IndexShape:
        """The index of these gates alone."""
        chosen = list(gates)
        return IndexShape(self.intercept[chosen], self.slope[chosen], self.centre[chosen], self.scale[chosen])

    def cut(self, level: float) -> FloatArray:
        """(n_gates,): the smallest scores whose index exceeds `level`, exact to the float; `OFF` where none does.

        In floating point the index still never falls as the score rises, so a search over the floats finds the
        one place where the comparison turns. It reads no data.
        """
        found = np.full(len(self.slope), OFF)
        on = np.flatnonzero(self.slope > 0)
        shape = self.columns(on.tolist())

        def over(keys: NDArray[np.int64]) -> BoolArray:
            exceeds: BoolArray = shape.index(_unkey(keys)[None, :])[0] > level
            return exceeds

        with np.errstate(over="ignore"):
            low, high = shape._bracket(level, over)
            while (high > low + 1).any():
                middle = (low >> 1) + (high >> 1) + (low & high & 1)  # no overflow
                up = over(middle)
                high, low = np.where(up, middle, high), np.where(up, low, middle)
            found[on] = np.where(over(high), _unkey(high), OFF)
        return found

    def _bracket(
        self, level: float, over: Callable[[NDArray[np.int64]], BoolArray]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Float keys around the place where the index passes the level, widened from where algebra puts it."""
        steps = (level - self.intercept) / self.slope
        beyond = np.abs(steps) - BEND
        steps = np.where(beyond > 0, np.sign(steps) * (BEND + beyond / TAIL), steps)
        guess = _key(np.clip(self.centre + self.scale * steps, -_BIG, _BIG))
        least, most = _key(np.array([-_BIG, _BIG]))
        low, high, width = guess, guess, 1
        while width < 1 << 62:
            below, above = over(low) & (low > least), ~over(high) & (high < most)
            if not below.any() and not above.any():
                break
            low = np.where(below, np.maximum(low, least + width) - width, low)
            high = np.where(above, np.minimum(high, most - width) + width, high)
            width *= 4
        else:
            low, high = np.where(over(low), least, low), np.where(over(high), high, most)
        return low, high


def standard(scores: FloatArray, centre: FloatArray, scale: FloatArray) -> FloatArray:
    """Scores in scales from the centre, the tails beyond `BEND` bent; rises strictly in exact arithmetic."""
    with np.errstate(over="ignore"):
        steps = (scores - centre) / scale
        beyond = np.abs(steps) - BEND
        bent: FloatArray = np.where(beyond > 0, np.sign(steps) * (BEND + TAIL * beyond), steps)
    return bent


BEND, TAIL = 2.5, 0.25
_BIG = -LOWEST


def _key(values: FloatArray) -> NDArray[np.int64]:
    """Floats as integers in the same order."""
    bits = values.view(np.int64)
    return np.where(bits < 0, np.int64(-(2**63)) - bits, bits)


def _unkey(keys: NDArray[np.int64]) -> FloatArray:
    bits = np.where(keys < 0, np.int64(-(2**63)) - keys, keys)
    return bits.view(np.float64)


def learn_shape(teachers: GateScores, *, loss: float) -> IndexShape:
    """The index per gate: logit P(failed | score) plus the log of the tokens gained by an abort there.

    The gain is net of what later gates would still gain at the operating level, where the share `loss` of
    the successes is aborted; both depend on each other, hence the iteration. Gates whose score does not
    rise with failure, or that doomed or successful teachers never reached, get slope 0.
    """
    return ShapeLearner(teachers, np.ones(len(teachers.failed), dtype=np.bool_)).fit(
        np.ones(len(teachers.failed)), loss=loss
    )


class ShapeLearner:
    """Fits index shapes to the same episodes again and again, under other weights.

    `basis` marks the episodes that may fix the scale of the scores. Episodes of weight 0 are never read.
    """

    def __init__(self, data: GateScores, basis: BoolArray) -> None:
        self.data = data
        self._reached = ~np.isnan(data.scores)
        seen = self._reached & basis[:, None]
        spreads = [_robust(column[use]) for column, use in zip(data.scores.T, seen.T, strict=True)]
        self._centre, self._scale, high = np.array(spreads).T
        self._informative = self._scale > 0
        self._scale[~self._informative] = 1.0
        reach = standard(high, self._centre, self._scale)
        self._reach = np.where(reach > 0, reach, 1.0)
        filled = np.where(self._reached, data.scores, self._centre)
        self._z = standard(filled, self._centre, self._scale)
        self._beta = np.zeros((2, data.scores.shape[1]))
        doomed = np.flatnonzero(data.failed)
        if doomed.size > _GAIN_ROWS:
            doomed = doomed[np.linspace(0, doomed.size - 1, _GAIN_ROWS).astype(np.intp)]
        self._doomed = doomed
        self._own_costs = np.where(self._reached[doomed], data.cost_after[doomed], np.nan)
        self.mean_gain = float(_column_means(self._own_costs).max(initial=0.0))
        """Tokens that an abort of a doomed episode gains, at the gate where that is most."""
        self._gains: FloatArray | None = None
        self.level = np.inf
        """Of the last fit: the index above which the asked share of the successes lies."""
        self.set_bonus(None)

    def set_bonus(self, bonus: FloatArray | None) -> None:
        """Credit `bonus` (n_gates,) tokens for an abort at each gate, on top of those it saves, from now on."""
        self._costs = self._own_costs + (0.0 if bonus is None else bonus)
        self._ordered = in_time_order(self._costs)

    def neutral(self) -> IndexShape:
        """Scores in steps from the median of the open episodes to their 95 % quantile, while nothing else is known.

        Every gate then gives way at the same share of high scores, however skewed they are: no gate is lost for good
        only because its scores have a short tail.
        """
        slope = np.where(self._informative, 1.0 / self._reach, 0.0)
        return self._shape(np.zeros(len(slope)), slope)

    def _shape(self, intercept: FloatArray, slope: FloatArray) -> IndexShape:
        return IndexShape(intercept, slope, self._centre, self._scale)

    def fit(self, weights: FloatArray, *, loss: float, unseen: FloatArray | None = None) -> IndexShape:
        """The index at the level where the share `loss` of the successes (by weight) is inside.

        weights: (n_episodes,) >= 0. `unseen` (n_episodes,) >= 0: weight of successes that may only be counted, laid on
        doomed episodes where such successes would be found. Starts from the last fit, so that refits are quick.
        """
        used = weights > 0
        base, slope = self._logits(weights, used, unseen)
        gains = _column_means(self._costs)
        slope = np.where(gains > 0, slope, 0.0)
        floor = 1e-3 * gains.max(initial=0.0) or 1.0
        rounds = _ROUNDS if self._gains is None else 2
        log_gains = np.log(np.maximum(gains, floor)) if self._gains is None else self._gains
        known = used & ~self.data.failed
        scores, mass = self.data.scores[known], weights[known]
        if unseen is not None:
            laid = unseen > 0
            scores, mass = np.concatenate([scores, self.data.scores[laid]]), np.concatenate([mass, unseen[laid]])
        for _ in range(rounds):
            shape = self._shape(base + log_gains, slope)
            level = _level(shape.index(scores).max(axis=1), mass, loss)
            fires = shape.index(self.data.scores[self._doomed]) > level
            net = np.log(np.maximum(_net_gains(fires, self._costs, ordered=self._ordered), floor))
            log_gains = (log_gains + net) / 2.0  # halfway, because the full step can oscillate
        self._gains = log_gains
        shape = self._shape(base + log_gains, slope)
        self.level = _level(shape.index(scores).max(axis=1), mass, loss)
        return shape

    def odds(self, rows: BoolArray) -> FloatArray:
        """Odds of success of these episodes by the last fit, at the gate where they look most doomed."""
        b0, b1 = self._beta
        logits = np.where(self._reached[rows] & (b1 > 0), b0 + b1 * self._z[rows], -_SURE)
        odds: FloatArray = np.exp(-np.clip(logits.max(axis=1), -_SURE, _SURE))
        return odds

    def _logits(self, weights: FloatArray, used: BoolArray, unseen: FloatArray | None) -> tuple[FloatArray, FloatArray]:
        """Intercepts and slopes of logit P(failed | score), ridge on the slopes; slope 0 where it does not rise."""
        z, reached = self._z[used], self._reached[used]
        y: NDArray[Any] = self.data.failed[used, None].astype(np.float64)
        w = weights[used, None] * reached
        if unseen is not None:
            both = weights[used] + unseen[used]
            y = y * (weights[used] / both)[:, None]
            w = both[:, None] * reached
        total = w.sum(axis=0)
        doomed = (w * y).sum(axis=0)
        usable = self._informative & (doomed > 0) & (doomed < total)
        penalty = _RIDGE * total
        one = np.ones(len(z))
        b0, b1 = self._beta
        b0, b1 = np.where(usable, b0, 0.0), np.where(usable, b1, 0.0)
        for _ in range(60):
            p = expit(b0 + b1 * z)
            residual = w * (y - p)
            curvature = w * p * (1.0 - p)
            g0, g1 = one @ residual, _dots(residual, z) - penalty * b1
            h00, h01 = one @ curvature + 1e-9, _dots(curvature, z)
            h11 = _dots(curvature, z * z) + penalty + 1e-9
            det = h00 * h11 - h01**2
            # A full Newton step may overshoot.
            step0 = np.clip((h11 * g0 - h01 * g1) / det, -3.0, 3.0) * usable
            step1 = np.clip((h00 * g1 - h01 * g0) / det, -3.0, 3.0) * usable
            b0, b1 = b0 + step0, b1 + step1
            if max(np.abs(step0).max(), np.abs(step1).max()) < _SETTLED:
                break
        self._beta = np.stack([b0, b1])
        return b0, np.where(usable & (b1 >= _FLAT), b1, 0.0)


def _robust(scores: FloatArray) -> tuple[float, float, float]:
    """Median, the spread of a normal sample with these quartiles (else the deviation), and the 95 % quantile."""
    if not scores.size:
        return 0.0, 0.0, 0.0
    low, middle, high, top = np.quantile(scores, [0.25, 0.5, 0.75, 0.95])
    return float(middle), float((high - low) / 1.349 or scores.std()), float(top)


def _level(reach: FloatArray, mass: FloatArray, loss: float) -> float:
    """The smallest observed reach above which at most the share `loss` of the mass lies."""
    order = np.argsort(-reach, kind="stable")
    above = np.cumsum(mass[order])
    place = int(np.searchsorted(above, loss * above[-1], side="right"))
    return float(reach[order[min(place, len(order) - 1)]])


def _net_gains(fires: BoolArray, costs: FloatArray, *, ordered: bool) -> FloatArray:
    """Mean tokens that an abort at each gate gains over leaving the doomed episode to the later gates.

    fires, costs: (n_doomed, n_gates), costs NaN where a gate was not reached; `ordered`: no cost rises along a row.
    """
    reached = ~np.isnan(costs)
    worth = np.where(reached & fires, costs, 0.0)
    net = np.full_like(costs, np.nan)
    still = np.zeros(len(costs))
    for g in range(costs.shape[1] - 1, -1, -1):
        if not ordered:
            later = (costs < costs[:, [g]]) | ((costs == costs[:, [g]]) & (np.arange(costs.shape[1]) > g))
            still = np.where(later, worth, 0.0).max(axis=1)
        net[:, g] = costs[:, g] - still
        if ordered:  # the gate that fires next is the one with the most still to spend
            still = np.where(reached[:, g] & fires[:, g], costs[:, g], still)
    return _column_means(net)


def in_time_order(costs: FloatArray) -> bool:
    """Whether no episode has more left to spend at a later gate than at an earlier one that it reached."""
    least = np.minimum.accumulate(np.where(np.isnan(costs), np.inf, costs), axis=1)
    return bool((np.where(np.isnan(costs), -np.inf, costs)[:, 1:] <= least[:, :-1]).all())


def _dots(a: FloatArray, b: FloatArray) -> FloatArray:
    """(n_gates,) sums of products by column."""
    sums: FloatArray = np.einsum("ng,ng->g", a, b)
    return sums


def _column_means(values: FloatArray) -> FloatArray:
    """(n_gates,) means of what is there, 0 where nothing is."""
    there = ~np.isnan(values)
    means: FloatArray = np.where(there, values, 0.0).sum(axis=0) / np.maximum(there.sum(axis=0), 1)
    return means
