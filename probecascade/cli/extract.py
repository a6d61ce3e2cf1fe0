"""`probecascade extract`: run the agent on a recipe's tasks, or read recorded runs, and keep the hidden states."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probecascade.cli.options import changed, parse_layers
from probecascade.cli.recipes import ExtractRecipe, read_extract
from probecascade.errors import NothingToDoError, ProbecascadeError, StoreError, UsageError

if TYPE_CHECKING:
    from probecascade.cli.session import Session
    from probecascade.cli.tasks import TaskSet
    from probecascade.episode import Task
    from probecascade.store import Run

INTERRUPTED = 130
_CHARACTERS = 3  # of a token in worked examples full of names


def extract(
    recipe: Annotated[
        Path | None, typer.Argument(help="The recipe, such as extract/quickstart.toml; --replay does without.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder of the run; it must not exist yet.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in that folder: only what it lacks is played.")
    ] = False,
    replay: Annotated[
        Path | None, typer.Option(help="Read the runs that other agents recorded in this file, and play nothing.")
    ] = None,
    layout: Annotated[str | None, typer.Option(help="Layout of that file, where it is not found by itself.")] = None,
    where: Annotated[
        list[str] | None, typer.Option(help="Take its runs with this attribute=value only; may be repeated.")
    ] = None,
    template: Annotated[
        str | None, typer.Option(help="How its runs are laid out: plain text, or the model's chat format.")
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(help="Tokens read of a run at most: the prompt and the latest whole rounds that fit are kept."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say how many episodes and bytes it would be, and stop.")
    ] = False,
    limit: Annotated[int | None, typer.Option(help="Take the first so many tasks (or recorded runs) only.")] = None,
    layers: Annotated[str | None, typer.Option(help="Layers to keep instead of the recipe's, such as 0,10,-1.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Model instead of the recipe's: a name, folder, .gguf file or hub id.")
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Revision of a model from the hub.")] = None,
    dtype: Annotated[str | None, typer.Option(help="What the model computes in: float32, bfloat16 or float16.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1 ...")] = None,
    slots: Annotated[int | None, typer.Option(help="Episodes that are live at once.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the sampling instead of the recipe's.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")] = False,
) -> int | None:
    """Run the agent on a recipe's tasks and keep its hidden states.

    Every episode is stored with its transcript, its outcome and one state per checkpoint and layer. Ctrl-C
    keeps what is stored and says how to go on. With --replay the model plays nothing: it reads, once, the runs
    that other agents recorded, and its states are kept at the same checkpoints.

    Examples:

      probecascade extract extract/quickstart.toml -o runs/atlas

      probecascade extract extract/quickstart.toml -o runs/small --limit 20 --layers 0,10,-1

      probecascade extract extract/quickstart.toml --dry-run

      probecascade extract --replay trajectories.jsonl.gz -o runs/theirs --layers 10,20,-1
    """
    options = {
        "--limit": limit, "--layers": layers, "--model": model, "--revision": revision,
        "--dtype": dtype, "--device": device, "--slots": slots, "--seed": seed,
        "--replay": replay, "--layout": layout, "--template": template, "--max-tokens": max_tokens,
    }  # fmt: skip
    chosen = _recipe(recipe, options | {"--where": where}, dry_run)
    if model is not None and revision is None:
        chosen = changed_model(chosen, model)
    chosen = changed(chosen, "model", name=model, revision=revision, dtype=dtype, device=device)
    chosen = changed(chosen, "agent", slots=_positive(slots), seed=seed)
    chosen = changed(chosen, "capture", layers=parse_layers(layers))

    if replay is not None:
        from probecascade.cli.replay import choose, extract_recorded, with_options

        chosen = with_options(chosen, template, max_tokens)
        folder = _folder(output, resume)
        runs = choose(replay, layout, where or (), limit)
        return extract_recorded(chosen, runs, folder, resume, _again(recipe, folder, options, where), as_json)

    from probecascade.cli.tasks import task_set

    tasks = task_set(chosen)
    first = tasks.first(limit)
    if dry_run:
        _estimate(chosen, tasks, first, as_json)
        return None
    folder = _folder(output, resume)
    return _extract(chosen, tasks, first, folder, resume, _again(recipe, folder, options), as_json)


def _recipe(path: Path | None, options: Mapping[str, Any], dry_run: bool) -> ExtractRecipe:
    """The recipe as its file gives it. UsageError for options that do not go together."""
    if options["--replay"] is None:
        for option in ("--layout", "--where", "--template", "--max-tokens"):
            if options[option]:
                raise UsageError(f"{option} is about recorded runs: add --replay FILE, or leave it out.")
        if path is None:
            raise UsageError("nothing says what to run: give a recipe, or recorded runs with --replay FILE.")
        return read_extract(path)
    if options["--seed"] is not None:
        raise UsageError("--seed is that of sampling, and --replay samples nothing: leave it out.")
    if dry_run:
        raise UsageError(
            "--dry-run is about tasks: `probecascade transcripts FILE` says what a file of recorded runs holds."
        )
    if path is not None:
        return read_extract(path)
    from probecascade.cli.replay import default_recipe

    return default_recipe()


def _folder(output: Path | None, resume: bool) -> Path:
    if output is None:
        raise UsageError("no folder was given for the run: add -o, such as -o runs/atlas.")
    if output.exists() and not resume:
        raise StoreError(
            f"{str(output)!r} exists already: add --resume to continue that run, or choose another folder."
        )
    return output


def changed_model(recipe: ExtractRecipe, name: str) -> ExtractRecipe:
    """The recipe without the revision of its own model, when another one is asked for."""
    import dataclasses

    if name == recipe.model.name:
        return recipe
    return dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, revision=None))


def _positive(slots: int | None) -> int | None:
    if slots is not None and slots < 1:
        raise UsageError(f"--slots is {slots}: give at least 1.")
    return slots


def _again(recipe: Path | None, output: Path, options: dict[str, Any], where: Sequence[str] | None = None) -> str:
    """The command that continues this very run."""
    words = ["probecascade", "extract", *([] if recipe is None else [str(recipe)]), "-o", str(output), "--resume"]
    for option, value in options.items():
        words += [] if value is None else [option, str(value)]
    for pair in where or ():
        words += ["--where", pair]
    return shlex.join(words)


def _estimate(recipe: ExtractRecipe, every: TaskSet, tasks: tuple[Task, ...], as_json: bool) -> None:
    from probecascade.agents.templates import plain_template
    from probecascade.cli.size import bytes_per_checkpoint, most_checkpoints
    from probecascade.cli.tables import print_json
    from probecascade.models import resolve
    from probecascade.models.shape import read_shape
    from probecascade.store.schema import resolve_layers
    from probecascade.thresholds.promise import counted

    shape = read_shape(resolve(recipe.model.name, recipe.model.revision))
    capture = recipe.capture
    stored = range(shape.n_layers + 1)
    layers = resolve_layers(stored if capture.layers == "all" else capture.layers, shape.n_layers)
    heads = [plain_template(every.examples(), wording, every.usage).head for wording in recipe.agent.wording_names]
    prompt_tokens = max(map(len, heads)) // _CHARACTERS
    each = bytes_per_checkpoint(capture.checkpoints, len(layers), shape.d_model, capture.store_dtype, prompt_tokens)
    episodes = every.episodes(tasks, recipe)
    each_task = episodes // len(tasks)
    most = each_task * sum(most_checkpoints(capture.checkpoints, every.max_rounds, len(task.parts)) for task in tasks)
    live = min(recipe.agent.slots, episodes)
    kept = prompt_tokens + recipe.agent.max_episode_tokens + recipe.agent.max_turn_tokens
    cache = live * kept * 2 * shape.n_layers * shape.kv_width * (4 if recipe.model.dtype == "float32" else 2)
    record = {
        "episodes": episodes,
        "tasks": len(tasks),
        "layers": list(layers),
        "d_model": shape.d_model,
        "dtype": capture.store_dtype,
        "checkpoints": list(capture.checkpoints),
        "bytes_per_checkpoint": round(each),
        "most_checkpoints": most,
        "most_bytes": round(most * each),
        "cache_bytes": cache,
    }
    if as_json:
        return print_json(record)
    typer.echo(f"{counted(episodes, 'episode')} of {counted(len(tasks), 'task')}")
    typer.echo(
        f"{len(layers)} layers of {shape.d_model} numbers in {capture.store_dtype}, at {', '.join(capture.checkpoints)}"
    )
    typer.echo(f"{round(each)} bytes per checkpoint")
    typer.echo(
        f"at most {most} checkpoints and {size_text(most * each)}, if every episode went on for "
        f"{every.max_rounds} rounds"
    )
    typer.echo(
        f"about {size_text(cache)} of memory for the cache of {counted(live, 'live episode')}, beside the model: fewer "
        "--slots take less"
    )
    typer.echo("nothing was written")


def _extract(
    recipe: ExtractRecipe,
    tasks: TaskSet,
    first: tuple[Task, ...],
    output: Path,
    resume: bool,
    again: str,
    as_json: bool,
) -> int | None:
    from probecascade.cli.session import open_session
    from probecascade.store import Run

    try:
        session = open_session(recipe, tasks=tasks, episodes=tasks.episodes(first, recipe))
        _play(session, first, output, resume)
    except KeyboardInterrupt:
        return stopped(output, again)
    record = summary(Run.open(output))
    if as_json:
        from probecascade.cli.tables import print_json

        print_json(record)
    else:
        tell(record)
    check_any_played(record)
    return None


def stopped(output: Path, again: str) -> int:
    """Say what Ctrl-C left and how to go on. Returns the exit code."""
    from probecascade.store import Run

    stored = f"{len(Run.open(output))} episodes are stored in {output}" if output.exists() else "nothing was stored"
    typer.echo(f"probecascade: stopped; {stored}. To go on:\n  {again}", err=True)
    return INTERRUPTED


def _play(session: Session, tasks: tuple[Task, ...], output: Path, resume: bool) -> None:
    from probecascade.agents.react import episode_id
    from probecascade.cli.progress import progress
    from probecascade.cli.session import missing, play, run_writer

    episodes = list(session.episodes(tasks))
    with run_writer(session, output, resume=resume) as writer:
        left = missing(episodes, writer.stored)
        if resume:
            typer.echo(_resumed([episode_id(*of) for of in episodes], writer.stored, len(tasks)), err=True)
        for recording in progress(play(session, left), len(left), "extract"):
            writer.add(recording)


def _resumed(ids: Sequence[str], stored: Set[str], tasks: int) -> str:
    """How much is stored and left; `ids` are of the episodes in order, as many for each of so many tasks."""
    from probecascade.thresholds.promise import counted

    have = [name in stored for name in ids]
    found = f"resuming: {sum(have)} of {len(ids)} episodes are stored, {len(ids) - sum(have)} are left"
    first, rest = divmod(sum(have), max(1, len(ids) // tasks))
    if 0 < first < tasks and not rest and all(have[: sum(have)]):
        found += (
            f"; the stored ones are just those of the first {counted(first, 'task')}, so if the run was to end there, "
            f"stop and add --limit {first}"
        )
    return f"{found}."


def summary(run: Run) -> dict[str, Any]:
    """What a run holds, counted from its own files, as JSON values."""
    described = run.describe()
    table = run.episodes
    labelled = int(table.labelled.sum())
    successes = int((table.outcome == "success").sum())
    turns: Counter[str] = Counter()
    replaced = []  # results of each episode in whose place a failure was put
    for index in range(len(run)):
        steps = run.episode(index).steps
        turns.update(step.finish_reason for step in steps)
        replaced.append(sum(bool(step.injected) for step in steps))
    errors = Counter(table.reason[table.outcome == "error"].tolist())
    return {
        "run": str(run.path),
        "episodes": len(run),
        "groups": described["groups"],
        "labelled": labelled,
        "success_share": successes / labelled if labelled else None,
        "success_under": _success_under(run, replaced),
        "outcomes": described["outcomes"],
        "errors": dict(errors.most_common()),
        "tokens": int(table.tokens.sum()),
        "turns": turns.total(),
        "turns_cut": turns["turn_limit"],
        "checkpoints": sum(described["checkpoints"].values()),
        "rejected": described["rejected"],
        "bytes": described["bytes"],
        **_next_step(run),
    }


def _success_under(run: Run, replaced: Sequence[int]) -> dict[str, dict[str, float]]:
    """What labelled episodes came to under each regime of injected failures; empty without any.

    Their success with an interval, their tool calls, and how many results were replaced (`replaced`, by episode).
    """
    import numpy as np

    from probecascade.intervals import share_interval

    try:
        regimes = run.attributes("failures")
    except UsageError:  # no episode has the attribute
        return {}
    table, found = run.episodes, {}
    for regime in dict.fromkeys(str(name) for name in regimes if name is not None):
        among = table.labelled & np.array([name == regime for name in regimes])
        if among.any():
            share = share_interval(table.outcome == "success", among, table.group)
            found[regime] = {
                "value": share.value,
                "low": share.low,
                "high": share.high,
                "n": share.n,
                "calls": int(table.calls[among].sum()),
                "replaced": int(np.asarray(replaced)[among].sum()),
            }
    return found


def _next_step(run: Run) -> dict[str, str | None]:
    """The command that fits this run, or else why none would."""
    from probecascade.policies import check_fittable

    split = run.header.get("split", {})
    try:
        check_fittable(run, split.get("seed", 0), tuple(split.get("shares", (50, 25, 25))))
    except ProbecascadeError as error:
        return {"next": None, "not_yet": str(error)}
    return {"next": _next_command(run), "not_yet": None}


def _next_command(run: Run) -> str:
    named = len(run.header.get("gates", ()))
    targets = "--recall " + ",".join(("0.9", "0.95", "0.99")[:named]) if named else "--keep 0.95"
    return shlex.join(["probecascade", "fit", str(run.path)]) + f" {targets} -o cascades/{shlex.quote(run.path.name)}"


def tell(record: dict[str, Any]) -> None:
    """Print the `summary` of a run."""
    from probecascade.cli.tables import say
    from probecascade.thresholds.promise import counted

    outcomes = ", ".join(f"{count} {name}" for name, count in record["outcomes"].items())
    share = record["success_share"]
    success = "no labelled episode" if share is None else f"success {100 * share:.1f} % of {record['labelled']}"
    typer.echo(
        f"{counted(record['episodes'], 'episode')} of {counted(record['groups'], 'group')}: {success} ({outcomes})"
    )
    for regime, of in record["success_under"].items():
        low, high = 100 * of["low"], 100 * of["high"]
        typer.echo(
            f"  {regime}: success {100 * of['value']:.1f} % [{low:.1f}, {high:.1f}] n={of['n']}; "
            f"{of['replaced']} of the results of {counted(of['calls'], 'tool call')} replaced"
        )
    if record["errors"]:
        reason, count = next(iter(record["errors"].items()))
        total = sum(record["errors"].values())
        typer.echo(f"{counted(total, 'episode')} ended in an error, without a label; the commonest ({count}): {reason}")
    cut = "" if "replay" in record else f", {record['turns_cut']} of them cut at the turn limit"
    typer.echo(f"{counted(record['tokens'], 'token')} in {counted(record['turns'], 'turn')}{cut}")
    rejected = f", {record['rejected']} refused as not finite or too large" if record["rejected"] else ""
    typer.echo(
        f"{counted(record['checkpoints'], 'checkpoint')}{rejected}, {size_text(record['bytes'])} in {record['run']}"
    )
    if record["next"] is None:
        say(f"too little to fit yet: {record['not_yet']}")
    else:
        typer.echo(f"next: {record['next']}")


def check_any_played(record: Mapping[str, Any]) -> None:
    """NothingToDoError where all episodes of a run's `summary` ended in an error."""
    if not record["errors"] or sum(record["errors"].values()) < record["episodes"]:
        return
    from probecascade.thresholds.promise import counted

    reason, count = next(iter(record["errors"].items()))
    raise NothingToDoError(
        f"no episode could be played: all in {record['run']!r} ended in an error, most often ({count} of "
        f"{counted(record['episodes'], 'episode')}) {reason!r}; mend that and extract into another folder, since "
        "--resume would not play them again."
    )


def size_text(count: float) -> str:
    """Bytes in the unit that reads best."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
