"""The tasks that a recipe names, the environment that each is played in, and which tasks no run has seen."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probecascade.cli.recipes import EnvironmentSection, ExtractRecipe, TasksSection
from probecascade.environments import (
    F1_SUCCESS,
    AtlasSettings,
    Example,
    FailingEnvironment,
    Failure,
    FlakyEnvironment,
    PagePool,
    TextGameEnvironment,
    TwoSources,
    WikiEnvironment,
    WikiSettings,
    atlas_environment,
    atlas_examples,
    atlas_task,
    game_tasks,
    open_tasks,
    played_as,
    shown_by,
    tasks_of,
    worked_examples,
    worked_games,
)
from probecascade.environments.games import STEPS, check_games_extra
from probecascade.environments.scoring import check_scorable
from probecascade.episode import Task
from probecascade.errors import NothingToDoError, UsageError
from probecascade.interfaces import Environment

_ROUNDS, _PUBLIC_ROUNDS = 20, 8  # rounds of an episode unless the recipe says: own tasks, those of public sets
_OF_A_WIKI = ("search", "lookup", "score", "success_reward", "sentences")
_SCENE = 512  # tokens: a kitchen of ALFWorld with its forty things takes some 250, a room of TextWorld 200
_FRESH = 2000  # tasks beyond a recipe's that are looked through, since a generated world has no end


@dataclass(frozen=True)
class Failing:
    """The injected failures of a recipe; `pool` are the pages that may be shown to other tasks."""

    regimes: tuple[str, ...]
    kind: Failure
    pool: PagePool

    def around(self, environment: Environment, wiki: WikiSettings, task: Task) -> Environment:
        """The environment, a wiki of these settings, with the failures that this task is played under."""
        shown = shown_by(WikiEnvironment.of(wiki))
        return FailingEnvironment(environment, self.regime(task), self.kind, self.pool, shown)

    def regime(self, task: Task) -> str:
        """Under which failures a task is played."""
        return task.variant or self.regimes[0]

    def variants(self, task: Task) -> tuple[Task, ...]:
        """The task once for each of several regimes, as it is where there is only one."""
        if len(self.regimes) == 1:
            return (task,)
        return tuple(dataclasses.replace(task, variant=regime) for regime in self.regimes)


@dataclass(frozen=True)
class TaskSet:
    """`tasks` are those of the recipe, in its order; `settings` shape the invented world, `wiki` what is searched.

    The worked examples of public sets are questions or claims; those of all other tasks are of the invented world,
    made flaky where the environment is: they show the format, whatever the tasks are about.
    """

    tasks: tuple[Task, ...]
    settings: AtlasSettings = field(default_factory=AtlasSettings)
    beyond: tuple[Task, ...] | None = field(default=())  # later tasks of a file; None: the world has no end
    wiki: WikiSettings = field(default_factory=WikiSettings)
    public: bool = False
    max_rounds: int = _ROUNDS
    failing: Failing | None = None
    backup: bool = False

    @property
    def usage(self) -> str:
        """The tools of the tasks as an instruction names them, such as "Search[title] or Finish[answer]"."""
        wiki = WikiEnvironment.of(self.wiki)
        return TwoSources(wiki, wiki).usage if self.backup else wiki.usage

    @property
    def usual_rounds(self) -> int:
        """Rounds of an episode unless the recipe says."""
        return _PUBLIC_ROUNDS if self.public else _ROUNDS

    @property
    def longest_opening(self) -> int:
        """Tokens at most that an environment says at first beside the words of the task."""
        return 0

    def environment(self, task: Task, seed: int) -> Environment:
        """A new environment for one episode of a task."""
        environment = self._working(seed)
        if self.failing:
            environment = self.failing.around(environment, self.wiki, task)
        return TwoSources(environment, self._working(seed)) if self.backup else environment

    def _working(self, seed: int) -> Environment:
        if self.wiki == WikiSettings():
            return atlas_environment(self.settings, seed)
        wiki = WikiEnvironment.of(self.wiki)
        return FlakyEnvironment(wiki, self.settings.flakiness, seed) if self.settings.flakiness else wiki

    def examples(self) -> tuple[Example, ...]:
        """The worked examples of the prompt."""
        return worked_examples(self.wiki) if self.public else atlas_examples(self.settings)

    def settled(self, recipe: ExtractRecipe) -> ExtractRecipe:
        """The recipe of these tasks with what it leaves to them written in, where that is not the usual."""
        usual = WikiSettings()
        wiki = {key: value for key, value in dataclasses.asdict(self.wiki).items() if value != getattr(usual, key)}
        return dataclasses.replace(
            recipe,
            agent=dataclasses.replace(recipe.agent, max_rounds=self.max_rounds),
            environment=EnvironmentSection(
                recipe.environment.flakiness,
                failures=recipe.environment.failures,
                failure_kind=recipe.environment.failure_kind,
                backup=recipe.environment.backup,
                **wiki,
            ),
        )

    def episodes(self, tasks: Sequence[Task], recipe: ExtractRecipe) -> int:
        """How many episodes these tasks are: each as often as it is repeated, in each of its variants."""
        return recipe.tasks.repeats * sum(len(self.variants(task)) for task in tasks)

    def told_of(self, task: Task) -> dict[str, Any]:
        """Attributes of a task's episodes: the seed of the generated world, and the regime of injected failures."""
        world = {"world": self.settings.seed} if self.beyond is None else {}
        return {**world, "failures": self.failing.regime(task)} if self.failing else world

    def variants(self, task: Task) -> tuple[Task, ...]:
        """The task in each of the ways in which it is played."""
        return self.failing.variants(task) if self.failing else (task,)

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


@dataclass(frozen=True)
class GameSet(TaskSet):
    """Text games below `folder`; an episode may take as many commands as it has rounds."""

    folder: Path = Path()

    @property
    def usage(self) -> str:
        return TextGameEnvironment.usage

    @property
    def usual_rounds(self) -> int:
        return STEPS

    @property
    def longest_opening(self) -> int:
        return _SCENE

    def _working(self, seed: int) -> Environment:
        return TextGameEnvironment(self.folder, self.max_rounds)

    def examples(self) -> tuple[Example, ...]:
        return worked_games(self.folder, self.tasks)


def task_set(recipe: ExtractRecipe) -> TaskSet:
    """Make or read the tasks of a recipe. UsageError or DataError for a file that cannot be read, and for games
    without their extra."""
    chosen = _tasks(recipe.tasks, recipe.environment)
    check_scorable(itertools.chain(chosen.tasks, chosen.beyond or ()), chosen.wiki.score)
    if isinstance(chosen, GameSet):
        check_games_extra()
    rounds = recipe.agent.max_rounds or chosen.usual_rounds
    environment = recipe.environment
    return dataclasses.replace(
        chosen, max_rounds=rounds, failing=_failing(chosen, environment), backup=environment.backup
    )


def _failing(chosen: TaskSet, environment: EnvironmentSection) -> Failing | None:
    if environment.failures is None:
        return None
    kind = environment.failure_kind or "unrelated"
    if kind in ("unrelated", "plausible", "answerless") and not any(task.paragraphs for task in chosen.tasks):
        raise UsageError(
            f"failures of the kind {kind!r} are made of pages, and the tasks have none; choose another kind"
        )
    return Failing(environment.regimes, kind, PagePool(itertools.chain(chosen.tasks, chosen.beyond or ())))


def task_of(task_id: str, chosen: TasksSection, environment: EnvironmentSection) -> Task | None:
    """The task of that id among those of a recipe and the first `_FRESH` beyond; None where it is none of them."""
    every = _tasks(chosen, environment)
    among = itertools.chain(every.tasks, itertools.islice(every.fresh(), _FRESH))
    return next((task for task in among if task.task_id == task_id), None)


def _tasks(chosen: TasksSection, environment: EnvironmentSection) -> TaskSet:
    if chosen.set == "atlas":
        settings = _atlas_settings(chosen, environment.flakiness)
        wiki = _wiki(WikiSettings(), environment)
        return TaskSet(tuple(atlas_task(settings, g) for g in range(settings.groups)), settings, None, wiki)
    if chosen.set.endswith("/") or Path(chosen.set).is_dir():
        return _games(chosen, environment)
    file = open_tasks(chosen.set, chosen.pages)
    loaded = tasks_of(file)
    layout = played_as(file.layout, loaded)
    taken, beyond = _divided(loaded, chosen.groups)
    parts = min(2, max(len(task.parts) for task in loaded))
    settings = AtlasSettings(parts=parts, flakiness=environment.flakiness)
    return TaskSet(taken, settings, beyond, _wiki(layout.settings, environment), public=layout.read is not None)


def _games(chosen: TasksSection, environment: EnvironmentSection) -> GameSet:
    """The games below a folder. UsageError for settings of a wiki, since they have none."""
    given = [key for key in _OF_A_WIKI if getattr(environment, key) is not None]
    more = {"flakiness": environment.flakiness, "backup": environment.backup, "pages": chosen.pages is not None}
    given += [key for key, value in more.items() if value]
    if given:
        raise UsageError(
            f"{given[0]} is about searching a wiki, and {chosen.set!r} is a folder of games: drop it (failures with "
            'failure_kind = "tool_error", "empty" or "stale" can be had)'
        )
    taken, beyond = _divided(sorted(game_tasks(chosen.set), key=_mixed), chosen.groups)
    return GameSet(taken, beyond=beyond, folder=Path(chosen.set))


def _mixed(task: Task) -> bytes:
    """Puts groups into an order that does not depend on their names, for these begin with the kind of a game."""
    return hashlib.sha256(task.group.encode("utf-8", "surrogateescape")).digest()


def _divided(tasks: Sequence[Task], groups: int | None) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
    """The tasks of the first so many groups (None: all), and those of the others."""
    taken = set(list(dict.fromkeys(task.group for task in tasks))[:groups])
    return tuple(t for t in tasks if t.group in taken), tuple(t for t in tasks if t.group not in taken)


def _wiki(settings: WikiSettings, environment: EnvironmentSection) -> WikiSettings:
    """The settings that suit the tasks, changed as the recipe says; a score brings the reward that suits it."""
    given = {key: value for key in _OF_A_WIKI if (value := getattr(environment, key)) is not None}
    if "score" in given:
        given.setdefault("success_reward", F1_SUCCESS if given["score"] in ("f1", "set-f1") else 1.0)
    return dataclasses.replace(settings, **given)


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
