"""What `inspect` says of an episode's task: what was asked, which answers count as right, and what it came to."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from probecascade.errors import ProbecascadeError

if TYPE_CHECKING:
    from probecascade.episode import Episode, Task
    from probecascade.store import Run

_SHOWN = 5  # right answers of a part that are printed; --json has all


def asked(episode: Episode) -> str:
    """What the task of an episode is called: text games have a goal, all others a question."""
    return "Goal" if "game" in episode.attributes else "Question"


def recipe_task(run: Run, episode: Episode) -> Task | None:
    """The episode's task, from the tasks of the run's recipe; None where they cannot be made again."""
    from probecascade.cli.recipes import EnvironmentSection, TasksSection
    from probecascade.cli.tasks import task_of

    recipe = run.header.get("recipe", {})
    try:
        sections = TasksSection(**recipe["tasks"]), EnvironmentSection(**recipe.get("environment", {}))
        return task_of(episode.task_id, *sections)
    except (KeyError, TypeError, ValueError, ProbecascadeError):
        return None  # another agent's run, or a task file that is gone


def success_reward(run: Run) -> float | None:
    """The reward from which on an episode of the run is a success; None where no recipe of a played run tells it."""
    recipe = run.header.get("recipe")
    if not isinstance(recipe, dict) or not isinstance(recipe.get("environment"), dict):
        return None
    return float(recipe["environment"].get("success_reward") or 1.0)


def told_of(episode: Episode, task: Task | None, needed: float | None) -> dict[str, Any]:
    """The question, the answers given and right, one a part, and the reward that makes a success, as JSON values."""
    parts = [] if task is None else task.parts
    return {
        "question": parts[0].question if parts else None,
        "answers_given": _given(episode),
        "answers_right": [list(part.answers) for part in parts] or None,
        "success_reward": needed,
    }


def ending(episode: Episode, task: Task | None, needed: float | None) -> list[str]:
    """What was answered in each part and what would have been right, where known, and the reward: a line each."""
    parts = [] if task is None else [part.answers for part in task.parts if part.answers]
    lines = []
    for number, (answers, given) in enumerate(itertools.zip_longest(parts, _given(episode)[: len(parts)]), 1):
        others = f" or {len(answers) - _SHOWN} others" if len(answers) > _SHOWN else ""
        part = f"part {number}: " if len(parts) > 1 else ""
        said = "no answer" if given is None else f"answer {given!r}"
        lines.append(f"{part}{said}; right: {' or '.join(map(repr, answers[:_SHOWN]))}{others}")
    threshold = "" if needed is None else f", {needed:.2f} makes a success"
    told = episode.outcome != "unlabelled" or episode.reward
    reward = f"reward {episode.reward:.2f}{threshold}" if told else "no reward is told"
    return [f"{lines[0]}; {reward}"] if len(lines) == 1 else [*lines, reward]


def _given(episode: Episode) -> list[str]:
    return [step.argument for step in episode.steps if step.action == "finish"]
