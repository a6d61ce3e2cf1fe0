from __future__ import annotations

from dataclasses import fields, replace

import pytest
from short_episodes import FINISH, NOTHING, PAGE, RIGHT, SEARCH, TASK, play

from probecascade.agents.react import AgentSettings, ReActAgent
from probecascade.agents.templates import INSTRUCTION, USAGE, WORDINGS, Template, chat_template, plain_template
from probecascade.environments.examples import ExamplePart, ExampleTurn
from probecascade.episode import Action, Observation
from probecascade.errors import UsageError
from probecascade.testing import ScriptedEnvironment, ScriptedModel

EXAMPLE = (
    ExamplePart(
        "Where was Bo born?",
        (
            ExampleTurn("I look him up.", Action("search", "Bo"), "Bo: Born in Oslo."),
            ExampleTurn("It is Oslo.", Action("finish", "Oslo")),
        ),
    ),
)
NEXT = Observation("And her tutor?", "next_part")


def render(messages: list[dict[str, str]]) -> str:
    """A chat format of the usual kind."""
    text = "".join(f"<|{m['role']}|>\n{m['content']}<end>\n" for m in messages)
    return text + "<|assistant|>\n"


def read(template: Template, turns: list[str], observations: list[Observation]) -> str:
    model = ScriptedModel(turns, cue=template.cue)
    agent = ReActAgent(model, template, AgentSettings(), end_ids=[model.end_id])
    (recording,) = model.run([agent.play(TASK, ScriptedEnvironment(observations), 0)])
    ids = recording.episode.token_ids.tolist()
    assert ids == model.conversations[0]
    assert recording.episode.outcome == "success"
    return model.decode(ids)


def test_the_plain_template_reads_as_its_examples_do() -> None:
    text = read(plain_template([EXAMPLE]), [SEARCH, FINISH, FINISH], [PAGE, NEXT, RIGHT])
    assert text == (
        INSTRUCTION + "Question: Where was Bo born?\n"
        "Thought: I look him up.\nAction: Search[Bo]\nObservation: Bo: Born in Oslo.\n"
        "Thought: It is Oslo.\nAction: Finish[Oslo]\n\n"
        "Question: Where was Ada born?\nThought: Look her up.\nAction: Search[Ada]\n"
        "Observation: Ada: Born in London.\nThought: I know.\nAction: Finish[London]\n"
        "Question: And her tutor?\nThought: I know.\nAction: Finish[London]"
    )


def test_the_chat_template_reads_as_the_model_was_taught() -> None:
    text = read(chat_template([EXAMPLE], render), [SEARCH, FINISH, FINISH], [PAGE, NEXT, RIGHT])
    system = INSTRUCTION + "Worked examples:\n\n" + plain_template([EXAMPLE]).head.removeprefix(INSTRUCTION).strip()
    spoken = [
        ("system", system),
        ("user", "Question: Where was Ada born?"),
        ("assistant", "Thought: Look her up.\nAction: Search[Ada]"),
        ("user", "Observation: Ada: Born in London."),
        ("assistant", "Thought: I know.\nAction: Finish[London]"),
        ("user", "Question: And her tutor?"),
    ]
    rendered = render([{"role": role, "content": content} for role, content in spoken])
    assert text == rendered + "Thought: I know.\nAction: Finish[London]"


def test_a_chat_format_without_a_system_role() -> None:
    def merged(messages: list[dict[str, str]]) -> str:
        first, second, *rest = messages
        return render([{"role": "user", "content": first["content"] + "\n\n" + second["content"]}, *rest])

    template = chat_template([EXAMPLE], merged)
    assert template.head.startswith("<|user|>\n" + INSTRUCTION)
    text = read(template, [SEARCH, FINISH], [PAGE, RIGHT])
    assert "Question: Where was Ada born?<end>\n<|assistant|>\nThought: Look" in text


@pytest.mark.parametrize(
    "change",
    [str.lower, lambda text: text.replace("TURN7531", "TURN 7531"), lambda text: text + text, lambda text: ""],
)
def test_a_chat_format_that_alters_messages_is_refused(change: object) -> None:
    def altering(messages: list[dict[str, str]]) -> str:
        assert callable(change)
        return str(change(render(messages)))

    with pytest.raises(UsageError, match="alters the messages it is given; use the template 'plain'"):
        chat_template([EXAMPLE], altering)


def test_a_chat_format_that_drops_old_turns_is_refused() -> None:
    def forgetful(messages: list[dict[str, str]]) -> str:
        return render([m for m in messages if m["role"] != "assistant"])

    with pytest.raises(UsageError, match="alters the messages"):
        chat_template([EXAMPLE], forgetful)


@pytest.mark.parametrize("name", [f.name for f in fields(Template) if f.name not in ("name", "calls", "aside")])
def test_the_identity_changes_with_every_piece_of_text(name: str) -> None:
    template = plain_template([EXAMPLE])
    assert replace(template, **{name: getattr(template, name) + " "}).identity != template.identity


def test_the_identity_is_that_of_the_text() -> None:
    assert plain_template([EXAMPLE]).identity == plain_template([EXAMPLE]).identity
    assert plain_template([EXAMPLE, EXAMPLE]).identity != plain_template([EXAMPLE]).identity
    assert chat_template([EXAMPLE], render).identity != plain_template([EXAMPLE]).identity
    moved = Template("t", "a", "bc", "", "", "", "")
    assert moved.identity != Template("t", "ab", "c", "", "", "", "").identity


def test_runs_of_earlier_versions_keep_the_identity_of_their_template() -> None:
    assert plain_template([EXAMPLE]).identity == "ac55398e7a3afdd3"
    assert chat_template([EXAMPLE], render).identity == "4ede734f84522594"


def test_pieces_are_joined_as_ids() -> None:
    """A tokenizer that would merge across a boundary finds none: every piece is encoded on its own."""
    played = play([" Hm", FINISH], [NOTHING, RIGHT])
    ids = played.episode.token_ids.tolist()
    encode = played.model.encode
    start = [*encode("Be brief.\n"), *encode("Question: "), *encode("Where was Ada born?"), *encode("\nThought:")]
    assert ids[: played.episode.prompt_tokens] == start
    assert encode(played.model.decode(start)) != start  # encoded as one text, " Where" would be one token


def test_worked_examples_are_the_head_that_all_episodes_share() -> None:
    template = plain_template([EXAMPLE])
    model = ScriptedModel([FINISH], cue=template.cue)
    agent = ReActAgent(model, template, AgentSettings())
    request = next(agent.play(TASK, ScriptedEnvironment([RIGHT]), 0))
    assert list(request.ids[: request.shared]) == model.encode(template.head)
    assert min(request.keep) >= request.shared


# --- wordings --------------------------------------------------------------------------------------------------------


def test_wordings_differ_in_what_is_asked_and_not_in_the_examples() -> None:
    heads = {name: plain_template([EXAMPLE], name).head for name in WORDINGS}
    assert heads["plain"] == plain_template([EXAMPLE]).head
    assert len({said.instruction for said in WORDINGS.values()}) == len({said.label for said in WORDINGS.values()}) == 4
    for name, said in WORDINGS.items():
        rest = heads[name].removeprefix(said.instruction)
        assert f"{said.label}: Where was Bo born?\n" in rest
        assert rest.replace(f"{said.label}: ", "Question: ") == heads["plain"].removeprefix(INSTRUCTION)


@pytest.mark.parametrize("wording", WORDINGS)
def test_every_wording_teaches_both_actions_and_reads_the_same_turns(wording: str) -> None:
    assert all(action in WORDINGS[wording].instruction for action in ("Search[title]", "Finish[answer]"))
    label = WORDINGS[wording].label
    for template in (plain_template([EXAMPLE], wording), chat_template([EXAMPLE], render, wording)):
        text = read(template, [SEARCH, FINISH, FINISH], [PAGE, NEXT, RIGHT])
        assert f"{label}: Where was Ada born?" in text
        assert f"{label}: And her tutor?" in text
        assert "Observation: Ada: Born in London." in text
        assert WORDINGS[wording].instruction.strip() in text


def test_every_wording_has_an_identity_of_its_own() -> None:
    made = [plain_template([EXAMPLE], name) for name in WORDINGS]
    made += [chat_template([EXAMPLE], render, name) for name in WORDINGS]
    assert len({template.identity for template in made}) == len(made)


@pytest.mark.parametrize("wording", WORDINGS)
def test_an_instruction_names_the_tools_that_there_are(wording: str) -> None:
    usual, more = (
        plain_template((), wording),
        plain_template((), wording, "Search[title], Lookup[keyword] or Finish[answer]"),
    )
    assert "Lookup" not in usual.head
    assert more.head.count("Lookup[keyword]") == 1
    assert more.head.endswith(usual.head[-3:])
    assert plain_template((), wording, USAGE) == usual
