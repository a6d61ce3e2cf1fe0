"""How good the verdicts are: against the failures that were injected, and of one judge against another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from probecascade.errors import DataError
from probecascade.evaluation.judged_useless.episodes import OWN, USEFUL, USELESS, StudyEpisode
from probecascade.evaluation.judged_useless.estimates import (
    STUDY,
    Array,
    Estimate,
    estimate,
    estimate_share,
    questions_of,
    summed,
)
from probecascade.intervals import Resampling


@dataclass(frozen=True, slots=True)
class JudgeAccuracy:
    """How often USELESS was said of the observations that were injected failures, and of no others.

    accuracy: share of the verdicts that are right; judged_useless: of the failing observations, the share judged
    USELESS; judged_intact: of the others, the share not judged USELESS; balanced: the mean of these two.
    """

    accuracy: Estimate
    judged_useless: Estimate
    judged_intact: Estimate
    balanced: Estimate


@dataclass(frozen=True, slots=True)
class Agreement:
    """Cohen's kappa of two judges over the `n` observations that both were asked about.

    kappa is None where it is undefined (`note` says why); agreed is the share of equal verdicts, None without any.
    """

    first: str
    second: str
    kappa: float | None
    agreed: float | None
    n: int
    note: str = ""


def judge_accuracy(episodes: Sequence[StudyEpisode], resampling: Resampling = STUDY) -> JudgeAccuracy:
    """Verdicts against the truth of the injected failures, of all episodes that tell it (`StudyEpisode.truth`).

    Any verdict but USELESS counts as saying that the observation is no failure, as it does for the rule; observations
    without a verdict are left out, and so are those that were no result of a tool. An observation that is no failure
    need not be of use, so that `judged_intact` of a perfect judge may be below 1. Intervals resample questions.
    """
    questions = questions_of(episodes)
    places = {name: place for place, name in enumerate(questions)}
    codes: list[int] = []
    rows: list[tuple[bool, bool, bool, bool]] = []
    for episode in episodes:
        for verdict, failing in zip(episode.verdicts, episode.truth or (), strict=False):
            if verdict and failing is not None:
                useless = verdict == USELESS
                codes.append(places[episode.question_id])
                rows.append((failing and useless, failing, not failing and not useless, not failing))
    sums = summed(codes, np.array(rows, dtype=np.float64).reshape(-1, 4), len(questions))
    right, all_ = sums[:, 0] + sums[:, 2], sums[:, 1] + sums[:, 3]
    n_failing, n_intact = int(sums[:, 1].sum()), int(sums[:, 3].sum())
    none_failing, none_intact = f"no failing observation judged (n={n_failing})", f"no other one judged (n={n_intact})"
    counted = sums[all_ > 0]
    return JudgeAccuracy(
        estimate_share(right, all_, len(rows), resampling, "no verdict on an observation whose truth is known"),
        estimate_share(sums[:, 0], sums[:, 1], n_failing, resampling, none_failing),
        estimate_share(sums[:, 2], sums[:, 3], n_intact, resampling, none_intact),
        estimate(counted, _balanced, len(rows), resampling, none_intact if n_failing else none_failing),
    )


def _balanced(totals: Array) -> Array:
    failing, intact = totals[..., 1], totals[..., 3]
    both = (failing > 0) & (intact > 0)
    found = (totals[..., 0] / np.where(both, failing, 1) + totals[..., 2] / np.where(both, intact, 1)) / 2
    return np.where(both, found, np.nan)


def agreement(verdicts: Mapping[str, Sequence[Sequence[str]]]) -> tuple[Agreement, ...]:
    """Cohen's kappa between every two judges, each given as its verdicts on the same episodes in the same order.

    kappa = (agreed - expected) / (1 - expected), over the classes USELESS, USEFUL and anything else, with the
    agreement `expected` of judges that give each verdict as often but independently (Cohen 1960). Undefined where
    both judges always say the same one thing. Observations on which one of the two was not asked (empty verdict) are
    left out. DataError where the judges' episodes or observations differ in number.
    """
    lengths = {name: [len(each) for each in judged] for name, judged in verdicts.items()}
    if len({tuple(each) for each in lengths.values()}) > 1:
        raise DataError(f"the judges {', '.join(verdicts)} did not judge the same observations: give one verdict each.")
    flat = {name: np.array([_class(v) for each in judged for v in each]) for name, judged in verdicts.items()}
    return tuple(_kappa(first, second, flat[first], flat[second]) for first, second in combinations(flat, 2))


def judges_agree(episodes: Sequence[StudyEpisode]) -> tuple[Agreement, ...]:
    """`agreement` between the episodes' own verdicts and those of their further judges.

    Of the episodes that have all judges that any of them has. The own verdicts stand under the name of their judge
    where all episodes tell the same, else under `OWN`.
    """
    names = list(dict.fromkeys(name for episode in episodes for name in episode.judges))
    complete = [episode for episode in episodes if all(name in episode.judges for name in names)]
    drivers = {episode.judge for episode in complete}
    name = drivers.pop() if len(drivers) == 1 else ""
    own = {name or OWN: [episode.verdicts for episode in complete]}
    return agreement({**own, **{name: [episode.judges[name] for episode in complete] for name in names}})


_CLASSES = (USELESS, USEFUL)


def _class(verdict: str) -> int:
    """-1 where no verdict was asked for, else the class of the verdict."""
    return -1 if not verdict else _CLASSES.index(verdict) if verdict in _CLASSES else len(_CLASSES)


def _kappa(first: str, second: str, one: np.ndarray, two: np.ndarray) -> Agreement:
    asked = (one >= 0) & (two >= 0) if one.size else np.zeros(0, dtype=np.bool_)
    n = int(asked.sum())
    if not n:
        return Agreement(first, second, None, None, 0, "no observation that both judged")
    size = len(_CLASSES) + 1
    table = np.zeros((size, size))
    np.add.at(table, (one[asked], two[asked]), 1)
    agreed = float(np.trace(table)) / n
    expected = float(table.sum(axis=1) @ table.sum(axis=0)) / n**2
    if expected >= 1:
        return Agreement(first, second, None, agreed, n, "both judges always say the same one thing")
    return Agreement(first, second, (agreed - expected) / (1 - expected), agreed, n)
