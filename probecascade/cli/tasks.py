"""The tasks that a recipe names, the environment that each is played in, and which tasks no run has seen."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from probecascade.cli.recipes import EnvironmentSection, ExtractRecipe, TasksSection
from probecascade.environments import (
    AtlasSettings,
    Example,
    atlas_environment,
    atlas_examples,
    atlas_task,
    load_tasks,
)
from probecascade.episode import Task
from probecascade.errors import NothingToDoError, UsageError
from probecascade.interfaces import Environment

_FRESH = 2000  # tasks beyond a recipe's that are looked through, since a generated world has no end


@dataclass(frozen=True)
class TaskSet:
    """`tasks` are those of the recipe, in its order; `settings` shape the environment and the worked examples.

    The examples are always those of the invented world, made flaky where the environment is: they show the
    format, whatever the tasks are about.
    """

    tasks: tuple[Task, ...]
    settings: AtlasSettings
    beyond: tuple[Task, ...] | None = field(default=())  # later tasks of a file; None: the world has no end

    def environment(self, task: Task, seed: int) -> Environment:
        """A new environment for one episode of a task."""
        return atlas_environment(self.settings, seed)

    def examples(self) -> tuple[Example, ...]:
        """The worked examples of the prompt."""
        return atlas_examples(self.settings)

    def world(self) -> dict[str, int]:
        """The seed of the generated world as an attribute of its episodes; nothing for tasks from a file."""
        return {"world": self.settings.seed} if self.beyond is None else {}

    def first(self, limit: int | None) -> tuple[Task, ...]:
        """The first `limit` tasks (None: all). NothingToDoError if that leaves none."""
        check_limit(limit)
        chosen = self.tasks[:limit]
        if not chosen:
            raise NothingToDoError("no episodes to run: the limit of 0 leaves no task; raise --limit.")
        return chosen

    def fresh(self) -> Iterator[Task]:
        """Tasks of groups beyond those of the recipe, which are in no run that was made with it."""
        if self.beyond is None:
            return (atlas_task(self.settings, group) for group in itertools.count(len(self.tasks)))
        return iter(self.beyond)


def task_set(recipe: ExtractRecipe) -> TaskSet:
    """Make or read the tasks of a recipe. UsageError or DataError for a file that cannot be read."""
    return _tasks(recipe.tasks, recipe.environment)


def task_of(task_id: str, chosen: TasksSection, environment: EnvironmentSection) -> Task | None:
    """The task of that id among those of a recipe and the first `_FRESH` beyond; None where it is none of them."""
    every = _tasks(chosen, environment)
    among = itertools.chain(every.tasks, itertools.islice(every.fresh(), _FRESH))
    return next((task for task in among if task.task_id == task_id), None)


def _tasks(chosen: TasksSection, environment: EnvironmentSection) -> TaskSet:
    if chosen.set == "atlas":
        settings = _atlas_settings(chosen, environment.flakiness)
        return TaskSet(tuple(atlas_task(settings, g) for g in range(settings.groups)), settings, None)
    loaded = load_tasks(chosen.set)
    groups = list(dict.fromkeys(task.group for task in loaded))
    taken = set(groups[: chosen.groups])
    parts = min(2, max(len(task.parts) for task in loaded))
    return TaskSet(
        tuple(task for task in loaded if task.group in taken),
        AtlasSettings(parts=parts, flakiness=environment.flakiness),
        tuple(task for task in loaded if task.group not in taken),
    )


def repeated(tasks: Iterable[Task], recipe: ExtractRecipe) -> Iterator[tuple[Task, int]]:
    """Every task with the seed of each of its episodes, task by task."""
    for task in tasks:
        for repeat in range(recipe.tasks.repeats):
            yield task, recipe.agent.seed + repeat


def check_limit(limit: int | None) -> None:
    """UsageError for a limit below 0."""
    if limit is not None and limit < 0:
        raise UsageError(f"--limit is {limit}: give the number of tasks to take, such as 20.")


def _atlas_settings(chosen: TasksSection, flakiness: float) -> AtlasSettings:
    given = {
        key: value
        for key in ("seed", "groups", "parts", "question", "distractors", "distracted")
        if (value := getattr(chosen, key)) is not None
    }
    return AtlasSettings(flakiness=flakiness, **given)
