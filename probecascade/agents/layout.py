"""A recorded run laid out as the ids that an observing model is fed, with the places of its checkpoints.

    prompt: head first QUESTION cue
    round:  TURN (observation OBSERVATION) (next_cue, where another round follows)

The words in small letters are the template's; those in capitals are the run's own text, fed verbatim.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from probecascade.agents.parser import parse_turn
from probecascade.agents.recorded.records import RecordedRun, RecordedStep
from probecascade.agents.templates import OPENING, Template
from probecascade.interfaces import LanguageModel

_LABELLED = re.compile(r"[\s>*`#-]*(?:thought|think|action|act)\s*\d*\s*\**:", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LaidRound:
    """One round as ids. `thought` is the entry of `turn` at which the thought ends, None where it has none.

    `observation` begins with the template's words and is empty where nothing was recorded, as is `cue` after the last
    round.
    """

    step: RecordedStep
    turn: list[int]
    thought: int | None
    observation: list[int]
    cue: list[int]

    @property
    def length(self) -> int:
        return len(self.turn) + len(self.observation) + len(self.cue)


@dataclass(frozen=True, slots=True)
class LaidRun:
    """A run as ids. The first `dropped` rounds are not fed, since they do not fit."""

    prompt: list[int]
    rounds: tuple[LaidRound, ...]
    dropped: int

    @property
    def length(self) -> int:
        """Ids that are fed."""
        return len(self.prompt) + sum(each.length for each in self.rounds[self.dropped :])


def opening_of(runs: Iterable[RecordedRun]) -> str:
    """What the template must put before the turns of these runs: nothing if any turn brings a label of its own."""
    labelled = any(_LABELLED.match(step.text) for run in runs for step in run.steps)
    return "" if labelled else OPENING


def lay_out(model: LanguageModel, template: Template, run: RecordedRun, limit: int) -> LaidRun:
    """The ids of a run, at most `limit` of them: the prompt and the latest whole rounds that fit behind it.

    The rounds between them are dropped; those that stay keep their numbers. A prompt that does not fit by itself
    leaves no round, and more ids than `limit`.
    """
    prompt = [
        *model.encode(template.head),
        *model.encode(template.first),
        *model.encode(run.question, plain=True),
        *model.encode(template.cue),
    ]
    last = len(run.steps) - 1
    rounds = tuple(_round(model, template, step, number < last) for number, step in enumerate(run.steps))
    dropped, room = len(rounds), limit - len(prompt)
    while dropped and rounds[dropped - 1].length <= room:
        dropped -= 1
        room -= rounds[dropped].length
    return LaidRun(prompt, rounds, dropped)


def _round(model: LanguageModel, template: Template, step: RecordedStep, followed: bool) -> LaidRound:
    turn = model.encode(step.text, plain=True) if step.text else []
    observation: list[int] = []
    if step.observation:
        observation = model.encode(template.observation) + model.encode(step.observation, plain=True)
    return LaidRound(
        step=step,
        turn=turn,
        thought=thought_place(model, turn, step.thought if step.action else ""),
        observation=observation,
        cue=model.encode(template.next_cue) if followed else [],
    )


def thought_place(model: LanguageModel, turn: Sequence[int], thought: str = "") -> int | None:
    """The entry of a turn's ids that ends its thought: before the action's label, or where the text `thought` ends.

    None where there is no label and no such text, or nothing before the label.
    """
    text = model.decode(turn)
    found = parse_turn(text, ())
    end = found.thought_end if found.label is not None else 0
    if found.label is None and thought.strip() and thought.strip() in text:
        end = text.index(thought.strip()) + len(thought.strip())
    return tokens_for(model, turn, end) - 1 if end else None


def tokens_for(model: LanguageModel, ids: Sequence[int], end: int) -> int:
    """The fewest first ids whose text covers `end` characters: one token may hold the end and surplus after it."""

    def covered(count: int) -> bool:
        return len(model.decode(ids[:count])) >= end

    low = count = len(ids)
    step = 1
    while low > 0 and covered(max(low - step, 0)):  # most often the end is but a token or two away
        count = low = max(low - step, 0)
        step *= 2
    low = max(low - step, 0)
    count = bisect.bisect_left(range(low, count), True, key=covered) + low
    while count < len(ids) and not covered(count):  # half a character may read as several
        count += 1
    return count
