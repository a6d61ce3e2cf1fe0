"""`probecascade eval`: what a cascade would have done to stored episodes. Needs neither torch nor the model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from probecascade.cli.recalibrate import refuse_run
from probecascade.errors import UsageError

_SPLITS = ("test", "calibrate", "fit", "all")


def evaluate(
    cascade: Annotated[Path, typer.Argument(help="A cascade that `probecascade fit` made.")],
    run: Annotated[Path, typer.Argument(help="A run of the same model, the fitted one or another.")],
    split: Annotated[
        str, typer.Option(help="test, calibrate, fit: by the cascade's split; all: every episode of a fresh run.")
    ] = "test",
    seed: Annotated[int, typer.Option(help="Seed of the intervals' resampling.")] = 0,
    billing: Annotated[
        str, typer.Option(help="tokens (each counted once), or api: also with the prompt billed again at every call.")
    ] = "tokens",
    explored: Annotated[
        bool, typer.Option("--explored", help="Only the episodes that `run --explore` let run to their end.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Accept a run of another model, template or dtype.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what a cascade would have caught, kept and saved on stored episodes.

    Groups that fitted the cascade are refused for `test` and `all`. Intervals (95 %) resample groups. Episodes that a
    policy aborted have no outcome and are left out, which biases the rest: of a run made with `run --explore`, judge
    the fair sample with --explored.

    Examples:

      probecascade eval cascades/atlas runs/atlas --split test

      probecascade eval cascades/atlas runs/another --split all --json

      probecascade eval cascades/atlas runs/live --split all --explored
    """
    if split not in _SPLITS:
        raise UsageError(f"--split is {split!r}: give one of {', '.join(_SPLITS)}.")
    refuse_run(cascade)
    from probecascade.cli.tables import backtest_record, backtest_text, print_json, say
    from probecascade.evaluation import Resampling, backtest_run, modes_of_aborts
    from probecascade.evaluation.backtest import chosen_episodes, left_out
    from probecascade.policies import Cascade
    from probecascade.policies.gates import quiet_gates
    from probecascade.store import Run
    from probecascade.thresholds.promise import counted

    loaded, stored = Cascade.load(cascade), Run.open(run)
    part: Any = split
    result = backtest_run(
        loaded, stored, part, force=force, billing=billing, explored=explored, resampling=Resampling(seed=seed)
    )
    note = left_out(loaded, stored, split, explored=explored)
    kind = f"{'explored ' if explored else ''}{'' if split == 'all' else split + ' '}episode"
    quiet = quiet_gates(
        stored,
        loaded.gates,
        chosen_episodes(loaded, stored, split, explored=explored),
        of=f"{kind}s",
        gate_answers=loaded.gate_answers,
    )
    likely = modes_of_aborts(loaded, stored, split, explored=explored)
    if as_json:
        shown = backtest_record(result, loaded) | ({"aborts_by_likely_mode": likely} if likely else {})
        print_json(
            {
                "cascade": str(cascade),
                "run": str(run),
                "split": split,
                "explored": explored,
                **shown,
                "note": note or None,
                "gate_notes": quiet,
            }
        )
        return
    total = result.doomed + result.successes
    typer.echo(
        f"{counted(total, 'labelled ' + kind)} of {run}: "
        f"{counted(result.doomed, 'failure')}, {counted(result.successes, 'success')}"
    )
    for sentence in ([note] if note else []) + quiet:
        say(f"note: {sentence}")
    typer.echo("")
    typer.echo(backtest_text(result, loaded))
    for mode, truth in sorted(likely.items()):
        truly = ", ".join(f"{count} {name}" for name, count in sorted(truth.items(), key=lambda item: -item[1]))
        typer.echo(f"{f'aborted as {mode}':<26} {sum(truth.values())} (by the rules: {truly})")
    if split in ("fit", "calibrate"):
        typer.echo(f"the {split} episodes shaped this cascade, so these numbers flatter it")
