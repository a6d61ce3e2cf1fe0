"""A small wiki to search: the pages are the task's own paragraphs."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from probecascade.environments.scoring import exact_match
from probecascade.episode import Action, Foresight, Observation, Paragraph, Task
from probecascade.errors import DataError, UsageError

ECHOED_CHARACTERS = 60
"""Longest piece of a search that is matched and echoed: the agent may repeat itself without end."""

SIMILAR_TITLES = 2


@dataclass(frozen=True, slots=True)
class _Pages:
    exact: dict[str, Paragraph]
    folded: dict[str, Paragraph]


def _fold(title: str) -> str:
    return " ".join(unicodedata.normalize("NFC", title).casefold().split())


@lru_cache(maxsize=512)
def _index(paragraphs: tuple[Paragraph, ...]) -> _Pages:
    pages = _Pages({}, {})
    for page in paragraphs:
        if page.title in pages.exact:
            raise DataError(f"two pages are titled {page.title!r}; give each page of a task its own title")
        pages.exact[page.title] = page
        pages.folded.setdefault(_fold(page.title), page)
    return pages


class WikiEnvironment:
    """`search[title]` shows a page, `finish[answer]` closes the current part of the task.

    A page is shown as its first `sentences` sentences (all of them if None), after "Title: " where the first one
    does not name the title. A finish that
    is not the last is answered with the next question and never says whether the answer was right. The
    reward is 1.0 at the end if every part was answered right (exact match), else 0.0.

    One instance plays one episode at a time; the index of a task's pages is shared between instances.
    """

    tools: Sequence[str] = ("search", "finish")

    def __init__(self, sentences: int | None = None) -> None:
        self.sentences = sentences
        self._task: Task | None = None

    def reset(self, task: Task) -> str:
        """Start the task and return its first question.

        Raises DataError if the task has no part, a part without question or answer, or a repeated title.
        """
        if not task.parts:
            raise DataError(f"task {task.task_id!r} has no part; give it at least one question with answers")
        for number, part in enumerate(task.parts, 1):
            if not part.question.strip() or not part.answers:
                where = f"part {number} of task {task.task_id!r}"
                raise DataError(f"{where} lacks a question or answers; give it one question and its answers")
        self._pages = _index(task.paragraphs)
        self._task = task
        self._closed = 0
        self._doomed = False
        self._shown = [_fold(task.parts[0].question)]
        return task.parts[0].question

    def foresee(self, action: Action) -> Foresight:
        """A finish closes part p (an event `("part", p)`); that of the last part is final.

        Checks, 0 or 1: `tool_exists`; `argument_well_formed`: not empty, on one line and at most `ECHOED_CHARACTERS`
        long; `argument_seen`: it stands in a question or page that the agent was shown in this episode. Whether a
        page of that title exists, or the answer is right, is not told.
        """
        task = self._live_task()
        checks = self._checks(action)
        if self._refusal(action) or action.name != "finish":
            return Foresight(checks=checks)
        part = self._closed + 1
        return Foresight(events=(("part", part),), final=part == len(task.parts), checks=checks)

    def _checks(self, action: Action) -> dict[str, float]:
        written, folded = action.argument.strip(), _fold(action.argument)
        usable = action.valid and action.name in self.tools
        formed = usable and 0 < len(written) <= ECHOED_CHARACTERS and "\n" not in written
        seen = bool(folded) and any(folded in text for text in self._shown)
        return {
            "tool_exists": float(usable),
            "argument_well_formed": float(formed),
            "argument_seen": float(usable and seen),
        }

    def step(self, action: Action) -> Observation:
        """Search or finish. Raises UsageError before `reset` and after the end."""
        task = self._live_task()
        refusal = self._refusal(action)
        if refusal:
            return Observation(f"Invalid action. {refusal}", "invalid", doomed=self._doomed)
        if action.name == "search":
            return self._search(action.argument)
        part = task.parts[self._closed]
        self._closed += 1
        self._doomed = self._doomed or not exact_match(action.argument, part.answers)
        if self._closed < len(task.parts):
            self._shown.append(_fold(task.parts[self._closed].question))
            return Observation(task.parts[self._closed].question, "next_part", doomed=self._doomed)
        return Observation("Finished.", "finish", True, 0.0 if self._doomed else 1.0, self._doomed)

    def _live_task(self) -> Task:
        if self._task is None:
            raise UsageError("the environment has no task yet; call reset(task) first")
        if self._closed == len(self._task.parts):
            raise UsageError(f"the episode of task {self._task.task_id!r} is over; call reset(task) first")
        return self._task

    def _refusal(self, action: Action) -> str:
        if not action.valid:
            return action.problem
        if action.name not in self.tools:
            return f"There is no tool {action.name!r}; use Search[...] or Finish[...]."
        if not action.argument.strip():
            tool = action.name.capitalize()
            return f"{tool}[] is empty; write something between the brackets."
        return ""

    def _search(self, argument: str) -> Observation:
        page = self._pages.exact.get(argument.strip()) or self._pages.folded.get(_fold(argument))
        if page is None:
            return Observation(self._not_found(argument), "not_found", doomed=self._doomed)
        shown = Paragraph(page.title, page.sentences[: self.sentences]).text
        if not shown:
            return Observation(f"{page.title}: this page is empty.", "not_found", doomed=self._doomed)
        if page.title not in page.sentences[0]:
            shown = f"{page.title}: {shown}"
        self._shown.append(_fold(shown))
        return Observation(shown, "content", doomed=self._doomed)

    def _not_found(self, argument: str) -> str:
        asked = " ".join(argument.split())[:ECHOED_CHARACTERS]
        close = difflib.get_close_matches(_fold(asked), list(self._pages.folded), n=SIMILAR_TITLES)
        similar = ", ".join(self._pages.folded[key].title for key in close)
        self._shown.append(_fold(similar))
        return f"Could not find {asked}." + (f" Similar: {similar}." if similar else "")
