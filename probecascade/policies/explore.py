"""Exploration: a random share of would-be aborts is let through, so that their outcomes stay known."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from probecascade.episode import Decision, Moment, Task
from probecascade.errors import DataError
from probecascade.interfaces import EpisodeWatch, StoppingPolicy
from probecascade.policies.shadow import WrappedWatch
from probecascade.store import Run
from probecascade.thresholds.targets import TargetLike, parse_target

_WORD = 2**64


@dataclass(frozen=True, slots=True)
class Coin:
    """Which episodes are explored: a share of all tasks, by a hash of seed and task id.

    It knows nothing of the episode, so the explored ones are a simple random sample of the tasks, aborted or not.
    All episodes of one task share its coin.
    """

    share: Fraction
    seed: int

    @classmethod
    def of(cls, share: TargetLike, seed: int) -> Self:
        """UsageError for a share outside (0, 1]."""
        return cls(parse_target(share, what="exploration share"), seed)

    def explores(self, task_id: str) -> bool:
        """Whether the would-be abort of this task's episodes is let through."""
        # The first word keeps the coin independent of the hash by which groups are split.
        digest = hashlib.sha256(f"explore\0{self.seed}\0{task_id}".encode("utf-8", "surrogatepass")).digest()
        return int.from_bytes(digest[:8], "big") < self.share * _WORD

    def record(self) -> dict[str, Any]:
        """Share and seed as JSON values."""
        return {"share": str(self.share), "seed": self.seed}

    @classmethod
    def recorded(cls, header: Mapping[str, Any]) -> Self | None:
        """The coin that a run's header records; None where nothing was explored. DataError if it is damaged."""
        found = header.get("policy", {}).get("explore")
        if found is None:
            return None
        try:
            return cls.of(found["share"], int(found["seed"]))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"the run's record of its exploration, {found!r}, has no share and seed.") from error


class Explore:
    """Lets the aborts of a random share of the episodes pass, and leaves the others as they are.

    The coin of an episode is tossed before it begins. In an explored one every would-be abort becomes a `continue`
    without steers that still carries gate, score and threshold, and a reason that says so. UsageError for a share
    outside (0, 1].
    """

    def __init__(self, policy: StoppingPolicy, share: TargetLike, seed: int = 0) -> None:
        self.policy = policy
        self.layers: Sequence[int] = policy.layers
        self.coin = Coin.of(share, seed)

    def begin(self, task: Task) -> EpisodeWatch:
        """Watch one episode: the policy's own watch, or one that aborts nothing."""
        watch = self.policy.begin(task)
        return WrappedWatch(watch, _let_through) if self.coin.explores(task.task_id) else watch


def stopped_episodes(run: Run) -> NDArray[np.bool_]:
    """(n_episodes,): those that a policy ended, so that nobody knows how they would have."""
    episodes = run.episodes
    stopped: NDArray[np.bool_] = (episodes.outcome == "aborted") | (episodes.reason == "answered")
    return stopped


def explored_episodes(run: Run, coin: Coin) -> NDArray[np.bool_]:
    """(n_episodes,): those that the run's coin let run to their end. DataError if one of them was stopped."""
    explored = np.array([coin.explores(task) for task in run.episodes.task_id.tolist()], dtype=np.bool_)
    stopped = explored & stopped_episodes(run)
    if stopped.any():
        raise DataError(
            f"the run says that {run.episodes.episode_id[stopped][0]!r} was let through by exploration, but it was "
            "stopped: use a run whose exploration is recorded as it was."
        )
    return explored


def _let_through(moment: Moment, decision: Decision) -> Decision:
    if decision.action != "abort":
        return decision
    reason = f"let through by exploration: {decision.reason}"
    return Decision(gate=decision.gate, score=decision.score, threshold=decision.threshold, reason=reason)
