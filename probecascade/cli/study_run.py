"""Plays the conditions of a study on a recipe's tasks, whatever they have in common only once."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from probecascade.agents.react import episode_id
from probecascade.cli.escapes import in_line
from probecascade.cli.progress import progress
from probecascade.cli.recipes import ExtractRecipe, plain, read_extract
from probecascade.cli.session import Session, missing, open_session, play, run_writer
from probecascade.cli.study_folder import DEVELOPMENT, EPISODES, opened, stored, told
from probecascade.cli.study_learn import Learnt, learnt_from, taught_elsewhere, untaught
from probecascade.cli.study_recipe import (
    CASCADE,
    TUNED,
    cascade_digest,
    cascade_of,
    check,
    check_layers,
    check_tasks,
    held_out,
    natural_regimes,
    parts,
)
from probecascade.cli.tables import wrapped
from probecascade.cli.tasks import task_set
from probecascade.episode import Episode, Recording, Task
from probecascade.errors import StoreError
from probecascade.evaluation.judged_useless.played import played_record
from probecascade.interfaces import StoppingPolicy
from probecascade.models.requests import Conversation
from probecascade.models.together import together
from probecascade.policies import Cascade
from probecascade.policies.judged import (
    ASKED_WORD,
    BELIEFS,
    TRIED,
    Answering,
    Judged,
    Noted,
    rule_named,
    tune_k,
)
from probecascade.store import Run
from probecascade.thresholds.promise import counted


def run_study(path: Path, output: Path, *, resume: bool, limit: int | None, device: str | None) -> dict[str, Any]:
    """Play what a study lacks in its folder and return what is known of its judges and costs.

    The folder holds the episodes as `episodes.jsonl`, those of development as a run, and `study.json`. StoreError for
    a folder that exists (unless it is resumed) or holds another study, UsageError for a recipe that makes none.
    """
    recipe = read_extract(path)
    if device is not None:
        recipe = dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, device=device))
    check(recipe)
    if output.exists() and not resume:
        raise StoreError(f"{str(output)!r} exists already: add --resume to go on, or choose another folder.")
    tasks = task_set(recipe)
    chosen = tasks.first(limit)
    check_tasks(tasks)
    regimes = None if recipe.environment.regimes else natural_regimes(tasks.tasks)
    kept = held_out(recipe, tasks)
    rules = [rule_named(parts(name)[0], rounds=tasks.max_rounds) for name in recipe.study.conditions]
    session = open_session(
        recipe,
        tasks=tasks,
        adds=[ASKED_WORD, max((r.opening for r in rules), key=len), *BELIEFS.values()],
        episodes=max(tasks.episodes(chosen, recipe), tasks.episodes(kept, recipe)),
    )
    check_layers(session)
    taught = taught_elsewhere(session, recipe)
    cascade = cascade_of(recipe, session)
    header = {
        **session.header,
        "study": plain(recipe.study),
        "capture": plain(recipe.capture),
        "development": [task.task_id for task in kept] if taught is None else taught.about["learnt_on"],
        "cascade": cascade_digest(recipe),
    }
    with opened(output, header):
        learnt = taught or _learn(session, recipe, kept, output)
        policies = {name: _condition(name, session, learnt, cascade) for name in recipe.study.conditions}
        done = stored(output / EPISODES)
        left = [
            (task, seed)
            for task, seed in session.episodes(chosen)
            if not done >= {(episode_id(task, seed), name) for name in policies}
        ]
        begun, errors = session.engine.tokens_computed, Counter[str]()
        with (output / EPISODES).open("a", encoding="utf-8") as file:
            for recordings in progress(_all(session, left, policies), len(left), "study", "task"):
                errors += _write(file, recordings, policies, session, done, regimes)
        about = {
            **learnt.about,
            "k": recipe.study.k,
            "rounds": tasks.max_rounds,
            "errors": dict(errors.most_common()),
            "computed": session.engine.tokens_computed - begun,
        }
        told(output, header, about)
    return about


# Development ----------------------------------------------------------------------------------------------------------


def _learn(session: Session, recipe: ExtractRecipe, tasks: Sequence[Task], output: Path) -> Learnt:
    """Play the development tasks, learn probe, cut and rate on them, and the k of `tuned` where that is played."""
    folder, episodes = output / DEVELOPMENT, list(session.episodes(tasks))
    watching = Judged(rule_named("none"), None, tuple(untaught().values()))
    with run_writer(session, folder, resume=folder.exists()) as writer:
        left = missing(episodes, writer.stored)
        for recording in progress(play(session, left, watching), len(left), "development"):
            writer.add(recording)
    learnt = learnt_from(Run.open(folder), recipe.study.judge)
    if TUNED not in recipe.study.conditions:
        return learnt
    tuned = _tuned(session, episodes, recipe, learnt)
    return dataclasses.replace(learnt, tuned=tuned.k, about={**learnt.about, "tuned": dataclasses.asdict(tuned)})


def _tuned(session: Session, episodes: Sequence[tuple[Task, int]], recipe: ExtractRecipe, learnt: Learnt) -> Any:
    """The k that does best on the development episodes, played again under each."""
    policies = {f"enforced_k{k}": _condition(f"enforced_k{k}", session, learnt, None) for k in TRIED}
    played: dict[int, list[Episode]] = {k: [] for k in TRIED}
    for recordings in progress(_all(session, episodes, policies), len(episodes), "tuning k", "task"):
        for k, recording in zip(TRIED, recordings, strict=True):
            played[k].append(recording.episode)
    return tune_k(played, recipe.study.cost)


# The study ------------------------------------------------------------------------------------------------------------


def _condition(name: str, session: Session, learnt: Learnt, cascade: Cascade | None) -> tuple[StoppingPolicy, str]:
    """The policy of a condition, and the name of the judge whose verdicts count in it."""
    judged = _policy(name, session, learnt)
    assert judged.judge is not None
    if name != CASCADE or cascade is None:
        return judged, judged.judge.name
    return Noted(Answering(cascade), judged), judged.judge.name


def _policy(name: str, session: Session, learnt: Learnt) -> Judged:
    """The judges and the rule of a condition. All judges speak in each; where a rule acts on none, those of the
    study's count."""
    rule, judge, k = parts(name)
    study = session.recipe.study
    acting = judge or study.judge
    others = tuple(each for of, each in learnt.judges.items() if of != acting)
    k = learnt.tuned if name == TUNED else k or study.k
    assert k is not None
    rounds = session.tasks.max_rounds
    return Judged(rule_named(rule, k=k, rounds=rounds), learnt.judges[acting], others, beliefs=study.beliefs)


def _all(
    session: Session, episodes: Sequence[tuple[Task, int]], policies: Mapping[str, tuple[StoppingPolicy, str]]
) -> Iterator[list[Recording]]:
    def conversations() -> Iterator[Conversation[list[Recording]]]:
        for task, seed in episodes:
            yield together([session.conversation(task, seed, policy) for policy, _ in policies.values()])

    yield from session.engine.run(conversations())


def _write(
    file: Any,
    recordings: Sequence[Recording],
    policies: Mapping[str, tuple[StoppingPolicy, str]],
    session: Session,
    done: set[Any],
    regimes: Mapping[str, str] | None,
) -> Counter[str]:
    """Add the lines of one task; returns the errors in which episodes ended, which are left out."""
    lines, errors = [], Counter[str]()
    model = str(session.header["model"]["model"])
    for (name, (_, judge)), recording in zip(policies.items(), recordings, strict=True):
        episode = recording.episode
        regime = regimes[episode.task_id] if regimes else str(episode.attributes["failures"])
        if not episode.labelled:
            errors[episode.reason] += 1
        elif (episode.episode_id, name) not in done:
            record = {"episode_id": episode.episode_id, **played_record(episode, regime, name, judge, model)}
            lines.append(json.dumps(record, ensure_ascii=False) + "\n")
    file.write("".join(lines))
    file.flush()
    return errors


def tell(about: Mapping[str, Any]) -> None:
    """Print what was learnt on the development tasks."""
    probe, odds = about["probe"], about["odds"]
    where = f"in {about['learnt_in']}" if "learnt_in" in about else "of their own"
    said = (
        f"judges, learnt on {about['development']} tasks {where}: probe at layer {probe['layer']}, "
        f"AUROC {probe['auroc']:.3f}, balanced accuracy {probe['balanced_accuracy']:.3f} out of fold "
        f"({probe['injected']} failures among {probe['observations']} results of tools; {probe['refusals']} refusals "
        f"of invalid actions taught it too); the model's own odds, cut at {odds['cut']:+.2f}: "
        f"{odds['balanced_accuracy']:.3f}; random: {about['random']['rate']:.3f} useless"
    )
    typer.echo(wrapped(said, "  "))
    if "tuned" in about:
        tried = ", ".join(f"{k}: {worth:+.3f}" for k, worth in about["tuned"]["utility"].items())
        typer.echo(f"tuned: k = {about['tuned']['k']}, of mean utilities {tried}")
    if about["errors"]:
        reason, count = next(iter(about["errors"].items()))
        ended = counted(sum(about["errors"].values()), "episode")
        typer.echo(f"{ended} ended in an error and count nowhere; the commonest ({count}): {in_line(reason)}")
