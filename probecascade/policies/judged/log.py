"""What judges said in a finished episode, and shares and cuts that are learnt from it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from probecascade.episode import Episode
from probecascade.errors import DataError
from probecascade.policies.judged.verdicts import Word


@dataclass(frozen=True, slots=True)
class EvidenceLog:
    """One judge's verdicts in one episode, an entry per observation that the agent read, in order.

    rounds: of the observations. scores: NaN where the judge gives none. runs: USELESS in a row up to each, as the
    judge's rule counts them (a NONE leaves the run as it was). injected: whether the observation was a failure put in
    the place of what the tool found, None where no tool spoke (an invalid action was refused). continuing, answering:
    the model's beliefs, NaN where it was not asked or gave no number.
    """

    rounds: tuple[int, ...]
    verdicts: tuple[Word, ...]
    scores: tuple[float, ...]
    runs: tuple[int, ...]
    injected: tuple[bool | None, ...]
    continuing: tuple[float, ...]
    answering: tuple[float, ...]


def judges_of(episode: Episode) -> tuple[str, ...]:
    """Names of the judges that spoke in this episode, sorted."""
    return tuple(sorted({name for notes in _notes(episode).values() for name in notes.get("judged", {})}))


def evidence_log(episode: Episode, judge: str) -> EvidenceLog:
    """What this judge said; NONE where it did not speak of an observation, as before the next thought is known.

    DataError for an episode that no policy of the kind `Judged` watched.
    """
    notes = _notes(episode)
    rounds = sorted(int(name.partition(":")[2]) for name in notes if name.startswith("observation:"))
    if not notes and any(point.kind == "observation" for point in episode.checkpoints):
        raise DataError(f"episode {episode.episode_id!r} holds no verdicts: play it under a policy that judges.")
    said: list[Mapping[str, Any]] = []
    beliefs: list[Mapping[str, Any]] = []
    runs: list[int] = []
    for number in rounds:
        here, later = notes[f"observation:{number}"], notes.get(f"action:{number + 1}", {})
        found = here.get("judged", {}).get(judge) or later.get("judged", {}).get(judge)
        said.append(found or {"verdict": "NONE"})
        new_part = not here["judged"] and _asks_next(episode, number)
        runs.append(said[-1].get("run", 0 if new_part or not runs else runs[-1]))
        beliefs.append(here.get("beliefs", {}))
    failures = {s.round: None if s.observation_kind == "invalid" else bool(s.injected) for s in episode.steps}
    return EvidenceLog(
        rounds=tuple(rounds),
        verdicts=tuple(each["verdict"] for each in said),
        scores=tuple(_number(each.get("score")) for each in said),
        runs=tuple(runs),
        injected=tuple(failures[number] for number in rounds),
        continuing=tuple(_number(each.get("continuing")) for each in beliefs),
        answering=tuple(_number(each.get("answering")) for each in beliefs),
    )


def useless_rate(episodes: Iterable[Episode], judge: str) -> float:
    """Share of observations that this judge called USELESS: the rate of a random control that matches it.

    DataError where there is no observation.
    """
    verdicts = [verdict for episode in episodes for verdict in evidence_log(episode, judge).verdicts]
    if not verdicts:
        raise DataError(f"the judge {judge!r} has no observation to be matched: play more episodes.")
    return sum(verdict == "USELESS" for verdict in verdicts) / len(verdicts)


def best_cut(scores: ArrayLike, useless: ArrayLike) -> tuple[float, float]:
    """The cut of (n,) scores that has the best balanced accuracy for (n,) truths, and that accuracy.

    USELESS is a score >= the cut. Balanced accuracy is the mean of the shares of useless and of other observations
    that are told rightly. Cuts lie halfway between neighbouring scores, or below all of them; among equals the highest
    wins, which calls the fewest useless. NaN scores are left out. DataError with one class.
    """
    values, truth = np.asarray(scores, np.float64), np.asarray(useless, np.bool_)
    values, truth = values[~np.isnan(values)], truth[~np.isnan(values)]
    if not truth.any() or truth.all():
        raise DataError(
            f"a cut was to be chosen on {int(truth.sum())} useless and {int((~truth).sum())} other observations: "
            "give some of both."
        )
    distinct = np.unique(values)
    cuts = np.concatenate([distinct[:1], distinct[:-1] + (distinct[1:] - distinct[:-1]) / 2])
    caught = _at_least(values[truth], cuts)
    wrong = _at_least(values[~truth], cuts)
    accuracy = (caught + 1 - wrong) / 2
    best = int(len(cuts) - 1 - accuracy[::-1].argmax())
    return float(cuts[best]), float(accuracy[best])


def _at_least(values: NDArray[np.float64], cuts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Share of the values that reach each cut."""
    below: NDArray[np.float64] = np.searchsorted(np.sort(values), cuts, "left") / len(values)
    return 1 - below


def _notes(episode: Episode) -> Mapping[str, Mapping[str, Any]]:
    every = episode.attributes.get("notes", {})
    return {name: notes for name, notes in every.items() if "judged" in notes}


def _asks_next(episode: Episode, number: int) -> bool:
    return any(step.round == number and step.observation_kind == "next_part" for step in episode.steps)


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
