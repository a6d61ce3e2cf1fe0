"""All measures of one condition at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from probecascade.evaluation.judged_useless.contrast import (
    BUDGET,
    Contrast,
    delta,
    delta_as_worded,
    hazard,
    integration_index,
)
from probecascade.evaluation.judged_useless.episodes import FAILURE_REGIMES, USEFUL, USELESS, StudyEpisode
from probecascade.evaluation.judged_useless.estimates import STUDY, Estimate
from probecascade.evaluation.judged_useless.judging import Agreement, JudgeAccuracy, judge_accuracy, judges_agree
from probecascade.evaluation.judged_useless.measures import (
    COST,
    StatedBelief,
    answer_rate_after_k,
    answer_steps,
    beliefs_by_run,
    mean6,
    success_by_regime,
    tool_calls,
    utility,
)
from probecascade.intervals import Resampling


@dataclass(frozen=True, slots=True)
class Summary:
    """The measures of the episodes of one condition; each is described at the function of its name.

    answer_rate_after_k is of the persistent regime, answer_rate_failing of the five failure regimes;
    utility_with_verdicts charges each verdict like a call; verdicts counts USELESS, USEFUL, other ones, and
    observations without any.
    """

    episodes: int
    questions: int
    regimes: Mapping[str, int]
    delta: Contrast
    delta_as_worded: Contrast
    integration_index: Estimate
    hazard: Mapping[int, Estimate]
    answer_rate_after_k: Estimate
    answer_rate_failing: Estimate
    mean6: Estimate
    utility: Estimate
    utility_with_verdicts: Estimate
    tool_calls: Estimate
    success: Mapping[str, Estimate]
    answer_steps: Mapping[int, int]
    never_answered: int
    verdicts: Mapping[str, int]
    beliefs: Mapping[int, StatedBelief]
    judge: JudgeAccuracy
    agreement: tuple[Agreement, ...]


def summarise(
    episodes: Sequence[StudyEpisode],
    k: int = 5,
    budget: int = BUDGET,
    cost: float = COST,
    resampling: Resampling = STUDY,
) -> Summary:
    """Every measure of the episodes, which are of one model in one condition.

    k: run of useless verdicts after which answers are counted; budget: actions that the agent may take; cost: of a
    tool call. UsageError for a k below 1, a budget below 5 or a negative cost.
    """
    steps, never = answer_steps(episodes)
    counted = Counter(
        verdict if verdict in (USELESS, USEFUL) else "other" if verdict else "none"
        for episode in episodes
        for verdict in episode.verdicts
    )
    return Summary(
        episodes=len(episodes),
        questions=len({episode.question_id for episode in episodes}),
        regimes=dict(Counter(episode.regime for episode in episodes)),
        delta=delta(episodes, budget, resampling),
        delta_as_worded=delta_as_worded(episodes, budget, resampling),
        integration_index=integration_index(episodes, budget, resampling),
        hazard=hazard(episodes, budget, resampling),
        answer_rate_after_k=answer_rate_after_k(episodes, k, resampling=resampling),
        answer_rate_failing=answer_rate_after_k(episodes, k, FAILURE_REGIMES, resampling),
        mean6=mean6(episodes, resampling),
        utility=utility(episodes, cost, resampling=resampling),
        utility_with_verdicts=utility(episodes, cost, True, resampling),
        tool_calls=tool_calls(episodes, resampling),
        success=success_by_regime(episodes, resampling),
        answer_steps=steps,
        never_answered=never,
        verdicts={name: counted[name] for name in (USELESS, USEFUL, "other", "none")},
        beliefs=beliefs_by_run(episodes),
        judge=judge_accuracy(episodes, resampling),
        agreement=judges_agree(episodes),
    )
