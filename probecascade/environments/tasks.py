"""Task files: our own layout, JSON lines, plain or gzipped, one task a line, and those of public sets.

    {"task_id": "t1", "group": "g1",
     "parts": [{"question": "Where does Ada live?", "answers": ["Brosk"]}],
     "paragraphs": [{"title": "Ada", "sentences": ["Ada lives in Brosk."]}],
     "attributes": {}}

`paragraphs` and `attributes` may be left out. Other keys are refused, so that a misspelt one is not lost. The other
layouts are those of `environments.layouts`; which one a file has is told by its records.
"""

from __future__ import annotations

import gzip
import io
import itertools
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probecascade.environments.fields import fields_of, kind_of, list_of, text_of
from probecascade.environments.layouts import Layout, layout_of, unknown
from probecascade.environments.pages import Notes, PageFile, read_pages
from probecascade.environments.reading import Record, read_records
from probecascade.episode import Paragraph, Part, Task
from probecascade.errors import DataError

_TASK_KEYS = ("task_id", "group", "parts", "paragraphs", "attributes")
_LOOKED_AT = 50  # first records of a file that may tell its layout


@dataclass(frozen=True, slots=True)
class Entry:
    """A record of a task file: where it is, its task (None: it makes none), and what reading it brought to light.

    The last of `notes.faults` says why there is no task.
    """

    line: int
    number: int
    task: Task | None
    notes: Notes


@dataclass(frozen=True, slots=True)
class TaskFile:
    """A task file under way: its layout and its entries, which are read as they are asked for, once."""

    name: str
    layout: Layout
    entries: Iterator[Entry]


def open_tasks(path: str | os.PathLike[str], pages: str | os.PathLike[str] | None = None) -> TaskFile:
    """Find out the layout of a task file and begin to read it; `pages` is a file of pages beside it.

    Raises UsageError if a file cannot be opened; DataError for a file without records, one in which none of the first
    records has a layout that is read, and pages that are none.
    """
    file = Path(path)
    records = read_records(file)
    first = list(itertools.islice(records, _LOOKED_AT))
    if not first:
        raise DataError(f"{file.name} holds no task; write one JSON object a line")
    sound = [record for record in first if not record.problem]
    if not sound:
        raise DataError(f"{file.name}, line {first[0].line}: {first[0].problem}")
    layout = layout_of([record.value for record in sound])
    if layout is None:
        raise DataError(f"{file.name}, line {sound[0].line}: {unknown(sound[0].value)}")
    beside = read_pages(pages) if pages is not None else None
    return TaskFile(file.name, layout, _entries(itertools.chain(first, records), layout, beside))


def load_tasks(path: str | os.PathLike[str], pages: str | os.PathLike[str] | None = None) -> list[Task]:
    """All tasks of a file in any layout that is read, in file order; blank lines are skipped.

    Raises UsageError if a file cannot be opened; DataError, naming the line, if a record is no task or
    repeats a task id, and if there is no task at all. Faults that leave a task playable are not told here
    (`describe_tasks` tells them).
    """
    return tasks_of(open_tasks(path, pages))


def tasks_of(file: TaskFile) -> list[Task]:
    """All tasks of an open file. DataError, naming the line, if a record makes none."""
    tasks: list[Task] = []
    for entry in file.entries:
        if entry.task is None:
            raise DataError(f"{file.name}, line {entry.line}: {entry.notes.faults[-1]}")
        tasks.append(entry.task)
    return tasks


def _entries(records: Iterable[Record], layout: Layout, pages: PageFile | None) -> Iterator[Entry]:
    first_seen: dict[str, int] = {}
    for record in records:
        notes = Notes()
        task = None
        if record.problem:
            notes.faults.append(record.problem)
        else:
            try:
                task = _encodable(_read(record.value, layout, notes, pages))
                if task.task_id in first_seen:
                    before = f"task_id {task.task_id!r} is on line {first_seen[task.task_id]} already"
                    raise DataError(f"{before}; give every task an id of its own")
                first_seen[task.task_id] = record.line
            except DataError as error:
                notes.faults.append(str(error))
                task = None
        yield Entry(record.line, record.number, task, notes)


def _read(value: Any, layout: Layout, notes: Notes, pages: PageFile | None) -> Task:
    if layout.read is None:
        return _task(value)
    # what the rest of the file has and this record lacks is said by its reader, which knows what it is for
    if not isinstance(value, dict):
        raise DataError(f"a record is {kind_of(value)}; give an object, as the records before it")
    try:
        return layout.read(value, notes, pages)
    except KeyError as error:
        raise DataError(f"the record has no {error}, which {layout.name} records have") from error


def _encodable(task: Task) -> Task:
    """The task. DataError where a text of it holds a lone surrogate, which no model can be given."""
    texts = [task.task_id, task.group, *(text for part in task.parts for text in (part.question, *part.answers))]
    for page in task.paragraphs:
        texts += [page.title, *page.sentences]
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start])
        raise DataError(f"a text holds {half}, half of a character; write the file again as UTF-8") from error
    return task


def dump_tasks(tasks: Iterable[Task], path: str | os.PathLike[str]) -> int:
    """Write tasks in order, gzipped if the name ends in `.gz`, and return how many there were.

    The same tasks always give the same bytes (with gzip: under the same zlib). The file appears whole or
    not at all. Raises DataError if a task id repeats or a text holds half a character.
    """
    file = Path(path)
    lines: dict[str, str] = {}
    for task in tasks:
        if task.task_id in lines:
            raise DataError(f"task_id {task.task_id!r} is given twice; give every task an id of its own")
        lines[task.task_id] = json.dumps(_record(_encodable(task)), ensure_ascii=False) + "\n"
    content = "".join(lines.values()).encode()
    if file.suffix == ".gz":
        content = _gzipped(content)
    write_whole(file, content)
    return len(lines)


def write_whole(file: Path, content: bytes) -> None:
    """Write a file that appears whole or not at all."""
    unfinished = file.with_name(f"{file.name}.{os.getpid()}.part")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)


def _gzipped(content: bytes) -> bytes:
    # not gzip.compress: its header names the operating system under some Python versions
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=buffer, mtime=0) as packer:
        packer.write(content)
    return buffer.getvalue()


def _record(task: Task) -> dict[str, Any]:
    return {
        "task_id": task.task_id,
        "group": task.group,
        "parts": [{"question": part.question, "answers": list(part.answers)} for part in task.parts],
        "paragraphs": [{"title": page.title, "sentences": list(page.sentences)} for page in task.paragraphs],
        "attributes": dict(task.attributes),
    }


def _task(record: object) -> Task:
    fields = fields_of(record, "a task", _TASK_KEYS, required=3)
    parts = list_of(fields["parts"], "'parts'")
    if not parts:
        raise DataError("'parts' is empty; a task needs at least one question with answers")
    attributes = fields.get("attributes", {})
    if not isinstance(attributes, dict):
        raise DataError(f"'attributes' is {kind_of(attributes)}; give an object")
    paragraphs = tuple(_paragraph(page) for page in list_of(fields.get("paragraphs", []), "'paragraphs'"))
    titles = [page.title for page in paragraphs]
    for title in titles:
        if titles.count(title) > 1:
            raise DataError(f"two pages are titled {title!r}; give each page of a task its own title")
    return Task(
        task_id=text_of(fields["task_id"], "'task_id'"),
        group=text_of(fields["group"], "'group'"),
        parts=tuple(_part(part) for part in parts),
        paragraphs=paragraphs,
        attributes=attributes,
    )


def _part(record: object) -> Part:
    fields = fields_of(record, "a part", ("question", "answers"), required=2)
    answers = tuple(text_of(answer, "an answer") for answer in list_of(fields["answers"], "'answers'"))
    if not answers:
        raise DataError("'answers' is empty; give at least one answer that counts as right")
    return Part(text_of(fields["question"], "'question'"), answers)


def _paragraph(record: object) -> Paragraph:
    fields = fields_of(record, "a paragraph", ("title", "sentences"), required=2)
    sentences = list_of(fields["sentences"], "'sentences'")
    if not all(isinstance(sentence, str) for sentence in sentences):
        raise DataError("'sentences' holds something that is no text; give a list of texts")
    return Paragraph(text_of(fields["title"], "'title'"), tuple(sentences))
