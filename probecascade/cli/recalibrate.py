"""`probecascade recalibrate`: new thresholds for an old cascade. Needs neither torch nor the model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probecascade.errors import CascadeError, UsageError

if TYPE_CHECKING:
    from probecascade.policies import Cascade, Recalibration
    from probecascade.thresholds import Backtest


def recalibrate(
    cascade: Annotated[Path, typer.Argument(help="A cascade that `probecascade fit` made.")],
    run: Annotated[Path, typer.Argument(help="A run of the same model on groups that the cascade has not seen.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the new cascade.")],
    recall: Annotated[
        str | None, typer.Option(help="Shares of the doomed episodes to catch up to each gate, rising: 0.5,0.7.")
    ] = None,
    keep: Annotated[
        str | None, typer.Option(help="Share of the would-be successes that no gate may abort: 0.95.")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help="How thresholds are set: certified, empirical, paper, uniform, single, maxrank."),
    ] = None,
    confidence: Annotated[float | None, typer.Option(help="Confidence of each promise.")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Set thresholds by fewer than 20 failures or 20 successes too.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a cascade in that folder.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Set a cascade's thresholds anew on newly labelled episodes, and say what the old ones did on them.

    Targets, method and confidence are those that the cascade stores; a target given here replaces the stored ones
    altogether. The probes stay as they are. Episodes that were aborted have no outcome, and those that ended by
    themselves beside them are no fair sample: use a run without aborts, or one that was recorded with
    `probecascade run --explore`, of which the explored episodes are taken. Fewer than 20 labelled failures or
    successes are refused: they would replace good thresholds by chance.

    Examples:

      probecascade run extract/quickstart.toml --cascade cascades/atlas --tasks fresh --shadow --limit 400 -o runs/new

      probecascade recalibrate cascades/atlas runs/new -o cascades/atlas-2

      probecascade recalibrate cascades/atlas runs/new --keep 0.9 --confidence 0.9 -o cascades/atlas-3
    """
    if output.exists() and not overwrite:
        raise CascadeError(f"{str(output)!r} exists already: choose another folder, or add --overwrite.")

    refuse_run(cascade)
    from probecascade.cli.tables import backtest_record, print_json
    from probecascade.policies import Cascade
    from probecascade.policies import recalibrate as set_anew
    from probecascade.store import Run

    old = Cascade.load(cascade)
    found = set_anew(old, Run.open(run), recalls=recall, keep=keep, method=method, confidence=confidence, force=force)
    found.cascade.save(output, overwrite=overwrite)
    if not as_json:
        return _tell(old, found, run, output)
    record: dict[str, Any] = {
        "cascade": str(output),
        "replaces": str(cascade),
        "run": str(run),
        "promise": found.cascade.promise,
        "calibration": dict(found.cascade.calibration),
        "before": backtest_record(found.before, old),
        "after": backtest_record(found.after, found.cascade),
        "warnings": list(found.warnings),
    }
    return print_json(record)


def refuse_run(cascade: Path) -> None:
    """UsageError where a run stands in the place of a cascade."""
    if (cascade / "run.json").is_file():
        raise UsageError(f"the first argument, {str(cascade)!r}, is a run: give the cascade first and the run second.")


def _tell(old: Cascade, found: Recalibration, run: Path, output: Path) -> None:
    from probecascade.cli.tables import say, table, threshold_text
    from probecascade.thresholds.promise import counted

    before, after = found.before, found.after
    typer.echo(
        f"{counted(before.doomed + before.successes, 'labelled episode')} of {run}: "
        f"{counted(before.doomed, 'failure')}, {counted(before.successes, 'success')}"
    )
    for warning in found.warnings:
        say(f"note: {warning}")
    typer.echo("")
    with_targets = any(gate.target for gate in found.cascade.gates)
    rows = [
        [
            gate.checkpoint,
            threshold_text(gate.threshold),
            threshold_text(new.threshold),
            *([new.target or "–"] if with_targets else []),
            f"{was.caught}/{before.doomed}",
            f"{now.caught}/{after.doomed}",
            f"{was.kept}/{before.successes}",
            f"{now.kept}/{after.successes}",
        ]
        for gate, new, was, now in zip(old.gates, found.cascade.gates, before.gates, after.gates, strict=True)
    ]
    titles = [
        "gate",
        "old threshold",
        "new",
        *(["target"] if with_targets else []),
        "caught so far: old",
        "new",
        "kept so far: old",
        "new",
    ]
    typer.echo(table(titles, rows))
    typer.echo("")
    say(f"the old thresholds on these episodes: {_sentence(before)}")
    say(f"the new thresholds, which they set:   {_sentence(after)}")
    typer.echo("")
    say(found.cascade.promise)
    typer.echo(f"written to {output}")


def _sentence(result: Backtest) -> str:
    from probecascade.cli.tables import share_text

    return (
        f"failures caught {share_text(result.caught)}, successes kept {share_text(result.kept)}, "
        f"tokens saved {share_text(result.saved['tokens'].share)}"
    )
