"""A made-up run with hostile texts, a cascade fitted on it and a sweep of it, all through the real code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from chromium import Browser, chromium
from made_runs import HEADER, LAYERS, WIDTH, make_episode, make_states
from page_samples import CHECKPOINTS, HOSTILE, World

from probecascade.episode import SIGNALS, Recording
from probecascade.evaluation import sweep_run
from probecascade.intervals import Resampling
from probecascade.policies import fit_cascade
from probecascade.store import Run, RunWriter


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    path = tmp_path_factory.mktemp("report") / "run"
    rng = np.random.default_rng(0)
    with RunWriter(path, HEADER, layers=LAYERS, d_model=WIDTH, dtype="float32") as writer:
        for g in range(160):
            failed = bool(rng.random() < 0.5)
            episode = make_episode(f"task-{g}", f"group-{g}", failed=failed, rounds=int(rng.integers(3, 6)))
            steps = tuple(replace(step, observation=HOSTILE, text=step.text + HOSTILE) for step in episode.steps)
            lost = {"doomed_round": 2, "doomed_tokens": 25} if failed else {}
            noise = rng.normal(size=(len(episode.checkpoints), len(SIGNALS))).astype(np.float32)
            points = tuple(
                replace(point, signals=tuple(row))
                for point, row in zip(episode.checkpoints, noise.tolist(), strict=True)
            )
            episode = replace(episode, steps=steps, checkpoints=points, attributes={"wording": HOSTILE}, **lost)
            writer.add(Recording(episode, make_states(episode, rng, failed=failed)))
        stopped = make_episode("stopped", "stopped", failed=True, rounds=3, outcome="aborted")
        writer.add(Recording(stopped, make_states(stopped, rng, failed=True)))
    run = Run.open(path)
    cascade = fit_cascade(run, gates=("action:1", "part:1", "action:3"), keep=0.8).cascade
    sweep = sweep_run(
        run,
        checkpoints=CHECKPOINTS,
        layers=(2, 4),
        baselines=("prompt", "surface"),
        resampling=Resampling(resamples=200),
    )
    cascade.save(path.parent / "cascade")
    sweep.save(path.parent / "sweep")
    return World(path, run, cascade, sweep)


@pytest.fixture(scope="session")
def page(world: World) -> Path:
    """The page of the run and the cascade, as a file."""
    path = world.path.parent / "page.html"
    path.write_text(world.material().page().html(), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found
