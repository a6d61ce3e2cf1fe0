"""Judges and rules in whole episodes: scripted models, real environments whose tools fail."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from short_episodes import TEMPLATE, Played, play

from probecascade.environments import (
    AtlasSettings,
    FailingEnvironment,
    PagePool,
    TwoSources,
    WikiEnvironment,
    atlas_tasks,
)
from probecascade.episode import Action, Decision
from probecascade.policies import Shadow
from probecascade.policies.judged import (
    ASKED_WORD,
    BELIEFS,
    CONDITIONS,
    Answering,
    Enforced,
    EvidenceJudge,
    Judged,
    LexicalDetector,
    OddsJudge,
    ProbeJudge,
    Prompted,
    RandomJudge,
    SideQuestionJudge,
    ThoughtReader,
    condition,
    evidence_log,
)
from probecascade.policies.judged.rules import DECIDE, PERMIT
from probecascade.testing import ConstantProbe, RecordingPolicy

TASKS = list(atlas_tasks(AtlasSettings(groups=12, parts=1, question="currency", distractors=("birthplace",))))
POOL = PagePool(TASKS)
TASK = TASKS[0]
ANSWER = TASK.parts[0].answers[0]
ROUNDS = 8
SEARCH = [f" Look again.\nAction: Search[{TASK.paragraphs[0].title}]"] * 20
"""An agent that never stops by itself."""

ASKED = f"\n\n{ASKED_WORD}\nAnswer:"


def failing(regime: str = "persistent") -> FailingEnvironment:
    return FailingEnvironment(WikiEnvironment(), regime, "unrelated", POOL)


def shown(regime: str = "persistent") -> list[str]:
    """What the tool says at each call, in order."""
    environment = failing(regime)
    environment.reset(TASK)
    return [environment.step(Action("search", TASK.paragraphs[0].title)).text for _ in range(ROUNDS)]


def go(policy: Any, environment: Any = None, **options: Any) -> Played:
    options = {"max_rounds": ROUNDS, "max_episode_tokens": 5000, "turns": SEARCH, "otherwise": f"{ANSWER}]"} | options
    turns = options.pop("turns")
    return play(turns, policy=policy, environment=environment or failing(), task=TASK, **options)


def verdicts(words: str) -> dict[str, str]:
    """Scripted answers: what the model says of each observation, a letter for each.

    l useless, f useful, u neither. An appended budget is no part of the observation that is judged.
    """
    said = {"l": " USELESS", "f": " USEFUL", "u": " Hm"}
    return {text + ASKED: said[word] for text, word in zip(shown(), words, strict=False)}


def searches(played: Played) -> int:
    return sum(step.action == "search" for step in played.episode.steps)


# Side channel ----------------------------------------------------------------------------------------------------

JUDGES: dict[str, EvidenceJudge] = {
    "side": SideQuestionJudge(),
    "odds": OddsJudge(),
    "thought": ThoughtReader(),
    "lexical": LexicalDetector(),
    "probe": ProbeJudge(ConstantProbe(0.7), 1, 0.5),
    "random": RandomJudge(0.5),
}


@pytest.mark.parametrize("name", JUDGES)
def test_judges_leave_no_trace_and_speak_once_of_every_observation(name: str) -> None:
    judged = go(Judged(Prompted(), JUDGES[name], beliefs=True), answers=verdicts("lfulfulf"))
    free = go(None)
    np.testing.assert_array_equal(judged.episode.token_ids, free.episode.token_ids)
    np.testing.assert_array_equal(judged.recording.hidden, free.recording.hidden)
    assert judged.model.conversations == free.model.conversations
    assert judged.episode.tokens == free.episode.tokens
    assert judged.episode.side_tokens > 0 == free.episode.side_tokens
    log = evidence_log(judged.episode, name)
    read = [point.index for point in judged.episode.checkpoints if point.kind == "observation"]
    assert list(log.rounds) == read == list(range(1, ROUNDS))  # the last is never read
    assert log.injected == (True,) * (ROUNDS - 1)
    assert "NONE" not in log.verdicts or name == "thought"


def test_all_judges_speak_in_one_episode() -> None:
    first, *others = JUDGES.values()
    episode = go(Judged(Prompted(), first, others), answers=verdicts("lfulfulf")).episode
    said = {name: evidence_log(episode, name).verdicts for name in JUDGES}
    assert said["side"] == ("USELESS", "USEFUL", "UNPARSED", "USELESS", "USEFUL", "UNPARSED", "USELESS")
    assert [word for word, side in zip(said["odds"], said["side"], strict=True) if side == "USEFUL"] == ["USEFUL"] * 2
    assert [word for word, side in zip(said["odds"], said["side"], strict=True) if side == "USELESS"] == ["USELESS"] * 3
    assert said["probe"] == ("USELESS",) * 7
    assert len(set(said["random"])) == 2
    assert evidence_log(episode, "side").runs == (1, 0, 0, 1, 0, 0, 1)


def test_beliefs_are_numbers_or_nothing() -> None:
    observed = shown()
    answers = {
        f"{observed[0]}\n\n{BELIEFS['continuing']}\nAnswer:": " 80",
        f"{observed[0]}\n\n{BELIEFS['answering']}\nAnswer:": " 0.25",
    }
    log = evidence_log(go(Judged(Prompted(), LexicalDetector(), beliefs=True), answers=answers).episode, "lexical")
    assert (log.continuing[0], log.answering[0]) == (0.8, 0.25)
    assert np.isnan([*log.continuing[1:], *log.answering[1:]]).all()


# The enforced rule -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", range(2, 8))
def test_the_rule_fires_exactly_at_the_kth_in_a_row(k: int) -> None:
    played = go(condition("enforced", k=k), answers=verdicts("l" * ROUNDS))
    assert searches(played) == k
    assert played.episode.steps[-1].action == "finish"
    assert played.episode.steps[-1].finish_reason == "forced"
    assert (played.episode.outcome, played.episode.reason) == ("success", "answered")
    decision = played.episode.decision
    assert decision is not None
    assert (decision.gate, decision.score, decision.threshold) == (f"observation:{k}", k, k)
    assert decision.reason == f"{k} useless observations in a row"


@pytest.mark.parametrize(("words", "fires"), [("llulllff", 6), ("llfllll", 6), ("lulululu", None), ("fffffff", None)])
def test_anything_but_useless_resets_the_run(words: str, fires: int | None) -> None:
    played = go(condition("enforced", k=3), answers=verdicts(words))
    assert searches(played) == (fires or ROUNDS)
    assert played.episode.reason == ("answered" if fires else "round_limit")


def test_a_model_that_would_search_on_has_no_say() -> None:
    stubborn = "Paris\nAction: Search[x]] and so on"
    played = go(condition("enforced", k=2), answers=verdicts("ll"), otherwise=stubborn)
    assert [step.action for step in played.episode.steps] == ["search", "search", "finish"]
    assert played.text.count(TEMPLATE.finish) == 1


def test_a_rule_in_shadow_says_where_it_would_have_stopped() -> None:
    shadow = Shadow(condition("enforced", k=2))
    played = go(shadow, answers=verdicts("lll"))
    free = go(None)
    np.testing.assert_array_equal(played.episode.token_ids, free.episode.token_ids)
    assert evidence_log(played.episode, "side").verdicts[:4] == ("USELESS",) * 3 + ("UNPARSED",)
    assert [r.checkpoint for r in shadow.records if r.decision.action == "answer"] == [
        "observation:2",
        "observation:3",
    ]


# The thought reader ----------------------------------------------------------------------------------------------

USELESS_THOUGHT = f" The page is irrelevant.\nAction: Search[{TASK.paragraphs[0].title}]"
NEUTRAL = SEARCH[0]
USEFUL_THOUGHT = f" The page says it.\nAction: Search[{TASK.paragraphs[0].title}]"


def test_a_thought_that_says_nothing_leaves_the_run() -> None:
    turns = [NEUTRAL, USELESS_THOUGHT, NEUTRAL, USELESS_THOUGHT, USELESS_THOUGHT]
    played = go(condition("enforced", ThoughtReader(), k=3), turns=turns)
    # observations 1, 3 and 4 are useless, of 2 nothing is said; the fifth turn is taken back
    assert searches(played) == 4
    assert played.episode.reason == "answered"
    log = evidence_log(played.episode, "thought")
    assert log.verdicts == ("USELESS", "NONE", "USELESS", "USELESS")
    assert log.runs == (1, 1, 2, 3)
    reset = [NEUTRAL, USELESS_THOUGHT, USEFUL_THOUGHT, USELESS_THOUGHT, USELESS_THOUGHT, USELESS_THOUGHT]
    assert searches(go(condition("enforced", ThoughtReader(), k=3), turns=reset)) == 5


def test_a_turn_that_finishes_is_judged_and_left_alone() -> None:
    finish = f" The page is irrelevant.\nAction: Finish[{ANSWER}]"
    played = go(condition("enforced", ThoughtReader(), k=1), turns=[NEUTRAL, finish])
    assert played.episode.reason == "finished"
    assert evidence_log(played.episode, "thought").verdicts == ("USELESS",)


# Words in the prompt ---------------------------------------------------------------------------------------------


def test_a_budget_is_stated_and_counted_down() -> None:
    text = go(condition("budget", rounds=ROUNDS)).text
    assert f"{TASK.parts[0].question}\n{PERMIT} You have at most 8 actions.\nThought:" in text
    for left in range(1, ROUNDS):
        assert text.count(f"\n[Actions remaining: {left}]\nThought:") == 1
    permitted = go(condition("permit")).text
    assert PERMIT in permitted
    assert "remaining" not in permitted
    assert "if 4 observations in a row were useless" in go(condition("stated_rule", k=4)).text
    assert "every search costs 0.05 points" in go(condition("call_cost")).text


def test_a_budget_and_the_rule_go_together() -> None:
    answers = {text + ASKED: " USELESS" for text in shown()}
    played = go(condition("combo", k=3, rounds=ROUNDS), answers=answers)
    assert searches(played) == 3
    assert "[Actions remaining: 6]" in played.text
    assert "[Actions remaining: 5]" not in played.text  # its turn is an answer already
    assert played.episode.reason == "answered"


def test_none_changes_nothing() -> None:
    np.testing.assert_array_equal(go(condition("none")).episode.token_ids, go(None).episode.token_ids)


@pytest.mark.parametrize(
    ("said", "calls"),
    [(" DECISION: ANSWER_NOW", 2), (" DECISION: CONTINUE", 8), (" continue, or ANSWER_NOW", 8), (" Well", 8)],
)
def test_the_model_decides_on_a_scratch_copy_and_is_taken_at_its_word(said: str, calls: int) -> None:
    asked = DECIDE.format(verdict="USELESS", run=2, count=2)
    answers = verdicts("ll") | {f"\n\n{asked}\nAnswer:": said}
    played = go(condition("decide"), answers=answers)
    assert searches(played) == calls
    assert asked not in played.text
    assert played.episode.attributes["notes"]["observation:2"]["decided"] == said.strip()


def test_the_model_is_told_of_no_verdict_on_what_the_next_thought_has_yet_to_judge() -> None:
    complains = [f" The page is irrelevant.\nAction: Search[{TASK.paragraphs[0].title}]"] * 20
    asked = DECIDE.format(verdict="NONE", run=1, count=2)  # its complaint was about the observation before
    policy = condition("decide", ThoughtReader())
    played = go(policy, turns=complains, answers={f"\n\n{asked}\nAnswer:": " DECISION: ANSWER_NOW"})
    assert searches(played) == 2
    assert evidence_log(played.episode, "thought").verdicts[0] == "USELESS"


# Two sources -----------------------------------------------------------------------------------------------------


def backed() -> TwoSources:
    return TwoSources(failing(), WikiEnvironment())


def test_the_first_source_is_taken_away_before_the_agent_has_to_answer() -> None:
    """The model asks the first source again and again; after two useless results its calls go to the second."""
    played = go(condition("switch", LexicalDetector(least=1.01), k=2), backed(), max_turn_tokens=16)
    actions = [step.action for step in played.episode.steps]
    assert actions == ["search", "search", "backup_search", "backup_search", "finish"]
    assert [bool(step.injected) for step in played.episode.steps] == [True, True, False, False, False]
    assert played.episode.reason == "answered"


def test_a_second_source_that_helps_is_kept() -> None:
    answers = verdicts("ll")
    played = go(condition("switch", k=2), backed(), answers=answers, max_turn_tokens=16)
    assert [step.action for step in played.episode.steps] == ["search", "search"] + ["backup_search"] * (ROUNDS - 2)
    assert played.episode.reason == "round_limit"


# Cascades --------------------------------------------------------------------------------------------------------


def test_what_would_give_up_can_be_made_to_answer() -> None:
    abort = Decision(action="abort", gate="observation:2", score=0.9, threshold=0.5, reason="0.9 >= 0.5")
    played = go(Answering(RecordingPolicy(answers={"observation:2": abort})))
    assert (searches(played), played.episode.reason) == (2, "answered")
    assert played.episode.decision is not None
    assert played.episode.decision.score == 0.9


def test_a_probe_drives_the_rule() -> None:
    fires, rests = (Judged(Enforced(2), ProbeJudge(ConstantProbe(p), 1, 0.5)) for p in (0.6, 0.4))
    assert (searches(go(fires)), searches(go(rests))) == (2, ROUNDS)


@pytest.mark.parametrize("name", CONDITIONS)
def test_every_condition_plays_to_its_end(name: str) -> None:
    environment = backed() if name == "switch" else failing("recover_after_2")
    episode = go(condition(name, LexicalDetector(), rounds=ROUNDS), environment).episode
    assert episode.outcome in ("success", "truncated"), episode.reason
    assert evidence_log(episode, "lexical").verdicts
