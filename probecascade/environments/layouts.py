"""The layouts of task files that are read, and which of them a record has. A file's name says nothing about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probecascade.environments import official
from probecascade.environments.fields import kind_of
from probecascade.environments.pages import Notes, PageFile
from probecascade.environments.scoring import F1_SUCCESS
from probecascade.environments.wiki import WikiSettings
from probecascade.episode import Task

Reader = Callable[[Mapping[str, Any], Notes, PageFile | None], Task]

_SEARCHED = WikiSettings(search="closest", lookup=True, score="f1", success_reward=F1_SUCCESS)


@dataclass(frozen=True, slots=True)
class Layout:
    """What a record has to have (key: kinds of value, as `fields.kind_of` names them), and how it is played.

    `name` is the format that is printed, `read` is None for our own layout, which is checked by itself.
    """

    name: str
    needs: Mapping[str, tuple[str, ...]]
    read: Reader | None
    settings: WikiSettings = _SEARCHED

    def difference(self, record: object) -> str:
        """What keeps a record from having this layout, as the end of a sentence; empty if nothing does."""
        missing = self.differences(record)
        return missing[0] if missing else ""

    def likeness(self, record: object) -> int:
        """How much of the layout a record has: 2 for a key with a value of its kind, 1 for one with another value."""
        if not isinstance(record, dict):
            return 0
        return sum(key in record for key in self.needs) + len(self.needs) - len(self.differences(record))

    def differences(self, record: object) -> list[str]:
        """All that keeps a record from having this layout."""
        if not isinstance(record, dict):
            return [f"it is {kind_of(record)}"] * (len(self.needs) + 1)
        found = []
        for key, kinds in self.needs.items():
            if key not in record:
                found.append(f"it has no {key!r}")
            elif kinds and kind_of(record[key]) not in kinds:
                found.append(f"its {key!r} is {kind_of(record[key])}, not {' or '.join(kinds)}")
        return found


_TEXT, _LIST, _OBJECT = ("a text",), ("a list",), ("an object",)

LAYOUTS: Sequence[Layout] = (
    Layout("probecascade", {"task_id": (), "parts": ()}, None, WikiSettings()),
    Layout(
        "fever",
        {"claim": _TEXT, "label": ()},
        official.fever,
        WikiSettings(search="closest", lookup=True, score="verdict"),
    ),
    Layout("bamboogle", {"Question": _TEXT, "Answer": ()}, official.bamboogle),
    Layout("musique", {"question": _TEXT, "paragraphs": _LIST, "question_decomposition": _LIST}, official.musique),
    Layout("2wikimultihopqa", {"question": _TEXT, "context": _LIST, "evidences": _LIST}, official.two_wiki),
    Layout("hotpotqa-columns", {"question": _TEXT, "context": _OBJECT}, official.hotpotqa_columns),
    Layout("hotpotqa", {"question": _TEXT, "context": _LIST}, official.hotpotqa),
    Layout(
        "strategyqa",
        {"question": _TEXT, "term": _TEXT},
        official.strategyqa,
        WikiSettings(search="closest", lookup=True, score="exact"),
    ),
    Layout("questions", {"question": _TEXT, "answers": ()}, official.questions),
    Layout("questions", {"question": _TEXT, "answer": ()}, official.questions),
)
"""All layouts, the more particular ones first."""


_OF_RUNS = frozenset(("steps", "messages", "traj", "trajectory", "history"))


def layout_of(records: Sequence[object]) -> Layout | None:
    """The layout of the first of these records that has one."""
    for record in records:
        for layout in LAYOUTS:
            if not layout.differences(record):
                return layout
    return None


def played_as(layout: Layout, tasks: Sequence[Task]) -> Layout:
    """The layout whose settings suit tasks of a file: those of our own layout may have been made from another's."""
    sets = {task.attributes.get("set") for task in tasks}
    named = next((other for other in LAYOUTS if other.read and sets == {other.name}), None)
    return named if layout.read is None and named else layout


def unknown(record: object) -> str:
    """Why a record has none of the layouts: those that were tried, and how it differs from the nearest."""
    nearest = max(reversed(LAYOUTS), key=lambda layout: (layout.likeness(record), -len(layout.needs)))
    names = ", ".join(dict.fromkeys(layout.name for layout in LAYOUTS))
    runs = isinstance(record, dict) and not _OF_RUNS.isdisjoint(record)
    other = "recorded runs are described by `probecascade transcripts`" if runs else "give a file of one of them"
    return (
        f"the record has none of the layouts that are read ({names}); nearest is {nearest.name}, but "
        f"{nearest.difference(record)}: {other}"
    )
