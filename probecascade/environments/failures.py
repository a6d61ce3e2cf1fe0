"""Failures of tools, injected from outside: what the agent reads of a call is not what the tool found.

Regimes and kinds are those of arXiv 2610.06191 (sections on the environment) and a few more. Everything depends on
the task alone, so that all regimes, policies and seeds of a task meet the same failures in the same order.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from probecascade.environments.scoring import normalise
from probecascade.environments.searching import fold
from probecascade.environments.wiki import WikiEnvironment
from probecascade.episode import Action, Foresight, Observation, Paragraph, Part, Task
from probecascade.errors import DataError, UsageError
from probecascade.interfaces import Environment

Failure = Literal["unrelated", "plausible", "answerless", "tool_error", "empty", "stale"]

NO_RESULTS = "No results."
TOOL_FAILED = "Error: {tool} did not answer in time."

_REGIME = re.compile(r"(recover_after|late_onset_from)_([1-9][0-9]?)")
_NO_STRING = frozenset(("", "yes", "no", "noanswer"))  # answers that stand in any text


@dataclass(frozen=True, slots=True)
class Regime:
    """Which results of an episode's tool calls fail: those numbered `first` to `last` from 1 (None: to the end)."""

    first: int
    last: int | None

    @classmethod
    def named(cls, name: str) -> Regime:
        """`clean`, `persistent`, `recover_after_n` (1 to n fail) or `late_onset_from_n` (all from n on), n up to 99.

        UsageError for any other name.
        """
        if name in ("clean", "persistent"):
            return cls(1, 0 if name == "clean" else None)
        found = _REGIME.fullmatch(name)
        if found is None:
            raise UsageError(
                f"the failures {name!r} are unknown; choose clean, persistent, recover_after_n or late_onset_from_n, "
                "with a number such as 3 for n"
            )
        number = int(found[2])
        return cls(1, number) if found[1] == "recover_after" else cls(number, None)

    def strikes(self, call: int) -> bool:
        """Whether the result of this call, counted from 1, fails."""
        return call >= self.first and (self.last is None or call <= self.last)


class PagePool:
    """The pages of many tasks, in whatever order these come, from which a task is shown those of others."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        ordered = sorted(tasks, key=lambda task: task.task_id)
        self._pages = [(task.group, page) for task in ordered for page in task.paragraphs if page.text]

    def unrelated(self, task: Task) -> Iterator[Paragraph]:
        """Pages of other groups in an order of the task's own, none twice.

        None has the title of one of the task's pages, and none holds an answer of the task (yes and no apart).
        """
        taken = {fold(page.title) for page in task.paragraphs}
        for place in _shuffled(len(self._pages), f"unrelated-v1|{task.task_id}"):
            group, page = self._pages[place]
            title = fold(page.title)
            if group != task.group and title not in taken and not _tells(f"{page.title} {page.text}", task):
                taken.add(title)
                yield page


class FailingEnvironment:
    """Any environment, some of whose tool calls are answered wrongly, as a `Regime` by its name says.

    Counted are the calls of a tool that could be carried out (no finish, no empty argument). What a failure of each
    `kind` puts in the place of the result:

    - `unrelated`: a page of another task, drawn without replacement from `pool`;
    - `plausible`: a page of the task itself that is none of its `gold_titles` and holds no answer, drawn likewise;
    - `answerless`: the result without the sentences that the task's `supporting_facts` name or that hold an answer
      (nothing is left of it: as `empty`; a result without such a sentence stays as it is);
    - `tool_error`: the text of an error;
    - `empty`: "No results.";
    - `stale`: the result before it once more (the first of an episode has none and stays as it is).

    Pages that have all been drawn come again in the same order. The wrapped environment carries every call out and
    only its answer is lost, but for `tool_error`, which it never sees; a result that ends the episode or a part
    always stands. The kind of an observation tells no more than its text does; that it was replaced is told by
    `Observation.injected`, which is recorded and never shown.

    `shown` writes a page as the wrapped environment would; see `shown_by`. Raises UsageError for an unknown regime or
    kind, and at `reset` DataError for a task that has no page to draw.
    """

    def __init__(
        self,
        inner: Environment,
        regime: str,
        kind: Failure = "unrelated",
        pool: PagePool | None = None,
        shown: Callable[[Paragraph], str] | None = None,
    ) -> None:
        if kind not in get_args(Failure):
            raise UsageError(f"the kind of failure {kind!r} is unknown; choose from {', '.join(get_args(Failure))}")
        self.inner = inner
        self.regime = Regime.named(regime)
        self.kind = kind
        self.pool = pool or PagePool(())
        self.shown = shown or shown_by(WikiEnvironment())
        self.tools: Sequence[str] = inner.tools
        self._live = False

    def reset(self, task: Task) -> str:
        """Start the task in the wrapped environment."""
        question = self.inner.reset(task)
        self._pages = self._drawn(task)
        self._live = True
        self._calls = 0
        self._doomed: bool | None = None
        self._last: Observation | None = None
        self._read = [fold(question)]
        self._replaced: list[str] = []
        self._corrupted = False
        self._answerless = _Answerless(task) if self.kind == "answerless" else None
        return question

    def foresee(self, action: Action) -> Foresight:
        """What the wrapped environment foresees; nothing but its checks of a call that it will not see.

        A check `argument_seen` is told of what the agent has read, not of results that it never saw.
        """
        foresight = self.inner.foresee(action)
        checks = dict(foresight.checks)
        if "argument_seen" in checks and self._corrupted:
            written = fold(action.argument)
            found = bool(checks["argument_seen"]) and any(written in text for text in self._read)
            false = bool(checks.get("tool_exists", 1.0) and written) and any(written in text for text in self._replaced)
            checks["argument_seen"] = float(found or false)
        if self.kind == "tool_error" and self._fails(action):
            return Foresight(checks=checks)
        return replace(foresight, checks=checks)

    def step(self, action: Action) -> Observation:
        """Do the action; the result of a call that fails is replaced."""
        fails = self._fails(action)
        if self._live and self._is_call(action):
            self._calls += 1
        if fails and self.kind == "tool_error":
            failed = TOOL_FAILED.format(tool=action.name.capitalize())
            seen = Observation(failed, "tool_error", doomed=self._doomed, injected=self.kind)
        else:
            seen = self.inner.step(action)
            if fails and not seen.done and seen.kind != "next_part":
                seen = self._replacement(seen)
        self._doomed, self._live = seen.doomed, not seen.done
        self._corrupted = self._corrupted or bool(seen.injected)
        if not seen.injected or seen.kind == "content":
            (self._replaced if seen.injected else self._read).append(fold(seen.text))
        if self._is_call(action):
            self._last = seen
        return seen

    def _fails(self, action: Action) -> bool:
        # outside an episode the wrapped environment says what is wrong
        return self._live and self._is_call(action) and self.regime.strikes(self._calls + 1)

    def _is_call(self, action: Action) -> bool:
        usable = action.valid and action.name in self.tools and bool(action.argument.strip())
        return usable and action.name != "finish"

    def _drawn(self, task: Task) -> Iterator[Paragraph]:
        drawing = {"unrelated": self.pool.unrelated, "plausible": _distractors}
        if self.kind not in drawing or self.regime.last == 0:
            return iter(())
        pages = drawing[self.kind](task)
        first = next(pages, None)
        if first is None:
            raise DataError(
                f"task {task.task_id!r} has no {self.kind} page to be shown in place of a result; "
                "choose another kind of failure"
            )
        return itertools.cycle(itertools.chain((first,), pages))

    def _replacement(self, seen: Observation) -> Observation:
        if self.kind == "empty":
            return replace(seen, text=NO_RESULTS, kind="not_found", injected=self.kind)
        if self.kind == "stale":
            last = self._last
            return seen if last is None else replace(seen, text=last.text, kind=last.kind, injected=self.kind)
        if self._answerless is None:
            return replace(seen, text=self.shown(next(self._pages)), kind="content", injected=self.kind)
        text = self._answerless.without(seen.text)
        if text == seen.text:
            return seen
        kind = seen.kind if text else "not_found"
        return replace(seen, text=text or NO_RESULTS, kind=kind, injected=self.kind)


class _Answerless:
    """Takes the sentences out of a text that lead to the answer of a task."""

    def __init__(self, task: Task) -> None:
        pages = {page.title: page.sentences for page in task.paragraphs}
        facts = task.attributes.get("supporting_facts", ())
        if not isinstance(facts, list | tuple):
            raise DataError(f"task {task.task_id!r} has the supporting_facts {facts!r}; give a list")
        named = {sentence.strip() for fact in facts for sentence in _named(fact, pages, task)}
        every = {sentence.strip() for sentences in pages.values() for sentence in sentences} - {""}
        telling = named | {sentence for sentence in every if _tells(sentence, task)}
        self._telling = sorted(telling - {""}, key=lambda sentence: (-len(sentence), sentence))
        self._other = every - telling

    def without(self, text: str) -> str:
        """The text without those sentences; empty if no other sentence of the pages is left in it."""
        if not any(sentence in text for sentence in self._telling):
            return text
        for sentence in self._telling:
            text = text.replace(sentence, " ")
        return " ".join(text.split()) if any(sentence in text for sentence in self._other) else ""


def shown_by(environment: Environment) -> Callable[[Paragraph], str]:
    """Writes a page as a search in such an environment shows it. The environment serves for nothing else."""

    def shown(page: Paragraph) -> str:
        environment.reset(Task("a page", "a page", (Part("What does it say?", (page.title,)),), (page,)))
        return environment.step(Action("search", page.title)).text

    return shown


def _distractors(task: Task) -> Iterator[Paragraph]:
    """The task's own pages that do not lead to its answer, in an order of its own."""
    gold = task.attributes.get("gold_titles", ())
    if not isinstance(gold, list | tuple):
        raise DataError(f"task {task.task_id!r} has the gold_titles {gold!r}; give a list of titles")
    for place in _shuffled(len(task.paragraphs), f"plausible-v1|{task.task_id}"):
        page = task.paragraphs[place]
        if page.text and page.title not in gold and not _tells(f"{page.title} {page.text}", task):
            yield page


def _named(fact: object, pages: dict[str, tuple[str, ...]], task: Task) -> Sequence[str]:
    """The sentence that a supporting fact, [title, number from 0], names; none if the pages lack it."""
    if not isinstance(fact, list | tuple) or len(fact) != 2 or not isinstance(fact[1], int):
        raise DataError(f"task {task.task_id!r} has the supporting fact {fact!r}; give a title and a number from 0")
    return pages.get(fact[0], ())[fact[1] : fact[1] + 1] if fact[1] >= 0 else ()


def _tells(text: str, task: Task) -> bool:
    """Whether the text holds an answer of the task, word for word after normalisation."""
    answers = {normalise(answer) for part in task.parts for answer in part.answers} - _NO_STRING
    words = f" {normalise(text)} "
    return any(f" {answer} " in words for answer in answers)


def _shuffled(count: int, name: str) -> Iterator[int]:
    """The numbers 0 to count - 1 in an order that the name decides; only as many are drawn as are asked for."""
    # Python promises the same random() for a seed in every version, but not the same shuffle()
    rng = random.Random(int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest(), "big"))
    moved: dict[int, int] = {}
    for place in range(count):
        chosen = place + int(rng.random() * (count - place))
        yield moved.get(chosen, chosen)
        moved[chosen] = moved.get(place, place)
