"""The records that every room of the house shares: frozen, plain, without behaviour of their own.

Words are those of `docs/design.md` section 2. Token counts never include the prompt unless they say so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Outcome = Literal["success", "failure", "truncated", "aborted", "error", "unlabelled"]
ActionName = Literal["continue", "abort", "answer"]

LABELLED: tuple[Outcome, ...] = ("success", "failure", "truncated")
"""Outcomes that carry a label; `aborted`, `error` and `unlabelled` episodes have none and are left out of fits."""

SIGNALS: tuple[str, ...] = (
    "tokens_so_far",  # generated + observation ids up to and including the checkpoint's token
    "round",
    "turn_tokens",  # sampled ids of the current turn up to the checkpoint
    "logprob_mean",  # of those ids, under the model's own distribution (temperature 1), nats
    "logprob_min",
    "entropy_mean",  # of the distributions they were drawn from, nats
    "failed_actions",  # invalid actions and tool errors before the checkpoint
    "repeated_actions",  # earlier actions of this part that repeat an action already tried in it, this turn's included
    "not_found",  # observations so far that found nothing
)
"""Surface signals kept at every checkpoint, as float32 columns; 0 where nothing was generated yet."""


@dataclass(frozen=True, slots=True)
class Part:
    """One question of a task and the answers that count as right."""

    question: str
    answers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A page of the wiki: its title and sentences."""

    title: str
    sentences: tuple[str, ...]

    @property
    def text(self) -> str:
        return " ".join(s.strip() for s in self.sentences if s.strip())


@dataclass(frozen=True, slots=True)
class Task:
    """One goal for an agent. Episodes of one `group` never straddle a split.

    A task that is played in several ways, such as under several regimes of failures, has a `variant` for each: the
    way's name, which tells its episodes apart while they share everything that follows from task and seed.
    """

    task_id: str
    group: str
    parts: tuple[Part, ...]
    paragraphs: tuple[Paragraph, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    variant: str = ""


@dataclass(frozen=True, slots=True)
class Action:
    """What the agent asked for. `name` is lower case ("search", "finish"); empty when invalid."""

    name: str
    argument: str
    valid: bool = True
    problem: str = ""  # why it is invalid, in one sentence


@dataclass(frozen=True, slots=True)
class Observation:
    """What the environment answered.

    `kind` is one of content, not_found, tool_error, invalid, next_part, finish. `doomed` is the
    environment's own knowledge that the episode can no longer succeed (None: it cannot tell); it is
    recorded and never shown to the agent. `injected` names the failure that was put in the place of what the tool
    found (`environments.failures`), empty for a true answer; it is recorded and never shown either.
    """

    text: str
    kind: str
    done: bool = False
    reward: float = 0.0
    doomed: bool | None = None
    injected: str = ""


@dataclass(frozen=True, slots=True)
class Foresight:
    """What an action is about to bring, known before the tool is called.

    `events` are extra checkpoints at the turn's last token (("part", 1) becomes `part:1`); `final`
    says that the action ends the episode, so that its checkpoints are no gates by default. `checks` are numbers
    that the environment can tell of the action as it is written (does the tool exist?); they never tell what the
    action will bring or whether an answer is right, since probes may read them.
    """

    events: tuple[tuple[str, int], ...] = ()
    final: bool = False
    checks: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decision:
    """What a policy wants at a checkpoint.

    `append` (text put after the latest observation; at the prompt, after what states the task) and `allow` (tool
    names of the next turn) steer a `continue`; `answer` makes the agent finish now, with the finish prefix forced at
    token level. `notes`, JSON values by name, are what the policy wants kept of this checkpoint, whatever it decides:
    they stand in the episode's attributes, under `notes` and the checkpoint's name.
    """

    action: ActionName = "continue"
    gate: str = ""
    score: float = float("nan")
    threshold: float = float("nan")
    reason: str = ""
    append: str = ""
    allow: tuple[str, ...] | None = None
    notes: Mapping[str, Any] = field(default_factory=dict, hash=False)


CONTINUE = Decision()


@dataclass(frozen=True, slots=True)
class Question:
    """A side question, answered greedily on a scratch copy of the conversation that leaves no trace.

    With `as_turn` it is put as the template puts what is said to the model, and the model's reply begins after it; else
    it is text that the model goes on with. With `choices` nothing is sampled: the answer is the likeliest of them,
    read off one forward. Each must go on with an id of its own after the ids that all have in common.
    """

    prompt: str
    max_new_tokens: int = 8
    as_turn: bool = False
    choices: tuple[str, ...] = ()


class Answer(str):
    """What the model said to a side question. With `choices`, `logprobs` has one entry for each.

    It is the log-probability (nats) of the id that tells a choice from the others, given the ids that all have in
    common: differences between them are the log-odds of the choices.
    """

    __slots__ = ("logprobs",)
    logprobs: tuple[float, ...]

    def __new__(cls, text: str, logprobs: tuple[float, ...] = ()) -> Answer:
        answer = super().__new__(cls, text)
        answer.logprobs = logprobs
        return answer


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A token position at which hidden states are kept: the state when that token is the input.

    `position` indexes `Episode.token_ids`. `tokens`, `generated`, `calls` and `seconds` are what had
    been spent up to and including that token (tool call of the round not included), so what remains
    strictly after it is the episode's total minus these. `checks` are those of the turn's action
    (`Foresight.checks`); there are none before the action is known.
    """

    kind: str  # prompt, thought, action, observation, or an event that the environment names (part)
    index: int  # round, or the event's own number; 0 for prompt
    round: int
    position: int
    tokens: int
    generated: int
    calls: int
    seconds: float
    final: bool  # on the turn that ends the episode
    signals: tuple[float, ...]  # in the order of SIGNALS
    checks: Mapping[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.kind if self.kind == "prompt" else f"{self.kind}:{self.index}"


@dataclass(frozen=True, slots=True)
class Step:
    """One round: Thought + Action + Observation, as it went. `text` is the turn exactly as sampled."""

    round: int
    part: int
    text: str
    thought: str
    action: str
    argument: str
    observation: str
    observation_kind: str
    turn_tokens: int
    observation_tokens: int
    finish_reason: str  # action, observation_cut, end_token, turn_limit, forced, stopped
    injected: str = ""  # as in `Observation`


@dataclass(frozen=True, slots=True)
class Episode:
    """One run of an agent on one task. `token_ids` are the exact ids that the model was fed, in order."""

    episode_id: str
    task_id: str
    group: str
    seed: int
    outcome: Outcome
    reward: float
    reason: str  # why it ended: finished, round_limit, token_limit, aborted, answered, error: …
    steps: tuple[Step, ...]
    checkpoints: tuple[Checkpoint, ...]
    token_ids: NDArray[np.int32]
    prompt_tokens: int
    generated: int
    observed: int
    calls: int
    seconds: float
    side_tokens: int = 0
    doomed_round: int | None = None  # the round whose end doomed it; None where it never was, or unknown
    doomed_tokens: int | None = None  # tokens spent by then
    decision: Decision | None = None  # the decision that stopped it (or, in shadow, would have)
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Generated + observation ids, each counted once; prompt and side questions apart."""
        return self.generated + self.observed

    @property
    def labelled(self) -> bool:
        return self.outcome in LABELLED

    @property
    def failed(self) -> bool:
        """True for failure and truncated. Ask only labelled episodes."""
        return self.outcome in ("failure", "truncated")


@dataclass(frozen=True, slots=True)
class Recording:
    """An episode and its hidden states, (n_checkpoints, n_layers, d_model), float32, layers as asked."""

    episode: Episode
    hidden: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Moment:
    """What the agent loop shows a watch at a checkpoint.

    `hidden` maps a layer (non-negative, 0 = embedding output) to its state, (d_model,), already cast to
    the dtype of the store. `transcript` holds the finished rounds; `thought` and `action` are the
    current turn's (empty at `prompt`, at `thought` only the thought is known), and so is `turn`, its text exactly
    as sampled (empty until the turn is complete, and again once it is part of the transcript).
    """

    checkpoint: Checkpoint
    hidden: Mapping[int, NDArray[np.float32]]
    transcript: tuple[Step, ...]
    thought: str
    action: Action | None
    observation: str
    rounds_left: int
    tokens_left: int
    turn: str = ""

    @property
    def text(self) -> str:
        """What the agent has written and read up to here; see `transcript_text`."""
        return transcript_text(self.transcript, self.thought if self.checkpoint.kind == "thought" else self.turn)


def transcript_text(finished: Sequence[Step], turn: str = "") -> str:
    """Finished rounds and the text of the turn under way, as one text; the statement of the task apart.

    Each turn is as sampled and each observation as shown, without outer blanks; the template's words around them
    are left out, so that the text is the same live, in a loop that is not ours, and from a stored run.
    """
    lines = [line for step in finished for line in (step.text.strip(), f"Observation: {step.observation.strip()}")]
    return "\n".join([*lines, turn.strip()] if turn.strip() else lines)


def stored_text(steps: Sequence[Step], point: Checkpoint) -> str:
    """The text of the moment at this checkpoint, from the steps of its finished episode."""
    observed = point.kind == "observation"
    finished = [s for s in steps if s.round < point.round or (observed and s.round == point.round)]
    current = next((s for s in steps if s.round == point.round and not observed), None)
    if current is None:
        return transcript_text(finished)
    return transcript_text(finished, current.thought if point.kind == "thought" else current.text)
