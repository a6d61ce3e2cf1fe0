"""`probecascade transcripts`: what a file of recorded runs holds. Needs no model."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from probecascade.agents.recorded import Reading

_SHOWN = 10  # faults that are printed one by one


def transcripts(
    file: Annotated[Path, typer.Argument(help="Recorded runs: .jsonl, .json or .txt, gzipped (.gz) or not.")],
    layout: Annotated[
        str | None,
        typer.Option(help="steps, agentstop, swe-agent, openhands, messages or react (default: found)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, with all faults.")] = False,
) -> None:
    """Describe a file of runs that other agents recorded, before anything reads it with a model.

    Layouts: steps (rounds with thought, action, argument and observation), agentstop (generated texts with their
    numbers), swe-agent (a trajectory of thought, action and observation), openhands (events), messages (OpenAI's chat
    format with tool calls, such as tau-bench's) and react (text with the lines Question:, Thought:, Action: and
    Observation:).

    Whatever tells how a run ended is left out when a file is read: rounds after the action finish, the observation
    after the last round, and verdicts such as "Answer is CORRECT". How much that was is printed. A run that tells no
    outcome is kept without a label. Faults name their line; 0 stands for the file as a whole.

    Exit codes: 0 also for a file with faults, 2 for one that cannot be read or is of no known layout.

    Examples:

      probecascade transcripts trajectories.jsonl.gz

      probecascade transcripts gpt-4o-airline.json --layout messages

      probecascade transcripts trial_log.txt --json
    """
    from probecascade.agents.recorded import read_counted
    from probecascade.cli.tables import print_json

    reading = read_counted(file, layout)
    record = _record(file, reading)
    if as_json:
        return print_json(record)
    return typer.echo(_text(record))


def _record(file: Path, reading: Reading) -> dict[str, Any]:
    read = reading.file
    labelled = [run.failed for run in read.runs if run.failed is not None]
    successes = labelled.count(False)
    rounds = [len(run.steps) for run in read.runs]
    steps = [step for run in read.runs for step in run.steps]
    return {
        "path": str(file),
        "format": read.layout,
        "records": reading.records,
        "runs": len(read.runs),
        "groups": len({run.group for run in read.runs}),
        "labelled": len(labelled),
        "successes": successes,
        "success_share": successes / len(labelled) if labelled else None,
        "steps": {"median": median(rounds), "max": max(rounds), "all": len(steps)},
        "observation_kinds": _counts(step.observation_kind for step in steps),
        "actions": _counts(step.action or "(none)" for step in steps),
        "models": _counts(str(run.attributes.get("model", "(not told)")) for run in read.runs),
        "dropped": dict(reading.dropped),
        "faults": [{"line": fault.line, "problem": fault.problem} for fault in read.faults],
    }


def _counts(values: Any) -> dict[str, int]:
    return dict(Counter(values).most_common())


def _text(record: dict[str, Any]) -> str:
    from probecascade.cli.tables import wrapped

    share = record["success_share"]
    success = "– (no run has a label)" if share is None else f"{100 * share:.1f} % ({record['successes']} of them)"
    steps, faults = record["steps"], record["faults"]
    facts = {
        "layout": record["format"],
        "runs": f"{record['runs']} of {record['records']} records, in {record['groups']} groups",
        "labelled": f"{record['labelled']} of {record['runs']}",
        "success": success,
        "rounds": f"median {steps['median']:g}, at most {steps['max']}, {steps['all']} in all",
        "observations": _listed(record["observation_kinds"]),
        "actions": _listed(record["actions"]),
        "models": _listed(record["models"]),
        "left out": f"{_listed(record['dropped'])} (they may tell the outcome)",
        "faults": str(len(faults)) if faults else "none",
    }
    lines = [wrapped(f"{name:<14}{value}", " " * 14) for name, value in facts.items()]
    lines += [wrapped(f"  line {fault['line']}: {fault['problem']}", " " * 4) for fault in faults[:_SHOWN]]
    if len(faults) > _SHOWN:
        lines.append(f"  and {len(faults) - _SHOWN} more: --json prints all")
    return "\n".join(lines)


def _listed(counts: dict[str, int], most: int = 8) -> str:
    shown = [f"{count} {name}" for name, count in list(counts.items())[:most]]
    return "; ".join([*shown, f"{len(counts) - most} others"] if len(counts) > most else shown)
