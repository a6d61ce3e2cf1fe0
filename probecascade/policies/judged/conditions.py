"""Conditions of the study: a judge of evidence, a rule that acts on it, and a record of every verdict."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from probecascade.episode import CONTINUE, Answer, Decision, Moment, Question, Task
from probecascade.errors import UsageError
from probecascade.interfaces import EpisodeWatch, Verdict
from probecascade.policies.judged.judges import EvidenceJudge, JudgedEpisode, Judgement, SideQuestionJudge
from probecascade.policies.judged.rules import (
    BUDGET,
    COST,
    PERMIT,
    STATED,
    Decide,
    Enforced,
    Prompted,
    Rule,
    RuleWatch,
    Seen,
    SwitchSource,
    Together,
    begun,
    settled,
)
from probecascade.policies.judged.verdicts import Word, read_probability

BELIEFS: Mapping[str, str] = {
    "continuing": "Suppose the search goes on before you answer. What is the probability that your final answer will "
    "be right? Reply with one number from 0 to 100.",
    "answering": "Suppose you answer now with what you know. What is the probability that your answer will be right? "
    "Reply with one number from 0 to 100.",
}
"""Side questions for the model's belief in success, by what it is asked to suppose."""

CONDITIONS = (
    "none",
    "permit",
    "budget",
    "stated_rule",
    "call_cost",
    "decide",
    "enforced",
    "combo",
    "switch",
)
"""Conditions by name; the controls of the study are `enforced` under another judge."""


class Judged:
    """A stopping policy: `judge` says what each observation was worth, and `rule` acts on it.

    Judges of `also` speak too and are recorded, but nothing is done about what they say; a policy without `judge` acts
    on none. With `beliefs` the model is asked after every observation how likely success is. What was said is read
    from a finished episode by `evidence_log`. UsageError for two judges of one name.

    A verdict that is neither USELESS nor NONE resets the run of its judge, and so does an observation that asks the
    next question of the task: nobody judges that one.
    """

    def __init__(
        self,
        rule: Rule,
        judge: EvidenceJudge | None = None,
        also: Sequence[EvidenceJudge] = (),
        *,
        beliefs: bool = False,
    ) -> None:
        self.rule, self.judge, self.beliefs = rule, judge, beliefs
        self.judges = (*(() if judge is None else (judge,)), *also)
        names = [each.name for each in self.judges]
        if len(set(names)) < len(names):
            raise UsageError(f"the judges are named {', '.join(names)}: give each a name of its own.")
        self.layers: Sequence[int] = tuple(sorted({layer for each in self.judges for layer in each.layers}))

    def begin(self, task: Task) -> EpisodeWatch:
        """Watch one episode."""
        watches = {each.name: each.begin(task) for each in self.judges}
        return _Watch(self, self.rule.begin(), watches)


class _Watch:
    def __init__(self, policy: Judged, rule: RuleWatch, watches: Mapping[str, JudgedEpisode]) -> None:
        self._policy, self._rule, self._watches = policy, rule, watches
        self._runs = dict.fromkeys(watches, 0)
        self._latest: dict[str, Word] = dict.fromkeys(watches, "NONE")
        self._count = 0
        self._unread = False  # an observation of which those who judge at the next action have not spoken

    def decide(self, moment: Moment) -> Verdict:
        kind = moment.checkpoint.kind
        if kind == "prompt":
            opening = self._policy.rule.opening
            return Decision(append=opening) if opening else CONTINUE
        if kind not in ("observation", "action") or (kind == "action" and not self._unread):
            return CONTINUE
        return begun(self._observed(moment) if kind == "observation" else self._acted(moment))

    def _observed(self, moment: Moment) -> Generator[Question, Answer, Decision]:
        self._count += 1
        self._unread = not any(step.observation_kind == "next_part" for step in moment.transcript[-1:])
        if not self._unread:
            self._runs = dict.fromkeys(self._runs, 0)
            self._latest = dict.fromkeys(self._latest, "NONE")
            return Decision(notes={"judged": {}})
        # those who judge at the next action have said nothing of this observation yet
        self._latest |= {judge.name: "NONE" for judge in self._policy.judges if judge.at == "action"}
        notes: dict[str, Any] = {"judged": (yield from self._verdicts("observation", moment))}
        if self._policy.beliefs:
            said = {}
            for name, text in BELIEFS.items():
                said[name] = read_probability((yield Question(text, as_turn=True)))
            notes["beliefs"] = said
        return self._noted((yield from self._act(moment)), notes)

    def _acted(self, moment: Moment) -> Generator[Question, Answer, Decision]:
        self._unread = False
        judged = yield from self._verdicts("action", moment)
        decision = CONTINUE
        judge = self._policy.judge
        if judge is not None and judge.at == "action" and not moment.checkpoint.final:
            decision = yield from self._act(moment)
        if decision.action != "answer":
            decision = CONTINUE
        return self._noted(decision, {"judged": judged} if judged else {})

    def _verdicts(
        self, at: Literal["observation", "action"], moment: Moment
    ) -> Generator[Question, Answer, dict[str, Any]]:
        """What each judge that speaks here says, and the run that follows from it."""
        judged: dict[str, Any] = {}
        for judge in self._policy.judges:
            if judge.at != at:
                continue
            said: Judgement = yield from settled(self._watches[judge.name].judge(moment))
            run = self._runs[judge.name]
            run = run + 1 if said.verdict == "USELESS" else run if said.verdict == "NONE" else 0
            self._runs[judge.name], self._latest[judge.name] = run, said.verdict
            judged[judge.name] = {"verdict": said.verdict, "run": run}
            if math.isfinite(said.score):
                judged[judge.name]["score"] = said.score
        return judged

    def _act(self, moment: Moment) -> Generator[Question, Answer, Decision]:
        judge = self._policy.judge
        name = "" if judge is None else judge.name
        seen = Seen(self._latest.get(name, "NONE"), self._runs.get(name, 0), self._count)
        return (yield from settled(self._rule.act(seen, moment)))

    @staticmethod
    def _noted(decision: Decision, notes: dict[str, Any]) -> Decision:
        return replace(decision, notes={**decision.notes, **notes}) if notes else decision


def rule_named(name: str, *, k: int = 5, rounds: int = 8) -> Rule:
    """The rule of a condition, a name of `CONDITIONS`; `rounds` is the agent's own limit, which a budget states.

    UsageError for a name that does not exist, or a k under 1.
    """
    budget = Prompted(f"{PERMIT} {BUDGET.format(rounds=rounds)}", countdown=True)
    rules: Mapping[str, Rule] = {
        "none": Prompted(),
        "permit": Prompted(PERMIT),
        "budget": budget,
        "stated_rule": Prompted(STATED.format(k=k)),
        "call_cost": Prompted(f"{budget.statement} {COST}", countdown=True),
        "decide": Decide(),
        "enforced": Enforced(k),
        "combo": Together((budget, Enforced(k))),
        "switch": SwitchSource(k),
    }
    if name not in rules:
        raise UsageError(f"the condition {name!r} is unknown: choose from {', '.join(CONDITIONS)}.")
    return rules[name]


def condition(
    name: str,
    judge: EvidenceJudge | None = None,
    also: Sequence[EvidenceJudge] = (),
    *,
    k: int = 5,
    rounds: int = 8,
    beliefs: bool = False,
) -> Judged:
    """A condition of the study by its name; without a judge it is the model's own word. Raises as `rule_named`."""
    return Judged(rule_named(name, k=k, rounds=rounds), judge or SideQuestionJudge(), also, beliefs=beliefs)
