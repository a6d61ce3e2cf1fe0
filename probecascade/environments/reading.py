"""Records of a file one after the other: JSON lines, one JSON array or CSV, plain or gzipped, each with its line.

Nothing is read ahead beyond some buffers, so a file may be larger than memory.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from probecascade.errors import DataError, UsageError

_CHUNK = 1 << 20
_MARGIN = 100  # characters before the end of the buffer within which bad JSON may merely be unfinished
_BLANK = " \t\r\n"


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a file: where it begins (line and number, both from 1) and its value, or why it has none."""

    line: int
    number: int
    value: Any = None
    problem: str = ""


def read_records(path: str | os.PathLike[str]) -> Iterator[Record]:
    """Every record of a file, in order; blank lines are skipped.

    A record that cannot be read comes with its problem; inside a JSON array nothing can be read after it. Raises
    UsageError if the file cannot be opened, DataError for a gzip file that is damaged or cut off.
    """
    file = Path(path)
    with _opened(file) as stream:
        first = _first_line(stream)
        if first.lstrip().startswith(b"["):
            yield from _array(stream)
        elif _is_csv_header(first):
            yield from _csv(stream)
        else:
            yield from _lines(stream)


@contextmanager
def _opened(file: Path) -> Iterator[io.BufferedReader]:
    try:
        plain = file.open("rb")
    except OSError as error:
        problem = f"the task file {file} cannot be read ({error.strerror})"
        raise UsageError(f"{problem}; give a .jsonl or .jsonl.gz file") from error
    with plain:
        packed = file.suffix == ".gz" or plain.peek(2)[:2] == b"\x1f\x8b"
        if not packed:
            yield plain
            return
        with gzip.GzipFile(fileobj=plain) as unpacked, io.BufferedReader(cast(Any, unpacked), _CHUNK) as stream:
            try:
                yield stream
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise DataError(f"{file.name} is not a whole gzip file; fetch or build it again") from error


def _first_line(stream: io.BufferedReader) -> bytes:
    """The beginning of the first line that is not blank, without a byte order mark; nothing is consumed."""
    begin = stream.peek(_CHUNK)
    return next((line for line in begin.removeprefix(codecs.BOM_UTF8).split(b"\n") if line.strip()), b"")


def _is_csv_header(line: bytes) -> bool:
    if line.lstrip().startswith(b"{"):
        return False
    cells = {cell.strip().strip('"').lower() for cell in line.decode("utf-8", "replace").split(",")}
    return len(cells) > 1 and bool(cells & {"question", "claim"})


def _lines(stream: BinaryIO) -> Iterator[Record]:
    number = 0
    for place, line in enumerate(stream, 1):
        if not line.strip():
            continue
        number += 1
        try:
            yield Record(place, number, json.loads(line.decode("utf-8-sig" if place == 1 else "utf-8")))
        except UnicodeDecodeError:
            yield Record(place, number, problem="not UTF-8 text; save the file as UTF-8")
        except (ValueError, RecursionError) as error:
            yield Record(place, number, problem=f"not JSON ({error}); write a task a line")


def _csv(stream: BinaryIO) -> Iterator[Record]:
    with io.TextIOWrapper(stream, "utf-8-sig", newline="") as text:
        rows = csv.reader(text)
        header: list[str] = []
        number, begin = 0, 1
        try:
            for row in rows:
                line, begin = begin, rows.line_num + 1
                if not any(cell.strip() for cell in row):
                    continue
                if not header:
                    header = [cell.strip() for cell in row]
                    continue
                number += 1
                yield _row(line, number, header, row)
        except UnicodeDecodeError:
            yield Record(begin, number + 1, problem="not UTF-8 text; save the file as UTF-8")
        except csv.Error as error:
            yield Record(begin, number + 1, problem=f"not CSV ({error}); quote cells that hold quotes or line breaks")


def _row(line: int, number: int, header: list[str], row: list[str]) -> Record:
    if len(row) != len(header):
        wanted = f"give {len(header)} as in the first line, in quotes where they hold commas"
        return Record(line, number, problem=f"{len(row)} columns; {wanted}")
    return Record(line, number, dict(zip(header, row, strict=True)))


class _Text:
    """The text of a stream as it is needed, and the line that has been reached in it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._decode = codecs.getincrementaldecoder("utf-8-sig")().decode
        self.text, self.at, self.line, self.ended = "", 0, 1, False

    def more(self) -> bool:
        """Read as much again as is waiting (so that a long record is not parsed over and over)."""
        if self.ended:
            return False
        chunk = self._stream.read(max(_CHUNK, len(self.text) - self.at))
        self.ended = not chunk
        self.text = self.text[self.at :] + self._decode(chunk, self.ended)
        self.at = 0
        return True

    def move(self, to: int) -> None:
        self.line += self.text.count("\n", self.at, to)
        self.at = to

    def skip(self) -> str:
        """Go to the next character that is not blank, and return it; empty at the end."""
        while True:
            to = self.at
            while to < len(self.text) and self.text[to] in _BLANK:
                to += 1
            self.move(to)
            if to < len(self.text):
                return self.text[to]
            if not self.more():
                return ""


def _array(stream: BinaryIO) -> Iterator[Record]:
    text, number = _Text(stream), 0
    try:
        text.skip()
        text.move(text.at + 1)
        while (sign := text.skip()) != "]":
            if number:
                if sign != ",":
                    yield Record(text.line, number + 1, problem=_broken(sign, number + 1))
                    return
                text.move(text.at + 1)
                text.skip()
            number += 1
            line = text.line
            value, end, problem = _element(text)
            if problem:
                yield Record(line, number, problem=problem)
                return
            yield Record(line, number, value)
            text.move(end)
        text.move(text.at + 1)
        if text.skip():
            yield Record(text.line, number + 1, problem="there is something after the array's end; take it out")
    except UnicodeDecodeError:
        yield Record(text.line, number + 1, problem="not UTF-8 text; save the file as UTF-8")


def _element(text: _Text) -> tuple[Any, int, str]:
    """The value at hand, where it ends, and what is wrong with it."""
    decoder = json.JSONDecoder()
    while True:
        try:
            value, end = decoder.raw_decode(text.text, text.at)
            if end < len(text.text) or text.ended:  # a number may go on
                return value, end, ""
        except RecursionError as error:
            return None, 0, f"not JSON ({error})"
        except json.JSONDecodeError as error:
            unfinished = error.pos > len(text.text) - _MARGIN or error.msg.startswith("Unterminated")
            if not unfinished:
                return None, 0, f"not JSON ({error.msg}); nothing after it can be read"
            if text.ended:
                return None, 0, "the file ends inside this record; fetch or build it again"
        except ValueError as error:
            return None, 0, f"not JSON ({error}); nothing after it can be read"
        text.more()


def _broken(sign: str, number: int) -> str:
    if not sign:
        return f"the array ends before record {number} without a closing bracket; fetch or build the file again"
    return f"not JSON (a comma is missing before record {number}); nothing after it can be read"
