"""Invented runs of one agent under several wordings: one direction gives failure away, and wordings alter states."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from made_runs import HEADER, make_episode
from numpy.typing import NDArray

from probecascade.episode import Episode, Recording
from probecascade.store import Run, RunWriter

LAYERS = (0, 2)
WIDTH = 24
Change = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def same(states: NDArray[np.float64]) -> NDArray[np.float64]:
    return states


def stretched(seed: int, spread: float = 1.2, shift: float = 1.0) -> Change:
    """Every feature with a scale and a mean of its own."""
    rng = np.random.default_rng((5, seed))
    scale, mean = np.exp(rng.normal(scale=spread, size=WIDTH)), rng.normal(scale=shift, size=WIDTH)
    return lambda states: states * scale + mean


def rotated(seed: int) -> Change:
    """A random rotation, under which no old direction means anything."""
    turn = np.linalg.qr(np.random.default_rng((7, seed)).normal(size=(WIDTH, WIDTH)))[0]
    return lambda states: states @ turn


def varied_episodes(
    changes: Mapping[str, Change], groups: int, seed: int, loudness: float, own_groups: bool
) -> list[tuple[Episode, NDArray[np.float32]]]:
    """For each wording one episode per group; outcomes are drawn for every episode."""
    rng = np.random.default_rng((1, seed))
    made = []
    for place, (wording, change) in enumerate(changes.items()):
        for g in range(groups):
            failed = bool(rng.random() < 0.5)
            name = f"{wording}-{g}" if own_groups else str(g)
            episode = make_episode(f"task-{name}", f"group-{seed}-{name}", failed=failed, rounds=4, seed=place)
            signals = (float(rng.normal(failed * 0.5)), *episode.checkpoints[0].signals[1:])
            points = tuple(dataclasses.replace(point, signals=signals) for point in episode.checkpoints)
            attributes: dict[str, Any] = {"wording": wording, "temperature": 0.1 if g % 2 else 0.5}
            episode = dataclasses.replace(episode, checkpoints=points, attributes=attributes)
            states = rng.normal(size=(len(points), WIDTH))
            states[:, 0] += loudness * (1 if failed else -1)
            noise = rng.normal(size=states.shape)
            made.append((episode, np.stack([noise, change(states)], axis=1).astype(np.float32)))
    return made


def make_varied(
    path: Path,
    changes: Mapping[str, Change],
    *,
    groups: int = 120,
    seed: int = 0,
    loudness: float = 0.8,
    own_groups: bool = False,
    header: Mapping[str, Any] = HEADER,
) -> Run:
    """A run of these wordings; layer 0 is noise and layer 2 knows. Groups are shared by the wordings or not."""
    with RunWriter(path, header, layers=LAYERS, d_model=WIDTH, dtype="float32") as writer:
        for episode, states in varied_episodes(changes, groups, seed, loudness, own_groups):
            writer.add(Recording(episode, states))
    return Run.open(path)
