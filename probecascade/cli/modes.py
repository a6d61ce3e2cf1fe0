"""`probecascade modes`: how the episodes of a run fail. Needs no model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from probecascade.evaluation import ModeRow
    from probecascade.store import Run


def modes(
    run: Annotated[Path, typer.Argument(help="A run that `probecascade extract` made.")],
    labels: Annotated[
        Path | None, typer.Option(help="CSV or JSONL with episode_id and mode, to be used instead of the rules' modes.")
    ] = None,
    allow_new: Annotated[bool, typer.Option("--allow-new", help="Let --labels bring modes of its own names.")] = False,
    csv: Annotated[
        Path | None, typer.Option(help="New file for every failure and its mode, to correct and give to --labels.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the intervals' resampling.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Count how the failed episodes of a run failed: one mode each, by rules on the transcript.

    The rules look at the part of the task in which the episode was lost. In order: invalid_action (half of the turns
    held no action that could be carried out), loop (three identical actions in a row, or half of the turns repeated
    one), gave_up (its answer says that there is none), tool_error (the last tool used failed or found nothing),
    out_of_budget (cut off before it answered), and wrong_answer (all others). Intervals (95 %) resample groups.

    Examples:

      probecascade modes runs/atlas

      probecascade modes runs/atlas --csv modes.csv

      probecascade modes runs/atlas --labels modes.csv --allow-new --json
    """
    from probecascade.cli.escapes import tell
    from probecascade.cli.tables import print_json
    from probecascade.errors import UsageError
    from probecascade.evaluation import Resampling, mode_table
    from probecascade.evaluation.sweep_result import check_new
    from probecascade.store import Run

    if allow_new and labels is None:
        raise UsageError("--allow-new is about the modes in a file: add --labels, or leave it out.")
    if csv is not None:
        check_new(csv)
    stored = Run.open(run)
    found = modes_of(stored, labels, allow_new=allow_new)
    rows = mode_table(stored, found, Resampling(seed=seed))
    if csv is not None:
        write_modes(stored, found, csv)
    if as_json:
        return print_json(_record(run, labels, rows))
    failures = sum(row.count for row in rows)
    tell(f"{failures} failures of {int(stored.episodes.labelled.sum())} labelled episodes of {run}")
    typer.echo("")
    typer.echo(_text(rows))
    if csv is not None:
        tell(f"written to {csv}")
    return None


def modes_of(run: Run, labels: Path | None, *, allow_new: bool = False) -> NDArray[np.object_]:
    """(n_episodes,) each failure's mode by the rules, or as the file says; empty for all other episodes."""
    from probecascade.evaluation import failure_modes, override_modes

    found = failure_modes(run)
    return found if labels is None else override_modes(run, found, labels, allow_new=allow_new)


def write_modes(run: Run, modes: NDArray[np.object_], path: Path) -> None:
    """A new CSV file with one line per failure, in the form that --labels reads: whole or not at all."""
    from csv import writer
    from io import StringIO

    from probecascade.evaluation.sweep_result import check_new
    from probecascade.store.durable import replace_file

    table, text = run.episodes, StringIO(newline="")
    lines = writer(text)
    lines.writerow(["episode_id", "mode", "outcome", "reason", "rounds", "tokens", "doomed_round"])
    for index in (modes != "").nonzero()[0]:
        doomed = int(table.doomed_round[index])
        facts = (table.outcome[index], table.reason[index], table.rounds[index], table.tokens[index])
        lines.writerow([table.episode_id[index], modes[index], *facts, doomed if doomed >= 0 else ""])
    check_new(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, text.getvalue().encode("utf-8", "surrogatepass"))  # an id may hold half of a character


def _record(run: Path, labels: Path | None, rows: tuple[ModeRow, ...]) -> dict[str, Any]:
    from probecascade.cli.tables import interval_record

    return {
        "run": str(run),
        "labels": None if labels is None else str(labels),
        "failures": sum(row.count for row in rows),
        "modes": [
            {
                "mode": row.mode,
                "count": row.count,
                "share": interval_record(row.share),
                "tokens": row.tokens,
                "rounds": row.rounds,
                "doomed_round": row.doomed_round,
                "doomed_known": row.doomed_known,
                "examples": list(row.examples),
            }
            for row in rows
        ],
    }


def _text(rows: tuple[ModeRow, ...]) -> str:
    from probecascade.cli.tables import folded, share_text, wrapped

    titles = ["mode", "episodes", "share of failures", "tokens", "rounds", "doomed in round"]
    lines = [
        [
            row.mode,
            str(row.count),
            share_text(row.share),
            f"{row.tokens:.0f}",
            f"{row.rounds:.1f}",
            "–" if math.isnan(row.doomed_round) else f"{row.doomed_round:g} (n={row.doomed_known})",
        ]
        for row in rows
    ]
    examples = [wrapped(f"  {row.mode}: {', '.join(row.examples)}", indent="    ") for row in rows]
    note = "tokens, rounds: means; doomed in round: median, where the environment knows it"
    return "\n".join([folded(titles, lines), note, "", "examples (probecascade inspect RUN --episode ID):", *examples])
