"""How a search finds a page, and the wiki's lookup."""

from __future__ import annotations

import pytest

from probecascade.environments import Search, WikiEnvironment, WikiSettings, worked_examples
from probecascade.environments.searching import Pages
from probecascade.episode import Action, Observation, Paragraph, Part, Task
from probecascade.errors import UsageError
from probecascade.testing import check_environment

PAGES = (
    Paragraph(
        "Peter Best (composer)", ("Peter Best wrote music for films.", "He was born in 1943.", "Films paid well.")
    ),
    Paragraph("Crocodile Dundee", ("A comedy set in the Outback.", "It stars Paul Hogan.", "")),
    Paragraph("Queens Place Mall", ("A mall in New York.",)),
)
TASK = Task("t", "g", (Part("Which film?", ("Crocodile Dundee",)),), PAGES)


def started(search: Search = "closest", **settings: object) -> WikiEnvironment:
    env = WikiEnvironment(search=search, lookup=True, **settings)  # type: ignore[arg-type]
    env.reset(TASK)
    return env


@pytest.mark.parametrize(
    ("asked", "closest", "bm25"),
    [
        ("crocodile  DUNDEE", "Crocodile Dundee", "Crocodile Dundee"),  # the title itself, case and blanks aside
        ("Peter Best", "Peter Best (composer)", "Peter Best (composer)"),
        ("Dundee", "Crocodile Dundee", "Crocodile Dundee"),
        ("who starred beside Hogan in the Outback comedy", "Peter Best (composer)", "Crocodile Dundee"),
        ("xq zzz qqq xxq", None, None),
    ],
)
def test_a_page_is_found_by_the_closest_title_or_by_bm25(asked: str, closest: str | None, bm25: str | None) -> None:
    pages = Pages(PAGES)
    searches: dict[Search, str | None] = {"closest": closest, "bm25": bm25}
    for search, title in searches.items():
        found = pages.find(asked, search)
        assert (found and found.title) == title


def test_a_title_counts_as_meant_above_a_ratio_of_three_tenths() -> None:
    assert Pages((Paragraph("abcdefghij", ("Mars.",)),)).find("abxxxxxxxx", "closest") is None  # ratio .2
    assert Pages((Paragraph("abcdefghij", ("Mars.",)),)).find("abcxxxxxxx", "closest") is None  # ratio .3 exactly
    assert Pages((Paragraph("abcdefghij", ("Mars.",)),)).find("abcdxxxxxx", "closest") is not None


def test_words_in_common_decide_where_no_title_is_close() -> None:
    pages = Pages((Paragraph("Qqqq", ("Nothing here.",)), Paragraph("Zzzz", ("The moons of Mars are two.",))))
    found = pages.find("how many moons has mars", "closest")
    assert found is not None
    assert found.title == "Zzzz"
    assert pages.find("voxel", "closest") is None


def test_an_exact_title_wins_over_a_page_that_says_it_more_often() -> None:
    pages = Pages((Paragraph("Best best", ("Best best best best best.",)), Paragraph("Best", ("A surname.",))))
    for search in ("title", "closest", "bm25"):
        found = pages.find("best", search)  # type: ignore[arg-type]
        assert found is not None
        assert found.title == "Best"


@pytest.mark.parametrize("pages", [(), (Paragraph("?", ("",)),), (Paragraph("A", ()), Paragraph("B", ("b",)))])
def test_pages_without_words_are_searched_too(pages: tuple[Paragraph, ...]) -> None:
    for search in ("title", "closest", "bm25"):
        assert Pages(pages).find("nothing such", search) is None  # type: ignore[arg-type]


def test_a_page_that_need_not_be_the_one_asked_for_is_shown_with_its_title() -> None:
    seen = started().step(Action("search", "Crocodile Dunde"))
    assert seen.text == "[Crocodile Dundee] A comedy set in the Outback. It stars Paul Hogan."
    assert seen.kind == "content"
    assert started("bm25").step(Action("search", "Hogan")).text == seen.text


def test_an_endless_search_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    for search in ("closest", "bm25"):
        seen = started(search).step(Action("search", "zq " * 50_000))  # type: ignore[arg-type]
        assert (seen.kind, len(seen.text) < 200) == ("not_found", True)


def looked_up(env: WikiEnvironment, *keywords: str) -> list[str]:
    return [env.step(Action("lookup", keyword)).text for keyword in keywords]


def test_a_lookup_goes_on_from_one_result_to_the_next() -> None:
    env = started()
    env.step(Action("search", "Peter Best"))
    assert looked_up(env, "films", "FILMS", "films", "films") == [
        "(Result 1 / 2) Peter Best wrote music for films.",
        "(Result 2 / 2) Films paid well.",
        "No more results for films.",
        "No more results for films.",
    ]
    assert looked_up(env, "born", "films") == [
        "(Result 1 / 1) He was born in 1943.",
        "(Result 1 / 2) Peter Best wrote music for films.",
    ]
    assert looked_up(env, "opera") == ["Peter Best (composer) does not mention opera."]


def test_a_new_search_begins_lookups_anew() -> None:
    env = started()
    assert env.step(Action("lookup", "films")) == Observation(
        "There is no page to look in; search one first.", "not_found", doomed=False
    )
    for _ in range(2):
        env.step(Action("search", "Peter Best"))
        assert looked_up(env, "films") == ["(Result 1 / 2) Peter Best wrote music for films."]
    env.step(Action("search", "xq zzz qqq xxq"))
    assert env.step(Action("lookup", "films")).kind == "not_found"


def test_a_lookup_reads_sentences_that_the_search_did_not_show() -> None:
    env = started(sentences=1)
    assert env.step(Action("search", "Peter Best")).text == "[Peter Best (composer)] Peter Best wrote music for films."
    assert env.foresee(Action("finish", "1943")).checks["argument_seen"] == 0
    assert looked_up(env, "born") == ["(Result 1 / 1) He was born in 1943."]
    assert env.foresee(Action("finish", "1943")).checks["argument_seen"] == 1


def test_without_lookup_there_is_no_such_tool() -> None:
    env = WikiEnvironment(search="closest")
    env.reset(TASK)
    assert env.step(Action("lookup", "films")).text.endswith("use Search[...] or Finish[...].")
    assert WikiEnvironment().usage == "Search[title] or Finish[answer]"
    assert started().usage == "Search[title], Lookup[keyword] or Finish[answer]"


@pytest.mark.parametrize("search", ["title", "closest", "bm25"])
def test_every_kind_of_wiki_keeps_the_contract(search: Search) -> None:
    settings = WikiSettings(search, lookup=True, score="f1", success_reward=0.6, sentences=1)
    check_environment(lambda: WikiEnvironment.of(settings), TASK)


@pytest.mark.parametrize(
    ("score", "answer", "reward", "doomed"),
    [
        ("exact", "the Dundee", 0.0, True),
        ("f1", "the Dundee", 2 / 3, False),
        ("f1", "some Dundee thing", 0.4, True),
        ("set-f1", "Dundee Dundee Dundee", 2 / 3, False),
        ("f1", "Dundee Dundee Dundee", 0.4, True),
    ],
)
def test_the_reward_is_the_score_and_success_begins_at_a_share_of_it(
    score: str, answer: str, reward: float, doomed: bool
) -> None:
    env = started(score=score, success_reward=0.6)
    end = env.step(Action("finish", answer))
    assert (end.done, end.doomed) == (True, doomed)
    assert end.reward == pytest.approx(reward)


def test_the_lowest_score_of_a_part_is_the_reward() -> None:
    parts = (Part("Who?", ("Peter Best",)), Part("Which film?", ("Crocodile Dundee",)))
    env = WikiEnvironment(score="f1", success_reward=0.6)
    env.reset(Task("t", "g", parts, PAGES))
    assert env.step(Action("finish", "Best")).doomed is False
    assert env.step(Action("finish", "Crocodile Dundee")).reward == pytest.approx(2 / 3)
    env.reset(Task("t", "g", parts, PAGES))
    assert env.step(Action("finish", "nobody")).doomed is True
    with pytest.raises(UsageError):
        WikiEnvironment().step(Action("search", "Ada"))


@pytest.mark.parametrize("score", ["f1", "verdict", "exact"])
@pytest.mark.parametrize("lookup", [True, False])
def test_worked_examples_say_what_the_wiki_says(score: str, lookup: bool) -> None:
    settings = WikiSettings("closest", lookup, score)  # type: ignore[arg-type]
    examples = worked_examples(settings)
    assert len(examples) == 3
    turns = [turn for example in examples for part in example for turn in part.turns]
    assert any(turn.action.name == "lookup" for turn in turns) == lookup
    assert all(turn.observation or turn.action.name == "finish" for turn in turns)
    assert [part.turns[-1].action.name for example in examples for part in example] == ["finish"] * 3
    shown = [turn.observation for turn in turns if turn.action.name == "search"]
    assert all(text.startswith("[") for text in shown)
    labels = {part.turns[-1].action.argument for example in examples for part in example}
    assert (labels == {"SUPPORTS", "REFUTES", "NOT ENOUGH INFO"}) == (score == "verdict")
