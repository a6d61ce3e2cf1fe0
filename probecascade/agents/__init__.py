"""The agent: a ReAct loop with one seam for stopping policies, and the reading of its turns."""

from probecascade.agents.parser import ParsedTurn, parse_turn, turn_is_complete
from probecascade.agents.templates import Template, chat_template, plain_template

__all__ = ["ParsedTurn", "Template", "chat_template", "parse_turn", "plain_template", "turn_is_complete"]
