"""Learners that try to break adaptive shrinking, on successes whose share in any region is known in closed form.

`shrink` promises its level whatever shapes its learner chooses, as long as the learner reads no certifying success
that is still inside the region. The learners here choose shapes to make the region hold more of the successes than the
count inside tells; the last one breaks the rule and reads them, so that one sees that a broken rule would be found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, ndtr

from probecascade.bounds import allowed_misses
from probecascade.thresholds.firing import BoolArray, FloatArray, GateScores
from probecascade.thresholds.shrink import shrink

DELTA = 0.05
_TRIED = 20  # random shapes that a learner chooses from
_CENTRES = np.array([[0.0, 0.0, 0.0], [1.5, -0.5, 1.0]])  # of two kinds of successes, equally frequent
_DOOMED = np.array([1.0, 1.5, 2.0])
_OPEN = 40  # successes that may be read from the start


@dataclass(frozen=True)
class Line:
    """An index per gate, `intercept + slope * score` with slopes above 0, in the place of `IndexShape`."""

    intercept: FloatArray
    slope: FloatArray

    def index(self, scores: FloatArray) -> FloatArray:
        """(n_episodes, n_gates); every gate is reached."""
        return self.intercept + self.slope * scores

    def cut(self, level: float) -> FloatArray:
        """(n_gates,): scores from which on the index exceeds `level`."""
        found = (level - self.intercept) / self.slope
        while (low := self.index(found) <= level).any():
            found = np.where(low, np.nextafter(found, np.inf), found)
        return found


class Adversary:
    """A learner in the place of `ShapeLearner`. `data` holds everything; `choose` is shown what may be read."""

    def __init__(self, data: GateScores, rng: np.random.Generator) -> None:
        self.data = data
        self.rng = rng

    def neutral(self) -> Line:
        """The shape while most certifying successes are inside: a random one."""
        return self.random_shape()

    def fit(self, weights: FloatArray, *, loss: float, **hints: object) -> Line:
        """The next shape. weights: (n_episodes,), 0 for the certifying successes inside; the rest does not matter."""
        may_be_read = weights > 0
        return self.choose(np.where(may_be_read[:, None], self.data.scores, np.nan), may_be_read & ~self.data.failed)

    def odds(self, which: BoolArray) -> FloatArray:
        """Nothing is believed about which doomed episodes look like successes."""
        return np.ones(int(which.sum()))

    def choose(self, visible: FloatArray, successes: BoolArray) -> Line:
        """A shape from the visible scores (n_episodes, n_gates), NaN where hidden, and the visible successes."""
        raise NotImplementedError

    def random_shape(self) -> Line:
        n_gates = self.data.scores.shape[1]
        return Line(self.rng.normal(0.0, 2.0, (n_gates,)), np.exp(self.rng.normal(0.0, 1.0, (n_gates,))))


class WorstGate(Adversary):
    """Raises only the gate at which the visible successes lie thinnest beyond the place where they are dense."""

    def choose(self, visible: FloatArray, successes: BoolArray) -> Line:
        seen = visible[successes]
        tails = (seen > np.median(seen, axis=0) + 1.5).mean(axis=0)
        # The others' indices lie so high that none of their successes leaves before this gate's are gone.
        return Line(np.where(np.arange(len(tails)) == np.argmin(tails), 0.0, 1e3), np.ones(len(tails)))


class Spiral(Adversary):
    """Turns the shape by the golden angle at every stage, so that the boundary never settles."""

    def __init__(self, data: GateScores, rng: np.random.Generator) -> None:
        super().__init__(data, rng)
        self.turn = 0.0

    def neutral(self) -> Line:
        return self.turned()

    def choose(self, visible: FloatArray, successes: BoolArray) -> Line:
        return self.turned()

    def turned(self) -> Line:
        self.turn += np.pi * (3.0 - np.sqrt(5.0))
        phases = self.turn + 2.0 * np.pi * np.arange(self.data.scores.shape[1]) / self.data.scores.shape[1]
        return Line(3.0 * np.cos(phases), np.exp(np.sin(2.0 * phases)))


class Snoop(Adversary):
    """Of many random shapes, the one under which the successes that were seen to leave lie lowest beside all others.

    It hopes to steer the region to where certifying successes happen to be rare.
    """

    def choose(self, visible: FloatArray, successes: BoolArray) -> Line:
        certifying = successes.copy()
        certifying[:_OPEN] = False
        others = ~np.isnan(visible).all(axis=1) & ~certifying
        shapes = [self.random_shape() for _ in range(_TRIED)]
        return max(shapes, key=lambda shape: _contrast(shape, visible[others], visible[certifying]))


class Gambler(Adversary):
    """Knows the distribution: where more successes have left than it expects, it keeps the region large, else small.

    A large region is that of the random shape with the most successes, in truth, beyond where most of those left lie.
    """

    def choose(self, visible: FloatArray, successes: BoolArray) -> Line:
        seen = visible[successes]
        edge = np.quantile(seen, 0.95, axis=0)
        shapes = [self.random_shape() for _ in range(_TRIED)]
        region = [success_share(shape.cut(float(shape.index(edge[None]).max()))) for shape in shapes]
        more_than_expected = len(seen) / (~self.data.failed).sum() > 1.0 - success_share(edge)
        return shapes[int(np.argmax(region) if more_than_expected else np.argmin(region))]


class Cheat(Adversary):
    """Breaks the rule: reads the certifying successes inside and keeps the region that hides most behind the fewest."""

    def __init__(self, data: GateScores, rng: np.random.Generator) -> None:
        super().__init__(data, rng)
        self.thresholds: FloatArray | None = None

    def neutral(self) -> Line:
        n_gates = self.data.scores.shape[1]
        return Line(np.zeros(n_gates), np.ones(n_gates))

    def fit(self, weights: FloatArray, *, loss: float, **hints: object) -> Line:
        successes = self.data.scores[~self.data.failed]
        inside = weights[~self.data.failed] == 0
        if self.thresholds is None:  # the neutral stages have put them at the highest score of those that left
            left = successes[_OPEN:][~inside[_OPEN:]]
            self.thresholds = np.full(successes.shape[1], np.nextafter(left.max(), np.inf))
        shapes = [self.random_shape() for _ in range(_TRIED)]
        regions = [self.shrunk(shape, successes[inside], self.thresholds) for shape in shapes]
        best = int(np.argmax([success_share(region) for region in regions]))
        self.thresholds = regions[best]
        return shapes[best]

    def shrunk(self, shape: Line, hidden: FloatArray, thresholds: FloatArray) -> FloatArray:
        """The thresholds once a quarter of the hidden successes has left along this shape."""
        index = np.where(hidden < thresholds, -np.inf, shape.index(hidden))
        level = np.sort(index.max(axis=1))[-int(0.75 * len(hidden)) - 1]
        return np.maximum(thresholds, shape.cut(float(level)))


ADVERSARIES: Mapping[str, type[Adversary]] = {
    "worst gate": WorstGate,
    "spiral": Spiral,
    "snoop": Snoop,
    "gambler": Gambler,
    "cheat (reads what it must not)": Cheat,
}


def _contrast(shape: Line, above: FloatArray, below: FloatArray) -> float:
    return float(np.median(shape.index(above).max(axis=1)) - np.median(shape.index(below).max(axis=1)))


def success_share(thresholds: FloatArray) -> float:
    """The share of all successes, exactly, that some gate aborts."""
    return float(1.0 - np.prod(ndtr(thresholds - _CENTRES), axis=1).mean())


def nominal(m: int, keep: float) -> float:
    """P(Beta(x + 1, m - x) > 1 - keep): how often shrinking m certifying successes breaks its promise, exactly."""
    return float(bdtr(allowed_misses(m, 1.0 - keep, delta=DELTA), m, 1.0 - keep))


def broken(name: str, m: int, keep: float, rng: np.random.Generator) -> bool:
    """Whether one shrinking of m certifying successes under this learner loses more than 1 - keep of all."""
    n = _OPEN + m
    successes = rng.standard_normal((n, 3)) + _CENTRES[rng.integers(0, 2, n)]
    doomed = rng.standard_normal((n, 3)) + _DOOMED
    scores = np.concatenate([successes, doomed])
    failed: NDArray[np.bool_] = np.arange(2 * n) >= n
    rows = np.arange(2 * n)
    learner = ADVERSARIES[name](GateScores(scores, failed, np.ones_like(scores)), rng)
    allowed = allowed_misses(m, 1.0 - keep, delta=DELTA)
    region = shrink(learner, (rows >= _OPEN) & (rows < n), rows < _OPEN, allowed)  # type: ignore[arg-type]
    return success_share(region.thresholds) > 1.0 - keep
