"""Delta, its other wording, the integration index and the hazard curve: hand cases, rivals, and scripted agents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pytest
import statsmodels.api as sm
from statsmodels.stats.contingency_tables import StratifiedTable

from probecascade.errors import UsageError
from probecascade.evaluation import Resampling
from probecascade.evaluation.judged_useless import (
    FAILURE_REGIMES,
    Stratum,
    StudyEpisode,
    decision_points,
    delta,
    delta_as_worded,
    hazard,
    integration_index,
    mantel_haenszel,
)

from .conftest import by_clock, by_evidence, episode, played

QUICK = Resampling(0.95, 200, 0)
STRATA = [Stratum(3, 8, 10, 6, 20), Stratum(4, 3, 12, 1, 4), Stratum(5, 0, 7, 0, 0), Stratum(6, 2, 3, 5, 9)]


def test_mantel_haenszel_by_hand() -> None:
    # t=3: w = 10*20/30 = 20/3, .8 - .3 = .5; t=4: w = 12*4/16 = 3, .25 - .25 = 0. (20/3 * .5) / (20/3 + 3) = 10/29
    assert mantel_haenszel(STRATA[:2]) == pytest.approx(10 / 29, abs=1e-12)
    assert mantel_haenszel(STRATA[:3]) == pytest.approx(10 / 29, abs=1e-12)  # an empty arm tells nothing


def test_mantel_haenszel_without_both_arms_is_undefined() -> None:
    assert mantel_haenszel([Stratum(3, 5, 9, 0, 0), Stratum(4, 0, 0, 1, 2)]) is None
    assert mantel_haenszel([]) is None


def test_mantel_haenszel_is_that_of_statsmodels() -> None:
    """statsmodels pools odds and risk ratios; two of its results give the difference.

    The coefficient of the arm in least squares with a constant per stratum is the difference with just these weights.
    And pooled risk ratio RR = A / B with A = sum a n_b / N, B = sum b n_a / N, so that the difference, (A - B) / sum w,
    is (RR - 1) B / sum w.
    """
    strata = [each for each in STRATA if each.n_a and each.n_b]
    rows = [
        (each.t, arm, i < hits)
        for each in strata
        for arm, hits, n in ((1, each.answered_a, each.n_a), (0, each.answered_b, each.n_b))
        for i in range(n)
    ]
    t, arm, answered = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    design = np.column_stack([arm, *(t == each.t for each in strata)]).astype(float)
    assert mantel_haenszel(STRATA) == pytest.approx(sm.OLS(answered, design).fit().params[0], abs=1e-12)

    tables = [
        np.array([[e.answered_a, e.n_a - e.answered_a], [e.answered_b, e.n_b - e.answered_b]], dtype=float)
        for e in strata
    ]
    pooled = StratifiedTable(tables).riskratio_pooled
    below = sum(each.answered_b * each.n_a / (each.n_a + each.n_b) for each in strata)
    weight = sum(each.n_a * each.n_b / (each.n_a + each.n_b) for each in strata)
    assert mantel_haenszel(STRATA) == pytest.approx((pooled - 1) * below / weight, abs=1e-12)


def test_decisions_are_those_after_an_observation_but_the_last_of_the_budget() -> None:
    points = decision_points([episode("u+uu")], ["q"])
    assert points.t.tolist() == [1, 2, 3, 4]
    assert points.run.tolist() == [1, 0, 1, 2]
    assert points.first_other.tolist() == [0, 2, 2, 2]
    assert points.answered.tolist() == [False, False, False, True]
    never = decision_points([episode("uuuuuuu", then="search")], ["q"])
    assert never.t.tolist() == [1, 2, 3, 4, 5, 6]
    assert not never.answered.any()
    # answered as action 8, the last chance: that decision is not counted, the six before it are
    assert decision_points([episode("uuuuuuu")], ["q"]).answered.tolist() == [False] * 6
    assert decision_points([episode("u" * 12)], ["q"], budget=16).answered.tolist() == [False] * 11 + [True]


def test_decisions_end_where_the_verdicts_do() -> None:
    cut = StudyEpisode("q", "persistent", ("USELESS",), ("search", "search", "finish"), True)
    assert decision_points([cut], ["q"]).answered.tolist() == [False]
    assert decision_points([StudyEpisode("q", "persistent", (), (), False)], ["q"]).t.tolist() == []


@pytest.mark.parametrize("verdict", ["+", "?", "."])
def test_anything_but_useless_ends_a_run(verdict: str) -> None:
    points = decision_points([episode(f"uu{verdict}u")], ["q"])
    assert points.run.tolist() == [1, 2, 0, 1]
    assert points.first_other.tolist() == [0, 0, 3, 3]


def test_only_failing_regimes_count() -> None:
    five = FAILURE_REGIMES[:5]
    assert five == ("persistent", "recover_after_1", "recover_after_2", "recover_after_3", "late_onset_from_3")
    others = ("clean", "plausible", "backup", "missing_0")
    episodes = [episode("uuu", regime=name) for name in (*five, *others)]
    assert len(decision_points(episodes, ["q"]).t) == 5 * 3
    assert sum(each.n_a for each in delta(episodes, resampling=QUICK).strata) == 5
    natural = [episode("uuu", regime="missing_2")]
    assert sum(each.n_a for each in delta([*episodes, *natural], resampling=QUICK).strata) == 6


def _arms(verdicts: str) -> tuple[str, str]:
    """The arm of the decision after all of these, as published and as worded."""
    found = []
    for contrast in (delta, delta_as_worded):
        (stratum,) = (s for s in contrast([episode(verdicts)], resampling=QUICK).strata if s.t == len(verdicts))
        found.append({(1, 0): "a", (0, 1): "b", (0, 0): "-"}[stratum.n_a, stratum.n_b])
    return found[0], found[1]


@pytest.mark.parametrize(
    ("verdicts", "published", "worded"),
    [
        ("uuu", "a", "a"),
        ("+uu", "-", "b"),  # run = t - 1: only the first was not useless
        ("u+u", "b", "-"),  # only the most recent previous one was not useless
        ("++u", "b", "b"),
        ("uu+", "-", "-"),  # the latest is not useless
        ("+uuuu", "-", "b"),
        ("u+uuu", "b", "b"),
        ("uuu+u", "b", "-"),
        ("+uu+u", "b", "b"),
    ],
)
def test_the_arms_of_a_history(verdicts: str, published: str, worded: str) -> None:
    assert _arms(verdicts) == (published, worded)


def test_the_other_wording_gives_another_number() -> None:
    def ten(verdicts: str, answers: int) -> list[StudyEpisode]:
        return [
            episode(verdicts, question=f"{verdicts}{i}", then="finish" if i < answers else "search") for i in range(10)
        ]

    episodes = [*ten("uuu", 8), *ten("u+u", 2), *ten("+uu", 6)]
    assert delta(episodes).delta.value == pytest.approx(0.8 - 0.2)
    assert delta_as_worded(episodes).delta.value == pytest.approx(0.8 - 0.6)


def _slowly(episodes: Sequence[StudyEpisode]) -> float:
    """Delta from its definition, one decision after the other."""
    cells: dict[int, list[list[bool]]] = defaultdict(lambda: [[], []])
    for each in episodes:
        for t in range(3, 7):
            if each.regime not in FAILURE_REGIMES or t >= len(each.actions) or t > len(each.verdicts):
                continue
            seen = [v == "USELESS" for v in each.verdicts[:t]]
            run = len(seen) if all(seen) else seen[::-1].index(False)
            arm = 0 if run == t else 1 if 1 <= run <= t - 2 else None
            if arm is not None:
                cells[t][arm].append(each.actions[t] == "finish")
    weights = {t: len(a) * len(b) / (len(a) + len(b)) for t, (a, b) in cells.items() if a and b}
    return sum(w * (np.mean(cells[t][0]) - np.mean(cells[t][1])) for t, w in weights.items()) / sum(weights.values())


@pytest.mark.parametrize("seed", range(3))
def test_delta_is_what_its_definition_says(seed: int) -> None:
    episodes = played(lambda t, run: 0.05 + 0.06 * run, 40, seed, judged=0.8)
    assert delta(episodes, resampling=QUICK).delta.value == pytest.approx(_slowly(episodes), abs=1e-12)


def test_an_agent_that_stops_by_the_clock_has_no_contrast_but_an_integration_index() -> None:
    found = [
        (delta(episodes, resampling=QUICK).delta.value, integration_index(episodes, resampling=QUICK).value)
        for episodes in (played(by_clock, 60, seed, judged=0.85) for seed in range(12))
    ]
    deltas, indices = (np.array(column) for column in zip(*found, strict=True))
    error = deltas.std(ddof=1) / np.sqrt(len(deltas))
    assert abs(deltas.mean()) < 3 * error
    assert error < 0.02
    assert indices.mean() > 0.05
    assert (indices > 0).mean() > 0.8


def test_an_agent_that_stops_on_its_evidence_has_a_contrast_near_one() -> None:
    found = delta(played(by_evidence, 60, 0)).delta
    assert found.value is not None
    assert found.value > 0.95
    assert found.low is not None
    assert found.low > 0.9


@pytest.mark.slow
def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    covered = 0
    for seed in range(100):
        found = delta(played(by_clock, 40, seed, judged=0.8), resampling=QUICK).delta
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 0 <= found.high
    assert covered >= 87  # 95 % of 100 less three and a half standard errors


def test_intervals_come_again_with_their_seed_in_any_order_of_the_episodes() -> None:
    episodes = played(by_clock, 30, 1)
    first = delta(episodes)
    assert delta(episodes) == first
    assert delta(episodes[::-1]) == first
    assert delta(episodes, resampling=Resampling(0.95, 2000, 1)).delta.low != first.delta.low


def test_the_interval_resamples_questions() -> None:
    """Ten copies of each question's episodes, as further episodes of it, tell nothing more; ten more questions do."""
    episodes = played(by_clock, 30, 2, judged=0.8)
    again = [
        StudyEpisode(f"{each.question_id}-{copy}", each.regime, each.verdicts, each.actions, each.success)
        for copy in range(10)
        for each in episodes
    ]

    def width(found: Sequence[StudyEpisode]) -> float:
        estimate = delta(found).delta
        assert estimate.low is not None
        assert estimate.high is not None
        return estimate.high - estimate.low

    assert width(episodes * 10) == pytest.approx(width(episodes), rel=1e-9)
    assert width(again) == pytest.approx(width(episodes) / np.sqrt(10), rel=0.15)


def test_an_empty_arm_is_undefined_with_its_n() -> None:
    found = delta([episode("uuuu", question=f"q{i}") for i in range(5)])
    assert (found.delta.value, found.delta.low, found.delta.high) == (None, None, None)
    assert found.delta.n == 10
    assert "all useless: n=10" in found.delta.note
    assert "n=0" in found.delta.note
    nothing = delta([]).delta
    assert (nothing.value, nothing.n) == (None, 0)


def test_resamples_without_both_arms_are_counted() -> None:
    found = delta([episode("uuu", question="a"), episode("u+u", question="b", then="search")]).delta
    assert found.value == 1
    assert 800 < found.skipped < 1200  # a resample of two questions is one of them twice, half of the time
    assert "no width" in found.note


def test_integration_index_by_hand() -> None:
    episodes = [episode("uuuu", question="a"), episode("uuuuu", question="b"), episode("u", question="c")]
    # runs of 4 or 5: a answers, b goes on and then answers; of 1 or 2: a twice and b twice on, c answers
    found = integration_index(episodes)
    assert found.value == pytest.approx(2 / 3 - 1 / 5)
    assert found.n == 8
    none = integration_index([episode("uu")])
    assert none.value is None
    assert "4 or 5 (n=0)" in none.note


def test_hazard_by_hand() -> None:
    curve = hazard([episode("uu+", question="a"), episode("u", question="b"), episode("uuuuuuu", question="c")])
    assert list(curve) == [0, 1, 2, 3, 4, 5, 6]
    assert {run: (each.value, each.n) for run, each in curve.items()} == {
        0: (1.0, 1),
        1: (pytest.approx(1 / 3), 3),
        2: (0.0, 2),
        3: (0.0, 1),
        4: (0.0, 1),
        5: (0.0, 1),
        6: (0.0, 1),
    }
    assert curve[2].high is not None
    assert curve[2].high > 0.5  # two decisions without an answer are no proof that there is none
    assert hazard([])[3].value is None
    assert hazard([])[3].n == 0


def test_a_budget_too_small_for_delta_is_refused() -> None:
    with pytest.raises(UsageError, match="a budget of 4 actions was given: give 5 to 10000"):
        delta([episode("uuu")], budget=4)


def test_a_larger_budget_pools_later_decisions() -> None:
    assert [each.t for each in delta([episode("u" * 9)], budget=16).strata] == list(range(3, 15))
