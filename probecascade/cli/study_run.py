"""Plays the conditions of a study on a recipe's tasks, whatever they have in common only once."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from probecascade.agents.react import episode_id
from probecascade.cli.progress import progress
from probecascade.cli.recipes import ExtractRecipe, plain, read_extract
from probecascade.cli.session import Session, missing, open_session, play, run_writer
from probecascade.cli.tasks import task_set
from probecascade.environments.tasks import write_whole
from probecascade.episode import Episode, Recording, Task
from probecascade.errors import DataError, StoreError, UsageError
from probecascade.evaluation.judged_useless.played import played_record
from probecascade.models.requests import Conversation
from probecascade.models.together import together
from probecascade.policies.judged import (
    ASKED_WORD,
    CONDITIONS,
    TRIED,
    EvidenceJudge,
    FittedEvidence,
    Judged,
    LexicalDetector,
    OddsJudge,
    RandomJudge,
    SideQuestionJudge,
    ThoughtReader,
    best_cut,
    evidence_log,
    fit_evidence_probe,
    rule_named,
    tune_k,
    useless_rate,
)
from probecascade.store import Run

EPISODES, DEVELOPMENT, ABOUT = "episodes.jsonl", "development", "study.json"

TUNED = "tuned"  # the condition whose k is chosen on the development episodes

_NAME = re.compile(r"(\w+?)(?:_k([1-9][0-9]?))?")


@dataclass(frozen=True)
class Learnt:
    """What the development episodes gave: the judges, the k of `tuned` (None if it is not played), and what is said."""

    judges: Mapping[str, EvidenceJudge]
    tuned: int | None = None
    about: Mapping[str, Any] = field(default_factory=dict)


def run_study(path: Path, output: Path, *, resume: bool, limit: int | None, device: str | None) -> dict[str, Any]:
    """Play what a study lacks in its folder and return what is known of its judges and costs.

    The folder holds the episodes as `episodes.jsonl`, those of development as a run, and `study.json`. StoreError for
    a folder that exists (unless it is resumed) or holds another study, UsageError for a recipe that makes none.
    """
    recipe = read_extract(path)
    if device is not None:
        recipe = dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, device=device))
    _check(recipe)
    if output.exists() and not resume:
        raise StoreError(f"{str(output)!r} exists already: add --resume to go on, or choose another folder.")
    tasks = task_set(recipe)
    chosen = tasks.first(limit)
    if any(len(task.parts) > 1 for task in tasks.tasks):
        raise UsageError("a study needs tasks of one question each: set parts = 1 in [tasks].")
    held_out = tuple(itertools.islice(tasks.fresh(), recipe.study.development))
    if len(held_out) < recipe.study.development:
        raise UsageError(
            f"the study wants {recipe.study.development} tasks for development beside the {len(tasks.tasks)} of the "
            f"recipe, and {len(held_out)} are left: lower groups in [tasks] or development in [study]."
        )
    rules = [rule_named(_parts(name)[0], rounds=tasks.max_rounds) for name in recipe.study.conditions]
    session = open_session(
        recipe,
        tasks=tasks,
        adds=[ASKED_WORD, max((r.opening for r in rules), key=len)],
        episodes=max(tasks.episodes(chosen, recipe), tasks.episodes(held_out, recipe)),
    )
    header = {**session.header, "study": plain(recipe.study)}
    _begin(output, header)
    learnt = _learn(session, recipe, held_out, output / DEVELOPMENT)
    policies = {name: _policy(name, session, learnt) for name in recipe.study.conditions}
    done = _stored(output / EPISODES)
    left = [
        (task, seed)
        for task, seed in session.episodes(chosen)
        if not done >= {(episode_id(task, seed), name) for name in policies}
    ]
    begun, errors = session.engine.tokens_computed, Counter[str]()
    with (output / EPISODES).open("a", encoding="utf-8") as file:
        for recordings in progress(_all(session, left, policies), len(left), "study", "task"):
            errors += _write(file, recordings, policies, session, done)
    about = {
        **learnt.about,
        "k": recipe.study.k,
        "errors": dict(errors.most_common()),
        "computed": session.engine.tokens_computed - begun,
    }
    write_whole(output / ABOUT, json.dumps({**header, "learnt": about}, indent=2).encode())
    return about


def _check(recipe: ExtractRecipe) -> None:
    if len(recipe.environment.regimes) < 2:
        raise UsageError(
            "a study needs tools that fail and tools that do not: give several regimes in [environment], such as "
            'failures = ["clean", "persistent"].'
        )
    if "observation" not in recipe.capture.checkpoints:
        raise UsageError('a study judges observations: add "observation" to checkpoints in [capture].')
    for name in recipe.study.conditions:
        _parts(name)


def _parts(name: str) -> tuple[str, str | None, int | None]:
    """A condition's rule, its judge where it is not the study's, and its k where it is not the usual."""
    found = _NAME.fullmatch(name)
    base = found[1] if found else name
    k = int(found[2]) if found and found[2] else None
    if base in CONDITIONS:
        return base, None, k
    if name == TUNED:
        return "enforced", None, None
    if base in ("side", "odds", "thought", "lexical", "probe", "random"):
        return "enforced", base, k
    raise UsageError(
        f"the condition {name!r} in [study] is unknown: choose from {', '.join(CONDITIONS)}, {TUNED}, the judges "
        "side, odds, thought, lexical, probe and random, and add _k3 for another k."
    )


def _begin(output: Path, header: Mapping[str, Any]) -> None:
    """Make the folder, or see that it holds this very study."""
    output.mkdir(parents=True, exist_ok=True)
    kept = output / ABOUT
    if not kept.exists():
        write_whole(kept, json.dumps(header, indent=2).encode())
        return
    try:
        stored = json.loads(kept.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(f"{kept} cannot be read ({error}): restore it, or choose another folder.") from error
    wanted = json.loads(json.dumps(header))
    for key in ("model", "template", "recipe_identity", "study", "files"):
        if stored.get(key) != wanted.get(key):
            raise StoreError(
                f"{str(output)!r} holds a study that differs in {key!r}: give the recipe and model that it was begun "
                "with, or choose another folder."
            )


# Development ----------------------------------------------------------------------------------------------------------


def _learn(session: Session, recipe: ExtractRecipe, tasks: Sequence[Task], folder: Path) -> Learnt:
    """Play the development tasks, learn probe, cut and rate on them, and the k of `tuned` where that is played."""
    judges: dict[str, EvidenceJudge] = {
        "side": SideQuestionJudge(),
        "odds": OddsJudge(),
        "thought": ThoughtReader(),
        "lexical": LexicalDetector(),
    }
    watching = Judged(rule_named("none"), None, tuple(judges.values()))
    episodes = list(session.episodes(tasks))
    with run_writer(session, folder, resume=folder.exists()) as writer:
        left = missing(episodes, writer.stored)
        for recording in progress(play(session, left, watching), len(left), "development"):
            writer.add(recording)
    run = Run.open(folder)
    played = [episode for episode in map(run.episode, range(len(run))) if episode.labelled]
    evidence = max((fit_evidence_probe(run, layer) for layer in run.layers if layer), key=lambda found: found.auroc)
    cut, odds_accuracy = _odds(played)
    judges |= {"odds": OddsJudge(cut), "probe": evidence.judge()}
    chosen = recipe.study.judge
    rate = _rate(chosen, played, evidence, cut)
    judges["random"] = RandomJudge(rate)
    about: dict[str, Any] = {
        "judge": chosen,
        "development": len(tasks),
        "probe": _about_probe(evidence),
        "odds": {"cut": cut, "balanced_accuracy": odds_accuracy},
        "random": {"rate": rate},
    }
    if TUNED not in recipe.study.conditions:
        return Learnt(judges, None, about)
    tuned = _tuned(session, episodes, recipe, Learnt(judges))
    return Learnt(judges, tuned.k, about | {"tuned": dataclasses.asdict(tuned)})


def _odds(played: Sequence[Episode]) -> tuple[float, float]:
    """The cut of the model's own log-odds, and its balanced accuracy on the episodes that it was chosen on."""
    logs = [evidence_log(episode, "odds") for episode in played]
    known = [pair for log in logs for pair in zip(log.scores, log.injected, strict=True) if pair[1] is not None]
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


def _tuned(session: Session, episodes: Sequence[tuple[Task, int]], recipe: ExtractRecipe, learnt: Learnt) -> Any:
    """The k that does best on the development episodes, played again under each."""
    policies = {f"enforced_k{k}": _policy(f"enforced_k{k}", session, learnt) for k in TRIED}
    played: dict[int, list[Episode]] = {k: [] for k in TRIED}
    for recordings in progress(_all(session, episodes, policies), len(episodes), "tuning k", "task"):
        for k, recording in zip(TRIED, recordings, strict=True):
            played[k].append(recording.episode)
    return tune_k(played, recipe.study.cost)


# The study ------------------------------------------------------------------------------------------------------------


def _policy(name: str, session: Session, learnt: Learnt) -> Judged:
    """The policy of a condition. All judges speak in each; where a rule acts on none, those of the study's count."""
    rule, judge, k = _parts(name)
    acting = judge or session.recipe.study.judge
    others = tuple(each for of, each in learnt.judges.items() if of != acting)
    k = learnt.tuned if name == TUNED else k or session.recipe.study.k
    assert k is not None
    return Judged(rule_named(rule, k=k, rounds=session.tasks.max_rounds), learnt.judges[acting], others)


def _all(
    session: Session, episodes: Sequence[tuple[Task, int]], policies: Mapping[str, Judged]
) -> Iterator[list[Recording]]:
    def conversations() -> Iterator[Conversation[list[Recording]]]:
        for task, seed in episodes:
            yield together([session.conversation(task, seed, policy) for policy in policies.values()])

    yield from session.engine.run(conversations())


def _write(
    file: Any, recordings: Sequence[Recording], policies: Mapping[str, Judged], session: Session, done: set[Any]
) -> Counter[str]:
    """Add the lines of one task; returns the errors in which episodes ended, which are left out."""
    lines, errors = [], Counter[str]()
    model = str(session.header["model"]["model"])
    for (name, policy), recording in zip(policies.items(), recordings, strict=True):
        episode = recording.episode
        if not episode.labelled:
            errors[episode.reason] += 1
        elif (episode.episode_id, name) not in done and policy.judge is not None:
            record = {"episode_id": episode.episode_id, **played_record(episode, name, policy.judge.name, model)}
            lines.append(json.dumps(record, ensure_ascii=False) + "\n")
    file.write("".join(lines))
    file.flush()
    return errors


def _stored(path: Path) -> set[tuple[str, str]]:
    """Episodes and conditions that the file holds. A last line that is torn is taken off; others are refused."""
    if not path.exists():
        return set()
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        with path.open("r+b") as file:
            file.truncate(len(whole))
            os.fsync(file.fileno())
    found = set()
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            record = json.loads(line)
            found.add((record["episode_id"], record["condition"]))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}, line {number} is no episode of a study: restore the file.") from error
    return found


def tell(about: Mapping[str, Any]) -> None:
    """Print what was learnt on the development tasks."""
    probe, odds = about["probe"], about["odds"]
    typer.echo(
        f"judges, learnt on {about['development']} tasks of their own: probe at layer {probe['layer']}, "
        f"AUROC {probe['auroc']:.3f}, balanced accuracy {probe['balanced_accuracy']:.3f} out of fold "
        f"({probe['injected']} failures among {probe['observations']} results of tools; {probe['refusals']} refusals "
        f"of invalid actions taught it too); the model's own odds, cut at {odds['cut']:+.2f}: "
        f"{odds['balanced_accuracy']:.3f}; random: {about['random']['rate']:.3f} useless"
    )
    if "tuned" in about:
        tried = ", ".join(f"{k}: {worth:+.3f}" for k, worth in about["tuned"]["utility"].items())
        typer.echo(f"tuned: k = {about['tuned']['k']}, of mean utilities {tried}")
    if about["errors"]:
        reason, count = next(iter(about["errors"].items()))
        total = sum(about["errors"].values())
        typer.echo(f"{total} episodes ended in an error and are left out; the commonest ({count}): {reason}")
