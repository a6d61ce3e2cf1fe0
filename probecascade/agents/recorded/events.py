"""Coding agents: SWE-agent's `trajectory` of turns, and the events of OpenHands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from probecascade.agents.recorded.draft import Draft, Layout, kind_name, made_step, marks, text_of
from probecascade.agents.recorded.kinds import observation_kind
from probecascade.agents.recorded.messages import REPLY
from probecascade.agents.recorded.records import RecordedStep

_EVENTS = ("history", "events", "trajectory")
_SILENT = (
    "system",
    "recall",
    "change_agent_state",
    "agent_state_changed",
    "null",
    "condensation",
    "condensation_request",
)
_FRAMEWORK = ("id", "timestamp", "thought", "hidden", "confirmation_state", "security_risk", "blocking", "is_input")


def _turns_difference(record: Mapping[str, Any]) -> tuple[int, str]:
    turns = record.get("trajectory")
    first = turns[0] if isinstance(turns, list) and turns else {}
    inside = first if isinstance(first, Mapping) else {}
    return marks(
        (isinstance(turns, list), f"'trajectory' is {kind_name(turns)}, not a list"),
        (bool(inside), "'trajectory' holds no objects"),
        (isinstance(inside.get("action"), str), "a turn of 'trajectory' has no 'action' that is a text"),
        (isinstance(inside.get("observation"), str), "a turn of 'trajectory' has no 'observation' that is a text"),
        ("thought" in inside or "response" in inside, "a turn of 'trajectory' has neither 'thought' nor 'response'"),
    )


def _turns_read(record: Mapping[str, Any]) -> Draft:
    draft = Draft(_problem(record), [])
    for number, turn in enumerate(record["trajectory"], 1):
        if not isinstance(turn, Mapping):
            draft.problems.append(f"turn {number} is {kind_name(turn)}, not an object: left out")
            continue
        thought, command = text_of(turn.get("thought")).strip(), text_of(turn.get("action")).strip()
        response, observation = text_of(turn.get("response")).strip(), text_of(turn.get("observation"))
        if not (thought or command or response or observation.strip()):
            draft.problems.append(f"turn {number} is empty: left out")
            continue
        name, _, argument = command.partition(" ")
        laid_out = "\n".join(piece for piece in (thought, f"Action: {command}" if command else "") if piece)
        kind = observation_kind(observation)
        draft.steps.append(
            RecordedStep(response or laid_out, thought, name.strip().lower(), argument.strip(), observation, kind)
        )
    return draft


def _problem(record: Mapping[str, Any]) -> str:
    """What a coding agent was asked: its problem statement, else the first word of the user that is no example."""
    for key in ("problem_statement", "question", "instruction", "task"):
        if isinstance(record.get(key), str) and record[key].strip():
            return text_of(record[key])
    history = record.get("history")
    for message in history if isinstance(history, list) else []:
        if isinstance(message, Mapping) and message.get("role") == "user" and not message.get("is_demo"):
            return text_of(message.get("content"))
    return ""


def _events_of(record: Mapping[str, Any]) -> list[Any]:
    listed: list[Any] = next((record[key] for key in _EVENTS if isinstance(record.get(key), list)), [])
    # Older files pair every action with its observation.
    return [event for item in listed for event in (item if isinstance(item, list) else [item])]


def _is_event(event: object) -> bool:
    return isinstance(event, Mapping) and isinstance(event.get("action"), str) != isinstance(
        event.get("observation"), str
    )


def _is_turn(event: Mapping[str, Any]) -> bool:
    return event.get("action") not in (None, *_SILENT) and event.get("source") != "user"


def _events_difference(record: Mapping[str, Any]) -> tuple[int, str]:
    events = _events_of(record)
    found = [event for event in events if _is_event(event)]
    return marks(
        (bool(events), f"none of the fields {', '.join(_EVENTS)} is a list with something in it"),
        (2 * len(found) > len(events), f"most items of {', '.join(_EVENTS)} are neither an action nor an observation"),
        (any(_is_turn(event) for event in found), "no event is an action of the agent"),
    )


def _events_read(record: Mapping[str, Any]) -> Draft:
    events, problems = [], []
    for number, event in enumerate(_events_of(record), 1):
        if _is_event(event):
            events.append(event)
        else:
            problems.append(f"event {number} is neither an action nor an observation: left out")
    asked = next((_said(event) for event in events if event.get("source") == "user" and "action" in event), "")
    steps = list(_event_rounds(events, problems))
    return Draft(_problem({"problem_statement": asked} | {**record, "history": None}), steps, problems)


def _event_rounds(events: list[Any], problems: list[str]) -> Iterator[RecordedStep]:
    turn: Mapping[str, Any] | None = None
    answers: list[str] = []
    kinds: list[str] = []
    for event in events:
        if _is_turn(event):
            if turn is not None:
                yield _event_round(turn, answers, kinds)
            turn, answers, kinds = event, [], []
        elif event.get("action") in _SILENT or event.get("observation") in _SILENT:
            continue
        elif turn is not None:
            answers.append(_said(event))
            kinds.append("tool_error" if event.get("observation") == "error" else "")
        elif "observation" in event:
            problems.append(f"an observation ({event['observation']}) comes before any action: left out")
    if turn is not None:
        yield _event_round(turn, answers, kinds)


def _event_round(turn: Mapping[str, Any], answers: list[str], kinds: list[str]) -> RecordedStep:
    given = turn.get("args")
    args = given if isinstance(given, Mapping) else {}
    action, thought = str(turn["action"]), text_of(args.get("thought"))
    observation = "\n".join(answer for answer in answers if answer.strip())
    kind = next((each for each in kinds if each), None)
    if action == "message":
        text = _said(turn).strip()
        return RecordedStep(text, "", REPLY, text, observation, observation_kind(observation, kind))
    told = {key: value for key, value in args.items() if key not in _FRAMEWORK and value not in (None, "", [], {})}
    argument = text_of(next(iter(told.values()))) if len(told) == 1 else (text_of(told) if told else "")
    if "command" in told and action == "run":
        argument = text_of(told["command"])
    return made_step(thought, action, argument, observation, kind)


def _said(event: Mapping[str, Any]) -> str:
    given = event.get("args")
    args = given if isinstance(given, Mapping) else {}
    return text_of(args.get("content") or event.get("content") or event.get("message"))


SWE_AGENT = Layout("swe-agent", _turns_difference, _turns_read)
OPENHANDS = Layout("openhands", _events_difference, _events_read)
