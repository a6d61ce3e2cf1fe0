"""What `fit` says of the cascade that it made: for people, and as JSON values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from probecascade.cli.fit_extras import extras_lines

if TYPE_CHECKING:
    from probecascade.evaluation import Backtest
    from probecascade.policies import Cascade, FitResult
    from probecascade.probes import Interval
    from probecascade.store import Run


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The cascade on the test episodes, which shaped nothing of it."""

    result: Backtest
    auroc: dict[str, Interval | None]
    record: dict[str, Any]


def fit_record(output: Path, run: Run, result: FitResult, cascade: Cascade, notes: list[str]) -> dict[str, Any]:
    """What `fit` found and wrote, as JSON values."""
    from probecascade.cli.tables import seen_text

    counted = result.cascade.provenance["episodes"]
    test = cascade.held_out.get("episodes", 0)
    return {
        "cascade": str(output),
        "run": str(run.path),
        "split": {**cascade.provenance["split"], "episodes": {**counted, "test": test}},
        "prediction": result.prediction,
        "promise": cascade.promise,
        "calibration": dict(cascade.calibration),
        "reached": result.reached,
        "gates": [
            {
                "checkpoint": row.gate.checkpoint,
                "layer": row.gate.layer,
                "taps": [list(tap) for tap in row.gate.taps],
                "sees": seen_text(row.gate),
                "auroc": row.auroc,
                "auroc_by_layer": dict(row.layers),
                "strength": row.strength,
                "folds": row.folds,
                "fit_doomed": row.fit_doomed,
                "fit_successes": row.fit_successes,
                "threshold": row.gate.threshold,
                "trigger": None if row.gate.trigger is None else row.gate.trigger.record(),
                "target": row.gate.target,
                "reached": row.gate.reached,
                "counts": dict(row.gate.counts),
            }
            for row in result.table
        ],
        "modes": cascade.provenance.get("modes"),
        "held_out": dict(cascade.held_out),
        "warnings": [*result.warnings, *notes],
    }


def tell_fit(record: dict[str, Any], result: FitResult, held_out: HeldOut | None, run: Path) -> None:
    """Print what `fit` found and wrote."""
    from probecascade.cli.tables import alive_words, auroc_text, folded, say, seen_text, share_text, threshold_text

    counted = record["split"]["episodes"]
    typer.echo(f"labelled episodes: {counted['fit']} fit, {counted['calibrate']} calibrate, {counted['test']} test")
    for warning in record["warnings"]:
        say(f"note: {warning}")
    if record["choice"]:
        say(record["choice"])
    if result.prediction:
        say(result.prediction)
    typer.echo("")
    with_targets = any(row.gate.target for row in result.table)
    probes, rows = [], []
    for row in result.table:
        gate, counts = row.gate, row.gate.counts
        probes.append(
            [
                gate.checkpoint,
                seen_text(gate),
                f"{row.auroc:.3f} n={row.fit_doomed + row.fit_successes}",
                auroc_text(held_out.auroc[gate.checkpoint]) if held_out else "–",
            ]
        )
        rows.append(
            [
                gate.checkpoint,
                threshold_text(gate.threshold),
                *([gate.target or "–", "yes" if gate.reached else "no"] if with_targets else []),
                f"{counts['alive_doomed']} + {counts['alive_successes']}",
                f"{counts['fired_doomed']} + {counts['fired_successes']}",
                f"{counts['caught']}/{counts['doomed']}",
                f"{counts['kept']}/{counts['successes']}",
            ]
        )
    typer.echo(folded(["gate", "sees", "AUROC fit (cv)", "AUROC test"], probes))
    say(
        "cv: cross-validated on the fit episodes, on the folds that also chose layer and strength, so it is a "
        "little optimistic; test: on episodes that shaped nothing"
    )
    typer.echo("")
    titles = ["gate", "threshold", *(["target", "reached"] if with_targets else [])]
    alive, note = alive_words(result.cascade.gates)
    typer.echo(folded([*titles, alive, "aborted (f + s)", "caught so far", "kept so far"], rows))
    said = "f: failures, s: successes; counted on the calibration episodes, which set the thresholds"
    say(f"{said}; {note}" if note else said)
    if any(row.gate.never for row in result.table):
        typer.echo("never: no P(failure) reaches the threshold, so the gate cannot fire")
    for line in extras_lines(result.cascade):
        typer.echo(line)
    typer.echo("")
    say(record["promise"])
    if held_out:
        tokens = held_out.result.saved["tokens"].share
        say(
            f"On the test episodes, which shaped nothing: failures caught {share_text(held_out.result.caught)}, "
            f"successes kept {share_text(held_out.result.kept)}, tokens saved {share_text(tokens)}."
        )
    typer.echo(f"written to {record['cascade']}")
    typer.echo(f"next: probecascade eval {record['cascade']} {run} --split test")
