"""Every gate's score and what was left to spend after it, for all episodes of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from probecascade.policies.cascade import Cascade, Gate
from probecascade.policies.moments import stored_moment
from probecascade.policies.taps import EarlierStates, live, stored
from probecascade.probes import reads
from probecascade.store import Run

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class GateTable:
    """(n_episodes, n_gates) each, rows in the order of the run's episodes.

    `scores` and the `*_after` columns are NaN where the episode has no state at the gate, or the gate stands
    on the turn that finishes it and answers are not gated; `scores` also where the gate does not look. `*_after`
    is what the episode spent strictly after the gate's token; the tool call of an `action` gate's own round counts
    as after it. `final` marks gates on the finishing turn.
    """

    scores: FloatArray
    tokens_after: FloatArray
    calls_after: FloatArray
    seconds_after: FloatArray
    final: NDArray[np.bool_]

    def columns(self, gates: Sequence[int]) -> GateTable:
        """The table of these gates alone."""
        chosen = list(gates)
        return GateTable(*(getattr(self, field.name)[:, chosen] for field in fields(self)))


def spending_after(run: Run, checkpoints: Sequence[str], *, gate_answers: bool) -> GateTable:
    """The table without its scores: 0 where an episode reaches a gate, NaN elsewhere."""
    shape = (len(run), len(checkpoints))
    scores, tokens, calls, seconds = (np.full(shape, np.nan) for _ in range(4))
    final = np.zeros(shape, dtype=np.bool_)
    for g, name in enumerate(checkpoints):
        if name not in run.checkpoint_names:  # nobody in this run came so far
            continue
        rows = run.rows(name)
        use = gate_answers | ~rows.final
        episode = rows.episode[use]
        scores[episode, g] = 0.0
        tokens[episode, g] = run.episodes.tokens[episode] - rows.tokens[use]
        calls[episode, g] = run.episodes.calls[episode] - rows.calls[use]
        seconds[episode, g] = run.episodes.seconds[episode] - rows.seconds[use]
        final[episode, g] = rows.final[use]
    return GateTable(scores, tokens, calls, seconds, final)


def score_run(run: Run, gates: Sequence[Gate], *, gate_answers: bool = False) -> GateTable:
    """Score all episodes of a run at these gates, by the scorer that the live cascade uses.

    Reads one gate at a time. StoreError if a layer is not stored.
    """
    table = spending_after(run, [gate.checkpoint for gate in gates], gate_answers=gate_answers)
    for g, gate in enumerate(gates):
        if gate.checkpoint not in run.checkpoint_names:
            continue
        rows = run.rows(gate.checkpoint)
        scores = gate.score(stored(run, gate.checkpoint, gate.taps, reads(gate.probe)))
        use = gate_answers | ~rows.final
        table.scores[rows.episode[use], g] = np.where(gate.looks(rows.signals), scores, np.nan)[use]
    return table


def score_episode(run: Run, index: int, cascade: Cascade) -> dict[str, float]:
    """Score at each gate that one episode of a run reaches, by checkpoint, in the order in which it reaches them.

    Gates that are off are scored too, those that do not look are left out. The bits are those of `score_run`.
    """
    episode, hidden = run.episode(index), run.hidden(index)
    gates = {gate.checkpoint: gate for gate in cascade.gates}
    earlier = EarlierStates(tap for gate in cascade.gates for tap in gate.taps)
    scores = {}
    for point, states in zip(episode.checkpoints, hidden, strict=True):
        moment = stored_moment(episode, point, dict(zip(run.layers, states, strict=True)))
        gate = gates.get(point.name)
        if gate is not None and (cascade.gate_answers or not point.final) and gate.looks([point.signals])[0]:
            scores[point.name] = float(gate.score(live(moment, gate.taps, earlier.seen, reads(gate.probe)))[0])
        earlier.note(moment)
    return scores
