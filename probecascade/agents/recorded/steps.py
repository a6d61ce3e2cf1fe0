"""Two layouts with a list of `steps`: rounds as fields, and AgentStop's generated texts with their numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from probecascade.agents.recorded.draft import Draft, Layout, is_finite, kind_name, made_step, marks, text_of
from probecascade.agents.recorded.kinds import observation_kind
from probecascade.agents.recorded.records import RecordedStep

_NUMBERS = (
    "prompt_tokens",
    "completion_tokens",
    "duration_sec",
    "energy_mWh",
    "logprob_mean",
    "logprob_min",
    "logprob_p10",
    "low_prob_tokens",
)
_CODE = re.compile(r"<code>(.*?)(?:</code>|\Z)", re.DOTALL)
_THOUGHT = re.compile(r"(?:.*?</think>)?\s*(?:Thought:)?(.*?)(?:<code>|\Z)", re.DOTALL)
_BRACKETED = re.compile(r"(\w[\w ]*)\[(.*)\]\s*\Z", re.DOTALL)
_CALL = re.compile(r"\b(final_answer|web_search|visit_webpage)\(")


def _first_step(record: Mapping[str, Any]) -> Mapping[str, Any]:
    steps = record.get("steps")
    first = next(iter(steps), None) if isinstance(steps, list) else None
    return first if isinstance(first, Mapping) else {}


def _fields_difference(record: Mapping[str, Any]) -> tuple[int, str]:
    steps, first = record.get("steps"), _first_step(record)
    return marks(
        (isinstance(steps, list), f"'steps' is {kind_name(steps)}, not a list"),
        (not steps or bool(first), "'steps' holds no objects"),
        (not steps or "action" in first, "a step has no 'action'"),
    )


def _fields_read(record: Mapping[str, Any]) -> Draft:
    question, opening = text_of(record.get("question")), text_of(record.get("initial_observation"))
    if opening:
        question = opening if question.strip() in opening else f"{opening}\n{question}"
    draft = Draft(question, [])
    for number, step in enumerate(record["steps"], 1):
        if not isinstance(step, Mapping):
            draft.problems.append(f"step {number} is {kind_name(step)}, not an object: left out")
            continue
        read = _round(step)
        if read.text.strip() or read.observation.strip():
            draft.steps.append(read)
        else:
            draft.problems.append(f"step {number} is empty: left out")
    return draft


def _round(step: Mapping[str, Any]) -> RecordedStep:
    thought, action = text_of(step.get("thought")), text_of(step.get("action")).strip()
    observation, kind = text_of(step.get("observation")), step.get("observation_kind")
    text = text_of(step.get("text"))
    bracketed = _BRACKETED.match(action)
    if "argument" in step:
        name, argument = action, text_of(step["argument"])
    elif bracketed:
        name, argument = bracketed[1], bracketed[2]
    else:  # a command of a text game: its first word is the tool
        name, _, argument = action.partition(" ")
        laid_out = f"Action: {action}" if action else ""
        text = text or "\n".join(piece for piece in (thought.strip(), laid_out) if piece)
    if not text:
        return made_step(thought, name, argument, observation, kind)
    return RecordedStep(text, thought.strip(), name.lower(), argument, observation, observation_kind(observation, kind))


def _numbers_difference(record: Mapping[str, Any]) -> tuple[int, str]:
    steps, first = record.get("steps"), _first_step(record)
    return marks(
        (isinstance(steps, list), f"'steps' is {kind_name(steps)}, not a list"),
        (bool(first), "'steps' holds no objects"),
        ("text" in first, "a step has no 'text'"),
        ("completion_tokens" in first, "a step has no 'completion_tokens'"),
    )


def _numbers_read(record: Mapping[str, Any]) -> Draft:
    draft, numbers = Draft(text_of(record.get("question")), []), []
    for number, step in enumerate(record["steps"], 1):
        text = text_of(step.get("text")) if isinstance(step, Mapping) else ""
        if not text.strip():
            draft.problems.append(f"step {number} holds no text: left out")
            continue
        numbers.append({key: step[key] for key in _NUMBERS if is_finite(step.get(key))})
        draft.steps.append(_generated(text))
    return Draft(draft.question, draft.steps, draft.problems, attributes={"step_numbers": numbers})


def _generated(text: str) -> RecordedStep:
    """A turn of a code-writing agent: the tool is the one its code calls last; what it answered is not recorded."""
    code = _CODE.search(text)
    thought = _THOUGHT.match(text)
    calls = _CALL.findall(code[1]) if code else []
    action = calls[-1] if calls else ("python" if code else "")
    argument = code[1].strip() if code else ""
    return RecordedStep(text.rstrip(), thought[1].strip() if thought else "", action, argument, "", "content")


ROUNDS = Layout("steps", _fields_difference, _fields_read)
AGENTSTOP = Layout("agentstop", _numbers_difference, _numbers_read)
