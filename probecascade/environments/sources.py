"""A second source of evidence beside the first, so that an agent may turn from one that fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from probecascade.episode import Action, Foresight, Observation, Task
from probecascade.errors import UsageError
from probecascade.interfaces import Environment

BACKUP = "backup_search"
"""The tool that searches the second source."""


class TwoSources:
    """An environment whose `search` asks a first source and whose `backup_search` asks a second.

    `first` is the environment as a whole: it states the task, keeps every tool of its own and scores the answer; it
    may be a wrapper that makes its tools fail. `second` serves searches only. UsageError for a source without
    `search`, or a first one that has a `backup_search` already.
    """

    def __init__(self, first: Environment, second: Environment) -> None:
        for number, source in (("first", first), ("second", second)):
            if "search" not in source.tools:
                raise UsageError(f"the {number} source has the tools {', '.join(source.tools)}: give one with search.")
        if BACKUP in first.tools:
            raise UsageError(f"the first source has a tool {BACKUP} already: give it as a plain environment.")
        self.first, self.second = first, second
        others = [tool for tool in first.tools if tool != "finish"]
        self.tools: Sequence[str] = (*others, BACKUP, "finish")
        self._live = False

    @property
    def usage(self) -> str:
        """The tools as an instruction names them."""
        forms = {"search": "Search[title]", "lookup": "Lookup[keyword]", BACKUP: "Backup_search[title]"}
        *others, last = (forms.get(tool, f"{tool.capitalize()}[answer]") for tool in self.tools)
        return f"{', '.join(others)} or {last}"

    def reset(self, task: Task) -> str:
        """Start the task in both sources; the first states it."""
        self.second.reset(task)
        self._live, self._doomed = True, False
        return self.first.reset(task)

    def foresee(self, action: Action) -> Foresight:
        """What the source that the action asks foresees; an argument counts as seen if either source has shown it."""
        if not self._backs_up(action):
            foresight = self.first.foresee(action)
            return self._with_seen(foresight, self.second, action) if action.name == "search" else foresight
        search = replace(action, name="search")
        return self._with_seen(self.second.foresee(search), self.first, search)

    def step(self, action: Action) -> Observation:
        """Do the action in the source that it asks. Raises as the first source does."""
        if self._backs_up(action):
            seen = self.second.step(replace(action, name="search"))
            return replace(seen, doomed=self._doomed or seen.doomed)
        seen = self.first.step(action)
        self._doomed, self._live = bool(seen.doomed), not seen.done
        return seen

    def _backs_up(self, action: Action) -> bool:
        # outside an episode the first source says what is wrong
        return self._live and action.valid and action.name == BACKUP

    def _with_seen(self, foresight: Foresight, other: Environment, search: Action) -> Foresight:
        if "argument_seen" not in foresight.checks:
            return foresight
        elsewhere = other.foresee(search).checks.get("argument_seen", 0.0)
        seen = max(foresight.checks["argument_seen"], elsewhere)
        return replace(foresight, checks={**foresight.checks, "argument_seen": seen})
