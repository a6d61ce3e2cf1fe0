"""From an official file to a task file of our own: what the `prepare.py` of every set in `data/` calls."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from probecascade.environments.official import fever_evidence
from probecascade.environments.pages import Notes, page_of
from probecascade.environments.reading import read_records
from probecascade.environments.tasks import dump_tasks, open_tasks
from probecascade.episode import Paragraph, Task
from probecascade.errors import DataError, ProbecascadeError, UsageError

_TOLD = 5  # records left out that are named


def prepare(arguments: Sequence[str], layouts: Sequence[str], description: str) -> int:
    """The command line of a `prepare.py`: OFFICIAL OUTPUT [--pages FILE] [--limit N]; returns its exit code.

    `layouts` are those that the set's official files have. Records that make no task are left out, named and counted;
    bad input is one sentence on stderr and 2.
    """
    parser = _parser(description)
    parser.add_argument("--pages", help="a file of wiki pages, for a set that has none of its own")
    chosen = parser.parse_args(arguments)
    try:
        _write(chosen.official, chosen.output, layouts, chosen.pages, chosen.limit)
    except ProbecascadeError as error:
        return _refused(error)
    return 0


def prepare_fever(arguments: Sequence[str], description: str) -> int:
    """As `prepare`, for FEVER: CLAIMS PAGES OUTPUT, with the folder of its Wikipedia dump or one file of pages.

    Of the dump only the pages that the claims' evidence names are kept, and one in `--one-in` others, chosen by their
    titles alone, among which distractors are found; they are written beside the output as `NAME.pages.jsonl`.
    """
    parser = _parser(description, official="the claims, such as paper_dev.jsonl")
    parser.add_argument("--pages", required=True, help="the folder wiki-pages of the dump, or a file of pages")
    parser.add_argument("--one-in", type=int, default=250, help="keep one in so many of the other pages")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.one_in < 1:
            raise UsageError(f"--one-in is {chosen.one_in}: give a whole number from 1 on")
        kept = Path(chosen.output).with_name(f"{Path(chosen.output).name.split('.')[0]}.pages.jsonl")
        files = _files(Path(chosen.pages))
        if kept.resolve() in [file.resolve() for file in files]:
            raise UsageError(f"{kept} is both read and to be written: give the output another name")
        _keep_pages(files, _named(chosen.official, chosen.limit), chosen.one_in, kept)
        _write(chosen.official, chosen.output, ("fever",), kept, chosen.limit)
    except ProbecascadeError as error:
        return _refused(error)
    return 0


def _parser(description: str, official: str = "the official file, plain or .gz") -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("official", help=official)
    parser.add_argument("output", help="the task file to write, .jsonl or .jsonl.gz")
    parser.add_argument("--limit", type=int, help="look at the first so many records only")
    return parser


def _refused(error: ProbecascadeError) -> int:
    print(f"prepare.py: {error}", file=sys.stderr)
    return error.exit_code


def _write(official: str, output: str, layouts: Sequence[str], pages: str | Path | None, limit: int | None) -> None:
    file = open_tasks(official, pages)
    if file.layout.name not in layouts:
        raise DataError(f"{file.name} has the layout {file.layout.name}; give a file of {' or '.join(layouts)}")
    left_out: list[str] = []

    def sound() -> Iterator[Task]:
        for entry in file.entries:
            if limit is not None and entry.number > limit:
                return
            if entry.task is None:
                left_out.append(f"line {entry.line}, record {entry.number}: {entry.notes.faults[-1]}")
            else:
                yield entry.task

    count = dump_tasks(sound(), output)
    print(f"{count} tasks written to {output}, {len(left_out)} records left out")
    for told in left_out[:_TOLD]:
        print(f"  {told}")


def _named(claims: str, limit: int | None) -> set[str]:
    """Titles that the evidence of the claims names."""
    records = (r for r in read_records(claims) if limit is None or r.number <= limit)
    values = (record.value for record in records if isinstance(record.value, dict))
    return {title for value in values for group in fever_evidence(value) for title, _ in group}


def _files(pages: Path) -> list[Path]:
    if not pages.is_dir():
        return [pages]
    files = sorted(path for path in pages.iterdir() if path.name.endswith((".jsonl", ".jsonl.gz")))
    if not files:
        raise UsageError(f"the folder {str(pages)!r} holds no .jsonl file: give FEVER's wiki-pages")
    return files


def _keep_pages(files: Sequence[Path], named: set[str], one_in: int, output: Path) -> None:
    with output.open("w", encoding="utf-8") as kept:
        for file in files:
            for record in read_records(file):
                if record.problem:
                    raise DataError(f"{file.name}, line {record.line}: {record.problem}")
                page = page_of(record.value, Notes())
                if page.title and page.text and (page.title in named or _chosen(page, one_in)):
                    kept.write(
                        json.dumps({"title": page.title, "sentences": page.sentences}, ensure_ascii=False) + "\n"
                    )


def _chosen(page: Paragraph, one_in: int) -> bool:
    return int(hashlib.sha256(page.title.encode()).hexdigest(), 16) % one_in == 0
