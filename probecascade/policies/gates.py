"""Which checkpoints become gates when the user does not name them, and how gates get their thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np
from numpy.typing import NDArray

from probecascade.errors import DataError, UsageError
from probecascade.policies.cascade import Gate
from probecascade.policies.scoring import GateTable, spending_after
from probecascade.store import Run
from probecascade.thresholds import Calibration, needed, percent
from probecascade.thresholds.promise import counted

BoolArray = NDArray[np.bool_]

MIN_CLASS = 20
"""Episodes of each class below which nothing is set without being asked for: of the fit episodes that reach a
checkpoint, for it to become a gate of a keep target by itself, and of new ones, for `recalibrate`."""


def gates_for_recalls(run: Run, gates: Sequence[str] | None, targets: int) -> tuple[str, ...]:
    """The named gates; else the first of the run's recipe; else `action:1`, `action:2`, ..., one per target.

    UsageError if a gate is not in the run.
    """
    if gates is None:
        named = tuple(run.header.get("gates", ()))
        rounds = tuple(f"action:{r}" for r in range(1, targets + 1))
        gates = named[:targets] if len(named) >= targets else rounds
    return _stored(run, gates)


def choice_of_gates(run: Run, names: Sequence[str], *, targets: int) -> str:
    """Where gates were not named: which they are and by what rule; `targets`: of what to catch, 0 for keep alone."""
    recipe = tuple(run.header.get("gates", ()))
    chosen = ", ".join(names)
    if not targets:
        rule = f"all action and part checkpoints that {MIN_CLASS} failures and {MIN_CLASS} successes to fit on reach"
    elif len(recipe) > targets:
        rule = f"the first {targets} of" if targets > 1 else "the first of"
        rule += f" the recipe's {', '.join(recipe)}, one for each target; choose others by --gates"
    elif len(recipe) == targets:
        rule = "the recipe's"
    else:
        rule = (
            f"one round for each target, since the recipe names {len(recipe) or 'no'} gates; choose others by --gates"
        )
    return f"gates: {chosen} ({rule})"


def gates_for_keep(
    run: Run,
    gates: Sequence[str] | None,
    failed: NDArray[np.bool_],
    fit: NDArray[np.bool_],
    *,
    gate_answers: bool,
) -> tuple[str, ...]:
    """The named gates; else all `action:r` and `part:p` that enough fit episodes of both classes reach.

    failed, fit: (n_episodes,) bool. UsageError if a named gate is not in the run, DataError if none is left.
    """
    return candidate_gates(run, failed, fit, gate_answers=gate_answers) if gates is None else _stored(run, gates)


def candidate_gates(
    run: Run, failed: NDArray[np.bool_], fit: NDArray[np.bool_], *, gate_answers: bool
) -> tuple[str, ...]:
    """All `action:r` and `part:p` that at least `MIN_CLASS` fit episodes of both classes reach; DataError if none."""
    names = [name for name in run.checkpoint_names if name.split(":")[0] in ("action", "part")]
    reached = ~np.isnan(spending_after(run, names, gate_answers=gate_answers).scores[fit])
    doomed = reached[failed[fit]].sum(axis=0)
    successes = reached[~failed[fit]].sum(axis=0)
    chosen = tuple(name for name, d, s in zip(names, doomed, successes, strict=True) if min(d, s) >= MIN_CLASS)
    if not chosen:
        raise DataError(
            f"no action or part checkpoint is reached by {MIN_CLASS} failed and {MIN_CLASS} successful fit "
            f"episodes (most: {doomed.max(initial=0)}, {successes.max(initial=0)}): extract more episodes, "
            "or name the gates."
        )
    return chosen


def with_thresholds(gates: Sequence[Gate], calibration: Calibration) -> tuple[Gate, ...]:
    """The gates with the thresholds of a calibration of them, its targets, and its counts on its own episodes."""
    seen, wanted = calibration.seen, dict(calibration.targets.catch)
    renewed = []
    for g, (gate, outcome) in enumerate(zip(gates, seen.gates, strict=True)):
        target = wanted.get(g)
        renewed.append(
            replace(
                gate,
                threshold=float(calibration.thresholds[g]),
                target="" if target is None else percent(target),
                reached=target is None or outcome.caught >= needed(target, seen.doomed),
                counts={"doomed": seen.doomed, "successes": seen.successes, **asdict(outcome)},
            )
        )
    return tuple(renewed)


def order_warnings(names: Sequence[str], table: GateTable) -> list[str]:
    """A sentence for each pair of neighbouring gates that some episodes reach in the other order."""
    found = []
    for g in range(1, len(names)):
        swapped = int((table.tokens_after[:, g] > table.tokens_after[:, g - 1]).sum())
        if swapped:
            found.append(
                f"{counted(swapped, 'episode')} reach{'es' if swapped == 1 else ''} "
                f"{names[g]} before {names[g - 1]}: cumulative counts go by the "
                "order in which the gates were given."
            )
    return found


def looked_at(run: Run, gates: Sequence[Gate]) -> BoolArray:
    """(n_episodes, n_gates): whether the episode reaches the gate and the gate looks there."""
    looked = np.zeros((len(run), len(gates)), dtype=np.bool_)
    for g, gate in enumerate(gates):
        if gate.checkpoint in run.checkpoint_names:
            rows = run.rows(gate.checkpoint)
            looked[rows.episode, g] = gate.looks(rows.signals)
    return looked


def quiet_gates(run: Run, gates: Sequence[Gate], rows: BoolArray, *, of: str, gate_answers: bool = False) -> list[str]:
    """A sentence for each gate that scores none of these episodes, or too few by its trigger to be judged.

    rows: (n_episodes,) bool. of: how to call them, such as `calibration episodes`.
    """
    reached = ~np.isnan(spending_after(run, [gate.checkpoint for gate in gates], gate_answers=gate_answers).scores)
    looked = looked_at(run, gates) & reached
    found, n = [], int(rows.sum())
    for g, gate in enumerate(gates):
        came, seen = (int(of_gate[rows, g].sum()) for of_gate in (reached, looked))
        if not came:
            ending = "" if gate_answers else " with anything left to do"
            found.append(
                f"none of the {n} {of} come to {gate.checkpoint}{ending}: nothing is known of that gate, and its zeros "
                "are no result."
            )
        elif gate.trigger is not None and seen < MIN_CLASS:
            which = "none" if not seen else f"only {seen}"
            found.append(
                f"the trigger of {gate.checkpoint} ({gate.trigger}) looks at {which} of the {came} {of} that come "
                "there: too few to say what the gate does; give it a larger share."
            )
    return found


def _stored(run: Run, gates: Sequence[str]) -> tuple[str, ...]:
    for place, name in enumerate(gates):
        if name not in run.checkpoint_names:
            raise UsageError(
                f"the gate {name!r} is not in this run: choose among {', '.join(run.checkpoint_names) or 'none'}."
            )
        if name in gates[:place]:
            raise UsageError(f"the gate {name!r} was given twice: name each gate once.")
    if not gates:
        raise UsageError("no gate was given: name at least one checkpoint.")
    return tuple(gates)
