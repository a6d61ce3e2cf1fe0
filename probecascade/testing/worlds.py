"""Score worlds with a known truth: simulated episodes on which a method of setting thresholds can be tried.

Make a `Population` of a `World`, draw calibration episodes from it, hand them to the method, and ask the population
what the thresholds do. Since the draws come from the population itself, its shares are the truth, exactly:

    rng = np.random.default_rng(0)
    population = Population(World("heavy", n_gates=3).sample(100_000, rng))
    drawn = population.sample(400, rng)
    result = calibrate(drawn.scores, drawn.failed, cost_after=drawn.cost_after, keep=0.95)
    population.outcome(result.thresholds).kept  # at least 0.95 in 95 of 100 calibrations

The worlds are unlike where methods differ: in the tails of the scores, in ties, and in the scales of the gates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, ndtri

from probecascade.errors import DataError, UsageError
from probecascade.thresholds.firing import FloatArray, GateScores

IntArray = NDArray[np.intp]

WORLDS: Mapping[str, str] = {
    "normal": "normal scores",
    "heavy": "Student t scores with 2.5 degrees of freedom, cut off at a ceiling that many doomed episodes reach",
    "ties": "21 distinct scores",
    "scales": "normal scores, each gate's ten times as wide as those of the gate before; the second gate tells nothing",
}
"""By name: what sets a world apart."""

_FIRST, _LAST = 0.74, 0.90  # AUROC of the first and of the last gate alone
_HEAVY_SHIFTS = (1.328, 2.878)  # of doomed scores, for these AUROCs; found numerically
_FREEDOM, _HEAVY_WIDTH, _CEILING = 2.5, 0.7, 4.0
_TOKENS = (4.0, 0.4)  # mean and deviation of the logarithm of a round's tokens
_GROUP_PART = 0.9  # of the variance that an episode's scores share, in groups: runs of one task are much alike
_ICC = 0.7  # intraclass correlation of the labels, on the probit scale


@dataclass(frozen=True, slots=True)
class World:
    """A distribution of scored episodes with `n_gates` gates, gate g at the end of round g + 1.

    `name` is one of `WORLDS`; `failure` the share of episodes that are doomed. A gate alone tells doomed
    episodes from successes with an AUROC that rises from .74 at the first to .90 at the last. Half of the variance
    of an episode's scores is shared by its gates. Doomed episodes are longer; many end before the later gates.

    UsageError on another name, fewer than one gate, or a share outside (0, 1).
    """

    name: str
    n_gates: int
    failure: float = 0.55

    def __post_init__(self) -> None:
        if self.name not in WORLDS:
            raise UsageError(f"the world is {self.name!r}: give one of {', '.join(WORLDS)}.")
        if self.n_gates < 1:
            raise UsageError(f"a world of {self.n_gates} gates was asked for: give at least one.")
        if not 0.0 < self.failure < 1.0:
            raise UsageError(f"the share of doomed episodes is {self.failure}: give a share between 0 and 1.")

    def sample(self, n: int, rng: np.random.Generator) -> GateScores:
        """`n` independent episodes."""
        failed = rng.random(n) < self.failure
        return self._scored(failed, self._noise((n, 1), rng), rng)

    def sample_groups(
        self, n_groups: int, sizes: tuple[int, int], rng: np.random.Generator, correlation: float
    ) -> tuple[GateScores, IntArray]:
        """Episodes of `n_groups` groups and their group numbers, (n_episodes,).

        A group has between sizes[0] and sizes[1] episodes, each number as likely as another. Its difficulty sets how
        many of them are doomed (intraclass correlation .7 on the probit scale; `failure` holds over all groups), and
        its level is part of all their scores. `correlation` in [-1, 1] is that of difficulty and level: below 0 the
        successes of easy groups, of which there are many, have the higher scores. UsageError on what cannot be.
        """
        low, high = sizes
        if not 1 <= low <= high or not -1.0 <= correlation <= 1.0:
            raise UsageError(
                f"groups of {low} to {high} episodes with a correlation of {correlation} were asked for: "
                "give rising sizes from 1 and a correlation in [-1, 1]."
            )
        group = np.repeat(np.arange(n_groups), rng.integers(low, high + 1, n_groups))
        n = len(group)
        difficulty = rng.standard_normal(n_groups)
        level = correlation * difficulty + np.sqrt(1.0 - correlation**2) * rng.standard_normal(n_groups)
        latent = np.sqrt(_ICC) * difficulty[group] + np.sqrt(1.0 - _ICC) * rng.standard_normal(n)
        failed = latent > ndtri(1.0 - self.failure)
        own = np.sqrt(1.0 - _GROUP_PART) * self._noise((n, 1), rng)
        return self._scored(failed, np.sqrt(_GROUP_PART) * level[group, None] + own, rng), group

    def _scored(self, failed: NDArray[np.bool_], shared: FloatArray, rng: np.random.Generator) -> GateScores:
        """Scores and costs of episodes with these labels (n,) and shared parts of their scores (n, 1)."""
        noise = shared + self._noise((len(failed), self.n_gates), rng)
        width = _HEAVY_WIDTH if self.name == "heavy" else np.sqrt(0.5)
        scores = width * noise + self._shifts() * failed[:, None]
        if self.name == "heavy":
            scores = np.minimum(scores, _CEILING)
        elif self.name == "ties":
            scores = np.round(20.0 * expit(scores)) / 20.0
        elif self.name == "scales":
            scores = scores * 10.0 ** np.arange(-2, self.n_gates - 2)
        reached, after = self._rounds(failed, rng)
        return GateScores(np.where(reached, scores, np.nan), failed, np.where(reached, after, np.nan))

    def _noise(self, shape: tuple[int, int], rng: np.random.Generator) -> FloatArray:
        return rng.standard_t(_FREEDOM, shape) if self.name == "heavy" else rng.standard_normal(shape)

    def _shifts(self) -> FloatArray:
        """(n_gates,): how much higher the scores of doomed episodes are."""
        first, last = _HEAVY_SHIFTS if self.name == "heavy" else np.sqrt(2.0) * ndtri([_FIRST, _LAST])
        shifts: FloatArray = np.linspace(first, last, self.n_gates)
        if self.name == "scales" and self.n_gates > 1:
            shifts[1] = 0.0
        return shifts

    def _rounds(self, failed: NDArray[np.bool_], rng: np.random.Generator) -> tuple[NDArray[np.bool_], FloatArray]:
        """(n, n_gates) each: whether the episode has the gate's round, and the whole tokens of the rounds after it."""
        n, longest = len(failed), 2 * self.n_gates + 2
        mean = np.where(failed, self.n_gates + 1.5, max(0.8 * self.n_gates, 1.0))
        rounds = np.minimum(1 + rng.geometric(1.0 / mean), longest)
        played = np.arange(longest) < rounds[:, None]
        tokens = np.where(played, np.round(rng.lognormal(*_TOKENS, (n, longest))), 0.0)
        after = tokens.sum(axis=1, keepdims=True) - np.cumsum(tokens, axis=1)
        return played[:, : self.n_gates], after[:, : self.n_gates]


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What thresholds do to a population: `caught` (n_gates,), the share of the doomed aborted at or before each
    gate; `kept`, the share of the successes that no gate aborts; `saved`, mean tokens saved per episode."""

    caught: FloatArray
    kept: float
    saved: float


class Population:
    """Labelled episodes, and their groups where they have any, whose shares are the truth for draws from them.

    data: n_episodes of both kinds; groups: (n_episodes,) group numbers from 0, each in use. DataError otherwise.
    """

    def __init__(self, data: GateScores, groups: IntArray | None = None) -> None:
        n = len(data.failed)
        if not data.doomed or not data.successes:
            raise DataError(
                f"{data.doomed} doomed episodes and {data.successes} successes were given: a population needs both."
            )
        sizes = np.ones(n, dtype=np.intp) if groups is None else np.bincount(groups)
        if sizes.sum() != n or (sizes == 0).any():
            raise DataError(f"{sizes.sum()} group numbers from 0 to {len(sizes) - 1} were given for {n} episodes.")
        self.data = data
        self._sizes = sizes
        self._by_group = np.arange(n) if groups is None else np.argsort(groups, kind="stable")
        each = np.ones(n) if groups is None else 1.0 / sizes[groups]
        # One gate after the other is read: columns that lie together are read several times faster.
        order = np.argsort(~data.failed, kind="stable")
        self._classes = order[: data.doomed], order[data.doomed :]
        self._scores = np.ascontiguousarray(data.scores[order].T)
        self._costs = np.ascontiguousarray(np.nan_to_num(data.cost_after[order]).T)
        self._weights = {"episode": np.ones(n), "group": each[order]}

    def sample(self, n: int, rng: np.random.Generator, failure: float | None = None) -> GateScores:
        """`n` episodes drawn independently; with `failure`, this share of them doomed in expectation."""
        if failure is None:
            return self._rows(rng.integers(len(self.data.failed), size=n))
        failed = rng.random(n) < failure
        drawn = [rows[rng.integers(len(rows), size=n)] for rows in self._classes]
        return self._rows(np.where(failed, *drawn))

    def sample_groups(self, n_groups: int, rng: np.random.Generator) -> tuple[GateScores, IntArray]:
        """The episodes of `n_groups` groups drawn independently, and their new group numbers, (n_episodes,)."""
        drawn = rng.integers(len(self._sizes), size=n_groups)
        sizes = self._sizes[drawn]
        starts = (np.cumsum(self._sizes) - self._sizes)[drawn]
        within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        rows = self._by_group[np.repeat(starts, sizes) + within]
        return self._rows(rows), np.repeat(np.arange(n_groups), sizes)

    def _rows(self, rows: IntArray) -> GateScores:
        return GateScores(self.data.scores[rows], self.data.failed[rows], self.data.cost_after[rows])

    def outcome(self, thresholds: ArrayLike, unit: Literal["episode", "group"] = "episode") -> Outcome:
        """What these thresholds (n_gates,) do, firing at score >= threshold. DataError on another shape.

        Per "group" every group counts once: an episode counts for 1 / (size of its group).
        """
        limits = np.asarray(thresholds, dtype=np.float64)
        if limits.shape != self._scores.shape[:1]:
            raise DataError(f"{limits.size} thresholds were given for {len(self._scores)} gates: give one per gate.")
        doomed = self.data.doomed
        weights = self._weights[unit]
        among, of_successes = weights[:doomed], weights[doomed:]
        fired = np.zeros(self._scores.shape[1], dtype=np.bool_)
        saved = np.zeros(self._scores.shape[1])
        caught = np.zeros(len(limits))
        for g, limit in enumerate(limits):
            here = self._scores[g] >= limit
            fired |= here
            # The first gate that fires is the one with the most still to spend.
            np.maximum(saved, here * self._costs[g], out=saved)
            caught[g] = among @ fired[:doomed] / among.sum()
        lost = of_successes @ fired[doomed:] / of_successes.sum()
        return Outcome(caught, float(1.0 - lost), float(weights @ saved / weights.sum()))
