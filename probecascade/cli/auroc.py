"""The part of a sweep that `quickstart` shows: AUROC by checkpoint, beside prompt-only and surface probes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probecascade.errors import StoreError
from probecascade.evaluation import Resampling, Sweep
from probecascade.evaluation.crossfit import reached_by_enough
from probecascade.evaluation.sweep import Measured
from probecascade.probes import Interval
from probecascade.store import Run

_RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class CheckpointAuroc:
    """AUROC of three probes on the same episodes, and by how much the first beats the others.

    Every score comes from a probe whose strength and layer were chosen without the scored group. `closing`: the
    checkpoint stands on the turn that finishes the episode, where nothing is left to save.
    """

    checkpoint: str
    closing: bool
    probe: Interval
    prompt: Interval
    surface: Interval
    over_prompt: Interval
    over_surface: Interval


def worthwhile(run: Run, names: Sequence[str]) -> tuple[str, ...]:
    """Those of the checkpoints that enough groups with a failure and enough with a success reach."""
    return reached_by_enough(run, [name for name in names if name in run.checkpoint_names])


def auroc_by_checkpoint(run: Run, names: Sequence[str], *, seed: int = 0) -> Iterator[CheckpointAuroc]:
    """Sweep these checkpoints of a run, one at a time, over all labelled episodes.

    Intervals (95 %) resample groups and say nothing of refitting. DataError for checkpoints of which none is
    `worthwhile`, StoreError where `prompt` or one of them is not stored.
    """
    if not names:
        return
    if "prompt" not in run.checkpoint_names:
        raise StoreError(f"{str(run.path)!r} holds no state at `prompt`: add `prompt` to the recipe's checkpoints.")
    sweep = Sweep.of(
        run,
        checkpoints=names,
        baselines=("prompt", "surface"),
        resampling=Resampling(resamples=_RESAMPLES, seed=seed),
        seed=seed,
    )
    for measured in sweep.measure():
        yield _row(measured)


def _row(measured: Measured) -> CheckpointAuroc:
    own = measured.selected
    facts = {"n": own["n"], "groups": own["auroc"]["groups"], "skipped": 0}
    probe = _interval(own["auroc"], facts)
    rivals = {row["name"]: _interval(row["auroc"], facts) for row in measured.rivals.rows}
    gains = {name: _interval(gain["auroc"], facts) for name, gain in own["gains"].items()}
    return CheckpointAuroc(
        checkpoint=own["checkpoint"],
        closing=own["closing"],
        probe=probe,
        prompt=rivals.get("prompt", probe),  # at the prompt itself they are one
        surface=rivals["surface"],
        over_prompt=gains.get("prompt", _interval({"value": 0.0, "low": 0.0, "high": 0.0}, facts)),
        over_surface=gains["surface"],
    )


def _interval(row: Mapping[str, Any], facts: Mapping[str, int]) -> Interval:
    return Interval(row["value"], row["low"], row["high"], facts["n"], facts["groups"], facts["skipped"])
