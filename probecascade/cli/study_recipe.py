"""What a recipe asks of a study: its conditions, and whether they can be played."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Sequence
from pathlib import Path

from probecascade.cli.recipes import ExtractRecipe, read_extract
from probecascade.cli.session import Session
from probecascade.cli.tasks import TaskSet
from probecascade.episode import Task
from probecascade.errors import UsageError
from probecascade.evaluation.judged_useless import LEAST_BUDGET
from probecascade.policies import Cascade
from probecascade.policies.judged import CONDITIONS

TUNED = "tuned"  # the condition whose k is chosen on the development episodes
JUDGES = ("side", "odds", "thought", "lexical", "probe", "random")
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
    if recipe.tasks.repeats > 1:
        raise UsageError("a study plays every question once under each regime and condition: drop repeats in [tasks].")
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


def check_named(path: Path, against: str | None, by: str | None) -> None:
    """UsageError for a condition to compare against, or a judge to measure by, that the recipe does not have."""
    study = read_extract(path).study
    if against is not None and (against not in study.conditions or len(study.conditions) < 2):
        raise UsageError(
            f"nothing can be compared against {against!r}: the conditions in [study] are {', '.join(study.conditions)}."
        )
    if by is not None and by not in JUDGES:
        raise UsageError(f"there is no judge {by!r}: choose from {', '.join(JUDGES)}.")


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


def check_layers(session: Session) -> None:
    """UsageError where only the embeddings are kept, in which a probe of evidence cannot see what was read."""
    if not any(session.engine.layers):
        raise UsageError("the probe of evidence reads the output of a block: keep a layer above 0 in [capture].")


def cascade_of(recipe: ExtractRecipe, session: Session) -> Cascade | None:
    """The cascade of the recipe, None without one.

    CascadeError for one of another model, UsageError where its gates cannot be read or it has seen the tasks.
    """
    if recipe.study.cascade is None:
        return None
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


def cascade_digest(recipe: ExtractRecipe) -> str | None:
    """A checksum of the cascade's folder; None without one."""
    if recipe.study.cascade is None:
        return None
    files = sorted(path for path in Path(recipe.study.cascade).rglob("*") if path.is_file())
    return hashlib.sha256(b"".join(hashlib.sha256(path.read_bytes()).digest() for path in files)).hexdigest()[:16]


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
    if base in JUDGES:
        return "enforced", base, k
    raise UsageError(
        f"the condition {name!r} in [study] is unknown: choose from {', '.join(CONDITIONS)}, {TUNED}, {CASCADE}, the "
        f"judges {', '.join(JUDGES)}, and add _k3 for another k."
    )
