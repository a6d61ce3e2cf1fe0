"""Native tool calls in a model's text: JSON in `<tool_call>` (Hermes, Qwen), after `[TOOL_CALLS]` (Mistral), and bare
or after `<|python_tag|>` (Llama 3).

Pure text, as in `probecascade.agents.parser`, which hides thinking before it looks for calls here.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probecascade.episode import Action

_MARK = re.compile(
    r"(?P<tagged><tool_call>)|\[TOOL_CALLS\]|<\|python_tag\|>"
    r'|^[ \t]*(?=\{\s*"(?:name|type|function|parameters|arguments)"\s*:)',
    re.MULTILINE,
)
_BLANK = re.compile(r"\s*")
_NAME = re.compile(r'\{\s*"name"\s*:\s*"$')
_CLOSING = "</tool_call>"
_ECHOED_CHARACTERS = 30
_DECODER = json.JSONDecoder(strict=False)  # models write newlines into strings

_DESCRIPTIONS = {
    "search": "Read the entry of that title.",
    "lookup": "Read the next sentence with that keyword in the entry found last.",
    "finish": "Submit the answer and end the task.",
    "do": "Carry out that command.",
}
_GIVING_UP = "Give the task up."


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool with one argument, both by their names."""

    name: str
    argument: str

    @property
    def schema(self) -> dict[str, Any]:
        """The tool as chat templates are told of it."""
        text = {"type": "string", "description": f"The {self.argument}."}
        parameters = {"type": "object", "properties": {self.argument: text}, "required": [self.argument]}
        given_up = (self.name, self.argument) == ("finish", "reason")
        described = _GIVING_UP if given_up else _DESCRIPTIONS.get(self.name, f"Use {self.name}.")
        return {
            "type": "function",
            "function": {"name": self.name, "description": described, "parameters": parameters},
        }


def tools_of(usage: str) -> tuple[Tool, ...]:
    """The tools that a usage names: "Search[title] or Finish[answer]"."""
    return tuple(Tool(name.lower(), argument) for name, argument in re.findall(r"(\w+)\[(\w+)\]", usage))


@dataclass(frozen=True, slots=True)
class Call:
    """The first call of a text: `text[start:end]` with its marks, `body` without them.

    `complete` once its closing mark, or without one the end of its JSON, is there.
    """

    start: int
    end: int
    body: str
    complete: bool


def find_call(text: str) -> Call | None:
    """The first call in a text, None without any."""
    match = _MARK.search(text)
    if match is None:
        return None
    begin = _after_blanks(text, match.end())
    start = _after_blanks(text, match.start())
    if match["tagged"]:
        closing = text.find(_CLOSING, begin)
        if closing >= 0:
            return Call(start, closing + len(_CLOSING), text[begin:closing].strip(), True)
    else:
        try:
            _, end = _DECODER.raw_decode(text, begin)
            return Call(start, end, text[begin:end], True)
        except (ValueError, RecursionError):
            pass  # not all of it is there yet
    return Call(start, max(match.end(), len(text.rstrip())), text[begin:].strip(), False)


def _after_blanks(text: str, offset: int) -> int:
    match = _BLANK.match(text, offset)
    return match.end() if match else offset


def call_action(call: Call | None, tools: Sequence[str]) -> Action:
    """What a call asks for. Never raises: one that cannot be used is an invalid action with its problem."""
    forms = " or ".join(tools)
    if call is None:
        return Action("", "", False, f"A turn must end with a tool call; call {forms}.")

    def invalid(problem: str) -> Action:
        return Action("", call.body, False, problem)

    try:
        value = _DECODER.decode(call.body)
    except (ValueError, RecursionError):
        return invalid("The tool call is not valid JSON; write one object with a name and arguments.")
    if isinstance(value, list):
        if len(value) > 1:
            return invalid("A turn may hold only one tool call; make one and stop.")
        value = value[0] if value else None
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str):
        return invalid(f"The tool call has no name; call {forms}.")
    tool = name.strip().lower()
    if tool not in tools:
        return invalid(f"There is no tool {tool[:_ECHOED_CHARACTERS]!r}; call {forms}.")
    return _with_argument(tool, value, invalid)


def _with_argument(tool: str, value: Mapping[str, Any], invalid: Callable[[str], Action]) -> Action:
    """The action of a tool: the one argument that it is given, whatever its name."""
    given = value.get("arguments", value.get("parameters"))
    if isinstance(given, str):  # JSON inside JSON, as OpenAI's interface has it
        with contextlib.suppress(ValueError, RecursionError):
            given = _DECODER.decode(given)
    if not isinstance(given, dict):
        return invalid(f"The call of {tool} has no arguments; give it its one argument by name.")
    if len(given) != 1:
        return invalid(f"The tool {tool} takes one argument, and {len(given)} were given.")
    (argument,) = given.values()
    if not isinstance(argument, str | int | float):
        return invalid(f"The argument of {tool} must be text.")
    text = argument if isinstance(argument, str) else json.dumps(argument)
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").strip()
    return Action(tool, text) if text else invalid(f"The argument of {tool} is empty; give it a text.")


Choices = tuple[Callable[[str], bool], tuple[str, ...]]
"""Whether a tool is to be named after a text, and what may follow it then."""


def named_calls(written: Mapping[str, str], tools: Sequence[str]) -> tuple[Choices, ...]:
    """How a call of one of `tools` goes on after its mark, or after what introduces a name.

    `written` has the text of each tool's call up to its argument, as the model's chat template writes it.
    """
    texts = {tool: written[tool] for tool in tools if tool in written}
    named = [text[text.index(f'"{tool}"') + 1 :] for tool, text in texts.items()]
    ways: list[Choices] = [(_naming, tuple(named))]
    marks = {match[0] for text in texts.values() if (match := _MARK.match(text)) and match[0]}
    ways += [(_ending(mark), tuple(text.removeprefix(mark) for text in texts.values())) for mark in marks]
    return tuple(ways)


def _naming(text: str) -> bool:
    return _NAME.search(text) is not None


def _ending(mark: str) -> Callable[[str], bool]:
    return lambda text: text.endswith(mark)
