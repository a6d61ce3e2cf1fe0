from __future__ import annotations

from collections.abc import Sequence

import pytest

from probecascade.environments import FlakyEnvironment, WikiEnvironment
from probecascade.episode import Action, Foresight, Observation, Paragraph, Part, Task
from probecascade.errors import UsageError

TITLES = [f"Page {letter}" for letter in "abcdefghijklmnopqrst"]
TASK = Task(
    "task-7",
    "g",
    (Part("First?", ("A",)), Part("Second?", ("B",))),
    tuple(Paragraph(title, (f"About {title}.",)) for title in TITLES),
)


def flaky(probability: float = 0.5, seed: int = 0, task: Task = TASK) -> FlakyEnvironment:
    env = FlakyEnvironment(WikiEnvironment(), probability, seed)
    env.reset(task)
    return env


def failures(env: FlakyEnvironment, titles: list[str]) -> list[bool]:
    return [env.step(Action("search", title)).kind == "tool_error" for title in titles]


def test_a_search_fails_at_first_and_works_when_tried_again() -> None:
    env = flaky(1.0)
    for title in TITLES:
        seen = env.step(Action("search", title))
        assert (seen.text, seen.kind) == (f"The wiki did not answer. Search {title} again.", "tool_error")
        assert (seen.done, seen.reward, bool(seen.doomed)) == (False, 0.0, False)
        assert env.step(Action("search", f" {title.upper()} ")).kind == "content"
        assert env.step(Action("search", title)).kind == "content"


def test_an_endless_argument_is_cut_in_the_answer() -> None:
    seen = flaky(1.0).step(Action("search", "Page  a\n" * 5000))
    assert seen.text.startswith("The wiki did not answer. Search Page a Page a")
    assert len(seen.text) < 150


def test_braces_in_an_argument_are_mere_characters() -> None:
    assert flaky(1.0).step(Action("search", "{0}{x}")).text == "The wiki did not answer. Search {0}{x} again."


def test_the_same_task_and_seed_meet_the_same_failures_whatever_is_searched() -> None:
    pattern = failures(flaky(), TITLES)
    assert failures(flaky(), TITLES[::-1]) == pattern
    assert failures(flaky(), [f"missing {title}" for title in TITLES]) == pattern
    env = flaky()
    mixed = []
    for title in TITLES:
        env.step(Action("", "", False, "Write an action."))
        env.step(Action("search", ""))
        mixed.append(env.step(Action("search", title)).kind == "tool_error")
        if title == TITLES[3]:
            env.step(Action("finish", "A"))
    assert mixed == pattern
    assert True in pattern
    assert False in pattern


def test_tasks_and_seeds_meet_different_failures() -> None:
    pattern = failures(flaky(), TITLES)
    assert failures(flaky(seed=1), TITLES) != pattern
    assert failures(flaky(task=Task("task-8", "g", TASK.parts, TASK.paragraphs)), TITLES) != pattern


def test_the_share_of_failures_is_the_probability() -> None:
    seen = [fails for seed in range(200) for fails in failures(flaky(0.2, seed), TITLES)]
    assert abs(sum(seen) / len(seen) - 0.2) < 4 * (0.2 * 0.8 / len(seen)) ** 0.5


def test_never_fails_at_probability_zero() -> None:
    assert not any(failures(flaky(0.0), TITLES))


def test_a_new_episode_starts_afresh() -> None:
    env = flaky()
    pattern = failures(env, TITLES)
    env.reset(TASK)
    assert failures(env, TITLES) == pattern


def test_only_searches_fail() -> None:
    env = flaky(1.0)
    assert env.foresee(Action("finish", "A")).events == (("part", 1),)
    assert env.step(Action("finish", "wrong")).kind == "next_part"
    failed = env.step(Action("search", TITLES[0]))
    assert (failed.kind, failed.doomed) == ("tool_error", True)
    assert env.step(Action("finish", "B")).done


def test_a_search_outside_an_episode_is_refused_by_the_wrapped_environment() -> None:
    env = FlakyEnvironment(WikiEnvironment(), 1.0)
    with pytest.raises(UsageError, match="reset"):
        env.step(Action("search", "Page a"))
    env.reset(TASK)
    env.step(Action("finish", "A"))
    env.step(Action("finish", "B"))
    with pytest.raises(UsageError, match="is over"):
        env.step(Action("search", "Page a"))


class EveryCallIsAnEvent:
    """A tool world in which a search itself ends the episode."""

    tools: Sequence[str] = ("search", "finish")

    def reset(self, task: Task) -> str:
        return "Go."

    def foresee(self, action: Action) -> Foresight:
        return Foresight(events=(("found", 1),), final=True, checks={"tool_exists": 1.0})

    def step(self, action: Action) -> Observation:
        return Observation("There.", "content", done=True, reward=1.0)


def test_nothing_is_foreseen_of_a_search_that_is_about_to_fail() -> None:
    env = FlakyEnvironment(EveryCallIsAnEvent(), 1.0)
    env.reset(TASK)
    search = Action("search", "x")
    doomed = env.foresee(search)
    assert (doomed.events, doomed.final) == ((), False)
    assert not env.step(search).done
    assert env.foresee(search).final
    assert env.foresee(search).checks == doomed.checks == {"tool_exists": 1.0}  # so that they give nothing away
    assert env.step(search).done


@pytest.mark.parametrize("probability", [-0.1, 1.5, float("nan")])
def test_a_probability_out_of_range_is_refused(probability: float) -> None:
    with pytest.raises(UsageError, match="from 0 to 1"):
        FlakyEnvironment(WikiEnvironment(), probability)
