"""A cascade's scores and aborts on a run, told apart by what part each episode had in making the cascade."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probecascade.intervals import DEFAULT, Resampling
from probecascade.policies import Cascade, GateTable, score_run
from probecascade.policies.provenance import group_hash
from probecascade.store import Run
from probecascade.thresholds import OFF, Backtest, GateScores, Spending, backtest
from probecascade.thresholds.firing import first_firing
from probecascade.thresholds.problem import Targets

PARTS = ("fit", "calibrate", "test")
"""What an episode's group had to do with a cascade: it fitted the probes, it set the thresholds, or neither."""

_FITTED = ("fit", "adapt")


@dataclass(frozen=True, eq=False)
class Judged:
    """All episodes of a run under a cascade, and what it does to those that took no part in it.

    gates: checkpoints, with `thresholds` (n_gates,), `OFF` where no probability reaches them, and `targets`. part:
    (n_episodes,) one of PARTS. use: the labelled ones of part `test`. table: scores and spending after each gate.
    first: (n_episodes,) index of the gate that aborts, -1 where none does. result: the back-test of `use`, None where
    it holds no episode.
    """

    gates: tuple[str, ...]
    thresholds: NDArray[np.float64]
    targets: Targets
    part: NDArray[np.object_]
    use: NDArray[np.bool_]
    table: GateTable
    first: NDArray[np.intp]
    result: Backtest | None

    @classmethod
    def of(cls, cascade: Cascade, run: Run, *, force: bool = False, resampling: Resampling = DEFAULT) -> Judged:
        """Score the run. CascadeError if it was made with another model, unless `force`; StoreError as `score_run`."""
        cascade.check_fits(run.header, force=force)
        episodes = run.episodes
        part = _parts(cascade, episodes.group)
        use = episodes.labelled & (part == "test")
        table = score_run(run, cascade.gates, gate_answers=cascade.gate_answers)
        names = tuple(gate.checkpoint for gate in cascade.gates)
        result = None
        if use.any():
            columns = {
                "tokens": (table.tokens_after, episodes.tokens),
                "calls": (table.calls_after, episodes.calls),
                "seconds": (table.seconds_after, episodes.seconds),
            }
            result = backtest(
                table.scores[use],
                cascade.thresholds,
                episodes.failed[use],
                {name: Spending(after[use], total[use].astype(np.float64)) for name, (after, total) in columns.items()},
                groups=episodes.group[use],
                final=table.final[use],
                resampling=resampling,
            )
        return cls(
            gates=names,
            thresholds=np.where([gate.never for gate in cascade.gates], OFF, cascade.thresholds),
            targets=_targets(cascade, names),
            part=part,
            use=use,
            table=table,
            first=first_firing(table.scores, cascade.thresholds, table.tokens_after),
            result=result,
        )

    def scores_of(self, failed: NDArray[np.bool_]) -> GateScores:
        """The episodes of `use`, given the labels of all, (n_episodes,)."""
        use = self.use
        return GateScores.check(self.table.scores[use], failed[use], self.table.tokens_after[use])


def _parts(cascade: Cascade, groups: NDArray[np.object_]) -> NDArray[np.object_]:
    recorded = cascade.provenance.get("groups", {})
    fitted = {name for key in _FITTED for name in recorded.get(key, ())}
    used = {name for names in recorded.values() for name in names}
    part_of: dict[Any, str] = {}
    for group in set(groups.tolist()):
        name = group_hash(group)
        part_of[group] = "fit" if name in fitted else "calibrate" if name in used else "test"
    return np.array([part_of[group] for group in groups.tolist()], dtype=object)


def _targets(cascade: Cascade, names: tuple[str, ...]) -> Targets:
    """The targets that the cascade records; none for the first cascades, which did not."""
    asked = cascade.calibration.get("targets", {})
    keep = asked.get("keep")
    catch = sorted((names.index(g), Fraction(share)) for g, share in asked.get("catch", {}).items() if g in names)
    return Targets(tuple(catch), None if keep is None else Fraction(keep))
