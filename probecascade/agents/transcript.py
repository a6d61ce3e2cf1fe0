"""The transcript as text, at any checkpoint: what a reader without hidden states has to go by."""

from __future__ import annotations

from probecascade.episode import Moment


def text_at(moment: Moment) -> str:
    """What the agent had written and read up to and including this checkpoint; the task's statement apart.

    The same text live and from storage, where `Run.texts(checkpoint)` gives it for all episodes at once.
    """
    return moment.text
