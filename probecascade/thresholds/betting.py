"""Promises per episode where the episodes of a group depend on each other: a betting bound on one value per group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from probecascade.errors import DataError
from probecascade.thresholds.balance import Balance
from probecascade.thresholds.firing import OFF, BoolArray, FloatArray
from probecascade.thresholds.problem import Certificate, Found, Problem, Sample, refused
from probecascade.thresholds.shape import IndexShape, ShapeLearner

_TEACHING = 0.30  # of the groups, when no teachers are given: they fix the path and the stakes, and certify nothing
_FACTORS = np.array([1.0, 0.6, 1.6])  # stakes, as multiples of the best one for the guessed variance
_WEIGHTS = np.array([0.6, 0.2, 0.2])
_NEAR = 0.7  # of the allowed loss: about where the certified region ends up


def capital(values: FloatArray, alpha: float, stakes: FloatArray, weights: FloatArray) -> float:
    """Logarithm of what a gambler owns who bets that the mean of `values` is below `alpha`, starting from 1.

    values: (n_groups,) independent, in [0, 1]; stakes, weights: (n_stakes,), fixed beforehand, weights summing
    to 1. Under a mean >= alpha the expected wealth is at most 1, so that it exceeds 1/delta with probability at
    most delta (Markov). It does not depend on the order of the groups and never grows as values rise.
    Source: Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", 2024.
    """
    logs = np.log1p(np.outer(stakes, alpha - values)).sum(axis=1) + np.log(weights)
    return float(np.logaddexp.reduce(logs))


def certified_dependent(problem: Problem) -> Found:
    """Thresholds on a path fixed by teaching groups, at a level where every promise's bet is won.

    The regions are nested along the path and wealth is monotone along it, so a keep promise that is won at one
    level is won above it and a catch promise below it: the last level won is that of a fixed-sequence test, at
    level delta without a correction. All catch promises together are an intersection-union test,
    given all or none.
    """
    teach, certify = _split(problem)
    if not 0 < teach.data.doomed < len(teach.group) or not len(certify.group):
        return refused(problem, "the groups that teach hold one class only")
    shape = _path(problem, teach, certify)
    largest, note = _largest(problem)
    walk = _Walk.along(shape, teach, certify, largest, problem.delta)
    keep = [walk.bet("keep", None, problem.targets.keep)] if problem.targets.keep else []
    catch = [walk.bet("catch", gate, share) for gate, share in problem.targets.catch]
    place = keep[0].end if keep else min(bet.end for bet in catch)
    inside = 0 <= place < len(walk.levels)
    thresholds = shape.cut(float(walk.levels[place])) if inside else np.full(len(shape.slope), OFF)
    # Which catch target is false depends on the level, so they are given all or none.
    all_caught = inside and all(bet.won(place) for bet in catch)
    certificates = [bet.certificate(place, inside and bet.won(place)) for bet in keep]
    certificates += [bet.certificate(place, all_caught) for bet in catch]
    return Found(thresholds, tuple(certificates), note)


def _largest(problem: Problem) -> tuple[int, tuple[str, ...]]:
    """The bound on a group's size that the bets rest on, and a note where it was only seen, not known."""
    parts = [problem.sample.group] if problem.teachers is None else [problem.sample.group, problem.teachers.group]
    seen = max(int(np.bincount(part).max()) for part in parts)
    if problem.largest_group is None:
        return seen, (f"the promise assumes that no group of new episodes is larger than the largest seen ({seen}).",)
    if problem.largest_group < seen:
        raise DataError(
            f"a largest group of {problem.largest_group} was given, but one holds {seen} episodes: "
            "give the most that a group can hold."
        )
    return problem.largest_group, ()


@dataclass(frozen=True, slots=True, eq=False)
class _Walk:
    """The levels of a path, and where its certifying (own) and teaching episodes stand on it."""

    levels: FloatArray
    own: FloatArray  # (n_certifying, n_gates) indices
    taught: FloatArray
    certify: Sample
    teach: Sample
    codes: NDArray[np.intp]  # of the certifying groups, without gaps
    largest: int
    delta: float

    @classmethod
    def along(cls, shape: IndexShape, teach: Sample, certify: Sample, largest: int, delta: float) -> _Walk:
        own, taught = shape.index(certify.data.scores), shape.index(teach.data.scores)
        levels = np.concatenate([[-np.inf], np.unique(own[np.isfinite(own)])])
        return cls(levels, own, taught, certify, teach, _codes(certify), largest, delta)

    def bet(self, kind: Literal["keep", "catch"], gate: int | None, target: Fraction) -> _Bet:
        """The bet on this promise, with the stakes that the teaching groups suggest."""
        columns = slice(None) if gate is None else slice(gate + 1)
        own, taught = self.own[:, columns].max(axis=1), self.taught[:, columns].max(axis=1)
        about, taught_about = self.certify.data.failed, self.teach.data.failed
        if kind == "keep":
            about, taught_about = ~about, ~taught_about
        alpha = float(1 - target)
        level = np.quantile(taught[taught_about], alpha if kind == "catch" else float(target), method="higher")
        missed = taught > level if kind == "keep" else taught <= level
        values = _values(missed, taught_about, _codes(self.teach), alpha, self.largest)
        variance = max(float(values.var()), alpha * (1.0 - alpha) / (4.0 * self.largest**2))
        best = np.sqrt(2.0 * np.log(1.0 / self.delta) / (self.certify.n_groups * variance))
        stakes = np.minimum(best * _FACTORS, 0.95 / (1.0 - alpha))
        return _Bet(kind, gate, target, own, about, stakes, self)


@dataclass(frozen=True, slots=True, eq=False)
class _Bet:
    """One promise along a walk: which certifying episodes it is about, and what is staked on it."""

    kind: Literal["keep", "catch"]
    gate: int | None
    target: Fraction
    reach: FloatArray
    about: BoolArray
    stakes: FloatArray
    walk: _Walk

    def missed(self, place: int) -> BoolArray:
        """Which of the episodes break the promise at this level."""
        over = self.reach > self.walk.levels[place]
        missed: BoolArray = self.about & (over if self.kind == "keep" else ~over)
        return missed

    def wealth(self, place: int) -> float:
        alpha = float(1 - self.target)
        values = _values(self.missed(place), self.about, self.walk.codes, alpha, self.walk.largest)
        return capital(values, alpha, self.stakes, _WEIGHTS)

    def won(self, place: int) -> bool:
        return bool(self.wealth(place) >= -np.log(self.walk.delta))

    @property
    def end(self) -> int:
        """The last place where the bet is won, walking down for keep and up for catch; past the end if nowhere."""
        n = len(self.walk.levels)
        if self.kind == "keep":
            return _first(n, self.won)
        return n - 1 - _first(n, lambda back: self.won(n - 1 - back))

    def certificate(self, place: int, certified: bool) -> Certificate:
        n, groups = len(self.walk.levels), self.walk.certify.n_groups
        place = min(max(place, 0), n - 1)
        missing: int | None = 0
        if not certified:
            safest = n - 1 if self.kind == "keep" else place
            missing = _more(self.wealth(safest) / groups, groups, self.walk.delta)
        seen = int(self.missed(place).sum())
        return Certificate(self.kind, self.gate, self.target, certified, groups, None, seen, missing, "group")


def _values(missed: BoolArray, about: BoolArray, codes: NDArray[np.intp], alpha: float, largest: int) -> FloatArray:
    """(n_groups,) in [0, 1]: alpha plus the group's sum of (missed - alpha), over the largest group size.

    Their mean is at least alpha exactly where the promise is broken per episode. Groups without an episode that
    the promise is about count too, with the value alpha.
    """
    excess = np.where(about, missed - alpha, 0.0)
    return np.bincount(codes, weights=excess) / largest + alpha


def _codes(sample: Sample) -> NDArray[np.intp]:
    """Group codes without gaps."""
    codes: NDArray[np.intp] = np.unique(sample.group, return_inverse=True)[1].ravel()
    return codes


def _first(n: int, holds: Callable[[int], bool]) -> int:
    """The smallest place of 0..n-1 from which on `holds`, which never turns false again; n if nowhere."""
    low, high = -1, n
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _more(growth: float, n: int, delta: float) -> int | None:
    """How many more groups, at this growth of log wealth per group."""
    return max(1, int(np.ceil(-np.log(delta) / growth)) - n) if growth > 0 else None


def _split(problem: Problem) -> tuple[Sample, Sample]:
    """Teaching and certifying groups, whole."""
    if problem.teachers is not None:
        return problem.teachers, problem.sample
    sample = problem.sample
    groups = problem.rng("teach").permutation(np.unique(sample.group))
    teaching = np.isin(sample.group, groups[: int(np.ceil(_TEACHING * len(groups)))])
    return sample.take(teaching), sample.take(~teaching)


def _path(problem: Problem, teach: Sample, certify: Sample) -> IndexShape:
    """The index that the teaching groups suggest, with bonuses where catch targets stand beside keep."""
    keep, catch = problem.targets.keep, problem.targets.catch
    learner = ShapeLearner(teach.data, np.ones(len(teach.group), dtype=np.bool_))
    weights = np.ones(len(teach.group))
    loss = _NEAR * float(1 - keep) if keep is not None else 0.3
    if catch:
        # The certifying labels must not be read; as many doomed episodes a group are expected there as here.
        tests = max(1, round(teach.data.doomed * certify.n_groups / teach.n_groups))
        balance = Balance(catch, loss=loss, tests=tests, delta=problem.delta)
        for _ in range(6):
            balance(learner, weights)
    return learner.fit(weights, loss=loss)
