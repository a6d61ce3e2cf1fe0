"""Our own task layout: JSON lines, plain or gzipped, one task a line.

    {"task_id": "t1", "group": "g1",
     "parts": [{"question": "Where does Ada live?", "answers": ["Brosk"]}],
     "paragraphs": [{"title": "Ada", "sentences": ["Ada lives in Brosk."]}],
     "attributes": {}}

`paragraphs` and `attributes` may be left out. Other keys are refused, so that a misspelt one is not lost.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from probecascade.episode import Paragraph, Part, Task
from probecascade.errors import DataError, UsageError

_TASK_KEYS = ("task_id", "group", "parts", "paragraphs", "attributes")


def load_tasks(path: str | os.PathLike[str]) -> list[Task]:
    """Read all tasks of a `.jsonl` or `.jsonl.gz` file, in file order; blank lines are skipped.

    Raises UsageError if the file cannot be opened; DataError, naming the line, if one is not a task or
    repeats a task id, and if there is no task at all.
    """
    file = Path(path)
    tasks: list[Task] = []
    first_seen: dict[str, int] = {}
    for number, line in enumerate(_read(file).split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            task = _task(json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8")))
        except UnicodeDecodeError as error:
            raise DataError(f"{file.name}, line {number}: not UTF-8 text; save the file as UTF-8") from error
        except (ValueError, RecursionError) as error:
            raise DataError(f"{file.name}, line {number}: not JSON ({error}); write a task a line") from error
        except DataError as error:
            raise DataError(f"{file.name}, line {number}: {error}") from error
        if task.task_id in first_seen:
            raise DataError(
                f"{file.name}, line {number}: task_id {task.task_id!r} is on line {first_seen[task.task_id]} "
                "already; give every task an id of its own"
            )
        first_seen[task.task_id] = number
        tasks.append(task)
    if not tasks:
        raise DataError(f"{file.name} holds no task; write one JSON object a line")
    return tasks


def dump_tasks(tasks: Iterable[Task], path: str | os.PathLike[str]) -> int:
    """Write tasks in order, gzipped if the name ends in `.gz`, and return how many there were.

    The same tasks always give the same bytes (with gzip: under the same zlib). The file appears whole or
    not at all. Raises DataError if a task id repeats.
    """
    file = Path(path)
    lines: dict[str, str] = {}
    for task in tasks:
        if task.task_id in lines:
            raise DataError(f"task_id {task.task_id!r} is given twice; give every task an id of its own")
        lines[task.task_id] = json.dumps(_record(task), ensure_ascii=False) + "\n"
    content = "".join(lines.values()).encode()
    if file.suffix == ".gz":
        content = _gzipped(content)
    unfinished = file.with_name(f"{file.name}.{os.getpid()}.part")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)
    return len(lines)


def _read(file: Path) -> bytes:
    try:
        content = file.read_bytes()
    except OSError as error:
        problem = f"the task file {file} cannot be read ({error.strerror})"
        raise UsageError(f"{problem}; give a .jsonl or .jsonl.gz file") from error
    if file.suffix != ".gz":
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file.name} is not a whole gzip file; fetch or build it again") from error


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
    fields = _fields(record, "a task", _TASK_KEYS, required=3)
    parts = _list(fields["parts"], "'parts'")
    if not parts:
        raise DataError("'parts' is empty; a task needs at least one question with answers")
    attributes = fields.get("attributes", {})
    if not isinstance(attributes, dict):
        raise DataError(f"'attributes' is {_kind(attributes)}; give an object")
    paragraphs = tuple(_paragraph(page) for page in _list(fields.get("paragraphs", []), "'paragraphs'"))
    titles = [page.title for page in paragraphs]
    for title in titles:
        if titles.count(title) > 1:
            raise DataError(f"two pages are titled {title!r}; give each page of a task its own title")
    return Task(
        task_id=_text(fields["task_id"], "'task_id'"),
        group=_text(fields["group"], "'group'"),
        parts=tuple(_part(part) for part in parts),
        paragraphs=paragraphs,
        attributes=attributes,
    )


def _part(record: object) -> Part:
    fields = _fields(record, "a part", ("question", "answers"), required=2)
    answers = tuple(_text(answer, "an answer") for answer in _list(fields["answers"], "'answers'"))
    if not answers:
        raise DataError("'answers' is empty; give at least one answer that counts as right")
    return Part(_text(fields["question"], "'question'"), answers)


def _paragraph(record: object) -> Paragraph:
    fields = _fields(record, "a paragraph", ("title", "sentences"), required=2)
    sentences = _list(fields["sentences"], "'sentences'")
    if not all(isinstance(sentence, str) for sentence in sentences):
        raise DataError("'sentences' holds something that is no text; give a list of texts")
    return Paragraph(_text(fields["title"], "'title'"), tuple(sentences))


def _fields(record: object, what: str, keys: tuple[str, ...], required: int) -> dict[str, Any]:
    """The record as a dict with the first `required` of `keys` present and no key outside them."""
    if not isinstance(record, dict):
        raise DataError(f"{what} is {_kind(record)}; give an object with {', '.join(keys)}")
    for key in keys[:required]:
        if key not in record:
            raise DataError(f"{what} has no {key!r}; give an object with {', '.join(keys)}")
    for key in record:
        if key not in keys:
            raise DataError(f"{what} has an unknown key {key!r}; give an object with {', '.join(keys)}")
    return record


def _list(value: object, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise DataError(f"{what} is {_kind(value)}; give a list")
    return value


def _text(value: object, what: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{what} is {_kind(value)}; give a text that is not blank")
    return value


def _kind(value: object) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "a truth value", type(None): "null"}
    if isinstance(value, str) and not value.strip():
        return "blank"
    return kinds.get(type(value), "a number")
