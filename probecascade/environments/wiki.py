"""A small wiki to search: the pages are the task's own paragraphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from probecascade.environments.scoring import SCORES, Score
from probecascade.environments.searching import MATCHED_CHARACTERS, Pages, Search, fold, pages_of
from probecascade.episode import Action, Foresight, Observation, Paragraph, Task
from probecascade.errors import DataError, UsageError

ECHOED_CHARACTERS = 60
"""Longest piece of a search that is matched with titles and echoed: the agent may repeat itself without end."""

SIMILAR_TITLES = 2

_FORMS = {"search": "Search[title]", "lookup": "Lookup[keyword]", "finish": "Finish[answer]"}


@dataclass(frozen=True, slots=True)
class WikiSettings:
    """How a wiki is searched and how its answers are scored: the arguments of `WikiEnvironment`."""

    search: Search = "title"
    lookup: bool = False
    score: Score = "exact"
    success_reward: float = 1.0
    sentences: int | None = None


class WikiEnvironment:
    """`search[title]` shows a page, `finish[answer]` closes the current part of the task.

    A page is shown as its first `sentences` sentences (all of them if None). `search` is how a page is found
    (`environments.searching`); with `title` a page whose first sentence does not name its title is shown after
    "Title: ", with the others every page after "[Title] ", since it need not be the one that was asked for.

    With `lookup` there is a third tool, `lookup[keyword]`: the next sentence of the page found last that holds the
    keyword in any case, as "(Result i / n) ...". The same keyword again goes on from there; another keyword and
    another search begin anew.

    A finish that is not the last is answered with the next question and never says whether the answer was right.
    Every answer is scored by `score` (a key of `scoring.SCORES`); the reward at the end is the lowest score of a part,
    in [0, 1], and the episode is doomed once an answer scores less than `success_reward`.

    One instance plays one episode at a time; the index of a task's pages is shared between instances.
    """

    tools: Sequence[str] = ("search", "finish")

    def __init__(
        self,
        sentences: int | None = None,
        *,
        search: Search = "title",
        lookup: bool = False,
        score: Score = "exact",
        success_reward: float = 1.0,
    ) -> None:
        self.sentences = sentences
        self.search: Search = search
        self.score: Score = score
        self.success_reward = success_reward
        if lookup:
            self.tools = ("search", "lookup", "finish")
        self._task: Task | None = None

    @classmethod
    def of(cls, settings: WikiSettings) -> WikiEnvironment:
        """A wiki with these settings."""
        return cls(**asdict(settings))

    @property
    def usage(self) -> str:
        """The tools as an instruction names them: "Search[title] or Finish[answer]"."""
        *others, last = (_FORMS[tool.lower()] for tool in self.tools)
        return f"{', '.join(others)} or {last}"

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
        self._pages: Pages = pages_of(task.paragraphs)
        self._task = task
        self._closed = 0
        self._reward = 1.0
        self._doomed = False
        self._page: Paragraph | None = None
        self._keyword, self._hits = "", 0
        self._shown = [fold(task.parts[0].question)]
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
        written, folded = action.argument.strip(), fold(action.argument)
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
        if action.name == "lookup":
            return self._lookup(action.argument)
        part = task.parts[self._closed]
        self._closed += 1
        score = SCORES[self.score](action.argument, part.answers)
        self._reward = min(self._reward, score)
        self._doomed = self._doomed or score < self.success_reward
        if self._closed < len(task.parts):
            self._shown.append(fold(task.parts[self._closed].question))
            return Observation(task.parts[self._closed].question, "next_part", doomed=self._doomed)
        return Observation("Finished.", "finish", True, self._reward, self._doomed)

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
            forms = " or ".join(f"{tool.capitalize()}[...]" for tool in self.tools)
            return f"There is no tool {action.name!r}; use {forms}."
        if not action.argument.strip():
            tool = action.name.capitalize()
            return f"{tool}[] is empty; write something between the brackets."
        return ""

    def _search(self, argument: str) -> Observation:
        self._keyword = ""
        self._page = page = self._pages.find(argument, self.search)
        if page is None:
            return Observation(self._not_found(argument), "not_found", doomed=self._doomed)
        shown = Paragraph(page.title, page.sentences[: self.sentences]).text
        if not shown:
            return Observation(f"{page.title}: this page is empty.", "not_found", doomed=self._doomed)
        if self.search != "title":
            shown = f"[{page.title}] {shown}"
        elif page.title not in page.sentences[0]:
            shown = f"{page.title}: {shown}"
        self._shown.append(fold(shown))
        return Observation(shown, "content", doomed=self._doomed)

    def _lookup(self, argument: str) -> Observation:
        if self._page is None:
            text = "There is no page to look in; search one first."
            return Observation(text, "not_found", doomed=self._doomed)
        keyword = fold(argument)[:MATCHED_CHARACTERS]
        if keyword != self._keyword:
            self._keyword, self._hits = keyword, 0
        holding = [sentence.strip() for sentence in self._page.sentences if keyword in fold(sentence)]
        if self._hits >= len(holding):
            echoed = " ".join(argument.split())[:ECHOED_CHARACTERS]
            text = f"No more results for {echoed}." if holding else f"{self._page.title} does not mention {echoed}."
            return Observation(text, "not_found", doomed=self._doomed)
        self._hits += 1
        shown = f"(Result {self._hits} / {len(holding)}) {holding[self._hits - 1]}"
        self._shown.append(fold(shown))
        return Observation(shown, "content", doomed=self._doomed)

    def _not_found(self, argument: str) -> str:
        asked = " ".join(argument.split())[:ECHOED_CHARACTERS]
        titles = ", ".join(self._pages.similar(asked, SIMILAR_TITLES))
        self._shown.append(fold(titles))
        return f"Could not find {asked}." + (f" Similar: {titles}." if titles else "")
