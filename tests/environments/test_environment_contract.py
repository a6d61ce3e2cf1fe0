from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from probecascade.environments import AtlasSettings, FlakyEnvironment, WikiEnvironment, atlas_task
from probecascade.episode import Action, Foresight, Observation, Task
from probecascade.errors import UsageError
from probecascade.interfaces import Environment
from probecascade.testing import ScriptedEnvironment, check_environment

TASK = atlas_task(AtlasSettings(), 0)


@pytest.mark.parametrize(
    "make_env",
    [
        WikiEnvironment,
        lambda: WikiEnvironment(sentences=1),
        lambda: FlakyEnvironment(WikiEnvironment(), 0.5, seed=3),
        lambda: FlakyEnvironment(WikiEnvironment(), 1.0),
    ],
)
@pytest.mark.parametrize("parts", [1, 3])
def test_our_environments_keep_the_contract(make_env: Callable[[], Environment], parts: int) -> None:
    check_environment(make_env, atlas_task(AtlasSettings(parts=parts), 0))


class Telling(WikiEnvironment):
    def step(self, action: Action) -> Observation:
        seen = super().step(action)
        return replace(seen, text=seen.text + (" That was wrong." if seen.doomed else ""))


class Hopeful(WikiEnvironment):
    def step(self, action: Action) -> Observation:
        seen = super().step(action)
        return replace(seen, doomed=False) if seen.done else seen


class Generous(WikiEnvironment):
    def step(self, action: Action) -> Observation:
        seen = super().step(action)
        return replace(seen, reward=1.0) if seen.done else seen


class Blind(WikiEnvironment):
    def foresee(self, action: Action) -> Foresight:
        super().foresee(action)
        return Foresight()


class Impatient(WikiEnvironment):
    def foresee(self, action: Action) -> Foresight:
        foresight = super().foresee(action)
        if action.name == "search" and action.argument:
            self._doomed = True
        return foresight


class Lenient(WikiEnvironment):
    def _refusal(self, action: Action) -> str:
        return "" if action.name == "finish" else super()._refusal(action)


class Endless(WikiEnvironment):
    def _live_task(self) -> Task:
        return super()._live_task() if self._task is None or self._closed < len(self._task.parts) else self._task


class Shouting(WikiEnvironment):
    tools = ("Search", "finish")


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (Telling, "never says whether"),
        (Hopeful, "stays doomed"),
        (Generous, "costs the full reward"),
        (Blind, "foreseen"),
        (Impatient, "foresee changes nothing"),
        (Lenient, "of the invalid"),
        (Endless, "after the end"),
        (Shouting, "lower case"),
    ],
)
def test_the_check_finds_a_broken_promise(broken: type[WikiEnvironment], promise: str) -> None:
    with pytest.raises(AssertionError, match=promise):
        check_environment(broken, TASK)


def test_the_script_is_played_in_order() -> None:
    script = [
        Observation("Ada lives in Brosk.", "content"),
        Observation("And now?", "next_part", doomed=True),
        Observation("Finished.", "finish", done=True),
    ]
    env = ScriptedEnvironment(script)
    with pytest.raises(UsageError, match="reset"):
        env.step(Action("search", "Ada"))
    assert env.reset(TASK) == TASK.parts[0].question
    finish = Action("finish", "Brosk")
    assert env.foresee(finish) == Foresight()
    assert env.step(Action("search", "Ada")) == script[0]
    assert env.foresee(finish) == Foresight(events=(("part", 1),))
    assert env.step(finish) == script[1]
    assert env.foresee(finish) == Foresight(events=(("part", 2),), final=True)
    assert env.step(finish) == script[2]
    assert env.actions == [Action("search", "Ada"), finish, finish]
    with pytest.raises(UsageError, match="over"):
        env.step(finish)
    env.reset(TASK)
    assert env.actions == []


def test_environments_and_testing_import_nothing_heavy() -> None:
    code = (
        "import sys, probecascade.testing, probecascade.environments, probecascade.agents.parser; "
        "print([name for name in ('torch', 'transformers', 'sklearn', 'pytest') if name in sys.modules])"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
