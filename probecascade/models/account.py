"""What a loop that is not ours has told of its episode so far, and whether that is all that a gate reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from probecascade.episode import Action, Step
from probecascade.errors import CascadeError


@dataclass(frozen=True)
class Told:
    """What the caller says of a checkpoint, besides where it is."""

    final: bool = False
    action: Action | None = None
    observation: str = ""
    calls: int = 0
    checks: Mapping[str, float] | None = None


class Account:
    """Texts of the turns and observations of one episode, and the checkpoints that its policy was shown."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self._turns: dict[int, str] = {}
        self._observations: dict[int, str] = {}

    def follow(self, kind: str, round_: int, turn: str, told: Told) -> None:
        """Keep the text of a turn and the latest observation, as far as the caller gives them."""
        if kind == "observation":
            self._observations[round_] = told.observation
            return
        if kind not in ("prompt", "thought"):
            self._turns[round_] = turn
        if told.observation:
            self._observations.setdefault(round_ - 1, told.observation)

    def transcript(self, kind: str, round_: int) -> tuple[Step, ...]:
        """The finished rounds, of which only the texts are known."""
        return tuple(
            Step(r, 1, self._turns[r], "", "", "", self._observations[r], "", 0, 0, "") for r in _finished(kind, round_)
        )

    def check(self, name: str, kind: str, round_: int, told: Told, reads: frozenset[str], taps: Sequence[str]) -> None:
        """CascadeError where a gate at this checkpoint reads what the caller's loop has not shown.

        In the runs that its probe was fitted on it was there, so the score would be that of another thing.
        """
        if "checks" in reads and told.checks is None:
            raise CascadeError(f"the gate at {name} reads checks: give checks= to checkpoint, {{}} if there are none.")
        lost = self._lost(kind, round_) if "text" in reads else []
        if lost:
            raise CascadeError(
                f"the gate at {name} reads the transcript, of which {lost[0]} was not given: call checkpoint at every "
                "action with generate's output, and give observation= after every tool call."
            )
        due = {"prompt", *(f"{k}:{r}" for k in ("action", "observation") for r in range(1, round_))}
        due |= set() if kind in ("prompt", "thought", "action") else {f"action:{round_}"}
        unseen = [tap for tap in taps if tap in due - self.seen - {name}]
        if unseen:
            raise CascadeError(
                f"the gate at {name} looks back at {unseen[0]}, which it was not shown: call checkpoint there too."
            )

    def _lost(self, kind: str, round_: int) -> list[str]:
        """The texts that are not known, in words."""
        spoken = round_ + (kind not in ("prompt", "thought"))
        lost = [f"the turn of round {r}" for r in range(1, spoken) if not self._turns.get(r)]
        answered = [r for r in _finished(kind, round_) if not self._observations.get(r)]
        return [*lost, *(f"the observation of round {r}" for r in answered)]


def _finished(kind: str, round_: int) -> range:
    return range(1, round_ + (kind == "observation"))
