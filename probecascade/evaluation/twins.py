"""Policies judged by twins: the same task and seed run without aborts says what an abort cost and saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from probecascade.episode import Checkpoint, Decision, Episode
from probecascade.errors import DataError, NothingToDoError, UsageError
from probecascade.intervals import (
    DEFAULT,
    Resampling,
    mean_interval,
    ratio_interval,
    share_interval,
)
from probecascade.probes import Interval


@dataclass(frozen=True, slots=True)
class PolicyOutcome:
    """What a policy did to a set of tasks, each share with an interval over groups and its n.

    `success`: of all episodes, those that still succeed. `caught`: of the doomed, those aborted. `kept`: of
    those that would have succeeded, those that still do. `*_saved`: of all that the twins spend, the share
    spent strictly after the abort (for an episode made to answer, the twin's spending less its own).
    `seconds`: mean per episode, what is saved taken off the twin's. `diverged`: pairs whose ids differ
    before the decision, left out; `unlabelled`: pairs in which a run has no label of its own (errors), left
    out. `read_off`: decisions were read off the twins and not run live.
    """

    name: str
    n: int
    success: Interval
    caught: Interval
    kept: Interval
    tokens_saved: Interval
    calls_saved: Interval
    seconds_saved: Interval
    seconds: Interval
    diverged: int
    unlabelled: int
    read_off: bool


@dataclass(frozen=True, slots=True)
class _Pair:
    """One episode under the policy, beside its twin."""

    group: str
    doomed: bool
    succeeded: bool
    aborted: bool
    saved: tuple[float, float, float]  # tokens, calls, seconds
    spent: tuple[float, float, float]  # by the twin


def compare_twins(
    name: str,
    live: Sequence[Episode],
    twins: Sequence[Episode],
    resampling: Resampling = DEFAULT,
) -> PolicyOutcome:
    """Judge episodes run live under a policy by their twins, matched by episode id.

    The ids up to the decision (all ids where there was none) must be the twin's; pairs that diverge, as
    bfloat16 batches may, are counted and left out. DataError if an episode has no twin or an id occurs
    twice, NothingToDoError if no pair is left.
    """
    by_id = _unique(twins, "twins")
    _unique(live, "live episodes")
    pairs: list[_Pair] = []
    diverged = unlabelled = 0
    for episode in live:
        twin = by_id.get(episode.episode_id)
        if twin is None:
            raise DataError(f"the episode {episode.episode_id!r} has no twin: run it without aborts as well.")
        if not twin.labelled or episode.outcome == "error":
            unlabelled += 1
        elif not _same_ids(episode, twin):
            diverged += 1
        else:
            pairs.append(_live_pair(episode, twin))
    return _outcome(name, pairs, diverged, unlabelled, False, resampling)


def read_off(
    name: str,
    decisions: Sequence[Decision | None],
    twins: Sequence[Episode],
    resampling: Resampling = DEFAULT,
) -> PolicyOutcome:
    """Outcome of a policy whose decision on each twin is known (None: it lets the episode pass).

    An abort at a checkpoint changes nothing before it, so a replayed policy needs no live run. UsageError
    for a decision to answer, whose outcome only a live run can tell.
    """
    if len(decisions) != len(twins):
        raise DataError(f"{len(decisions)} decisions were given for {len(twins)} twins: give one each.")
    _unique(twins, "twins")
    pairs: list[_Pair] = []
    unlabelled = 0
    for decision, twin in zip(decisions, twins, strict=True):
        if decision is not None and decision.action == "answer":
            raise UsageError(f"the policy makes {twin.task_id!r} answer at {decision.gate}: run it live.")
        if not twin.labelled:
            unlabelled += 1
            continue
        aborted = decision is not None and decision.action == "abort"
        stop = _point(twin, decision.gate) if decision is not None and aborted else None
        pairs.append(_pair(twin, aborted, not twin.failed and not aborted, _after(twin, stop)))
    return _outcome(name, pairs, 0, unlabelled, True, resampling)


def _live_pair(episode: Episode, twin: Episode) -> _Pair:
    aborted = episode.outcome == "aborted"
    if aborted:
        saved = _after(twin, _point(twin, _stop(episode).name))
    elif _answered(episode):
        saved = (
            float(twin.tokens - episode.tokens),
            float(twin.calls - episode.calls),
            twin.seconds - episode.seconds,
        )
    else:
        saved = (0.0, 0.0, 0.0)
    return _pair(twin, aborted, episode.outcome == "success", saved)


def _pair(twin: Episode, aborted: bool, succeeded: bool, saved: tuple[float, float, float]) -> _Pair:
    spent = (float(twin.tokens), float(twin.calls), twin.seconds)
    return _Pair(twin.group, twin.failed, succeeded, aborted, saved, spent)


def _same_ids(episode: Episode, twin: Episode) -> bool:
    """Whether the twin was fed the same ids up to the decision, or throughout where there was none."""
    if episode.outcome == "aborted" or _answered(episode):
        end = _stop(episode).position + 1
        return np.array_equal(episode.token_ids[:end], twin.token_ids[:end])
    return np.array_equal(episode.token_ids, twin.token_ids)


def _answered(episode: Episode) -> bool:
    return episode.decision is not None and episode.decision.action == "answer"


def _stop(episode: Episode) -> Checkpoint:
    """The checkpoint at which the episode was stopped: its decision's gate, else its last one."""
    if episode.decision is not None and episode.decision.gate:
        return _point(episode, episode.decision.gate)
    if not episode.checkpoints:
        raise DataError(f"episode {episode.episode_id!r} was stopped but records no checkpoint.")
    return episode.checkpoints[-1]


def _point(episode: Episode, name: str) -> Checkpoint:
    for point in episode.checkpoints:
        if point.name == name:
            return point
    raise DataError(
        f"episode {episode.episode_id!r} records no checkpoint {name!r}: decide only at checkpoints that are recorded."
    )


def _after(twin: Episode, stop: Checkpoint | None) -> tuple[float, float, float]:
    """Tokens, calls and seconds that the twin spends strictly after this checkpoint."""
    if stop is None:
        return 0.0, 0.0, 0.0
    return float(twin.tokens - stop.tokens), float(twin.calls - stop.calls), twin.seconds - stop.seconds


def _unique(episodes: Sequence[Episode], what: str) -> dict[str, Episode]:
    found: dict[str, Episode] = {}
    for episode in episodes:
        if episode.episode_id in found:
            raise DataError(f"the {what} hold the episode {episode.episode_id!r} twice: give each once.")
        found[episode.episode_id] = episode
    return found


def _outcome(
    name: str,
    pairs: Sequence[_Pair],
    diverged: int,
    unlabelled: int,
    read_from_twins: bool,
    resampling: Resampling,
) -> PolicyOutcome:
    if not pairs:
        raise NothingToDoError(
            f"no episode of {name!r} can be compared with a twin: {diverged} diverged and {unlabelled} "
            "have no label, so run more tasks."
        )
    groups = [pair.group for pair in pairs]
    doomed = np.array([pair.doomed for pair in pairs])
    aborted = np.array([pair.aborted for pair in pairs])
    succeeded = np.array([pair.succeeded for pair in pairs])
    saved = np.array([pair.saved for pair in pairs])
    spent = np.array([pair.spent for pair in pairs])
    everyone = np.ones(len(pairs), dtype=np.bool_)
    shares = [ratio_interval(saved[:, i], spent[:, i], groups, resampling) for i in range(3)]
    return PolicyOutcome(
        name=name,
        n=len(pairs),
        success=share_interval(succeeded, everyone, groups, resampling),
        caught=share_interval(aborted, doomed, groups, resampling),
        kept=share_interval(succeeded, ~doomed, groups, resampling),
        tokens_saved=shares[0],
        calls_saved=shares[1],
        seconds_saved=shares[2],
        seconds=mean_interval(spent[:, 2] - saved[:, 2], groups, resampling),
        diverged=diverged,
        unlabelled=unlabelled,
        read_off=read_from_twins,
    )
