"""Paired comparisons: differences by question, Holm's correction, margins, and error rates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from statsmodels.stats.multitest import multipletests

from probecascade.errors import DataError, UsageError
from probecascade.evaluation import Resampling
from probecascade.evaluation.judged_useless import (
    SIX_REGIMES,
    StudyEpisode,
    compare_conditions,
    delta,
    delta_measure,
    holm,
    integration_measure,
    mean6,
    mean6_measure,
    paired_difference,
    utility_measure,
)

from .conftest import by_clock, by_evidence, episode, played

QUICK = Resampling(0.95, 400, 0)


def _condition(rates: np.ndarray, seed: int, gain: float = 0.0) -> list[StudyEpisode]:
    """Episodes of questions of differing ease, the same for every condition."""
    rng = np.random.default_rng(seed)
    return [
        episode("u", question=f"q{number}", regime=regime, success=bool(rng.random() < rate + gain))
        for number, rate in enumerate(rates)
        for regime in SIX_REGIMES
    ]


def test_holm_is_that_of_statsmodels() -> None:
    rng = np.random.default_rng(0)
    for size in (1, 2, 7, 30):
        p_values = rng.random(size) ** 3
        assert holm(p_values.tolist()) == pytest.approx(multipletests(p_values, method="holm")[1].tolist(), abs=1e-12)
    assert holm([]) == []
    assert holm([0.01, 0.01, 0.04]) == pytest.approx([0.03, 0.03, 0.04])


@pytest.mark.parametrize("wrong", [1.5, -0.1, float("nan")])
def test_holm_refuses_what_is_no_p_value(wrong: float) -> None:
    with pytest.raises(DataError, match="p-values lie between 0 and 1"):
        holm([0.5, wrong])


def test_the_difference_is_paired_by_question() -> None:
    """Questions of very different ease: without pairing the interval would be several times as wide."""
    rates = np.random.default_rng(0).choice([0.02, 0.9], size=150)
    lower, higher = _condition(rates, 1), _condition(rates, 2, gain=0.08)
    found = paired_difference(higher, lower, mean6_measure(), resampling=QUICK).difference
    separate = [mean6(each, QUICK) for each in (lower, higher)]
    ends = [each.high - each.low for each in (found, *separate) if each.high is not None and each.low is not None]
    assert found.value == pytest.approx(separate[1].value - separate[0].value)  # type: ignore[operator]
    assert ends[0] < 0.6 * np.hypot(ends[1], ends[2])


def test_only_questions_of_both_conditions_count() -> None:
    first = [*_condition(np.ones(4), 0), episode("u", question="q9", regime="clean")]
    second = _condition(np.zeros(6), 0)
    found = paired_difference(first, second[: 6 * 3 + 5], mean6_measure(), resampling=QUICK)
    assert found.difference.value == 1
    assert found.difference.n == 3  # the fourth lacks a regime in the second condition


def test_a_real_difference_is_found_and_none_is_not() -> None:
    rates = np.random.default_rng(1).random(100) * 0.8
    clear = paired_difference(_condition(rates, 1, 0.2), _condition(rates, 2), mean6_measure(), resampling=QUICK)
    assert clear.p_value is not None
    assert clear.p_value < 0.01
    same = paired_difference(_condition(rates, 1), _condition(rates, 1), mean6_measure(), resampling=QUICK)
    assert same.p_value == 1
    assert same.difference.value == 0


@pytest.mark.slow
def test_two_questions_that_agree_make_no_p_value() -> None:
    def all_six(won: str) -> list[StudyEpisode]:
        names = [(question, regime) for question in "ab" for regime in SIX_REGIMES]
        return [episode("u", question=q, regime=r, success=r == won) for q, r in names]

    found = paired_difference(all_six("clean"), all_six("none of them"), mean6_measure(), resampling=QUICK)
    assert found.difference.value == pytest.approx(1 / 6)
    assert found.p_value is None
    assert "no width" in found.difference.note
    same = paired_difference(all_six("clean"), all_six("clean"), mean6_measure(), resampling=QUICK)
    assert (same.difference.value, same.p_value) == (0.0, 1.0)


def test_p_values_are_those_of_no_difference_about_as_often_as_they_say() -> None:
    rates = np.random.default_rng(2).random(80)
    small = 0
    for seed in range(200):
        pair = _condition(rates, 2 * seed), _condition(rates, 2 * seed + 1)
        p_value = paired_difference(*pair, mean6_measure(), resampling=Resampling(0.95, 200, seed)).p_value
        assert p_value is not None
        small += p_value <= 0.1
    assert 7 <= small <= 37  # 20 are expected, with a standard deviation of 4.2


def test_delta_is_compared_on_shared_resamples() -> None:
    clock, evidence = played(by_clock, 40, 0), played(by_evidence, 40, 1)
    found = paired_difference(evidence, clock, delta_measure(), resampling=QUICK)
    values = [delta(each, resampling=QUICK).delta.value for each in (evidence, clock)]
    assert found.difference.value == pytest.approx(values[0] - values[1])  # type: ignore[operator]
    assert found.difference.low is not None
    assert found.difference.low > 0.5
    assert paired_difference(evidence, clock, integration_measure(), resampling=QUICK).difference.value is not None


def test_non_inferiority_needs_the_interval_above_the_margin() -> None:
    rates = np.random.default_rng(3).random(120) * 0.9
    pair = _condition(rates, 5), _condition(rates, 6)
    found = paired_difference(*pair, mean6_measure(), resampling=QUICK)
    assert found.noninferior is None
    assert found.difference.low is not None
    assert found.difference.low < 0
    wide = paired_difference(*pair, mean6_measure(), margin=-found.difference.low + 0.001, resampling=QUICK)
    tight = paired_difference(*pair, mean6_measure(), margin=-found.difference.low - 0.001, resampling=QUICK)
    assert (wide.noninferior, tight.noninferior) == (True, False)


def test_one_question_shows_no_non_inferiority() -> None:
    pair = _condition(np.ones(1), 0), _condition(np.ones(1), 1)
    found = paired_difference(*pair, mean6_measure(), margin=0.05, resampling=QUICK)
    assert found.noninferior is None
    assert "no width" in found.difference.note


@pytest.mark.parametrize("margin", [0.0, -0.1, float("nan"), float("inf")])
def test_a_margin_must_be_above_zero(margin: float) -> None:
    pair = _condition(np.ones(2), 0), _condition(np.ones(2), 1)
    with pytest.raises(UsageError, match="a margin of"):
        paired_difference(*pair, mean6_measure(), margin=margin, resampling=QUICK)


def test_conditions_without_a_common_question_have_no_difference() -> None:
    other = [replace(each, question_id="z") for each in _condition(np.ones(1), 0)]
    found = paired_difference(other, _condition(np.ones(1), 0), mean6_measure(), resampling=QUICK)
    assert (found.difference.value, found.p_value, found.difference.n) == (None, None, 0)
    assert "mean6 is undefined in one of the two on the 0 questions" in found.difference.note


def test_the_family_is_all_that_is_defined() -> None:
    rates = np.random.default_rng(4).random(50)
    conditions = {"none": _condition(rates, 1), "a": _condition(rates, 2, 0.1), "b": _condition(rates, 3)}
    found = compare_conditions(
        conditions, "none", (mean6_measure(), delta_measure(), utility_measure()), margin=0.2, resampling=QUICK
    )
    assert [(each.condition, each.measure) for each in found] == [
        (name, measure) for name in ("a", "b") for measure in ("mean6", "delta", "utility")
    ]
    assert [each.p_value is None for each in found] == [False, True, False] * 2  # no decision after one observation
    assert [each.margin for each in found] == [0.2, None, None] * 2
    defined = [each for each in found if each.p_value is not None]
    corrected = multipletests([each.p_value for each in defined], method="holm")[1]
    assert [each.p_holm for each in defined] == pytest.approx(corrected.tolist())
    with pytest.raises(UsageError, match="the condition 'c' is not among none, a, b"):
        compare_conditions(conditions, "c", (mean6_measure(),))
