"""Metrics of many columns of scores over the same resamples of whole groups, and what survives looking at them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probecascade.intervals import Resampling
from probecascade.probes.metrics import (
    auprc,
    auroc,
    brier,
    caught_at_keep,
    disjoint_pairs,
    ece,
    pair_accuracy,
    separated_interval,
)

Array = NDArray[np.float64]
Labels = NDArray[np.bool_]
Counts = NDArray[np.float32]

_WIDTH = 256  # resamples taken at a time: a thousand episodes of them stay in a core's cache
_BINS = 10
_CROSS_FITTED = 2.0**0.5
"""By how much cross-fitting widens the spread of an AUROC that means nothing, at most (see `above_chance`)."""


def draw_groups(n_groups: int, resampling: Resampling) -> Counts:
    """How often each group is drawn in each resample, (n_groups, resamples): whole groups, with replacement."""
    rng = np.random.default_rng(resampling.seed)
    drawn = rng.multinomial(n_groups, np.full(n_groups, 1 / n_groups), size=resampling.resamples)
    return np.ascontiguousarray(drawn.T, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class Column:
    """One column of scores, measured: each metric's value, and its value in each resample, (resamples,).

    NaN where a resample lacks a class, or no group holds both.
    """

    values: Mapping[str, float]
    draws: Mapping[str, Array]

    def less(self, other: Column, metric: str) -> tuple[float, Array]:
        """By how much the metric exceeds that of another column on the same resamples: value and draws."""
        return self.values[metric] - other.values[metric], self.draws[metric] - other.draws[metric]


def mean_column(columns: Sequence[Column]) -> Column:
    """The mean of each metric over columns, in every resample too."""
    first = columns[0]
    return Column(
        {name: float(np.mean([column.values[name] for column in columns])) for name in first.values},
        {name: np.mean([column.draws[name] for column in columns], axis=0) for name in first.draws},
    )


class Measure:
    """Measures columns of scores of the same episodes on the same resamples.

    failed, codes: (n,), codes index the rows of `counts`, (n_groups, resamples). keep: the share of successes
    that `caught_at_keep` leaves alone. Each resample holds an episode as often as its group was drawn.
    """

    def __init__(self, failed: Labels, codes: NDArray[np.intp], counts: Counts, keep: float) -> None:
        self.failed = failed
        self.codes = codes
        self.keep = keep
        self.n_groups = len(np.unique(codes))
        self._counts = counts
        self._first, self._second = _pairs(failed, codes)
        self.n_pairs = len(self._first)
        self._pair_codes = codes[self._first]
        self.pair_groups = len(np.unique(self._pair_codes))
        self._trials = {
            "auroc": disjoint_pairs(failed, codes),
            "caught_at_keep": len(np.unique(codes[failed])),
            "pair_accuracy": self.pair_groups,
        }

    def column(self, scores: Array) -> Column:
        """All metrics of scores (n,), P(failure)."""
        values = {
            "auroc": auroc(scores, self.failed),
            "auprc": auprc(scores, self.failed),
            "brier": brier(scores, self.failed),
            "ece": ece(scores, self.failed),
            "caught_at_keep": caught_at_keep(scores, self.failed, self.keep),
            "pair_accuracy": pair_accuracy(scores, self.failed, self.codes).value,
        }
        return Column(values, {**self._ranked(scores), **self._summed(scores)})

    def _ranked(self, scores: Array) -> dict[str, Array]:
        """What depends on the order of all scores: sorted once, then cumulative weights in every resample.

        Equal scores fall together: only the cumulative weights at the last of them count.
        """
        order = np.argsort(scores, kind="stable")
        ordered = scores[order]
        ends = np.flatnonzero(np.r_[ordered[1:] != ordered[:-1], True])
        owner, is_failed = self.codes[order], self.failed[order, None]
        resamples = self._counts.shape[1]
        found = {name: np.empty(resamples) for name in ("auroc", "auprc", "caught_at_keep")}
        for start in range(0, resamples, _WIDTH):
            chunk = slice(start, start + _WIDTH)
            weights = self._counts[owner, chunk]
            # float32 holds these whole numbers exactly up to 16 million episodes
            failures = np.cumsum(np.where(is_failed, weights, 0), axis=0)[ends]
            together = np.cumsum(weights, axis=0)[ends]
            for name, values in _from_cumulative(failures, together, self.keep).items():
                found[name][chunk] = values
        return found

    def _summed(self, scores: Array) -> dict[str, Array]:
        """What is a ratio of sums over groups. The bins of `ece` are those of the scores as they are."""
        counts, codes, groups = self._counts, self.codes, len(self._counts)
        bins = np.searchsorted(np.sort(scores), scores, "left") * _BINS // len(scores)  # as in metrics.ece
        gaps = np.bincount(codes * _BINS + bins, scores - self.failed, groups * _BINS).reshape(groups, _BINS)
        squares = np.bincount(codes, np.square(scores - self.failed), groups)
        sizes = np.bincount(codes, minlength=groups)
        ahead, behind = scores[self._first], scores[self._second]
        wins = np.bincount(self._pair_codes, np.where(ahead == behind, 0.5, ahead > behind), groups)
        pairs = np.bincount(self._pair_codes, minlength=groups)
        total = _resampled(counts, sizes)
        return {
            "brier": _ratio(_resampled(counts, squares), total),
            "ece": _ratio(np.abs(_resampled(counts, gaps)).sum(axis=0), total),
            "pair_accuracy": _ratio(_resampled(counts, wins), _resampled(counts, pairs)),
        }

    def interval(self, column: Column, metric: str, confidence: float) -> dict[str, Any]:
        """The metric's value and percentile interval as a row's JSON value, with the n it is of.

        Where the value is 0 or 1 all resamples agree; the interval is then the exact one of independent trials: of
        an AUROC the pairs of disjoint groups, of the failures caught the groups with one, of pairs within groups
        the groups. What an AUROC of one may still be says what the AUPRC may.
        """
        within = metric == "pair_accuracy"
        low, high = self._ends(column, metric, confidence)
        record: dict[str, Any] = {"value": None, "low": None, "high": None}
        if low is not None and high is not None:
            record = {"value": float(column.values[metric]), "low": low, "high": high}
        record |= {"n": len(self.failed), "groups": self.pair_groups if within else self.n_groups}
        return record | ({"n_pairs": self.n_pairs} if within else {})

    def gain(self, column: Column, other: Column, metric: str, confidence: float) -> dict[str, Any]:
        """By how much the metric exceeds that of another column, {value, low, high}: percentiles of paired resamples.

        Where either value is 0 or 1 its resamples have no width, and the interval is put together from those of the
        two (MOVER, Zou and Donner 2008), as if they were independent: wide rather than narrow.
        """
        value, draws = column.less(other, metric)
        if metric not in self._trials or not any(of.values[metric] in (0.0, 1.0) for of in (column, other)):
            return interval_of(value, draws, confidence)
        (low, high), (other_low, other_high) = (self._ends(of, metric, confidence) for of in (column, other))
        if low is None or high is None or other_low is None or other_high is None:
            return interval_of(value, draws, confidence)
        first, second = column.values[metric], other.values[metric]
        return {
            "value": float(value),
            "low": float(value - np.hypot(first - low, other_high - second)),
            "high": float(value + np.hypot(high - first, second - other_low)),
        }

    def _ends(self, column: Column, metric: str, confidence: float) -> tuple[float | None, float | None]:
        value = column.values[metric]
        if metric in self._trials and value in (0.0, 1.0):
            return separated_interval(value, self._trials[metric], confidence)
        found = interval_of(value, column.draws[metric], confidence)
        if metric == "auprc" and column.values["auroc"] == 1.0:
            low, _ = separated_interval(1.0, self._trials["auroc"], confidence)
            return _least_auprc(low, float(self.failed.mean())), found["high"]
        return found["low"], found["high"]


def _least_auprc(area: float, share: float) -> float:
    """AUPRC of a share of failures where 1 - area of the successes score above all failures, the others below.

    Precision at the share r of failures is r / (r + a) with a the successes above over all failures; its mean over r.
    """
    above = (1 - area) * (1 - share) / share
    return float(1 - above * np.log1p(1 / above)) if above else 1.0


def interval_of(value: float, draws: Array, confidence: float) -> dict[str, Any]:
    """{value, low, high}: the percentiles of the draws that exist; None where there is nothing."""
    usable = draws[np.isfinite(draws)]
    if not np.isfinite(value) or not usable.size:
        return {"value": None, "low": None, "high": None}
    low, high = np.quantile(usable, [(1 - confidence) / 2, (1 + confidence) / 2])
    return {"value": float(value), "low": float(low), "high": float(high)}


def above_chance(values: Sequence[float], draws: Sequence[Array], confidence: float) -> list[bool]:
    """Which of several shares of pairs exceed one half, with at most 1 - confidence for one false word among all.

    values: cross-fitted AUROCs or pair accuracies; draws: their resamples, (resamples,) each, shared by all. The
    largest studentised deviation over all of them in each resample gives one critical value for all (max-T of
    Westfall and Young 1993, by bootstrap), so that the more is looked at, the more each must show.

    The standard errors are taken sqrt(2) times as large as the resamples of fixed scores say. Cross-fitting tests
    every chance likeness of two folds twice, once in either direction: of a score linear in the training rows,
    sum over folds k != j of D_j . D_k with independent D of mean 0, the variance is twice that of scores given
    beforehand. Without that factor, noise is called a signal more often than stated.
    """
    if not values:
        return []
    matrix = np.asarray(draws, dtype=np.float64)
    centres = np.asarray(values, dtype=np.float64)
    errors = np.nanstd(matrix, axis=1)
    moving = errors > 0
    if not moving.any():
        return [bool(value > 0.5) for value in centres]
    deviations = (matrix[moving] - centres[moving, None]) / errors[moving, None]
    critical = float(np.nanquantile(np.nanmax(deviations, axis=0), confidence))
    return [bool(above) for above in centres - 0.5 > _CROSS_FITTED * critical * errors]


def _pairs(failed: Labels, codes: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows of all (failed, successful) pairs of the same group."""
    order = np.argsort(codes, kind="stable")
    first, second = [], []
    for members in np.split(order, np.flatnonzero(np.diff(codes[order])) + 1):
        lost, won = members[failed[members]], members[~failed[members]]
        if len(lost) and len(won):
            first.append(np.repeat(lost, len(won)))
            second.append(np.tile(won, len(lost)))
    nothing = np.empty(0, dtype=np.intp)
    return np.concatenate([nothing, *first]), np.concatenate([nothing, *second])


def _from_cumulative(failures: Counts, together: Counts, keep: float) -> dict[str, Array]:
    """AUROC, average precision and failures caught from weights at or below each score, (n_scores, width)."""
    successes = together - failures
    lost, won, everyone = (x[-1].astype(np.float64) for x in (failures, successes, together))
    added = np.diff(failures, axis=0, prepend=np.float32(0))
    below = np.diff(successes, axis=0, prepend=np.float32(0))
    np.subtract(2 * successes, below, out=below)  # successes below, and half of those level, twice
    twice_wins = np.einsum("ij,ij->j", added, below, dtype=np.float64)
    caught = lost.astype(np.float32) - failures + added
    fired = np.maximum(everyone.astype(np.float32) - together + np.diff(together, axis=0, prepend=np.float32(0)), 1)
    precise = np.einsum("ij,ij->j", added, caught / fired, dtype=np.float64)
    share = Fraction(str(keep))
    needed = -(-share.numerator * won.astype(np.int64) // share.denominator)
    place = np.argmax(successes >= needed.astype(np.float32), axis=0)
    kept = np.take_along_axis(failures, place[None], axis=0)[0]
    usable = (lost > 0) & (won > 0)
    return {
        name: np.where(usable, top / np.maximum(bottom, 1), np.nan)
        for name, top, bottom in (
            ("auroc", twice_wins, 2 * lost * won),
            ("auprc", precise, lost),
            ("caught_at_keep", lost - kept, lost),
        )
    }


def _resampled(counts: Counts, sums: NDArray[Any]) -> Array:
    """Sums over groups (n_groups, ...) in each resample, (..., resamples)."""
    return np.asarray(sums.T.astype(np.float32) @ counts, dtype=np.float64)


def _ratio(top: Array, bottom: Array) -> Array:
    return np.asarray(np.where(bottom > 0, top / np.where(bottom > 0, bottom, 1), np.nan))
