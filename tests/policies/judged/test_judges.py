from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from moments import BRANN, OTHER, TASK, judgement, moment, state

from probecascade.episode import Answer, Part, Question, Task
from probecascade.errors import UsageError
from probecascade.policies.judged import (
    CONDITIONS,
    WORDS,
    Enforced,
    EvidenceJudge,
    Judged,
    LexicalDetector,
    OddsJudge,
    ProbeJudge,
    RandomJudge,
    SideQuestionJudge,
    ThoughtReader,
    condition,
)
from probecascade.testing import check_policy


class FirstEntry:
    def score(self, states: Any, signals: Any = None) -> np.ndarray:
        assert states.shape == (1, 4)
        assert signals.shape[0] == 1
        return np.asarray(1 / (1 + np.exp(-states[:, 0].astype(np.float64))))


JUDGES: dict[str, Callable[[], EvidenceJudge]] = {
    "side": SideQuestionJudge,
    "odds": OddsJudge,
    "thought": ThoughtReader,
    "lexical": LexicalDetector,
    "probe": lambda: ProbeJudge(FirstEntry(), 2, 0.5),
    "random": lambda: RandomJudge(0.5),
}


@pytest.mark.parametrize("name", JUDGES)
def test_every_judge_keeps_the_contract(name: str) -> None:
    judge = JUDGES[name]()
    assert isinstance(judge, EvidenceJudge)
    assert judge.name == name
    assert judge.at in ("observation", "action")
    seen = moment([BRANN, OTHER], kind=judge.at, hidden={2: state(1, 0, 0, 0)}, thought="I look.")

    def answer(question: Question) -> Answer:
        assert question.as_turn
        assert question.max_new_tokens <= 8
        return Answer(question.choices[0] if question.choices else "?", (-1.0,) * len(question.choices))

    first, second = judgement(judge, seen, answer), judgement(judge, seen, answer)
    assert first.verdict in WORDS
    assert repr(first) == repr(second)
    hidden_truth = replace(seen, transcript=tuple(replace(s, injected="unrelated") for s in seen.transcript))
    assert repr(judgement(judge, hidden_truth, answer)) == repr(first)
    check_policy(lambda: Judged(Enforced(1), JUDGES[name](), beliefs=True), 4)


@pytest.mark.parametrize("name", CONDITIONS)
@pytest.mark.parametrize("judge", ["lexical", "thought"])
def test_every_condition_is_a_policy(name: str, judge: str) -> None:
    check_policy(lambda: condition(name, JUDGES[judge](), [RandomJudge(0.5)], k=1), 4)


def test_conditions_that_do_not_exist_or_make_no_sense_are_refused() -> None:
    with pytest.raises(UsageError, match="the condition 'prayer' is unknown: choose from none, permit"):
        condition("prayer")
    with pytest.raises(UsageError, match="give 1 or more"):
        condition("enforced", k=0)
    with pytest.raises(UsageError, match="give each a name of its own"):
        condition("none", RandomJudge(0.5), [RandomJudge(0.2)])


@pytest.mark.parametrize(
    ("said", "verdict"), [("USELESS", "USELESS"), (" Useful", "USEFUL"), ("I think it", "UNPARSED")]
)
def test_the_side_question_is_read_as_a_word(said: str, verdict: str) -> None:
    asked: list[Question] = []

    def answer(question: Question) -> Answer:
        asked.append(question)
        return Answer(said)

    assert judgement(SideQuestionJudge(), moment([OTHER]), answer).verdict == verdict
    assert "exactly one word: USEFUL or USELESS" in asked[0].prompt
    assert asked[0].max_new_tokens == 8


@pytest.mark.parametrize(
    ("cut", "logprobs", "verdict"),
    [
        (0.0, (-1.0, -2.0), "USEFUL"),
        (0.0, (-2.0, -1.0), "USELESS"),
        (0.0, (-1.0, -1.0), "USELESS"),
        (-1.5, (-1.0, -2.0), "USELESS"),
        (1.5, (-2.0, -1.0), "USEFUL"),
        (0.0, (math.nan, -1.0), "UNPARSED"),
    ],
)
def test_odds_are_cut(cut: float, logprobs: tuple[float, float], verdict: str) -> None:
    def answer(question: Question) -> Answer:
        assert question.choices == ("USEFUL", "USELESS")
        return Answer("USEFUL", logprobs)

    said = judgement(OddsJudge(cut), moment([OTHER]), answer)
    assert said.verdict == verdict
    assert math.isnan(said.score) or said.score == logprobs[1] - logprobs[0]


def test_the_thought_is_that_of_the_turn_under_way() -> None:
    said = [
        judgement(ThoughtReader(), moment([BRANN], kind="action", thought=thought)).verdict
        for thought in ("The page is irrelevant.", "The page says Sel.", "Search Ada.")
    ]
    assert said == ["USELESS", "USEFUL", "NONE"]


def test_the_lexical_detector_by_hand() -> None:
    # of river, runs, brosk
    cases = {BRANN: "USEFUL", OTHER: "USELESS", "A river.": "USEFUL", "No results. Brosk river runs.": "USELESS"}
    assert {text: judgement(LexicalDetector(), moment([text])).verdict for text in cases} == cases
    assert judgement(LexicalDetector(), moment([BRANN])).score == pytest.approx(0.0)
    assert judgement(LexicalDetector(), moment(["A river."])).score == pytest.approx(2 / 3)
    quarter = Task("t", "g", (Part("river town Brosk flood", ("x",)),))
    assert LexicalDetector().begin(quarter).judge(moment(["A river."])).verdict == "USEFUL"  # type: ignore[union-attr]


def test_the_question_is_that_of_the_part_that_is_open() -> None:
    two = replace(TASK, parts=(Part("What is quark soup?", ("x",)), Part("Which river runs?", ("y",))))
    seen = moment([OTHER, "Which river runs?", OTHER], kinds={2: "next_part"})
    assert LexicalDetector().begin(two).judge(moment([OTHER])).verdict == "USEFUL"  # type: ignore[union-attr]
    assert LexicalDetector().begin(two).judge(seen).verdict == "USELESS"  # type: ignore[union-attr]


def test_a_probe_reads_its_layer_of_planted_states() -> None:
    judge = ProbeJudge(FirstEntry(), 2, 0.75)
    assert judge.layers == (2,)
    said = [judgement(judge, moment([OTHER], hidden={2: state(x, 0, 0, 0), 1: state(9, 9, 9, 9)})) for x in (1, 1.2)]
    assert [each.verdict for each in said] == ["USEFUL", "USELESS"]
    assert said[0].score == pytest.approx(0.731, abs=1e-3)


def test_a_score_that_is_no_number_is_no_verdict() -> None:
    said = judgement(ProbeJudge(FirstEntry(), 2, 0.5), moment([OTHER], hidden={2: state(math.nan, 0, 0, 0)}))
    assert said.verdict == "UNPARSED"


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_a_random_judge_has_its_rate_and_depends_on_task_and_number_alone(rate: float) -> None:
    def said(judge: RandomJudge, task: str) -> list[str]:
        watch = judge.begin(Task(task, "g", ()))
        return [watch.judge(moment([text] * n)).verdict for n in range(1, 9) for text in (OTHER,)]  # type: ignore[union-attr]

    every = [word for t in range(500) for word in said(RandomJudge(rate), f"t{t}")]
    share = every.count("USELESS") / len(every)
    assert abs(share - rate) < 4 * math.sqrt(rate * (1 - rate) / len(every)) + 1e-12
    assert said(RandomJudge(rate), "t1") == said(RandomJudge(rate), "t1")
    if rate == 0.3:
        assert said(RandomJudge(rate, seed=1), "t1") != said(RandomJudge(rate), "t1") or said(
            RandomJudge(rate, seed=1), "t2"
        ) != said(RandomJudge(rate), "t2")


@pytest.mark.parametrize("rate", [-0.1, 1.1, math.nan])
def test_a_rate_is_a_share(rate: float) -> None:
    with pytest.raises(UsageError, match="give a share of observations from 0 to 1"):
        RandomJudge(rate)
