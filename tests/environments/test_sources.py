from __future__ import annotations

import pytest

from probecascade.environments import (
    BACKUP,
    AtlasSettings,
    FailingEnvironment,
    PagePool,
    TwoSources,
    WikiEnvironment,
    atlas_task,
    atlas_tasks,
)
from probecascade.episode import Action
from probecascade.errors import UsageError
from probecascade.testing import ScriptedEnvironment, check_environment

TASKS = list(atlas_tasks(AtlasSettings(groups=12, parts=1, question="currency", distractors=("birthplace",))))
TASK = TASKS[0]
TITLE = TASK.paragraphs[0].title


def both(regime: str = "persistent", **options: bool) -> TwoSources:
    failing = FailingEnvironment(WikiEnvironment(**options), regime, "unrelated", PagePool(TASKS))
    return TwoSources(failing, WikiEnvironment())


@pytest.mark.parametrize("parts", [1, 3])
def test_two_sources_keep_the_contract(parts: int) -> None:
    task = atlas_task(AtlasSettings(parts=parts), 0)
    check_environment(lambda: TwoSources(WikiEnvironment(), WikiEnvironment()), task)
    check_environment(lambda: TwoSources(WikiEnvironment(lookup=True), WikiEnvironment()), task)
    if parts == 1:
        check_environment(both, TASK)


def test_the_second_source_is_true_where_the_first_fails() -> None:
    environment = both()
    assert environment.tools == ("search", BACKUP, "finish")
    environment.reset(TASK)
    plain = WikiEnvironment()
    plain.reset(TASK)
    page = plain.step(Action("search", TITLE)).text
    failed, found = environment.step(Action("search", TITLE)), environment.step(Action(BACKUP, TITLE))
    assert failed.injected == "unrelated"
    assert found.text == page != failed.text
    assert not found.injected
    assert environment.step(Action("finish", TASK.parts[0].answers[0])).reward == 1.0


def test_calls_of_the_second_source_are_not_counted_as_the_firsts() -> None:
    environment = both("recover_after_1")
    environment.reset(TASK)
    environment.step(Action(BACKUP, TITLE))
    assert environment.step(Action("search", TITLE)).injected
    assert not environment.step(Action("search", TITLE)).injected


def test_what_either_source_has_shown_is_seen() -> None:
    task = atlas_task(AtlasSettings(), 0)
    page, other = task.paragraphs[0], "A name that no page has"
    environment = TwoSources(WikiEnvironment(), WikiEnvironment())
    environment.reset(task)
    sentence = next(s for s in page.sentences if s)[:40]
    asked = {name: Action(name, sentence) for name in ("search", BACKUP)}
    before = [environment.foresee(action).checks["argument_seen"] for action in asked.values()]
    environment.step(Action(BACKUP, page.title))
    after = [environment.foresee(action).checks["argument_seen"] for action in asked.values()]
    assert (before, after) == ([0.0, 0.0], [1.0, 1.0])
    assert environment.foresee(Action("search", other)).checks["argument_seen"] == 0.0


def test_an_episode_that_is_over_or_has_not_begun_has_no_second_source() -> None:
    environment = TwoSources(WikiEnvironment(), WikiEnvironment())
    with pytest.raises(UsageError, match="no task yet"):
        environment.step(Action(BACKUP, TITLE))
    environment.reset(TASK)
    environment.step(Action("finish", "x"))
    with pytest.raises(UsageError, match="is over"):
        environment.step(Action(BACKUP, TITLE))


def test_usage_names_every_tool() -> None:
    assert both(lookup=True).usage == "Search[title], Lookup[keyword], Backup_search[title] or Finish[answer]"


def test_sources_that_cannot_be_two_are_refused() -> None:
    with pytest.raises(UsageError, match="the second source has the tools finish: give one with search"):
        TwoSources(WikiEnvironment(), ScriptedEnvironment([], tools=("finish",)))
    with pytest.raises(UsageError, match="has a tool backup_search already"):
        TwoSources(both(), WikiEnvironment())
