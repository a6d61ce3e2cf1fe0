"""Judges of evidence: was the latest observation useful for answering the question? Four, and a control.

All stand behind `EvidenceJudge`. What the environment knows of an injected failure is not among what they are shown.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, Self, runtime_checkable

import numpy as np

from probecascade.episode import Answer, Moment, Question, Task
from probecascade.errors import UsageError
from probecascade.interfaces import Probe
from probecascade.policies.judged.verdicts import (
    LEAST_OVERLAP,
    Word,
    found_nothing,
    overlap,
    read_answer,
    read_thought,
)

ASKED_WORD = (
    "Think of the original question. Was the LAST observation useful for answering it? "
    "Answer with exactly one word: USEFUL or USELESS."
)
"""The side question, worded after arXiv 2610.06191."""

CHOICES = ("USEFUL", "USELESS")


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict on the latest observation; `score` is what it was cut from, the higher the more useless (or NaN)."""

    verdict: Word
    score: float = math.nan


Judging = Judgement | Generator[Question, Answer, Judgement]


class JudgedEpisode(Protocol):
    """One judge's view of one live episode."""

    def judge(self, moment: Moment) -> Judging:
        """The verdict on the latest observation; or a generator that yields questions and returns it."""


@runtime_checkable
class EvidenceJudge(Protocol):
    """Says of every observation whether it was useful; many episodes are live at once.

    `at` is the kind of checkpoint at which it speaks: `observation`, or `action` for what the agent does next.
    """

    name: str
    layers: Sequence[int]
    at: Literal["observation", "action"]

    def begin(self, task: Task) -> JudgedEpisode:
        """Start watching one episode."""


def current_question(task: Task, moment: Moment) -> str:
    """The question that the latest observation was to serve; empty for a task without any."""
    shown = moment.transcript[:-1]  # an observation that asks the next question belongs to the one before
    part = sum(step.observation_kind == "next_part" for step in shown)
    return task.parts[part].question if part < len(task.parts) else ""


class SideQuestionJudge:
    """The model's own opinion, asked on a scratch copy: one word in at most 8 tokens; see `verdicts.read_answer`."""

    at: Literal["observation", "action"] = "observation"
    layers: Sequence[int] = ()

    def __init__(self, name: str = "side", prompt: str = ASKED_WORD) -> None:
        self.name, self.prompt = name, prompt

    def begin(self, task: Task) -> Self:
        """The judge itself: it remembers nothing."""
        return self

    def judge(self, moment: Moment) -> Generator[Question, Answer, Judgement]:
        """Ask for the word."""
        answer = yield Question(self.prompt, as_turn=True)
        return Judgement(read_answer(answer))


class OddsJudge:
    """As `SideQuestionJudge`, but the log-odds of the two words are read off one forward.

    USELESS where log P(USELESS) - log P(USEFUL) >= `cut` (nats); 0 is the likelier word. See `best_cut`.
    """

    at: Literal["observation", "action"] = "observation"
    layers: Sequence[int] = ()

    def __init__(self, cut: float = 0.0, name: str = "odds", prompt: str = ASKED_WORD) -> None:
        self.cut, self.name, self.prompt = cut, name, prompt

    def begin(self, task: Task) -> Self:
        """The judge itself: it remembers nothing."""
        return self

    def judge(self, moment: Moment) -> Generator[Question, Answer, Judgement]:
        """Weigh the two words."""
        answer = yield Question(self.prompt, as_turn=True, choices=CHOICES)
        useful, useless = answer.logprobs
        return _cut(useless - useful, self.cut)


class ThoughtReader:
    """What the agent itself says in its next Thought, by keywords; see `verdicts.read_thought`."""

    at: Literal["observation", "action"] = "action"
    layers: Sequence[int] = ()

    def __init__(self, name: str = "thought") -> None:
        self.name = name

    def begin(self, task: Task) -> Self:
        """The judge itself: it remembers nothing."""
        return self

    def judge(self, moment: Moment) -> Judgement:
        """Read the thought of the turn under way."""
        return Judgement(read_thought(moment.thought))


class LexicalDetector:
    """Overlap of words: USELESS below `least` of the question's content words, or where the text says "no results"."""

    at: Literal["observation", "action"] = "observation"
    layers: Sequence[int] = ()

    def __init__(self, least: float = LEAST_OVERLAP, name: str = "lexical") -> None:
        self.least, self.name = least, name

    def begin(self, task: Task) -> JudgedEpisode:
        """Remember the question."""
        return _Lexical(self.least, task)


@dataclass(frozen=True, slots=True)
class _Lexical:
    least: float
    task: Task

    def judge(self, moment: Moment) -> Judgement:
        shared = overlap(current_question(self.task, moment), moment.observation)
        useless = shared < self.least or found_nothing(moment.observation)
        return Judgement("USELESS" if useless else "USEFUL", 1.0 if found_nothing(moment.observation) else 1 - shared)


class ProbeJudge:
    """A probe on the state at the observation's last token: USELESS where P(useless) >= `threshold`.

    `probe` is any `interfaces.Probe` on states (1, d_model) of one layer and signals; see `fit_evidence_probe`.
    """

    at: Literal["observation", "action"] = "observation"

    def __init__(self, probe: Probe, layer: int, threshold: float, name: str = "probe") -> None:
        self.probe, self.layer, self.threshold, self.name = probe, layer, threshold, name
        self.layers: Sequence[int] = (layer,)

    def begin(self, task: Task) -> Self:
        """The judge itself: it remembers nothing."""
        return self

    def judge(self, moment: Moment) -> Judgement:
        """Score the state."""
        signals = np.array([moment.checkpoint.signals], np.float32)
        return _cut(float(self.probe.score(moment.hidden[self.layer][None], signals)[0]), self.threshold)


class RandomJudge:
    """A control that looks at nothing: USELESS with probability `rate`, by task and round of the observation.

    The same for every condition and seed of a task. UsageError for a rate outside [0, 1].
    """

    at: Literal["observation", "action"] = "observation"
    layers: Sequence[int] = ()

    def __init__(self, rate: float, seed: int = 0, name: str = "random") -> None:
        if not 0 <= rate <= 1:
            raise UsageError(f"a random judge was given the rate {rate}: give a share of observations from 0 to 1.")
        self.rate, self.seed, self.name = rate, seed, name

    def begin(self, task: Task) -> JudgedEpisode:
        """Remember the task."""
        return _Random(self.rate, f"random-judge-v1|{self.seed}|{task.task_id}")


@dataclass(frozen=True, slots=True)
class _Random:
    rate: float
    name: str

    def judge(self, moment: Moment) -> Judgement:
        digest = hashlib.sha256(f"{self.name}|{moment.checkpoint.round}".encode("utf-8", "surrogatepass")).digest()
        drawn = int.from_bytes(digest[:7], "big") / 2**56
        return Judgement("USELESS" if drawn < self.rate else "USEFUL")


def _cut(score: float, cut: float) -> Judgement:
    """NaN is no verdict."""
    if math.isnan(score):
        return Judgement("UNPARSED", score)
    return Judgement("USELESS" if score >= cut else "USEFUL", score)
