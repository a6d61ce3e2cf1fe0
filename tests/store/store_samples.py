"""Episodes, states and headers for the store's tests; every value depends on the episode's number."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from probecascade.episode import SIGNALS, Checkpoint, Decision, Episode, Outcome, Recording, Step

D_MODEL = 8
LAYERS = (0, 2, 4)
N_LAYERS = 4


def header(**changes: Any) -> dict[str, Any]:
    """A header such as the extractor writes."""
    return {
        "model": {"name": "toy", "revision": "r1", "dtype": "float32"},
        "n_layers": N_LAYERS,
        "template": {"name": "plain", "hash": "abc"},
        "checkpoints": ["prompt", "action", "part"],
        "recipe_identity": "tasks-1",
        "versions": {"torch": "9.9"},
    } | changes


def checkpoint(kind: str, index: int, round_: int, number: int, position: int) -> Checkpoint:
    """A checkpoint whose facts tell its episode and its position."""
    signals = tuple(float(number * 100 + position + slot) for slot in range(len(SIGNALS)))
    return Checkpoint(
        kind=kind,
        index=index,
        round=round_,
        position=position,
        tokens=10 * number + position,
        generated=number + position,
        calls=round_,
        seconds=0.25 * position,
        final=kind == "action" and round_ == 2,
        signals=signals,
    )


def step(round_: int) -> Step:
    """A finished round."""
    return Step(
        round=round_,
        part=1,
        text=f" go {round_}\nAction: Search[x]",
        thought=f"go {round_}",
        action="search",
        argument="x",
        observation="Could not find x.",
        observation_kind="not_found",
        turn_tokens=5,
        observation_tokens=4,
        finish_reason="action",
    )


def episode(number: int, outcome: Outcome = "success", *, rounds: int = 2, **changes: Any) -> Episode:
    """Episode `e<number>` with checkpoints prompt, action:r, part:1 and observation:r."""
    checkpoints = [checkpoint("prompt", 0, 0, number, 0)]
    for round_ in range(1, rounds + 1):
        checkpoints.append(checkpoint("action", round_, round_, number, 3 * round_))
        if round_ == 2:
            checkpoints.append(checkpoint("part", 1, 2, number, 3 * round_))
        checkpoints.append(checkpoint("observation", round_, round_, number, 3 * round_ + 1))
    facts: dict[str, Any] = {
        "episode_id": f"e{number}",
        "task_id": f"t{number // 2}",
        "group": f"g{number // 2}",
        "seed": number,
        "outcome": outcome,
        "reward": 1.0 if outcome == "success" else 0.0,
        "reason": "finished",
        "steps": tuple(step(round_) for round_ in range(1, rounds + 1)),
        "checkpoints": tuple(checkpoints),
        "token_ids": np.arange(20 + number, dtype=np.int32) + 1000 * number,
        "prompt_tokens": 7,
        "generated": 9 + number,
        "observed": 4,
        "calls": rounds,
        "seconds": 1.5 + number,
        "side_tokens": 3,
        "doomed_round": 1 if outcome == "failure" else None,
        "doomed_tokens": 12 if outcome == "failure" else None,
        "decision": Decision("abort", "action:2", 0.75, 0.5, "P(failure) 0.75 >= 0.5") if number == 1 else None,
        "attributes": {"temperature": 0.3, "note": "ä \x00 \ud800"},
    }
    return Episode(**(facts | changes))


def recording(number: int, outcome: Outcome = "success", *, n_layers: int = len(LAYERS), **changes: Any) -> Recording:
    """The episode with states whose value names episode, checkpoint, layer slot and column."""
    made = episode(number, outcome, **changes)
    return Recording(made, states(number, len(made.checkpoints), n_layers))


def states(number: int, n_checkpoints: int, n_layers: int = len(LAYERS)) -> NDArray[np.float32]:
    """(n_checkpoints, n_layers, D_MODEL): exact in every stored dtype, distinct for each episode."""
    rows, slots, columns = np.ogrid[:n_checkpoints, :n_layers, :D_MODEL]
    return ((number + 1) * 2.0 ** (slots - columns) * np.where(rows % 2, 1, -1) * 2.0 ** (rows // 2)).astype(np.float32)


def assert_same_episode(found: Episode, expected: Episode) -> None:
    """Field by field: arrays and NaN are not compared by `==`."""
    for name in Episode.__dataclass_fields__:
        one, other = getattr(found, name), getattr(expected, name)
        if name == "token_ids":
            assert one.dtype == np.int32
            np.testing.assert_array_equal(one, other)
        elif name == "decision":
            assert repr(one) == repr(other)
        else:
            assert one == other, name
