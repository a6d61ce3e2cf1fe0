"""Side questions as turns and as choices, notes of decisions, and text that joins the prompt."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from chat_formats import FORMATS
from short_episodes import FINISH, PAGE, RIGHT, SEARCH, TEMPLATE, play
from test_chat import Chat

from probecascade.episode import Answer, Decision, Moment, Question
from probecascade.testing import RecordingPolicy

WORDS = ("USEFUL", "USELESS")
ASKED = "Was it of use?"
TURN = f"\n\n{ASKED}\nAnswer:"


def asking(question: Question, heard: list[Answer]) -> Any:
    def ask(moment: Moment) -> Generator[Question, Answer, Decision]:
        heard.append((yield question))
        return Decision()

    return ask


def heard_at(name: str, question: Question, answers: dict[str, str]) -> tuple[list[Answer], int]:
    """What is answered at a checkpoint, and the ids that it costs; the episode itself must stay as it is."""
    heard: list[Answer] = []
    policy = RecordingPolicy(answers={name: asking(question, heard)})
    asked, free = play([SEARCH, FINISH], policy=policy, answers=answers), play([SEARCH, FINISH])
    np.testing.assert_array_equal(asked.episode.token_ids, free.episode.token_ids)
    np.testing.assert_array_equal(asked.recording.hidden, free.recording.hidden)
    assert asked.episode.outcome == free.episode.outcome == "success", asked.episode.reason
    return heard, asked.episode.side_tokens


def test_a_question_put_as_a_turn_stands_between_the_templates_words() -> None:
    heard, _ = heard_at("observation:1", Question(ASKED, as_turn=True), {PAGE.text + TURN: " USELESS."})
    assert heard == [" USELESS."]
    assert heard[0].logprobs == ()
    heard, _ = heard_at("action:1", Question(ASKED, as_turn=True), {f"\nQuestion: {ASKED}\nAnswer:": " no"})
    assert heard == [" no"]


@pytest.mark.parametrize("said", WORDS)
@pytest.mark.parametrize("at", ["prompt", "thought:1", "observation:1"])
def test_choices_are_weighed_in_one_forward(said: str, at: str) -> None:
    question = Question(ASKED, as_turn=True, choices=WORDS)
    heard, spent = heard_at(at, question, {f"{ASKED}\nAnswer:": f" {said}"})
    assert heard == [said]
    chosen, other = heard[0].logprobs if said == WORDS[0] else heard[0].logprobs[::-1]
    assert chosen > other
    model = play([FINISH], [RIGHT]).model
    before = "\n\n" if at == "observation:1" else "\nQuestion: "
    assert spent == sum(len(model.encode(text)) for text in (before, ASKED, "\nAnswer:"))  # nothing is sampled


def test_what_choices_have_in_common_is_fed_with_the_question() -> None:
    question = Question("\nIs it? ", choices=("very good", "very bad"))
    heard, _ = heard_at("observation:1", question, {"\nIs it? very": " bad"})
    assert heard == ["very bad"]


@pytest.mark.parametrize("choices", [("yes", "yes please"), ("yes", "yes"), ("very good", "very good indeed", "no")])
def test_choices_that_one_id_cannot_tell_apart_are_refused(choices: tuple[str, ...]) -> None:
    policy = RecordingPolicy(answers={"observation:1": asking(Question("\nWell? ", choices=choices), [])})
    episode = play([SEARCH, FINISH], policy=policy).episode
    assert episode.outcome == "error"
    assert "cannot be told apart" in episode.reason


def test_notes_are_kept_by_checkpoint_whatever_is_decided() -> None:
    answers = {
        "prompt": Decision(notes={"a": 1}),
        "observation:1": Decision(action="answer", reason="enough", notes={"b": "x", "c": 0.5}),
    }
    episode = play([SEARCH, SEARCH], policy=RecordingPolicy(answers=answers)).episode
    assert episode.attributes["notes"] == {"prompt": {"a": 1}, "observation:1": {"b": "x", "c": 0.5}}
    assert "notes" not in play([SEARCH, FINISH]).episode.attributes


def test_text_appended_at_the_prompt_joins_what_states_the_task() -> None:
    policy = RecordingPolicy(answers={"prompt": Decision(append="\nBe quick.")})
    played = play([SEARCH, FINISH], policy=policy)
    start = "Be brief.\nQuestion: Where was Ada born?\nBe quick.\nThought:"
    assert played.until("prompt") == start
    assert played.text.startswith(start + SEARCH)
    assert played.names.count("prompt") == 1
    assert played.episode.token_ids.tolist() == played.model.conversations[0]
    ids = played.episode.token_ids.tolist()
    assert played.model.decode(ids[: played.episode.prompt_tokens]) == start
    for point, states in zip(played.episode.checkpoints, played.recording.hidden, strict=True):
        np.testing.assert_array_equal(states, played.model.state(ids[: point.position + 1]))


def test_the_identity_of_a_template_is_that_of_what_stays_in_the_conversation() -> None:

    assert dataclasses.replace(TEMPLATE, aside=("\n", ":")).identity == TEMPLATE.identity


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("actions", ["react", "tool_call"])
def test_in_a_chat_the_question_is_a_users_and_the_reply_the_models(name: str, actions: str) -> None:
    template = Chat.of(name, actions).template
    before, after = template.aside
    assert after.startswith(("[EOM]", "[/INST]", ', "call_id"'))  # the last where no user may follow a tool
    opened = template.next_cue.removesuffix("Thought:")
    assert opened.endswith(after) or (name == "reasoner" and after.endswith("<think>\n\n</think>\n\n"))
    if actions == "react":
        assert before == "\n\n"
    assert template.said("USEFUL") == "USEFUL"
