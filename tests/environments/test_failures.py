from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from probecascade.environments import (
    AtlasSettings,
    FailingEnvironment,
    Failure,
    PagePool,
    Regime,
    WikiEnvironment,
    WikiSettings,
    atlas_tasks,
    normalise,
    shown_by,
)
from probecascade.episode import Action, Foresight, Observation, Paragraph, Part, Task
from probecascade.errors import DataError, UsageError
from probecascade.testing import ScriptedEnvironment, check_environment

KINDS: Sequence[Failure] = get_args(Failure)
REGIMES = ["clean", "persistent", *(f"recover_after_{n}" for n in range(1, 6)), "late_onset_from_3"]
TASKS = list(atlas_tasks(AtlasSettings(groups=12, parts=1, question="currency", distractors=("birthplace",))))
POOL = PagePool(TASKS)
TASK = TASKS[0]
TITLES = [page.title for page in TASK.paragraphs]
ANSWER = TASK.parts[0].answers[0]

HOTPOT = Task(
    "hotpot-1",
    "hotpot-1",
    (Part("Which river runs through the home town of Ada?", ("Sel",)),),
    (
        Paragraph("Ada", ("Ada is a chemist.", "She lives in Brosk.")),
        Paragraph("Brosk", ("Brosk is a town.", "It lies on the Sel.", "It has a mill.")),
        Paragraph("Tarn", ("Tarn is a town too.", "It lies on the Omm.")),
        Paragraph("Mill", ("A mill grinds.",)),
        Paragraph("Sel", ("The Sel is a river.",)),
    ),
    {"gold_titles": ["Ada", "Brosk"], "supporting_facts": [["Ada", 1], ["Brosk", 1]]},
)


def failing(regime: str, kind: Failure = "unrelated", task: Task = TASK) -> FailingEnvironment:
    env = FailingEnvironment(WikiEnvironment(), regime, kind, POOL)
    env.reset(task)
    return env


def search(env: FailingEnvironment, titles: Sequence[str]) -> list[Observation]:
    return [env.step(Action("search", title)) for title in titles]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("regime", REGIMES)
def test_every_regime_and_kind_keeps_the_contract(regime: str, kind: Failure) -> None:
    settings = WikiSettings(search="closest", lookup=True)
    check_environment(lambda: FailingEnvironment(WikiEnvironment.of(settings), regime, kind, POOL), TASK)
    two = replace(TASK, parts=TASK.parts * 2)
    check_environment(lambda: FailingEnvironment(WikiEnvironment(), regime, kind, POOL), two)


@pytest.mark.parametrize(
    ("regime", "wanted"),
    [
        ("clean", []),
        ("persistent", [1, 2, 3, 4, 5, 6, 7, 8]),
        ("recover_after_1", [1]),
        ("recover_after_5", [1, 2, 3, 4, 5]),
        ("late_onset_from_3", [3, 4, 5, 6, 7, 8]),
        ("late_onset_from_8", [8]),
    ],
)
def test_a_regime_says_which_results_fail(regime: str, wanted: list[int]) -> None:
    assert [call for call in range(1, 9) if Regime.named(regime).strikes(call)] == wanted
    seen = search(failing(regime), (TITLES * 8)[:8])
    assert [call for call, result in enumerate(seen, 1) if result.injected] == wanted
    clean = search(failing("clean"), (TITLES * 8)[:8])
    assert all(result == true for result, true in zip(seen, clean, strict=True) if not result.injected)


def test_clean_is_the_wrapped_environment_bit_for_bit() -> None:
    for kind in KINDS:
        env, plain = failing("clean", kind), WikiEnvironment()
        assert env.reset(TASK) == plain.reset(TASK)
        for action in [
            *(Action("search", t) for t in [*TITLES, "no such page"]),
            Action("finish", ""),
            Action("x", ""),
        ]:
            assert env.foresee(action) == plain.foresee(action)
            assert env.step(action) == plain.step(action)
        end = Action("finish", ANSWER)
        assert env.foresee(end) == plain.foresee(end)
        assert env.step(end) == plain.step(end)


@pytest.mark.parametrize("kind", ["unrelated", "plausible"])
def test_all_regimes_of_a_task_share_their_misleading_pages(kind: Failure) -> None:
    orders = []
    for task in TASKS:
        titles = ([page.title for page in task.paragraphs] * 8)[:8]
        drawn = {
            regime: [seen.text for seen in search(failing(regime, kind, task), titles) if seen.injected]
            for regime in REGIMES
        }
        for pages in drawn.values():
            assert pages == drawn["persistent"][: len(pages)]
        orders.append(tuple(drawn["persistent"]))
        # the same whatever is asked for
        assert [seen.text for seen in search(failing("persistent", kind, task), ["x"] * 8)] == drawn["persistent"]
    assert len(set(orders)) == len(TASKS)


def test_an_unrelated_page_is_drawn_once_is_anothers_and_holds_no_answer() -> None:
    leaking = Task("l", "leak", (Part("?", ("x",)),), (Paragraph("Leak", (f"The {ANSWER} is money.",)),))
    own = replace(TASK, task_id="again")
    double = Task("d", "double", (Part("?", ("x",)),), (TASKS[1].paragraphs[0], Paragraph("Blank", (" ",))))
    pool = PagePool([leaking, *TASKS, own, double])
    drawn = list(pool.unrelated(TASK))
    everything = [page for task in TASKS[1:] for page in task.paragraphs]
    assert len(drawn) == len({page.title for page in drawn}) == len(everything)
    assert {page.title for page in drawn} == {page.title for page in everything}
    assert all(normalise(ANSWER) not in normalise(page.text) for page in drawn)
    assert "Leak" in [page.title for page in pool.unrelated(TASKS[1])]  # it tells nothing there


def test_every_page_is_as_likely_to_come_first() -> None:
    first = [next(POOL.unrelated(replace(TASK, task_id=f"t{n}"))).title for n in range(3000)]
    _, counts = np.unique(first, return_counts=True)
    pages = sum(len(task.paragraphs) for task in TASKS[1:])
    assert len(counts) == pages
    expected = len(first) / pages
    assert ((counts - expected) ** 2 / expected).sum() < pages + 4 * (2 * pages) ** 0.5  # chi-squared, 4 sigma


def test_a_yes_in_a_page_gives_no_answer_away() -> None:
    asked = Task("y", "y", (Part("Is it?", ("yes",)),), (Paragraph("P", ("Yes it is.",)),))
    pool = PagePool([asked, Task("o", "o", (Part("?", ("x",)),), (Paragraph("O", ("Yes.",)),))])
    assert [page.title for page in pool.unrelated(asked)] == ["O"]


def test_pages_come_again_in_the_same_order_when_all_were_drawn() -> None:
    env = failing("persistent", "plausible", HOTPOT)
    seen = [result.text for result in search(env, ["Ada"] * 6)]
    assert set(seen[:2]) == {"Tarn is a town too. It lies on the Omm.", "Mill: A mill grinds."}
    assert seen == seen[:2] * 3  # "Sel" holds the answer, the others lead to it


def test_a_page_is_written_as_the_environment_writes_it() -> None:
    page = Paragraph("Tarn", ("It is a town.", "It lies on the Omm."))
    assert shown_by(WikiEnvironment())(page) == "Tarn: It is a town. It lies on the Omm."
    closest = WikiEnvironment.of(WikiSettings(search="closest", sentences=1))
    env = FailingEnvironment(WikiEnvironment(), "persistent", "plausible", shown=shown_by(closest))
    env.reset(HOTPOT)
    seen = {result.text for result in search(env, ["Ada", "Ada"])}
    assert seen == {"[Tarn] Tarn is a town too.", "[Mill] A mill grinds."}


def test_an_answerless_page_lacks_what_leads_to_the_answer() -> None:
    env = failing("persistent", "answerless", HOTPOT)
    texts = {title: env.step(Action("search", title)) for title in ("Ada", "Brosk", "Tarn", "Sel", "Nowhere")}
    assert texts["Ada"].text == "Ada is a chemist."
    assert texts["Brosk"].text == "Brosk is a town. It has a mill."
    assert (texts["Ada"].injected, texts["Ada"].kind) == ("answerless", "content")
    assert (texts["Sel"].text, texts["Sel"].kind) == ("No results.", "not_found")  # its one sentence holds the answer
    assert not texts["Tarn"].injected  # nothing was taken from it
    assert (texts["Nowhere"].kind, texts["Nowhere"].injected) == ("not_found", "")


def test_without_supporting_facts_the_sentences_with_an_answer_are_dropped() -> None:
    unmarked = replace(HOTPOT, attributes={})
    seen = search(failing("persistent", "answerless", unmarked), ["Ada", "Brosk"])
    assert [result.text for result in seen] == [
        "Ada is a chemist. She lives in Brosk.",
        "Brosk is a town. It has a mill.",
    ]


def test_a_lookup_finds_no_sentence_that_leads_to_the_answer() -> None:
    env = FailingEnvironment(WikiEnvironment.of(WikiSettings(lookup=True)), "late_onset_from_2", "answerless")
    env.reset(HOTPOT)
    env.step(Action("search", "Brosk"))
    found = env.step(Action("lookup", "lies"))
    assert (found.text, found.kind, found.injected) == ("No results.", "not_found", "answerless")
    assert env.step(Action("lookup", "mill")).text == "(Result 1 / 1) It has a mill."


def test_a_stale_result_is_the_one_before() -> None:
    seen = search(failing("persistent", "stale", HOTPOT), ["Ada", "Brosk", "Nowhere"])
    assert [result.text for result in seen] == [seen[0].text] * 3
    assert [result.injected for result in seen] == ["", "stale", "stale"]
    late = search(failing("late_onset_from_3", "stale", HOTPOT), ["Ada", "Nowhere", "Brosk"])
    assert (late[2].text, late[2].kind, late[2].injected) == (late[1].text, "not_found", "stale")


def test_errors_and_empty_results_say_what_they_are_and_no_more() -> None:
    error, empty = (search(failing("persistent", kind), TITLES[:1])[0] for kind in ("tool_error", "empty"))
    assert (error.text, error.kind, error.injected) == (
        "Error: Search did not answer in time.",
        "tool_error",
        "tool_error",
    )
    assert (empty.text, empty.kind, empty.injected) == ("No results.", "not_found", "empty")


def test_what_is_no_call_of_a_tool_is_not_counted_and_never_replaced() -> None:
    env = failing("recover_after_1")
    refused = (Action("", "", False, "Write an action."), Action("search", " "), Action("lookup", "Ada"))
    assert [env.step(action).injected for action in refused] == [""] * 3
    assert [seen.injected for seen in search(env, TITLES[:2])] == ["unrelated", ""]


@pytest.mark.parametrize("kind", KINDS)
def test_doom_stays_what_the_environment_knows(kind: Failure) -> None:
    env = failing("persistent", kind, replace(TASK, parts=TASK.parts * 2))
    assert env.step(Action("search", TITLES[0])).doomed in (False, None if kind == "tool_error" else False)
    assert env.step(Action("finish", "wrong")).doomed is True
    assert env.step(Action("search", TITLES[0])).doomed is True
    end = env.step(Action("finish", ANSWER))
    assert (end.done, end.reward, end.injected) == (True, 0.0, "")


def test_a_check_of_what_was_seen_does_not_give_a_failure_away() -> None:
    env = failing("recover_after_1")
    false = search(env, TITLES[:1])[0]
    unread = next(p for p in TASK.paragraphs if p.title == TITLES[0]).text
    told = next(word for word in false.text.split() if word[0].isupper() and word not in unread)
    assert env.foresee(Action("search", told.strip(".:,"))).checks["argument_seen"] == 1.0
    assert env.foresee(Action("search", unread[:40])).checks["argument_seen"] == 0.0
    assert env.foresee(Action("no_tool", told)).checks["argument_seen"] == 0.0
    true = search(env, TITLES[:1])[0]
    assert env.foresee(Action("search", true.text[:40])).checks["argument_seen"] == 1.0


class Winning(ScriptedEnvironment):
    """A world in which a call may end the episode."""

    def foresee(self, action: Action) -> Foresight:
        super().foresee(action)
        return Foresight(events=(("won", 1),), final=True, checks={"tool_exists": 1.0})


def test_a_result_that_ends_the_episode_stands_and_an_error_does_not_end_it() -> None:
    script = [Observation("You win.", "finish", True, 1.0, False)]
    env = FailingEnvironment(Winning(script), "persistent", "empty")
    env.reset(TASK)
    call = Action("search", "x")
    assert env.foresee(call).final
    assert env.step(call) == script[0]
    env = FailingEnvironment(Winning(script), "recover_after_1", "tool_error")
    env.reset(TASK)
    assert env.foresee(call) == Foresight(checks={"tool_exists": 1.0})
    assert not env.step(call).done
    assert env.foresee(call).final
    assert env.step(call) == script[0]


@pytest.mark.parametrize(
    "name", ["", "Clean", "recover_after_0", "recover_after_", "late_onset_from_100", "recover_after_1 "]
)
def test_an_unknown_regime_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="choose clean, persistent"):
        FailingEnvironment(WikiEnvironment(), name)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(UsageError, match="choose from unrelated"):
        FailingEnvironment(WikiEnvironment(), "clean", "gone")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["unrelated", "plausible"])
def test_a_task_without_a_page_to_draw_is_refused(kind: Failure) -> None:
    bare = Task("b", "b", (Part("?", ("x",)),), (Paragraph("X", ("It is x.",)),))
    with pytest.raises(DataError, match=f"'b' has no {kind} page"):
        FailingEnvironment(WikiEnvironment(), "persistent", kind, PagePool([bare])).reset(bare)
    FailingEnvironment(WikiEnvironment(), "clean", kind).reset(bare)


def test_a_supporting_fact_that_is_none_is_refused() -> None:
    broken = replace(HOTPOT, attributes={"supporting_facts": ["Ada"]})
    with pytest.raises(DataError, match="supporting fact 'Ada'"):
        failing("persistent", "answerless", broken)
    broken = replace(HOTPOT, attributes={"supporting_facts": 5})
    with pytest.raises(DataError, match="supporting_facts 5; give a list"):
        failing("persistent", "answerless", broken)
    broken = replace(HOTPOT, attributes={"gold_titles": "Ada"})
    with pytest.raises(DataError, match="gold_titles 'Ada'; give a list of titles"):
        failing("persistent", "plausible", broken)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_task_meets_the_same_failures_in_every_order_of_episodes(kind: Failure) -> None:
    alone = {task.task_id: search(failing("persistent", kind, task), TITLES[:3]) for task in TASKS[:3]}
    envs = {task.task_id: failing("persistent", kind, task) for task in reversed(TASKS[:3])}
    together: dict[str, list[Observation]] = {name: [] for name in envs}
    for title, name in itertools.product(TITLES[:3], envs):
        together[name] += search(envs[name], [title])
    assert together == alone
