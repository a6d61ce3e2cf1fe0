"""Promises per episode where the episodes of a group depend on each other: a betting bound on one value per group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from probecascade.thresholds.balance import Balance
from probecascade.thresholds.firing import OFF, BoolArray, FloatArray
from probecascade.thresholds.problem import Certificate, Found, Problem, Sample
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
    level delta without a correction. All catch promises together are an intersection-union test.
    """
    teach, certify = _split(problem)
    n_gates = certify.data.scores.shape[1]
    if not 0 < teach.data.doomed < len(teach.group) or not len(certify.group):
        return Found(np.full(n_gates, OFF), _refused(problem, certify.n_groups))
    shape = _path(problem, teach, certify)
    largest = int(np.bincount(problem.sample.group).max())
    walk = _Walk.along(shape, teach, certify, largest, problem.delta)
    bets = [walk.bet("keep", None, problem.targets.keep)] if problem.targets.keep else []
    bets += [walk.bet("catch", gate, share) for gate, share in problem.targets.catch]
    ends = [bet.end for bet in bets]
    first, rest = ends[0], [end for bet, end in zip(bets, ends, strict=True) if bet.kind == "catch"]
    place = first if problem.targets.keep else min(rest)
    thresholds = shape.cut(float(walk.levels[place])) if 0 <= place < len(walk.levels) else np.full(n_gates, OFF)
    return Found(thresholds, tuple(bet.certificate(place) for bet in bets))


@dataclass(frozen=True, slots=True, eq=False)
class _Walk:
    """The levels of a path, and where its certifying (own) and teaching episodes stand on it."""

    levels: FloatArray
    own: FloatArray  # (n_certifying, n_gates) indices
    taught: FloatArray
    certify: Sample
    teach: Sample
    largest: int
    delta: float

    @classmethod
    def along(cls, shape: IndexShape, teach: Sample, certify: Sample, largest: int, delta: float) -> _Walk:
        own, taught = shape.index(certify.data.scores), shape.index(teach.data.scores)
        levels = np.concatenate([[-np.inf], np.unique(own[np.isfinite(own)])])
        return cls(levels, own, taught, certify, teach, largest, delta)

    def bet(self, kind: Literal["keep", "catch"], gate: int | None, target: Fraction) -> _Bet:
        """The bet on this promise, with the stakes that the teaching groups suggest."""
        columns = slice(None) if gate is None else slice(gate + 1)
        own, taught = self.own[:, columns].max(axis=1), self.taught[:, columns].max(axis=1)
        about, taught_about = self.certify.data.failed, self.teach.data.failed
        if kind == "keep":
            about, taught_about = ~about, ~taught_about
        alpha = float(1 - target)
        level = np.quantile(taught[taught_about], alpha if kind == "catch" else float(target))
        missed = taught > level if kind == "keep" else taught <= level
        values = _values(missed, taught_about, self.teach.group, alpha, self.largest)
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
        values = _values(self.missed(place), self.about, self.walk.certify.group, alpha, self.walk.largest)
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

    def certificate(self, place: int) -> Certificate:
        n = len(self.walk.levels)
        inside = 0 <= place < n
        certified = inside and self.won(place)
        missing: int | None = 0
        if not certified:
            safest = n - 1 if self.kind == "keep" else 0
            growth = self.wealth(place if inside and self.kind == "catch" else safest) / self.walk.certify.n_groups
            missing = _more(growth, self.walk.certify.n_groups, self.walk.delta)
        seen = int(self.missed(min(max(place, 0), n - 1)).sum())
        return Certificate(
            self.kind, self.gate, self.target, certified, self.walk.certify.n_groups, None, seen, missing
        )


def _values(missed: BoolArray, about: BoolArray, group: NDArray[np.intp], alpha: float, largest: int) -> FloatArray:
    """(n_groups,) in [0, 1]: alpha plus the group's sum of (missed - alpha), over the largest group size.

    Their mean is at least alpha exactly where the promise is broken per episode. Groups without an episode that
    the promise is about count too, with the value alpha.
    """
    excess = np.where(about, missed - alpha, 0.0)
    codes = np.unique(group, return_inverse=True)[1].ravel()
    return np.bincount(codes, weights=excess) / largest + alpha


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
    groups = problem.rng().permutation(np.unique(sample.group))
    teaching = np.isin(sample.group, groups[: int(np.ceil(_TEACHING * len(groups)))])
    return sample.take(teaching), sample.take(~teaching)


def _path(problem: Problem, teach: Sample, certify: Sample) -> IndexShape:
    """The index that the teaching groups suggest, with bonuses where catch targets stand beside keep."""
    keep, catch = problem.targets.keep, problem.targets.catch
    learner = ShapeLearner(teach.data, np.ones(len(teach.group), dtype=np.bool_))
    weights = np.ones(len(teach.group))
    loss = _NEAR * float(1 - keep) if keep is not None else 0.3
    if catch:
        balance = Balance(catch, loss=loss, tests=certify.data.doomed, delta=problem.delta)
        for _ in range(6):
            balance(learner, weights)
    return learner.fit(weights, loss=loss)


def _refused(problem: Problem, n_groups: int) -> tuple[Certificate, ...]:
    keep = problem.targets.keep
    first = [] if keep is None else [Certificate("keep", None, keep, False, n_groups, None, 0, None)]
    return (
        *first,
        *(Certificate("catch", gate, share, False, n_groups, None, 0, None) for gate, share in problem.targets.catch),
    )
