"""How well agents with failing tools do: success, utility, calls, and whether they answer after useless results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from probecascade.errors import UsageError
from probecascade.evaluation.judged_useless.episodes import (
    FAILURE_REGIMES,
    SIX_REGIMES,
    USELESS,
    StudyEpisode,
)
from probecascade.evaluation.judged_useless.estimates import (
    STUDY,
    Array,
    Estimate,
    Measure,
    estimate,
    estimate_share,
    questions_of,
    ratio,
)
from probecascade.intervals import Resampling

COST = 0.05
"""What a tool call costs in the study's utility, where a right answer is worth 1."""


def _check_cost(cost: float) -> None:
    if not 0 <= cost < float("inf"):
        raise UsageError(f"a cost of {cost} per call was given: give a number of at least 0, such as {COST}.")


def _six_columns(
    episodes: Sequence[StudyEpisode], questions: Sequence[str], *, worth: Callable[[StudyEpisode], float]
) -> Array:
    """Per question the mean worth over the six regimes and 1, or zeros where it lacks one: (n_questions, 2)."""
    found: dict[str, dict[str, float]] = {}
    for episode in episodes:
        if episode.regime in SIX_REGIMES:
            found.setdefault(episode.question_id, {})[episode.regime] = worth(episode)
    columns = np.zeros((len(questions), 2))
    for place, name in enumerate(questions):
        values = found.get(name, {})
        if len(values) == len(SIX_REGIMES):
            columns[place] = sum(values.values()) / len(SIX_REGIMES), 1
    return columns


def _success(episode: StudyEpisode) -> float:
    return float(episode.success)


def _utility(episode: StudyEpisode, *, cost: float, charge_verdicts: bool) -> float:
    asked = sum(verdict != "" for verdict in episode.verdicts) if charge_verdicts else 0
    return episode.success - cost * (episode.calls + asked)


def _calls(episode: StudyEpisode) -> float:
    return float(episode.calls)


def mean6_measure() -> Measure:
    """`mean6` as a measure that can be compared between conditions."""
    return Measure("mean6", partial(_six_columns, worth=_success), ratio, whole=True)


def utility_measure(cost: float = COST, charge_verdicts: bool = False) -> Measure:
    """`utility` as a measure that can be compared between conditions."""
    _check_cost(cost)
    worth = partial(_utility, cost=cost, charge_verdicts=charge_verdicts)
    return Measure("utility", partial(_six_columns, worth=worth), ratio, whole=True)


def _over_six(episodes: Sequence[StudyEpisode], worth: Callable[[StudyEpisode], float], how: Resampling) -> Estimate:
    columns = _six_columns(episodes, questions_of(episodes), worth=worth)
    complete = columns[columns[:, 1] > 0]
    note = f"no question has an episode in each of the six regimes (of {len(columns)} questions)"
    return estimate(complete, ratio, len(complete), how, note)


def mean6(episodes: Sequence[StudyEpisode], resampling: Resampling = STUDY) -> Estimate:
    """Success with equal weight over the clean and the five failure regimes.

    Of the questions with an episode in each of the six, n of them; the others are left out. The episodes are of one
    condition.
    """
    return _over_six(episodes, _success, resampling)


def utility(
    episodes: Sequence[StudyEpisode],
    cost: float = COST,
    charge_verdicts: bool = False,
    resampling: Resampling = STUDY,
) -> Estimate:
    """Mean of 1 for a right answer less `cost` per tool call, over the same episodes as `mean6`.

    charge_verdicts: each verdict that was asked for costs as much as a call. UsageError for a negative cost.
    """
    _check_cost(cost)
    return _over_six(episodes, partial(_utility, cost=cost, charge_verdicts=charge_verdicts), resampling)


def tool_calls(episodes: Sequence[StudyEpisode], resampling: Resampling = STUDY) -> Estimate:
    """Mean number of tool calls per episode, over the same episodes as `mean6`."""
    return _over_six(episodes, _calls, resampling)


def success_by_regime(episodes: Sequence[StudyEpisode], resampling: Resampling = STUDY) -> dict[str, Estimate]:
    """Share of right answers in each regime that occurs: the six in their order, then others by name."""
    occurring = {episode.regime for episode in episodes}
    order = [*(name for name in SIX_REGIMES if name in occurring), *sorted(occurring - set(SIX_REGIMES))]
    hits: dict[str, list[tuple[str, bool]]] = {name: [] for name in order}
    for episode in episodes:
        hits[episode.regime].append((episode.question_id, episode.success))
    return {name: _share(each, resampling, "") for name, each in hits.items()}


def _share(hits: Sequence[tuple[str, bool]], resampling: Resampling, undefined: str) -> Estimate:
    """Share of hits among pairs of question and hit."""
    counts: dict[str, list[int]] = {}
    for question, hit in hits:
        row = counts.setdefault(question, [0, 0])
        row[0] += hit
        row[1] += 1
    columns = np.array(list(counts.values()), dtype=np.float64).reshape(-1, 2)
    return estimate_share(columns[:, 0], columns[:, 1], len(hits), resampling, undefined)


def answer_rate_after_k(
    episodes: Sequence[StudyEpisode],
    k: int = 5,
    regimes: Collection[str] = ("persistent",),
    resampling: Resampling = STUDY,
) -> Estimate:
    """Of the episodes that reach k USELESS verdicts in a row with an action still to take, the share that answer.

    An episode answers if its last action is `finish`, however much later. The study's figure is of the persistent
    regime. n counts the episodes that reach k. UsageError for a k below 1.
    """
    if k < 1:
        raise UsageError(f"a run of k = {k} useless verdicts was given: give at least 1, such as 5.")
    chosen = [episode for episode in episodes if episode.regime in regimes]
    reached = [(each.question_id, each.answered) for each in chosen if _longest_run(each) >= k]
    where = f"the {next(iter(regimes))} regime" if len(regimes) == 1 else "these regimes"
    note = f"none of {len(chosen)} episodes of {where} reaches {k} useless verdicts in a row"
    return _share(reached, resampling, note)


def _longest_run(episode: StudyEpisode) -> int:
    """The longest run of USELESS verdicts that ends where an action is still to come."""
    longest = run = 0
    for verdict in episode.verdicts[: max(0, len(episode.actions) - 1)]:
        run = run + 1 if verdict == USELESS else 0
        longest = max(longest, run)
    return longest


def answer_steps(
    episodes: Sequence[StudyEpisode], regimes: Collection[str] = FAILURE_REGIMES
) -> tuple[dict[int, int], int]:
    """How many episodes of these regimes answer as their action number 1, 2, …, and how many never do."""
    chosen = [episode for episode in episodes if episode.regime in regimes]
    steps = Counter(len(episode.actions) for episode in chosen if episode.answered)
    return dict(sorted(steps.items())), len(chosen) - sum(steps.values())


@dataclass(frozen=True, slots=True)
class StatedBelief:
    """What the model states on average: probability of success if it goes on, and if it answers now.

    `n` observations after which both were stated.
    """

    continuing: float
    answering: float
    n: int


def beliefs_by_run(episodes: Sequence[StudyEpisode]) -> dict[int, StatedBelief]:
    """The beliefs stated after a run of so many USELESS verdicts, in all regimes; runs without any are left out.

    A belief that follows the evidence falls as the run grows; one that does not ask to stop has `continuing` above
    `answering` throughout.
    """
    stated: dict[int, list[tuple[float, float]]] = {}
    for episode in episodes:
        run = 0
        pairs = zip(*(episode.beliefs.get(name, ()) for name in ("continuing", "answering")), strict=False)
        for verdict, (continuing, answering) in zip(episode.verdicts, pairs, strict=False):
            run = run + 1 if verdict == USELESS else 0
            if continuing is not None and answering is not None:
                stated.setdefault(run, []).append((continuing, answering))
    means = {run: np.mean(found, axis=0) for run, found in sorted(stated.items())}
    return {run: StatedBelief(float(mean[0]), float(mean[1]), len(stated[run])) for run, mean in means.items()}
