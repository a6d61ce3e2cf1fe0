"""Where a chat template would tell an episode's history in other words than those that were read.

What a model reads is joined from pieces and stored as it was read. A template that is rendered over the whole
conversation, as other software does at every turn, may say the same history otherwise: this is found out by telling
two rounds both ways.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from probecascade.agents.chat import CALL_ID, Dialogue, Message, Render
from probecascade.agents.parser import THINK
from probecascade.agents.templates import Template
from probecascade.interfaces import LanguageModel

_THINKING = re.compile(r"<think>.*?</think>", re.DOTALL)
_EARLIER = "changes earlier messages"
_DROPPED = "drops earlier thinking"
_BLANKS = "changes blanks at the ends of messages"
_QUESTION, _ARGUMENTS = "Where was Ada born?", ("Ada", "Bo")


@dataclass(frozen=True, slots=True)
class _Round:
    """What an agent thinks and says before it acts, and what its tool answers."""

    thought: str = ""
    said: str = ""
    observation: str = "Born in Oslo."


_PROBES = {
    _EARLIER: _Round(),
    "changes earlier thinking": _Round(thought="Hm, who is it?"),
    "changes what is said before an action": _Round(said="I look it up."),
    _BLANKS: _Round(observation=" Born in Oslo. \n"),
    "escapes what tools answer": _Round(observation='It says: "Born\tin Oslo".\nÉ <b>&'),
}


def rewrites(dialogue: Dialogue, template: Template, render: Render, model: LanguageModel) -> tuple[str, ...]:
    """What the template does to history, each in a few words; nothing where it leaves it as it is.

    For every probe two rounds are joined from the pieces as in an episode, and rendered as a whole; the texts of both
    ids are compared. Raises UsageError where the template refuses a second round.
    """
    found = []
    for name, told in _PROBES.items():
        read, whole = _both(dialogue, template, render, model, told)
        dropped = told.thought and told.thought not in whole
        difference = _DROPPED if dropped else _named(read, whole, name)
        joined = difference == _BLANKS and (told.said or told.thought)  # between words and call: no two models agree
        if difference and not joined and not (difference == name and _EARLIER in found):
            found.append(difference)
    between = template.observation
    if CALL_ID in between or CALL_ID in template.next_cue:
        found.append("gives calls and answers ids")
    if dialogue.tools and dialogue.native and dialogue.tools[0].name in between:
        found.append("names the tool that answers")
    return tuple(dict.fromkeys(found))


def _named(read: str, whole: str, otherwise: str) -> str:
    """How two texts of one history differ, in words; `otherwise` where it is none of the usual ways."""
    if read == whole:
        return ""
    if _bare(read) == _bare(whole):
        return _BLANKS
    if _bare(_THINKING.sub("", read)) == _bare(_THINKING.sub("", whole)):
        return _DROPPED if read.count(THINK) >= whole.count(THINK) else "adds empty thinking"
    return otherwise


def _bare(text: str) -> str:
    return "".join(text.split())


def _both(
    dialogue: Dialogue, template: Template, render: Render, model: LanguageModel, told: _Round
) -> tuple[str, str]:
    """Two rounds as an episode reads them, and as the template tells them as a whole."""
    ids = model.encode(template.head) + model.encode(template.first)
    ids += model.encode(_QUESTION, plain=True) + model.encode(template.cue)
    messages = dialogue.start(_QUESTION)
    for turn, message in _rounds(dialogue, template, render, told):
        ids += model.encode(turn) + model.encode(template.observation)
        ids += model.encode(told.observation, plain=True) + model.encode(template.next_cue)
        messages += [message, dialogue.answered(told.observation)]
    whole = model.decode(model.encode(dialogue.rendered(messages, render)))
    return model.decode(ids), whole + ("" if template.form.thinking else dialogue.opening)


def _rounds(dialogue: Dialogue, template: Template, render: Render, told: _Round) -> Iterator[tuple[str, Message]]:
    """The text of each turn as it is sampled, and the message that it is."""
    opened = template.form.thinking
    thinking = f"{told.thought or 'Hm.'}\n</think>\n\n" if opened or told.thought else ""
    said = thinking if opened or not thinking else f"{THINK}\n{thinking}"
    whole = f"{THINK}\n{said}" if opened else said  # what the cue has opened is part of the message
    if not dialogue.tools:
        opening = "" if opened else dialogue.opening
        for argument in _ARGUMENTS:
            words = f"{told.said}\nAction: Search[{argument}]"
            yield f"{said}{words}", dialogue.acted(f"{opening}{whole}{words}")
        return
    tool = dialogue.tools[0]
    before, after = dialogue.pieces(render).written[tool.name]
    words = f"{told.said}\n" if told.said else ""
    for argument in _ARGUMENTS:
        content = f"{whole}{told.said if dialogue.native else words}"  # a template joins words and call in its own way
        yield f"{said}{words}{before}{argument}{after}", dialogue.called(tool, argument, content)
