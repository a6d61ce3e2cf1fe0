"""Native tool calls and thinking in the text of a turn."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probecascade.agents.calls import named_calls, tools_of
from probecascade.agents.parser import Form, ParsedTurn, parse_turn, turn_is_complete
from probecascade.episode import Action

TOOLS = ("search", "finish")
CALLS = Form("tool_call")
INSIDE = Form("tool_call", thinking=True)
ADA = Action("search", "Ada")


def read(text: str, form: Form = CALLS) -> ParsedTurn:
    return parse_turn(text, TOOLS, form)


HERMES = '<tool_call>\n{"name": "search", "arguments": {"title": "Ada"}}\n</tool_call>'


@pytest.mark.parametrize(
    "call",
    [
        HERMES,
        HERMES.replace("\n", ""),
        HERMES.replace("arguments", "parameters").replace("search", "Search"),
        '<tool_call>[{"name": "search", "arguments": {"query": "Ada"}}]</tool_call>',
        '[TOOL_CALLS] [{"name": "search", "arguments": {"title": "Ada"}, "id": "a1b2c3d4e"}]',
        '[TOOL_CALLS]{"name": "search", "arguments": {"title": "Ada"}}',
        '<|python_tag|>{"name": "search", "parameters": {"title": "Ada"}}',
        '{"name": "search", "parameters": {"title": "Ada"}}',
        '{"type": "function", "name": "search", "parameters": {"title": "Ada"}}',
        '{"type": "function", "function": {"name": "search", "arguments": {"title": "Ada"}}}',
        '{"name": "search", "arguments": "{\\"title\\": \\"Ada\\"}"}',
        '{"parameters": {"title": "\\u0041da"}, "name": "search"}',
    ],
)
def test_a_call_in_each_of_the_formats(call: str) -> None:
    for said in ("", "I look her up.\n", "<think>\nAction: Finish[no]\n</think>\n\n", " \n"):
        text = said + call
        turn = read(text + "\nAnd more.")
        assert turn.action == ADA
        assert (turn.end, turn.finish_reason) == (len(text), "action")
        assert turn.label == len(said)
        assert turn.thought == said.strip()
        assert turn.thought_end == len(said.rstrip())
        assert read(text[: turn.end]) == turn
        ends = [turn_is_complete(text[:cut], CALLS) for cut in range(len(text) + 1)]
        assert ends == [False] * len(text) + [True]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "must end with a tool call; call search or finish."),
        ("I think it is London.", "must end with a tool call"),
        (" Hm.\nAction: Search[Ada]", "must end with a tool call"),
        ("<tool_call>\n{'name': 'search'}\n</tool_call>", "not valid JSON"),
        ("<tool_call></tool_call>", "not valid JSON"),
        ("<tool_call>", "not valid JSON"),
        ('<tool_call>{"name": "search", "arguments": {"title": "Ada"}', "not valid JSON"),
        ('<tool_call>{"name": "search"} {"name": "search"}</tool_call>', "not valid JSON"),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", "not valid JSON"),
        ('[TOOL_CALLS] [{"name": "search", "arguments": {"title": "Ada"}}', "not valid JSON"),
        ("[TOOL_CALLS] []", "has no name"),
        ('[TOOL_CALLS] [{"name": "search"}, {"name": "finish"}]', "only one tool call"),
        ("<tool_call>7</tool_call>", "has no name; call search or finish"),
        ('<tool_call>{"name": 7}</tool_call>', "has no name"),
        ('{"name": "lookup", "arguments": {"word": "Ada"}}', "no tool 'lookup'; call search or finish"),
        ('{"name": "search"}', "search has no arguments"),
        ('{"name": "search", "arguments": "Ada"}', "search has no arguments"),
        ('{"name": "search", "arguments": {}}', "takes one argument, and 0 were given"),
        ('{"name": "search", "arguments": {"title": "Ada", "page": 2}}', "takes one argument, and 2 were given"),
        ('{"name": "search", "arguments": {"title": ["Ada"]}}', "argument of search must be text"),
        ('{"name": "search", "arguments": {"title": null}}', "argument of search must be text"),
        ('{"name": "search", "arguments": {"title": "  "}}', "argument of search is empty"),
    ],
)
def test_a_call_that_cannot_be_used_says_why_in_one_sentence(text: str, problem: str) -> None:
    action = read(text).action
    assert not action.valid
    assert action.name == ""
    assert problem in action.problem
    assert action.problem.count(". ") == 0
    assert len(action.problem) < 200


@pytest.mark.parametrize(
    ("written", "argument"),
    [
        ('"Ødegård 東京 🦊"', "Ødegård 東京 🦊"),
        ("1887", "1887"),
        ("true", "true"),
        ('"a\nb"', "a\nb"),
        ('"\\ud800"', "\ufffd"),
    ],
)
def test_arguments_are_text_whatever_they_are_in_json(written: str, argument: str) -> None:
    action = read(f'<tool_call>{{"name": "finish", "arguments": {{"answer": {written}}}}}</tool_call>').action
    assert action == Action("finish", argument)
    argument.encode()


def test_a_second_call_is_surplus() -> None:
    turn = read(f"{HERMES}\n{HERMES}")
    assert (turn.action, turn.end) == (ADA, len(HERMES))


def test_a_call_that_is_not_closed_is_used_when_its_json_is_whole() -> None:
    text = HERMES.removesuffix("\n</tool_call>")
    turn = read(text)
    assert (turn.action, turn.finish_reason, turn.end) == (ADA, "open", len(text))
    assert not turn_is_complete(text, CALLS)


# --- thinking --------------------------------------------------------------------------------------------------------

ACT = "Action: Search[Ada]"


@pytest.mark.parametrize(
    ("thinking", "form"),
    [
        ("<think>\nAction: Finish[no]\nObservation: no\n</think>\n\n", Form()),
        ("<think>Action: Finish[no]</think>", Form()),
        ("Well. <think>Action: Finish[no]</think> So.\n", Form()),
        ("<think>Action: Finish[no]</think>\nThen <think>Action: Finish[no]</think>\n", Form()),
        ("Action: Finish[no]\n</think>\n\n", Form(thinking=True)),
        ("Action: Finish[no] <think> Action: Finish[no]\n</think>\n", Form(thinking=True)),
    ],
)
def test_what_is_thought_is_no_action(thinking: str, form: Form) -> None:
    text = thinking + ACT
    turn = read(text, form)
    assert turn.action == ADA
    assert turn.label == len(thinking)
    assert turn.thought == thinking.strip()
    assert turn.thought_end == len(thinking.rstrip())
    ends = [turn_is_complete(text[:cut], form) for cut in range(len(text) + 1)]
    assert ends == [False] * len(text) + [True]
    assert not read(thinking, form).action.valid


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("<think>\nI could.\nAction: Search[Ada]\n", Form()),
        ("I could.\nAction: Search[Ada]\n", Form(thinking=True)),
        (f"<think>\nI could.\n{HERMES}", CALLS),
        (f"I could.\n{HERMES}", INSIDE),
    ],
)
def test_thinking_that_never_ends_is_all_thought(text: str, form: Form) -> None:
    turn = read(text, form)
    assert not turn.action.valid
    assert "must end with" in turn.action.problem
    assert (turn.label, turn.end, turn.thought) == (None, len(text.rstrip()), text.strip())
    assert not turn_is_complete(text, form)


PIECES = (
    *("<think>", "</think>", "\n", " ", "Hm", ACT, "Action:", "Observation: x", HERMES, "<tool_call>", "</tool_call>"),
    *("[TOOL_CALLS] ", '{"name": "search", "parameters": {"title": "Ada"}}', '{"name":', '"', "}", "]"),
)


@pytest.mark.parametrize("form", [Form(), Form(thinking=True), CALLS, INSIDE])
@given(st.lists(st.sampled_from(PIECES), max_size=8))
@settings(max_examples=80, deadline=None)
def test_reading_is_stable(form: Form, pieces: list[str]) -> None:
    text = "".join(pieces)
    turn = read(text, form)
    assert 0 <= turn.thought_end <= turn.end <= len(text)
    again = read(text[: turn.end], form)
    assert again.action == turn.action
    assert again.thought == turn.thought
    complete = [turn_is_complete(text[:cut], form) for cut in range(len(text) + 1)]
    assert complete == sorted(complete)


# --- what may be called ----------------------------------------------------------------------------------------------


def test_tools_are_those_that_the_usage_names() -> None:
    found = tools_of("Search[title], Lookup[keyword] or Finish[answer]")
    assert [(tool.name, tool.argument) for tool in found] == [
        ("search", "title"),
        ("lookup", "keyword"),
        ("finish", "answer"),
    ]
    schema = found[1].schema["function"]
    assert schema["name"] == "lookup"
    assert list(schema["parameters"]["properties"]) == schema["parameters"]["required"] == ["keyword"]


def test_what_may_follow_a_mark_or_the_key_of_a_name() -> None:
    written = {tool: f'<tool_call>\n{{"name": "{tool}", "arguments": {{"x": "' for tool in TOOLS}
    naming, marked = named_calls(written, ["finish", "unknown"])
    assert naming[1] == ('finish", "arguments": {"x": "',)
    assert marked[1] == ('\n{"name": "finish", "arguments": {"x": "',)
    assert [naming[0](text) for text in ('{"name": "', '{ "name" :"', '{"name": "f', '"name": "')] == [
        True,
        True,
        False,
        False,
    ]
    assert [marked[0](text) for text in ("So <tool_call>", "<tool_call>\n", "")] == [True, False, False]
