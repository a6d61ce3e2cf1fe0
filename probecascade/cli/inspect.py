"""`probecascade inspect`: what is in a run or a cascade, down to one transcript. Needs no model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probecascade.errors import StoreError, UsageError

if TYPE_CHECKING:
    from probecascade.episode import Episode
    from probecascade.policies import Cascade
    from probecascade.store import Run


def inspect(
    path: Annotated[Path, typer.Argument(help="The folder of a run or of a cascade.")],
    episode: Annotated[
        str | None, typer.Option(help="Show this episode of a run: its id, or its number from 0.")
    ] = None,
    cascade: Annotated[Path | None, typer.Option(help="With --episode: show this cascade's scores beside it.")] = None,
    limit: Annotated[int | None, typer.Option(help="List the first so many episodes of a run.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Accept a cascade of another model.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what a run or a cascade holds, or one episode from beginning to end.

    Examples:

      probecascade inspect runs/atlas

      probecascade inspect runs/atlas --episode 0 --cascade cascades/atlas

      probecascade inspect cascades/atlas
    """
    if force and cascade is None:
        raise UsageError("--force is about the cascade that --cascade gives: add that, or leave it out.")
    if episode is not None and limit is not None:
        raise UsageError("--limit lists episodes of a run, and --episode shows one of them: leave one out.")
    if (path / "cascade.json").is_file():
        if episode is not None or cascade is not None or limit is not None:
            raise UsageError(f"{str(path)!r} is a cascade and holds no episodes: give a run for that.")
        return _cascade(path, as_json)
    if cascade is not None and episode is None:
        raise UsageError("--cascade shows scores of one episode: add --episode 0.")
    if path.is_dir() and not (path / "run.json").is_file():
        raise StoreError(_not_ours(path))
    from probecascade.policies import Cascade
    from probecascade.store import Run

    run = Run.open(path)
    if episode is None:
        return _run(run, limit, as_json)
    loaded = None
    if cascade is not None:
        loaded = Cascade.load(cascade)
        loaded.check_fits(run.header, force=force)
    _episode(run, _index(run, episode), loaded, as_json)


def _not_ours(path: Path) -> str:
    """That a folder is neither, and which run lies in it, such as in quickstart's."""
    runs = sorted(found.parent for pattern in ("*/run.json", "*/*/run.json") for found in path.glob(pattern))
    if not runs:
        return f"{str(path)!r} is neither a run nor a cascade: give a folder that extract or fit made."
    return f"{str(path)!r} is neither a run nor a cascade, but holds one: give {str(runs[0])!r}."


def _cascade(path: Path, as_json: bool) -> None:
    from probecascade.cli.escapes import tell
    from probecascade.cli.fit_extras import extras_lines
    from probecascade.cli.tables import folded, print_json, say, seen_text, threshold_text
    from probecascade.policies import Cascade

    cascade = Cascade.load(path)
    if as_json:
        groups = {name: len(of) for name, of in cascade.provenance.get("groups", {}).items()}
        return print_json(
            {
                "path": str(path),
                "promise": cascade.promise,
                "gate_answers": cascade.gate_answers,
                "gates": [gate.record() for gate in cascade.gates],
                "held_out": cascade.held_out,
                "provenance": {**cascade.provenance, "groups": groups},
            }
        )
    provenance: Any = cascade.provenance
    model = provenance.get("run", {}).get("model", {})
    model = {"model": model} if isinstance(model, str) else model
    tell(f"cascade for {model.get('model', 'an unknown model')} in {model.get('dtype', 'an unknown dtype')}")
    rows = [[gate.checkpoint, seen_text(gate), threshold_text(gate.threshold)] for gate in cascade.gates]
    titles = ["gate", "sees", "threshold"]
    if any(gate.target for gate in cascade.gates):
        titles += ["target", "reached"]
        for row, gate in zip(rows, cascade.gates, strict=True):
            row += [gate.target or "–", "yes" if gate.reached else "no"]
    typer.echo(folded(titles, rows))
    extras = list(extras_lines(cascade))
    if extras:
        typer.echo("\n".join([*extras, ""]))
    say(cascade.promise)
    for key, words in (("caught", "failures caught"), ("kept", "successes kept")):
        found = cascade.held_out.get(key)
        if isinstance(found, dict) and isinstance(found.get("value"), float | int | None):  # else another tool's
            share = "–" if found["value"] is None else f"{100 * found['value']:.1f} %"
            tell(f"held out: {words} {share} n={found.get('n', 'unknown')}")


def _run(run: Run, limit: int | None, as_json: bool) -> None:
    from probecascade.cli.escapes import tell
    from probecascade.cli.extract import size_text
    from probecascade.cli.tables import folded, print_json, say, table
    from probecascade.cli.tasks import check_limit
    from probecascade.thresholds.promise import counted

    check_limit(limit)
    described = run.describe()
    shown = [_line(run, index) for index in range(min(limit or 0, len(run)))]
    if as_json:
        return print_json(described | ({} if limit is None else {"listed": shown}))
    model = described["model"] or {}
    tell(f"run of {model.get('model', 'an unknown model')} in {model.get('dtype', 'an unknown dtype')}")
    outcomes = ", ".join(f"{count} {name}" for name, count in described["outcomes"].items()) or "none"
    episodes, groups = counted(described["episodes"], "episode"), counted(described["groups"], "group")
    say(f"{episodes} of {groups}: {outcomes}", indent="  ")
    layers = ", ".join(map(str, described["layers"]))
    say(f"layers {layers} ({described['layer_convention']})", indent="  ")
    typer.echo(f"states of {described['d_model']} numbers in {described['dtype']}, {size_text(described['bytes'])}")
    if described["incomplete"]:
        shards = counted(described["incomplete"], "unfinished shard")
        typer.echo(f"left out: {shards} (a writer at work, or one that died)")
    if described["rejected"]:
        typer.echo(f"refused as not finite or too large: {counted(described['rejected'], 'checkpoint')}")
    typer.echo(table(["checkpoint", "states"], [[k, str(v)] for k, v in described["checkpoints"].items()]))
    if shown:
        columns = ("index", "episode_id", "outcome", "rounds", "tokens")
        typer.echo(folded(columns, [[str(line[key]) for key in columns] for line in shown]))


def _line(run: Run, index: int) -> dict[str, Any]:
    table = run.episodes
    return {
        "index": index,
        "episode_id": str(table.episode_id[index]),
        "outcome": str(table.outcome[index]),
        "rounds": int(table.rounds[index]),
        "tokens": int(table.tokens[index]),
    }


def _index(run: Run, wanted: str) -> int:
    """The number of an episode that is named by its id or its number; an id that looks like a number wins."""
    ids = run.episodes.episode_id.tolist()
    if wanted in ids:
        return int(ids.index(wanted))
    if wanted.isdecimal() and int(wanted) < len(ids):
        return int(wanted)
    raise StoreError(
        f"the episode {wanted!r} is not in {str(run.path)!r}, which holds {len(ids)}: give an id "
        f"{f'such as {ids[0]!r} ' if ids else ''}or a number from 0."
    )


def _episode(run: Run, index: int, cascade: Cascade | None, as_json: bool) -> None:
    from probecascade.cli.escapes import tell
    from probecascade.cli.inspect_task import asked, ending, recipe_task, success_reward, told_of
    from probecascade.cli.tables import print_json, say
    from probecascade.policies.scoring import score_episode
    from probecascade.thresholds.promise import counted

    episode = run.episode(index)
    scores = {}
    if cascade is not None:
        thresholds = {gate.checkpoint: gate.threshold for gate in cascade.gates}
        scores = {name: (value, thresholds[name]) for name, value in score_episode(run, index, cascade).items()}
    stop = next((name for name, (score, threshold) in scores.items() if score >= threshold), None)
    task, needed = recipe_task(run, episode), success_reward(run)
    if as_json:
        return print_json(_episode_record(index, episode, cascade, scores, stop) | told_of(episode, task, needed))
    doomed = "" if episode.doomed_round is None else f", doomed in round {episode.doomed_round}"
    tell(f"{episode.episode_id}: {episode.outcome} ({episode.reason}){doomed}")
    typer.echo(
        f"{counted(len(episode.steps), 'round')}, {counted(episode.tokens, 'token')}, "
        f"{counted(episode.calls, 'tool call')}, prompt of {counted(episode.prompt_tokens, 'token')}"
    )
    typer.echo("")
    if task is not None:
        tell(f"{asked(episode)}: {task.parts[0].question}")
    for step in episode.steps:
        mark = "  <- doomed here" if step.round == episode.doomed_round else ""
        tell(f"[{step.round}]{step.text.rstrip()}{mark}")
        for line in _scored_lines(episode, step.round, scores, stop, ("action", "part", "thought")):
            tell(line)
        if step.observation:
            tell(f"Observation ({step.observation_kind}): {step.observation}")
        for line in _scored_lines(episode, step.round, scores, stop, ("observation",)):
            tell(line)
    for line in ending(episode, task, needed):
        say(line)
    typer.echo("")
    typer.echo(_signals_table(episode))
    if cascade is not None:
        typer.echo(f"aborted at {stop}" if stop else "no gate fires")


def _scored_lines(
    episode: Episode,
    round_: int,
    scores: dict[str, tuple[float, float]],
    stop: str | None,
    kinds: tuple[str, ...],
) -> list[str]:
    from probecascade.cli.tables import threshold_text

    lines = []
    for point in episode.checkpoints:
        if point.round != round_ or point.kind not in kinds or point.name not in scores:
            continue
        score, threshold = scores[point.name]
        mark = "  <- aborted here" if point.name == stop else ""
        lines.append(f"    {point.name}: P(failure) {score:.4f}, threshold {threshold_text(threshold)}{mark}")
    return lines


def _signals_table(episode: Episode) -> str:
    from probecascade.cli.tables import folded
    from probecascade.episode import SIGNALS

    checks = sorted({name for point in episode.checkpoints for name in point.checks})
    rows = []
    for point in episode.checkpoints:
        told = [f"{point.checks[name]:.4g}" if name in point.checks else "–" for name in checks]
        rows.append([point.name, *(f"{value:.4g}" for value in point.signals), *told])
    return folded(["checkpoint", *SIGNALS, *checks], rows)


def _episode_record(
    index: int,
    episode: Episode,
    cascade: Cascade | None,
    scores: dict[str, tuple[float, float]],
    stop: str | None,
) -> dict[str, Any]:
    import dataclasses

    from probecascade.episode import SIGNALS

    record: dict[str, Any] = {
        "index": index,
        "episode_id": episode.episode_id,
        "outcome": episode.outcome,
        "reason": episode.reason,
        "reward": episode.reward,
        "doomed_round": episode.doomed_round,
        "tokens": episode.tokens,
        "calls": episode.calls,
        "steps": [dataclasses.asdict(step) for step in episode.steps],
        "checkpoints": [
            {"name": point.name, "round": point.round, "position": point.position, "final": point.final}
            | {"signals": dict(zip(SIGNALS, point.signals, strict=True)), "checks": dict(point.checks)}
            for point in episode.checkpoints
        ],
    }
    if cascade is not None:
        record["scores"] = {name: {"score": s, "threshold": t} for name, (s, t) in scores.items()}
        record["aborted_at"] = stop
    return record
