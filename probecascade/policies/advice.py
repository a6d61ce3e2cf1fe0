"""The ways in which an episode fails, by name, and what could be changed about each."""

from __future__ import annotations

from collections.abc import Mapping

ADVICE: Mapping[str, str] = {
    "loop": "repeats an action already tried; let it see its past actions or cap repeats",
    "invalid_action": "writes turns that hold no usable action; show the format again or constrain decoding to it",
    "tool_error": "its tool fails or finds nothing; retry the tool, or have it take a similar title",
    "wrong_answer": "answers wrongly; have it check the answer against what it read",
    "gave_up": "says that it does not know; ask for another search before it may finish",
    "out_of_budget": "spends its budget before it answers; raise the limit or ask for the answer earlier",
}
"""What an abort says of each failure mode: what is likely wrong, and one thing to try."""

FAILURE_MODES: tuple[str, ...] = tuple(ADVICE)


def likely(mode: str, probability: float) -> str:
    """`likely loop (0.62): repeats an action …`; modes that a user named have no advice."""
    advice = ADVICE.get(mode, "")
    return f"likely {mode} ({probability:.2f})" + (f": {advice}" if advice else "")
