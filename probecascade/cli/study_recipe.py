"""What a recipe asks of a study: its conditions, and whether they can be played."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from probecascade.cli.recipes import ExtractRecipe
from probecascade.cli.session import Session
from probecascade.cli.tasks import TaskSet
from probecascade.episode import Task
from probecascade.errors import UsageError
from probecascade.evaluation.judged_useless import LEAST_BUDGET
from probecascade.policies import Cascade
from probecascade.policies.judged import CONDITIONS

TUNED = "tuned"  # the condition whose k is chosen on the development episodes
CASCADE = "cascade"  # the condition in which a cascade's aborts become answers

_NAME = re.compile(r"(\w+?)(?:_k([1-9][0-9]?))?")


def check(recipe: ExtractRecipe) -> None:
    """UsageError for a recipe that makes no study, as far as it can be seen without tasks and model."""
    study, regimes = recipe.study, recipe.environment.regimes
    if len(regimes) < 2 and (regimes or study.learn is None):
        raise UsageError(
            "a study needs tools that fail and tools that do not: give several regimes in [environment], such as "
            'failures = ["clean", "persistent"]; or none, where pages are missing by nature, and with learn in [study] '
            "the folder of a study whose judges know failures."
        )
    if "observation" not in recipe.capture.checkpoints:
        raise UsageError('a study judges observations: add "observation" to checkpoints in [capture].')
    bases = {parts(name)[0] if name != CASCADE else CASCADE for name in study.conditions}
    if study.learn is not None and TUNED in study.conditions:
        raise UsageError("tuned needs development tasks of its own: drop it from conditions, or drop learn in [study].")
    if (CASCADE in bases) != (study.cascade is not None):
        raise UsageError(
            'the condition "cascade" and a cascade\'s folder belong together: give both in [study], or neither.'
        )
    if "switch" in bases and not recipe.environment.backup:
        raise UsageError('the condition "switch" needs a second source: set backup = true in [environment].')


def check_tasks(tasks: TaskSet) -> None:
    """UsageError for tasks of several questions, or of so few rounds that nothing can be measured."""
    if any(len(task.parts) > 1 for task in tasks.tasks):
        raise UsageError("a study needs tasks of one question each: set parts = 1 in [tasks].")
    if tasks.max_rounds < LEAST_BUDGET:
        raise UsageError(
            f"max_rounds in [agent] is {tasks.max_rounds}: give a study at least {LEAST_BUDGET}, for runs to grow."
        )


def held_out(recipe: ExtractRecipe, tasks: TaskSet) -> tuple[Task, ...]:
    """The tasks for development; none where it was done elsewhere."""
    if recipe.study.learn is not None:
        return ()
    found = tuple(itertools.islice(tasks.fresh(), recipe.study.development))
    if len(found) < recipe.study.development:
        raise UsageError(
            f"the study wants {recipe.study.development} tasks for development beside the {len(tasks.tasks)} of the "
            f"recipe, and {len(found)} are left: lower groups in [tasks] or development in [study]."
        )
    return found


def natural_regimes(tasks: Sequence[Task]) -> dict[str, str]:
    """By how many of the pages that hold its answer each task lacks: `missing_0`, `missing_1` ..."""
    found = {}
    for task in tasks:
        gold = dict.fromkeys(task.attributes.get("gold_titles", ()))
        if not gold:
            raise UsageError(
                f"the task {task.task_id!r} does not say which pages hold its answer, so that nothing tells whether "
                "any is missing: inject failures with failures in [environment]."
            )
        titles = {page.title for page in task.paragraphs}
        found[task.task_id] = f"missing_{sum(title not in titles for title in gold)}"
    return found


def cascade_of(recipe: ExtractRecipe, session: Session) -> Cascade:
    """The cascade of the recipe. CascadeError for one of another model, UsageError where its gates cannot be read."""
    assert recipe.study.cascade is not None
    cascade = Cascade.load(recipe.study.cascade)
    cascade.check_fits(session.header)
    missing = sorted(set(cascade.layers) - set(session.engine.layers))
    if missing:
        raise UsageError(f"the cascade reads layers {missing}: add them to layers in [capture].")
    seen = cascade.overlap(task.group for task in session.tasks.tasks)
    if seen:
        raise UsageError(
            f"the cascade was made on {len(seen)} of the study's tasks, such as {seen[0]!r}: make it on others, such "
            "as those of another seed in [tasks]."
        )
    return cascade


def parts(name: str) -> tuple[str, str | None, int | None]:
    """A condition's rule, its judge where it is not the study's, and its k where it is not the usual."""
    found = _NAME.fullmatch(name)
    base = found[1] if found else name
    k = int(found[2]) if found and found[2] else None
    if base in CONDITIONS:
        return base, None, k
    if name == TUNED:
        return "enforced", None, None
    if name == CASCADE:
        return "none", None, None
    if base in ("side", "odds", "thought", "lexical", "probe", "random"):
        return "enforced", base, k
    raise UsageError(
        f"the condition {name!r} in [study] is unknown: choose from {', '.join(CONDITIONS)}, {TUNED}, {CASCADE}, the "
        "judges side, odds, thought, lexical, probe and random, and add _k3 for another k."
    )
