from __future__ import annotations

import gzip
import itertools
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from probecascade.environments import (
    AtlasSettings,
    Example,
    WikiEnvironment,
    atlas_environment,
    atlas_examples,
    atlas_task,
    atlas_tasks,
    load_tasks,
)
from probecascade.environments.atlas import DISTRACTORS, QUESTIONS
from probecascade.environments.names import _permuted, invented_name, names_of_length
from probecascade.episode import Action, Paragraph, Part, Task
from probecascade.errors import UsageError
from probecascade.interfaces import Environment

ROOT = Path(__file__).parents[2]
FROZEN = ROOT / "data" / "atlas" / "tasks.jsonl.gz"
RICH = AtlasSettings(groups=40, parts=3, distractors=DISTRACTORS)


@pytest.fixture(scope="module")
def frozen() -> list[Task]:
    return load_tasks(FROZEN)


def names_in(task: Task) -> set[str]:
    """Every invented name: the words that stand capitalised inside a sentence, and the titles."""
    words = {word for page in task.paragraphs for text in page.sentences for word in re.findall(r"\b[A-Z]\w+", text)}
    titles = {page.title for page in task.paragraphs}
    return (words - {"The"}) | titles | {answer for part in task.parts for answer in part.answers}


def read(env: Environment, title: str) -> str:
    for _ in range(2):
        seen = env.step(Action("search", title))
        if seen.kind == "content":
            return seen.text
        assert seen.kind == "tool_error"
    raise AssertionError(f"{title} did not come even when tried again")


def find(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    assert found, f"{pattern} is not in {text}"
    return found[1]


def solve(env: Environment, question: str) -> str:
    """Answer a question from nothing but its words and the pages."""
    home = find(r"lives in (\w+)", read(env, find(r"(\w+)(?: live)?\?$", question)))
    if question.startswith("In which city"):
        return home
    page = read(env, home)
    if "mayor" in question:
        return find(r"mayor of \w+ is (\w+)", page)
    country = find(r"a city in (\w+)", page)
    if "currency" not in question:
        return country
    return find(r"currency of \w+ is (?:now )?the (\w+)", read(env, country))


def play(task: Task, settings: AtlasSettings, seed: int) -> float:
    env = atlas_environment(settings, seed)
    question = env.reset(task)
    for _ in task.parts:
        seen = env.step(Action("finish", solve(env, question)))
        question = seen.text
    assert seen.done
    return seen.reward


def test_the_frozen_set_is_what_the_generator_makes(frozen: list[Task]) -> None:
    assert frozen == list(atlas_tasks(AtlasSettings()))


def test_prepare_rebuilds_the_frozen_file(tmp_path: Path) -> None:
    output = tmp_path / "tasks.jsonl.gz"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "7"}
    script = ROOT / "data" / "atlas" / "prepare.py"
    subprocess.run([sys.executable, str(script), str(output)], check=True, env=environment, cwd=tmp_path)
    # another zlib may pack the same text differently
    assert gzip.decompress(output.read_bytes()) == gzip.decompress(FROZEN.read_bytes())


def test_there_are_enough_groups_of_one_task_each(frozen: list[Task]) -> None:
    assert len(frozen) >= 1200
    assert len({task.group for task in frozen}) == len(frozen)
    assert len({task.task_id for task in frozen}) == len(frozen)


def test_no_name_is_shared_across_groups_or_with_the_examples(frozen: list[Task]) -> None:
    owner: dict[str, str] = {}
    for task in frozen:
        for name in names_in(task):
            assert owner.setdefault(name, task.group) == task.group
    assert len(owner) > 20 * len(frozen)
    for example in atlas_examples(AtlasSettings()):
        said = " ".join(f"{turn.thought} {turn.observation}" for part in example for turn in part.turns)
        assert not [word for word in re.findall(r"\w+", said) if word in owner]


def test_every_frozen_task_is_solved_by_reading(frozen: list[Task]) -> None:
    settings = replace(AtlasSettings(), flakiness=0.5)
    assert {play(task, settings, seed) for seed, task in enumerate(frozen)} == {1.0}


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("distractors", [(), ("birthplace", "former"), DISTRACTORS])
def test_every_question_type_is_solved_by_reading(question: str, distractors: tuple[str, ...]) -> None:
    settings = replace(RICH, question=question, distractors=distractors)
    for task in atlas_tasks(settings):
        assert play(task, settings, seed=3) == 1.0


@pytest.mark.parametrize("question", QUESTIONS)
def test_no_answer_stands_in_a_question_and_no_page_is_superfluous(question: str) -> None:
    for task in atlas_tasks(replace(RICH, question=question)):
        asked = {word for part in task.parts for word in re.findall(r"\w+", part.question)}
        assert not asked & {answer for part in task.parts for answer in part.answers}
        titles = {page.title for page in task.paragraphs}
        for part, path in zip(task.parts, task.attributes["path"], strict=True):
            assert set(path) < titles
            assert path[0] in part.question
            first = next(page for page in task.paragraphs if page.title == path[0])
            assert (part.answers[0] in first.text) == (question == "city")
        mentioned = names_in(task)
        assert titles <= mentioned


def test_distractors_put_wrong_facts_of_the_right_kind_on_the_way() -> None:
    def countries(task: Task) -> int:
        return sum(" is a country." in page.text for page in task.paragraphs)

    plain, born, former, neighbour = (
        atlas_task(replace(RICH, distractors=kinds), 5)
        for kinds in ((), ("birthplace",), ("birthplace", "former"), DISTRACTORS)
    )
    assert [countries(task) for task in (plain, born, former, neighbour)] == [3, 6, 9, 12]
    assert "born in" not in " ".join(page.text for page in plain.paragraphs)
    assert all(f"{path[0]} " in text and "born in" in text for text, path in pages_on_path(born, 0))
    assert all("once part of" in text for text, _ in pages_on_path(former, 1))
    assert all("near the border with" in text and "mayor" in text for text, _ in pages_on_path(neighbour, 1))


def pages_on_path(task: Task, step: int) -> list[tuple[str, list[str]]]:
    texts = {page.title: page.text for page in task.paragraphs}
    return [(texts[path[step]], path) for path in task.attributes["path"]]


def test_the_right_fact_is_neither_always_first_nor_always_last() -> None:
    home_first = [
        text.index("lives in") < text.index("born in")
        for task in atlas_tasks(replace(RICH, groups=300))
        for text, _ in pages_on_path(task, 0)
    ]
    assert 0.4 < sum(home_first) / len(home_first) < 0.6


def test_a_group_does_not_depend_on_how_many_there_are() -> None:
    few, many = AtlasSettings(groups=3), AtlasSettings(groups=10**9)
    assert list(atlas_tasks(few)) == list(itertools.islice(atlas_tasks(many), 3))
    assert atlas_task(few, 2) == list(atlas_tasks(few))[2]
    assert atlas_task(few, 2000).group not in {task.group for task in atlas_tasks(few)}


def test_a_seed_makes_its_own_world() -> None:
    one, other = atlas_task(AtlasSettings(), 0), atlas_task(AtlasSettings(seed=1), 0)
    assert one.group != other.group
    assert names_in(one).isdisjoint(names_in(other))


def test_question_types_share_groups_but_not_ids() -> None:
    one, other = atlas_task(AtlasSettings(), 4), atlas_task(AtlasSettings(question="currency"), 4)
    assert one.group == other.group
    assert one.task_id != other.task_id


@pytest.mark.parametrize(
    "settings",
    [AtlasSettings(question=question) for question in QUESTIONS]
    + [AtlasSettings(parts=1), AtlasSettings(flakiness=0.0), AtlasSettings(distractors=DISTRACTORS, seed=9)],
)
def test_worked_examples_show_what_a_run_needs(settings: AtlasSettings) -> None:
    errand, misspelt, retried = atlas_examples(settings)
    assert len(errand) == min(settings.parts, 2)
    assert kinds_seen(errand) == kinds_seen(errand[:1])
    slip, mended = misspelt[0].turns[:2]
    assert slip.observation.startswith(f"Could not find {slip.action.argument}. Similar: ")
    assert mended.action.argument in slip.observation
    assert mended.action.argument in misspelt[0].question
    errors = [turn for turn in retried[0].turns if turn.observation == "The wiki did not answer. Try again."]
    assert len(errors) == (1 if settings.flakiness else 0)
    for failed in errors:
        again = retried[0].turns[retried[0].turns.index(failed) + 1]
        assert again.action == failed.action
        assert again.observation.startswith(f"{again.action.argument}: ")
    for example in (errand, misspelt, retried):
        check_reasoning(example)


def kinds_seen(example: Example) -> set[str]:
    return {turn.observation.split(".")[0].split()[0] for part in example for turn in part.turns[:1]} & {
        "Could",
        "The",
    }


def check_reasoning(example: Example) -> None:
    """Every answer is right by the pages shown, and every thought says what its action does."""
    for part in example:
        *searches, last = part.turns
        assert last.action.name == "finish"
        assert last.observation == ""
        assert [turn.action.name for turn in searches] == ["search"] * len(searches)
        shown = [turn.observation.split(": ", 1) for turn in searches if ": " in turn.observation]
        pages = tuple(Paragraph(title, (text,)) for title, text in shown if not title.startswith("Could"))
        env = WikiEnvironment()
        env.reset(Task("example", "example", (Part(part.question, (last.action.argument,)),), pages))
        assert solve(env, part.question) == last.action.argument
        assert all(turn.action.argument[:2] in turn.thought for turn in part.turns)
        assert last.thought.endswith(f"the answer is {last.action.argument}.")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"groups": 0}, "groups is 0"),
        ({"parts": 0}, "parts is 0"),
        ({"question": "river"}, "choose from city, country, mayor, currency"),
        ({"distractors": ("birthplace", "weather")}, "'weather'"),
        ({"syllables": (4,)}, "syllables"),
        ({"syllables": ()}, "syllables"),
        ({"flakiness": 1.5}, "flakiness"),
    ],
)
def test_settings_out_of_range_are_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        replace(AtlasSettings(), **change)  # type: ignore[arg-type]


def test_groups_that_do_not_exist_are_refused() -> None:
    with pytest.raises(UsageError, match="count from 0"):
        atlas_task(AtlasSettings(), -1)
    with pytest.raises(UsageError, match="names of 2 syllables"):
        atlas_task(AtlasSettings(syllables=(2, 3)), 10**6)


@pytest.mark.parametrize("size", [2, 3, 7, 64, 1000])
def test_the_scattering_is_a_permutation(size: int) -> None:
    assert sorted(_permuted(index, size, "key") for index in range(size)) == list(range(size))


def test_names_are_distinct_and_can_be_said() -> None:
    names = [invented_name(number, 0, (2, 3)) for number in range(30_000)]
    assert len(set(names)) == len(names)
    said = re.compile(
        r"([bdfjklmnrstv]|br|dr|fl|fr|kl|kr|sk|sl|sn|st|th|tr)[aeiou]([bdfjklmnrstv][aeiou]){1,2}([dklmnrs]|th)?"
    )
    assert all(said.fullmatch(name.lower()) and name.istitle() for name in names)
    assert names_of_length(2) == 24 * 5 * 12 * 5 * 9
