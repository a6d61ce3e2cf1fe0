"""An episode as the messages of a chat, and the text that a model's own chat template puts around their contents.

The template is rendered a few times with placeholders and never again: what the model reads later is joined from the
pieces, so that history is never rewritten (`probecascade.agents.rewrites` says where the template would).
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probecascade.agents.calls import Tool, call_action, find_call
from probecascade.environments.examples import ExampleTurn
from probecascade.episode import Action
from probecascade.errors import UsageError

Message = dict[str, Any]
Render = Callable[..., str]
"""`render(messages)` or `render(messages, tools=schemas)`: the text, with what opens the assistant's next message."""

OBSERVED = "Observation: "
"""What stands before a tool's text where actions are words."""

CALL_ID = "call00001"  # nine letters and digits, as strict templates want it

_QUESTION, _TURN, _OBSERVATION = "QUESTION7531", "TURN7531", "OBSERVATION7531"
_PARAGRAPH = "\n\n"
_RESPONSE = ("<tool_response>\n", "\n</tool_response>")
_MACRO = (
    "{%- macro strftime_now(format) -%}{{ format | replace('%d', '01') | replace('%m', '01') | replace('%Y', '2025')"
    " | replace('%y', '25') | replace('%b', 'Jan') | replace('%B', 'January') | replace('%A', 'Wednesday')"
    " | replace('%a', 'Wed') | replace('%H', '12') | replace('%M', '00') | replace('%S', '00') }}{%- endmacro -%}"
)
"""A clock that stands still at 1 January 2025, noon."""


class ChatFormat:
    """The chat template of a tokenizer. One that asks for the time is told the same one always: a probe must read
    tomorrow what it was fitted on today. `dated` says that it asks."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    @property
    def dated(self) -> bool:
        return "strftime_now" in str(self.tokenizer.chat_template)

    def __call__(self, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> str:
        """The text of the messages. Raises UsageError for messages that the template refuses."""
        try:
            template = self.tokenizer.get_chat_template(tools=tools)
            return str(
                self.tokenizer.apply_chat_template(
                    messages,
                    tools=tools,
                    chat_template=_MACRO + template if self.dated else template,
                    tokenize=False,
                    add_generation_prompt=True,
                )
            )
        except Exception as error:  # a template is a program of its own makers
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            raise UsageError(
                f"the model's chat template refuses the conversation ({reason[:200]}); use the template 'plain'."
            ) from error


@dataclass(frozen=True, slots=True)
class Pieces:
    """Text around the moving parts of a chat: head QUESTION cue (turn between OBSERVATION again)*.

    A side question stands between `aside` and `reply` after an observation. `written` has, for each tool, the text of
    its call before and after the argument; empty where actions are words.
    """

    head: str
    cue: str
    between: str
    again: str
    aside: str
    reply: str
    written: Mapping[str, tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Dialogue:
    """How an episode is told in messages.

    Without `tools` the actions are words: the assistant's message is `opening` and the turn, what a tool answers is a
    user's message. With them and `native` they are calls and messages of role `tool`, as the template has them; else
    the instruction explains them, calls are JSON in `<tool_call>` and answers a user's message. `folded` puts the
    instruction into the first user's message.
    """

    system: str
    label: str
    opening: str = ""
    tools: tuple[Tool, ...] = ()
    native: bool = True
    folded: bool = False

    # Messages ----------------------------------------------------------------------------------------------------

    def start(self, question: str) -> list[Message]:
        """What stands before the first turn."""
        asked = f"{self.label}: {question}"
        if self.folded:
            return [{"role": "user", "content": f"{self._instruction}\n\n{asked}"}]
        return [{"role": "system", "content": self._instruction}, {"role": "user", "content": asked}]

    @property
    def _instruction(self) -> str:
        if not self.tools or self.native:
            return self.system
        listed = "\n".join(json.dumps(tool.schema["function"]) for tool in self.tools)
        before, after = self._spelled(self.tools[0])
        called = f"{before}...{after}"
        return f"{self.system}\n\nThe tools are:\n{listed}\n\nCall one of them so:\n{called}"

    def acted(self, turn: str) -> Message:
        """A turn whose action is words."""
        return {"role": "assistant", "content": turn}

    def called(self, tool: Tool, argument: str, said: str = "") -> Message:
        """A turn that calls a tool, after words (or thinking) `said`."""
        if not self.native:
            before, after = self._spelled(tool)
            return {"role": "assistant", "content": said + before + _escaped(argument) + after}
        function = {"name": tool.name, "arguments": {tool.argument: argument}}
        return {
            "role": "assistant",
            "content": said,
            "tool_calls": [{"id": CALL_ID, "type": "function", "function": function}],
        }

    def answered(self, observation: str) -> Message:
        """What a tool answered."""
        if not self.tools:
            return {"role": "user", "content": OBSERVED + observation}
        if not self.native:
            return {"role": "user", "content": observation.join(_RESPONSE)}
        return {"role": "tool", "name": self.tools[0].name, "tool_call_id": CALL_ID, "content": observation}

    def _spelled(self, tool: Tool) -> tuple[str, str]:
        return f'<tool_call>\n{{"name": "{tool.name}", "arguments": {{"{tool.argument}": "', '"}}\n</tool_call>'

    # What the template makes of them -----------------------------------------------------------------------------

    def rendered(self, messages: Sequence[Message], render: Render) -> str:
        """The text of these messages. Raises UsageError where the template refuses them."""
        if self.tools and self.native:
            return render(list(messages), tools=[tool.schema for tool in self.tools])
        return render(list(messages))

    def fitted(self, render: Render) -> Dialogue:
        """The first way to tell this episode that the template agrees to: its own tools before explained ones, a
        system message before a folded instruction. Raises UsageError if it agrees to none."""
        refusal: UsageError | None = None
        for native, folded in itertools.product((True, False) if self.tools else (True,), (False, True)):
            way = dataclasses.replace(self, native=native, folded=folded)
            try:
                way.pieces(render)
            except UsageError as error:
                refusal = refusal or error
                if native and folded and self.tools and self._knows_tools(render):
                    raise UsageError(
                        "the model's chat template writes tool calls in a format that is not read; use "
                        'actions = "react".'
                    ) from error
            else:
                return way
        assert refusal is not None
        raise refusal

    def _knows_tools(self, render: Render) -> bool:
        """Whether the template shows the model the tools that it is given."""
        for folded in (False, True):
            way = dataclasses.replace(self, native=True, folded=folded)
            try:
                text = way.rendered(way.start(_QUESTION), render)
            except UsageError:
                continue
            return all(tool.schema["function"]["description"] in text for tool in self.tools)
        return False

    def pieces(self, render: Render) -> Pieces:
        """The text around the moving parts. Raises UsageError for a template that alters contents or moves them."""
        asked = self.start(_QUESTION)
        start = self.rendered(asked, render)
        written = {tool.name: self._written(tool, render) for tool in self.tools}
        turn = self.called(self.tools[0], _TURN) if self.tools else self.acted(_TURN)
        following = self.rendered([*asked, turn, self.answered(_OBSERVATION)], render)
        if start.count(_QUESTION) != 1 or any(following.count(word) != 1 for word in (_QUESTION, _TURN, _OBSERVATION)):
            raise _altered()
        head, cue = start.split(_QUESTION)
        after = written[self.tools[0].name][1] if self.tools else ""
        turned, _, rest = following.partition(_TURN + after)
        if _OBSERVATION not in rest or _QUESTION not in turned:
            raise _altered()
        between, again = rest.split(_OBSERVATION)
        if self._instruction in between or not following.startswith(head):
            raise _altered()  # the instruction wanders to the latest message
        aside, reply = self._aside([*asked, turn, self.answered(_OBSERVATION)], again, render)
        return Pieces(
            head, cue, between if self.tools else between.removesuffix(OBSERVED), again, aside, reply, written
        )

    def _aside(self, messages: Sequence[Message], again: str, render: Render) -> tuple[str, str]:
        """What stands before and after a side question: in the user's message that holds the observation, if one
        does, else in a message after the tool's, where the template agrees to that."""
        closing = _RESPONSE[1] if self.tools and not self.native else ""
        within = (closing + _PARAGRAPH, again.removeprefix(closing))
        if not self.tools or not self.native:
            return within
        try:
            text = self.rendered([*messages, {"role": "user", "content": _QUESTION}], render)
        except UsageError:
            return within
        before, _, after = text.rpartition(_OBSERVATION)[2].partition(_QUESTION)
        return (before, after) if after else within

    def _written(self, tool: Tool, render: Render) -> tuple[str, str]:
        """The text of a call before and after its argument."""
        asked = [*self.start(_QUESTION), self.called(tool, _TURN), self.answered(_OBSERVATION)]
        text = self.rendered(asked, render).rpartition(_QUESTION)[2]
        call = find_call(text)
        if call is None or not call.complete or call_action(call, [tool.name]) != Action(tool.name, _TURN):
            raise _altered()
        before, _, after = text[call.start : call.end].partition(_TURN)
        return before, after


def spelled_turn(turn: ExampleTurn, written: Mapping[str, tuple[str, str]]) -> str:
    """A worked turn as the model should write it: its thought, and its action as words or as a call."""
    action = turn.action
    if not written:
        return f"Thought: {turn.thought}\nAction: {action.name.capitalize()}[{action.argument}]"
    before, after = written[action.name]
    return f"{turn.thought}\n{before}{_escaped(action.argument)}{after}"


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _altered() -> UsageError:
    return UsageError("the model's chat template alters the messages it is given; use the template 'plain'.")
