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
from probecascade.policies.cascade import Cascade, Gate
from probecascade.policies.gates import gates_for_keep, gates_for_recalls, order_warnings
from probecascade.policies.provenance import group_hashes, identity_of
from probecascade.policies.scoring import GateTable, score_run
from probecascade.probes import FittedProbe, LogisticFitter, choose_layer, fit_surface
from probecascade.store import SPLITS, Run, assign_split
from probecascade.store.schema import n_layers_of, resolve_layers
from probecascade.thresholds import (
    OFF,
    GateScores,
    KeepResult,
    SequentialResult,
    keep_thresholds,
    match_gates,
    parse_rising,
    parse_target,
    percent,
    promise,
    recall_thresholds,
)
from probecascade.thresholds.targets import TargetLike

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class FitRow:
    """One gate as it was fitted: its probe's cross-validation, and its threshold on the calibration episodes.

    `auroc` is grouped and cross-validated on the fit episodes; `layers` maps every layer tried to its own.
    """

    gate: Gate
    auroc: float
    layers: Mapping[int, float]
    strength: float
    folds: int
    fit_doomed: int
    fit_successes: int


@dataclass(frozen=True, slots=True)
class FitResult:
    """A cascade, the table of its gates, the counts behind its thresholds, and what a user should know."""

    cascade: Cascade
    table: tuple[FitRow, ...]
    thresholds: SequentialResult | KeepResult
    warnings: tuple[str, ...]

    @property
    def reached(self) -> bool:
        """Whether every target was reached on the calibration episodes."""
        return all(row.gate.reached for row in self.table)


def fit_cascade(
    run: Run,
    *,
    recalls: str | Sequence[TargetLike] | None = None,
    keep: TargetLike | None = None,
    gates: Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
    uses: Literal["states", "signals"] = "states",
    gate_answers: bool = False,
    fitter: LogisticFitter | None = None,
    split_seed: int = 0,
    shares: tuple[int, int, int] = (50, 25, 25),
    seed: int = 0,
) -> FitResult:
    """Fit one probe per gate and set the thresholds for cumulative recalls, or for a keep target.

    Groups are split into fit, calibrate and test; episodes without a label are left out and counted in the
    warnings. `layers`: those to choose from by grouped cross-validation (None: all that are stored).
    `uses="signals"` fits the surface baseline instead. `gate_answers`: turns that finish the episode are
    gates too. `seed` is that of the default fitter's folds.

    UsageError unless exactly one of recalls and keep is given, or where targets and gates do not match;
    StoreError for layers that are not stored; DataError where a split holds one class only.
    """
    if (recalls is None) == (keep is None):
        raise UsageError(
            "give recall targets or a keep target, not both: no certified combination of them is available."
            if keep is not None
            else "neither recall targets nor a keep target was given: give one, such as a keep of 0.95."
        )
    data = _Labelled.of(run, split_seed, shares)
    targets = None if recalls is None else parse_rising(recalls)
    keep_target = None if keep is None else parse_target(keep, what="keep target")
    if targets is not None:
        names = gates_for_recalls(run, gates, len(targets))
        match_gates(targets, names)
    else:
        names = gates_for_keep(run, gates, data.failed, data.fit, gate_answers=gate_answers)
    tried = run.layers if layers is None else resolve_layers(layers, n_layers_of(run.header))
    fitter = fitter or LogisticFitter(seed=seed)
    fits = [_fit_gate(run, name, data, None if uses == "signals" else tried, fitter, gate_answers) for name in names]
    table = score_run(run, [fit.row.gate for fit in fits], gate_answers=gate_answers)
    result = _thresholds(table, data, fits, targets, keep_target)
    rows = _rows(fits, result)
    cascade = Cascade(
        [row.gate for row in rows],
        gate_answers=gate_answers,
        promise=promise(result, names),
        provenance=_provenance(run, data, split_seed, shares, uses),
    )
    notes = [*data.warnings, *order_warnings(names, table), *_unreached(result, names)]
    return FitResult(cascade, rows, result, tuple(notes))


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


@dataclass(frozen=True, slots=True, eq=False)
class _GateFit:
    """A gate still without threshold, its fit, and the run's episodes that it was fitted on."""

    row: FitRow
    episodes: NDArray[np.int64]
    out_of_fold: NDArray[np.float64]


def _fit_gate(
    run: Run,
    name: str,
    data: _Labelled,
    layers: Sequence[int] | None,
    fitter: LogisticFitter,
    gate_answers: bool,
) -> _GateFit:
    rows = run.rows(name)
    use = data.fit[rows.episode] & (gate_answers | ~rows.final)
    episodes = rows.episode[use]
    failed = data.failed[episodes]
    groups = data.group[episodes]
    layer: int | None = None
    tried: Mapping[int, float] = {}
    fitted: FittedProbe
    try:
        if layers is None:
            fitted = fit_surface(rows.signals[use], failed, groups, fitter)
        else:
            choice = choose_layer(lambda k: run.states(name, k)[use], layers, failed, groups, fitter)
            layer, fitted, tried = choice.layer, choice.fitted, choice.table
    except DataError as error:
        raise DataError(f"no probe can be fitted at {name}: {error}") from error
    row = FitRow(
        gate=Gate(name, layer, fitted.probe, OFF),
        auroc=fitted.auroc,
        layers=tried,
        strength=fitted.strength,
        folds=fitted.folds,
        fit_doomed=int(failed.sum()),
        fit_successes=int((~failed).sum()),
    )
    return _GateFit(row, episodes, fitted.out_of_fold)


def _thresholds(
    table: GateTable,
    data: _Labelled,
    fits: Sequence[_GateFit],
    targets: tuple[Fraction, ...] | None,
    keep: Fraction | None,
) -> SequentialResult | KeepResult:
    scores, failed = table.scores[data.calibrate], data.failed[data.calibrate]
    if targets is not None:
        return recall_thresholds(scores, failed, targets)
    assert keep is not None
    return keep_thresholds(
        scores, failed, table.tokens_after[data.calibrate], keep, teachers=_teachers(table, data, fits)
    )


def _teachers(table: GateTable, data: _Labelled, fits: Sequence[_GateFit]) -> GateScores:
    """Out-of-fold scores of the fit episodes: they may shape the allocation, having set no threshold."""
    scores = np.full_like(table.scores, np.nan)
    for g, fit in enumerate(fits):
        scores[fit.episodes, g] = fit.out_of_fold
    return GateScores.check(scores[data.fit], data.failed[data.fit], table.tokens_after[data.fit])


def _rows(fits: Sequence[_GateFit], result: SequentialResult | KeepResult) -> tuple[FitRow, ...]:
    rows = []
    for g, fit in enumerate(fits):
        counts = {"doomed": result.doomed, "successes": result.successes}
        if isinstance(result, SequentialResult):
            set_gate = result.gates[g]
            target, reached = percent(set_gate.target), set_gate.reached
            counts |= {
                "alive_doomed": set_gate.alive_doomed,
                "alive_successes": set_gate.alive_successes,
                "fired_doomed": set_gate.fired_doomed,
                "fired_successes": set_gate.fired_successes,
                "caught": set_gate.caught,
            }
        else:
            target, reached = "", True
            counts |= {"fired_doomed": result.fired_doomed[g], "fired_successes": result.fired_successes[g]}
        gate = replace(
            fit.row.gate, threshold=float(result.thresholds[g]), target=target, reached=reached, counts=counts
        )
        rows.append(replace(fit.row, gate=gate))
    return tuple(rows)


def _unreached(result: SequentialResult | KeepResult, names: Sequence[str]) -> list[str]:
    if isinstance(result, KeepResult):
        return [] if np.isfinite(result.thresholds).any() else ["no gate tells failures from successes: all are off."]
    return [
        f"{percent(gate.target)} of the failures cannot be caught by {name}: the most within reach on the "
        f"calibration episodes is {gate.caught} of {gate.doomed}."
        for gate, name in zip(result.gates, names, strict=True)
        if not gate.reached
    ]


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
