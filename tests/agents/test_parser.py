from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probecascade.agents.parser import ParsedTurn, parse_turn, turn_is_complete
from probecascade.episode import Action

TOOLS = ("search", "finish")


def read(text: str) -> ParsedTurn:
    return parse_turn(text, TOOLS)


def test_a_plain_turn() -> None:
    text = " I need to search Ada.\nAction: Search[Ada]"
    turn = read(text)
    assert turn.action == Action("search", "Ada")
    assert (turn.thought, turn.finish_reason) == ("I need to search Ada.", "action")
    assert turn.end == len(text)
    assert turn.label == text.index("Action")
    assert text[: turn.thought_end].endswith("Ada.")
    assert turn_is_complete(text)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        (" Hm.\nAction 2: Search[Ada]", Action("search", "Ada")),
        (" Hm.\nAction2 :Search[Ada]", Action("search", "Ada")),
        (" Hm.\nACTION: SEARCH[Ada]", Action("search", "Ada")),
        (" Hm.\naction: sEaRcH [ Ada ]", Action("search", "Ada")),
        (" Hm.\nAction:Search[Ada]", Action("search", "Ada")),
        (" Hm.\nAction:   \n  Search[Ada]", Action("search", "Ada")),
        (" Hm. Action: Search[Ada]", Action("search", "Ada")),
        ("Action: Finish[Brosk]", Action("finish", "Brosk")),
        (" Action: Finish[Brosk]", Action("finish", "Brosk")),
        (" Hm.\nAction: Search[Ada", Action("search", "Ada")),
        (" Hm.\nAction: Search[Ada \nMore talk.", Action("search", "Ada")),
        (" Hm.\nAction: Search[Ada\r\nMore talk.", Action("search", "Ada")),
        (" Hm.\nAction: Search[List of [old] towns] and so on", Action("search", "List of [old] towns")),
        (" Hm.\nAction: Search[a [b]\n", Action("search", "a [b]")),
        (" Hm.\nAction: Search[Ada]]]", Action("search", "Ada")),
        (" Hm.\nAction: Search[Ødegård 東京 🦊]", Action("search", "Ødegård 東京 🦊")),
        (" Hm.\n```\nAction: Search[Ada]\n```", Action("search", "Ada")),
        (" Hm.\n```Action: Search[Ada]```", Action("search", "Ada")),
        (" Hm.\n**Action:** Search[Ada]", Action("search", "Ada")),
        (" Hm.\n> **Action**: `Search[Ada]`", Action("search", "Ada")),
        (" Hm.\nAction: Search[Ada (poet)]", Action("search", "Ada (poet)")),
        (" Hm.\nAction: Search[Action: the film]", Action("search", "Action: the film")),
        (" My action: to think. The Action is next.\nAction: Search[Ada]", Action("search", "Ada")),
    ],
)
def test_actions_are_read_however_they_are_written(text: str, action: Action) -> None:
    assert read(text).action == action


@pytest.mark.parametrize(
    ("text", "problem", "written"),
    [
        ("", "must end with an action", ""),
        (" \n ", "must end with an action", ""),
        (" I think and think.", "must end with an action", ""),
        (" Then search[Ada]", "must end with an action", ""),
        (" Hm.\nAction:", "names no tool", ""),
        (" Hm.\nAction: look it up\n", "names no tool", "look it up"),
        (" Hm.\nAction: Search(Ada)", "names no tool", "Search(Ada)"),
        (" Hm.\nAction: Search[]", "Search[] is empty", "Search[]"),
        (" Hm.\nAction: Search[  ]", "Search[] is empty", "Search[  ]"),
        (" Hm.\nAction: Finish[", "Finish[] is empty", "Finish["),
        (" Hm.\nAction: Lookup[Ada]", "no tool 'lookup'; write Search[...] or Finish[...]", "Lookup[Ada]"),
        (" Hm.\nAction: [Ada]", "no tool ''", "[Ada]"),
        (" Hm.\nAction: Search[Ada]\nAction: Search[Eva]", "only one action", "Search[Ada]"),
        (" Hm.\nAction: Search[Ada] Action: Search[Eva]", "only one action", "Search[Ada]"),
        (" Hm.\nAction: Search[Ada]\nThought: Or.\nAction: Finish[Eva]", "only one action", "Search[Ada]"),
        (" Hm.\nAction:\nAction: Search[Ada]", "only one action", ""),
    ],
)
def test_unusable_actions_come_back_with_their_problem(text: str, problem: str, written: str) -> None:
    turn = read(text)
    assert problem in turn.action.problem
    assert turn.action == Action("", written, False, turn.action.problem)
    assert turn.action.problem.endswith(".")


def test_the_problem_stays_short_when_the_turn_does_not() -> None:
    assert len(read("\nAction: " + "blah " * 500 + "[x]").action.problem) < 120


def test_an_invented_observation_is_cut_off() -> None:
    text = " Hm.\nAction: Search[Ada]\nObservation 1: Ada lives in Brosk.\nThought: So.\nAction: Finish[Brosk]"
    turn = read(text)
    assert turn.action == Action("search", "Ada")
    assert text[: turn.end] == " Hm.\nAction: Search[Ada]"
    assert turn.finish_reason == "observation_cut"


@pytest.mark.parametrize(
    ("text", "kept", "argument"),
    [
        (" Hm.\nAction: Search[Ada Observation: Ada lives", " Hm.\nAction: Search[Ada", "Ada"),
        (
            " Hm.\nAction: Search[Ada] Observation: Ada.\nAction: Search[B]",
            " Hm.\nAction: Search[Ada]",
            "Ada",
        ),
        (" Hm.\nAction: Search[Ada\nObservation: Ada lives", " Hm.\nAction: Search[Ada", "Ada"),
        (" I know.\n\nObservation: Ada lives in Brosk.\nAction: Search[Ada]", " I know.", ""),
        ("Observation: Ada", "", ""),
        (" Hm.\nAction: Observation: Ada", " Hm.\nAction:", ""),
        (" Hm.\nAction:\nobservation: Ada", " Hm.\nAction:", ""),
    ],
)
def test_an_invented_observation_is_cut_off_wherever_it_begins(text: str, kept: str, argument: str) -> None:
    turn = read(text)
    assert text[: turn.end] == kept
    assert turn.action.argument == argument
    assert turn.finish_reason == "observation_cut"
    assert turn_is_complete(text)


def test_the_word_observation_in_a_thought_is_no_observation() -> None:
    text = " By the Observation: Ada lives in Brosk.\nAction: Finish[Brosk]"
    assert read(text).action == Action("finish", "Brosk")


def test_an_unfinished_thought_has_no_action_and_stays_open() -> None:
    turn = read(" I need to sea")
    assert (turn.label, turn.end, turn.thought_end) == (None, 14, 14)
    assert (turn.finish_reason, turn.thought) == ("open", "I need to sea")
    assert not turn_is_complete(" I need to sea")


def test_an_action_that_ran_out_of_tokens_is_read_but_open() -> None:
    assert read(" Hm.\nAction: Search[Ad").finish_reason == "open"
    assert read(" Hm.\nAction: Search[Ad").action == Action("search", "Ad")


def test_surplus_after_the_bracket_is_dropped() -> None:
    text = " Hm.\nAction: Search[Ada].\n\n"
    assert text[: read(text).end] == " Hm.\nAction: Search[Ada]"


def test_the_label_of_an_emphasised_action_begins_with_its_emphasis() -> None:
    text = " Hm.\n**Action:** Search[Ada]"
    turn = read(text)
    assert turn.label == text.index("**")
    assert turn.thought == "Hm."


@pytest.mark.parametrize(
    ("pieces", "complete_at"),
    [
        ([" Hm", ".\n", "Action", ":", " Search", "[", "Ada", "]", " more"], 7),
        ([" Hm.", "\nAction:", " Search[", "Ada]"], 3),
        ([" Hm.", "\n", "Act", "ion", " 2", ":", "Se", "arch[A", "da", "].\n"], 9),
        ([" Hm.\n", "```\n", "Action:", " Search[Ada", "]\n```"], 4),
        ([" Hm.\n", "Action:", "\n", "Search[Ada", "\n", "More"], 4),
        ([" Hm.\n", "Action: look it up", "\n"], 2),
        ([" Hm.\n", "Action: Search[a [b]", " c", "]"], 3),
        ([" Hm.", "\nObs", "ervation", " 1", ":", " Ada"], 4),
        ([" Hm.", " Action:", " none", ".\n", "Action:", " Search[Ada]"], 5),
    ],
)
def test_sampling_stops_at_the_piece_that_completes_the_turn(pieces: list[str], complete_at: int) -> None:
    seen = [turn_is_complete("".join(pieces[: k + 1])) for k in range(len(pieces))]
    assert seen.index(True) == complete_at
    assert all(seen[complete_at:])


def test_endless_repetition_is_read_quickly() -> None:
    for text in (
        " I need to search Ada." * 4000,
        "\n" * 50_000,
        " " * 50_000,
        "\n  ** Action" * 5000,
        "\nAction: " * 5000,
        "\nAction: Search" + "[" * 50_000,
        " Action: Search" * 5000,
        "\nAction" + " " * 50_000,
        "\n" + "> " * 25_000,
    ):
        start = time.perf_counter()
        read(text)
        turn_is_complete(text)
        assert time.perf_counter() - start < 0.5


def test_asking_after_every_token_is_cheap() -> None:
    text = " I need to search the home city of the poet: it is said to be in the north." * 6
    start = time.perf_counter()
    for _ in range(200):
        turn_is_complete(text)
    assert (time.perf_counter() - start) / 200 < 1e-3


PIECES = st.sampled_from(
    [
        "Action", "action", "Observation", "observation", "Thought", ":", " 2", "\n", " ", "\t", "\r", "[",
        "]", "Search", "finish", "Ada", "**", "`", "```\n", "> ", "Ødegård", "\u2028", "\x1c", "",
        "\nAction: ", "\nObservation: ", " Action: Search[", "Action: Search[Ada]", " Observation: ", "-",
        "#",
    ]
)  # fmt: skip
TURNS = st.lists(PIECES, max_size=25).map("".join) | st.text(max_size=60)


@settings(max_examples=400, deadline=None)
@given(TURNS)
def test_any_text_is_read_within_its_bounds_and_to_the_same_end(text: str) -> None:
    turn = read(text)
    assert 0 <= turn.thought_end <= turn.end <= len(text)
    if turn.label is not None:
        assert turn.thought_end <= turn.label < turn.end
        assert text[turn.label : turn.end].lstrip(" \t>*`#-").lower().startswith("action")
    if turn.thought_end:
        assert not text[turn.thought_end - 1].isspace()
    assert not text[turn.end - 1 : turn.end].isspace()
    again = read(text[: turn.end])
    assert again.action == turn.action
    assert (again.end, again.label, again.thought) == (turn.end, turn.label, turn.thought)
    if turn.action.valid:
        assert turn.action.name in TOOLS
        assert turn.action.argument == turn.action.argument.strip() != ""
    else:
        assert turn.action.name == ""
        assert turn.action.problem


@settings(max_examples=400, deadline=None)
@given(TURNS)
def test_a_complete_turn_stays_complete_and_is_read_alike(text: str) -> None:
    complete = [turn_is_complete(text[:k]) for k in range(len(text) + 1)]
    assert complete == sorted(complete)
    assert (read(text).finish_reason != "open") == complete[-1]
    if True in complete:
        stopped = read(text[: complete.index(True)])
        whole = read(text)
        assert (stopped.thought, stopped.label) == (whole.thought, whole.label)
        assert stopped.end <= max(whole.end, complete.index(True))
