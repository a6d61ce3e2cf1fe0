"""What the loop knows of one live episode, and the frozen record that it leaves."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from probecascade.agents.parser import ParsedTurn
from probecascade.episode import (
    Checkpoint,
    Decision,
    Episode,
    Foresight,
    Moment,
    Observation,
    Outcome,
    Recording,
    Step,
    Task,
)
from probecascade.errors import ModelError
from probecascade.interfaces import EpisodeWatch, LanguageModel, StoppingPolicy
from probecascade.models.requests import Fed, Feed, Request, Rewind, Turn
from probecascade.store.schema import cast

if TYPE_CHECKING:
    from probecascade.agents.react import AgentSettings

Vector = NDArray[np.float32]


class EpisodeRecord:
    """Counts, checkpoints, states and transcript of one episode while it runs."""

    def __init__(
        self,
        task: Task,
        episode_id: str,
        seed: int,
        settings: AgentSettings,
        model: LanguageModel,
        policy: StoppingPolicy | None,
    ) -> None:
        self.task = task
        self.settings = settings
        self.model = model
        self.watch: EpisodeWatch | None = None
        self._place = {layer: i for i, layer in enumerate(model.layers)}
        self._policy = policy
        self._asked = tuple(policy.layers) if policy is not None else ()
        missing = sorted(set(self._asked) - set(self._place))
        if missing:
            raise ModelError(
                f"the policy needs layers {missing}, but the model keeps the states of {list(model.layers)}; "
                "give the engine the policy's layers too."
            )
        self._identity = (episode_id, task.task_id, task.group, seed)
        self._ids: list[int] = []
        self._prompt_tokens = self._generated = self._observed = self._calls = 0
        self._seconds = 0.0
        self._steps: list[Step] = []
        self._checkpoints: list[Checkpoint] = []
        self._states: list[Vector] = []
        self._failed = self._repeated = self._not_found = 0
        self._tried: set[tuple[str, str]] = set()
        self._doomed: tuple[int, int] | None = None
        self._ending: tuple[Outcome, str, float] | None = None
        self._decision: Decision | None = None
        self._scores: dict[str, float] = {}
        self._notes: dict[str, dict[str, Any]] = {}
        self._observation = ""
        self._part = 1
        self.round = 0
        self.side_tokens = 0
        self._reset_turn()

    def _reset_turn(self) -> None:
        self.turn_ids: list[int] = []
        self._turn_start = len(self._ids)
        self._turn_states: dict[int, Vector] = {}  # by entry of `turn_ids`
        self._logprobs: list[float] = []
        self._entropies: list[float] = []
        self._forced = 0
        self._reason = ""
        self._thought = ""
        self._before_action = (self._failed, self._repeated, frozenset(self._tried))
        self._open = False
        self.turn_over = False
        self._parsed: ParsedTurn | None = None
        self._foresight = Foresight()

    # What the loop asks ------------------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        return self._ending is not None

    @property
    def length(self) -> int:
        """Ids in the conversation, the prompt included."""
        return len(self._ids)

    @property
    def tokens(self) -> int:
        return self._generated + self._observed

    @property
    def turn_room(self) -> int:
        """Ids that the current turn may still get; a turn without any gets one whatever the limits."""
        drawn = len(self.turn_ids) - self._forced
        room = min(self.settings.max_turn_tokens - drawn, self.settings.max_episode_tokens - self.tokens)
        return max(room, 0 if drawn else 1)

    def over_budget(self, coming: int) -> bool:
        """End the episode as truncated if neither another round nor `coming` more ids fit."""
        if self.round >= self.settings.max_rounds:
            self.end("truncated", "round_limit")
        elif self.tokens + coming >= self.settings.max_episode_tokens:
            self.end("truncated", "token_limit")
        return self.ended

    # What the loop tells -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Let the policy start watching."""
        if self._policy is not None:
            self.watch = self._policy.begin(self.task)

    def prompt(self, ids: Sequence[int], fed: Fed) -> None:
        self._ids = list(ids)
        self._prompt_tokens = len(ids)
        self._seconds = fed.seconds

    def restate(self, ids: Sequence[int], fed: Fed) -> None:
        """The prompt has become another: its checkpoint is where the new one ends. What was asked stays counted."""
        self._checkpoints.clear()
        self._states.clear()
        self.prompt(ids, fed)
        self.mark("prompt", 0, fed.states[0])

    def begin_turn(self) -> None:
        self.round += 1
        self._reset_turn()
        self._open = True

    def force(self, ids: Sequence[int], fed: Fed) -> None:
        """Ids that the harness put at the head of the turn; they were not drawn and have no log-probability."""
        self._forced = len(ids)
        self._extend(ids, dict(enumerate(fed.states, len(self.turn_ids))), fed.seconds)

    def take(self, turn: Turn, reason: str) -> None:
        """Add what was sampled. `reason` says why the turn ended there; empty if it may go on and has room to."""
        self._logprobs += turn.logprobs.tolist()
        self._entropies += turn.entropies.tolist()
        self._extend(turn.ids, dict(enumerate(turn.states, len(self.turn_ids))), turn.seconds)
        self._reason = reason or ("" if self.turn_room else "turn_limit")
        self.turn_over = bool(self._reason)

    def read(self, ids: Sequence[int], states: Mapping[int, Vector], fed: Fed, reason: str) -> None:
        """Add a turn that was read, not sampled: `states` by entry of `ids`, probabilities of all its ids in `fed`."""
        self._logprobs += fed.logprobs.tolist()
        self._entropies += fed.entropies.tolist()
        self._extend(ids, states, fed.seconds)
        self._reason = reason

    def _extend(self, ids: Sequence[int], states: Mapping[int, Vector], seconds: float) -> None:
        self._turn_states |= states
        self.turn_ids += ids
        self._ids += ids
        self._generated += len(ids)
        self._seconds = seconds

    def leave_unread(self) -> None:
        """Take the ids after the prompt out: a reader never saw them. What they cost stays counted."""
        del self._ids[self._prompt_tokens :]

    def close_turn(self, parsed: ParsedTurn, foresight: Foresight) -> None:
        self._parsed, self._foresight = parsed, foresight
        self._thought = parsed.thought
        action = parsed.action
        key = (action.name, " ".join(action.argument.casefold().split()))
        self._repeated += key in self._tried
        self._tried.add(key)
        self._failed += not action.valid

    def drop_turn(self) -> Generator[Request, Any, None]:
        """Take the current turn back: the conversation continues as if it had not been sampled."""
        del self._ids[self._turn_start :]
        self._generated -= len(self.turn_ids)
        self.side_tokens += len(self.turn_ids)
        self._failed, self._repeated, tried = self._before_action
        self._tried = set(tried)
        kept = [i for i, c in enumerate(self._checkpoints) if c.position < self._turn_start]
        self._checkpoints = [self._checkpoints[i] for i in kept]
        self._states = [self._states[i] for i in kept]
        self.round -= 1
        self._reset_turn()
        yield Rewind(self.length)

    def restore(self) -> Generator[Request, Any, None]:
        """After side questions: make the model ready to continue from the conversation's last id."""
        yield Rewind(self.length - 1)
        yield Feed(self._ids[-1:])

    def observe(self, parsed: ParsedTurn, observation: Observation) -> None:
        action = parsed.action
        self._calls += action.valid and action.name != "finish"
        self._failed += observation.kind == "tool_error" or (action.valid and observation.kind == "invalid")
        self._not_found += observation.kind == "not_found"
        self._add_step(observation.text, observation.kind, observation.injected)
        if observation.doomed and self._doomed is None:
            self._doomed = (self.round, self.tokens)
        if observation.kind == "next_part":
            self._part += 1
            self._tried.clear()
        self._observation = observation.text

    def _add_step(self, observation: str, kind: str, injected: str = "") -> None:
        parsed = self._parsed
        self._steps.append(
            Step(
                round=self.round,
                part=self._part,
                text=self.model.decode(self.turn_ids),
                thought=self._thought,
                action=parsed.action.name if parsed else "",
                argument=parsed.action.argument if parsed else "",
                observation=observation,
                observation_kind=kind,
                turn_tokens=len(self.turn_ids),
                observation_tokens=0,
                finish_reason="forced" if self._forced else self._reason or "stopped",
                injected=injected,
            )
        )
        self._open = False

    def feed_observation(self, ids: Sequence[int], fed: Fed) -> None:
        self._ids += ids
        self._observed += len(ids)
        self._seconds = fed.seconds
        self._steps[-1] = dataclasses.replace(self._steps[-1], observation_tokens=len(ids))

    def feed_cue(self, ids: Sequence[int], fed: Fed) -> None:
        self._ids += ids
        self._observed += len(ids)
        self._seconds = fed.seconds

    # Checkpoints -------------------------------------------------------------------------------------------------

    def mark(self, kind: str, index: int, state: Vector) -> Moment:
        """A checkpoint at the last id of the conversation."""
        return self._mark(kind, index, 0, state)

    def mark_thought(self, place: int, thought: str) -> Moment:
        """The checkpoint at entry `place` of the turn's ids, before the action is complete."""
        self._thought = thought
        return self._mark("thought", self.round, len(self.turn_ids) - 1 - place, self._turn_states[place])

    def turn_marks(self) -> Generator[Moment, None, None]:
        """The checkpoints at the turn's last id: `action`, events that the environment foresees, `turn_mean`."""
        if not self.turn_ids:
            return
        for kind, index in (("action", self.round), *self._foresight.events):
            yield self._mark(kind, index, 0, self._turn_states[len(self.turn_ids) - 1])
        if "turn_mean" in self.settings.checkpoints:
            pooled = np.stack(list(self._turn_states.values())).mean(axis=0, dtype=np.float64)
            yield self._mark("turn_mean", self.round, 0, pooled.astype(np.float32))

    def _mark(self, kind: str, index: int, back: int, state: Vector) -> Moment:
        """`back` counts ids between the checkpoint's and the conversation's last."""
        checkpoint = Checkpoint(
            kind=kind,
            index=index,
            round=self.round,
            position=self.length - 1 - back,
            tokens=self.tokens - back,
            generated=self._generated - back,
            calls=self._calls,
            seconds=self._seconds,
            final=self._foresight.final and kind != "observation",
            signals=self._signals(back),
            checks=self._foresight.checks,
        )
        rounded = cast(state, self.settings.store_dtype)
        if kind in self.settings.checkpoints:
            self._checkpoints.append(checkpoint)
            self._states.append(rounded)
        return Moment(
            checkpoint=checkpoint,
            hidden={layer: rounded[self._place[layer]] for layer in self._asked},
            transcript=tuple(self._steps),
            thought=self._thought,
            action=self._parsed.action if self._parsed else None,
            observation=self._observation,
            rounds_left=self.settings.max_rounds - self.round,
            tokens_left=self.settings.max_episode_tokens - checkpoint.tokens,
            turn="" if self._parsed is None or kind == "observation" else self.model.decode(self.turn_ids),
        )

    def _signals(self, back: int) -> tuple[float, ...]:
        drawn = len(self._logprobs) - back
        logprobs, entropies = self._logprobs[:drawn], self._entropies[:drawn]
        return (
            float(self.tokens - back),
            float(self.round),
            float(len(self.turn_ids) - back),
            math.fsum(logprobs) / drawn if drawn > 0 else 0.0,
            min(logprobs, default=0.0),
            math.fsum(entropies) / drawn if drawn > 0 else 0.0,
            float(self._failed),
            float(self._repeated),
            float(self._not_found),
        )

    # Decisions and the end ---------------------------------------------------------------------------------------

    def note(self, moment: Moment, decision: Decision) -> None:
        """Keep scores and notes of all checkpoints, and the first decision that stops (in shadow: would stop)."""
        if decision.notes:
            self._notes.setdefault(moment.checkpoint.name, {}).update(decision.notes)
        if decision.gate and not math.isnan(decision.score):
            self._scores[moment.checkpoint.name] = decision.score
        fires = decision.action != "continue" or decision.score >= decision.threshold
        if fires and self._decision is None:
            self._decision = decision

    def abort(self, decision: Decision) -> None:
        self.end("aborted", f"aborted: {decision.reason}" if decision.reason else "aborted")

    def end(self, outcome: Outcome, reason: str, reward: float = 0.0) -> None:
        self._ending = (outcome, reason, reward)

    def recording(self) -> Recording:
        """The frozen record. Raises AssertionError if the episode has not ended."""
        assert self._ending is not None
        if self._open and self.turn_ids:  # stopped before its tool was called
            self._add_step("", "")
        outcome, reason, reward = self._ending
        episode_id, task_id, group, seed = self._identity
        attributes = dict(self.task.attributes)
        if self._scores:
            attributes["scores"] = self._scores
        if self._notes:
            attributes["notes"] = self._notes
        episode = Episode(
            episode_id=episode_id,
            task_id=task_id,
            group=group,
            seed=seed,
            outcome=outcome,
            reward=reward,
            reason=reason,
            steps=tuple(self._steps),
            checkpoints=tuple(self._checkpoints),
            token_ids=np.array(self._ids, np.int32),
            prompt_tokens=self._prompt_tokens,
            generated=self._generated,
            observed=self._observed,
            calls=self._calls,
            seconds=self._seconds,
            side_tokens=self.side_tokens,
            doomed_round=self._doomed[0] if self._doomed else None,
            doomed_tokens=self._doomed[1] if self._doomed else None,
            decision=self._decision,
            attributes=attributes,
        )
        shape = (0, len(self._place), self.model.d_model)
        return Recording(episode, np.stack(self._states) if self._states else np.zeros(shape, np.float32))
