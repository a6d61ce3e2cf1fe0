"""Invented runs whose failures are in more doubt than successes, and fail in two ways that the states tell apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from made_runs import HEADER, LAYERS, WIDTH, make_episode, make_states

from probecascade.episode import SIGNALS, Episode, Recording
from probecascade.store import Run, RunWriter

ENTROPY = SIGNALS.index("entropy_mean")
MODE_COLUMN = 2  # of the states: high where the episode fails in a loop, low where its answer is wrong


def make_doubtful_run(path: Path, *, groups: int = 240, seed: int = 0) -> Run:
    """As `made_runs.make_run`; entropies are twice as high in failures, and every other failure is a loop."""
    rng = np.random.default_rng(seed)
    with RunWriter(path, HEADER, layers=LAYERS, d_model=WIDTH, dtype="float32") as writer:
        for g in range(groups):
            fails = bool(rng.random() < 0.5)
            loops = fails and bool(rng.random() < 0.5)
            episode = make_episode(f"task-{g}", f"group-{g}", failed=fails, rounds=int(rng.integers(4, 6)))
            episode = _doubted(_looping(episode) if loops else episode, rng, 2.0 if fails else 1.0)
            states = make_states(episode, rng, failed=fails)
            if fails:
                states[:, :, MODE_COLUMN] += 1.5 if loops else -1.5
            writer.add(Recording(episode, states))
    return Run.open(path)


def _looping(episode: Episode) -> Episode:
    """The episode with one search in all its rounds, in one part."""
    steps = (replace(s, argument="page 1", part=1, observation_kind="content") for s in episode.steps)
    return replace(episode, steps=tuple(steps))


def _doubted(episode: Episode, rng: np.random.Generator, doubt: float) -> Episode:
    """The episode with an entropy at every checkpoint, on average `doubt`."""
    points = []
    for point in episode.checkpoints:
        values = list(point.signals)
        values[ENTROPY] = float(np.float32(rng.exponential() * doubt))
        points.append(replace(point, signals=tuple(values)))
    return replace(episode, checkpoints=tuple(points))
