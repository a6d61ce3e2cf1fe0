"""Two conditions on the same questions: paired differences, corrected for how many are looked at, and a margin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from probecascade.errors import DataError, UsageError
from probecascade.evaluation.judged_useless.episodes import StudyEpisode
from probecascade.evaluation.judged_useless.estimates import (
    STUDY,
    Array,
    Estimate,
    Measure,
    estimate,
    questions_of,
    resampled_totals,
)
from probecascade.intervals import Resampling


@dataclass(frozen=True, slots=True)
class Comparison:
    """A measure in a condition less that in the condition `against`, on the questions that both have.

    p_value: two-sided, of no difference; p_holm: corrected for all comparisons of the table (None: not corrected or
    undefined). noninferior: whether the difference is above -margin by its interval, None without a margin or where
    that cannot be said.
    """

    measure: str
    condition: str
    against: str
    difference: Estimate
    p_value: float | None
    p_holm: float | None = None
    margin: float | None = None
    noninferior: bool | None = None


def check_margin(margin: float | None) -> None:
    """UsageError for a margin that is not above 0."""
    if margin is not None and not 0 < margin < float("inf"):
        raise UsageError(f"a margin of {margin} was given: give how much worse is still acceptable, such as 0.05.")


def paired_difference(
    condition: Sequence[StudyEpisode],
    against: Sequence[StudyEpisode],
    measure: Measure,
    names: tuple[str, str] = ("condition", "against"),
    margin: float | None = None,
    resampling: Resampling = STUDY,
) -> Comparison:
    """The difference of a measure between two conditions, resampling the questions of both together.

    Only questions that occur in both conditions count (for a measure over the six regimes: that have all six in
    both). The p-value is 2 min(P(d <= 0), P(d >= 0)) over the resamples, with one added to numerator and denominator
    (Davison and Hinkley 1997, 4.2), so never 0. Non-inferior: the lower end of the two-sided interval lies above
    -margin, at 95 % thus a one-sided test at 2.5 %. Not said where every resample agrees.
    UsageError for a margin that is not above 0.
    """
    check_margin(margin)
    columns = _both(condition, against, measure)
    width = columns.shape[1] // 2

    def value(totals: Array) -> Array:
        return measure.value(totals[..., :width]) - measure.value(totals[..., width:])

    note = f"{measure.name} is undefined in one of the two on the {len(columns)} questions that both have"
    difference = estimate(columns, value, len(columns), resampling, note)
    if difference.value is None or difference.low is None:
        return Comparison(measure.name, *names, difference, None, margin=margin)
    draws = value(resampled_totals(columns, resampling))
    usable = draws[np.isfinite(draws)]
    tails = [int((usable <= 0).sum()), int((usable >= 0).sum())]
    # where every resample agrees on a difference, too few questions differ for any p-value
    flat = np.ptp(usable) == 0 and difference.value != 0
    p_value = None if flat else min(1.0, 2 * (min(tails) + 1) / (len(usable) + 1))
    said = None if margin is None or np.ptp(usable) == 0 else difference.low > -margin
    return Comparison(measure.name, *names, difference, p_value, margin=margin, noninferior=said)


def _both(condition: Sequence[StudyEpisode], against: Sequence[StudyEpisode], measure: Measure) -> Array:
    """The measure's columns of both conditions side by side, a row per question of both."""
    theirs = set(questions_of(against))
    questions = [name for name in questions_of(condition) if name in theirs]
    known = set(questions)
    parts = [
        measure.columns([episode for episode in episodes if episode.question_id in known], questions)
        for episodes in (condition, against)
    ]
    columns = np.concatenate(parts, axis=1)
    if measure.whole:
        columns = columns[(parts[0][:, -1] > 0) & (parts[1][:, -1] > 0)]
    return columns


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: p-values adjusted for the family that they form, in the same order (Holm 1979)."""
    given = np.asarray(p_values, dtype=np.float64)
    if given.size and not ((given >= 0) & (given <= 1)).all():
        raise DataError(f"p-values lie between 0 and 1, but {list(p_values)} were given: give one per test.")
    order = np.argsort(given, kind="stable")
    adjusted = np.empty_like(given)
    adjusted[order] = np.minimum(1, np.maximum.accumulate(given[order] * np.arange(len(given), 0, -1)))
    return [float(p) for p in adjusted]


def compare_conditions(
    conditions: Mapping[str, Sequence[StudyEpisode]],
    against: str,
    measures: Sequence[Measure],
    margin: float | None = None,
    resampling: Resampling = STUDY,
) -> tuple[Comparison, ...]:
    """Every other condition against one, in every measure; all that are defined form one family for Holm's correction.

    The margin is that of the first measure. UsageError for an unknown condition.
    """
    if against not in conditions:
        raise UsageError(
            f"the condition {against!r} is not among {', '.join(conditions)}: compare against one of them."
        )
    found = [
        paired_difference(episodes, conditions[against], each, (name, against), None if place else margin, resampling)
        for name, episodes in conditions.items()
        if name != against
        for place, each in enumerate(measures)
    ]
    adjusted = iter(holm([each.p_value for each in found if each.p_value is not None]))
    return tuple(each if each.p_value is None else replace(each, p_holm=next(adjusted)) for each in found)
