"""Reading one turn of a ReAct agent: where it ends, what it thought and what it asked for.

Pure text: the turn is what the model generated after the cue "Thought:" and nothing else, so an action of an
earlier round can never be read again. All offsets are in characters of that text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from probecascade.agents.calls import call_action, find_call
from probecascade.episode import Action

FinishReason = Literal["action", "observation_cut", "open"]
Actions = Literal["react", "tool_call"]

# At the start of a line a label counts in any case, numbered or not, also inside a code fence or emphasis.
# Elsewhere in a line an action counts only when a tool and its bracket follow ("Next. Action: Search[Ada]").
_LEAD = r"^[ \t]*(?P<lead>(?:[>*`#-][ \t>*`#-]*)?)"
_LINE = _LEAD + r"(?i:(?P<line>Action|Observation))[ \t]{0,3}\d{0,4}[ \t]{0,3}\*{0,2}:"
_INLINE = r"(?<=\s)(?P<inline>Action)[ ]?\d{0,4}:(?=[ \t]{0,3}\w{1,30}[ \t]{0,3}\[)"
_LABEL = re.compile(f"{_LINE}|{_INLINE}", re.MULTILINE)
_INLINE_OBSERVATION = re.compile(r"(?<=\s)Observation[ ]?\d{0,4}:")
_BEFORE_BODY = re.compile(r"[\s*`]*")
_ECHOED_CHARACTERS = 30

THINK = "<think>"
_THINKING = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_THOUGHT_ENDS = "</think>"


@dataclass(frozen=True, slots=True)
class Form:
    """How turns are written.

    `actions`: in words ("Action: Search[Ada]") or as the model's native tool calls (`probecascade.agents.calls`).
    `thinking`: a turn begins inside a `<think>` block, since the prompt has opened one.
    """

    actions: Actions = "react"
    thinking: bool = False


REACT = Form()


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """One turn, read.

    `end`: the turn is `text[:end]`; what follows is surplus and must not be fed back. 0 if nothing is left.
    `label`: offset of the action label (its emphasis or fence included), None if there is none.
    `thought_end`: the thought is `text[:thought_end]`; its last character is not blank. 0 without a thought.
    `finish_reason`: `observation_cut` if the model went on to invent an observation, else `action` if its
    action was complete, else `open` (the caller knows why it stopped sampling).
    """

    end: int
    label: int | None
    thought_end: int
    thought: str
    action: Action
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class _Call:
    """An action as written: label offset, end of the text that belongs to it, tool, argument, raw body."""

    label: int
    end: int
    tool: str
    argument: str | None  # None without a bracket
    body: str
    complete: bool


def parse_turn(text: str, tools: Sequence[str], form: Form = REACT) -> ParsedTurn:
    """Read the text that was generated for one turn; `tools` are the lower-case names that may be used.

    Never raises. An action that cannot be used comes back with `valid=False`, an empty name, the problem in
    one sentence for the agent, and what was written as its argument. Reading `text[:end]` again gives the
    same action. A `<think>` block, closed or not, is part of the thought whatever it says.
    """
    spoken = without_thinking(text, form)
    if form.actions == "tool_call":
        return _parse_call(text, spoken, tools)
    calls, cut = _scan(spoken)
    first = calls[0] if calls else None
    end = calls[-1].end if calls else len(text[:cut].rstrip())
    reason: FinishReason = "open"
    if cut is not None:
        reason = "observation_cut"
    elif any(call.complete for call in calls):
        reason = "action"
    return _parsed(text, end, first.label if first else None, _action(calls, tools), reason)


def _parse_call(text: str, spoken: str, tools: Sequence[str]) -> ParsedTurn:
    call = find_call(spoken)
    action = call_action(call, tools)
    if call is None:
        return _parsed(text, len(text.rstrip()), None, action, "open")
    return _parsed(text, call.end, call.start, action, "action" if call.complete else "open")


def _parsed(text: str, end: int, label: int | None, action: Action, reason: FinishReason) -> ParsedTurn:
    thought_end = end if label is None else len(text[:label].rstrip())
    return ParsedTurn(end, label, thought_end, text[:thought_end].strip(), action, reason)


def turn_is_complete(text: str, form: Form = REACT) -> bool:
    """Whether sampling may stop: an action's bracket closed, a line ended after it, or an observation began; of a
    native call, that its closing mark or the end of its JSON is there.

    Cheap enough to be asked after every sampled token, and once true it stays true however the text goes on.
    """
    if form.actions == "tool_call":
        call = find_call(without_thinking(text, form))
        return call is not None and call.complete
    if ":" not in text:
        return False
    calls, cut = _scan(without_thinking(text, form))
    return cut is not None or any(call.complete for call in calls)


def opens_thinking(prompt: str) -> bool:
    """Whether a turn after this text begins inside a block of thinking."""
    return prompt.rstrip().endswith(THINK)


def without_thinking(text: str, form: Form = REACT) -> str:
    """The text with blanks for every character of its thinking, so that all offsets stay as they are."""
    if form.thinking:
        end = text.find(_THOUGHT_ENDS)
        blank = len(text) if end < 0 else end + len(_THOUGHT_ENDS)
        text = " " * blank + text[blank:]
    return _THINKING.sub(lambda block: " " * len(block[0]), text)


def _scan(text: str) -> tuple[list[_Call], int | None]:
    """At most two calls, and where an invented observation begins."""
    calls: list[_Call] = []
    position = 0
    while len(calls) < 2:
        match = _LABEL.search(text, position)
        if calls:
            invented = _INLINE_OBSERVATION.search(text, position, match.end() if match else len(text))
            if invented:
                return calls, invented.start()
        if match is None:
            break
        if (match["line"] or "").lower() == "observation":
            return calls, match.start("lead")
        call = _read_call(text, match)
        calls.append(call)
        position = call.end
    return calls, None


def _read_call(text: str, match: re.Match[str]) -> _Call:
    label = match.start("inline") if match["inline"] else match.start("lead")
    blank = _BEFORE_BODY.match(text, match.end())
    begin = blank.end() if blank else match.end()
    following = _LABEL.search(text, match.end())
    if following and following.start() <= begin:
        return _Call(label, match.end(), "", None, "", False)
    newline = text.find("\n", begin)
    stop = len(text) if newline < 0 else newline
    bracket = text.find("[", begin, stop)
    closing = _closing_bracket(text, bracket, stop) if bracket >= 0 else -1
    if closing < 0:
        invented = _INLINE_OBSERVATION.search(text, begin, stop)
        if invented:
            stop = invented.start()
            bracket = text.find("[", begin, stop)
    complete = closing >= 0 or (newline >= 0 and begin < newline)
    end = closing + 1 if closing >= 0 else max(match.end(), len(text[:stop].rstrip()))
    body = text[begin:end].strip()
    if bracket < 0:
        return _Call(label, end, "", None, body, complete)
    tool = text[begin:bracket].strip().strip("*`").lower()
    argument = text[bracket + 1 : closing if closing >= 0 else end].strip()
    return _Call(label, end, tool, argument, body, complete)


def _closing_bracket(text: str, bracket: int, stop: int) -> int:
    """Offset of the bracket that closes the one at `bracket`, -1 if none does before `stop`."""
    depth = 0
    for offset in range(bracket, stop):
        if text[offset] == "[":
            depth += 1
        elif text[offset] == "]":
            depth -= 1
            if depth == 0:
                return offset
    return -1


def _action(calls: list[_Call], tools: Sequence[str]) -> Action:
    forms = " or ".join(f"{tool.capitalize()}[...]" for tool in tools)
    if not calls:
        return Action("", "", False, f"A turn must end with an action; write Action: {forms}.")
    call = calls[0]
    if len(calls) > 1:
        return Action("", call.body, False, "A turn may hold only one action; write one and stop.")
    if call.argument is None:
        return Action("", call.body, False, f"The action names no tool with brackets; write {forms}.")
    if call.tool not in tools:
        asked = call.tool[:_ECHOED_CHARACTERS]
        return Action("", call.body, False, f"There is no tool {asked!r}; write {forms}.")
    if not call.argument:
        tool = call.tool.capitalize()
        return Action("", call.body, False, f"{tool}[] is empty; write something between the brackets.")
    return Action(call.tool, call.argument)
