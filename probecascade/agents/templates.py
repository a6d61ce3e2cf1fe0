"""How a conversation reads: the text around questions, turns and observations.

Every piece is encoded on its own and joined as ids, so that a boundary can never be moved by a tokenizer that
merges across it, and what is stored is exactly what was fed.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from probecascade.agents.calls import Choices, named_calls, tools_of
from probecascade.agents.chat import OBSERVED, Dialogue, Render, spelled_turn
from probecascade.agents.parser import Actions, Form, opens_thinking
from probecascade.environments.examples import Example
from probecascade.environments.games import TextGameEnvironment
from probecascade.episode import Observation, Question

USAGE = "Search[title] or Finish[answer]"
"""The usual tools, as an instruction names them."""

INSTRUCTION = f"Answer the questions. Think, then use one action at a time: {USAGE}.\n\n"


@dataclass(frozen=True, slots=True)
class Wording:
    """One way to say what is asked: the instruction, its blank line included, and the word before every question.

    Labels of turns (Thought, Action, Observation) and the worked examples are the same in every wording. `calling` is
    the instruction where actions are native tool calls, which the model is told of apart.
    """

    instruction: str
    label: str
    calling: str


WORDINGS: Mapping[str, Wording] = {
    "plain": Wording(INSTRUCTION, "Question", "Answer the questions. Think, then call one tool at a time."),
    "terse": Wording(
        "One action at a time: Search[title] or Finish[answer].\n\n", "Q", "One tool call at a time; end with finish."
    ),
    "polite": Wording(
        "Hello! I would be grateful for your help with some questions. Please think first, and then kindly use "
        "exactly one action: Search[title] to look a title up, or Finish[answer] once you know. Thank you!\n\n",
        "Please answer",
        "Hello! I would be grateful for your help with some questions. Please think first, and then kindly call "
        "exactly one of the tools; call finish once you know. Thank you!",
    ),
    "formal": Wording(
        "Rules: (1) Each step states a thought and then takes one action. (2) The actions are Search[title], which "
        "reads the entry of that title, and Finish[answer], which submits an answer. (3) Every task ends with "
        "Finish[answer].\n\n",
        "Task",
        "Rules: (1) Each step states a thought and then calls one tool. (2) Every task ends with a call of finish.",
    ),
}
"""Wordings by name. The engine keeps the encoded heads of four at a time."""

_GAME = TextGameEnvironment.usage

GAME_WORDINGS: Mapping[str, Wording] = {
    "plain": Wording(
        f"Do the tasks. Think, then use one action at a time: {_GAME}.\n\n",
        "Task",
        "Do the tasks. Think, then call one tool at a time.",
    ),
    "terse": Wording(f"One action at a time: {_GAME}.\n\n", "T", "One tool call at a time."),
    "polite": Wording(
        f"Hello! I would be grateful for your help with some tasks. Please think first, and then kindly use exactly "
        f"one action: {_GAME}, where Finish gives the task up. Thank you!\n\n",
        "Please do",
        "Hello! I would be grateful for your help with some tasks. Please think first, and then kindly call exactly "
        "one of the tools; finish gives the task up. Thank you!",
    ),
    "formal": Wording(
        f"Rules: (1) Each step states a thought and then takes one action. (2) The actions are {_GAME}: the first "
        "carries out a command, the second gives the task up. (3) A task ends when it is done.\n\n",
        "Assignment",
        "Rules: (1) Each step states a thought and then calls one tool. (2) A task ends when it is done; finish gives "
        "it up.",
    ),
}
"""The same for tasks that are done by commands, as text games are."""

WATCHED = "An agent works on a task: it thinks, acts, and reads what its tools answer."
"""What an observing model is told before a recorded run: nothing about the tools, which each agent has of its own."""

OPENING = "Thought:"


@dataclass(frozen=True, slots=True)
class Template:
    """Text around the moving parts: head question cue turn (after observation next_cue turn)*.

    `head` is shared by all episodes. A tool's text stands after `observation`, the next question of an errand
    after `question`. `end` strings close a turn and are never fed back.
    """

    name: str
    head: str
    first: str  # before the first question
    question: str  # before a later question
    observation: str  # before a tool's text
    cue: str  # after the first question: the model's turn begins
    finish: str  # what a forced answer begins with, up to the answer
    again: str = ""  # the cue after a tool's text, where it is another
    actions: Actions = "react"
    calls: tuple[tuple[str, str], ...] = ()  # native calls: each tool, and the text of its call up to the argument
    aside: tuple[str, str] = ("\n\n", "\nAnswer:")  # around a side question, between a tool's text and the reply

    @property
    def identity(self) -> str:
        """A hash of everything that the model reads because of this template."""
        pieces = [self.head, self.first, self.question, self.observation, self.cue, self.finish]
        if self.again or self.calls or self.actions != "react":
            pieces += [self.again, self.actions, *(text for call in self.calls for text in call)]
        return hashlib.sha256("\0".join(pieces).encode()).hexdigest()[:16]

    @property
    def next_cue(self) -> str:
        """After a tool's text: the model's next turn begins."""
        return self.again or self.cue

    @property
    def form(self) -> Form:
        """How turns are to be read."""
        return Form(self.actions, opens_thinking(self.cue))

    def choices(self, tools: Sequence[str]) -> tuple[Choices, ...]:
        """Where a turn names its tool, and what may stand there if only `tools` are allowed."""
        if self.actions == "tool_call":
            return named_calls(dict(self.calls), tools)
        return ((_ends_with_label, tuple(f" {tool.capitalize()}[" for tool in tools)),)

    def asked(self, question: Question, after: str) -> tuple[str, str]:
        """What stands before and after a side question at a checkpoint of kind `after`; nothing if it is no turn."""
        if not question.as_turn:
            return "", ""
        return (self.aside[0] if after == "observation" else self.question), self.aside[1]

    def said(self, choice: str) -> str:
        """A choice of a side question that is a turn, as it is written after the words that ask for it."""
        return f" {choice}" if self.aside[1].endswith(":") else choice

    def before(self, observation: Observation) -> str:
        return self.question if observation.kind == "next_part" else self.observation


def _wording(name: str, usage: str) -> Wording:
    """What is said in a wording to an agent that has these tools."""
    return (GAME_WORDINGS if usage == _GAME else WORDINGS)[name]


def _instruction(said: Wording, usage: str) -> str:
    """The instruction with the tools that there are; a wording with sentences of its own gets one more."""
    if usage in (USAGE, _GAME) or USAGE in said.instruction:
        return said.instruction.replace(USAGE, usage)
    return f"{said.instruction.rstrip()} The actions are {usage}.\n\n"


def _worked(examples: Sequence[Example], label: str, written: Mapping[str, tuple[str, str]] | None = None) -> str:
    lines = []
    for example in examples:
        for part in example:
            lines.append(f"{label}: {part.question}")
            for turn in part.turns:
                lines.append(spelled_turn(turn, written or {}))
                if turn.observation:
                    lines.append(f"Observation: {turn.observation}")
        lines.append("")
    return "\n".join(lines)


def plain_template(examples: Sequence[Example], wording: str = "plain", usage: str = USAGE) -> Template:
    """Continuous text with worked examples: what small models follow best.

    `wording` is a key of `WORDINGS`; `usage` names the tools of the environment where they are not the usual two.
    """
    said = _wording(wording, usage)
    return Template(
        name="plain",
        head=_instruction(said, usage) + _worked(examples, said.label) + "\n",
        first=f"{said.label}: ",
        question=f"\n{said.label}: ",
        observation="\nObservation: ",
        cue="\nThought:",
        finish=" I will answer now.\nAction: Finish[",
    )


def chat_template(
    examples: Sequence[Example], render: Render, wording: str = "plain", usage: str = USAGE, actions: Actions = "react"
) -> Template:
    """The model's own chat format; `render(messages)` must end with what opens the assistant's next message.

    `wording` and `usage` are as for `plain_template`. With native calls as `actions`, `render(messages, tools=schemas)`
    is asked too. Raises UsageError for a chat format that alters the text of messages, or whose calls are not read.
    """
    return chat_pieces(chat_dialogue(examples, render, wording, usage, actions), render)


def chat_dialogue(
    examples: Sequence[Example], render: Render, wording: str = "plain", usage: str = USAGE, actions: Actions = "react"
) -> Dialogue:
    """How an agent's episode is told in messages that this chat format agrees to. Raises as `chat_template` does."""
    said = _wording(wording, usage)
    if actions == "react":
        system = _instruction(said, usage) + "Worked examples:\n\n" + _worked(examples, said.label).strip()
        return Dialogue(system, said.label, OPENING).fitted(render)
    dialogue = Dialogue(said.calling, said.label, tools=tools_of(usage)).fitted(render)
    if not examples:
        return dialogue
    worked = _worked(examples, said.label, dialogue.pieces(render).written).strip()
    return dataclasses.replace(dialogue, system=f"{said.calling}\n\nWorked examples:\n\n{worked}")


def recorded_template(opening: str, instruction: str = WATCHED) -> Template:
    """Continuous text for the runs of other agents, without worked examples.

    `opening` is what stands before every turn on its line: nothing where the turns bring their own labels.
    """
    return Template(
        name="plain",
        head=f"{instruction.rstrip()}\n\n",
        first="Question: ",
        question="\nQuestion: ",
        observation="\nObservation: ",
        cue=f"\n{opening}",
        finish="",
    )


def recorded_chat_template(opening: str, render: Render, instruction: str = WATCHED) -> Template:
    """The model's own chat format for the runs of other agents; raises UsageError as `chat_template` does."""
    return chat_pieces(Dialogue(instruction.rstrip(), "Question", opening).fitted(render), render)


def chat_pieces(dialogue: Dialogue, render: Render) -> Template:
    """The template of a dialogue. A chat format that opens the thinking itself gets no other opening."""
    pieces = dialogue.pieces(render)
    opening = "" if opens_thinking(pieces.cue) else dialogue.opening
    cue, again = pieces.cue + opening, pieces.again + opening
    calls = {tool: before for tool, (before, _) in pieces.written.items()}
    words = "" if calls else OBSERVED
    return Template(
        name="chat",
        head=pieces.head,
        first="",
        question=f"{pieces.between}{dialogue.label}: ",
        observation=f"{pieces.between}{words}",
        cue=cue,
        finish=_finish(calls.get("finish"), thinking=opens_thinking(cue)),
        again="" if again == cue else again,
        actions="tool_call" if calls else "react",
        calls=tuple(calls.items()),
        aside=(pieces.aside, pieces.reply + ("\n</think>\n\n" if opens_thinking(pieces.reply) else "")),
    )


def _finish(call: str | None, *, thinking: bool) -> str:
    """What a forced answer begins with; thinking that the prompt has opened ends first."""
    if thinking:
        return "I will answer now.\n</think>\n\n" + (call or "Action: Finish[")
    return call or " I will answer now.\nAction: Finish["


def _ends_with_label(text: str) -> bool:
    line = text.rsplit("\n", 1)[-1].strip().lower()
    return line.startswith("action") and line.endswith(":")
