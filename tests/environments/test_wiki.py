from __future__ import annotations

from dataclasses import replace

import pytest

from probecascade.environments import WikiEnvironment
from probecascade.episode import Action, Foresight, Paragraph, Part, Task
from probecascade.errors import DataError, UsageError

PAGES = (
    Paragraph("Ada Brosk", ("Ada Brosk is a poet.", " She lives in Trodan.", "")),
    Paragraph("Trodan", ("Trodan is a city in Kesuri.",)),
    Paragraph("Trodal", ("Trodal is a river.",)),
    Paragraph("AC/DC", ("A band.",)),
    Paragraph("Ac/dc", ("A kind of supply.",)),
    Paragraph("Blank", ("", " ")),
    Paragraph("Ødegård", ("Ødegård is a farm.",)),
)
TASK = Task("t", "g", (Part("In which city?", ("Trodan",)), Part("In which country?", ("Kesuri",))), PAGES)


def bare(foresight: Foresight) -> Foresight:
    return replace(foresight, checks={})


def started(sentences: int | None = None) -> WikiEnvironment:
    env = WikiEnvironment(sentences)
    assert env.reset(TASK) == "In which city?"
    return env


@pytest.mark.parametrize("argument", ["Ada Brosk", "ada brosk", "  ADA   BROSK \n"])
def test_a_title_is_found_in_any_case_and_with_blanks(argument: str) -> None:
    seen = started().step(Action("search", argument))
    assert seen.text == "Ada Brosk is a poet. She lives in Trodan."
    assert (seen.kind, seen.done, seen.reward, seen.doomed) == ("content", False, 0.0, False)


def test_only_the_first_sentences_are_shown_if_asked() -> None:
    assert started(1).step(Action("search", "Ada Brosk")).text == "Ada Brosk is a poet."


def test_the_title_stands_before_a_page_whose_first_sentence_does_not_name_it() -> None:
    pages = (Paragraph("Mosk", (" ", "A town.")), Paragraph("Trin", ("It rains there.", "Trin is wet.")))
    env = WikiEnvironment()
    env.reset(Task("t", "g", TASK.parts, pages))
    assert env.step(Action("search", "Mosk")).text == "Mosk: A town."
    assert env.step(Action("search", "Trin")).text == "Trin: It rains there. Trin is wet."


def test_the_title_in_its_own_case_wins_over_its_twin() -> None:
    env = started()
    assert env.step(Action("search", "AC/DC")).text == "AC/DC: A band."
    assert env.step(Action("search", "Ac/dc")).text == "Ac/dc: A kind of supply."
    assert env.step(Action("search", "ac/dc")).text == "AC/DC: A band."


@pytest.mark.parametrize("spelling", ["Ødegård", "ØDEGA\u030aRD", "ødegård"])
def test_titles_beyond_ascii(spelling: str) -> None:
    assert started().step(Action("search", spelling)).kind == "content"


def test_a_missing_title_is_answered_with_the_nearest_ones_best_first() -> None:
    seen = started().step(Action("search", "Trodam"))
    assert seen.kind == "not_found"
    assert seen.text == "Could not find Trodam. Similar: Trodan, Trodal."
    assert started().step(Action("search", "Trodaan")).text == "Could not find Trodaan. Similar: Trodan, Trodal."


def test_nothing_similar_is_not_mentioned() -> None:
    assert started().step(Action("search", "Xyz")).text == "Could not find Xyz."


def test_an_endless_argument_is_cut_in_the_answer() -> None:
    seen = started().step(Action("search", "Trodan " * 5000))
    assert seen.kind == "not_found"
    assert len(seen.text) < 150


def test_an_empty_page_counts_as_nothing_found() -> None:
    seen = started().step(Action("search", "Blank"))
    assert (seen.kind, seen.text) == ("not_found", "Blank: this page is empty.")


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (Action("search", "  "), "Search[] is empty"),
        (Action("finish", ""), "Finish[] is empty"),
        (Action("lookup", "Ada"), "no tool 'lookup'"),
        (Action("", "", False, "Write one action."), "Write one action."),
        (Action("finish", "Trodan", False, "Write one action."), "Write one action."),
    ],
)
def test_invalid_actions_are_answered_and_change_nothing(action: Action, words: str) -> None:
    env = started()
    assert bare(env.foresee(action)) == Foresight()
    seen = env.step(action)
    assert (seen.kind, seen.done, seen.doomed) == ("invalid", False, False)
    assert words in seen.text
    assert env.step(Action("finish", "Trodan")).text == "In which country?"


def test_all_parts_right_earns_one() -> None:
    env = started()
    assert bare(env.foresee(Action("search", "Trodan"))) == Foresight()
    assert bare(env.foresee(Action("finish", "Trodan"))) == Foresight(events=(("part", 1),))
    first = env.step(Action("finish", "trodan."))
    assert (first.text, first.kind, first.done, first.doomed) == (
        "In which country?",
        "next_part",
        False,
        False,
    )
    assert bare(env.foresee(Action("finish", "Kesuri"))) == Foresight(events=(("part", 2),), final=True)
    last = env.step(Action("finish", "Kesuri"))
    assert (last.kind, last.done, last.reward, last.doomed) == ("finish", True, 1.0, False)


def test_a_wrong_part_dooms_silently_and_for_good() -> None:
    env, right = started(), started()
    wrong = env.step(Action("finish", "Trodal"))
    good = right.step(Action("finish", "Trodan"))
    assert (wrong.text, wrong.kind) == (good.text, good.kind)
    assert (wrong.doomed, good.doomed) == (True, False)
    assert env.step(Action("search", "Trodan")).doomed
    last = env.step(Action("finish", "Kesuri"))
    assert (last.done, last.reward, last.doomed) == (True, 0.0, True)
    assert last.text == right.step(Action("finish", "Kesuri")).text


def test_use_outside_an_episode_is_refused() -> None:
    with pytest.raises(UsageError, match="reset"):
        WikiEnvironment().step(Action("search", "Ada"))
    env = started()
    env.step(Action("finish", "x"))
    env.step(Action("finish", "y"))
    with pytest.raises(UsageError, match="is over"):
        env.step(Action("search", "Trodan"))
    with pytest.raises(UsageError, match="is over"):
        env.foresee(Action("finish", "z"))
    assert env.reset(TASK) == "In which city?"
    assert env.step(Action("finish", "Trodan")).doomed is False


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (Task("t", "g", ()), "has no part"),
        (Task("t", "g", (Part("Where?", ("A",)), Part("  ", ("A",)))), "part 2"),
        (Task("t", "g", (Part("Where?", ()),)), "part 1"),
        (Task("t", "g", (Part("Where?", ("A",)),), (PAGES[0], PAGES[0])), "two pages are titled 'Ada Brosk'"),
    ],
)
def test_tasks_that_cannot_be_played_are_refused(task: Task, words: str) -> None:
    with pytest.raises(DataError, match=words):
        WikiEnvironment().reset(task)


def test_live_episodes_of_one_task_do_not_disturb_each_other() -> None:
    one, other = started(), started()
    one.step(Action("finish", "wrong"))
    assert other.step(Action("search", "Trodan")).doomed is False
    assert other.foresee(Action("finish", "x")).events == (("part", 1),)


@pytest.mark.parametrize(
    ("action", "checks"),
    [
        (Action("search", "Ada Brosk"), (1, 1, 0)),  # no page of the task tells it, and none was shown
        (Action("finish", "CITY"), (1, 1, 1)),  # the question says it
        (Action("search", "x" * 61), (1, 0, 0)),
        (Action("search", "two\nlines"), (1, 0, 0)),
        (Action("search", "  "), (1, 0, 0)),
        (Action("lookup", "city"), (0, 0, 0)),
        (Action("", "city", False, "Write one action."), (0, 0, 0)),
    ],
)
def test_checks_tell_of_the_action_as_it_is_written(action: Action, checks: tuple[int, ...]) -> None:
    found = started().foresee(action).checks
    assert found == dict(zip(("tool_exists", "argument_well_formed", "argument_seen"), checks, strict=True))


def test_an_argument_counts_as_seen_once_a_page_or_question_showed_it() -> None:
    env, finish = started(), Action("finish", "Trodan")
    assert env.foresee(finish).checks["argument_seen"] == 0  # that it is the right answer makes no difference
    shown = env.step(Action("search", "Ada Brosk")).text
    assert ("Trodan" in shown) == (env.foresee(finish).checks["argument_seen"] == 1)
    assert env.foresee(Action("finish", shown[:20])).checks["argument_seen"] == 1
    env.reset(TASK)
    assert env.foresee(Action("finish", shown[:20])).checks["argument_seen"] == 0
