"""What is done about verdicts: nothing, words in the prompt, a question, or a rule that the harness enforces."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self, TypeVar

from probecascade.episode import CONTINUE, Answer, Decision, Moment, Question
from probecascade.errors import UsageError
from probecascade.interfaces import Verdict
from probecascade.policies.judged.verdicts import Word

T = TypeVar("T")

PERMIT = "You may stop and answer at any time, even if the evidence is incomplete."
BUDGET = "You have at most {rounds} actions."
REMAINING = "\n[Actions remaining: {left}]"
STATED = (
    "Rule: if {k} observations in a row were useless for answering the question, stop searching and finish with your "
    "best answer."
)
COST = "A right answer earns 1 point and every search costs 0.05 points."
DECIDE = (
    "Verdict on the last observation: {verdict}. Useless observations in a row: {run}, of {count} so far. "
    "Should the search go on, or is it time to answer? Reply with exactly one line: "
    "DECISION: CONTINUE or DECISION: ANSWER_NOW"
)

_DECIDED = re.compile(r"continue|answer[_ ]now", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a rule knows of the judge: the latest verdict, how many USELESS in a row up to it, how many observations."""

    verdict: Word
    run: int
    count: int


Acting = Decision | Generator[Question, Answer, Decision]


class RuleWatch(Protocol):
    """One rule's view of one live episode."""

    def act(self, seen: Seen, moment: Moment) -> Acting:
        """What to do after an observation; at an action checkpoint only an `answer` counts."""


class Rule(Protocol):
    """What a condition does with the verdicts of its judge."""

    @property
    def opening(self) -> str:
        """Text that joins the statement of the task; empty for none."""

    def begin(self) -> RuleWatch:
        """Start one episode."""


def settled(value: T | Generator[Question, Answer, T]) -> Generator[Question, Answer, T]:
    """The value itself, once all questions that lead to it have been put."""
    if isinstance(value, Generator):
        return (yield from value)
    return value


def begun(flow: Generator[Question, Answer, Decision]) -> Verdict:
    """The decision itself where it takes no question, else a generator that goes on from the first."""
    try:
        question = next(flow)
    except StopIteration as stop:
        decision: Decision = stop.value
        return decision
    return _going_on(question, flow)


def _going_on(question: Question, flow: Generator[Question, Answer, Decision]) -> Generator[Question, Answer, Decision]:
    while True:
        answer = yield question
        try:
            question = flow.send(answer)
        except StopIteration as stop:
            decision: Decision = stop.value
            return decision


@dataclass(frozen=True, slots=True)
class Prompted:
    """Words only: a statement in the prompt, and with `countdown` the actions that remain after each observation."""

    statement: str = ""
    countdown: bool = False

    @property
    def opening(self) -> str:
        """The statement on a line of its own."""
        return f"\n{self.statement}" if self.statement else ""

    def begin(self) -> Self:
        """The rule itself: it remembers nothing."""
        return self

    def act(self, seen: Seen, moment: Moment) -> Decision:
        """Say what remains; nothing is decided."""
        return Decision(append=REMAINING.format(left=moment.rounds_left)) if self.countdown else CONTINUE


@dataclass(frozen=True, slots=True)
class Decide:
    """Shows the model the judge's verdict and the count, asks it to decide on a scratch copy, and does as it says.

    The first of CONTINUE and ANSWER_NOW in its reply counts; without either the episode goes on.
    """

    opening: str = ""

    def begin(self) -> Self:
        """The rule itself: it remembers nothing."""
        return self

    def act(self, seen: Seen, moment: Moment) -> Acting:
        """Ask after observations."""
        return CONTINUE if moment.checkpoint.kind == "action" else self._asked(seen, moment)

    def _asked(self, seen: Seen, moment: Moment) -> Generator[Question, Answer, Decision]:
        text = DECIDE.format(verdict=seen.verdict, run=seen.run, count=seen.count)
        said = yield Question(text, max_new_tokens=12, as_turn=True)
        found = _DECIDED.search(said)
        notes = {"decided": said.strip()}
        if found is None or found[0].lower() == "continue":
            return Decision(notes=notes)
        return Decision("answer", moment.checkpoint.name, reason="the model decided to answer", notes=notes)


@dataclass(frozen=True, slots=True)
class Enforced:
    """After `k` USELESS in a row the agent has to answer: the tools are gone, whatever it would say.

    UsageError for a k under 1.
    """

    k: int = 5
    opening: str = ""

    def __post_init__(self) -> None:
        _check(self.k)

    def begin(self) -> Self:
        """The rule itself: it remembers nothing, and the loop lets no agent go on that was made to answer."""
        return self

    def act(self, seen: Seen, moment: Moment) -> Decision:
        """Answer at the k-th in a row."""
        decision = Decision(gate=moment.checkpoint.name, score=float(seen.run), threshold=float(self.k))
        return replace(decision, action="answer", reason=_reason(seen.run)) if seen.run >= self.k else decision


@dataclass(frozen=True, slots=True)
class SwitchSource:
    """After `k` USELESS in a row the first source is taken away, before the agent has to answer.

    The next turn may use `second` alone, later ones `second`, `others` and finish. Another `k` in a row from then on
    make the agent answer. UsageError for a k under 1.
    """

    k: int = 5
    second: str = "backup_search"
    others: Sequence[str] = ()
    opening: str = ""

    def __post_init__(self) -> None:
        _check(self.k)

    def begin(self) -> RuleWatch:
        """Both sources are there."""
        return _Switch(self)


class _Switch:
    def __init__(self, rule: SwitchSource) -> None:
        self.rule = rule
        self._base: int | None = None  # of the run, what was counted before the switch

    def act(self, seen: Seen, moment: Moment) -> Decision:
        rule, name = self.rule, moment.checkpoint.name
        if self._base is not None and seen.run < self._base:
            self._base = 0
        run = seen.run - (self._base or 0)
        decision = Decision(gate=name, score=float(run), threshold=float(rule.k))
        if run < rule.k:
            after = (rule.second, *rule.others, "finish")
            return decision if self._base is None else replace(decision, allow=after)
        if self._base is not None:
            return replace(decision, action="answer", reason=_reason(run, " from both sources"))
        if moment.checkpoint.kind == "action":  # tools are narrowed between turns
            return CONTINUE
        self._base = seen.run
        return replace(decision, reason=_reason(run, " from the first source"), allow=(rule.second,))


@dataclass(frozen=True, slots=True)
class Together:
    """Several rules at once: the first that makes the agent answer does; what they append is joined."""

    rules: tuple[Rule, ...]

    @property
    def opening(self) -> str:
        """Their statements, one after the other."""
        return "".join(rule.opening for rule in self.rules)

    def begin(self) -> RuleWatch:
        """Start all of them."""
        return _Together([rule.begin() for rule in self.rules])


class _Together:
    def __init__(self, watches: Sequence[RuleWatch]) -> None:
        self._watches = watches

    def act(self, seen: Seen, moment: Moment) -> Generator[Question, Answer, Decision]:
        merged = CONTINUE
        for watch in self._watches:
            decision = yield from settled(watch.act(seen, moment))
            notes = {**merged.notes, **decision.notes}
            if decision.action != "continue":
                return replace(decision, notes=notes)
            base = decision if decision.gate else merged
            allow = merged.allow if decision.allow is None else decision.allow
            merged = replace(base, append=merged.append + decision.append, allow=allow, notes=notes)
        return merged


def _check(k: int) -> None:
    if k < 1:
        raise UsageError(f"a rule was to act after {k} useless observations in a row: give 1 or more.")


def _reason(run: int, where: str = "") -> str:
    return f"{run} useless {'observation' if run == 1 else 'observations in a row'}{where}"
