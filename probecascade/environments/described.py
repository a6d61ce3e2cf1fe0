"""What a task file holds, found out before anything runs: layout, kinds of task, pages and faults."""

from __future__ import annotations

import os
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probecascade.environments.game_files import ALFWORLD_SUFFIX, game_paths, game_task
from probecascade.environments.layouts import played_as
from probecascade.environments.pages import Notes, page_of
from probecascade.environments.reading import Record, read_records
from probecascade.environments.scoring import answer_fault
from probecascade.environments.tasks import Entry, TaskFile, open_tasks
from probecascade.episode import Task
from probecascade.errors import DataError

FULLWIKI_SHARE = 0.25
"""Share of records that lack a gold page from which on that is how the set is made: pages were retrieved, not given."""

ALFWORLD, TEXTWORLD = "alfworld", "textworld"
"""The formats of folders of text games; a folder that holds both has both, with a comma."""

PAGES = "pages"
"""The format of a file that holds pages of a wiki and no tasks."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong: line and number of the record, both from 1, and a sentence."""

    line: int
    record: int
    problem: str


@dataclass(slots=True)
class TaskReport:
    """What a file of tasks (or of pages) holds.

    `tasks` of the `records` can be played; `setting` is `distractor` or `fullwiki` for HotpotQA with its gold pages.
    `pages` and `sentences` are counts, one a task and one a page; `gold_pages` counts tasks that have all, some or
    none of their gold pages. The other counters say how many tasks are of each kind.
    """

    format: str
    records: int = 0
    tasks: int = 0
    setting: str = ""
    groups: set[str] = field(default_factory=set)
    types: Counter[str] = field(default_factory=Counter)
    levels: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    gold_pages: Counter[str] = field(default_factory=Counter)
    pages: Counter[int] = field(default_factory=Counter)
    sentences: Counter[int] = field(default_factory=Counter)
    empty_sentences: int = 0
    entities: int = 0
    faults: list[Fault] = field(default_factory=list)

    @property
    def games(self) -> bool:
        """Whether the records are text games."""
        return {ALFWORLD, TEXTWORLD}.issuperset(self.format.split(", "))

    def record(self) -> dict[str, Any]:
        """The report as plain values."""
        return {
            "format": self.format,
            "records": self.records,
            "tasks": self.tasks,
            "setting": self.setting or None,
            "groups": len(self.groups),
            "types": dict(self.types.most_common()),
            "levels": dict(self.levels.most_common()),
            "answers": dict(self.answers.most_common()),
            "gold_pages": dict(self.gold_pages.most_common()),
            "pages_per_task": spread(self.pages),
            "sentences_per_page": spread(self.sentences),
            "empty_sentences": self.empty_sentences,
            "entities": self.entities,
            "faults": [{"line": f.line, "record": f.record, "problem": f.problem} for f in self.faults],
        }


def describe_tasks(path: str | os.PathLike[str], pages: str | os.PathLike[str] | None = None) -> TaskReport:
    """Read a task file (or, without tasks, a file of pages) to its end and say what it holds.

    Of a folder the records are the games below it, each a file of one line. Raises UsageError and DataError as
    `open_tasks` does, DataError for a folder without games; what is wrong with single records is in the report.
    """
    if Path(path).is_dir():
        return _described_games(Path(path))
    if pages is None and _holds_pages(path):
        return _described_pages(path)
    return _described(open_tasks(path, pages))


def spread(counts: Counter[int]) -> dict[str, float] | None:
    """Least, median and most of counted numbers; None without any."""
    values = sorted(counts.elements())
    if not values:
        return None
    return {"min": values[0], "median": statistics.median(values), "max": values[-1]}


def _described(file: TaskFile) -> TaskReport:
    report = TaskReport(file.layout.name)
    absent: list[Fault] = []
    for entry in file.entries:
        report.records += 1
        report.empty_sentences += entry.notes.empty
        report.entities += entry.notes.entities
        report.faults += [Fault(entry.line, entry.number, problem) for problem in entry.notes.faults]
        if entry.task is not None:
            _count(report, entry.task)
            problem = answer_fault(entry.task, played_as(file.layout, [entry.task]).settings.score)
            report.faults += [Fault(entry.line, entry.number, problem)] if problem else []
            absent += _absent(entry, entry.task)
    if report.format.startswith("hotpotqa") and report.gold_pages:
        lacking = len({fault.record for fault in absent})
        report.setting = "fullwiki" if lacking > FULLWIKI_SHARE * report.tasks else "distractor"
    if report.setting != "fullwiki":
        report.faults = sorted([*report.faults, *absent], key=lambda fault: fault.record)
    return report


def _count(report: TaskReport, task: Task) -> None:
    report.tasks += 1
    report.groups.add(task.group)
    for counter, key in ((report.types, "type"), (report.levels, "level")):
        if key in task.attributes:
            counter[str(task.attributes[key])] += 1
    report.answers[_kind_of_answer(task)] += 1
    report.pages[len(task.paragraphs)] += 1
    report.sentences.update(len(page.sentences) for page in task.paragraphs)
    gold = task.attributes.get("gold_titles")
    if isinstance(gold, list) and gold:
        titles = {page.title for page in task.paragraphs}
        there = sum(title in titles for title in gold)
        report.gold_pages["all" if there == len(gold) else "some" if there else "none"] += 1


def _kind_of_answer(task: Task) -> str:
    if len(task.parts) > 1:
        return f"{len(task.parts)} parts"
    answer = task.parts[0].answers[0]
    closed = answer.lower() in ("yes", "no") or "label" in task.attributes
    return answer if closed else "text"


def _absent(entry: Entry, task: Task) -> list[Fault]:
    if not task.paragraphs or "label" in task.attributes:  # a claim's evidence is told by its reader
        return []
    return [
        Fault(entry.line, entry.number, f"the gold page {title!r} is not among its {len(task.paragraphs)} pages")
        for title in entry.notes.absent
    ]


def _holds_pages(path: str | os.PathLike[str]) -> bool:
    records = read_records(path)
    first = next((record.value for record in records if not record.problem), None)
    return isinstance(first, dict) and ("title" in first or {"id", "lines"} <= first.keys()) and "question" not in first


def _described_pages(path: str | os.PathLike[str]) -> TaskReport:
    report = TaskReport(PAGES)
    seen: dict[str, int] = {}
    for record in _counted(read_records(path), report):
        notes = Notes()
        try:
            if record.problem:
                raise DataError(record.problem)
            page = page_of(record.value, notes)
            if page.title in seen:
                raise DataError(f"the page {page.title!r} is on line {seen[page.title]} already; that one is read")
        except DataError as error:
            report.faults.append(Fault(record.line, record.number, str(error)))
            continue
        seen[page.title] = record.line
        report.sentences[len(page.sentences)] += 1
        report.empty_sentences += notes.empty
        report.entities += notes.entities
    if not seen:
        raise DataError(f"{Path(path).name} holds no page; write one object with title and sentences a line")
    return report


def _described_games(root: Path) -> TaskReport:
    report = TaskReport("")
    formats: Counter[str] = Counter()
    names: dict[str, Path] = {}
    for number, path in enumerate(game_paths(root), 1):
        report.records = number
        formats[ALFWORLD if path.suffix == ALFWORLD_SUFFIX else TEXTWORLD] += 1
        try:
            task = game_task(path, root)
            if task is None:
                raise DataError(f"{path} is marked as not solvable and is left out")
            if task.task_id in names:
                raise DataError(f"{path} is called {task.task_id!r} as {names[task.task_id]} is; keep one of them")
        except DataError as error:
            report.faults.append(Fault(1, number, str(error)))
            continue
        names[task.task_id] = path
        report.tasks += 1
        report.groups.add(task.group)
        report.types[str(task.attributes.get("type", "game"))] += 1
    if not report.records:
        raise DataError(f"there is no game to play below {root}; give a folder with {ALFWORLD_SUFFIX} or .z8 files")
    report.format = ", ".join(sorted(formats))
    return report


def _counted(records: Iterator[Record], report: TaskReport) -> Iterator[Record]:
    for record in records:
        report.records += 1
        yield record
