"""The steps of `quickstart`: extract, measure, fit, play fresh tasks; one bar over all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from probecascade.cli.auroc import CheckpointAuroc, auroc_by_checkpoint, worthwhile
from probecascade.cli.fit import judge_held_out
from probecascade.cli.fresh import FREE, Row, free_row, fresh_tasks, live_row, play_together, replayed_row
from probecascade.cli.quickstart_text import (
    auroc_report,
    pick_example,
    policy_report,
    saves_no_more,
    transcript,
)
from probecascade.cli.recipes import ExtractRecipe
from probecascade.cli.session import Session, missing, open_session, play, run_writer
from probecascade.cli.tables import interval_record, outcome_record, share_text, wrapped
from probecascade.episode import Episode, Task
from probecascade.evaluation import share_interval
from probecascade.policies import Cascade, FailOpen, FirstRepeatedFailedSearch, fit_cascade
from probecascade.store import Run

RECALLS = ("0.90", "0.95", "0.99")
"""Targets of the recall cascade: one per gate that the recipe names, and no more of them than it has gates."""

KEEP = "0.95"
CHECKPOINTS = ("prompt", "action:1", "observation:1", "action:2", "observation:2", "part:1", "part:2")
"""Where AUROC is measured, as far as enough episodes come there."""

# What each step takes beside one episode of the default recipe on two cores; the bar's time left rests on it.
AUROC_WEIGHT = 5.0  # per checkpoint
FIT_WEIGHTS: Mapping[str, float] = {"recall": 3.0, "keep": 12.0, "surface": 3.0}

SURFACE_KEEP = f"surface cascade keep {KEEP[1:]}"
PROBE_KEEP = f"probe cascade keep {KEEP[1:]}"
RULE = "first repeated failed search"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where everything of one quickstart lies."""

    output: Path

    @property
    def run(self) -> Path:
        return self.output / "runs" / "atlas"

    def cascade(self, name: str) -> Path:
        return self.output / "cascades" / name


def demonstrate(recipe: ExtractRecipe, output: Path, fresh: int, say: Say) -> dict[str, Any]:
    """Do all steps, say what comes out of each, and return the numbers as JSON values.

    `output` gets `runs/atlas` (resumed where it exists) and `cascades/recall`, `keep` and `surface` (made anew).
    Raises StoreError for a run that was made with another model or recipe, DataError for one with too few episodes
    of a class.
    """
    session, place = open_session(recipe), _Place(output)
    with _bar() as bar:
        run = _extract(session, place, fresh, say, bar)
        labelled = run.episodes.labelled
        success = share_interval(~run.episodes.failed, labelled, run.episodes.group)
        say(f"\nsuccess {share_text(success)} ({_outcomes(run)})\n")
        found = _measure(run, bar)
        say(auroc_report(found) + "\n" if found else "too few episodes of a class for any AUROC\n")
        fitted = _fit(run, place, say, bar)
        tasks = list(session.episodes(fresh_tasks(session, run.episodes.group.tolist(), fresh)))
        rows, example, faults = _play(session, tasks, fitted, bar)
    say(f"\n{len(tasks)} fresh episodes, of groups that are in no run\n")
    say(policy_report(rows))
    if faults:
        say(f"the probe cascades failed {faults} times and were passed over there")
    for sentence in _verdicts(rows):
        say(sentence)
    say("\n" + (example or "no doomed episode was aborted") + "\n")
    return {
        "model": {**session.header["model"], "device": recipe.model.device},
        "tasks": {**session.header["recipe"]["tasks"], "fresh": len(tasks)},
        "success_share": interval_record(success),
        "auroc": {
            row.checkpoint: {key: interval_record(getattr(row, key)) for key in ("probe", "prompt", "surface")}
            for row in found
        },
        "policies": [outcome_record(row.outcome) | {"live": row.live} for row in rows],
        "run": str(place.run),
        "cascades": {name: str(place.cascade(name)) for name in FIT_WEIGHTS},
    }


def _bar() -> tqdm[Any]:
    """On stderr, silent where that is no terminal; the time left is by the average since the start."""
    shape = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
    return tqdm(total=1.0, desc="start", smoothing=0, disable=None, dynamic_ncols=True, bar_format=shape)


def _extract(session: Session, place: _Place, fresh: int, say: Say, bar: tqdm[Any]) -> Run:
    """Play what the run lacks and store it."""
    episodes = list(session.episodes(session.tasks.first(None)))
    with run_writer(session, place.run, resume=True) as writer:
        left = missing(episodes, writer.stored)
        live = 3 * fresh * session.recipe.tasks.repeats  # under both probe cascades, and their twins
        bar.reset(len(left) + AUROC_WEIGHT * len(CHECKPOINTS) + sum(FIT_WEIGHTS.values()) + live)
        say(_introduction(session, len(episodes), fresh))
        if writer.stored:
            say(f"       {len(writer.stored)} of them are stored in {place.run} already")
        bar.set_description("extract")
        for recording in play(session, left):
            writer.add(recording)
            bar.update()
    return Run.open(place.run)


def _introduction(session: Session, episodes: int, fresh: int) -> str:
    recipe, model = session.recipe, session.header["model"]
    return (
        f"model  {model['model']} in {model['dtype']}, {session.engine.n_layers} blocks of width "
        f"{session.engine.d_model}, on {recipe.model.device}\n"
        f"tasks  {episodes} errands of the set {recipe.tasks.set} with {len(session.tasks.tasks[0].parts)} questions "
        f"each, at temperature {recipe.agent.temperatures[0]:g}; {fresh} fresh ones to compare on"
    )


def _outcomes(run: Run) -> str:
    return ", ".join(f"{count} {name}" for name, count in run.describe()["outcomes"].items())


def _measure(run: Run, bar: tqdm[Any]) -> list[CheckpointAuroc]:
    bar.set_description("AUROC")
    names = worthwhile(run, CHECKPOINTS)
    found = []
    for row in auroc_by_checkpoint(run, names):
        found.append(row)
        bar.update(AUROC_WEIGHT)
    bar.update(AUROC_WEIGHT * (len(CHECKPOINTS) - len(names)))
    return found


@dataclass(frozen=True, slots=True)
class _Fitted:
    """A cascade under the name of its row."""

    name: str
    cascade: Cascade


def _fit(run: Run, place: _Place, say: Say, bar: tqdm[Any]) -> dict[str, _Fitted]:
    """Fit, save and tell of the three cascades, by the names of their folders."""
    gates = len(run.header["gates"])
    recalls = RECALLS[:gates] if gates else RECALLS
    wanted: dict[str, tuple[str, dict[str, Any]]] = {
        "recall": (f"probe cascade recall {'/'.join(r[1:] for r in recalls)}", {"recalls": recalls}),
        "keep": (PROBE_KEEP, {"keep": KEEP}),
        "surface": (SURFACE_KEEP, {"keep": KEEP, "uses": "signals"}),
    }
    split = run.header["split"]
    fitted = {}
    for folder, (name, options) in wanted.items():
        bar.set_description(f"fit {folder}")
        result = fit_cascade(run, split_seed=split["seed"], shares=tuple(split["shares"]), **options)
        held_out, _ = judge_held_out(result.cascade, run)
        cascade = result.cascade.with_held_out(held_out.record if held_out else {})
        cascade.save(place.cascade(folder), overwrite=True)
        say(wrapped(f"{name}: {cascade.promise}", indent="    "))
        for warning in result.warnings:
            say(wrapped(f"  note: {warning}", indent="    "))
        fitted[folder] = _Fitted(name, cascade)
        bar.update(FIT_WEIGHTS[folder])
    return fitted


def _play(
    session: Session, tasks: Sequence[tuple[Task, int]], fitted: Mapping[str, _Fitted], bar: tqdm[Any]
) -> tuple[list[Row], str, int]:
    """The rows of all policies, one doomed episode that was aborted as text (empty: none), and the probes' faults."""
    bar.set_description("fresh tasks")
    recall, keep, surface = (fitted[name] for name in ("recall", "keep", "surface"))
    played: dict[str, list[Episode]] = {FREE: [], recall.name: [], keep.name: []}
    policies = {of.name: FailOpen(of.cascade) for of in (recall, keep)}
    for name, episode in play_together(session, tasks, policies):
        played[name].append(episode)
        bar.update()
    twins = played[FREE]
    rows = [
        free_row(twins),
        replayed_row(RULE, FirstRepeatedFailedSearch(), twins),
        replayed_row(surface.name, surface.cascade, twins),
        *(live_row(of.name, played[of.name], twins) for of in (recall, keep)),
    ]
    faults = sum(policy.faults for policy in policies.values())
    return rows, _example(played, (keep, recall)), faults


def _example(played: Mapping[str, Sequence[Episode]], cascades: Sequence[_Fitted]) -> str:
    for of in cascades:
        if example := pick_example(played[of.name], played[FREE]):
            episode, twin = example
            return f"{episode.episode_id} under the {of.name}:\n{transcript(episode, twin, of.cascade)}"
    return ""


def _verdicts(rows: Sequence[Row]) -> list[str]:
    by_name = {row.outcome.name: row for row in rows}
    sentence = saves_no_more(by_name[PROBE_KEEP], by_name[SURFACE_KEEP])
    return [sentence] if sentence else []
