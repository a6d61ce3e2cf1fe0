"""The agent: a ReAct loop with one seam for stopping policies, and the reading of its turns."""

from probecascade.agents.chat import ChatFormat, Dialogue
from probecascade.agents.parser import Form, ParsedTurn, parse_turn, turn_is_complete
from probecascade.agents.rewrites import rewrites
from probecascade.agents.templates import Template, chat_dialogue, chat_pieces, chat_template, plain_template

__all__ = [
    "ChatFormat",
    "Dialogue",
    "Form",
    "ParsedTurn",
    "Template",
    "chat_dialogue",
    "chat_pieces",
    "chat_template",
    "parse_turn",
    "plain_template",
    "rewrites",
    "turn_is_complete",
]
