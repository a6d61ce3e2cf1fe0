"""Runs that other agents recorded, read once by an observing model: nothing is sampled, every checkpoint is kept."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probecascade.agents.chat import Dialogue, Render
from probecascade.agents.layout import LaidRound, LaidRun, lay_out
from probecascade.agents.parser import ParsedTurn
from probecascade.agents.react import AgentSettings
from probecascade.agents.record import EpisodeRecord
from probecascade.agents.recorded.records import RecordedRun
from probecascade.agents.rewrites import rewrites
from probecascade.agents.templates import Template
from probecascade.episode import Action, Foresight, Observation, Outcome, Recording, Task
from probecascade.interfaces import LanguageModel
from probecascade.models.requests import Fed, Feed, Request

READ = "recorded"
"""Why a turn ended that was read and not sampled."""


def replay(
    model: LanguageModel, run: RecordedRun, template: Template, settings: AgentSettings, limit: int
) -> Generator[Request, Any, Recording]:
    """One recorded run as a conversation for the engine: a single Feed of its ids (`lay_out`), then the record.

    Checkpoints and signals are those of a live episode (`EpisodeRecord`), with these readings: log-probabilities and
    entropies are the observer's, of the ids that the other agent wrote; `seconds` are the reading's, shared out
    evenly over the ids; what dropped rounds cost stays in the counts, and the attribute `rounds_dropped` tells how
    many they were. `final` marks the last turn. A run without an outcome ends as `unlabelled`, one whose prompt
    exceeds `limit` ids as `error`.
    """
    laid = lay_out(model, template, run, limit)
    fits = len(laid.prompt) <= limit
    cut = {"rounds_dropped": laid.dropped} if laid.dropped and fits else {}
    task = Task(run.task_id, run.group, (), attributes={**run.attributes, **cut})
    record = EpisodeRecord(task, run.run_id, 0, settings, model, None)
    if not fits:
        record.end("error", f"error: the prompt takes {len(laid.prompt)} tokens, and {limit} may be read")
        return record.recording()
    plan = Plan(laid, set(settings.checkpoints))
    fed: Fed = yield Feed(plan.ids, keep=plan.keep, shared=len(model.encode(template.head)), score=plan.scored)
    tell(record, laid, plan, fed)
    outcome, reward = _ending(run)
    record.end(outcome, READ, reward)
    return record.recording()


def recorded_rewrites(
    opening: str, render: Render, instruction: str, template: Template, model: LanguageModel
) -> tuple[str, ...]:
    """What a model's chat template would do to the history of recorded runs, as `rewrites` tells it of played ones.

    `template` is `recorded_chat_template(opening, render, instruction)`. Raises UsageError as `rewrites` does.
    """
    return rewrites(Dialogue(instruction.rstrip(), "Question", opening).fitted(render), template, render, model)


def _ending(run: RecordedRun) -> tuple[Outcome, float]:
    if run.failed is None:
        return "unlabelled", run.reward or 0.0
    outcome: Outcome = "failure" if run.failed else "success"
    return outcome, float(not run.failed) if run.reward is None else run.reward


def tell(record: EpisodeRecord, laid: LaidRun, plan: Plan, fed: Fed, *, ends: bool = True) -> None:
    """Tell an episode's record what was read, as the live loop tells it what was played.

    `fed` is the reply to the plan's one Feed. `ends`: the last turn ends the episode.
    """
    _Reader(record, laid, plan, fed, ends).read()


class Plan:
    """The ids of a laid-out run in one piece, the positions whose states are needed, and those of all turns' ids."""

    def __init__(self, laid: LaidRun, kinds: set[str]) -> None:
        self.ids = list(laid.prompt)
        keep = {len(self.ids) - 1}
        scored: list[int] = []
        for each in laid.rounds[laid.dropped :]:
            start, end = len(self.ids), len(self.ids) + len(each.turn)
            scored += range(start, end)
            if "turn_mean" in kinds:
                keep |= set(range(start, end))
            elif each.turn:
                keep |= {end - 1, end - 1 if each.thought is None else start + each.thought}
            if each.observation:
                keep.add(end + len(each.observation) - 1)
            self.ids += each.turn + each.observation + each.cue
        self.keep = tuple(sorted(keep))
        self.scored = tuple(scored)


class _Reader:
    """What was told already, and what is still to be told."""

    def __init__(self, record: EpisodeRecord, laid: LaidRun, plan: Plan, fed: Fed, ends: bool) -> None:
        self.record, self.laid, self.ends = record, laid, ends
        self.states: Mapping[int, NDArray[np.float32]] = dict(zip(plan.keep, fed.states, strict=True))
        self.probabilities = dict(zip(plan.scored, zip(fed.logprobs, fed.entropies, strict=True), strict=True))
        self.pace = fed.seconds / len(plan.ids)
        self.at = 0  # ids that were told

    def read(self) -> None:
        self.record.prompt(self.laid.prompt, self._fed(len(self.laid.prompt)))
        self.record.mark("prompt", 0, self.states[self.at - 1])
        for number, each in enumerate(self.laid.rounds):
            if number == self.laid.dropped and number:
                self.record.leave_unread()
            self._round(each, read=number >= self.laid.dropped, last=number == len(self.laid.rounds) - 1)
        if self.laid.dropped == len(self.laid.rounds):
            self.record.leave_unread()

    def _round(self, each: LaidRound, *, read: bool, last: bool) -> None:
        record, step = self.record, each.step
        record.begin_turn()
        start = self.at
        fed = self._fed(len(each.turn)) if read else Fed(np.zeros(0, np.float32), self.at * self.pace)
        places = range(len(each.turn)) if read else ()
        here = {place: self.states[start + place] for place in places if start + place in self.states}
        record.read(each.turn, here, fed, READ)
        if read and each.thought is not None:
            record.mark_thought(each.thought, step.thought)
        action = Action(step.action, step.argument, bool(step.action))
        parsed = ParsedTurn(len(step.text), None, 0, step.thought, action, "open")
        record.close_turn(parsed, Foresight(final=last and self.ends))
        if read:
            for _ in record.turn_marks():
                pass  # each is kept as it is made
        record.observe(parsed, Observation(step.observation, step.observation_kind))
        if each.observation:
            record.feed_observation(each.observation, self._fed(len(each.observation)) if read else fed)
            if read:
                record.mark("observation", record.round, self.states[self.at - 1])
        if each.cue:
            record.feed_cue(each.cue, self._fed(len(each.cue)) if read else fed)

    def _fed(self, count: int) -> Fed:
        """The reply as if the next `count` ids had been fed by themselves; states are looked up by position."""
        told = [self.probabilities[p] for p in range(self.at, self.at + count) if p in self.probabilities]
        self.at += count
        scored = np.array(told, np.float64).reshape(-1, 2)
        return Fed(np.zeros(0, np.float32), self.at * self.pace, scored[:, 0], scored[:, 1])
