"""Runs that other agents recorded, as plain frozen records: what a reader finds and what replay lays out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One round of a recorded run.

    `text` is the agent's turn as it wrote it; where a file holds only its fields, these laid out as ReAct text.
    `action` is the lower-case name of the tool, empty where the turn holds none; `observation` is what the tool
    answered, empty where nothing is recorded. `observation_kind` is one of those of `episode.Observation`.
    """

    text: str
    thought: str
    action: str
    argument: str
    observation: str
    observation_kind: str


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One recorded run. Runs of one `group` (the same question, the same game) must not straddle a split.

    `question` is what the agent was asked. `failed` is None where the file tells no outcome, `reward` None where it
    tells no number. No text of the outcome stands in `question` or `steps`.
    """

    run_id: str
    task_id: str
    group: str
    question: str
    steps: tuple[RecordedStep, ...]
    failed: bool | None
    reward: float | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)  # of the file: model, dataset, source, …


@dataclass(frozen=True, slots=True)
class Fault:
    """Something wrong in a file: its line (1-based, 0 for the file as a whole) and one sentence."""

    line: int
    problem: str


@dataclass(frozen=True, slots=True)
class RecordedFile:
    """A file of recorded runs: the name of its layout, its runs in the order of the file, and its faults."""

    layout: str
    runs: tuple[RecordedRun, ...]
    faults: tuple[Fault, ...] = ()
