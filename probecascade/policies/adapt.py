"""A cascade moved to new conditions (another wording, temperature, tool) with few new episodes; its thresholds stay."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from probecascade.errors import CascadeError, DataError, NothingToDoError, UsageError
from probecascade.policies.cascade import Cascade, Gate
from probecascade.policies.provenance import check_header, group_hashes, identity_of
from probecascade.policies.taps import stored
from probecascade.probes import Shown, reads
from probecascade.probes.adapt import recentred, refitted, rescored
from probecascade.probes.kinds import FrozenProbe
from probecascade.store import Run
from probecascade.thresholds import OFF

Labels = NDArray[np.bool_]
How = Literal["recentre", "bias", "refit"]
WAYS: tuple[How, ...] = get_args(How)

_KEPT = ("method", "gates", "targets", "confidence", "unit", "billing")


@dataclass(frozen=True, slots=True, eq=False)
class Adaptation:
    """The adapted cascade, and which episodes of the run did what, (n_episodes,) bool each.

    `used` adapted it. `held_out` are labelled episodes of groups that had no part in the old cascade nor in this: they
    can judge both.
    """

    cascade: Cascade
    how: How
    used: Labels
    held_out: Labels
    warnings: tuple[str, ...]


def adapt(cascade: Cascade, run: Run, how: How, *, episodes: int | None = None, seed: int = 0) -> Adaptation:
    """Move the probes of `cascade` to the conditions of `run`: the same model, under any prompt.

    how: "recentre" draws mean and scale of every feature to those of the new states and needs no labels; "bias" fits
    slope and bias of each gate's logit, which leaves the order of scores alone; "refit" re-centres and then fits the
    direction anew, with a ridge towards the old one. episodes: about how many of the run adapt (whole groups; None:
    half of them); groups that shaped the cascade go first, as they cannot judge it. The thresholds stay, and their
    promise is void until `recalibrate` sets them anew.

    CascadeError for a run of another model; UsageError for settings that cannot be right; NothingToDoError where no
    episode is left to adapt on; DataError where a gate's episodes or probe do not allow it.
    """
    if how not in WAYS:
        raise UsageError(f"how is {how!r}: give one of {', '.join(WAYS)}.")
    if episodes is not None and episodes < 1:
        raise UsageError(f"episodes is {episodes}: give the number of episodes to adapt on, such as 40.")
    if seed < 0:
        raise UsageError(f"seed is {seed}: give a whole number of at least 0.")
    fitted: Mapping[str, Any] = cascade.provenance.get("run", {})
    check_header({key: value for key, value in fitted.items() if key != "template"}, run.header)
    used, held_out = _divided(cascade, run, how, episodes, seed)
    notes: list[str] = []
    gates = [_adapted(gate, run, how, used, cascade.gate_answers, seed, notes) for gate in cascade.gates]
    moved = Cascade(
        gates,
        gate_answers=cascade.gate_answers,
        promise=(
            f"Nothing is promised: the probes were adapted ({how}) on {int(used.sum())} new episodes after the "
            "thresholds had been set; set them anew with `probecascade recalibrate`."
        ),
        calibration={key: cascade.calibration[key] for key in _KEPT if key in cascade.calibration}
        | {"certified": False, "certificates": []},
        provenance=_provenance(cascade, run, how, used),
    )
    return Adaptation(moved, how, used, held_out, tuple(notes))


def _divided(cascade: Cascade, run: Run, how: How, episodes: int | None, seed: int) -> tuple[Labels, Labels]:
    """Episodes that adapt and episodes that judge, whole groups each."""
    table = run.episodes
    able = table.outcome != "error" if how == "recentre" else table.labelled
    if not able.any():
        kind = "" if how == "recentre" else "labelled "
        raise NothingToDoError(f"the run holds no {kind}episode to adapt on: record more of them.")
    wanted = (int(able.sum()) + 1) // 2 if episodes is None else episodes
    shaped = set(cascade.overlap(table.group.tolist()))
    sizes = {group: int(able[table.group == group].sum()) for group in dict.fromkeys(table.group[able].tolist())}
    chosen: list[str] = []
    taken = 0
    for group in sorted(sizes, key=lambda name: (name not in shaped, _rank(name, seed))):
        if taken >= wanted:
            break
        chosen.append(group)
        taken += sizes[group]
    used = able & np.isin(table.group, chosen)
    return used, table.labelled & ~np.isin(table.group, [*chosen, *shaped])


def _rank(group: str, seed: int) -> bytes:
    return hashlib.sha256(f"adapt\0{seed}\0{group}".encode("utf-8", "surrogatepass")).digest()


def _adapted(gate: Gate, run: Run, how: How, used: Labels, gate_answers: bool, seed: int, notes: list[str]) -> Gate:
    if gate.checkpoint not in run.checkpoint_names:
        raise DataError(
            f"no episode of the run comes to the gate at {gate.checkpoint}: give a run that holds that checkpoint."
        )
    rows = run.rows(gate.checkpoint)
    use = used[rows.episode] & (gate_answers | ~rows.final)
    episode = rows.episode[use]
    shown = stored(run, gate.checkpoint, gate.taps, reads(gate.probe)).take(use)
    failed, groups = run.episodes.failed[episode], run.episodes.group[episode]
    try:
        probe = _moved(gate, shown, how, failed, groups, seed)
    except DataError as error:
        raise DataError(f"the gate at {gate.checkpoint} cannot be adapted: {error}") from error
    notes.append(f"{gate.checkpoint}: adapted on {len(episode)} episodes that come there.")
    return replace(gate, probe=probe, counts={})


def _moved(gate: Gate, shown: Shown, how: How, failed: Labels, groups: NDArray[np.object_], seed: int) -> FrozenProbe:
    probe: FrozenProbe = gate.probe  # type: ignore[assignment]
    if not hasattr(probe, "spec"):
        raise CascadeError(f"the probe at {gate.checkpoint} cannot be stored, hence not adapted: give it `spec()`.")
    ways: Mapping[How, Callable[[], FrozenProbe]] = {
        "recentre": lambda: recentred(probe, shown),
        "bias": lambda: rescored(probe, gate.score(shown), failed),
        "refit": lambda: refitted(probe, shown, failed, groups, seed=seed),
    }
    return ways[how]()


def _provenance(cascade: Cascade, run: Run, how: How, used: Labels) -> dict[str, Any]:
    """That of the old cascade, with the run's template for its own and the groups that adapted it beside the others."""
    old = cascade.provenance
    groups = old.get("groups", {})
    own = group_hashes(run.episodes.group[used].tolist())
    entry = {
        "how": how,
        "episodes": int(used.sum()),
        "replaced": {
            "promise": cascade.promise,
            "thresholds": [None if value == OFF else float(value) for value in cascade.thresholds],
        },
    }
    return {
        **old,
        "run": {**old.get("run", {}), **{k: v for k, v in identity_of(run.header).items() if k == "template"}},
        "groups": {**groups, "adapt": sorted({*groups.get("adapt", ()), *own})},
        "adapted": [*old.get("adapted", ()), entry],
    }
