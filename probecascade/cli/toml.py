"""Reads a TOML file into frozen dataclasses, strictly, and names the line of whatever it refuses.

The dataclass is the only description of a recipe: its fields are the sections, their fields the keys, their
annotations the kinds of values. Supported are int, float, Decimal (a number exactly as written), bool, str,
Literal, tuples, unions, None for a key that is left out, and `Annotated[..., Between(low, high)]`. A section
that raises ValueError in `__post_init__` is refused with that message.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import re
import tomllib
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from probecascade.errors import RecipeError

T = TypeVar("T")

_HEADER = re.compile(r"\s*\[\s*([^\[\]#]+?)\s*\]")
_KEY = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([\w-]+))\s*[.=]""")
_TRIPLE = re.compile(r'"""|\'\'\'')


@dataclass(frozen=True, slots=True)
class Between:
    """A range for the numbers of a field, ends included unless `above` leaves the lower one out."""

    low: float | None = None
    high: float | None = None
    above: bool = False

    def admits(self, value: float | Decimal) -> bool:
        """Whether the number lies in the range."""
        if self.low is not None and (value < self.low or (self.above and value == self.low)):
            return False
        return self.high is None or value <= self.high

    def __str__(self) -> str:
        low = None if self.low is None else f"{'above' if self.above else 'at least'} {self.low:g}"
        high = None if self.high is None else f"at most {self.high:g}"
        return " and ".join(part for part in (low, high) if part)


def read_toml(path: str | Path, kind: type[T]) -> T:
    """Read the file at `path` into the dataclass `kind`, whose fields are dataclasses, one per section.

    Raises:
        RecipeError: no such file, no TOML, an unknown or missing key, a value of the wrong kind; the message
            is one sentence with path and line.
    """
    text = _read(path)
    lines = _Lines(str(path), text)
    try:
        tables = tomllib.loads(text, parse_float=Decimal)
    except ValueError as error:  # also a whole number of more digits than Python reads
        raise RecipeError(lines.syntax(error)) from error
    hints = get_type_hints(kind)
    _refuse_unknown(tables, hints, None, lines)
    sections = {}
    for name, hint in hints.items():
        table = tables.get(name, {})
        if not isinstance(table, dict):
            raise RecipeError(f"{lines.at(None, name)}: {name} is a section: write [{name}] on a line of its own.")
        sections[name] = _section(hint, name, table, lines)
    return kind(**sections)


def plain(recipe: Any) -> dict[str, Any]:
    """A recipe as JSON-ready values: sections and keys of the file, defaults filled in, Decimals as text."""
    values: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(recipe), default=str))
    return values


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise RecipeError(f"{path}, line {line}: this is not UTF-8 text: save the recipe as UTF-8.") from error
    except OSError as error:
        raise RecipeError(
            f"the recipe {path} cannot be read ({error.strerror}): give the path of a TOML file."
        ) from error


def _section(kind: Any, section: str, table: Mapping[str, Any], lines: _Lines) -> Any:
    hints = get_type_hints(kind, include_extras=True)
    _refuse_unknown(table, hints, section, lines)
    values = {}
    for key, value in table.items():
        accepted, values[key] = _convert(value, hints[key])
        if not accepted:
            raise RecipeError(
                f"{lines.at(section, key)}: {key} in [{section}] is {_shown(value)}, "
                f"but {_describe(hints[key])} is expected."
            )
    for field in dataclasses.fields(kind):
        optional = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        if field.name not in table and not optional:
            raise RecipeError(
                f"{lines.at(None, section)}: the key {field.name!r} is missing in [{section}]: "
                f"add it ({_describe(hints[field.name])})."
            )
    try:
        return kind(**values)
    except ValueError as error:
        raise RecipeError(f"{lines.at(None, section)}: {error} in [{section}].") from error


def _refuse_unknown(table: Iterable[str], known: Iterable[str], section: str | None, lines: _Lines) -> None:
    for key in table:
        if key in known:
            continue
        close = difflib.get_close_matches(key, list(known), n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}."
        what = f"unknown key {key!r} in [{section}]" if section else f"unknown section or key {key!r}"
        raise RecipeError(f"{lines.at(section, key)}: {what}; {hint}")


def _convert(value: Any, hint: Any) -> tuple[bool, Any]:
    """Whether the TOML value is of the annotated kind, and the value as Python wants it."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        accepted, converted = _convert(value, arguments[0])
        return accepted and all(rule.admits(converted) for rule in arguments[1:]), converted
    if origin in (Union, types.UnionType):
        for choice in arguments:
            accepted, converted = _convert(value, choice)
            if accepted:
                return True, converted
        return False, None
    if origin is Literal:
        return any(value == choice and type(value) is type(choice) for choice in arguments), value
    if origin is tuple:
        return _convert_list(value, arguments)
    if isinstance(value, bool) or hint in (bool, str, type(None)):
        return hint is type(value), value
    if not isinstance(value, int | Decimal) or (hint is int and not isinstance(value, int)):
        return False, None
    try:
        return math.isfinite(value), hint(value)
    except OverflowError:
        return False, None


def _convert_list(value: Any, arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    if not isinstance(value, list):
        return False, None
    if arguments[-1] is Ellipsis:
        arguments = (arguments[0],) * len(value)
    if len(arguments) != len(value):
        return False, None
    pairs = [_convert(item, hint) for item, hint in zip(value, arguments, strict=True)]
    return all(accepted for accepted, _ in pairs), tuple(converted for _, converted in pairs)


_SINGULAR = {
    int: "a whole number",
    float: "a number",
    Decimal: "a number",
    bool: "true or false",
    str: "text",
}
_PLURAL = {int: "whole numbers", float: "numbers", Decimal: "numbers", str: "texts"}


def _describe(hint: Any, plural: bool = False) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return f"{_describe(arguments[0], plural)} {' and '.join(str(rule) for rule in arguments[1:])}"
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(choice, plural) for choice in arguments if choice is not type(None))
    if origin is Literal:
        choices = " or ".join(_shown(choice) for choice in arguments)
        return f"of {choices}" if plural else choices
    if origin is tuple:
        count = "a list" if arguments[-1] is Ellipsis else f"a list of {len(arguments)}"
        items = _describe(arguments[0], plural=True)
        return f"{count} {items}" if items.startswith("of ") or count != "a list" else f"{count} of {items}"
    return (_PLURAL if plural else _SINGULAR)[hint]


def _shown(value: Any) -> str:
    if isinstance(value, str):
        text = f"'{json.dumps(value, ensure_ascii=False)[1:-1]}'"
    elif isinstance(value, list):
        text = f"[{', '.join(_shown(item) for item in value)}]"
    else:
        text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


class _Lines:
    """Where sections and keys stand in the text; tomllib keeps no positions."""

    def __init__(self, path: str, text: str) -> None:
        self._path = path
        self._count = text.count("\n") + 1
        self._found: dict[tuple[str | None, str], int] = {}
        section: str | None = None
        inside = False  # a text of several lines, which may hold anything
        for number, line in enumerate(text.splitlines(), start=1):
            if not inside:
                if header := _HEADER.match(line):
                    section = header[1].strip("\"'")
                    self._found.setdefault((None, section), number)
                elif key := _KEY.match(line):
                    self._found.setdefault((section, key[1] or key[2] or key[3]), number)
            inside ^= len(_TRIPLE.findall(line)) % 2 == 1

    def at(self, section: str | None, key: str) -> str:
        """`path, line n` of a key, else of its section, else the path alone."""
        line = self._found.get((section, key)) or self._found.get((None, section or key))
        return f"{self._path}, line {line}" if line else self._path

    def syntax(self, error: ValueError) -> str:
        """What the parser found, with its line in front."""
        message, _, place = str(error).partition(" (at ")
        number = re.match(r"line (\d+)", place)
        if number is None and not place:
            return f"{self._path}: this is not TOML ({message}): correct it."
        line = int(number[1]) if number else self._count
        return f"{self._path}, line {line}: this is not TOML ({message}): correct it."
