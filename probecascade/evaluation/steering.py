"""What a change of the hidden states did to an agent, judged against unchanged twins and random directions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probecascade.bounds import clopper_pearson
from probecascade.episode import Episode
from probecascade.errors import DataError, NothingToDoError
from probecascade.intervals import DEFAULT, Interval, Resampling, mean_interval, ratio_interval, share_interval

Array = NDArray[np.float64]

MEASURES = ("success", "tokens", "unparsable")
"""Share of episodes that succeed, tokens per episode, share of an episode's turns that hold no action."""

_BROKEN = 0.1  # more unparsable turns than this, and a change of success may come from broken text


@dataclass(frozen=True, slots=True)
class Condition:
    """How episodes went under one change (or none), each number with an interval over groups.

    unparsable: of all turns, those without a usable action. errors: episodes that ended as `error`, left out.
    """

    name: str
    success: Interval
    tokens: Interval
    unparsable: Interval
    errors: int


@dataclass(frozen=True, slots=True)
class SteeringEffect:
    """Mean change per episode against its twin without a change, the same task and seed.

    direction: of the probe's direction; random: of random directions of equal norm, averaged per episode over
    `controls` of them; beyond: the one less the other, paired. Each maps `MEASURES` to an interval over groups, which
    knows how tasks vary but not how random directions do: read it beside `each_control`, their single changes of
    success. `n`: episodes with a label in all of these runs. `untouched`: share of them whose ids are the twin's.
    """

    name: str
    n: int
    untouched: float
    controls: int
    direction: dict[str, Interval]
    random: dict[str, Interval]
    beyond: dict[str, Interval]
    each_control: tuple[float, ...]

    @property
    def verdict(self) -> str:
        """In one sentence, whether the direction does to success what random ones do not."""
        change = self.direction["success"]
        judged = self.beyond if self.controls else self.direction
        beyond = judged["success"]
        told = f"{self.name}: success {_points(change)}, "
        told += f"{_points(beyond)} beyond random directions" if self.controls else "without a control"
        if beyond.low <= 0 <= beyond.high:
            return f"{told}: no effect of the direction is shown."
        more = judged["unparsable"].value
        if more > _BROKEN and beyond.value < 0:
            return (
                f"{told}, but {100 * more:.0f} % more turns hold no action: the text broke, so this is no clean effect."
            )
        return f"{told}: the direction has an effect."


def condition(name: str, episodes: Sequence[Episode], resampling: Resampling = DEFAULT) -> Condition:
    """How these episodes went. NothingToDoError where none has a label."""
    kept = [episode for episode in episodes if episode.labelled]
    if not kept:
        raise NothingToDoError(f"no episode of {name!r} has a label: run more tasks.")
    groups = [episode.group for episode in kept]
    turns = [len(episode.steps) for episode in kept]
    return Condition(
        name=name,
        success=share_interval([not e.failed for e in kept], np.ones(len(kept), np.bool_), groups, resampling),
        tokens=mean_interval([e.tokens for e in kept], groups, resampling),
        unparsable=_rare(ratio_interval([unparsable_turns(e) for e in kept], turns, groups, resampling), resampling),
        errors=len(episodes) - len(kept),
    )


def steering_effect(
    name: str,
    twins: Sequence[Episode],
    steered: Sequence[Episode],
    controls: Sequence[Sequence[Episode]],
    resampling: Resampling = DEFAULT,
) -> SteeringEffect:
    """Compare steered episodes and those of each control direction with their twins, by task id and seed.

    Left out are episodes without a label in any of the runs. DataError where a run lacks or repeats an episode,
    NothingToDoError where none is left.
    """
    by_id = [_by_id(run) for run in (twins, steered, *controls)]
    if any(run.keys() != by_id[0].keys() for run in by_id):
        raise DataError("the steered runs and their twins hold different episodes: play the same tasks and seeds.")
    keys = [key for key in by_id[0] if all(run[key].labelled for run in by_id)]
    if not keys:
        raise NothingToDoError(f"no episode of {name!r} has a label in every run: run more tasks.")
    groups = [by_id[0][key].group for key in keys]
    table = np.stack([_measures([run[key] for key in keys]) for run in by_id])  # (runs, n, measures)
    change = table[1:] - table[0]
    chance = change[1:].mean(axis=0) if controls else np.full_like(change[0], np.nan)

    def intervals(values: Array) -> dict[str, Interval]:
        return {m: _mean(values[:, i], groups, m != "tokens", resampling) for i, m in enumerate(MEASURES)}

    return SteeringEffect(
        name=name,
        n=len(keys),
        untouched=float(np.mean([_same(by_id[0][key], by_id[1][key]) for key in keys])),
        controls=len(controls),
        direction=intervals(change[0]),
        random=intervals(chance) if controls else {},
        beyond=intervals(change[0] - chance) if controls else {},
        each_control=tuple(float(x) for x in change[1:, :, 0].mean(axis=1)),
    )


def unparsable_turns(episode: Episode) -> int:
    """Turns of an episode that hold no usable action."""
    return sum(not step.action for step in episode.steps)


def _measures(episodes: Sequence[Episode]) -> Array:
    """(n, measures), in the order of `MEASURES`."""
    return np.array([[not e.failed, e.tokens, unparsable_turns(e) / max(len(e.steps), 1)] for e in episodes], float)


def _mean(values: Array, groups: list[str], share: bool, resampling: Resampling) -> Interval:
    """The mean with its interval. Where no share changed at all, as many groups as chance may hide might have."""
    interval = mean_interval(values, groups, resampling)
    if share and not values.any():
        reach = _rare(interval, resampling).high
        return replace(interval, low=-reach, high=reach)
    return interval


def _rare(interval: Interval, resampling: Resampling) -> Interval:
    """What was never seen may still happen: its share is then bounded as if each group were one trial."""
    if interval.value or not interval.n:
        return interval
    return replace(interval, high=clopper_pearson(0, interval.groups, confidence=resampling.confidence)[1])


def _same(one: Episode, other: Episode) -> bool:
    return np.array_equal(one.token_ids, other.token_ids)


def _by_id(episodes: Sequence[Episode]) -> dict[str, Episode]:
    found = {episode.episode_id: episode for episode in episodes}
    if len(found) < len(episodes):
        raise DataError("a run holds the same episode twice: give each once.")
    return found


def _points(interval: Interval) -> str:
    value, low, high = (100 * x for x in (interval.value, interval.low, interval.high))
    return f"{value:+.1f} points [{low:+.1f}, {high:+.1f}]"


def effect_record(effect: SteeringEffect) -> dict[str, Any]:
    """An effect as JSON values."""

    def record(intervals: dict[str, Interval]) -> dict[str, Any]:
        return {name: {"value": i.value, "low": i.low, "high": i.high} for name, i in intervals.items()}

    return {
        "name": effect.name,
        "n": effect.n,
        "untouched": effect.untouched,
        "controls": effect.controls,
        "direction": record(effect.direction),
        "random": record(effect.random),
        "beyond": record(effect.beyond),
        "each_control": list(effect.each_control),
        "verdict": effect.verdict,
    }
