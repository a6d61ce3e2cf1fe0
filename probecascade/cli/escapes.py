"""Text from outside, such as a transcript, a task's id or an attribute, as it may reach a terminal."""

from __future__ import annotations

import re

import typer

_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Controls (C0, C1), marks that turn the direction of writing, ends of lines and halves of characters."""


def shown(text: str) -> str:
    """The text with everything that would steer a terminal as an escape, such as `\\x1b`; line ends and tabs stay."""
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def in_line(text: str) -> str:
    """`shown` for a place that is one line, such as a cell or a refusal: line ends and tabs are escaped too."""
    return shown(text).replace("\n", "\\n").replace("\t", "\\t")


def tell(text: str) -> None:
    """Print lines in which text from outside stands."""
    typer.echo(shown(text))
