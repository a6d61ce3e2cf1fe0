"""The seams of the house, on one screen. Contract tests and fakes for each are in `probecascade.testing`."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from probecascade.episode import Action, Answer, Decision, Foresight, Moment, Observation, Question, Task

Verdict = Decision | Generator[Question, Answer, Decision]


@runtime_checkable
class Environment(Protocol):
    """What an agent acts in: one instance per episode. Failures are injected by a wrapper around it."""

    tools: Sequence[str]  # lower-case action names, "finish" included

    def reset(self, task: Task) -> str:
        """Start the task and return the text that states it."""

    def foresee(self, action: Action) -> Foresight:
        """What `step(action)` is about to bring, without doing it."""

    def step(self, action: Action) -> Observation:
        """Do the action. Invalid actions are answered with an observation of kind `invalid`."""


@runtime_checkable
class Probe(Protocol):
    """A small frozen scorer; how it was fitted is not its business.

    It reads states and signals, unless an attribute `reads` names what it reads out of `states`, `signals`, `text`
    and `checks`. One that reads text or checks takes two more arguments: `texts`, n texts (`agents.transcript`), and
    `checks`, a mapping of a check's name to (n,) float64, NaN where the environment did not supply it.
    """

    def score(self, states: NDArray[Any], signals: NDArray[Any] | None = None) -> NDArray[np.float64]:
        """P(failure) in [0, 1], shape (n,), of states (n, width) and, if it uses them, signals (n, n_signals)."""


class EpisodeWatch(Protocol):
    """One policy's view of one live episode."""

    def decide(self, moment: Moment) -> Verdict:
        """Continue, abort or answer; or a generator that yields questions and returns the Decision."""


@runtime_checkable
class StoppingPolicy(Protocol):
    """Anything that decides at a checkpoint. Many episodes are live at once: one watch each."""

    layers: Sequence[int]  # layers whose states `decide` needs; empty if none

    def begin(self, task: Task) -> EpisodeWatch:
        """Start watching one episode."""


class LanguageModel(Protocol):
    """A local model with readable layers; drives many conversations at once (`models.engine.Engine`)."""

    n_layers: int  # decoder blocks; layers 0..n_layers can be read
    d_model: int

    @property
    def layers(self) -> Sequence[int]:
        """Those whose states it keeps, in the order of the states' second axis."""

    def encode(self, text: str, *, plain: bool = False) -> list[int]:
        """Ids of a piece of text; with `plain`, special tokens written in it are mere characters."""

    def decode(self, ids: Sequence[int]) -> str: ...

    def run(self, conversations: Any) -> Any:
        """Drive conversations (generators of Feed / Sample / Ask requests) and yield what each returns."""
