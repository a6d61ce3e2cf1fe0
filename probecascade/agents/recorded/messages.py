"""Runs as chat messages with tool calls (OpenAI's format), as tau-bench and many others record them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from probecascade.agents.recorded.closing import without_reflections
from probecascade.agents.recorded.draft import Draft, Layout, marks, text_of
from probecascade.agents.recorded.kinds import observation_kind
from probecascade.agents.recorded.records import RecordedStep

_FIELDS = ("messages", "traj", "conversation", "trajectory")
_AGENT = ("assistant", "ai")
REPLY = "respond"
"""The action of a turn without a tool call, as tau-bench calls it: what is written goes to the user."""

_CLOSING = ("finish", "submit", "final_answer", "exit")  # tools that need not answer


def _field(record: Mapping[str, Any]) -> str:
    return next((name for name in _FIELDS if isinstance(record.get(name), list)), "")


def _is_message(item: object) -> bool:
    return isinstance(item, Mapping) and isinstance(item.get("role"), str)


def _difference(record: Mapping[str, Any]) -> tuple[int, str]:
    name = _field(record)
    items = record.get(name) or []
    unlike = next((i for i, each in enumerate(items, 1) if not _is_message(each)), 0)
    found = [each for each in items if _is_message(each)]
    return marks(
        (bool(name), f"none of the fields {', '.join(_FIELDS)} is a list"),
        (bool(items), f"{name!r} is a list that is empty"),
        (2 * len(found) > len(items), f"item {unlike} of {name!r} and most others have no 'role'"),
        (any(each["role"] in _AGENT for each in found), f"no item of {name!r} has the role 'assistant'"),
    )


def _read(record: Mapping[str, Any]) -> Draft:
    reading = _Conversation()
    messages = record[_field(record)]
    asked = next((i for i, each in enumerate(messages) if _is_message(each) and each["role"] == "user"), 0)
    for number, message in enumerate(messages, 1):
        if not _is_message(message):
            reading.problems.append(f"message {number} has no role: left out")
        elif number <= asked and message["role"] in _AGENT and not _calls(message):
            reading.problems.append(f"message {number} greets before the agent is asked anything: left out")
        else:
            reading.take(number, message)
    reading.close(at_end=True)
    # A `question` beside the messages may be the script of a simulated user, which the agent never saw.
    question = without_reflections("\n".join(reading.asked)) or text_of(record.get("question"))
    return Draft(question, reading.steps, reading.problems)


class _Conversation:
    """Messages taken one by one: what stands before the agent's first is the question, then rounds.

    A round is one message of the agent; what tools and users answer up to its next message is the observation.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.steps: list[RecordedStep] = []
        self.problems: list[str] = []
        self._turn: tuple[str, list[tuple[str, str]]] | None = None
        self._awaited: list[tuple[str, str]] = []  # (id, tool) of calls without a result yet
        self._answers: list[str] = []

    def take(self, number: int, message: Mapping[str, Any]) -> None:
        role, content = message.get("role"), _content(message)
        if role in _AGENT:
            self.close()
            calls = _calls(message)
            self._turn = content, [(name, arguments) for _, name, arguments in calls]
            self._awaited = [(identity, name) for identity, name, _ in calls]
            if not content.strip() and not calls:
                self.problems.append(f"message {number} of the agent is empty: left out")
                self._turn = None
        elif role in ("tool", "function"):
            self._match(number, message)
            self._answers.append(content)
        elif role not in ("system", "developer"):
            (self._answers if self._turn or self.steps else self.asked).append(content)

    def _match(self, number: int, message: Mapping[str, Any]) -> None:
        """Strike the call that a result answers: by its id, else by its tool's name, else the oldest."""
        given, name = message.get("tool_call_id"), message.get("name")
        for i, (identity, tool) in enumerate(self._awaited):
            if given == identity if given else (not name or name == tool):
                del self._awaited[i]
                return
        self.problems.append(f"message {number} is the result of a tool call that is not there: kept as an observation")

    def close(self, at_end: bool = False) -> None:
        """End the round under way, if there is one."""
        observation = "\n".join(answer for answer in self._answers if answer.strip())
        self._answers = []
        if self._turn is None:
            if observation and self.steps:
                self.problems.append("text of a user or tool follows no turn of the agent: left out")
            return
        for _, tool in self._awaited:
            if not (at_end and tool.lower() in _CLOSING):
                self.problems.append(f"the call of {tool!r} in round {len(self.steps) + 1} has no result: left empty")
        content, calls = self._turn
        self._turn = None
        written = [f"Action: {name}[{arguments}]" for name, arguments in calls]
        text = "\n".join(piece for piece in (content.strip(), *written) if piece)
        name, arguments = calls[0] if calls else (REPLY, content.strip())
        thought, kind = content.strip() if calls else "", observation_kind(observation)
        self.steps.append(RecordedStep(text, thought, name.lower(), arguments, observation, kind))


def _content(message: Mapping[str, Any]) -> str:
    """The text of a message; of a list of pieces, the texts among them. `text` is what some datasets call it."""
    content = message.get("content", message.get("text"))
    if isinstance(content, Sequence) and not isinstance(content, str):
        pieces = [piece.get("text") if isinstance(piece, Mapping) else piece for piece in content]
        return "\n".join(text_of(piece) for piece in pieces if piece)
    return text_of(content)


def _calls(message: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(id, tool, arguments) of every call, also of the older single `function_call`."""
    given = message.get("tool_calls")
    listed = list(given) if isinstance(given, list) else []
    if isinstance(message.get("function_call"), Mapping):
        listed.append({"function": message["function_call"]})
    calls = []
    for call in listed:
        if not isinstance(call, Mapping):
            continue
        inner = call.get("function")
        function = inner if isinstance(inner, Mapping) else call
        name = text_of(function.get("name")) or "unnamed"
        calls.append((text_of(call.get("id")), name, _arguments(function.get("arguments"))))
    return calls


def _arguments(value: object) -> str:
    """Arguments as JSON on one line, whether they come as an object or as its text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return text_of(value).strip()
    return text_of(value)


MESSAGES = Layout("messages", _difference, _read)
