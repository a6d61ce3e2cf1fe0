"""The records of a file, each with its line: JSON Lines, a JSON array, one JSON object, or plain text; gzip or not.

Whatever part of a damaged file can be read is read, and what cannot becomes a fault.
"""

from __future__ import annotations

import codecs
import io
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from gzip import GzipFile
from pathlib import Path
from typing import Any

from probecascade.agents.recorded.records import Fault
from probecascade.errors import DataError, UsageError

_CHUNK = 1 << 20
_LOOKED_AT = 20  # lines that may be damaged before a file is not taken for JSON Lines


@dataclass(frozen=True, slots=True)
class Source:
    """What a file holds: its records as JSON values with their lines, or its text where it is no JSON."""

    records: tuple[tuple[int, Any], ...]
    text: str | None = None
    faults: list[Fault] = field(default_factory=list)


def read_source(path: Path) -> Source:
    """Read a file of recorded runs as JSON values or text.

    Raises UsageError for a file that cannot be opened, DataError for one that holds nothing, is UTF-16 text, or
    whose gzip data cannot be read from the first byte.
    """
    faults: list[Fault] = []
    packed = _unpacked(path, faults)
    if packed[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        raise DataError(f"{path.name} is UTF-16 text; save it as UTF-8.")
    content = _decoded(packed, faults)
    if not content.strip():
        raise DataError(f"{path.name} holds no record; give a file of recorded runs, such as one JSON object a line.")
    cut = bool(faults) and "cut off" in faults[-1].problem
    start = content.lstrip()[:1]
    if start == "[":
        return Source(_array(content, faults), None, faults)
    lines = content.split("\n")
    if cut and start == "{" and len(lines) > 1:
        lines = lines[:-1]
    if start == "{" and not any(_is_json(line) for line in lines[:_LOOKED_AT] if line.strip()):
        whole = _whole(content)
        if whole is not None:
            return Source(((1, whole),), None, faults)
    elif start != "{" and not any(_is_json(line) for line in lines[:_LOOKED_AT]):
        return Source((), content, faults)
    return Source(tuple(_lines(lines, faults)), None, faults)


def _unpacked(path: Path, faults: list[Fault]) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"the file of recorded runs {str(path)!r} cannot be read ({error.strerror}); give a .jsonl, .json or "
            ".txt file, gzipped or not."
        ) from error
    if content[:2] != b"\x1f\x8b":
        return content
    parts: list[bytes] = []
    try:
        with GzipFile(fileobj=io.BytesIO(content)) as packed:
            while part := packed.read1(_CHUNK):
                parts.append(part)
    except (EOFError, OSError, zlib.error) as error:
        if not parts:
            raise DataError(f"{path.name} is no whole gzip file; fetch it again.") from error
        line = sum(part.count(b"\n") for part in parts) + 1
        faults.append(Fault(line, "the gzip data are cut off or damaged here, later records are lost; fetch it again"))
    return b"".join(parts)


def _decoded(content: bytes, faults: list[Fault]) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        faults.insert(0, Fault(line, "not UTF-8 text from here on: what could not be read is marked with �"))
        return content.decode("utf-8-sig", errors="replace")


def _lines(lines: list[str], faults: list[Fault]) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except (ValueError, RecursionError) as error:
            faults.append(Fault(number, f"not JSON ({_reason(error)}): left out"))


def _array(content: str, faults: list[Fault]) -> tuple[tuple[int, Any], ...]:
    """The items of a JSON array, each with the line it begins on, as far as they can be read."""
    decoder = json.JSONDecoder()
    items: list[tuple[int, Any]] = []
    position, line = content.index("[") + 1, 1
    seen = 0
    while True:
        while position < len(content) and content[position] in " \t\r\n,":
            position += 1
        line += content.count("\n", seen, position)
        seen = position
        if content[position : position + 1] == "]":
            if content[position + 1 :].strip():
                faults.append(Fault(line, "something follows the end of the JSON array: left out"))
            return tuple(items)
        try:
            item, position = decoder.raw_decode(content, position)
        except (ValueError, RecursionError) as error:
            faults.append(Fault(line, f"the JSON array breaks off here ({_reason(error)}): the rest is left out"))
            return tuple(items)
        items.append((line, item))


def _whole(content: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _is_json(line: str) -> bool:
    return line.strip()[:1] == "{" and _whole(line) is not None


def _reason(error: Exception) -> str:
    return error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply or a number too long"
