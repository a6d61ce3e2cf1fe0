from __future__ import annotations

import pytest

from probecascade.policies.judged.verdicts import (
    _NEGATIVE,
    _POSITIVE,
    content_words,
    found_nothing,
    overlap,
    read_answer,
    read_probability,
    read_thought,
)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("USELESS", "USELESS"),
        (" useless.", "USELESS"),
        ("It was USEFUL", "USEFUL"),
        ("USEFUL or USELESS", "USELESS"),
        ("USE", "UNPARSED"),
        ("", "UNPARSED"),
        ("not of any use", "UNPARSED"),
    ],
)
def test_an_answer_that_holds_useless_is_useless(text: str, word: str) -> None:
    assert read_answer(text) == word


@pytest.mark.parametrize(
    "thought",
    [
        "The result is not relevant to the question.",
        "This page isn't about the river.",
        "That does not mention her birthplace. I will search again.",
        "This doesn't help. Search Ada.",
        "The page is irrelevant.",
        "I found nothing about Ada.",
        "There is no information about the river here.",
        "I could not find Brosk.",
        "I can't find it. Try once more.",
        "It is the wrong page.",
        "The search returned a page about soup instead of the river.",
        "The tool seems broken.",
        "There was an error. Try again.",
        "I still do not know. Search Brosk.",
        "The evidence is insufficient.",
        "The search keeps returning other pages.",
        "Unfortunately, Ada is a singer. Search again.",
        "The page is relevant but does not mention her tutor.",
    ],
)
def test_complaints_are_useless(thought: str) -> None:
    assert read_thought(thought) == "USELESS"


@pytest.mark.parametrize(
    "thought",
    [
        "The result is useful. Next the river.",
        "The page says that she was born in Brosk.",
        "I now know that Ada was born in Brosk.",
        "According to the page, the river is the Sel.",
        "This confirms it.",
        "So the answer is Sel.",
    ],
)
def test_use_is_seen(thought: str) -> None:
    assert read_thought(thought) == "USEFUL"


@pytest.mark.parametrize("thought", ["", "I need to search Ada.", "Next: the river of Brosk.", "Search the town."])
def test_a_thought_that_says_nothing_of_the_evidence_is_none(thought: str) -> None:
    assert read_thought(thought) == "NONE"


def test_only_the_first_two_sentences_of_a_thought_count() -> None:
    assert read_thought("I look up Ada. Then Brosk. This page is irrelevant.") == "NONE"
    assert read_thought("I look up Ada. This page is irrelevant. Then Brosk.") == "USELESS"


def test_there_are_as_many_patterns_as_the_study_has() -> None:
    assert (len(_NEGATIVE), len(_POSITIVE)) == (18, 6)


QUESTION = "Which river runs through the town of Brosk?"  # river, runs, town, brosk


def test_content_words_are_those_without_function_words() -> None:
    assert content_words(QUESTION) == {"river", "runs", "town", "brosk"}


@pytest.mark.parametrize(
    ("observation", "share"),
    [
        ("Brosk is a town.", 0.5),
        ("A RIVER.", 0.25),
        ("Soup is a dish.", 0.0),
        ("x" * 399 + " river", 0.0),  # past the 400th character
        ("x" * 390 + " river", 0.25),
        ("The rivers", 0.0),
    ],
)
def test_overlap_is_the_share_of_the_questions_words(observation: str, share: float) -> None:
    assert overlap(QUESTION, observation) == share


def test_a_question_without_content_words_lacks_nothing() -> None:
    assert overlap("Who is it?", "Soup.") == 1.0


def test_no_results_is_seen_at_the_beginning_alone() -> None:
    assert found_nothing(" No results.")
    assert found_nothing("NO RESULTS for Brosk")
    assert not found_nothing("There are no results.")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("30", 0.3),
        (" 0.3", 0.3),
        ("30 %", 0.3),
        ("0.5%", 0.005),
        ("I say 85 percent", 0.85),
        ("70/100", 0.7),
        ("100", 1.0),
        ("0", 0.0),
        ("1", 1.0),
        ("1%", 0.01),
        (".25", 0.25),
        ("250", None),
        ("likely", None),
        ("", None),
    ],
)
def test_a_number_is_read_as_a_probability(text: str, value: float | None) -> None:
    assert read_probability(text) == (value if value is None else pytest.approx(value))
