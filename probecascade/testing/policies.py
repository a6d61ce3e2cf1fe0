"""The contract check and the fake of `interfaces.StoppingPolicy`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from probecascade.episode import (
    CONTINUE,
    SIGNALS,
    Action,
    ActionName,
    Answer,
    Checkpoint,
    Decision,
    Moment,
    Question,
    Step,
    Task,
)
from probecascade.interfaces import EpisodeWatch, StoppingPolicy, Verdict
from probecascade.testing.promises import expect

Told = Decision | Callable[[Moment], Verdict]


class RecordingPolicy:
    """A fake that keeps every moment it is shown, in `moments` by task id, and answers as it was told.

    `answers` maps the name of a checkpoint to the decision there, or to what makes the verdict from the moment;
    elsewhere the episode continues.
    """

    def __init__(self, layers: Sequence[int] = (), answers: Mapping[str, Told] | None = None) -> None:
        self.layers = layers
        self.answers = dict(answers or {})
        self.moments: dict[str, list[Moment]] = {}

    def begin(self, task: Task) -> EpisodeWatch:
        """Watch one episode."""
        return _RecordingWatch(self, self.moments.setdefault(task.task_id, []))


class _RecordingWatch:
    def __init__(self, policy: RecordingPolicy, moments: list[Moment]) -> None:
        self._answers, self._moments = policy.answers, moments

    def decide(self, moment: Moment) -> Verdict:
        self._moments.append(moment)
        answer = self._answers.get(moment.checkpoint.name, CONTINUE)
        return answer if isinstance(answer, Decision) else answer(moment)


def check_policy(make_policy: Callable[[], StoppingPolicy], d_model: int) -> None:
    """Check that policies from `make_policy` keep the contract of `StoppingPolicy` on invented episodes.

    `make_policy` must return a new policy at every call; states have width `d_model`. Questions of the policy are
    answered "yes", or with their first choice. Raises AssertionError, naming the broken promise.
    """
    layers = list(make_policy().layers)
    whole = all(isinstance(layer, int) and layer >= 0 for layer in layers)
    expect(whole and len(set(layers)) == len(layers), "layers are distinct whole numbers from 0")
    tasks = [Task(f"task-{i}", f"group-{i}", ()) for i in range(2)]
    shown = [[_moment(i, place, layers, d_model) for place in _PLACES] for i in range(2)]
    alone = [_play(make_policy().begin(task), moments) for task, moments in zip(tasks, shown, strict=True)]
    for decisions in alone:
        for decision in decisions:
            _check_decision(decision)
    policy = make_policy()
    watches = [policy.begin(task) for task in tasks]
    together: list[list[Decision]] = [[], []]
    for step in range(len(_PLACES)):
        for i, watch in enumerate(watches):
            together[i].append(_ask(watch, shown[i][step]))
    expect(_same(together, alone), "an episode is decided alike alone and among others that are live")
    again = [_play(policy.begin(task), moments) for task, moments in zip(tasks, shown, strict=True)]
    expect(_same(again, alone), "a policy carries nothing from one episode into the next")


_PLACES = ("prompt", "thought:1", "action:1", "observation:1", "thought:2", "action:2", "part:1", "observation:2")


def _moment(episode: int, place: str, layers: Sequence[int], d_model: int) -> Moment:
    """What the agent loop would show at this place; the second episode repeats a search that found nothing."""
    kind, _, number = place.partition(":")
    turn = 0 if kind == "prompt" else 2 if kind == "part" else int(number)
    tokens = 10 * _PLACES.index(place)
    rng = np.random.default_rng([episode, _PLACES.index(place)])
    done = turn if kind == "observation" else max(0, turn - 1)
    found = "content" if episode == 0 else "not_found"
    page = "Ada" if episode == 0 else "page 1"
    steps = tuple(
        Step(r, 1, "", "think", "search", "page 1", "text", found, 10, 10, "action") for r in range(1, done + 1)
    )
    spoken = kind in ("action", "part", "observation")
    return Moment(
        checkpoint=Checkpoint(
            kind=kind,
            index=int(number or 0),
            round=turn,
            position=20 + tokens,
            tokens=tokens,
            generated=tokens // 2,
            calls=done,
            seconds=tokens / 100,
            final=False,
            signals=tuple(float(x) for x in np.arange(len(SIGNALS)) + tokens),
        ),
        hidden={layer: _frozen(rng.normal(size=d_model)) for layer in layers},
        transcript=steps,
        thought="" if kind == "prompt" else "think",
        action=Action("search", page) if spoken else None,
        observation=steps[-1].observation if steps else "",
        rounds_left=5 - turn,
        tokens_left=500 - tokens,
    )


def _frozen(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """The states belong to the loop: a policy that writes into them fails."""
    state = values.astype(np.float32)
    state.flags.writeable = False
    return state


def _play(watch: EpisodeWatch, moments: Sequence[Moment]) -> list[Decision]:
    return [_ask(watch, moment) for moment in moments]


def _ask(watch: EpisodeWatch, moment: Moment) -> Decision:
    verdict = watch.decide(moment)
    if isinstance(verdict, Decision):
        return verdict
    expect(isinstance(verdict, Generator), "decide returns a Decision, or a generator that returns one")
    try:
        question = next(verdict)
        while True:
            expect(isinstance(question, Question), "a generator yields questions and nothing else")
            expect(bool(question.prompt) and question.max_new_tokens >= 1, "a question asks for an answer")
            likely = tuple(-1.0 - rank for rank in range(len(question.choices)))
            question = verdict.send(Answer(question.choices[0] if question.choices else "yes", likely))
    except StopIteration as stop:
        expect(isinstance(stop.value, Decision), "a generator returns a Decision")
        decision: Decision = stop.value
        return decision


def _check_decision(decision: Decision) -> None:
    expect(decision.action in get_args(ActionName), f"{decision.action!r} is continue, abort or answer")
    steered = bool(decision.append) or decision.allow is not None
    expect(decision.action == "continue" or not steered, "only a continue is steered (append, allow)")
    expect(decision.allow is None or len(decision.allow) > 0, "a narrowed turn is left at least one tool")
    expect(decision.action == "continue" or bool(decision.reason), "an abort or answer gives its reason")


def _same(left: list[list[Decision]], right: list[list[Decision]]) -> bool:
    # Through text, since a score that is no number does not equal itself.
    return repr(left) == repr(right)
