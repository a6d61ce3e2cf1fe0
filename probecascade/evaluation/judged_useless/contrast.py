"""Does the agent stop because of its evidence, or by the clock? Delta, the integration index and the hazard curve."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from probecascade.errors import UsageError
from probecascade.evaluation.judged_useless.episodes import FAILURE_REGIMES, FINISH, USELESS, StudyEpisode
from probecascade.evaluation.judged_useless.estimates import (
    STUDY,
    Array,
    Estimate,
    Measure,
    estimate,
    estimate_share,
    questions_of,
    summed,
)
from probecascade.intervals import Resampling

BUDGET = 8
"""Actions that an agent of the study may take."""

FIRST = 3
"""The first decision that Delta pools: before it, the arms cannot both be filled."""

LEAST_BUDGET = FIRST + 2
"""Actions that leave Delta a decision."""

MOST_BUDGET = 10_000

Wording = Literal["published", "as_worded"]


@dataclass(frozen=True, slots=True)
class DecisionPoints:
    """Columns (n,) of decisions: each action that is taken after at least one observation.

    question: place among the names given; t: observations so far; run: length of the run of USELESS verdicts that
    ends with the latest (anything else ends a run); first_other: number of the first observation that was not judged
    USELESS, 0 if none; answered: whether the action is `finish`.
    """

    question: NDArray[np.intp]
    t: NDArray[np.intp]
    run: NDArray[np.intp]
    first_other: NDArray[np.intp]
    answered: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Stratum:
    """The decisions after `t` observations: how many in either arm, and how many of them are answers."""

    t: int
    answered_a: int
    n_a: int
    answered_b: int
    n_b: int


@dataclass(frozen=True, slots=True)
class Contrast:
    """A time-matched contrast and the counts that it pools."""

    delta: Estimate
    strata: tuple[Stratum, ...]


def check_budget(budget: int) -> None:
    """UsageError for a budget that leaves Delta no decision, or that no agent has."""
    if not LEAST_BUDGET <= budget <= MOST_BUDGET:
        raise UsageError(f"a budget of {budget} actions was given: give {LEAST_BUDGET} to {MOST_BUDGET}.")


def decision_points(
    episodes: Iterable[StudyEpisode],
    questions: Sequence[str],
    regimes: Collection[str] = FAILURE_REGIMES,
    budget: int = BUDGET,
) -> DecisionPoints:
    """The decisions of the episodes in these regimes, but for the last of the budget.

    Action number t (from 0) is taken after t observations. An episode's decisions go as far as it has actions and
    verdicts. The last action of a budget, t = budget - 1, is left out: there an agent answers because nothing else
    is left. UsageError for a budget below 5, which leaves Delta no decision.
    """
    check_budget(budget)
    codes = {name: place for place, name in enumerate(questions)}
    rows: list[tuple[int, int, int, int, bool]] = []
    for episode in episodes:
        if episode.regime not in regimes:
            continue
        run = first_other = 0
        code, actions = codes[episode.question_id], episode.actions
        for t, verdict in enumerate(episode.verdicts[: min(len(actions) - 1, budget - 2)], 1):
            run = run + 1 if verdict == USELESS else 0
            first_other = first_other or (0 if run else t)
            rows.append((code, t, run, first_other, actions[t] == FINISH))
    table = np.array(rows, dtype=np.intp).reshape(-1, 5)
    return DecisionPoints(table[:, 0], table[:, 1], table[:, 2], table[:, 3], table[:, 4].astype(np.bool_))


def mantel_haenszel(strata: Sequence[Stratum]) -> float | None:
    """Mantel-Haenszel risk difference of arm a over arm b; None where no stratum has both arms.

    sum_t w_t (answered_a / n_a - answered_b / n_b) / sum_t w_t with w_t = n_a n_b / (n_a + n_b), over the strata in
    which neither arm is empty (Greenland and Robins 1985).
    """
    counts = [(each.answered_a, each.n_a, each.answered_b, each.n_b) for each in strata]
    found = float(_pooled(np.array(counts, dtype=np.float64).reshape(-1)))
    return found if np.isfinite(found) else None


def _pooled(totals: Array) -> Array:
    """`mantel_haenszel` of counts (..., 4 n_strata), NaN where undefined."""
    cells = totals.reshape(*totals.shape[:-1], -1, 4)
    hits_a, n_a, hits_b, n_b = (cells[..., i] for i in range(4))
    both = np.where((n_a > 0) & (n_b > 0), n_a + n_b, np.inf)
    top = ((hits_a * n_b - hits_b * n_a) / both).sum(axis=-1)
    weight = (n_a * n_b / both).sum(axis=-1)
    return np.where(weight > 0, top / np.where(weight > 0, weight, 1), np.nan)


def _arms(points: DecisionPoints, wording: Wording) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which decisions are in arm a and in arm b; see `delta` and `delta_as_worded`."""
    arm_a = points.run == points.t
    other = points.run if wording == "published" else np.where(points.first_other > 0, points.first_other, points.t)
    return arm_a, (points.run >= 1) & (other <= points.t - 2)


def _cells(
    episodes: Sequence[StudyEpisode], questions: Sequence[str], *, wording: Wording, budget: int = BUDGET
) -> Array:
    """Per question and t in 3..budget-2: answers and number in arm a, then in arm b, (n_questions, 4 n_strata)."""
    points = decision_points(episodes, questions, budget=budget)
    arm_a, arm_b = _arms(points, wording)
    n_strata = budget - 1 - FIRST
    sums = np.zeros((len(questions), n_strata, 4))
    for place, arm in ((0, arm_a), (2, arm_b)):
        chosen = arm & (points.t >= FIRST)
        at = points.question[chosen], points.t[chosen] - FIRST
        np.add.at(sums[:, :, place], at, points.answered[chosen])
        np.add.at(sums[:, :, place + 1], at, 1)
    return sums.reshape(len(questions), 4 * n_strata)


def delta_measure(wording: Wording = "published", budget: int = BUDGET) -> Measure:
    """Delta as a measure that can be compared between conditions."""
    name = "delta" if wording == "published" else "delta_as_worded"
    return Measure(name, partial(_cells, wording=wording, budget=budget), _pooled)


def delta(episodes: Sequence[StudyEpisode], budget: int = BUDGET, resampling: Resampling = STUDY) -> Contrast:
    """The time-matched contrast Delta of arXiv 2610.06191, as its public code computes it.

    At the same number t of observations: how often the agent answers next where every observation so far was judged
    USELESS (arm a, run = t), less how often where the latest was but an earlier one was not (arm b,
    1 <= run <= t - 2). A run of t - 1, where only the very first observation was not judged USELESS, is in neither
    arm. Strata t in 3..budget-2 of the five failure regimes are pooled by `mantel_haenszel`; the interval resamples
    questions. About 0 for an agent that stops by the clock, above 0 for one that acts on its verdicts.
    """
    return _contrast(episodes, "published", budget, resampling)


def delta_as_worded(episodes: Sequence[StudyEpisode], budget: int = BUDGET, resampling: Resampling = STUDY) -> Contrast:
    """Delta with arm b as a plain-language description has it, which excludes "the most recent previous result".

    Arm b: the latest observation, number t, was judged USELESS, and among the observations 1..t-2, those before the
    most recent previous one, at least one was not. So a decision after only the first observation was not judged
    USELESS (run = t - 1) is in arm b here and not in `delta`, and one after only the previous observation was not
    (run = 1, all before it USELESS) is in arm b there and not here. Everything else is as in `delta`. It is kept to
    show what the wording changes; the published figures are those of `delta`.
    """
    return _contrast(episodes, "as_worded", budget, resampling)


def _contrast(episodes: Sequence[StudyEpisode], wording: Wording, budget: int, resampling: Resampling) -> Contrast:
    failing = [episode for episode in episodes if episode.regime in FAILURE_REGIMES]
    columns = _cells(failing, questions_of(failing), wording=wording, budget=budget)
    totals = columns.sum(axis=0).astype(int).reshape(-1, 4).tolist()
    strata = tuple(Stratum(FIRST + place, *row) for place, row in enumerate(totals))
    n_a, n_b = sum(each.n_a for each in strata), sum(each.n_b for each in strata)
    undefined = (
        f"no t in {FIRST}..{budget - 2} has decisions of both arms (all useless: n={n_a}, "
        f"latest useless after one that was not: n={n_b})"
    )
    return Contrast(estimate(columns, _pooled, n_a + n_b, resampling, undefined), strata)


_EARLY, _LATE = (1, 2), (4, 5)


def _integration_cells(episodes: Sequence[StudyEpisode], questions: Sequence[str], *, budget: int = BUDGET) -> Array:
    points = decision_points(episodes, questions, budget=budget)
    parts = [np.isin(points.run, runs) for runs in (_LATE, _EARLY)]
    values = np.stack([column for part in parts for column in (part & points.answered, part)], axis=1)
    return summed(points.question, values.astype(np.float64), len(questions))


def _difference(totals: Array) -> Array:
    late, early = totals[..., 1], totals[..., 3]
    both = (late > 0) & (early > 0)
    found = totals[..., 0] / np.where(both, late, 1) - totals[..., 2] / np.where(both, early, 1)
    return np.where(both, found, np.nan)


def integration_measure(budget: int = BUDGET) -> Measure:
    """The integration index as a measure that can be compared between conditions."""
    return Measure("integration_index", partial(_integration_cells, budget=budget), _difference)


def integration_index(
    episodes: Sequence[StudyEpisode], budget: int = BUDGET, resampling: Resampling = STUDY
) -> Estimate:
    """I = h({4, 5}) - h({1, 2}), with h(runs) the share of answers among the decisions after such a run of USELESS.

    Decisions after 1 to budget-2 observations of the five failure regimes. Long runs come late, so that I is also
    above 0 for an agent that stops by the clock alone; `delta` compares at the same t and is not.
    """
    failing = [episode for episode in episodes if episode.regime in FAILURE_REGIMES]
    columns = _integration_cells(failing, questions_of(failing), budget=budget)
    n_late, n_early = (int(columns[:, place].sum()) for place in (1, 3))
    undefined = f"no decision after a run of 4 or 5 (n={n_late}) or of 1 or 2 (n={n_early})"
    return estimate(columns, _difference, n_late + n_early, resampling, undefined)


def hazard(
    episodes: Sequence[StudyEpisode], budget: int = BUDGET, resampling: Resampling = STUDY
) -> dict[int, Estimate]:
    """h(run): of the decisions after a run of that many USELESS verdicts, the share that are answers.

    Runs of 0 to budget-2, over decisions after 1 to budget-2 observations of the five failure regimes; n counts
    decisions. Undefined where there is none.
    """
    failing = [episode for episode in episodes if episode.regime in FAILURE_REGIMES]
    questions = questions_of(failing)
    points = decision_points(failing, questions, budget=budget)
    curve = {}
    for run in range(budget - 1):
        chosen = points.run == run
        values = np.stack([chosen & points.answered, chosen], axis=1).astype(np.float64)
        sums = summed(points.question, values, len(questions))
        note = f"no decision after a run of {run}"
        curve[run] = estimate_share(sums[:, 0], sums[:, 1], int(chosen.sum()), resampling, note)
    return curve
