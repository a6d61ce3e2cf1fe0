"""Failures of a tool, injected from outside: a search may fail at first and works when tried again."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from probecascade.environments.wiki import ECHOED_CHARACTERS
from probecascade.episode import Action, Foresight, Observation, Task
from probecascade.errors import UsageError
from probecascade.interfaces import Environment

TOOL_ERROR = "The wiki did not answer. Search {argument} again."


class FlakyEnvironment:
    """Any environment, whose searches fail with `probability` when an argument is tried for the first time.

    Whether the n-th search of an episode would fail depends on the task's id, `seed` and n alone, so that
    the same task and seed meet the same failures under any policy. An argument (case and outer blanks
    aside) fails at most once in an episode. A failed search never reaches the wrapped environment.
    """

    def __init__(self, inner: Environment, probability: float, seed: int = 0) -> None:
        if not 0.0 <= probability <= 1.0:
            raise UsageError(f"the probability of a failed search is {probability}; give one from 0 to 1")
        self.inner = inner
        self.probability = probability
        self.seed = seed
        self.tools: Sequence[str] = inner.tools
        self._live = False

    def reset(self, task: Task) -> str:
        """Start the task in the wrapped environment."""
        question = self.inner.reset(task)
        self._live = True
        self._task_id = task.task_id
        self._searches = 0
        self._tried: set[str] = set()
        self._doomed: bool | None = None
        return question

    def foresee(self, action: Action) -> Foresight:
        """What the wrapped environment foresees; of a search that is about to fail only its checks.

        These are the same whether it fails or not, so that they do not give the failure away.
        """
        foresight = self.inner.foresee(action)
        return Foresight(checks=foresight.checks) if self._fails(action) else foresight

    def step(self, action: Action) -> Observation:
        """Fail (kind `tool_error`) or pass the action on."""
        fails = self._fails(action)
        if self._live and _is_search(action):
            self._searches += 1
            self._tried.add(_key(action))
        if fails:
            return Observation(tool_error(action), "tool_error", doomed=self._doomed)
        observation = self.inner.step(action)
        self._doomed = observation.doomed
        self._live = not observation.done
        return observation

    def _fails(self, action: Action) -> bool:
        if not self._live or not _is_search(action) or _key(action) in self._tried:
            return False  # outside an episode the wrapped environment says what is wrong
        return _draw(self._task_id, self.seed, self._searches) < self.probability


def tool_error(action: Action) -> str:
    """What the agent reads when a search failed."""
    return TOOL_ERROR.format(argument=" ".join(action.argument.split())[:ECHOED_CHARACTERS])


def _is_search(action: Action) -> bool:
    return action.valid and action.name == "search" and bool(action.argument.strip())


def _key(action: Action) -> str:
    return action.argument.strip().casefold()


def _draw(task_id: str, seed: int, searches: int) -> float:
    digest = hashlib.blake2b(f"{task_id}\x1f{seed}\x1f{searches}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53  # 53 bits: a double below 1.0, exactly
