"""Values with intervals from a bootstrap over questions: one way for every measure that is a function of sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from probecascade.bounds import clopper_pearson
from probecascade.evaluation.judged_useless.episodes import StudyEpisode
from probecascade.intervals import Resampling

Array = NDArray[np.float64]

STUDY = Resampling(confidence=0.95, resamples=2000, seed=0)
"""The resampling of the study: 2,000 resamples of questions, seed 0."""

_BLOCK = 1 << 22  # draws held at a time: 32 MiB
_NO_WIDTH = "every resample agrees, so the interval has no width and claims too much"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its interval; all None where the value is undefined, and `note` then says why.

    `n` counts what the value is of (decision points, episodes or questions), `questions` those resampled, `skipped`
    the resamples in which the value was undefined. `note` also tells what weakens a value that there is.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int
    questions: int
    skipped: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Measure:
    """A measure that depends on the sums over questions of some columns alone.

    columns(episodes, questions): (n_questions, n_columns), a row per name in `questions`. value(totals):
    (..., n_columns) to (...), NaN where it is undefined. `whole` measures are of questions that have a whole set of
    episodes only; their last column is 1 for these, and a comparison leaves out questions without it on either side.
    """

    name: str
    columns: Callable[[Sequence[StudyEpisode], Sequence[str]], Array]
    value: Callable[[Array], Array]
    whole: bool = False


def ratio(totals: Array) -> Array:
    """First column by the second, (..., 2) to (...); NaN where the second is 0."""
    below = totals[..., 1]
    return np.where(below > 0, totals[..., 0] / np.where(below > 0, below, 1), np.nan)


def questions_of(episodes: Sequence[StudyEpisode]) -> tuple[str, ...]:
    """Names of the questions, each once, in the order of the episodes."""
    return tuple(dict.fromkeys(episode.question_id for episode in episodes))


def summed(codes: Sequence[int] | NDArray[np.intp], values: Array, n_questions: int) -> Array:
    """Sums of the rows of values (n, n_columns) by question code (n,): (n_questions, n_columns)."""
    sums = np.zeros((n_questions, values.shape[1]))
    np.add.at(sums, np.asarray(codes, dtype=np.intp), values)
    return sums


def resampled_totals(columns: Array, resampling: Resampling) -> Array:
    """Sums of the columns over as many rows drawn with replacement, (resamples, n_columns).

    Rows that are alike are drawn together (how often each kind comes is multinomial), so that neither the order of
    the rows nor, where they are many, their number matters. The public code of the study draws with Python's
    `random` instead: its intervals differ in the third decimal.
    """
    rng = np.random.default_rng(resampling.seed)
    kinds, counts = np.unique(columns, axis=0, return_counts=True)
    height = max(1, _BLOCK // len(counts))
    drawn = np.empty((resampling.resamples, columns.shape[1]))
    for start in range(0, resampling.resamples, height):
        size = min(height, resampling.resamples - start)
        drawn[start : start + size] = rng.multinomial(len(columns), counts / len(columns), size=size) @ kinds
    return drawn


def estimate(
    columns: Array, value: Callable[[Array], Array], n: int, resampling: Resampling, undefined: str
) -> Estimate:
    """The value of the columns' sums with its percentile interval over the rows, which are questions.

    `undefined` is the note where the value does not exist.
    """
    found = float(value(columns.sum(axis=0))) if len(columns) else np.nan
    if not np.isfinite(found):
        return Estimate(None, None, None, n, len(columns), 0, undefined)
    draws = value(resampled_totals(columns, resampling))
    usable = draws[np.isfinite(draws)]
    if not usable.size:
        return Estimate(found, None, None, n, len(columns), len(draws), "no resample has a value: too few questions")
    tail = (1 - resampling.confidence) / 2
    low, high = (float(end) for end in np.quantile(usable, [tail, 1 - tail]))
    note = _NO_WIDTH if np.ptp(usable) == 0 else ""
    return Estimate(found, low, high, n, len(columns), len(draws) - len(usable), note)


def estimate_share(hits: Array, among: Array, n: int, resampling: Resampling, undefined: str) -> Estimate:
    """sum(hits) / sum(among), columns (n_questions,) of counts, over the questions where there are any.

    At 0 and 1, where a bootstrap has no width, the interval is the exact Clopper-Pearson one with each question as
    one trial.
    """
    counted = among > 0
    found = estimate(np.stack([hits[counted], among[counted]], axis=1), ratio, n, resampling, undefined)
    if found.value not in (0.0, 1.0):
        return found
    trials = int(counted.sum())
    low, high = clopper_pearson(int(found.value) * trials, trials, confidence=resampling.confidence)
    return replace(found, low=low, high=high, note="")
