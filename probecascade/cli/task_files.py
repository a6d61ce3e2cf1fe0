"""`probecascade tasks`: what a task file holds, before anything runs. Needs no model."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from probecascade.environments.described import TaskReport

_LISTED = 20  # faults that are printed; --json has all


def task_files(
    file: Annotated[
        Path,
        typer.Argument(
            help="A file of tasks (or of pages): JSON lines, a JSON array or CSV; .gz; or a folder of games."
        ),
    ],
    pages: Annotated[
        Path | None,
        typer.Option(help="A file of wiki pages for tasks that name them (FEVER) or have none (Bamboogle)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, with every fault.")] = False,
) -> None:
    """Say what a task file or a folder of text games holds, and what is wrong with it, before anything runs.

    Read are the official files of HotpotQA (distractor and fullwiki, also in Hugging Face's columns), FEVER,
    2WikiMultiHopQA, MuSiQue, StrategyQA and Bamboogle, the project's own task files, and JSON lines of your own with
    question, answer and paragraphs. The layout is told by the records, not by the file's name. A record that makes no
    task and one that is doubtful are listed with their lines. Of a folder the games of ALFWorld and TextWorld are read.

    Examples:

      probecascade tasks hotpot_dev_distractor_v1.json

      probecascade tasks fever.jsonl.gz --pages fever_pages.jsonl.gz

      probecascade tasks mine.jsonl --json

      probecascade tasks games/
    """
    from probecascade.cli.tables import print_json
    from probecascade.environments import describe_tasks

    report = describe_tasks(file, pages)
    if as_json:
        return print_json({"path": str(file), **report.record()})
    _tell(report)


def _tell(report: TaskReport) -> None:
    from probecascade.cli.tables import say
    from probecascade.thresholds.promise import counted

    games = report.games
    record = "game" if games else "record"
    held = counted(report.records, record)
    if report.format != "pages":
        held += f", {counted(report.tasks, 'task')} of {counted(len(report.groups), 'group')}"
    say(f"{report.format}{f' ({report.setting})' if report.setting else ''}: {held}")
    for name, counter in (("type", report.types), ("level", report.levels), ("answer", report.answers)):
        if counter:
            say(f"{name:<8}{_shares(counter)}")
    if report.tasks and not games:
        say(_pages(report))
    if report.gold_pages:
        say(f"gold    pages at hand: {', '.join(f'{how} in {n}' for how, n in report.gold_pages.most_common())}")
    if report.empty_sentences or report.entities:
        say(
            f"texts   {report.empty_sentences} empty sentences, {report.entities} with HTML entities, "
            "which are read as characters"
        )
    useless = report.records - report.tasks if report.format != "pages" else 0
    say(f"faults  {len(report.faults) or 'none'}{f'; {_useless(useless, record)}' if useless else ''}")
    for fault in report.faults[:_LISTED]:
        say(f"  {'' if games else f'line {fault.line}, record '}{fault.record}: {fault.problem}")
    if len(report.faults) > _LISTED:
        say(f"  and {len(report.faults) - _LISTED} more: --json lists them all")


def _useless(count: int, record: str) -> str:
    from probecascade.thresholds.promise import counted

    return f"{counted(count, record)} {'makes' if count == 1 else 'make'} no task"


def _shares(counter: Counter[str]) -> str:
    return ", ".join(f"{kind} {number}" for kind, number in counter.most_common(8))


def _pages(report: TaskReport) -> str:
    from probecascade.environments.described import spread

    found = spread(report.pages)
    if not found or not found["max"]:
        return "pages   none: a search finds nothing (give a file of pages with --pages)"
    return f"pages   {found['min']:g} to {found['max']:g} a task, median {found['median']:g}"
