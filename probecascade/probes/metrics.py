"""How well scores rank failed episodes above successful ones, and how far they can be taken at their word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from probecascade.bounds import clopper_pearson
from probecascade.errors import DataError, UsageError
from probecascade.intervals import Interval
from probecascade.probes.inputs import as_group_codes, as_labels, as_scores, both_classes

_BLOCK = 1 << 20  # weights held at a time while resampling: 8 MiB


@dataclass(frozen=True)
class PairAccuracy:
    """Share of (failed, successful) pairs within groups that are ranked rightly; NaN without any pair."""

    value: float
    n_pairs: int


def auroc(scores: ArrayLike, failed: ArrayLike) -> float:
    """Share of (failed, successful) pairs in which the failed episode scores higher, ties counting half.

    scores, failed: (n,). Exact: wins are counted in halves, as integers. Raises DataError with one
    class, where there is no pair, rather than returning a number that could be averaged unnoticed.
    """
    values = as_scores(scores)
    labels = as_labels(failed, len(values))
    n_failed, n_success = both_classes(labels)
    successes = np.sort(values[~labels])
    twice_wins = sum(int(np.searchsorted(successes, values[labels], side).sum()) for side in ("left", "right"))
    return twice_wins / (2 * n_failed * n_success)


def auprc(scores: ArrayLike, failed: ArrayLike) -> float:
    """Average precision of failures: precision at each distinct score, weighted by the failures it adds.

    scores, failed: (n,). Equal scores are taken together, so the order of the rows is of no account. Chance
    is the share of failures, not one half. Raises DataError with one class.
    """
    values = as_scores(scores)
    labels = as_labels(failed, len(values))
    n_failed, _ = both_classes(labels)
    order = np.argsort(-values, kind="stable")
    ends = np.flatnonzero(np.r_[values[order][1:] != values[order][:-1], True])
    caught = np.cumsum(labels[order])[ends]
    precision = caught / (ends + 1)
    return float((precision * np.diff(caught, prepend=0)).sum() / n_failed)


def brier(scores: ArrayLike, failed: ArrayLike) -> float:
    """Mean squared distance of P(failure) from what came, 0 at best (Brier 1950).

    scores: (n,) in [0, 1]; failed: (n,). Raises DataError with one class, as `auroc` does, or on a score outside.
    """
    values, labels = _probabilities(scores, failed)
    return float(np.square(values - labels).mean())


def ece(scores: ArrayLike, failed: ArrayLike, bins: int = 10) -> float:
    """Expected calibration error over bins of equal mass: mean |P(failure) said - share that failed|.

    scores: (n,) in [0, 1]; failed: (n,). Bins are cut by rank, so each holds about n / bins episodes; equal
    scores share the bin of their lowest rank. It is above 0 even for a perfect forecaster, by about
    sqrt(bins / n) / 3. Source: equal-mass binning as in Nixon et al. 2019. DataError as `brier`; UsageError
    without a bin.
    """
    if bins < 1:
        raise UsageError(f"{bins} bins were asked for; ask for one or more.")
    values, labels = _probabilities(scores, failed)
    lowest_rank = np.searchsorted(np.sort(values), values, "left")
    bin_of = lowest_rank * bins // len(values)
    gaps = np.abs(np.bincount(bin_of, values) - np.bincount(bin_of, labels))
    return float(gaps.sum() / len(values))


def caught_at_keep(scores: ArrayLike, failed: ArrayLike, keep: str | float | Fraction = 0.95) -> float:
    """Share of failures caught by the lowest threshold that still keeps `keep` of the successes.

    scores, failed: (n,). The threshold fires at or above it and leaves ceil(keep * n_success) successes below;
    counted in whole numbers, equal scores fire together. `keep` is taken as it is written: 0.95 is 19/20.
    The threshold is set on the very rows it is judged on: a description of the scores, no promise.
    Raises DataError with one class, UsageError on a keep outside (0, 1].
    """
    share = Fraction(str(keep))
    if not 0 < share <= 1:
        raise UsageError(f"A keep of {keep} was given; give a share of successes in (0, 1], such as 0.95.")
    values = as_scores(scores)
    labels = as_labels(failed, len(values))
    n_failed, n_success = both_classes(labels)
    needed = -(-share.numerator * n_success // share.denominator)
    highest_kept = np.sort(values[~labels])[needed - 1]
    return int((values[labels] > highest_kept).sum()) / n_failed


def _probabilities(scores: ArrayLike, failed: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    values = as_scores(scores)
    labels = as_labels(failed, len(values))
    both_classes(labels)
    if values.min() < 0 or values.max() > 1:
        raise DataError(
            f"Scores between {values.min():g} and {values.max():g} were given; give probabilities in [0, 1]."
        )
    return values, labels


def auroc_interval(
    scores: ArrayLike,
    failed: ArrayLike,
    groups: Sequence[Any] | NDArray[Any],
    *,
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Interval:
    """AUROC with a percentile bootstrap interval over groups, for fixed scores.

    scores, failed, groups: (n,). Whole groups are drawn with replacement, so episodes of one group may
    depend on each other. Resamples with one class are skipped and counted. Where the scores separate the classes
    every resample agrees, and the interval is that of `separated_interval`. With few groups (below some
    twenty of each class) the interval is too narrow, and it says nothing of how the probe varies when
    refitted. Raises DataError as `auroc` does, UsageError on a confidence outside (0, 1) or no resamples.
    """
    if not 0 < confidence < 1 or resamples < 1:
        raise UsageError(
            f"A confidence of {confidence} and {resamples} resamples were given; "
            "give a confidence between 0 and 1 and at least one resample."
        )
    values = as_scores(scores)
    labels = as_labels(failed, len(values))
    value = auroc(values, labels)
    codes = as_group_codes(groups, len(values))
    drawn = _resampled(values, labels, codes, resamples, np.random.default_rng(seed))
    usable = drawn[~np.isnan(drawn)]
    if not usable.size:
        raise DataError(f"All {resamples} resamples of the groups held one class; collect more groups.")
    low, high = np.quantile(usable, [(1 - confidence) / 2, (1 + confidence) / 2])
    if value in (0.0, 1.0):
        low, high = separated_interval(value, disjoint_pairs(labels, codes), confidence)
    n_groups = int(codes.max()) + 1
    return Interval(value, float(low), float(high), len(values), n_groups, resamples - len(usable))


def disjoint_pairs(failed: NDArray[np.bool_], codes: NDArray[np.intp]) -> int:
    """How many (failed, successful) pairs can be made, each of two groups and no group in two pairs.

    failed, codes: (n,), codes of groups counting from 0.
    """
    lost = np.bincount(codes, failed) > 0
    won = np.bincount(codes, ~failed) > 0
    return int(min(lost.sum(), won.sum(), (lost | won).sum() // 2))


def separated_interval(value: float, trials: int, confidence: float) -> tuple[float, float]:
    """Interval of a share that is 0 or 1 in the data, where a bootstrap has no width: the exact one of `trials`.

    All or none of so many independent trials were hits (Clopper and Pearson 1934). Of an AUROC the trials are its
    `disjoint_pairs`: no two share a group, so each is ranked rightly by chance of its own, which is the AUROC.
    Fewer than the pairs that there are, and so wide; that intervals from a fitted curve or a bootstrap are no
    answer here, see Obuchowski and Lieber 2002, "Confidence bounds when the estimated ROC area is 1.0".
    (0, 1) without a trial. A value just short of 0 or 1 keeps its bootstrap, whose width is then too small.
    """
    if not trials:
        return 0.0, 1.0
    return clopper_pearson(int(value) * trials, trials, confidence=confidence)


def _resampled(
    scores: NDArray[np.float64],
    failed: NDArray[np.bool_],
    codes: NDArray[np.intp],
    resamples: int,
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """AUROC of each resample, (resamples,), NaN where a class is missing.

    A resample is a whole-number weight per group. The scores are sorted once; in each resample a failed
    episode beats the weight of successes below its score and half of that at it.
    """
    order = np.argsort(scores, kind="stable")
    ordered = scores[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    owner = codes[order]
    is_failed = failed[order]
    n_groups = int(codes.max()) + 1
    height = max(1, _BLOCK // max(n_groups, len(scores)))
    result = np.empty(resamples)
    for start in range(0, resamples, height):
        count = min(height, resamples - start)
        picks = rng.integers(n_groups, size=(count, n_groups)) + n_groups * np.arange(count)[:, None]
        weights = np.bincount(picks.ravel(), minlength=count * n_groups).reshape(count, n_groups)[:, owner]
        of_failed = np.add.reduceat(np.where(is_failed, weights, 0), starts, axis=1)
        of_success = np.add.reduceat(np.where(is_failed, 0, weights), starts, axis=1)
        twice_wins = (of_failed * (2 * np.cumsum(of_success, axis=1) - of_success)).sum(axis=1)
        pairs = of_failed.sum(axis=1) * of_success.sum(axis=1)
        result[start : start + count] = np.where(pairs > 0, twice_wins / np.maximum(2 * pairs, 1), np.nan)
    return result


def pair_accuracy(scores: ArrayLike, failed: ArrayLike, groups: Sequence[Any] | NDArray[Any]) -> PairAccuracy:
    """AUROC over pairs of the same group only, ties counting half: what is left when the task is fixed.

    scores, failed, groups: (n,). Groups with one class hold no pair. Raises DataError on bad input.
    """
    values = as_scores(scores)
    labels = as_labels(failed, len(values))
    codes = as_group_codes(groups, len(values))
    order = np.argsort(codes, kind="stable")
    wins, n_pairs = 0.0, 0
    for members in np.split(order, np.flatnonzero(np.diff(codes[order])) + 1):
        n_failed = int(labels[members].sum())
        pairs = n_failed * (len(members) - n_failed)
        if pairs:
            wins += auroc(values[members], labels[members]) * pairs
            n_pairs += pairs
    return PairAccuracy(wins / n_pairs if n_pairs else float("nan"), n_pairs)
