"""From a run to a cascade: probes on the fit episodes, thresholds on the calibration episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from probecascade.episode import LABELLED
from probecascade.errors import DataError, UsageError
from probecascade.policies.billing import Accounts, check_billing
from probecascade.policies.cascade import Cascade
from probecascade.policies.gates import (
    candidate_gates,
    gates_for_keep,
    gates_for_recalls,
    order_warnings,
    quiet_gates,
    with_thresholds,
)
from probecascade.policies.probing import FitRow, GateFit, GateFitter, ProbeSettings
from probecascade.policies.provenance import group_hashes, identity_of
from probecascade.policies.scoring import GateTable, score_run, spending_after
from probecascade.policies.survivors import held_out_scores, refit_survivors
from probecascade.probes import Fitter
from probecascade.store import SPLITS, Run, assign_split
from probecascade.store.schema import n_layers_of, resolve_layers
from probecascade.thresholds import (
    METHODS,
    Calibration,
    GateScores,
    calibrate,
    choose_gates,
    feasibility,
    match_gates,
    needed,
    parse_rising,
    parse_target,
    percent,
)
from probecascade.thresholds.problem import Unit
from probecascade.thresholds.promise import counted
from probecascade.thresholds.targets import TargetLike

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class FitResult:
    """A cascade, the table of its gates, the calibration of its thresholds, and what a user should know.

    `teachers`: out-of-fold scores of the fit episodes at the gates, which shaped the thresholds. `scored`: all
    episodes of the run at the gates, as `score_run` gives them.
    """

    cascade: Cascade
    table: tuple[FitRow, ...]
    calibration: Calibration
    warnings: tuple[str, ...]
    teachers: GateScores
    scored: GateTable
    prediction: str | None = None  # whether keep and catch together are likely to be certified, said beforehand

    @property
    def reached(self) -> bool:
        """Whether every target was reached on the calibration episodes."""
        keep, seen = self.calibration.targets.keep, self.calibration.seen
        kept = keep is None or seen.kept_count >= needed(keep, seen.successes)
        return kept and all(row.gate.reached for row in self.table)


def fit_cascade(
    run: Run,
    *,
    recalls: str | Sequence[TargetLike] | None = None,
    keep: TargetLike | None = None,
    gates: Sequence[str] | Literal["auto"] | None = None,
    max_gates: int = 3,
    layers: Sequence[int] | None = None,
    uses: Literal["states", "signals"] = "states",
    gate_answers: bool = False,
    fitter: Fitter | None = None,
    probe: ProbeSettings | None = None,
    survivors: bool = False,
    method: str = "certified",
    confidence: float = 0.95,
    unit: Unit = "episode",
    largest_group: int | None = None,
    billing: str = "tokens",
    split_seed: int = 0,
    shares: tuple[int, int, int] = (50, 25, 25),
    seed: int = 0,
) -> FitResult:
    """Fit one probe per gate and set the thresholds for cumulative recalls of failures, for a keep target, or both.

    Groups are split into fit, calibrate and test; episodes without a label are left out and counted in the
    warnings. `layers`: those to choose from by grouped cross-validation (None: all that are stored).
    `gates="auto"` takes the at most `max_gates` checkpoints (with recalls: one each) that serve the targets at
    least loss, judged on the fit episodes alone. `uses="signals"` fits the surface baseline instead. `probe`: what
    kind of probe each gate gets, and what it reads; `fitter` overrules the fitter that it names. `survivors`: each
    gate's probe is fitted once more on those fit episodes that the gates before it let through, with thresholds
    that the same targets would set on the held-out scores of the fit episodes.
    `gate_answers`: turns that finish the episode are gates too. `billing="api"` weighs the gates by what a provider
    bills, the whole prompt at every call. `method`, `confidence`, `unit` and `largest_group` are those of
    `calibrate`, whose teachers are the out-of-fold scores of the fit episodes. `seed` is that of the folds and of the
    calibration.

    UsageError without a target, or where targets and gates do not match; StoreError for layers that are not
    stored; DataError where a split holds one class only.
    """
    if seed < 0:
        raise UsageError(f"seed is {seed}: give a whole number of at least 0.")
    if method not in METHODS:
        raise UsageError(f"method is {method!r}: give one of {', '.join(METHODS)}.")
    probe = replace(probe or ProbeSettings(), uses="signals") if uses == "signals" else probe or ProbeSettings()
    probe.check()
    if recalls is None and keep is None:
        raise UsageError("neither recall targets nor a keep target was given: give one, such as a keep of 0.95.")
    data = _Labelled.of(run, split_seed, shares)
    targets = () if recalls is None else parse_rising(recalls)
    keep_target = None if keep is None else parse_target(keep, what="keep target")
    names = _gate_names(run, gates, targets, data, gate_answers=gate_answers)
    asked: dict[str, Any] = {"method": method, "confidence": confidence, "unit": unit, "keep": keep_target}
    asked |= {"largest_group": largest_group}
    _rehearse(targets, len(targets) or len(names), asked)
    tried = run.layers if layers is None else resolve_layers(layers, n_layers_of(run.header))
    fitting = GateFitter(run, probe, tried, data.fit, seed, gate_answers, fitter)
    fits = [fitting.at(name) for name in names]
    table = plain = score_run(run, [fit.row.gate for fit in fits], gate_answers=gate_answers)
    if check_billing(billing) == "api":
        table = replace(table, tokens_after=Accounts(run).billed_after(names, gate_answers=gate_answers))
    teachers = _teachers(table, data, fits)
    if gates == "auto":
        columns = list(choose_gates(teachers, targets, keep_target, max_gates=len(targets) or max_gates, seed=seed))
        fits, names = [fits[c] for c in columns], tuple(names[c] for c in columns)
        table, plain, teachers = table.columns(columns), plain.columns(columns), teachers.columns(columns)
    passed_on: list[str] = []
    if survivors:
        fits, passed_on = refit_survivors(fitting, fits, table, catch=dict(enumerate(targets)), keep=keep_target)
        table = replace(table, scores=score_run(run, [fit.row.gate for fit in fits], gate_answers=gate_answers).scores)
        teachers = _teachers(table, data, fits)
    use = data.calibrate
    arrays = (table.scores[use], data.failed[use], data.group[use], table.tokens_after[use])
    options: dict[str, Any] = {
        "catch": dict(enumerate(targets)) or None,
        "keep": keep_target,
        "confidence": confidence,
        "teachers": (teachers.scores, teachers.failed, teachers.cost_after, data.group[data.fit]),
        "seed": seed,
    }
    prediction = None
    if method == "certified" and targets and keep_target is not None:
        found = feasibility(*arrays, **options)
        prediction = None if found is None else found.sentence(keep_target, names)
    calibration = calibrate(*arrays, **options, unit=unit, method=method, gates=names, largest_group=largest_group)
    renewed = with_thresholds([fit.row.gate for fit in fits], calibration)
    rows = tuple(replace(fit.row, gate=gate) for fit, gate in zip(fits, renewed, strict=True))
    cascade = Cascade(
        [row.gate for row in rows],
        gate_answers=gate_answers,
        promise=calibration.promise,
        calibration={**calibration.record(), "billing": billing},
        provenance={
            **_provenance(run, data, split_seed, shares, probe.uses),
            "probe": probe.record() | ({"survivors": True} if survivors else {}),
        },
    )
    notes = [
        *data.warnings,
        *passed_on,
        # Of catch targets the calibration itself says what another order does to them.
        *([] if targets else order_warnings(names, table)),
        *quiet_gates(
            run, [row.gate for row in rows], data.calibrate, of="calibration episodes", gate_answers=gate_answers
        ),
        *calibration.notes,
        *unreached(rows, calibration),
    ]
    scored = replace(plain, scores=table.scores)
    return FitResult(cascade, rows, calibration, tuple(notes), teachers, scored, prediction)


def check_fittable(run: Run, split_seed: int, shares: tuple[int, int, int]) -> None:
    """DataError where a run holds too little for its own gates, or for every round where it names none.

    Each class must be in the fit and in the calibrate split. Fit episodes of two groups of each must reach every gate
    that is named; where none is, some checkpoint must be one that enough fit episodes of both classes reach.
    """
    data = _Labelled.of(run, split_seed, shares)
    names = tuple(run.header.get("gates", ()))
    if not names:
        candidate_gates(run, data.failed, data.fit, gate_answers=False)
        return
    reached = ~np.isnan(spending_after(run, names, gate_answers=False).scores)
    for g, name in enumerate(names):
        for kind, of_kind in (("failed", data.failed), ("successful", ~data.failed)):
            groups = len(set(data.group[data.fit & of_kind & reached[:, g]].tolist()))
            if groups < 2:
                raise DataError(
                    f"{name} is reached by {kind} fit episodes of {counted(groups, 'group')}, and 2 are needed: "
                    "extract more groups."
                )


def _gate_names(
    run: Run,
    gates: Sequence[str] | Literal["auto"] | None,
    targets: tuple[Fraction, ...],
    data: _Labelled,
    *,
    gate_answers: bool,
) -> tuple[str, ...]:
    if gates == "auto":
        return candidate_gates(run, data.failed, data.fit, gate_answers=gate_answers)
    if not targets:
        return gates_for_keep(run, gates, data.failed, data.fit, gate_answers=gate_answers)
    names = gates_for_recalls(run, gates, len(targets))
    match_gates(targets, names)
    return names


@dataclass(frozen=True, slots=True, eq=False)
class _Labelled:
    """Labels and splits of a run's episodes; `fit` and `calibrate` mark labelled episodes only."""

    failed: BoolArray
    group: NDArray[np.object_]
    fit: BoolArray
    calibrate: BoolArray
    warnings: tuple[str, ...]

    @classmethod
    def of(cls, run: Run, split_seed: int, shares: tuple[int, int, int]) -> _Labelled:
        episodes = run.episodes
        split = assign_split(episodes.group.tolist(), seed=split_seed, shares=shares)
        parts = {name: episodes.labelled & (split == name) for name in SPLITS}
        for name in ("fit", "calibrate"):
            doomed = int((parts[name] & episodes.failed).sum())
            successes = int((parts[name] & ~episodes.failed).sum())
            if not doomed or not successes:
                raise DataError(
                    f"the {name} split holds {doomed} failed and {successes} successful episodes: both are "
                    "needed, so extract more groups or change the split's shares or seed."
                )
        return cls(episodes.failed, episodes.group, parts["fit"], parts["calibrate"], _left_out(run))


def _left_out(run: Run) -> tuple[str, ...]:
    counts = Counter(outcome for outcome in run.episodes.outcome.tolist() if outcome not in LABELLED)
    if not counts:
        return ()
    kinds = ", ".join(f"{n} {outcome}" for outcome, n in sorted(counts.items()))
    return (f"{counts.total()} of {len(run)} episodes have no label and are left out ({kinds}).",)


def _rehearse(targets: tuple[Fraction, ...], gates: int, asked: Mapping[str, Any]) -> None:
    """UsageError for targets and settings that cannot go together, found on invented scores before any is fitted."""
    failed = np.arange(8) % 2 == 0
    calibrate(np.where(failed, 0.75, 0.25)[:, None].repeat(gates, 1), failed, catch=dict(enumerate(targets)), **asked)


def _teachers(table: GateTable, data: _Labelled, fits: Sequence[GateFit]) -> GateScores:
    """Held-out scores of the fit episodes: they may shape the allocation, having set no threshold."""
    scores = held_out_scores(table, fits, data.fit)
    return GateScores.check(scores[data.fit], data.failed[data.fit], table.tokens_after[data.fit])


def unreached(rows: Sequence[FitRow], calibration: Calibration) -> list[str]:
    """A sentence for each gate whose target the calibration episodes did not allow, or one where all gates are off."""
    if all(row.gate.never for row in rows):
        return [_all_off(calibration)]
    return [
        f"{row.gate.target} of the failures are not caught by {row.gate.checkpoint} on the calibration episodes: "
        f"{row.gate.counts['caught']} of {row.gate.counts['doomed']} are."
        for row in rows
        if not row.gate.reached
    ]


def _all_off(calibration: Calibration) -> str:
    """Why no gate can fire, and what that does not say."""
    keep, seen = calibration.targets.keep, calibration.seen
    lacking = [c for c in calibration.certificates if c.kind == "keep" and not c.certified and c.missing]
    if keep is not None and lacking:
        why = (
            f"by the method {calibration.method} no threshold can be set that keeps {percent(keep)}, for "
            f"{counted(seen.successes, 'calibration success')} are too few (see the promise for how many more)"
        )
    else:
        why = f"no threshold serves these targets on the {seen.doomed + seen.successes} calibration episodes"
    return f"{why}: all gates are off. That says nothing of how well they rank episodes, which their AUROC does."


def _provenance(run: Run, data: _Labelled, split_seed: int, shares: tuple[int, int, int], uses: str) -> dict[str, Any]:
    return {
        "run": identity_of(run.header),
        "uses": uses,
        "split": {"seed": split_seed, "shares": list(shares)},
        "episodes": {"fit": int(data.fit.sum()), "calibrate": int(data.calibrate.sum())},
        "groups": {
            "fit": group_hashes(data.group[data.fit].tolist()),
            "calibrate": group_hashes(data.group[data.calibrate].tolist()),
        },
    }
