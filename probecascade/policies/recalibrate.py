"""New thresholds for an old cascade, from newly labelled episodes; its probes stay as they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probecascade.episode import LABELLED
from probecascade.errors import DataError, NothingToDoError, UsageError
from probecascade.intervals import DEFAULT, Resampling
from probecascade.policies.cascade import Cascade
from probecascade.policies.explore import Coin, explored_episodes, stopped_episodes
from probecascade.policies.gates import MIN_CLASS, order_warnings, with_thresholds
from probecascade.policies.provenance import group_hashes, overlap
from probecascade.policies.scoring import GateTable, score_run
from probecascade.store import Run
from probecascade.thresholds import (
    OFF,
    Backtest,
    Calibration,
    Spending,
    backtest,
    calibrate,
    match_gates,
    parse_rising,
    percent,
)
from probecascade.thresholds.promise import counted
from probecascade.thresholds.targets import TargetLike


@dataclass(frozen=True, slots=True)
class Recalibration:
    """The cascade with its new thresholds, the calibration behind them, and what a user should know.

    `before` and `after` are the old and the new thresholds on the same new episodes. These shaped nothing of the
    old ones, so that `before` says whether they still held; they set the new ones, which `after` flatters.
    """

    cascade: Cascade
    calibration: Calibration
    before: Backtest
    after: Backtest
    warnings: tuple[str, ...]


def recalibrate(
    cascade: Cascade,
    run: Run,
    *,
    recalls: str | Sequence[TargetLike] | None = None,
    keep: TargetLike | None = None,
    method: str | None = None,
    confidence: float | None = None,
    seed: int = 0,
    force: bool = False,
) -> Recalibration:
    """Set the thresholds of `cascade` anew on the labelled episodes of a new run.

    `recalls` (one per gate, gates that are off included) and `keep` replace the stored targets together; `method`
    and `confidence` are those of `calibrate`. What is not given is as the cascade stores it. `seed` is that of the
    calibration. Of a run whose policy stopped episodes only those are used that its exploration chose before they
    began: the others that ended by themselves are the ones that no gate fired on, and no fair sample. With fewer than
    20 failures or 20 successes left, thresholds would be little more than chance: `force` sets them all the same.

    CascadeError if the run was made with another model; DataError if a group shaped the cascade, or stopped
    episodes were not explored; or too few episodes of a class are left without `force`; UsageError on targets
    that cannot be right, or none; NothingToDoError if no labelled episode is left.
    """
    cascade.check_fits(run.header)
    catch, wanted_keep = _targets(cascade, recalls, keep)
    stored = cascade.calibration
    sample = _Sample.of(cascade, run)
    rows, episodes = sample.rows, run.episodes
    if not force:
        _check_enough(sample, episodes.failed[rows])
    table = score_run(run, cascade.gates, gate_answers=cascade.gate_answers)
    calibration = calibrate(
        table.scores[rows],
        episodes.failed[rows],
        episodes.group[rows],
        table.tokens_after[rows],
        catch=catch,
        keep=wanted_keep,
        confidence=stored.get("confidence", 0.95) if confidence is None else confidence,
        unit=stored.get("unit", "episode"),
        method=method or stored.get("method", "certified"),
        largest_group=stored.get("largest_group"),
        seed=seed,
        ids=episodes.episode_id[rows],
        gates=[gate.checkpoint for gate in cascade.gates],
    )
    renewed = Cascade(
        with_thresholds(cascade.gates, calibration),
        gate_answers=cascade.gate_answers,
        promise=calibration.promise,
        calibration=calibration.record(),
        provenance=_provenance(cascade, run, sample),
    )
    notes = [
        *_lost_promise(stored, calibration.record()),
        *sample.notes,
        *([] if catch else order_warnings([gate.checkpoint for gate in cascade.gates], table)),
        *calibration.notes,
    ]
    return Recalibration(
        renewed,
        calibration,
        before=judged(cascade, run, table, rows),
        after=judged(renewed, run, table, rows),
        warnings=tuple(notes),
    )


def _targets(
    cascade: Cascade, recalls: str | Sequence[TargetLike] | None, keep: TargetLike | None
) -> tuple[Mapping[int, TargetLike] | None, TargetLike | None]:
    """Catch targets by gate, and the keep target: those given, or else those stored."""
    names = [gate.checkpoint for gate in cascade.gates]
    if recalls is not None:
        targets = parse_rising(recalls)
        match_gates(targets, names)
        return dict(enumerate(targets)), keep
    if keep is not None:
        return None, keep
    stored = cascade.calibration.get("targets")
    if not stored:
        raise UsageError("the cascade stores no targets: give recall targets, a keep target such as 0.95, or both.")
    return {names.index(name): share for name, share in stored["catch"].items()} or None, stored["keep"]


@dataclass(frozen=True, slots=True, eq=False)
class _Sample:
    """The labelled episodes that may set thresholds, (n_episodes,) bool, and whose coin chose them, if any."""

    rows: NDArray[np.bool_]
    coin: Coin | None
    notes: tuple[str, ...]

    @classmethod
    def of(cls, cascade: Cascade, run: Run) -> _Sample:
        """Without the groups that adapted the cascade to this very run, which the others may follow.

        DataError where stopped episodes make the others an unfair sample, or further groups shaped the cascade.
        """
        episodes = run.episodes
        stopped = stopped_episodes(run)
        fair, coin, notes = np.ones(len(run), dtype=np.bool_), None, []
        if stopped.any():
            coin, fair = _explored(run, stopped)
            notes.append(
                f"{int(stopped.sum())} of {len(run)} episodes were stopped: only the {int(fair.sum())} that "
                f"exploration chose before they began ({percent(coin.share)} of the tasks) are used."
            )
        lost = Counter(outcome for outcome in episodes.outcome[fair].tolist() if outcome not in LABELLED)
        if lost:
            kinds = ", ".join(f"{n} {outcome}" for outcome, n in sorted(lost.items()))
            notes.append(f"{lost.total()} of {int(fair.sum())} episodes have no label and are left out ({kinds}).")
        rows: NDArray[np.bool_] = fair & episodes.labelled
        own = overlap({"groups": {"adapt": cascade.provenance.get("groups", {}).get("adapt", ())}}, episodes.group)
        adapting = rows & np.isin(episodes.group, own)
        if adapting.any():
            notes.append(f"{int(adapting.sum())} episodes are of groups that adapted the cascade and are left out.")
            rows &= ~adapting
        if not rows.any():
            raise NothingToDoError("the run holds no labelled episode that may set thresholds: record more of them.")
        seen = cascade.overlap(episodes.group[rows].tolist())
        if seen:
            raise DataError(
                f"{len(seen)} groups of these episodes (first: {seen[0]!r}) shaped the cascade already: "
                "recalibrate on episodes of fresh groups."
            )
        return cls(rows, coin, tuple(notes))


def _explored(run: Run, stopped: NDArray[np.bool_]) -> tuple[Coin, NDArray[np.bool_]]:
    """The run's coin, and the episodes that it let run to their end, (n_episodes,) bool."""
    coin = Coin.recorded(run.header)
    if coin is None:
        raise DataError(
            f"{int(stopped.sum())} of {len(run)} episodes of this run were stopped and no random share was let "
            "through, so those that ended by themselves are no fair sample: record a run with --explore or --shadow."
        )
    return coin, explored_episodes(run, coin)


def _check_enough(sample: _Sample, failed: NDArray[np.bool_]) -> None:
    """DataError where `failed`, of the labelled episodes that may set thresholds, holds too few of a class."""
    counts = (int(failed.sum()), int((~failed).sum()))
    if min(counts) >= MIN_CLASS:
        return
    share = 1.0 if sample.coin is None else float(sample.coin.share)
    rarest = min(counts)
    # Where none was seen the share of its class is unknown, and below one in as many as were seen.
    wanted = int(np.ceil(MIN_CLASS / (max(rarest, 1) / len(failed)) / share))
    at = "" if sample.coin is None else f" at the exploration share of {percent(sample.coin.share)}"
    raise DataError(
        f"{counted(counts[0], 'failure')} and {counted(counts[1], 'success')} with a label are too few "
        f"to set thresholds by: {MIN_CLASS} of each are needed, {'about' if rarest else 'more than'} {wanted} live "
        f"episodes{at}; record more of them, or force it (--force) and expect thresholds that are little but chance."
    )


def _lost_promise(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """A warning where the old thresholds came with a promise that the new ones come without."""
    had, has = (sum(c["certified"] for c in record.get("certificates", ())) for record in (old, new))
    if not (had and not has) and not (old.get("certified") and not new["certified"]):
        return []
    return [
        "WARNING, THE PROMISE IS LOST: the old thresholds were certified, and the new ones promise "
        f"{'less' if has else 'nothing'} for new episodes. Keep the old cascade unless these episodes show that it "
        "fails, or record more of them."
    ]


def judged(
    cascade: Cascade, run: Run, table: GateTable, rows: NDArray[np.bool_], resampling: Resampling = DEFAULT
) -> Backtest:
    """What the cascade's thresholds do to these labelled episodes, (n_episodes,) bool, scored in `table`."""
    episodes = run.episodes
    return backtest(
        table.scores[rows],
        cascade.thresholds,
        episodes.failed[rows],
        {"tokens": Spending(table.tokens_after[rows], episodes.tokens[rows].astype(np.float64))},
        groups=episodes.group[rows],
        final=table.final[rows],
        resampling=resampling,
    )


def _provenance(cascade: Cascade, run: Run, sample: _Sample) -> dict[str, Any]:
    """That of the old cascade, with the groups that set the new thresholds beside those that set the old ones."""
    old = cascade.provenance
    groups = old.get("groups", {})
    earlier = {*groups.get("earlier", ()), *groups.get("calibrate", ())}
    n = int(sample.rows.sum())
    entry = {
        "episodes": n,
        "exploration": None if sample.coin is None else sample.coin.record(),
        "replaced": {
            "promise": cascade.promise,
            "thresholds": [None if value == OFF else float(value) for value in cascade.thresholds],
        },
    }
    return {
        **old,
        "episodes": {**old.get("episodes", {}), "calibrate": n},
        "groups": {
            **groups,
            "calibrate": group_hashes(run.episodes.group[sample.rows].tolist()),
            "earlier": sorted(earlier),
        },
        "recalibrated": [*old.get("recalibrated", ()), entry],
    }
