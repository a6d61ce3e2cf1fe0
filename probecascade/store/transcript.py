"""An episode's facts as columns and its transcript as JSON text, and back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from probecascade.episode import SIGNALS, Checkpoint, Decision, Episode, Outcome, Step
from probecascade.errors import StoreError

OUTCOMES: tuple[str, ...] = get_args(Outcome)
_INT64 = np.iinfo(np.int64)
_INT32 = np.iinfo(np.int32)
_COUNTS = ("prompt_tokens", "generated", "observed", "calls", "side_tokens")


def check_episode(episode: Episode) -> None:
    """Refuse an episode that would not come back as it is. StoreError names the episode and the field."""
    name = f"episode {episode.episode_id!r}"
    if episode.outcome not in OUTCOMES:
        raise StoreError(f"{name} has outcome {episode.outcome!r}; expected one of {', '.join(OUTCOMES)}.")
    if not _INT64.min <= episode.seed <= _INT64.max:
        raise StoreError(f"{name} has seed {episode.seed}, which does not fit 64 bits; use a smaller seed.")
    for field in _COUNTS:
        if getattr(episode, field) < 0:
            raise StoreError(f"{name} has {field} = {getattr(episode, field)}; counts cannot be negative.")
    for field in ("doomed_round", "doomed_tokens"):
        value = getattr(episode, field)
        if value is not None and value < 0:
            raise StoreError(f"{name} has {field} = {value}; give a count, or None where it is not known.")
    for field in ("reward", "seconds"):
        if not math.isfinite(getattr(episode, field)):
            raise StoreError(f"{name} has {field} = {getattr(episode, field)}; expected a finite number.")
    _check_token_ids(name, np.asarray(episode.token_ids))
    _check_checkpoints(name, episode)


def _check_token_ids(name: str, ids: NDArray[Any]) -> None:
    if ids.ndim != 1 or not (ids.dtype.kind in "iu" or ids.size == 0):
        raise StoreError(
            f"{name} has token ids of shape {ids.shape} and dtype {ids.dtype}; expected whole numbers (n,)."
        )
    if ids.size and (ids.min() < 0 or ids.max() > _INT32.max):
        raise StoreError(f"{name} has token ids outside 0..{_INT32.max}; give the ids that the model was fed.")


def _check_checkpoints(name: str, episode: Episode) -> None:
    seen: set[str] = set()
    for checkpoint in episode.checkpoints:
        if checkpoint.name in seen:
            raise StoreError(f"{name} has two checkpoints called {checkpoint.name}; keep one state for each.")
        seen.add(checkpoint.name)
        if not 0 <= checkpoint.position < len(episode.token_ids):
            raise StoreError(
                f"{name} has {checkpoint.name} at position {checkpoint.position}, outside its "
                f"{len(episode.token_ids)} token ids; a position indexes the episode's own ids."
            )
        if len(checkpoint.signals) != len(SIGNALS):
            raise StoreError(
                f"{name} has {len(checkpoint.signals)} signals at {checkpoint.name}; expected "
                f"{len(SIGNALS)}: {', '.join(SIGNALS)}."
            )
        for check, value in checkpoint.checks.items():
            if not check.isidentifier() or not math.isfinite(value):
                raise StoreError(
                    f"{name} has the check {check!r} = {value} at {checkpoint.name}; give a name such as "
                    "tool_exists and a finite number, or leave the check out."
                )


def episode_columns(episode: Episode) -> dict[str, Any]:
    """One row of `episodes/*`, without the counts of rejected checkpoints."""
    return {
        "episode_id": episode.episode_id,
        "task_id": episode.task_id,
        "group": episode.group,
        "seed": episode.seed,
        "outcome": episode.outcome,
        "reward": episode.reward,
        "reason": episode.reason,
        "rounds": len(episode.steps),
        "tokens": episode.tokens,
        "generated": episode.generated,
        "observed": episode.observed,
        "prompt_tokens": episode.prompt_tokens,
        "calls": episode.calls,
        "seconds": episode.seconds,
        "side_tokens": episode.side_tokens,
        "doomed_round": -1 if episode.doomed_round is None else episode.doomed_round,
        "doomed_tokens": -1 if episode.doomed_tokens is None else episode.doomed_tokens,
    }


def checkpoint_columns(checkpoint: Checkpoint) -> dict[str, Any]:
    """One row of `checkpoints/*`, without `episode`, `ordinal` and the signals."""
    return {
        "kind": checkpoint.kind,
        "index": checkpoint.index,
        "round": checkpoint.round,
        "position": checkpoint.position,
        "tokens": checkpoint.tokens,
        "generated": checkpoint.generated,
        "calls": checkpoint.calls,
        "seconds": checkpoint.seconds,
        "final": checkpoint.final,
    }


def dump_transcript(episode: Episode) -> str:
    """Steps, attributes and decision as strict JSON in ASCII. StoreError if an attribute is no JSON value."""
    decision = None
    if episode.decision is not None:
        decision = asdict(episode.decision)
        for field in ("score", "threshold"):
            decision[field] = _dump_float(decision[field])
    record = {
        "steps": [asdict(step) for step in episode.steps],
        "attributes": dict(episode.attributes),
        "decision": decision,
    }
    try:
        return json.dumps(record, allow_nan=False, default=_plain)
    except (TypeError, ValueError) as error:
        raise StoreError(
            f"episode {episode.episode_id!r} has attributes that JSON cannot hold ({error}); use text, "
            "finite numbers, booleans, lists and mappings."
        ) from error


def load_transcript(text: str) -> tuple[tuple[Step, ...], Mapping[str, Any], Decision | None]:
    """Inverse of `dump_transcript`; tuples inside attributes come back as lists."""
    record = json.loads(text)
    decision = record["decision"]
    if decision is not None:
        allow = decision["allow"]
        decision["allow"] = None if allow is None else tuple(allow)
        for field in ("score", "threshold"):
            decision[field] = _load_float(decision[field])
        decision = Decision(**decision)
    return tuple(Step(**step) for step in record["steps"]), record["attributes"], decision


def _dump_float(value: float) -> float | str | None:
    if math.isnan(value):
        return None
    return float(value) if math.isfinite(value) else str(float(value))


def _load_float(value: float | str | None) -> float:
    return math.nan if value is None else float(value)


def _plain(value: Any) -> Any:
    """Numpy scalars and arrays slip into attributes easily and have an obvious JSON form."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no JSON value")
