"""Other ways to count what an abort saves: whole prompts billed at every call, and the published convention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from probecascade.errors import DataError, UsageError
from probecascade.store import Run

FloatArray = NDArray[np.float64]
Billing = Literal["tokens", "api"]
BILLINGS: tuple[Billing, ...] = ("tokens", "api")


def check_billing(billing: str) -> Billing:
    """The name, if it is one. UsageError otherwise."""
    for known in BILLINGS:
        if billing == known:
            return known
    raise UsageError(
        f"billing is {billing!r}: give tokens (each counted once) or api (the prompt again at every call)."
    )


class Accounts:
    """The calls of a run's episodes, read from their transcripts: what each was billed, and where it began.

    With billing "api" a call pays for the whole conversation before it and for its turn. Rows are those of the run.
    `known` is False where episodes have checkpoints in rounds that no transcript tells of, as imported ones have.
    """

    def __init__(self, run: Run) -> None:
        self.run, self.known = run, True
        self._began: list[FloatArray] = []
        self._bill: list[FloatArray] = []
        for index in range(len(run)):
            episode = run.episode(index)
            turns = np.array([step.turn_tokens for step in episode.steps], dtype=np.float64)
            seen = np.array([step.observation_tokens for step in episode.steps], dtype=np.float64)
            began = np.cumsum(turns + seen) - turns - seen
            self._began.append(began)
            self._bill.append(episode.prompt_tokens + began + turns)
            self.known &= all(point.round <= len(episode.steps) for point in episode.checkpoints)

    @property
    def billed(self) -> FloatArray:
        """(n_episodes,) tokens billed for whole episodes."""
        return np.array([bill.sum() for bill in self._bill])

    def billed_after(self, checkpoints: Sequence[str], *, gate_answers: bool) -> FloatArray:
        """(n_episodes, n_gates) tokens billed strictly after each gate, NaN where it was not reached.

        A call is billed when it ends, so an abort inside a turn saves the rest of that turn and all later calls.
        DataError where the calls are not known.
        """
        if not self.known:
            raise DataError(
                f"the run {str(self.run.path)!r} does not tell what each call took, as no imported run does: count "
                "each token once, with billing tokens."
            )
        after = np.full((len(self.run), len(checkpoints)), np.nan)
        for g, (name, episodes, rounds, spent) in enumerate(self._rows(checkpoints, gate_answers)):
            for episode, r, tokens in zip(episodes, rounds, spent, strict=True):
                rest = 0.0
                if name.startswith("thought:"):
                    rest = self._bill[episode][r - 1] - self.run.episodes.prompt_tokens[episode] - tokens
                after[episode, g] = self._bill[episode][r:].sum() + rest
        return after

    def from_round(self, checkpoints: Sequence[str], *, gate_answers: bool) -> FloatArray:
        """(n_episodes, n_gates) tokens from the beginning of the gate's own round on.

        The convention of published code (arXiv 2607.06503): an abort at the end of a turn is credited with that turn
        too, although it has been generated. It flatters; it is here to be compared with. Only where the calls are
        `known`.
        """
        after = np.full((len(self.run), len(checkpoints)), np.nan)
        for g, (_, episodes, rounds, _) in enumerate(self._rows(checkpoints, gate_answers)):
            for episode, r in zip(episodes, rounds, strict=True):
                began = self._began[episode][r - 1] if r else 0.0
                after[episode, g] = self.run.episodes.tokens[episode] - began
        return after

    def _rows(
        self, checkpoints: Sequence[str], gate_answers: bool
    ) -> list[tuple[str, NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]:
        found = []
        for name in checkpoints:
            if name not in self.run.checkpoint_names:
                found.append((name, *(np.empty(0, np.int64),) * 3))
                continue
            rows = self.run.rows(name)
            use = gate_answers | ~rows.final
            found.append((name, rows.episode[use], rows.round[use], rows.tokens[use]))
        return found
