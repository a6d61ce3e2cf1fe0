"""The ReAct loop: Thought, Action, Observation, with one seam (`_look`) for everything that decides."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from probecascade.agents.layout import tokens_for
from probecascade.agents.parser import Form, ParsedTurn, parse_turn, turn_is_complete, without_thinking
from probecascade.agents.record import EpisodeRecord
from probecascade.agents.templates import Template
from probecascade.episode import CONTINUE, Answer, Decision, Moment, Question, Recording, Task
from probecascade.errors import ProbecascadeError, UsageError
from probecascade.interfaces import Environment, LanguageModel, StoppingPolicy
from probecascade.models.requests import Fed, Feed, Request, Rewind, Sample, Turn

Flow = Generator[Request, Any, Any]
Ends = Callable[[str, Sequence[str], Form], tuple[int, str] | None]
"""Where a turn of this text ends, with these tools and in this form, and why; None while it has not ended."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """How the model is asked and how far it may go.

    Token limits count generated ids of a turn, and generated + observation ids of an episode; `checkpoints`
    are the kinds at which states are kept; `store_dtype` is what they are rounded to before anything reads them.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    max_rounds: int = 20
    max_turn_tokens: int = 64
    max_episode_tokens: int = 1024
    success_reward: float = 1.0
    checkpoints: tuple[str, ...] = ("prompt", "action", "observation", "part")
    store_dtype: str = "float16"


def episode_id(task: Task, seed: int) -> str:
    """The stable name of one episode: the same task, seed and variant are the same episode in every run."""
    return "~".join((task.task_id, str(seed), *filter(None, (task.variant,))))


def episode_rng(task: Task, seed: int) -> np.random.Generator:
    """The episode's own random numbers: a function of task and seed, untouched by its neighbours' draws."""
    digest = hashlib.sha256(f"{seed}\0{task.task_id}".encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "big")))


class ReActAgent:
    """Plays tasks with a language model. One agent serves many live episodes.

    `end_ids` are the ids that close a message of this model; they end a turn and are never fed back.
    """

    def __init__(
        self, model: LanguageModel, template: Template, settings: AgentSettings, end_ids: Sequence[int] = ()
    ) -> None:
        self.model = model
        self.template = template
        self.settings = settings
        self.form = template.form
        self.end_ids = frozenset(end_ids)
        self.head = model.encode(template.head)

    def play(
        self, task: Task, environment: Environment, seed: int, policy: StoppingPolicy | None = None
    ) -> Generator[Request, Any, Recording]:
        """One episode, as a conversation for the engine. Every ending has its reason in the record.

        A fault of ours, of the environment or of the policy ends it with outcome `error`; it carries no label.
        Raises ModelError for a policy that needs layers which the model does not keep.
        """
        record = EpisodeRecord(task, episode_id(task, seed), seed, self.settings, self.model, policy)
        try:
            record.begin()
            yield from self._rounds(task, environment, seed, record)
        except Exception as error:
            detail = str(error) if isinstance(error, ProbecascadeError) else f"{type(error).__name__}: {error}"
            record.end("error", f"error: {detail}")
        return record.recording()

    def _rounds(self, task: Task, environment: Environment, seed: int, record: EpisodeRecord) -> Flow:
        t, rng, encode = self.template, episode_rng(task, seed), self.model.encode
        question = environment.reset(task)
        stated, cue = [*self.head, *encode(t.first), *encode(question, plain=True)], encode(t.cue)
        ids = stated + cue
        fed: Fed = yield Feed(ids, keep=(len(ids) - 1,), shared=len(self.head))
        record.prompt(ids, fed)
        decision = yield from self._look(record, record.mark("prompt", 0, fed.states[0]))
        if decision.append:
            yield Rewind(len(stated))
            ids = encode(decision.append, plain=True) + cue
            record.restate(stated + ids, (yield Feed(ids, keep=(len(ids) - 1,))))
        forced = decision.action == "answer"
        while decision.action != "abort":
            parsed, decision = yield from self._turn(record, environment, decision.allow, rng, forced)
            if decision.action == "abort":
                break
            if decision.action == "answer" and not forced:
                yield from record.drop_turn()
                forced = True
                continue
            observation = environment.step(parsed.action)
            record.observe(parsed, observation)
            if observation.done:
                won = observation.reward >= self.settings.success_reward
                reason = "answered" if forced else "finished"
                return record.end("success" if won else "failure", reason, observation.reward)
            ids = encode(t.before(observation)) + encode(observation.text, plain=True)
            if record.over_budget(len(ids)):
                return None
            fed = yield Feed(ids, keep=(len(ids) - 1,))
            record.feed_observation(ids, fed)
            decision = yield from self._look(record, record.mark("observation", record.round, fed.states[0]))
            forced = forced or decision.action == "answer"
            if decision.action != "abort":
                ids = encode(decision.append, plain=True) + encode(t.next_cue)
                record.feed_cue(ids, (yield Feed(ids)))
        return record.abort(decision)

    def _turn(
        self,
        record: EpisodeRecord,
        environment: Environment,
        allow: tuple[str, ...] | None,
        rng: np.random.Generator,
        forced: bool,
    ) -> Generator[Request, Any, tuple[ParsedTurn, Decision]]:
        """Sample one turn, keep its states and ask the policy before the tool is called."""
        record.begin_turn()
        tools: Sequence[str] = environment.tools if allow is None else allow
        if forced:
            tools = ("finish",)
            prefix = self.model.encode(self.template.finish)
            record.force(prefix, (yield Feed(prefix, keep=tuple(range(len(prefix))))))
        elif "thought" in self.settings.checkpoints:
            yield from self._sample(record, environment, tools, rng, _at_label, resume=True)
            found = parse_turn(self.model.decode(record.turn_ids), tools, self.form)
            if found.label is not None and found.thought_end:
                place = tokens_for(self.model, record.turn_ids, found.thought_end) - 1
                decision = yield from self._look(record, record.mark_thought(place, found.thought))
                if decision.action != "continue":
                    return found, decision
        if not record.turn_over:
            yield from self._sample(record, environment, tools, rng, _at_end, resume=False)
        parsed = parse_turn(self.model.decode(record.turn_ids), tools, self.form)
        record.close_turn(parsed, environment.foresee(parsed.action))
        for moment in record.turn_marks():
            decision = yield from self._look(record, moment)
            if decision.action == "abort" or (decision.action == "answer" and not forced):
                return parsed, decision
        return parsed, CONTINUE

    def _sample(
        self,
        record: EpisodeRecord,
        environment: Environment,
        tools: Sequence[str],
        rng: np.random.Generator,
        ends: Ends,
        resume: bool,
    ) -> Flow:
        before = list(record.turn_ids)
        stop = _Stop(self, before, ends, tools)
        narrowed = set(tools) < set(environment.tools)
        turn: Turn = yield Sample(
            stop=stop,
            max_tokens=record.turn_room,
            temperature=self.settings.temperature,
            top_p=self.settings.top_p,
            rng=rng,
            allowed=_Narrowing(self, tuple(before), tuple(tools)) if narrowed else None,
            resume=resume,
        )
        record.take(turn, "turn_limit" if turn.hit_limit else stop.reason)

    # The seam ----------------------------------------------------------------------------------------------------

    def _look(self, record: EpisodeRecord, moment: Moment) -> Generator[Request, Any, Decision]:
        """Show a moment to the policy's watch. Its questions are put on a scratch copy that leaves no trace."""
        if record.watch is None:
            return CONTINUE
        verdict = record.watch.decide(moment)
        if not isinstance(verdict, Decision):
            try:
                question = next(verdict)
                while True:
                    answer = yield from self._ask(record, question, moment.checkpoint.kind)
                    question = verdict.send(answer)
            except StopIteration as stop:
                verdict = stop.value
            if moment.checkpoint.kind in ("prompt", "thought"):  # sampling goes on from here
                yield from record.restore()
        assert isinstance(verdict, Decision)
        record.note(moment, verdict)
        return verdict

    def _ask(self, record: EpisodeRecord, question: Question, after: str) -> Generator[Request, Any, Answer]:
        encode = self.model.encode
        before, reply = self.template.asked(question, after)
        ids = [*encode(before), *encode(question.prompt, plain=question.as_turn), *encode(reply)]
        if question.choices:
            answer = yield from self._weigh(record, question, ids)
        else:
            yield Feed(ids, aside=True)
            turn: Turn = yield Sample(
                stop=lambda drawn: len(drawn) - 1 if drawn[-1] in self.end_ids else None,
                max_tokens=question.max_new_tokens,
            )
            record.side_tokens += len(ids) + turn.sampled
            answer = Answer(self.model.decode(turn.ids))
        yield Rewind(record.length)
        return answer

    def _weigh(self, record: EpisodeRecord, question: Question, ids: list[int]) -> Generator[Request, Any, Answer]:
        """The likeliest choice: what all have in common is fed with the question, the next id tells them apart."""
        ways = [self.model.encode(self.template.said(c) if question.as_turn else c) for c in question.choices]
        together = itertools.takewhile(lambda column: len(set(column)) == 1, zip(*ways, strict=False))
        common = len(list(together))
        following = tuple(way[common] for way in ways if len(way) > common)
        if len(set(following)) < len(ways):
            raise UsageError(
                f"the choices {', '.join(map(repr, question.choices))} cannot be told apart by one id of this model: "
                "choose other words."
            )
        ids = ids + ways[0][:common]
        fed: Fed = yield Feed(ids, following=following, aside=True)
        record.side_tokens += len(ids)
        return Answer(question.choices[int(fed.following.argmax())], tuple(fed.following.tolist()))


@dataclass(frozen=True)
class _Narrowing:
    """After the action's label, or the mark of a call, only the ids that spell an allowed tool can be drawn.

    `before` are the ids of the turn so far. Equal ones narrow equal turns alike.
    """

    agent: ReActAgent
    before: tuple[int, ...]
    tools: tuple[str, ...]

    def __call__(self, ids: list[int]) -> Sequence[int] | None:
        agent, everything = self.agent, [*self.before, *ids]
        for due, spelled in self._ways:
            for tail in range(max(map(len, spelled), default=0)):
                head = everything[: len(everything) - tail]
                after = everything[len(everything) - tail :]
                if due(without_thinking(agent.model.decode(head), agent.form)):
                    found = [s[tail] for s in spelled if len(s) > tail and s[:tail] == after]
                    if found:
                        return found
        return None

    @cached_property
    def _ways(self) -> list[tuple[Callable[[str], bool], list[list[int]]]]:
        choices = self.agent.template.choices(self.tools)
        return [(due, [self.agent.model.encode(text) for text in texts]) for due, texts in choices]


class _Stop:
    """How many of the newly drawn ids to keep, once the turn (ids `before` included) has reached its mark.

    `reason` tells why the turn ended there; empty if it may be continued.
    """

    def __init__(
        self,
        agent: ReActAgent,
        before: list[int],
        ends: Ends,
        tools: Sequence[str],
    ) -> None:
        self.agent, self.before, self.ends, self.tools = agent, before, ends, tools
        self.reason = ""

    def __call__(self, ids: list[int]) -> int | None:
        if ids[-1] in self.agent.end_ids:
            self.reason = "end_token"
            return len(ids) - 1
        everything = self.before + ids
        mark = self.ends(self.agent.model.decode(everything), self.tools, self.agent.form)
        if mark is None:
            return None
        end, self.reason = mark
        return max(0, tokens_for(self.agent.model, everything, end) - len(self.before))


def _at_end(text: str, tools: Sequence[str], form: Form) -> tuple[int, str] | None:
    """Where a complete turn ends, and why; None while it is not complete."""
    if not turn_is_complete(text, form):
        return None
    parsed = parse_turn(text, tools, form)
    return parsed.end, parsed.finish_reason


def _at_label(text: str, tools: Sequence[str], form: Form) -> tuple[int, str] | None:
    """As `_at_end`, but stops at the action's label already, where the turn may be continued."""
    labelled = parse_turn(text, tools, form).label is not None
    return _at_end(text, tools, form) or ((len(text), "") if labelled else None)
