"""Whole episodes in chat formats of several kinds: what is read, what is said of it, where the checkpoints lie."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from chat_formats import CHATML, FOREIGN, FORMATS, GEMMA, HERMES, LLAMA, MISTRAL, ChatModel, tokenizer
from short_episodes import KINDS, PAGE, RIGHT, TASK, Played
from test_templates import EXAMPLE

from probecascade.agents.chat import ChatFormat, Dialogue, Message
from probecascade.agents.react import AgentSettings, ReActAgent
from probecascade.agents.reread import Reread, form_of, laid_again, reread
from probecascade.agents.rewrites import rewrites
from probecascade.agents.templates import Template, chat_dialogue, chat_pieces, chat_template
from probecascade.episode import CONTINUE, Decision, Moment, Observation, Task
from probecascade.errors import UsageError
from probecascade.testing import ScriptedEnvironment

ACTIONS = ("react", "tool_call")
NEXT = Observation("And her tutor?", "next_part")
EVERY = [(name, actions) for name in FORMATS for actions in ACTIONS]

CHANGES = {
    ("thinking", "react"): ("drops earlier thinking",),
    ("thinking", "tool_call"): ("drops earlier thinking",),
    ("reasoner", "react"): ("drops earlier thinking",),
    ("reasoner", "tool_call"): ("drops earlier thinking",),
    ("gemma", "react"): ("changes blanks at the ends of messages",),
    ("llama", "react"): ("changes blanks at the ends of messages",),
    ("llama", "tool_call"): (
        "drops earlier thinking",
        "changes what is said before an action",
        "changes blanks at the ends of messages",
        "escapes what tools answer",
    ),
    ("mistral", "react"): ("changes blanks at the ends of messages",),
    ("mistral", "tool_call"): (
        "drops earlier thinking",
        "changes what is said before an action",
        "gives calls and answers ids",
    ),
}


@dataclass
class Chat:
    """A chat format with an agent's dialogue in it, and how its model writes a turn."""

    dialogue: Dialogue
    template: Template
    render: ChatFormat

    @classmethod
    def of(cls, name: str, actions: Any, examples: Any = ()) -> Chat:
        render = ChatFormat(tokenizer(FORMATS.get(name, name)))
        dialogue = chat_dialogue(examples, render, actions=actions)
        return cls(dialogue, chat_pieces(dialogue, render), render)

    def turn(self, tool: str, argument: str, thought: str = "") -> str:
        """As it is sampled."""
        thinking = f"{thought or 'Hm.'}\n</think>\n\n" if self.template.form.thinking else ""
        thinking = thinking or (f"<think>\n{thought}\n</think>\n\n" if thought else "")
        if not self.dialogue.tools:
            return f"{thinking} So.\nAction: {tool.capitalize()}[{argument}]"
        before, after = self.dialogue.pieces(self.render).written[tool]
        return f"{thinking}{before}{argument}{after}"

    def play(self, turns: list[str], observations: list[Observation], policy: Any = None, **options: Any) -> Played:
        model = ChatModel(turns, self.template.cue, self.template.next_cue, **options)
        settings = AgentSettings(checkpoints=KINDS, store_dtype="float32", max_turn_tokens=200)
        agent = ReActAgent(model, self.template, settings, end_ids=[model.end_id])
        environment = ScriptedEnvironment(observations)
        (recording,) = model.run([agent.play(TASK, environment, 0, policy)])
        assert model.conversations[-1] == recording.episode.token_ids.tolist()
        return Played(recording, model, environment)

    def rendered(self, messages: list[Message]) -> str:
        return self.dialogue.rendered([*self.dialogue.start("Where was Ada born?"), *messages], self.render)


@pytest.mark.parametrize(("name", "actions"), EVERY)
def test_an_episode_is_played_and_its_checkpoints_lie_where_they_should(name: str, actions: str) -> None:
    chat = Chat.of(name, actions)
    turns = [chat.turn("search", "Ada", "Action: Finish[no] is too early."), chat.turn("finish", "London")]
    played = chat.play([*turns, chat.turn("finish", "Bo")], [PAGE, NEXT, RIGHT])
    episode = played.episode
    assert episode.outcome == "success", episode.reason
    assert [step.text for step in episode.steps] == [*turns, chat.turn("finish", "Bo")]
    assert [(a.name, a.argument) for a in played.environment.actions] == [
        ("search", "Ada"),
        ("finish", "London"),
        ("finish", "Bo"),
    ]
    assert {step.finish_reason for step in episode.steps} == {"action"}
    assert episode.steps[0].thought.endswith("</think>" if chat.dialogue.tools else "So.")
    assert "is too early." in episode.steps[0].thought
    assert played.until("prompt").endswith(chat.template.cue)
    assert played.until("thought:1").endswith(episode.steps[0].thought)
    assert played.until("action:1").endswith(turns[0])
    assert played.until("observation:1").endswith(PAGE.text)
    assert played.until("observation:2").endswith("Question: And her tutor?")
    assert played.until("part:2") == played.text
    thoughts = {c.round for c in episode.checkpoints if c.kind == "thought"}
    assert thoughts == {step.round for step in episode.steps if step.thought}


@pytest.mark.parametrize(("name", "actions"), EVERY)
def test_what_is_read_is_what_the_template_gives_for_the_whole_conversation(name: str, actions: str) -> None:
    chat = Chat.of(name, actions)
    turns = [chat.turn("search", "Ada"), chat.turn("search", "Bo"), chat.turn("finish", "London")]
    text = chat.play(turns, [PAGE, PAGE, RIGHT]).text
    messages = []
    for argument, turn in zip(("Ada", "Bo"), turns, strict=False):
        opened = "<think>\n" if chat.template.form.thinking else chat.dialogue.opening
        acted = chat.dialogue.acted(opened + turn)
        if chat.dialogue.tools:
            thinking = "<think>\nHm.\n</think>\n\n" if chat.template.form.thinking else ""
            acted = chat.dialogue.called(chat.dialogue.tools[0], argument, thinking)
        messages += [acted, chat.dialogue.answered(PAGE.text)]
    opening = "" if chat.template.form.thinking else chat.dialogue.opening
    whole = chat.rendered(messages) + opening + turns[-1]
    rewritten = name == "reasoner" or (name, actions) == ("mistral", "react")  # by dropped thinking, by a blank
    assert (text == whole) != rewritten
    assert not rewritten or CHANGES[name, actions]


@pytest.mark.parametrize(("name", "actions"), EVERY)
def test_a_template_that_rewrites_history_is_found_out(name: str, actions: str) -> None:
    chat = Chat.of(name, actions)
    model = ChatModel([], chat.template.cue, chat.template.next_cue)
    assert rewrites(chat.dialogue, chat.template, chat.render, model) == CHANGES.get((name, actions), ())


@pytest.mark.parametrize("name", ["thinking", "reasoner"])
@pytest.mark.parametrize("actions", ACTIONS)
def test_thinking_that_the_template_would_drop_stays_in_the_ids(name: str, actions: str) -> None:
    chat = Chat.of(name, actions)
    turns = [chat.turn("search", "Ada", "Who is it?"), chat.turn("finish", "London", "It is London.")]
    text = chat.play(turns, [PAGE, RIGHT]).text
    assert text.index("Who is it?") < text.index(PAGE.text) < text.index("It is London.")


@pytest.mark.parametrize(
    ("template", "difference"),
    [
        (CHATML.replace("{{ m.content }}", "{{ m.content | replace('Action', 'Act') }}"), "changes earlier messages"),
        (CHATML.replace("{{ m.content }}", "{{ m.content | replace('\"', '&quot;') }}"), "escapes what tools answer"),
        (
            CHATML.replace("{{ m.content }}", "{{ '<think></think>' if m.role == 'assistant' }}{{ m.content }}"),
            "adds empty thinking",
        ),
    ],
)
def test_other_rewrites_have_their_names(template: str, difference: str) -> None:
    chat = Chat.of(template, "react")
    model = ChatModel([], chat.template.cue, chat.template.next_cue)
    assert difference in rewrites(chat.dialogue, chat.template, chat.render, model)


# --- forcing and narrowing -------------------------------------------------------------------------------------------


@dataclass
class At:
    """Takes one decision at one checkpoint."""

    name: str
    decision: Decision
    layers: tuple[int, ...] = ()

    def begin(self, task: Task) -> At:
        return self

    def decide(self, moment: Moment) -> Decision:
        return self.decision if moment.checkpoint.name == self.name else CONTINUE


@pytest.mark.parametrize(("name", "actions"), EVERY)
@pytest.mark.parametrize("when", ["observation:1", "thought:2", "action:2"])
def test_a_forced_answer_is_written_in_the_models_own_format(name: str, actions: str, when: str) -> None:
    chat = Chat.of(name, actions)
    after = chat.dialogue.pieces(chat.render).written["finish"][1] if actions == "tool_call" else "]"
    turns = [chat.turn("search", "Ada"), chat.turn("search", "Bo", "Once more.")]
    played = chat.play(turns, [PAGE, RIGHT], At(when, Decision("answer")), otherwise=f"Paris{after}")
    last = played.episode.steps[-1]
    assert played.episode.reason == "answered"
    assert (last.action, last.argument, last.finish_reason) == ("finish", "Paris", "forced")
    assert last.text == f"{chat.template.finish}Paris{after}"


@pytest.mark.parametrize(("name", "actions"), EVERY)
def test_only_an_allowed_tool_can_be_named(name: str, actions: str) -> None:
    chat = Chat.of(name, actions)
    turns = [chat.turn("search", "Ada"), chat.turn("search", "Bo", "Action: I search for <tool_call> Bo.")]
    free = chat.play(turns, [PAGE, NEXT])
    assert (free.episode.steps[1].action, free.episode.steps[1].argument) == ("search", "Bo")
    played = chat.play(turns, [PAGE, RIGHT], At("observation:1", Decision(allow=("finish",))))
    last = played.episode.steps[-1]
    assert (last.action, last.argument) == ("finish", "Bo")
    assert "I search for <tool_call> Bo." in last.text


# --- reading again ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "actions"), EVERY)
def test_live_and_reread_checkpoints_agree(name: str, actions: Any) -> None:
    chat = Chat.of(name, actions)
    turns = [
        chat.turn("search", "Ada", "Who?"),
        "Action: I do nothing.[EOM]",
        chat.turn("search", "Bo").replace('"Bo"', "Bo"),
        chat.turn("finish", "London"),
    ]
    if chat.template.form.thinking:
        turns[1] = f"Hm.\n</think>\n{turns[1]}"
    played = chat.play(turns, [PAGE, PAGE, PAGE, RIGHT])
    live = played.recording
    kept = [i for i, c in enumerate(live.episode.checkpoints) if c.kind != "thought"]
    points = tuple(live.episode.checkpoints[i] for i in kept)
    few = dataclasses.replace(live.episode, checkpoints=points)
    form = form_of(played.model, few, actions)
    assert form == chat.template.form
    assert laid_again(played.model, few, form) is not None
    wanted = Reread((0, 1, 2), (0, 1, 2), "float32", 0, 1e-6, ("thought",), form)
    (found,) = played.model.run([reread(played.model, few, live.hidden[kept], wanted)])
    assert [dataclasses.replace(c, seconds=0.0) for c in found.episode.checkpoints] == [
        dataclasses.replace(c, seconds=0.0) for c in live.episode.checkpoints
    ]
    np.testing.assert_allclose(found.hidden, live.hidden, rtol=1e-6)


# --- what templates can and cannot -----------------------------------------------------------------------------------


def test_tools_go_through_the_template_where_it_knows_them() -> None:
    hermes, chatml = Chat.of("hermes", "tool_call"), Chat.of("chatml", "tool_call")
    assert hermes.dialogue.native
    assert not chatml.dialogue.native
    for chat in (hermes, chatml):
        assert chat.template.head.count('"name": "search"') >= 1
        assert '"name": "finish"' in chat.template.head
    assert "<tool_response>" in chatml.template.observation


def test_worked_examples_are_written_in_the_format_of_the_calls() -> None:
    llama = Chat.of("llama", "tool_call", [EXAMPLE]).template
    assert 'I look him up.\n{"name": "search", "parameters": {"title": "Bo"}}\n' in llama.head
    assert "Action:" not in llama.head
    hermes = Chat.of("hermes", "tool_call", [EXAMPLE]).template
    assert '<tool_call>\n{"name": "finish", "arguments": {"answer": "Oslo"}}\n</tool_call>' in hermes.head
    assert "Observation: Bo: Born in Oslo." in hermes.head


@pytest.mark.parametrize("template", [GEMMA, MISTRAL])
def test_the_instruction_goes_to_the_user_where_no_system_message_stays_in_its_place(template: str) -> None:
    chat = Chat.of(template, "react")
    assert chat.dialogue.folded
    assert chat.template.head.count("Answer the questions.") == 1
    assert "Answer the questions." not in chat.template.observation


def test_calls_of_a_kind_that_is_not_read_are_refused() -> None:
    with pytest.raises(UsageError, match='a format that is not read; use actions = "react"'):
        Chat.of(FOREIGN, "tool_call")
    assert Chat.of(FOREIGN, "react").template.actions == "react"


def test_a_template_that_fails_is_one_sentence() -> None:
    for template in ("{{ raise_exception('No\nchat here.') }}", "{{ messages[0].content.nothing() }}", "{% if %}"):
        with pytest.raises(UsageError, match=r"^the model's chat template refuses .*; use the template 'plain'\.$"):
            Chat.of(template, "react")


def test_a_template_that_asks_for_the_day_is_told_the_same_one_always() -> None:
    chat = Chat.of("llama", "react")
    assert chat.render.dated
    assert "Today: 01 Jan 2025\n" in chat.template.head
    assert not Chat.of("hermes", "react").render.dated


def test_identities_tell_ways_to_act_apart() -> None:
    for name in FORMATS:
        render = Chat.of(name, "react").render
        made = [chat_template((), render), chat_template((), render, actions="tool_call")]
        assert made[0].identity != made[1].identity
    template = Chat.of(HERMES, "tool_call").template
    changed = [dataclasses.replace(template, calls=template.calls[:1]), dataclasses.replace(template, again="")]
    assert len({template.identity, *(other.identity for other in changed)}) == 3
    assert dataclasses.replace(template, finish="").identity != template.identity


def test_llama_calls_are_bare_json() -> None:
    assert Chat.of(LLAMA, "tool_call").template.finish == '{"name": "finish", "parameters": {"answer": "'
