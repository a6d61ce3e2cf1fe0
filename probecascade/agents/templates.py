"""How a conversation reads: the text around questions, turns and observations.

Every piece is encoded on its own and joined as ids, so that a boundary can never be moved by a tokenizer that
merges across it, and what is stored is exactly what was fed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from probecascade.environments.examples import Example
from probecascade.episode import Observation
from probecascade.errors import UsageError

USAGE = "Search[title] or Finish[answer]"
"""The usual tools, as an instruction names them."""

INSTRUCTION = f"Answer the questions. Think, then use one action at a time: {USAGE}.\n\n"


@dataclass(frozen=True, slots=True)
class Wording:
    """One way to say what is asked: the instruction, its blank line included, and the word before every question.

    Labels of turns (Thought, Action, Observation) and the worked examples are the same in every wording.
    """

    instruction: str
    label: str


WORDINGS: Mapping[str, Wording] = {
    "plain": Wording(INSTRUCTION, "Question"),
    "terse": Wording("One action at a time: Search[title] or Finish[answer].\n\n", "Q"),
    "polite": Wording(
        "Hello! I would be grateful for your help with some questions. Please think first, and then kindly use "
        "exactly one action: Search[title] to look a title up, or Finish[answer] once you know. Thank you!\n\n",
        "Please answer",
    ),
    "formal": Wording(
        "Rules: (1) Each step states a thought and then takes one action. (2) The actions are Search[title], which "
        "reads the entry of that title, and Finish[answer], which submits an answer. (3) Every task ends with "
        "Finish[answer].\n\n",
        "Task",
    ),
}
"""Wordings by name. The engine keeps the encoded heads of four at a time."""

WATCHED = "An agent works on a task: it thinks, acts, and reads what its tools answer."
"""What an observing model is told before a recorded run: nothing about the tools, which each agent has of its own."""

OPENING = "Thought:"

_QUESTION, _TURN, _OBSERVATION = "QUESTION7531", "TURN7531", "OBSERVATION7531"


@dataclass(frozen=True, slots=True)
class Template:
    """Text around the moving parts: head question cue turn (after observation cue turn)*.

    `head` is shared by all episodes. A tool's text stands after `observation`, the next question of an errand
    after `question`. `end` strings close a turn and are never fed back.
    """

    name: str
    head: str
    first: str  # before the first question
    question: str  # before a later question
    observation: str  # before a tool's text
    cue: str  # after a question or observation: the model's turn begins
    finish: str  # what a forced answer begins with, up to the bracket

    @property
    def identity(self) -> str:
        """A hash of everything that the model reads because of this template."""
        text = "\0".join((self.head, self.first, self.question, self.observation, self.cue, self.finish))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def before(self, observation: Observation) -> str:
        return self.question if observation.kind == "next_part" else self.observation


def _instruction(said: Wording, usage: str) -> str:
    """The instruction with the tools that there are; a wording with sentences of its own gets one more."""
    if usage == USAGE or USAGE in said.instruction:
        return said.instruction.replace(USAGE, usage)
    return f"{said.instruction.rstrip()} The actions are {usage}.\n\n"


def _worked(examples: Sequence[Example], label: str) -> str:
    lines = []
    for example in examples:
        for part in example:
            lines.append(f"{label}: {part.question}")
            for turn in part.turns:
                lines.append(f"Thought: {turn.thought}")
                lines.append(f"Action: {turn.action.name.capitalize()}[{turn.action.argument}]")
                if turn.observation:
                    lines.append(f"Observation: {turn.observation}")
        lines.append("")
    return "\n".join(lines)


def plain_template(examples: Sequence[Example], wording: str = "plain", usage: str = USAGE) -> Template:
    """Continuous text with worked examples: what small models follow best.

    `wording` is a key of `WORDINGS`; `usage` names the tools of the environment where they are not the usual two.
    """
    said = WORDINGS[wording]
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
    examples: Sequence[Example],
    render: Callable[[list[dict[str, str]]], str],
    wording: str = "plain",
    usage: str = USAGE,
) -> Template:
    """The model's own chat format; `render(messages)` must end with what opens the assistant's next message.

    `wording` and `usage` are as for `plain_template`. Raises UsageError for a chat format that alters the text of
    messages.
    """
    said = WORDINGS[wording]
    system = _instruction(said, usage) + "Worked examples:\n\n" + _worked(examples, said.label).strip()
    return _chat(system, said.label, OPENING, render)


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


def recorded_chat_template(
    opening: str, render: Callable[[list[dict[str, str]]], str], instruction: str = WATCHED
) -> Template:
    """The model's own chat format for the runs of other agents; raises UsageError as `chat_template` does."""
    return _chat(instruction.rstrip(), "Question", opening, render)


def _chat(system: str, label: str, opening: str, render: Callable[[list[dict[str, str]]], str]) -> Template:
    asked = [{"role": "system", "content": system}, {"role": "user", "content": f"{label}: {_QUESTION}"}]
    start = render(asked)
    following = render([*asked, {"role": "assistant", "content": _TURN}, {"role": "user", "content": _OBSERVATION}])
    if start.count(_QUESTION) != 1 or following.count(_TURN) != 1 or following.count(_OBSERVATION) != 1:
        raise UsageError("the model's chat template alters the messages it is given; use the template 'plain'.")
    head, after = start.split(_QUESTION)
    between, cue = following.split(_TURN)[1].split(_OBSERVATION)
    return Template(
        name="chat",
        head=head,
        first="",
        question=f"{between}{label}: ",
        observation=f"{between}Observation: ",
        cue=f"{cue}{opening}" if cue == after else f"{after}{opening}",
        finish=" I will answer now.\nAction: Finish[",
    )
