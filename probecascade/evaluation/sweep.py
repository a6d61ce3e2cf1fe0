"""The sweep: every layer, checkpoint and probe of a run on shared folds, beside its baselines, and what it comes to.

Folds are of whole groups and stratified. Whatever is tuned (strength, layer, probe) is tuned without the scored fold.
Intervals resample whole groups for scores as they are and say nothing of refitting; the same resamples serve every
cell, so that differences are paired.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probecascade.errors import DataError, StoreError, UsageError
from probecascade.evaluation.baselines import BASELINES, Comparison, baseline, check_baselines
from probecascade.evaluation.crossfit import (
    MIN_CLASS,
    LayerScores,
    Reached,
    check_probes,
    folds_at,
    group_codes,
    score_layers,
    select,
    shared_folds,
    too_few,
)
from probecascade.evaluation.resample import (
    Column,
    Counts,
    Measure,
    above_chance,
    draw_groups,
    mean_column,
)
from probecascade.evaluation.sweep_result import METRICS, Row, SweepResult
from probecascade.evaluation.verdicts import verdicts
from probecascade.intervals import Resampling
from probecascade.store import Run
from probecascade.store.schema import n_layers_of, resolve_layers

Array = NDArray[np.float64]

RESAMPLES = 2000
GAINS = ("auroc", "pair_accuracy")
MIN_PAIR_GROUPS = 20
"""Groups with both outcomes that the accuracy within tasks needs to be worth a word."""


def sweep_run(run: Run, **settings: Any) -> SweepResult:
    """Sweep a run at once; the settings are those of `Sweep.of`."""
    sweep = Sweep.of(run, **settings)
    return sweep.conclude(list(sweep.measure()))


@dataclass(frozen=True, eq=False)
class Rivals:
    """The baselines of one checkpoint: their rows, those that could not be had, columns and scores by name."""

    rows: list[Row]
    absent: list[Row]
    columns: dict[str, Column]
    scores: dict[str, Array]


@dataclass(frozen=True, eq=False)
class Measured:
    """One checkpoint: its rows, and the columns that the verdict over all checkpoints needs."""

    cells: list[tuple[Row, Column]]
    rivals: Rivals
    selected: Row
    column: Column
    own_folds: bool
    scores: Array
    fold: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Sweep:
    """A sweep that has been checked and not yet run: `measure` goes through `checkpoints`, `conclude` sums up."""

    run: Run
    checkpoints: tuple[str, ...]
    skipped: tuple[Row, ...]
    layers: tuple[int, ...]
    probes: tuple[str, ...]
    baselines: tuple[str, ...]
    folds: int
    keep: float
    resampling: Resampling
    seed: int
    codes: NDArray[np.intp]
    fold_of: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        run: Run,
        *,
        checkpoints: Sequence[str] | None = None,
        layers: Sequence[int] | None = None,
        probes: Sequence[str] = ("logistic",),
        baselines: Sequence[str] = BASELINES,
        folds: int = 5,
        keep: float = 0.95,
        resampling: Resampling | None = None,
        seed: int = 0,
    ) -> Sweep:
        """Check what was asked for. `checkpoints` and `layers`: None for all that the run holds.

        Checkpoints that fewer than MIN_CLASS groups of a class reach are skipped. `resampling` of the intervals: by
        default 2,000 resamples at 95 %, by the same seed as the folds. UsageError on settings that cannot be
        right, StoreError for a checkpoint or layer that is not stored, DataError where no checkpoint is left.
        """
        if seed < 0:
            raise UsageError(f"seed is {seed}: give a whole number of at least 0.")
        if folds < 2:
            raise UsageError(f"{folds} folds were asked for: ask for two or more.")
        if not 0 < keep < 1:
            raise UsageError(f"a keep of {keep:g} was given: give a share of successes between 0 and 1, such as 0.95.")
        check_probes(probes)
        check_baselines(baselines)
        names = _checkpoints(run, checkpoints)
        kept = _layers(run, layers)
        codes = group_codes(run)
        skipped = [row for row in (too_few(Reached.of(run, name, codes)) for name in names) if row]
        left = [name for name in names if name not in {row["checkpoint"] for row in skipped}]
        if not left:
            raise DataError(
                f"none of the {len(names)} checkpoints is reached by {MIN_CLASS} groups with a failed and {MIN_CLASS} "
                "with a successful episode: extract more episodes."
            )
        labelled = run.episodes.labelled
        fold_of = np.full(int(codes.max()) + 1, -1, dtype=np.int64)
        found = shared_folds(run.episodes.failed[labelled], codes[labelled], folds, seed)
        fold_of[: len(found)] = found
        resampling = resampling or Resampling(resamples=RESAMPLES, seed=seed)
        return cls(
            run=run,
            checkpoints=tuple(left),
            skipped=tuple(skipped),
            layers=kept,
            probes=tuple(probes),
            baselines=tuple(baselines),
            folds=folds,
            keep=keep,
            resampling=resampling,
            seed=seed,
            codes=codes,
            fold_of=fold_of,
        )

    def measure(self) -> Iterator[Measured]:
        """One checkpoint after the other; of the states, one layer of one checkpoint at a time is in memory."""
        counts = draw_groups(int(self.codes.max()) + 1, self.resampling)
        known_prompts: dict[bytes, Array] = {}
        for name in self.checkpoints:
            yield self._at(Reached.of(self.run, name, self.codes), counts, known_prompts)

    def _at(self, reached: Reached, counts: Counts, known_prompts: dict[bytes, Array]) -> Measured:
        folds, shared = folds_at(reached, self.fold_of, self.folds, self.seed)
        failed, codes = reached.failed, reached.codes
        read = reached.states(self.run)
        found = {
            probe: score_layers(probe, read, self.layers, failed, codes, folds, self.seed) for probe in self.probes
        }
        selection = select(found, folds)
        measure = Measure(failed, codes, counts, self.keep)
        column = measure.column(selection.scores)
        facts = {"n": len(failed), "failed": int(failed.sum()), "closing": reached.closing}
        at = Comparison(self.run, reached, folds, self.layers, found, selection, self.seed, known_prompts)
        rivals = self._rivals(at, counts)
        gains = {name: column for name, column in rivals.columns.items() if name != "shuffled"}
        control = rivals.columns.get("shuffled")
        selected = {
            "checkpoint": reached.name,
            **facts,
            "probe": selection.probe,
            "chosen": {str(layer): count for layer, count in selection.layers.items()},
            "chosen_probes": dict(selection.probes),
            **self._metrics(measure, column),
            "gains": {
                name: {metric: self._gain(measure, column, rival, metric) for metric in GAINS}
                for name, rival in gains.items()
            },
            "selectivity": None if control is None else self._gain(measure, column, control, "auroc"),
        }
        return Measured(
            cells=list(self._cells(reached.name, found, measure, facts)),
            rivals=rivals,
            selected=selected,
            column=column,
            own_folds=not shared,
            scores=reached.spread(selection.scores, len(self.run)),
            fold=_folds_of(reached, folds, len(self.run)),
        )

    def _rivals(self, at: Comparison, counts: Counts) -> Rivals:
        reached = at.reached
        rivals = Rivals([], [], {}, {})
        for name in self.baselines:
            draws = baseline(name, at)
            if isinstance(draws, str):
                rivals.absent.append({"name": name, "checkpoint": reached.name, "reason": draws})
                continue
            measures = [Measure(draw.failed, reached.codes, counts, self.keep) for draw in draws]
            column = mean_column([m.column(draw.scores) for m, draw in zip(measures, draws, strict=True)])
            rivals.rows.append({"checkpoint": reached.name, "name": name, **self._metrics(measures[0], column)})
            rivals.columns[name] = column
            rivals.scores[name] = reached.spread(draws[0].scores, len(self.run))
        return rivals

    def _cells(
        self, name: str, found: Mapping[str, LayerScores], measure: Measure, facts: Row
    ) -> Iterator[tuple[Row, Column]]:
        for probe, of in found.items():
            for layer, scores in zip(of.layers, of.scores, strict=True):
                column = measure.column(scores)
                row = {"checkpoint": name, "layer": layer, "probe": probe, **facts}
                yield row | self._metrics(measure, column), column

    def _metrics(self, measure: Measure, column: Column) -> Row:
        return {name: measure.interval(column, name, self.resampling.confidence) for name in METRICS}

    def _gain(self, measure: Measure, column: Column, other: Column, metric: str) -> Row:
        return measure.gain(column, other, metric, self.resampling.confidence)

    def conclude(self, measured: Sequence[Measured]) -> SweepResult:
        """The result, from what `measure` gave: which rows beat chance among all that were looked at, and in words."""
        _mark_above_chance(measured, self.resampling.confidence)
        episodes = self.run.episodes
        by_name = {of.selected["checkpoint"]: of for of in measured}
        result = SweepResult(
            run=str(self.run.path),
            episodes=int(episodes.labelled.sum()),
            groups=len(np.unique(self.codes[episodes.labelled])),
            failed=int((episodes.failed & episodes.labelled).sum()),
            folds=self.folds,
            seed=self.seed,
            confidence=self.resampling.confidence,
            keep=self.keep,
            checkpoints=list(self.checkpoints),
            layers=list(self.layers),
            probes=list(self.probes),
            skipped=list(self.skipped),
            absent=[row for of in measured for row in of.rivals.absent],
            own_folds=[name for name, of in by_name.items() if of.own_folds],
            cells=[row for of in measured for row, _ in of.cells],
            baselines=[row for of in measured for row in of.rivals.rows],
            selected=[of.selected for of in measured],
            verdicts=[],
            scores={name: of.scores for name, of in by_name.items()},
            baseline_scores=_scores_of_baselines(by_name),
            fold={name: of.fold for name, of in by_name.items()},
        )
        return replace(result, verdicts=verdicts(result))


def _checkpoints(run: Run, wanted: Sequence[str] | None) -> tuple[str, ...]:
    stored = run.checkpoint_names
    if wanted is None:
        return stored
    unknown = [name for name in wanted if name not in stored]
    if unknown or not wanted:
        known = ", ".join(stored) or "none"
        raise StoreError(
            f"the checkpoints {', '.join(unknown) or 'none'} are not in {str(run.path)!r}; stored are: {known}."
        )
    return tuple(name for name in stored if name in set(wanted))


def _layers(run: Run, wanted: Sequence[int] | None) -> tuple[int, ...]:
    if wanted is None:
        return run.layers
    layers = resolve_layers(wanted, n_layers_of(run.header))
    absent = [layer for layer in layers if layer not in run.layers]
    if absent:
        raise StoreError(
            f"layers {', '.join(map(str, absent))} are not stored in {str(run.path)!r}; "
            f"stored are: {', '.join(map(str, run.layers))}."
        )
    return tuple(sorted(layers))


def _folds_of(
    reached: Reached, folds: Sequence[tuple[NDArray[np.intp], NDArray[np.intp]]], n: int
) -> NDArray[np.int64]:
    wide = np.full(n, -1, dtype=np.int64)
    for number, (_, test) in enumerate(folds):
        wide[reached.episode[test]] = number
    return wide


def _scores_of_baselines(measured: Mapping[str, Measured]) -> dict[str, dict[str, Array]]:
    """Scores by baseline and checkpoint, from what was measured by checkpoint."""
    found: dict[str, dict[str, Array]] = {}
    for checkpoint, of in measured.items():
        for name, scores in of.rivals.scores.items():
            found.setdefault(name, {})[checkpoint] = scores
    return found


def _mark_above_chance(measured: Sequence[Measured], confidence: float) -> None:
    """Set `above_chance` in all rows, and `within_above_chance` in the selected: one family, one level for it all."""
    claims: list[tuple[Row, str, str, Column]] = []
    for of in measured:
        claims += [(row, "above_chance", "auroc", column) for row, column in of.cells]
        claims.append((of.selected, "above_chance", "auroc", of.column))
        of.selected["within_above_chance"] = None
        if of.selected["pair_accuracy"]["groups"] >= MIN_PAIR_GROUPS:
            claims.append((of.selected, "within_above_chance", "pair_accuracy", of.column))
    passed = above_chance(
        [column.values[metric] for _, _, metric, column in claims],
        [column.draws[metric] for _, _, metric, column in claims],
        confidence,
    )
    for (row, key, _, _), above in zip(claims, passed, strict=True):
        row[key] = above
