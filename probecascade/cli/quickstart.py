"""`probecascade quickstart`: from nothing to probes, cascades and their live comparison, in one command."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from probecascade.cli.options import changed
from probecascade.cli.recipes import (
    AgentSection,
    CaptureSection,
    EnvironmentSection,
    ExtractRecipe,
    ModelSection,
    TasksSection,
)
from probecascade.errors import StoreError, UsageError

RECIPE = ExtractRecipe(
    model=ModelSection(name="smollm2", dtype="float32", device="cpu"),
    tasks=TasksSection(set="atlas", groups=200, repeats=1),
    environment=EnvironmentSection(flakiness=0.15),
    agent=AgentSection(
        template="plain",
        temperature=0.1,
        max_rounds=16,
        max_turn_tokens=48,
        max_episode_tokens=480,
        slots=48,
        seed=0,
    ),
    capture=CaptureSection(
        layers=(10, 15, 20, 25, 30),
        checkpoints=("prompt", "action", "observation", "part"),
        store_dtype="float16",
        gates=("action:2", "part:1", "part:2"),
    ),
)
"""What `extract/quickstart.toml` says, for those who have the package and not its folders."""

FRESH = 40
INTERRUPTED = 130


def quickstart(
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the run and the cascades.")] = Path(
        "quickstart"
    ),
    groups: Annotated[int | None, typer.Option(help="Tasks to extract states from; default 200.")] = None,
    fresh: Annotated[int, typer.Option(help="Fresh tasks on which the policies are compared live.")] = FRESH,
    slots: Annotated[int | None, typer.Option(help="Episodes that are live at once.")] = None,
    dtype: Annotated[str | None, typer.Option(help="What the model computes in: float32 or bfloat16.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1 ...")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the sampling; default 0.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int | None:
    """See what it is about: extract, fit and compare on the embedded model, in minutes.

    Runs the embedded model on made-up errands, fits probes on its hidden states, sets the thresholds of two
    cascades, and plays fresh tasks live with and without them. Started again with the same folder it goes on
    with the states that are stored there, and makes the cascades anew. Much fewer than 100 tasks may hold too
    few successes to fit on.

    Examples:

      probecascade quickstart

      probecascade quickstart -o tries/small --groups 100 --fresh 10

      probecascade quickstart --dtype bfloat16 --json
    """
    started = time.monotonic()
    for option, value in (("--groups", groups), ("--fresh", fresh), ("--slots", slots)):
        if value is not None and value < 1:
            raise UsageError(f"{option} is {value}: give at least 1.")
    if output.exists() and not output.is_dir():
        raise StoreError(f"{str(output)!r} is a file: choose another folder with -o.")
    recipe = changed(RECIPE, "model", dtype=dtype, device=device)
    recipe = changed(recipe, "tasks", groups=groups)
    recipe = changed(recipe, "agent", slots=slots, seed=seed)
    given = {
        "--groups": groups, "--fresh": None if fresh == FRESH else fresh, "--slots": slots,
        "--dtype": dtype, "--device": device, "--seed": seed,
    }  # fmt: skip
    try:
        from probecascade.cli.quickstart_steps import demonstrate

        record = demonstrate(recipe, output, fresh, _printer(as_json))
    except KeyboardInterrupt:
        typer.echo(f"probecascade: stopped; {_stored(output)}. To go on:\n  {_again(output, given)}", err=True)
        return INTERRUPTED
    record["seconds"] = time.monotonic() - started
    if as_json:
        from probecascade.cli.tables import print_json

        print_json(record)
    else:
        _say_next(output, record["seconds"])
    return None


def _printer(as_json: bool) -> Callable[[str], None]:
    """Prints above the bar; with --json, nothing."""
    from tqdm import tqdm

    return (lambda text: None) if as_json else tqdm.write


def _stored(output: Path) -> str:
    from probecascade.store import Run

    run = output / "runs" / "atlas"
    return f"{len(Run.open(run))} episodes are stored in {run}" if run.exists() else "nothing was stored"


def _again(output: Path, given: Mapping[str, Any]) -> str:
    words = ["probecascade", "quickstart", "-o", str(output)]
    for option, value in given.items():
        words += [] if value is None else [option, str(value)]
    return shlex.join(words)


def _say_next(output: Path, seconds: float) -> None:
    at = {name: shlex.quote(str(output / name)) for name in ("runs/atlas", "cascades/recall", "cascades/keep")}
    run, recall, keep = at.values()
    more = shlex.quote(str(output / "cascades/keep-90"))
    typer.echo(f"done in {seconds / 60:.1f} minutes; the run is in {run}, the cascades are in {recall} and {keep}")
    typer.echo("to try next:")
    typer.echo(f"  probecascade inspect {run} --episode 0 --cascade {keep}")
    typer.echo(f"  probecascade eval {recall} {run} --split test")
    typer.echo(f"  probecascade fit {run} --keep 0.90 -o {more}")
