"""Paired effects of a change: against the unchanged twin, beyond random directions, and honest about broken text."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from made_runs import make_episode

from probecascade.episode import Episode
from probecascade.errors import DataError, NothingToDoError
from probecascade.evaluation.steering import condition, effect_record, steering_effect, unparsable_turns

N = 120


def episodes(failed: Sequence[bool], *, rounds: int = 4, mute: int = 0) -> list[Episode]:
    """One episode per group; the first `mute` turns of each hold no action."""
    found = []
    for k, fails in enumerate(failed):
        episode = make_episode(f"t{k}", f"g{k}", failed=bool(fails), rounds=rounds)
        steps = [dataclasses.replace(s, action="") if i < mute else s for i, s in enumerate(episode.steps)]
        found.append(dataclasses.replace(episode, steps=tuple(steps)))
    return found


def flipped(failed: np.ndarray, share: float, seed: int) -> np.ndarray:
    return failed ^ (np.random.default_rng(seed).random(len(failed)) < share)


HALF = np.random.default_rng(0).random(N) < 0.5


def test_an_effect_beyond_random_directions_is_found_and_none_is_not() -> None:
    twins = episodes(HALF)
    controls = [episodes(flipped(HALF, 0.2, seed)) for seed in (1, 2, 3)]
    strong = steering_effect("+4σ", twins, episodes(HALF | True), controls)
    assert strong.direction["success"].value == pytest.approx(-(~HALF).mean())
    assert strong.direction["success"].high < 0
    assert strong.beyond["success"].high < 0
    assert strong.verdict.endswith("the direction has an effect.")
    like_random = steering_effect("+4σ", twins, episodes(flipped(HALF, 0.2, 9)), controls)
    assert like_random.verdict.endswith("no effect of the direction is shown.")
    assert len(strong.each_control) == strong.controls == 3
    assert strong.beyond["success"].value == pytest.approx(
        strong.direction["success"].value - np.mean(strong.each_control)
    )


def test_success_that_falls_because_the_text_broke_is_no_clean_effect() -> None:
    broken = steering_effect("+9σ", episodes(HALF), episodes(HALF | True, mute=2), [episodes(HALF)])
    assert broken.beyond["unparsable"].value == pytest.approx(0.5)
    assert broken.verdict.endswith("50 % more turns hold no action: the text broke, so this is no clean effect.")


def test_no_change_at_all_is_not_certainty() -> None:
    same = steering_effect("+1σ", episodes(HALF), episodes(HALF), [episodes(HALF)])
    assert same.untouched == 1.0
    assert same.direction["success"].value == 0
    assert same.direction["success"].low < 0 < same.direction["success"].high < 0.05
    few = steering_effect("+1σ", episodes(HALF[:5]), episodes(HALF[:5]), [])
    assert few.direction["success"].high > 0.4


def test_without_controls_the_verdict_says_so() -> None:
    alone = steering_effect("−4σ", episodes(HALF), episodes(HALF & False), [])
    assert alone.beyond == alone.random == {}
    assert "without a control: the direction has an effect" in alone.verdict
    assert effect_record(alone)["each_control"] == []


def test_the_bootstrap_keeps_its_level() -> None:
    """Where direction and controls flip outcomes alike, an effect is seen in about one of twenty experiments."""
    twins, seen = episodes(HALF, rounds=1), 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        own, other = (episodes(HALF ^ (rng.random(N) < 0.3), rounds=1) for _ in range(2))
        beyond = steering_effect("+4σ", twins, own, [other]).beyond["success"]
        seen += not beyond.low <= 0 <= beyond.high
    assert seen <= 9  # binomial(60, .05) exceeds it once in a thousand times


def test_episodes_without_a_label_in_any_run_are_left_out() -> None:
    twins, steered = episodes(HALF), episodes(HALF)
    steered[0] = dataclasses.replace(steered[0], outcome="error")
    effect = steering_effect("+1σ", twins, steered, [])
    assert effect.n == N - 1
    assert condition("+1σ", steered).errors == 1
    assert condition("+1σ", steered).success.n == N - 1
    crashed = [dataclasses.replace(e, outcome="error") for e in steered]
    with pytest.raises(NothingToDoError, match="no episode of '\\+1σ' has a label"):
        steering_effect("+1σ", twins, crashed, [])
    with pytest.raises(NothingToDoError, match="has a label"):
        condition("+1σ", crashed)


def test_runs_must_be_twins() -> None:
    with pytest.raises(DataError, match="hold different episodes"):
        steering_effect("+1σ", episodes(HALF), episodes(HALF[:-1]), [])
    with pytest.raises(DataError, match="twice"):
        steering_effect("+1σ", episodes(HALF) * 2, episodes(HALF), [])


def test_turns_without_an_action_are_counted_over_all_turns() -> None:
    some = episodes(HALF, mute=1)
    assert unparsable_turns(some[0]) == 1
    assert condition("none", some).unparsable.value == pytest.approx(1 / 4)
    never = condition("none", episodes(HALF[:10])).unparsable
    assert never.value == never.low == 0
    assert 0.2 < never.high < 0.4  # of ten groups, none
