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
    atlas_environment,
    atlas_examples,
    atlas_task,
    atlas_tasks,
    load_tasks,
)
from probecascade.environments.atlas import DISTRACTORS, QUESTIONS
from probecascade.environments.flaky import tool_error
from probecascade.environments.names import CODAS, ENDINGS, GIVEN, ONSETS, VOWELS, _permuted, invented_name, names_of
from probecascade.episode import Action, Task
from probecascade.errors import UsageError
from probecascade.interfaces import Environment

ROOT = Path(__file__).parents[2]
FROZEN = ROOT / "data" / "atlas" / "tasks.jsonl.gz"
RICH = AtlasSettings(groups=40, parts=3, question="country", distractors=DISTRACTORS, distracted=1.0)
FLAKY = AtlasSettings(parts=3, flakiness=0.2)
NAME = re.compile(rf"\b(?:(?:{'|'.join(GIVEN)}) )?[A-Z]\w+")


@pytest.fixture(scope="module")
def frozen() -> list[Task]:
    return load_tasks(FROZEN)


def names_in(task: Task) -> set[str]:
    """Every invented name: the words that stand capitalised inside a sentence, and the titles."""
    words = {word for page in task.paragraphs for text in page.sentences for word in NAME.findall(text)}
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
    person = read(env, find(r"(\w+ \w+)(?: live)?\?$", question))
    home = find(r"(?:in the city of|lives in(?! (?:\w+, in )?the city)) (\w+)", person)
    if question.startswith("In which city"):
        return home
    page = read(env, home)
    if "mayor" in question:
        return find(r"mayor of \w+ is (\w+ \w+)", page)
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
    assert len(owner) >= 4 * sum(len(task.parts) for task in frozen)
    for example in atlas_examples(AtlasSettings()):
        said = " ".join(f"{turn.thought} {turn.observation}" for part in example for turn in part.turns)
        assert len(set(NAME.findall(said)) - {"The"}) > 3
        assert not set(NAME.findall(said)) & set(owner)


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
    # the city of birth would hide the country that `residence` asks for
    distractors = tuple(kind for kind in DISTRACTORS if question != "residence" or kind != "birthplace")
    for task in atlas_tasks(replace(RICH, question=question, parts=1, distractors=distractors)):
        for part, path in zip(task.parts, task.attributes["path"], strict=True):
            assert not any(answer in other.question for answer in part.answers for other in task.parts)
            assert path[0] in part.question
            first = next(page for page in task.paragraphs if page.title == path[0])
            assert (part.answers[0] in first.text) == (len(path) == 1)
        for page in task.paragraphs:
            elsewhere = [other.text for other in task.paragraphs if other is not page]
            assert any(page.title in text for text in [*elsewhere, *(part.question for part in task.parts)])


def test_distractors_put_wrong_facts_of_the_right_kind_on_the_way() -> None:
    def countries(task: Task) -> int:
        return sum(" is a country." in page.text for page in task.paragraphs)

    plain, born, former, neighbour = (
        atlas_task(replace(RICH, distractors=kinds), 5)
        for kinds in ((), ("birthplace",), ("birthplace", "former"), DISTRACTORS)
    )
    assert [countries(task) for task in (plain, born, former, neighbour)] == [3, 6, 9, 12]
    assert "born in" not in " ".join(page.text for page in plain.paragraphs)
    assert all(f"{path[0]} " in text and "born in" in text for text, path in pages_on_path(born, 0)[:1])
    assert all("once part of" in text for text, _ in pages_on_path(former, 1))
    assert all("near the border with" in text and "mayor" in text for text, _ in pages_on_path(neighbour, 1))


def pages_on_path(task: Task, step: int) -> list[tuple[str, list[str]]]:
    texts = {page.title: page.text for page in task.paragraphs}
    return [(texts[path[step]], path) for path in task.attributes["path"]]


def test_the_right_fact_is_neither_always_first_nor_always_last() -> None:
    home_first = [
        text.index("lives in") < text.index("born in")
        for task in atlas_tasks(replace(RICH, groups=300))
        for text, _ in pages_on_path(task, 0)[:1]
    ]
    assert 0.4 < sum(home_first) / len(home_first) < 0.6


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_share_of_tasks_whose_first_page_names_the_city_of_birth_is_as_asked(share: float) -> None:
    named = [
        "born in" in text
        for task in atlas_tasks(replace(RICH, groups=300, distracted=share))
        for text, _ in pages_on_path(task, 0)[:1]
    ]
    assert abs(sum(named) / len(named) - share) <= 4 * (share * (1 - share) / len(named)) ** 0.5


def test_a_group_does_not_depend_on_how_many_there_are() -> None:
    few, many = AtlasSettings(groups=3), AtlasSettings(groups=10**9)
    assert list(atlas_tasks(few)) == list(itertools.islice(atlas_tasks(many), 3))
    assert atlas_task(few, 2) == list(atlas_tasks(few))[2]
    assert atlas_task(few, 400).group not in {task.group for task in atlas_tasks(few)}


def test_a_seed_makes_its_own_world() -> None:
    one, other = atlas_task(AtlasSettings(), 0), atlas_task(AtlasSettings(seed=1), 0)
    assert one.group != other.group
    assert len(names_in(one) & names_in(other)) < len(names_in(one)) / 4


def test_question_types_share_groups_but_not_ids() -> None:
    one, other = atlas_task(AtlasSettings(), 4), atlas_task(AtlasSettings(question="currency"), 4)
    assert one.group == other.group
    assert one.task_id != other.task_id


@pytest.mark.parametrize(
    "settings",
    [replace(FLAKY, question=question) for question in QUESTIONS]
    + [replace(FLAKY, parts=1), replace(FLAKY, parts=2), replace(FLAKY, parts=7)]
    + [replace(FLAKY, flakiness=0.0), replace(FLAKY, distractors=DISTRACTORS, seed=9)],
)
def test_worked_examples_show_what_a_run_needs(settings: AtlasSettings) -> None:
    first, misspelt, last = atlas_examples(settings)
    assert (len(first), len(last)) == (min(2, settings.parts), min(3, settings.parts))
    slip, mended = misspelt[0].turns[:2]
    assert slip.observation.startswith(f"Could not find {slip.action.argument}. Similar: ")
    assert mended.action.argument in slip.observation
    assert mended.action.argument in misspelt[0].question
    for example, failures in ((first, 1), (misspelt, 0), (last, 1)):
        check_retries(example, failures if settings.flakiness else 0)
        check_reasoning(example)


def check_retries(example: Example, failures: int) -> None:
    """So many searches fail, and each is repeated at once and then shows its page."""
    turns = [turn for part in example for turn in part.turns]
    pairs = [pair for pair in itertools.pairwise(turns) if pair[0].observation == tool_error(pair[0].action)]
    assert len(pairs) == failures
    for failed, again in pairs:
        assert again.action == failed.action
        assert again.observation.count(failed.action.argument) == 1


def check_reasoning(example: Example) -> None:
    """Every search and answer follows from what was read before, and every thought says what its action does."""
    for part in example:
        *searches, last = part.turns
        assert (last.action.name, last.observation) == ("finish", "")
        assert {turn.action.name for turn in searches} == {"search"}
        known = part.question
        for turn in part.turns:
            right = turn.action.argument in known or turn.observation.startswith("Could not find")
            assert right, f"{turn.action.argument} is not in {known}"
            assert turn.action.argument[:2] in turn.thought
            if turn.observation and turn.observation != tool_error(turn.action):
                known = turn.observation
        assert last.thought.endswith(f"The answer is {last.action.argument}.")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"groups": 0}, "groups is 0"),
        ({"parts": 0}, "parts is 0"),
        ({"question": "river"}, f"choose from {', '.join(QUESTIONS)}"),
        ({"distractors": ("birthplace", "weather")}, "'weather'"),
        ({"flakiness": 1.5}, "flakiness"),
    ],
)
def test_settings_out_of_range_are_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        replace(AtlasSettings(), **change)  # type: ignore[arg-type]


def test_groups_that_do_not_exist_are_refused() -> None:
    with pytest.raises(UsageError, match="count from 0"):
        atlas_task(AtlasSettings(), -1)
    with pytest.raises(UsageError, match=r"only \d+ names of kind \w+, .*fewer groups"):
        atlas_task(AtlasSettings(), 10**6)


@pytest.mark.parametrize("size", [2, 3, 7, 64, 1000])
def test_the_scattering_is_a_permutation(size: int) -> None:
    assert sorted(_permuted(index, size, "key") for index in range(size)) == list(range(size))


@pytest.mark.parametrize("kind", ENDINGS)
def test_names_are_distinct_and_tell_their_kind(kind: str) -> None:
    names = [invented_name(kind, number, 0) for number in range(names_of(kind))]
    words = [name.split() for name in names]
    people = kind in ("person", "official")
    assert {len(said) for said in words} == {2 if people else 1}
    last = [said[-1] for said in words]
    assert len(set(last)) == len(last)
    any_of = ("|".join(letters) for letters in (ONSETS, VOWELS, CODAS, ENDINGS[kind]))
    said = re.compile("({})({})({})({})".format(*any_of))
    assert all(said.fullmatch(name.lower()) and name.istitle() for name in last)
    if people:
        assert {said[0] for said in words} == set(GIVEN)
    with pytest.raises(UsageError, match=f"of kind {kind}"):
        invented_name(kind, names_of(kind), 0)


def test_seeds_scatter_the_names_anew() -> None:
    one, other = ([invented_name("city", number, seed) for number in range(200)] for seed in (0, 1))
    assert sum(a == b for a, b in zip(one, other, strict=True)) < 10
