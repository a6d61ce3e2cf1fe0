"""Success, utility, calls, answers after a run, and the verdicts themselves, by hand and against scikit-learn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from probecascade.errors import DataError, UsageError
from probecascade.evaluation.judged_useless import (
    FAILURE_REGIMES,
    SIX_REGIMES,
    StatedBelief,
    StudyEpisode,
    agreement,
    answer_rate_after_k,
    answer_steps,
    beliefs_by_run,
    judge_accuracy,
    judges_agree,
    mean6,
    success_by_regime,
    summarise,
    tool_calls,
    utility,
)

from .conftest import by_clock, episode, played


def _question(name: str, successes: int, verdicts: str = "uu", missing: str = "") -> list[StudyEpisode]:
    """Episodes in the six regimes, the first of which are right."""
    return [
        episode(verdicts, question=name, regime=regime, success=place < successes)
        for place, regime in enumerate(SIX_REGIMES)
        if regime != missing
    ]


def test_mean6_is_of_the_questions_with_all_six_regimes() -> None:
    found = mean6([*_question("a", 3), *_question("b", 0), *_question("c", 5, missing="clean")])
    assert found.value == pytest.approx(0.25)
    assert found.n == 2
    with_plausible = [*_question("a", 3), episode("u", question="a", regime="plausible", success=True)]
    assert mean6(with_plausible).value == pytest.approx(0.5)


def test_mean6_without_a_whole_question_is_undefined() -> None:
    found = mean6(_question("a", 3, missing="persistent"))
    assert (found.value, found.low, found.high, found.n) == (None, None, None, 0)
    assert "of 1 questions" in found.note
    assert mean6([]).value is None


def test_utility_charges_calls_and_verdicts_if_asked() -> None:
    episodes = _question("a", 3, "u.+")
    assert tool_calls(episodes).value == 3
    assert utility(episodes).value == pytest.approx(0.5 - 3 * 0.05)
    assert utility(episodes, cost=0.1).value == pytest.approx(0.5 - 3 * 0.1)
    assert utility(episodes, charge_verdicts=True).value == pytest.approx(0.5 - 5 * 0.05)
    with pytest.raises(UsageError, match=r"a cost of -1 per call was given"):
        utility(episodes, cost=-1)
    with pytest.raises(UsageError, match=r"a cost of nan per call was given"):
        utility(episodes, cost=float("nan"))


def test_an_invalid_turn_is_no_call() -> None:
    odd = StudyEpisode("a", "clean", (), ("search", "invalid", "lookup", ""), False)
    assert odd.calls == 2
    assert not odd.answered


def test_success_by_regime() -> None:
    found = success_by_regime(
        [*_question("a", 1), *_question("b", 1), episode("u", question="a", regime="zzz", success=True)]
    )
    assert list(found) == [*SIX_REGIMES, "zzz"]
    assert (found["clean"].value, found["clean"].n) == (1.0, 2)
    assert found["clean"].low is not None
    assert found["clean"].low < 0.2  # two of two: the exact interval, not one without width
    assert found["persistent"].value == 0


def test_answer_rate_after_k() -> None:
    episodes = [
        episode("uuuuu", question="a"),  # reaches five, answers at once
        episode("uuuuuuu", question="b", then="search"),  # reaches five, never answers
        episode("uuuuu++", question="c"),  # reaches five, answers much later
        episode("uu+uuu", question="d"),
        StudyEpisode("e", "persistent", ("USELESS",) * 5, ("search",) * 5, False),  # no action is left
        episode("uuuuu", question="a", regime="recover_after_1"),
    ]
    found = answer_rate_after_k(episodes)
    assert (found.value, found.n) == (pytest.approx(2 / 3), 3)
    assert answer_rate_after_k(episodes, regimes=FAILURE_REGIMES).n == 4
    assert answer_rate_after_k(episodes, k=3).n == 5  # the one without an action left had some after three
    none = answer_rate_after_k(episodes, k=9)
    assert (none.value, none.n) == (None, 0)
    assert none.note == "none of 5 episodes of the persistent regime reaches 9 useless verdicts in a row"
    assert "of 6 episodes of these regimes" in answer_rate_after_k(episodes, 9, FAILURE_REGIMES).note
    with pytest.raises(UsageError, match="k = 0"):
        answer_rate_after_k(episodes, k=0)


def test_answer_steps() -> None:
    episodes = [episode("uu"), episode("u"), episode("uu"), episode("u", then="search"), episode("u", regime="clean")]
    assert answer_steps(episodes) == ({2: 1, 3: 2}, 1)


def test_judge_accuracy_by_hand() -> None:
    one = StudyEpisode(
        "a", "x", ("USELESS", "USEFUL", "UNPARSED", "", "USELESS", "USELESS"), ("search",) * 6, False,
        injected=(True, True, False, True, False, None),
    )  # fmt: skip
    found = judge_accuracy([one, episode("uu", question="b", regime="plausible")])
    assert (found.accuracy.value, found.accuracy.n) == (0.5, 4)
    assert (found.judged_useless.value, found.judged_useless.n) == (0.5, 2)
    assert (found.judged_intact.value, found.judged_intact.n) == (0.5, 2)
    assert found.balanced.value == 0.5


def test_the_regime_tells_the_truth_where_none_is_recorded() -> None:
    assert episode("uuuu", regime="clean").truth == (False,) * 4
    assert episode("uuuu", regime="persistent").truth == (True,) * 4
    assert episode("uuuu", regime="recover_after_2").truth == (True, True, False, False)
    assert episode("uuuu", regime="late_onset_from_3").truth == (False, False, True, True)
    assert episode("uuuu", regime="plausible").truth is None
    recorded = StudyEpisode("q", "persistent", ("USELESS",), ("search",), False, injected=(False,))
    assert recorded.truth == (False,)


def test_beliefs_by_hand() -> None:
    stated = {"continuing": (0.5, 0.75, None, 0.25), "answering": (0.25, 0.25, 0.5, 0.0)}
    one = replace(episode("uu+u"), beliefs=stated)
    other = replace(episode("u", question="b"), beliefs={"continuing": (0.0,), "answering": (1.0,)})
    found = beliefs_by_run([one, other, episode("uuu", question="c")])
    assert found == {1: StatedBelief(0.25, pytest.approx(1.25 / 3), 3), 2: StatedBelief(0.75, 0.25, 1)}


def test_a_judge_who_never_saw_a_failure_has_no_balanced_accuracy() -> None:
    found = judge_accuracy([episode("++", regime="clean")])
    assert found.accuracy.value == 1
    assert found.judged_useless.value is None
    assert found.balanced.value is None
    assert found.balanced.note == "no failing observation judged (n=0)"


def test_the_judge_of_scripted_agents_is_as_good_as_it_was_made() -> None:
    found = judge_accuracy(played(by_clock, 100, 3, judged=0.9))
    assert found.accuracy.low is not None
    assert found.accuracy.high is not None
    assert found.accuracy.low < 0.9 < found.accuracy.high
    assert found.balanced.value == pytest.approx(0.9, abs=0.02)


def test_kappa_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    words = np.array(["USELESS", "USEFUL", "UNPARSED"])
    truth = rng.integers(3, size=400)
    judges = {
        name: [words[np.where(rng.random(400) < share, truth, rng.integers(3, size=400))].tolist()]
        for name, share in (("a", 0.9), ("b", 0.5), ("c", 0.0))
    }
    found = agreement(judges)
    assert [(each.first, each.second) for each in found] == [("a", "b"), ("a", "c"), ("b", "c")]
    for each in found:
        first, second = judges[each.first][0], judges[each.second][0]
        assert each.kappa == pytest.approx(cohen_kappa_score(first, second), abs=1e-12)
        assert each.agreed == pytest.approx(np.mean(np.array(first) == np.array(second)))
        assert each.n == 400


def test_kappa_leaves_out_what_one_judge_was_not_asked() -> None:
    (found,) = agreement({"a": [["USELESS", "USEFUL", ""]], "b": [["USELESS", "USEFUL", "USEFUL"]]})
    assert (found.kappa, found.agreed, found.n) == (1.0, 1.0, 2)


@pytest.mark.parametrize(
    ("verdicts", "note", "agreed"),
    [("USEFUL", "always say the same one thing", 1.0), ("", "no observation that both judged", None)],
)
def test_kappa_can_be_undefined(verdicts: str, note: str, agreed: float | None) -> None:
    (found,) = agreement({"a": [[verdicts] * 3], "b": [[verdicts] * 3]})
    assert found.kappa is None
    assert found.agreed == agreed
    assert note in found.note


def test_judges_of_other_observations_are_refused() -> None:
    with pytest.raises(DataError, match="the judges a, b did not judge the same observations"):
        agreement({"a": [["USEFUL"], []], "b": [[], ["USEFUL"]]})


def test_the_judges_of_episodes_are_compared_on_those_that_have_them_all() -> None:
    judged = StudyEpisode(
        "q", "clean", ("USEFUL", "USELESS"), ("search", "lookup"), True, judges={"words": ("USEFUL", "USEFUL")}
    )
    (found,) = judges_agree([judged, episode("uu")])
    assert (found.first, found.second, found.n, found.agreed) == ("own", "words", 2, 0.5)
    assert judges_agree([episode("uu")]) == ()


def test_summary_counts_the_verdicts() -> None:
    found = summarise([episode("u+?."), episode("u", question="r", regime="clean")])
    assert found.verdicts == {"USELESS": 2, "USEFUL": 1, "other": 1, "none": 1}
    assert (found.episodes, found.questions, found.regimes) == (2, 2, {"persistent": 1, "clean": 1})
    assert found.mean6.value is None
