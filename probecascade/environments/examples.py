"""Worked examples in data form. How they read in a prompt is the business of the agent's template."""

from __future__ import annotations

from dataclasses import dataclass

from probecascade.episode import Action


@dataclass(frozen=True, slots=True)
class ExampleTurn:
    """One round of a worked example. `observation` is empty after a finish."""

    thought: str
    action: Action
    observation: str = ""


@dataclass(frozen=True, slots=True)
class ExamplePart:
    """A question and the rounds that answer it; the last round finishes."""

    question: str
    turns: tuple[ExampleTurn, ...]


Example = tuple[ExamplePart, ...]
"""One worked task: its parts in order."""
