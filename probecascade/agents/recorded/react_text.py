"""Runs written as ReAct text: a field of a record, or a plain text file of one run after the other.

Question: Where was Ada born?
Thought 1: I need to search Ada.
Action 1: Search[Ada]
Observation 1: Ada is a town.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from probecascade.agents.parser import parse_turn
from probecascade.agents.recorded.closing import without_reflections
from probecascade.agents.recorded.draft import Draft, Layout, marks, text_of
from probecascade.agents.recorded.kinds import observation_kind
from probecascade.agents.recorded.records import Fault, RecordedStep

_FIELDS = ("trajectory", "text", "transcript", "traj", "scratchpad", "prompt")
_QUESTION = re.compile(r"^[ \t]*(?:Question|Claim):", re.MULTILINE)
_BODY = re.compile(r"^[ \t]*(?:ActionPath|Thought|Action)(?: ?\d+)?:", re.MULTILINE)
_NUMBERED = re.compile(r"^[ \t]*Thought ?\d+:", re.MULTILINE)
_LABEL = re.compile(r"^[ \t]*(?P<name>ActionPath|Thought|Action|Observation)(?: ?\d+)?:[ \t]?", re.MULTILINE)
_NUMBERED_LABEL = re.compile(r"^[ \t]*(?P<name>ActionPath|Thought|Action|Observation) ?\d+:[ \t]?", re.MULTILINE)
_QUOTED = "(END PREVIOUS TRIAL)"
"""Ends the rounds of an earlier trial that Reflexion puts before those of the next."""

_TAIL = re.compile(r"^(?:Correct answer: |-+ ?BEGIN |#{10})", re.MULTILINE)
_CALL = re.compile(r"(?:[^:]*):\s*(?P<tool>[^\[\n]{0,60}?)\s*\[(?P<argument>.*?)\]?\s*\Z", re.DOTALL)
_TRIAL = re.compile(r"^BEGIN TRIAL (\d+)", re.MULTILINE)
_SECTION = re.compile(r"^-+ ?BEGIN (CORRECT|INCORRECT|HALTED) AGENTS", re.MULTILINE)


def _field(record: Mapping[str, Any]) -> str:
    return next((name for name in _FIELDS if isinstance(record.get(name), str)), "")


def _difference(record: Mapping[str, Any]) -> tuple[int, str]:
    name = _field(record)
    text = str(record.get(name, ""))
    return marks(
        (bool(name), f"none of the fields {', '.join(_FIELDS)} is a text"),
        (bool(_BODY.search(text)), f"the text in {name!r} has no line that begins with 'Thought:' or 'Action:'"),
    )


def _read(record: Mapping[str, Any]) -> Draft:
    text, asked = text_of(record[_field(record)]), text_of(record.get("question")).strip()
    starts = [match.start() for match in _QUESTION.finditer(text)]
    # Worked examples come before the run's own question, questions that the model invented after it.
    own = [start for start in starts if asked and text[start:].split(":", 1)[1].lstrip().startswith(asked)]
    begin = (own or starts or [0])[-1]
    after = next((start for start in starts if start > begin), None)
    draft = read_text(text[begin:after], asked)
    if after is not None:
        draft.problems.append("another question follows the run's own: left out")
    return draft


def read_text(text: str, asked: str = "") -> Draft:
    """One run from its text: the question up to the first label, then rounds. `asked` is the question if known."""
    label = _NUMBERED_LABEL if _NUMBERED.search(text) else _LABEL
    first = label.search(text)
    head, body = (text[: first.start()], text[first.start() :]) if first else (text, "")
    question = asked or without_reflections(_QUESTION.sub("", head, count=1)).strip()
    body = body.rpartition(_QUOTED)[2]
    draft = Draft(question, list(_rounds(body, label)), told=body)
    if not draft.steps:
        draft.problems.append("the text holds no round of Thought, Action and Observation")
    return draft


def _rounds(body: str, label: re.Pattern[str]) -> Iterator[RecordedStep]:
    """Rounds: each a turn, which begins with its first label, and the observation that follows it."""
    found = list(label.finditer(body))
    ends = [match.start() for match in found[1:]] + [len(body)]
    turn, observation, seen = "", "", set[str]()
    for match, end in zip(found, ends, strict=True):
        name = match["name"]
        if name == "Observation":
            observation += ("\n" if observation else "") + body[match.end() : end].strip()
            seen.add(name)
            continue
        if "Observation" in seen or (name in seen and name != "ActionPath"):
            yield _round(turn, observation)
            turn, observation, seen = "", "", set()
        seen.add(name)
        turn += body[match.end() if name == "Thought" and not turn else match.start() : end]
    if turn.strip() or observation:
        yield _round(turn, observation)


def _round(turn: str, observation: str) -> RecordedStep:
    read = parse_turn(turn, ())
    text = turn[: read.end].strip()
    if read.label is None:
        return RecordedStep(text, text, "", "", observation, observation_kind(observation))
    written = turn[read.label : read.end]
    call = _CALL.match(written)
    tool = call["tool"].strip(" *`\n").lower() if call else ""
    argument = call["argument"].strip() if call else written.split(":", 1)[1].strip()
    return RecordedStep(text, read.thought, tool, argument, observation, observation_kind(observation))


def split_text(text: str, faults: list[Fault]) -> list[tuple[int, dict[str, Any]]]:
    """The runs of a plain text file, each with its line, as records that this layout reads.

    A run goes from its question to the next; a question without any round of its own is none. In the log of Reflexion
    trials the headings tell trial and outcome, and what was solved once is written again in every later trial: such a
    copy is left out, as a fault.
    """
    starts = [match.start() for match in _QUESTION.finditer(text)]
    headings = sorted([*_TRIAL.finditer(text), *_SECTION.finditer(text)], key=lambda match: match.start(), reverse=True)
    records: list[tuple[int, dict[str, Any]]] = []
    first_seen: dict[str, int] = {}
    heads: dict[str, Any] = {}
    line, counted = 1, 0
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        line, counted = line + text.count("\n", counted, start), start
        while headings and headings[-1].start() < start:
            told = headings.pop()[1]
            heads |= {"trial": int(told)} if told.isdigit() else {"success": told == "CORRECT"}
        run = _TAIL.split(text[start:end], maxsplit=1)[0].strip()
        if not _BODY.search(run.rpartition(_QUOTED)[2]):
            continue
        if run in first_seen:
            faults.append(Fault(line, f"the same run as on line {first_seen[run]}: left out"))
            continue
        first_seen[run] = line
        records.append((line, {"text": text[start:end], **heads}))
    return records


def text_difference(text: str) -> str:
    """Why a plain text is no file of runs; empty if it is."""
    if not _QUESTION.search(text):
        return "no line begins with 'Question:'"
    return "" if _BODY.search(text) else "no line begins with 'Thought:' or 'Action:'"


REACT = Layout("react", _difference, _read)
