"""The contract check and the fake of `interfaces.Environment`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from probecascade.episode import Action, Foresight, Observation, Task
from probecascade.errors import ProbecascadeError, UsageError
from probecascade.interfaces import Environment
from probecascade.testing.promises import expect

OBSERVATION_KINDS = ("content", "not_found", "tool_error", "invalid", "next_part", "finish")


class ScriptedEnvironment:
    """A fake that answers with the given observations in order, whatever it is asked.

    `actions` holds what it was asked since the last `reset`. A finish is foreseen as the end of a part, and
    as final if the next observation is `done`. Raises UsageError before `reset` and when the script is over.
    """

    def __init__(self, observations: Sequence[Observation], tools: Sequence[str] = ("search", "finish")) -> None:
        self.observations = tuple(observations)
        self.tools = tools
        self.actions: list[Action] = []
        self._started = False

    def reset(self, task: Task) -> str:
        """Start the script again and return the task's first question."""
        self.actions = []
        self._started = True
        return task.parts[0].question

    def foresee(self, action: Action) -> Foresight:
        """The end of a part for a finish that the script answers with `next_part` or an end."""
        observation = self._next()
        if action.name != "finish" or not (observation.done or observation.kind == "next_part"):
            return Foresight()
        closed = sum(seen.kind == "next_part" for seen in self.observations[: len(self.actions)])
        return Foresight(events=(("part", closed + 1),), final=observation.done)

    def step(self, action: Action) -> Observation:
        """The next observation of the script."""
        observation = self._next()
        self.actions.append(action)
        return observation

    def _next(self) -> Observation:
        if not self._started or len(self.actions) >= len(self.observations):
            raise UsageError("the script is over or was not started; call reset(task) first")
        return self.observations[len(self.actions)]


def check_environment(make_env: Callable[[], Environment], task: Task, winning: Sequence[Action] | None = None) -> None:
    """Check that environments from `make_env` keep the contract of `Environment` on `task`.

    `make_env` must return a new environment at every call. Every part of the task needs answers, or `winning` are
    actions that earn the full reward where there are none, as in a game. Raises AssertionError, naming the broken
    promise.
    """
    _check_tools(make_env())
    _check_is_refused(make_env(), "before reset")
    _check_invalid_actions(make_env, task)
    _check_foresight_leaves_no_trace(make_env, task)
    if winning is not None:
        _check_winning(make_env(), task, winning)
        return
    right = _play(make_env(), task, [part.answers[0] for part in task.parts])
    expect(right[-1].reward == 1.0, "right answers to every part earn a reward of 1.0")
    expect(not any(seen.doomed for seen in right), "right answers never doom an episode")
    for wrong_part in range(len(task.parts)):
        answers = [part.answers[0] for part in task.parts]
        answers[wrong_part] = "no such answer"
        wrong = _play(make_env(), task, answers)
        expect(wrong[-1].reward < 1.0, "a wrong answer costs the full reward")
        for before, after in itertools.pairwise(wrong):
            expect(not before.doomed or after.doomed is not False, "a doomed episode stays doomed")
        said, meant = [seen.text for seen in wrong], [seen.text for seen in right]
        expect(said[:-1] == meant[:-1], "what the agent reads never says whether an answer was right")


def _check_tools(env: Environment) -> None:
    expect(isinstance(env, Environment), "an environment has tools, reset, foresee and step")
    tools = list(env.tools)
    expect("finish" in tools, "'finish' is one of the tools")
    expect(all(tool == tool.lower() and tool for tool in tools), "tools are named in lower case")
    expect(len(set(tools)) == len(tools), "tools are distinct")


def _check_invalid_actions(make_env: Callable[[], Environment], task: Task) -> None:
    env = make_env()
    expect(bool(env.reset(task).strip()), "reset returns the text of the task")
    for action in (
        Action("", "", False, "A turn must end with an action."),
        Action("", "two words", False, "There is no such tool."),
        Action("finish", ""),
        Action("no_such_tool", "Ada"),
    ):
        foresight = env.foresee(action)
        nothing = not foresight.events and not foresight.final
        expect(nothing, f"no event and no end is foreseen of the invalid {action}")
        seen = env.step(action)
        expect(seen.kind == "invalid" and not seen.done, f"{action} is answered with kind 'invalid'")
        expect(bool(seen.text.strip()), "an invalid action is answered with a sentence")
        expect(not seen.doomed and seen.reward == 0.0, "an invalid action alone neither dooms nor pays")


def _check_foresight_leaves_no_trace(make_env: Callable[[], Environment], task: Task) -> None:
    looked, plain = make_env(), make_env()
    expect(looked.reset(task) == plain.reset(task), "two environments start a task alike")
    questions = [page.title for page in task.paragraphs[:4]] + ["no such page", "no such page"]
    actions = [Action(tool, text) for tool in plain.tools if tool != "finish" for text in questions]
    for action in actions:
        foresight = looked.foresee(action)
        expect(looked.foresee(action) == foresight, "foreseeing twice gives the same")
        named = all(name.isidentifier() and math.isfinite(value) for name, value in foresight.checks.items())
        expect(named, "checks are finite numbers by name")
        seen, twin = looked.step(action), plain.step(action)
        expect(seen == twin, "foresee changes nothing, and equal actions bring equal observations")
        expect(seen.kind in OBSERVATION_KINDS, f"{seen.kind!r} is one of {', '.join(OBSERVATION_KINDS)}")
        if seen.done:
            return


def _play(env: Environment, task: Task, answers: Sequence[str]) -> list[Observation]:
    """Finish every part with the given answers, checking what was foreseen of each finish."""
    env.reset(task)
    seen: list[Observation] = []
    for part, answer in enumerate(answers, 1):
        action = Action("finish", answer)
        foresight = env.foresee(action)
        seen.append(env.step(action))
        expect(("part", part) in foresight.events, f"the end of part {part} is foreseen as its event")
        expect(
            foresight.final == seen[-1].done,
            "a finish is foreseen as final if and only if it ends the episode",
        )
        expect(seen[-1].done == (part == len(answers)), "the episode ends with its last part")
        kind = "finish" if seen[-1].done else "next_part"
        expect(seen[-1].kind == kind, "a part that ends brings kind 'next_part', the last one 'finish'")
        expect(0.0 <= seen[-1].reward <= 1.0, "a reward lies in [0, 1]")
    _check_is_refused(env, "after the end")
    env.reset(task)  # an environment can be used again
    return seen


def _check_winning(env: Environment, task: Task, winning: Sequence[Action]) -> None:
    """Give up at once, then play the actions that win, checking the reward and the end."""
    env.reset(task)
    gave_up = Action("finish", "I give up.")
    expect(env.foresee(gave_up).final, "a finish is foreseen as final")
    lost = env.step(gave_up)
    expect(lost.done and lost.reward < 1.0, "who gives up at once ends the episode without the full reward")
    _check_is_refused(env, "after the end")
    env.reset(task)
    for number, action in enumerate(winning, 1):
        seen = env.step(action)
        expect(not seen.doomed, "actions that win never doom an episode")
        expect(seen.done == (number == len(winning)), "the episode ends with the last of the actions that win")
    expect(seen.kind == "finish" and seen.reward == 1.0, "actions that win end in kind 'finish' and a reward of 1.0")
    _check_is_refused(env, "after the end")
    env.reset(task)  # an environment can be used again


def _check_is_refused(env: Environment, when: str) -> None:
    calls: tuple[Callable[[Action], Any], ...] = (env.step, env.foresee)
    for call in calls:
        refused = False
        try:
            call(Action("finish", "anything"))
        except ProbecascadeError:
            refused = True
        except Exception as error:
            raise AssertionError(f"broken promise: a call {when} is refused with a ProbecascadeError") from error
        expect(refused, f"a call {when} is refused with a ProbecascadeError")
