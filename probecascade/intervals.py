"""Intervals for shares and ratios: a percentile bootstrap over whole groups, exact where it says nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from probecascade.bounds import clopper_pearson
from probecascade.errors import DataError, UsageError


@dataclass(frozen=True)
class Interval:
    """A value with its interval; from `n` episodes of `groups` groups, `skipped` resamples left out."""

    value: float
    low: float
    high: float
    n: int
    groups: int
    skipped: int


@dataclass(frozen=True, slots=True)
class Resampling:
    """How intervals are made: their confidence, the number of resamples, and the seed of the draws.

    UsageError on a confidence outside (0, 1) or no resamples.
    """

    confidence: float = 0.95
    resamples: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise UsageError(f"a seed of {self.seed} was given: give a whole number of at least 0.")
        if not 0 < self.confidence < 1 or self.resamples < 1:
            raise UsageError(
                f"a confidence of {self.confidence} and {self.resamples} resamples were given: "
                "give a confidence between 0 and 1 and at least one resample."
            )


DEFAULT = Resampling()

_BLOCK = 1 << 20  # draws held at a time: 8 MiB
_MANY, _FEW_KINDS = 5_000, 256  # groups from which it pays to count kinds of groups, and kinds up to which it does


def ratio_interval(
    numerator: ArrayLike,
    denominator: ArrayLike,
    groups: Sequence[Any] | NDArray[Any],
    resampling: Resampling = DEFAULT,
) -> Interval:
    """sum(numerator) / sum(denominator) with a percentile bootstrap interval over groups.

    numerator, denominator, groups: (n_episodes,). Whole groups are drawn with replacement, so episodes of
    one group may depend on each other. Counted are the episodes with a denominator above 0; NaN throughout
    where there is none. With few groups (below some twenty) the interval is too narrow.
    DataError on columns that do not fit together.
    """
    top, bottom, names = _columns(numerator, denominator, groups)
    counted = bottom > 0
    n = int(counted.sum())
    if not n:
        return Interval(np.nan, np.nan, np.nan, 0, 0, 0)
    codes = np.unique(names[counted], return_inverse=True)[1].ravel()
    n_groups = int(codes.max()) + 1
    tops, bottoms = np.zeros(n_groups), np.zeros(n_groups)
    np.add.at(tops, codes, top[counted])
    np.add.at(bottoms, codes, bottom[counted])
    drawn = _resampled(tops, bottoms, resampling)
    tail = (1 - resampling.confidence) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return Interval(float(tops.sum() / bottoms.sum()), float(low), float(high), n, n_groups, 0)


def share_interval(
    hits: ArrayLike,
    among: ArrayLike,
    groups: Sequence[Any] | NDArray[Any],
    resampling: Resampling = DEFAULT,
) -> Interval:
    """Share of the episodes marked in `among` that are marked in `hits`, with an interval over groups.

    hits, among: (n_episodes,) bool. Where all or none are hits, every resample agrees and a bootstrap would
    claim certainty; the interval is then the exact Clopper-Pearson one, each group counting as one trial.
    """
    chosen = np.asarray(among, dtype=np.bool_)
    marked = np.asarray(hits, dtype=np.bool_) & chosen
    interval = ratio_interval(marked, chosen, groups, resampling)
    if interval.n and interval.value in (0.0, 1.0):
        hit_groups = int(interval.value) * interval.groups
        low, high = clopper_pearson(hit_groups, interval.groups, confidence=resampling.confidence)
        return replace(interval, low=low, high=high)
    return interval


def mean_interval(
    values: ArrayLike,
    groups: Sequence[Any] | NDArray[Any],
    resampling: Resampling = DEFAULT,
) -> Interval:
    """Mean per episode of values (n_episodes,), with a bootstrap interval over groups."""
    data = np.asarray(values, dtype=np.float64)
    return ratio_interval(data, np.ones_like(data), groups, resampling)


def _columns(
    numerator: ArrayLike, denominator: ArrayLike, groups: Sequence[Any] | NDArray[Any]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[Any]]:
    top = np.asarray(numerator, dtype=np.float64)
    bottom = np.asarray(denominator, dtype=np.float64)
    names = np.asarray(groups).astype(str)
    if top.ndim != 1 or not top.shape == bottom.shape == names.shape:
        raise DataError(
            f"numerators {top.shape}, denominators {bottom.shape} and groups {names.shape} differ in shape: "
            "give one of each per episode."
        )
    if not np.isfinite(top).all() or not np.isfinite(bottom).all() or (bottom < 0).any():
        raise DataError("a ratio needs finite numerators and finite denominators >= 0.")
    return top, bottom, names


def _resampled(tops: NDArray[np.float64], bottoms: NDArray[np.float64], resampling: Resampling) -> NDArray[np.float64]:
    """The ratio in each resample of the groups, (resamples,); every group's denominator is above 0."""
    rng = np.random.default_rng(resampling.seed)
    n_groups, total = len(tops), resampling.resamples
    if n_groups > _MANY:
        pairs, counts = np.unique(np.stack([tops, bottoms]), axis=1, return_counts=True)
        if len(counts) <= _FEW_KINDS:  # how often each kind is drawn says all, at a fraction of the draws
            drawn = rng.multinomial(n_groups, counts / n_groups, size=total)
            kinds: NDArray[np.float64] = (drawn @ pairs[0]) / (drawn @ pairs[1])
            return kinds
    height = max(1, _BLOCK // n_groups)
    ratios = np.empty(total)
    for start in range(0, total, height):
        picks = rng.integers(n_groups, size=(min(height, total - start), n_groups))
        ratios[start : start + len(picks)] = tops[picks].sum(axis=1) / bottoms[picks].sum(axis=1)
    return ratios
