"""`probecascade adapt`: move a cascade's probes to new conditions with few episodes. Needs no model."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probecascade.errors import CascadeError

if TYPE_CHECKING:
    from probecascade.evaluation import Change
    from probecascade.policies import Adaptation, Cascade
    from probecascade.store import Run
    from probecascade.thresholds import Backtest


def adapt(
    cascade: Annotated[Path, typer.Argument(help="A cascade that `probecascade fit` made.")],
    run: Annotated[Path, typer.Argument(help="A run of the same model under the new conditions.")],
    how: Annotated[
        str, typer.Option(help="recentre (needs no labels), bias (few labels), refit (some dozens of labels).")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the new cascade.")],
    episodes: Annotated[
        int | None, typer.Option(help="Adapt on about so many episodes, whole groups (half of them).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of which groups adapt, and of the folds of refit.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a cascade in that folder.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Move a cascade's probes to another prompt wording, temperature or task set, and show before and after.

    recentre draws the mean and scale of every feature to those of the new states. bias fits slope and bias of each
    gate's logit, which leaves the order of scores as it is. refit re-centres and then fits the direction anew, with a
    ridge towards the old one. What is compared are episodes of groups that adapted nothing and fitted nothing. The
    thresholds stay as they are and promise nothing until `probecascade recalibrate` sets them anew; with a template
    that the cascade had not seen, it fits that one from then on.

    Examples:

      probecascade adapt cascades/atlas runs/terse --how recentre -o cascades/atlas-terse

      probecascade adapt cascades/atlas runs/terse --how refit --episodes 80 -o cascades/atlas-terse --json
    """
    if output.exists() and not overwrite:
        raise CascadeError(f"{str(output)!r} exists already: choose another folder, or add --overwrite.")

    from probecascade.cli.tables import backtest_record, print_json
    from probecascade.evaluation import compare_cascades
    from probecascade.policies import Cascade
    from probecascade.policies import adapt as move
    from probecascade.store import Run

    old, opened = Cascade.load(cascade), Run.open(run)
    found = move(old, opened, how, episodes=episodes, seed=seed)  # type: ignore[arg-type]
    change = compare_cascades(old, found.cascade, opened, found.held_out)
    found.cascade.save(output, overwrite=overwrite)
    following = _next(old, opened, found, run, output)
    if not as_json:
        return _tell(old, opened, found, change, output, following)
    record: dict[str, Any] = {
        "cascade": str(output),
        "replaces": str(cascade),
        "run": str(run),
        "how": how,
        "adapted_on": int(found.used.sum()),
        "held_out": int(found.held_out.sum()),
        "promise": found.cascade.promise,
        "gates": [] if change is None else [_gate_record(gate) for gate in change.gates],
        "before": None if change is None else backtest_record(change.before, old),
        "after": None if change is None else backtest_record(change.after, found.cascade),
        "warnings": list(found.warnings),
        "next": following,
    }
    return print_json(record)


def _gate_record(gate: Any) -> dict[str, Any]:
    import dataclasses

    return dataclasses.asdict(gate)


def _next(old: Cascade, run: Run, found: Adaptation, path: Path, output: Path) -> str:
    """The command that sets thresholds anew: on the rest of the run, if the old cascade knows none of its groups."""
    rest = run.episodes.labelled & ~found.used
    known = old.overlap(run.episodes.group[run.episodes.labelled].tolist())
    fresh = path if found.held_out.any() and rest.any() and not known else Path("runs/fresh")
    return shlex.join(["probecascade", "recalibrate", str(output), str(fresh), "-o", f"{output}-recalibrated"])


def _tell(old: Cascade, run: Run, found: Adaptation, change: Change | None, output: Path, following: str) -> None:
    from probecascade.cli.escapes import tell
    from probecascade.cli.tables import folded, say

    say(
        f"adapted ({found.how}) on {int(found.used.sum())} of {len(run)} episodes, "
        f"compared on {int(found.held_out.sum())} labelled ones of other groups"
    )
    for warning in found.warnings:
        say(f"note: {warning}", indent="  ")
    typer.echo("")
    if change is None:
        say(
            "no labelled episode of a new group is left, so that nothing can be compared: give a larger run, or fewer "
            "--episodes."
        )
    else:
        rows = [
            [gate.checkpoint, f"{gate.n} ({gate.failed})", _text(gate.auroc), _text(gate.brier)]
            for gate in change.gates
        ]
        typer.echo(folded(["gate", "n (failed)", "AUROC before → after, change", "Brier before → after, change"], rows))
        typer.echo("")
        say(f"old probes, old thresholds: {_sentence(change.before)}", indent="  ")
        say(f"new probes, old thresholds: {_sentence(change.after)}", indent="  ")
    typer.echo("")
    say(found.cascade.promise)
    tell(f"written to {output}")
    if "runs/fresh" in following:
        typer.echo("next, with a run of fresh groups under the new conditions, such as runs/fresh:")
    else:
        typer.echo("next, on the episodes that did not adapt it:")
    tell(f"  {following}")


def _text(part: dict[str, Any] | None) -> str:
    """`0.812 → 0.834, +0.022 [+0.00, +0.05]`, or `–` where one class is missing."""
    if part is None or part["change"]["value"] is None:
        return "–"
    change = part["change"]
    moved = f"{change['value']:+.3f} [{change['low']:+.2f}, {change['high']:+.2f}]"
    return f"{part['before']['value']:.3f} → {part['after']['value']:.3f}, {moved}"


def _sentence(result: Backtest) -> str:
    from probecascade.cli.tables import share_text

    return f"failures caught {share_text(result.caught)}, successes kept {share_text(result.kept)}"
