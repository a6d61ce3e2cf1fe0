"""The gates of a fitted cascade made to look less often, at the same targets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probecascade.errors import CascadeError, DataError
from probecascade.policies.cascade import Cascade, Gate
from probecascade.policies.fit import FitResult, unreached
from probecascade.policies.gates import looked_at, quiet_gates, with_thresholds
from probecascade.policies.trigger import Trigger, TriggerShare
from probecascade.store import Run
from probecascade.thresholds import GateScores, calibrate, feasibility

BoolArray = NDArray[np.bool_]


def look_less(fitted: FitResult, run: Run, wanted: TriggerShare, *, seed: int = 0) -> FitResult:
    """The fitted gates with a trigger each, and thresholds set anew on the same episodes at the same targets.

    Probes stay as they are: they were fitted on all fit episodes that reach their gate. Triggers are learnt on
    these too. Where a gate does not look, the calibration episodes have no score, which is what they have live. Which
    checkpoints are gates was settled before. `run` is the one that `fitted` comes from; `seed` is that of the
    calibration. CascadeError for another run, or gates that have triggers already; DataError where no
    gate looks at any calibration episode.
    """
    cascade, old = fitted.cascade, fitted.calibration
    if any(gate.trigger is not None for gate in cascade.gates):
        raise CascadeError("the gates have triggers already: start from the fit of gates that always look.")
    names = cascade.split_of(run.episodes.group.tolist())
    fit, certifying = (run.episodes.labelled & (names == part) for part in ("fit", "calibrate"))
    if (int(fit.sum()), int(certifying.sum())) != (len(fitted.teachers.failed), len(old.data.failed)):
        raise CascadeError("the cascade was not fitted on this run: give the run that it was fitted on.")
    gates = [replace(gate, trigger=_learn(run, gate, fit, cascade.gate_answers, wanted)) for gate in cascade.gates]
    looked = looked_at(run, gates)
    data, teachers = _masked(old.data, looked[certifying]), _masked(fitted.teachers, looked[fit])
    quiet = quiet_gates(run, gates, certifying, of="calibration episodes", gate_answers=cascade.gate_answers)
    if np.isnan(data.scores).all():
        raise DataError(f"with these triggers no gate looks at any calibration episode: {quiet[0]}")
    arrays = (data.scores, data.failed, old.groups, data.cost_after)
    options: dict[str, Any] = {
        "catch": dict(old.targets.catch) or None,
        "keep": old.targets.keep,
        "confidence": old.confidence,
        "teachers": (teachers.scores, teachers.failed, teachers.cost_after, run.episodes.group[fit]),
        "seed": seed,
    }
    prediction = None
    if fitted.prediction is not None and old.targets.keep is not None:
        likely = feasibility(*arrays, **options)
        prediction = None if likely is None else likely.sentence(old.targets.keep, old.gates)
    found = calibrate(
        *arrays, **options, unit=old.unit, method=old.method, gates=old.gates, largest_group=old.largest_group
    )
    table = tuple(replace(r, gate=g) for r, g in zip(fitted.table, with_thresholds(gates, found), strict=True))
    renewed = Cascade(
        [row.gate for row in table],
        gate_answers=cascade.gate_answers,
        promise=found.promise,
        calibration={**cascade.calibration, **found.record()},
        provenance=cascade.provenance,
    )
    past = {*old.notes, *unreached(fitted.table, old), *quiet}
    notes = [*(note for note in fitted.warnings if note not in past), *quiet]
    told = (*notes, *found.notes, *unreached(table, found))
    scored = replace(fitted.scored, scores=np.where(looked, fitted.scored.scores, np.nan))
    return FitResult(renewed, table, found, told, teachers, scored, prediction)


def _learn(run: Run, gate: Gate, fit: BoolArray, gate_answers: bool, wanted: TriggerShare) -> Trigger:
    rows = run.rows(gate.checkpoint)
    return wanted.learn(rows.signals[fit[rows.episode] & (gate_answers | ~rows.final)])


def _masked(data: GateScores, looked: BoolArray) -> GateScores:
    return replace(data, scores=np.where(looked, data.scores, np.nan))
