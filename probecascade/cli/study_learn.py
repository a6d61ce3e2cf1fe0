"""What the judges of a study learn before it begins, on episodes of tasks that it does not play."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probecascade.cli.recipes import ExtractRecipe
from probecascade.cli.session import Session
from probecascade.cli.study_folder import DEVELOPMENT
from probecascade.episode import Episode
from probecascade.errors import StoreError, UsageError
from probecascade.policies.judged import (
    EvidenceJudge,
    FittedEvidence,
    LexicalDetector,
    OddsJudge,
    RandomJudge,
    SideQuestionJudge,
    ThoughtReader,
    best_cut,
    evidence_log,
    fit_evidence_probe,
    useless_rate,
)
from probecascade.store import Run


@dataclass(frozen=True)
class Learnt:
    """What the development episodes gave: the judges, the k of `tuned` (None if it is not played), and what is said."""

    judges: Mapping[str, EvidenceJudge]
    tuned: int | None = None
    about: Mapping[str, Any] = field(default_factory=dict)


def untaught() -> dict[str, EvidenceJudge]:
    """The judges that need not learn; the odds are cut where one word is likelier than the other."""
    judges = (SideQuestionJudge(), OddsJudge(), ThoughtReader(), LexicalDetector())
    return {judge.name: judge for judge in judges}


def learnt_from(run: Run, chosen: str) -> Learnt:
    """Probe, cut of the odds, and the rate of a random judge to match `chosen`, from a run that they all watched."""
    played = [episode for episode in map(run.episode, range(len(run))) if episode.labelled]
    evidence = max((fit_evidence_probe(run, layer) for layer in run.layers if layer), key=lambda found: found.auroc)
    cut, odds_accuracy = _odds(played)
    rate = _rate(chosen, played, evidence, cut)
    about: dict[str, Any] = {
        "judge": chosen,
        "development": len({episode.group for episode in played}),
        "probe": _about_probe(evidence),
        "odds": {"cut": cut, "balanced_accuracy": odds_accuracy},
        "random": {"rate": rate},
    }
    judges = untaught() | {"odds": OddsJudge(cut), "probe": evidence.judge(), "random": RandomJudge(rate)}
    return Learnt(judges, None, about)


def taught_elsewhere(session: Session, recipe: ExtractRecipe) -> Learnt | None:
    """As `learnt_from`, on the development episodes of another study of the same model; None where `learn` names none.

    `about` tells its folder and, as `learnt_on`, a digest of those episodes. StoreError for a folder that is no study,
    UsageError for another model, layers that the recipe does not keep, or tasks that are to be played here.
    """
    folder = recipe.study.learn
    if folder is None:
        return None
    path = Path(folder) / DEVELOPMENT
    if not path.is_dir():
        raise StoreError(
            f"{folder!r} in [study] holds no {DEVELOPMENT} episodes: give the folder of a study for learn."
        )
    run = Run.open(path)
    if run.header["model"] != session.header["model"]:
        raise UsageError(f"the study in {folder!r} is of another model: give learn a study of the recipe's own model.")
    missing = sorted({layer for layer in run.layers if layer} - set(session.engine.layers))
    if missing:
        raise UsageError(
            f"the study in {folder!r} may choose among layers {missing} too: add them to layers in [capture]."
        )
    seen = sorted(set(run.episodes.group.tolist()) & {task.group for task in session.tasks.tasks})
    if seen:
        raise UsageError(
            f"the judges of {folder!r} were taught on {len(seen)} of the study's tasks, such as {seen[0]!r}: "
            "play others, or give learn another study."
        )
    learnt = learnt_from(run, recipe.study.judge)
    return dataclasses.replace(learnt, about={**learnt.about, "learnt_in": folder, "learnt_on": _digest(run)})


def _digest(run: Run) -> str:
    """Of the episodes of a run, in any order."""
    each = sorted(_of_episode(run.episode(index)) for index in range(len(run)))
    return hashlib.sha256(b"".join(each)).hexdigest()[:16]


def _of_episode(episode: Episode) -> bytes:
    name = episode.episode_id.encode("utf-8", "surrogatepass")
    return hashlib.sha256(name + b"\0" + episode.token_ids.tobytes()).digest()


def _odds(played: Sequence[Episode]) -> tuple[float, float]:
    """The cut of the model's own log-odds, and its balanced accuracy on the episodes that it was chosen on."""
    logs = [evidence_log(episode, "odds") for episode in played]
    pairs = [pair for log in logs for pair in zip(log.scores, log.injected, strict=True)]
    known = [(score, truth) for score, truth in pairs if truth is not None]
    return best_cut([score for score, _ in known], [truth for _, truth in known])


def _rate(chosen: str, played: Sequence[Episode], evidence: FittedEvidence, cut: float) -> float:
    """The share of development observations that the study's judge calls useless."""
    if chosen == "probe":
        return evidence.rate
    if chosen == "odds":
        scores = [score for episode in played for score in evidence_log(episode, "odds").scores]
        return sum(score >= cut for score in scores) / len(scores)
    return useless_rate(played, chosen)


def _about_probe(evidence: FittedEvidence) -> dict[str, Any]:
    kept = {field.name: getattr(evidence, field.name) for field in dataclasses.fields(evidence)}
    return {key: value for key, value in kept.items() if key != "probe"}
