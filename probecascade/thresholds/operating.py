"""Choosing a keep target: the one worth most at a price per token and a worth per success.

The choice is made on teaching episodes. A target chosen on the episodes that certify it would be one of several
that were looked at, and its promise would no longer hold at its level.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from probecascade.bounds import allowed_misses
from probecascade.errors import DataError, UsageError
from probecascade.intervals import DEFAULT, Interval, Resampling, mean_interval
from probecascade.thresholds.firing import FloatArray, GateScores, first_firing
from probecascade.thresholds.shape import learn_shape
from probecascade.thresholds.targets import percent

KEEPS = tuple(Fraction(k, 100) for k in (5, 10, 20, 30, 40, 50, 60, 70, 75, 80, 85, 88, 90, 92, 94, 95, 96, 97, 98, 99))
"""The keep targets that are compared."""

ASSUMPTIONS = (
    "Assumed: a failed or aborted episode is worth nothing, an aborted task is not tried again, prices are linear in "
    "tokens, and new episodes come from the same mix of tasks."
)
ON_TEACHERS = (
    "The target was chosen on teaching episodes, so that a certificate from others stays exact; chosen on the "
    "episodes that certify it, it would no longer be promised at its level."
)

_FOLDS = 5
_LEARNT_AT = 0.1  # share of the successes lost, where the gains are weighed: elsewhere on the path others save no more
_LEARNT_FROM = 5_000  # episodes per fold that the index is fitted to: more changes no digit that matters


@dataclass(frozen=True, slots=True, eq=False)
class Frontier:
    """Regions along the nested index path, one per keep target, rising.

    `first` (n_keeps, n_episodes): the gate that aborts each episode, -1 where none does, under thresholds that no
    episode of its group has shaped.
    """

    keeps: tuple[Fraction, ...]
    first: NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """What one keep target does to held-out episodes. `kept`, `caught`, `saved`: shares of the successes, of the
    doomed and of all tokens; `value`: of an episode, `gain`: that over never aborting, in the money of the prices."""

    keep: Fraction
    kept: float
    caught: float
    saved: float
    value: float
    gain: float


@dataclass(frozen=True, slots=True, eq=False)
class OperatingPoint:
    """The choice: `keep` is None where never aborting is worth most, else `best.keep`.

    `points` are all targets, rising; `never` is the value of an episode without aborts. `gain`, of `best` over
    never aborting, and `over_neighbours`, of `best` over the targets beside it, are per episode, with bootstrap
    intervals over groups that take `best` as given: that it was the best of several flatters it a little.
    """

    best: FrontierPoint
    points: tuple[FrontierPoint, ...]
    never: float
    gain: Interval
    over_neighbours: Mapping[Fraction, Interval]
    price_per_token: float
    worth_per_success: float

    @property
    def keep(self) -> Fraction | None:
        return self.best.keep if self.best.gain > 0 else None

    @property
    def sentence(self) -> str:
        """The choice in words, with both numbers and what it assumes."""
        best, gain = self.best, self.gain
        prices = f"At {self.price_per_token:g} a token and {self.worth_per_success:g} a success"
        what = (
            f"(failures caught {100 * best.caught:.1f} %, successes kept {100 * best.kept:.1f} %, tokens saved "
            f"{100 * best.saved:.1f} %; cross-fitted on {gain.n} episodes of {gain.groups} groups)"
        )
        change = f"{gain.value:+.4g} [{gain.low:+.4g}, {gain.high:+.4g}] an episode"
        if self.keep is None:
            return (
                f"{prices} never aborting is worth most, {self.never:.4g} an episode: the best keep target, "
                f"{percent(best.keep)} {what}, would change that by {change}. {ASSUMPTIONS}"
            )
        unsure = " The interval holds 0, so the gain may be chance." if gain.low <= 0 else ""
        return (
            f"{prices} a keep target of {percent(best.keep)} is worth most {what}: {best.value:.4g} an episode, "
            f"{change} over never aborting.{unsure} {ASSUMPTIONS} {ON_TEACHERS}"
        )


def choose_target(
    data: GateScores,
    total: ArrayLike,
    price_per_token: float,
    worth_per_success: float,
    *,
    groups: Sequence[Any] | NDArray[Any] | None = None,
    keeps: Sequence[Fraction] = KEEPS,
    certifying: int | None = None,
    confidence: float = 0.95,
    resampling: Resampling = DEFAULT,
    seed: int = 0,
) -> OperatingPoint:
    """The keep target of the highest expected value: worth x share that still succeeds - price x mean tokens spent.

    data: teaching episodes with their tokens after each gate; total (n_episodes,): tokens of whole episodes;
    groups (n_episodes,) labels, never straddling a fold; price and worth in one currency, >= 0. `certifying`: how
    many successes will certify the target at `confidence`; each target is then judged by the larger share that
    its certificate will keep, and targets that so few cannot certify are left out. None: by the target itself.
    Ties go to the higher target. UsageError on prices or when no target can be certified, DataError on episodes
    from which nothing can be learnt.
    """
    _check_prices(price_per_token, worth_per_success)
    spent = _totals(total, data)
    labels = np.arange(len(spent)) if groups is None else np.asarray(groups)
    path = frontier(data, labels, keeps=keeps, certifying=certifying, confidence=confidence, seed=seed)
    success_worth = np.where(data.failed, 0.0, worth_per_success)
    never = float((success_worth - price_per_token * spent).mean())
    gains, points = [], []
    for keep, first in zip(path.keeps, path.first, strict=True):
        fired = first >= 0
        saved = np.where(fired, data.cost_after[np.arange(len(first)), first], 0.0)
        gains.append(price_per_token * saved - np.where(fired, success_worth, 0.0))
        points.append(
            FrontierPoint(
                keep=keep,
                kept=float((~fired & ~data.failed).sum() / data.successes),
                caught=float((fired & data.failed).sum() / data.doomed),
                saved=float(saved.sum() / spent.sum()),
                value=never + float(gains[-1].mean()),
                gain=float(gains[-1].mean()),
            )
        )
    at = max(range(len(points)), key=lambda i: (points[i].gain, points[i].keep))
    beside = [i for i in (at - 1, at + 1) if 0 <= i < len(points)]
    return OperatingPoint(
        best=points[at],
        points=tuple(points),
        never=never,
        gain=mean_interval(gains[at], labels, resampling),
        over_neighbours={points[i].keep: mean_interval(gains[at] - gains[i], labels, resampling) for i in beside},
        price_per_token=price_per_token,
        worth_per_success=worth_per_success,
    )


def frontier(
    data: GateScores,
    groups: Sequence[Any] | NDArray[Any] | None = None,
    *,
    keeps: Sequence[Fraction] = KEEPS,
    certifying: int | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> Frontier:
    """Cross-fitted regions along the nested index path: shape and levels of a fold come from the other folds.

    Arguments and errors are those of `choose_target`.
    """
    losses = _losses(keeps, certifying, confidence)
    folds = _folds(data, np.arange(len(data.failed)) if groups is None else np.asarray(groups), seed)
    first = np.full((len(losses), len(data.failed)), -1, dtype=np.intp)
    rng = np.random.default_rng(seed)
    for fold in range(_FOLDS):
        held = np.flatnonzero(folds == fold)
        train = rng.permutation(np.flatnonzero(folds != fold))[:_LEARNT_FROM]
        thresholds = _path(data.take(train), list(losses.values()))
        costs = data.cost_after[held]
        for row, limits in enumerate(thresholds):
            first[row, held] = first_firing(data.scores[held], limits, costs)
    return Frontier(tuple(losses), first)


def _path(train: GateScores, losses: Sequence[Fraction]) -> list[FloatArray]:
    """Thresholds (n_gates,) on one index that lose at most these shares of the training successes."""
    shape = learn_shape(train, loss=_LEARNT_AT)
    reach = np.sort(shape.index(train.scores[~train.failed]).max(axis=1))[::-1]
    return [shape.cut(float(reach[int(loss * len(reach))])) for loss in losses]


def _losses(keeps: Sequence[Fraction], certifying: int | None, confidence: float) -> dict[Fraction, Fraction]:
    """The share of the successes that the region of each keep target loses, targets rising."""
    wanted = sorted(set(keeps))
    if not wanted or not 0 < wanted[0] <= wanted[-1] < 1:
        raise UsageError("the keep targets to compare must lie in (0, 1): give shares such as 0.9.")
    if certifying is None:
        return {keep: 1 - keep for keep in wanted}
    delta = float(1 - Fraction(str(confidence)))
    allowed = {keep: allowed_misses(certifying, 1 - keep, delta=delta) for keep in wanted}
    losses = {keep: Fraction(2 * misses + 1, 2 * certifying) for keep, misses in allowed.items() if misses >= 0}
    if not losses:
        raise UsageError(
            f"{certifying} successes can certify no keep target of {percent(wanted[0])} or more: give more episodes."
        )
    return losses


def _folds(data: GateScores, groups: NDArray[Any], seed: int) -> NDArray[np.intp]:
    """(n_episodes,) fold of each episode's group: dealt in the order of the groups' failure shares, ties at random.

    So every fold's complement holds both classes wherever two groups of each exist; the order of rows is no matter.
    """
    if groups.shape != data.failed.shape:
        raise DataError(f"{groups.size} groups were given for {len(data.failed)} episodes: give one per row of scores.")
    codes = np.unique(groups.astype(str), return_inverse=True)[1].ravel()
    failures = np.bincount(codes, weights=data.failed)
    sizes = np.bincount(codes)
    with_failure, with_success = int((failures > 0).sum()), int((failures < sizes).sum())
    if min(with_failure, with_success) < 2:
        raise DataError(
            f"{with_failure} groups hold a failure and {with_success} a success: to choose a target on some groups and "
            "judge it on others, give at least 2 of each."
        )
    order = np.lexsort([np.random.default_rng(seed).random(len(sizes)), failures / sizes])
    dealt = np.empty(len(sizes), dtype=np.intp)
    dealt[order] = np.arange(len(sizes)) % _FOLDS
    return dealt[codes]


def _check_prices(price: float, worth: float) -> None:
    for name, value in (("price per token", price), ("worth per success", worth)):
        if not math.isfinite(value) or value < 0:
            raise UsageError(f"the {name} is {value}: give a finite number >= 0, both in the same currency.")


def _totals(total: ArrayLike, data: GateScores) -> FloatArray:
    spent = np.asarray(total, dtype=np.float64)
    if spent.shape != data.failed.shape or not np.isfinite(spent).all():
        raise DataError(f"total costs have shape {spent.shape}: give one finite number for each episode.")
    after = np.where(np.isnan(data.scores), 0.0, data.cost_after).max(axis=1)
    if (spent < after).any():
        row = int(np.argmax(spent < after))
        raise DataError(
            f"episode {row} spends {spent[row]:g} tokens in total, but {after[row]:g} after one of its gates: "
            "give the tokens of the whole episode."
        )
    if not spent.sum():
        raise DataError("no episode spends a token: there is nothing to save, so give the tokens of whole episodes.")
    return spent
