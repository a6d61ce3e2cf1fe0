"""Mode probes for the gates of a cascade: how an episode that a gate aborts was likely to fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probecascade.errors import DataError, UsageError
from probecascade.policies.cascade import Cascade, Gate
from probecascade.policies.taps import stored
from probecascade.probes import FittedModes, ModeFitter
from probecascade.store import Run


@dataclass(frozen=True, slots=True, eq=False)
class ModeFit:
    """The cascade with mode probes, each gate's fit by checkpoint, and what a user should know."""

    cascade: Cascade
    fits: Mapping[str, FittedModes]
    notes: tuple[str, ...]

    def record(self) -> dict[str, Any]:
        """The cross-validated numbers by checkpoint, as JSON values."""
        return {name: fitted.record() for name, fitted in self.fits.items()}


def fit_modes(cascade: Cascade, run: Run, modes: NDArray[np.object_], fitter: ModeFitter | None = None) -> ModeFit:
    """Give every gate a probe of the failure mode, fitted on the failures of the run's fit split.

    modes: (n_episodes,) str, as `evaluation.failure_modes` gives them, empty where an episode has none. Scores and
    thresholds are left as they are, so a promise is not touched. A gate where fewer than two modes are frequent
    enough gets no mode probe, and a note. The numbers go into the cascade's provenance, under "modes".
    CascadeError if the run was made with another model, UsageError for modes of another shape.
    """
    cascade.check_fits(run.header)
    if modes.shape != (len(run),):
        raise UsageError(f"{modes.size} modes were given for {len(run)} episodes: give one each, empty for successes.")
    use = (cascade.split_of(run.episodes.group.tolist()) == "fit") & run.episodes.labelled & (modes != "")
    fitter = fitter or ModeFitter()
    gates: list[Gate] = []
    fits: dict[str, FittedModes] = {}
    notes: list[str] = []
    for gate in cascade.gates:
        try:
            fitted = _fit(run, gate, modes, use, fitter, cascade.gate_answers)
        except DataError as error:
            notes.append(f"at {gate.checkpoint} aborts say no failure mode: {error}")
            gates.append(replace(gate, modes=None))
            continue
        fits[gate.checkpoint] = fitted
        notes += _said(gate.checkpoint, fitted)
        gates.append(replace(gate, modes=fitted.probe))
    record = {name: fitted.record() for name, fitted in fits.items()}
    return ModeFit(_with_gates(cascade, gates, record), fits, tuple(notes))


def _fit(
    run: Run, gate: Gate, modes: NDArray[np.object_], use: NDArray[np.bool_], fitter: ModeFitter, gate_answers: bool
) -> FittedModes:
    rows = run.rows(gate.checkpoint)
    chosen = use[rows.episode] & (gate_answers | ~rows.final)
    own = [tap for tap in gate.taps if tap[0] == gate.checkpoint]
    shown = stored(run, gate.checkpoint, own, frozenset()).take(chosen)
    episodes = rows.episode[chosen]
    given = (modes[episodes], run.episodes.group[episodes])
    if shown.states is None:
        return fitter.fit(shown.signals, *given, uses="signals")
    return fitter.fit(shown.states, *given)


def _said(checkpoint: str, fitted: FittedModes) -> list[str]:
    notes = []
    if fitted.merged:
        notes.append(f"at {checkpoint} the modes {', '.join(fitted.merged)} are too rare and count as other.")
    if fitted.left_out:
        notes.append(f"at {checkpoint} the modes {', '.join(fitted.left_out)} are too rare and are left out.")
    return notes


def _with_gates(cascade: Cascade, gates: Sequence[Gate], record: Mapping[str, Any]) -> Cascade:
    return Cascade(
        gates,
        gate_answers=cascade.gate_answers,
        promise=cascade.promise,
        calibration=cascade.calibration,
        provenance={**cascade.provenance, "modes": dict(record)},
        held_out=cascade.held_out,
    )
