"""What a layout hands on of one record, and the small things that all layouts share."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from probecascade.agents.recorded.kinds import observation_kind
from probecascade.agents.recorded.records import RecordedStep


@dataclass(frozen=True, slots=True)
class Draft:
    """One run as its layout reads it, before what tells its outcome is taken out.

    `told` is text that may tell the outcome where the record has no field for it; `problems` are sentences about
    what is wrong with the record; `attributes` are those that only this layout knows.
    """

    question: str
    steps: list[RecordedStep]
    problems: list[str] = field(default_factory=list)
    told: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Layout:
    """A way to write down a run.

    `difference(record)` is how many of the layout's marks the record has and, in words, the first that it lacks
    (empty: it is of this layout). `read(record)` is called only on such records and never raises.
    """

    name: str
    difference: Callable[[Mapping[str, Any]], tuple[int, str]]
    read: Callable[[Mapping[str, Any]], Draft]


def text_of(value: object) -> str:
    """A JSON value as text: itself, empty for null, else JSON; half surrogate pairs become the replacement sign."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def is_finite(value: object) -> TypeGuard[float]:
    """Whether a JSON value is a number, no truth value, that a float holds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -sys.float_info.max <= value <= sys.float_info.max


def made_step(thought: str, action: str, argument: str, observation: str, kind: object = None) -> RecordedStep:
    """A round from its fields, laid out as the agent loop's own turns are: thought, line break, Action: Tool[argument].

    The cue "Thought:" is not part of a turn.
    """
    name = action.strip()
    written = f"{name[:1].upper()}{name[1:]}[{argument}]" if name else argument.strip()
    call = f"Action: {written}" if written else ""
    text = "\n".join(piece for piece in (thought.strip(), call) if piece)
    return RecordedStep(text, thought.strip(), name.lower(), argument, observation, observation_kind(observation, kind))


def marks(*checks: tuple[bool, str]) -> tuple[int, str]:
    """How many checks hold before the first that does not, and its words (empty where all hold)."""
    for passed, (holds, words) in enumerate(checks):
        if not holds:
            return passed, words
    return len(checks), ""


def kind_name(value: object) -> str:
    """What a JSON value is, in words."""
    if value is None:
        return "missing or null"
    for types, words in ((bool, "a truth value"), (str, "a text"), (list, "a list"), (dict, "an object")):
        if isinstance(value, types):
            return words if value else f"{words} that is empty"
    return "a number"
