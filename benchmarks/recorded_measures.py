"""What `recorded_runs.py` measures of a run that was read: AUROC by round, tokens saved, transfer between agents.

Everything is a dict of JSON values. What too few episodes allow is a row with a `reason` instead of numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from probecascade.cli.progress import progress
from probecascade.cli.tables import interval_record
from probecascade.errors import DataError, ProbecascadeError, UsageError
from probecascade.evaluation import PooledRuns, Sweep, SweepResult, backtest_run, transfer_matrix
from probecascade.evaluation.crossfit import Reached, group_codes
from probecascade.evaluation.resample import Measure, draw_groups, interval_of, mean_column
from probecascade.intervals import Resampling
from probecascade.policies import FitResult, fit_cascade
from probecascade.store import Run

Row = dict[str, Any]
Uses = Literal["states", "signals"]

LEAST = 30
"""Failed and successful episodes that a checkpoint needs."""
BASELINES = ("prompt", "surface", "tfidf")
KEEP = "0.95"
SHARES = (34, 33, 33)
"""Of the groups: to fit probes, to set thresholds, to be judged."""

_KINDS = ("action", "observation")
_LEAST_OF_AGENT = 10
_FIRST_TURNS = 3
_TRANSFERRED = 2  # rounds: from the third on most agents have too few runs left


# AUROC by round ------------------------------------------------------------------------------------------------------


def places(run: Run) -> Iterator[Row]:
    """The checkpoints by round, with the episodes that reach them and go on; ends with the first round too small.

    {checkpoint, n, failed} and, where a class has fewer than `LEAST` episodes, a reason.
    """
    for number in count(0):
        names = ("prompt",) if number == 0 else tuple(f"{kind}:{number}" for kind in _KINDS)
        rows = [_place(run, name) for name in names if name in run.checkpoint_names]
        yield from rows
        if all("reason" in row for row in rows):
            return


def _place(run: Run, name: str) -> Row:
    reached = Reached.of(run, name, group_codes(run))
    n, failed = len(reached), int(reached.failed.sum())
    row: Row = {"checkpoint": name, "n": n, "failed": failed}
    if reached.closing:
        return row | {"reason": "every run ends with this turn"}
    if min(failed, n - failed) < LEAST:
        return row | {"reason": f"{failed} failed and {n - failed} successful runs, {LEAST} of each are needed"}
    return row


def by_round(run: Run, folder: Path, seed: int) -> tuple[list[Row], list[str]]:
    """A row per checkpoint and what it comes to, in sentences. The sweep is kept in `folder` and read from there."""
    rows = list(places(run))
    named = [row["checkpoint"] for row in rows if "reason" not in row]
    if not named:
        return rows, ["Too few runs of a class for any number."]
    try:
        result = _swept(run, named, folder, seed)
    except ProbecascadeError as error:
        return [row | {"reason": row.get("reason", str(error))} for row in rows], [str(error)]
    skipped = {row["checkpoint"]: row["reason"] for row in result.skipped}
    found = {row["checkpoint"]: row for row in result.selected}
    rivals = {(row["checkpoint"], row["name"]): row["auroc"] for row in result.baselines}
    measured = []
    for row in rows:
        name = row["checkpoint"]
        if name not in found:
            measured.append(row | {"reason": row.get("reason") or skipped[name]})
            continue
        own = found[name]
        measured.append(
            row
            | {key: own[key] for key in ("auroc", "pair_accuracy", "above_chance", "within_above_chance", "chosen")}
            | {rival: rivals.get((name, rival)) for rival in BASELINES}
            | {"same_agent": _same_agent(run, result.scores[name], seed)}
        )
    return measured, result.verdicts


def _swept(run: Run, names: Sequence[str], folder: Path, seed: int) -> SweepResult:
    if folder.exists():
        return SweepResult.load(folder)
    sweep = Sweep.of(run, checkpoints=names, baselines=BASELINES, keep=float(KEEP), seed=seed)
    result = sweep.conclude(list(progress(sweep.measure(), len(sweep.checkpoints), "sweep", unit="checkpoint")))
    result.save(folder)
    return result


def _same_agent(run: Run, scores: NDArray[np.float64], seed: int) -> Row | None:
    """Mean AUROC among the runs of one agent (and trial), since agents that fail more may be recognised as such.

    None where all runs are of one agent, or no agent has enough of both classes.
    """
    agents = [_attribute(run, name) for name in ("model", "trial")]
    told = np.array([" ".join(map(str, pair)) for pair in zip(*agents, strict=True)])
    if len(set(told)) < 2:
        return None
    codes, failed, resampling = group_codes(run), run.episodes.failed, Resampling(seed=seed)
    counts = draw_groups(int(codes.max()) + 1, resampling)
    columns = []
    for agent in sorted(set(told)):
        use = (told == agent) & np.isfinite(scores)
        if min((failed & use).sum(), (~failed & use).sum()) >= _LEAST_OF_AGENT:
            columns.append(Measure(failed[use], codes[use], counts, float(KEEP)).column(scores[use]))
    if not columns:
        return None
    mean = mean_column(columns)
    return interval_of(mean.values["auroc"], mean.draws["auroc"], resampling.confidence) | {"agents": len(columns)}


def _attribute(run: Run, name: str) -> NDArray[np.object_]:
    try:
        return run.attributes(name)
    except UsageError:  # no episode has it
        return np.full(len(run), "", dtype=object)


def length_alone(run: Run, seed: int) -> Row | None:
    """AUROC of the number of rounds of the whole run, which is known only at its end; None for one class."""
    use = run.episodes.labelled
    failed = run.episodes.failed[use]
    if failed.all() or not failed.any():
        return None
    codes, resampling = group_codes(run), Resampling(seed=seed)
    measure = Measure(failed, codes[use], draw_groups(int(codes.max()) + 1, resampling), float(KEEP))
    rounds = run.episodes.rounds[use]
    column = measure.column(rounds / rounds.max())  # metrics are of numbers in [0, 1], and only their order counts
    return measure.interval(column, "auroc", resampling.confidence)


# Tokens saved --------------------------------------------------------------------------------------------------------


def saved(run: Run, uses: Uses, seed: int) -> Row:
    """What a cascade that keeps `KEEP` of the successes does to the held-out third of the groups.

    Certified where the calibration third allows it; otherwise the empirical thresholds, with what a certificate lacks.
    """
    try:
        found = _fitted(run, uses, "certified", seed)
        lacking = "" if found.calibration.certified else found.calibration.promise
        if lacking:
            found = _fitted(run, uses, "empirical", seed)
        result = backtest_run(found.cascade, run, "test", resampling=Resampling(seed=seed))
    except ProbecascadeError as error:
        return {"uses": uses, "reason": str(error)}
    tokens = result.saved["tokens"]
    return {
        "uses": uses,
        "certified": not lacking,
        "lacking": lacking,
        "gates": [gate.checkpoint for gate in found.cascade.gates if not gate.never],
        "doomed": result.doomed,
        "successes": result.successes,
        "caught": interval_record(result.caught),
        "kept": interval_record(result.kept),
        "saved": interval_record(tokens.share),
        "saved_of_failures": interval_record(tokens.doomed_share),
    }


def _fitted(run: Run, uses: Uses, method: str, seed: int) -> FitResult:
    """Gates are chosen on the fit third; where it is too small to choose, they are the first turns of the tables."""
    options: Any = {"keep": KEEP, "uses": uses, "method": method, "shares": SHARES, "seed": seed}
    try:
        return fit_cascade(run, gates="auto", **options)
    except DataError:
        turns = [row["checkpoint"] for row in places(run) if "reason" not in row]
        turns = [name for name in turns if name.startswith("action:")][:_FIRST_TURNS]
        if not turns:
            raise
        return fit_cascade(run, gates=turns, **options)


# Transfer ------------------------------------------------------------------------------------------------------------


def transfer(runs: Sequence[Run], by: str, seed: int) -> Iterator[Row]:
    """Train on the runs of one agent (`model`) or file (`run`), test on those of another, on groups of other folds.

    One matrix per checkpoint, or a reason. Nothing where there is only one kind.
    """
    try:
        pool = PooledRuns(runs)
        kinds = pool.by_value(by)
    except UsageError:  # no episode has the attribute
        return
    if len(kinds) < 2:
        return
    shared = shared_groups(pool, kinds)
    for number in range(1, _TRANSFERRED + 1):
        for name in (f"{kind}:{number}" for kind in _KINDS):
            if name not in pool.checkpoint_names:
                continue
            row: Row = {"by": by, "runs": [run.path.name for run in runs], "checkpoint": name, "shared": shared}
            try:
                options: Any = {"mixtures": False, "seed": seed, "resampling": Resampling(seed=seed)}
                matrix = transfer_matrix(pool, kinds, name, **options)
            except ProbecascadeError as error:
                yield row | {"reason": str(error)}
                continue
            yield row | {"matrix": matrix.record(), "verdict": matrix.verdict()}


def shared_groups(pool: PooledRuns, kinds: Mapping[str, NDArray[np.bool_]]) -> float:
    """The share of the groups that more than one kind has run."""
    having = [set(pool.codes[mask].tolist()) for mask in kinds.values()]
    every = set().union(*having)
    return sum(sum(code in codes for codes in having) > 1 for code in every) / len(every)
