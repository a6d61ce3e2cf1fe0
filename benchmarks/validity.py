"""How often promises are broken and how much they save, on simulated worlds whose truth is known.

Every cell is one setting: a world, a number of gates and of calibration episodes, and the targets. It is calibrated
again and again by every method on episodes drawn from one large population, which then says what is true.
`benchmarks/README.md` says what is counted.

    python benchmarks/validity.py --quick
    python benchmarks/validity.py --jobs 2 --json > validity.json
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import multiprocessing
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

import adversaries
import numpy as np
from machine import machine, positive
from threadpoolctl import threadpool_limits
from tqdm import tqdm
from trials import DELTA, ENTRANTS, ORACLE_SHAPE, Cell, Trial, Truth, run_trials
from validity_tables import as_markdown

from probecascade.errors import ProbecascadeError
from probecascade.testing.worlds import WORLDS, World

PARTS = ("keep", "catch", "both", "shift", "groups", "shrinking")
KEEPS = (0.90, 0.95)
SHRINKING = ((286, 0.90), (93, 0.95))  # certifying successes and keep target whose exact level is closest to delta
_BATCH = 25  # calibrations that a process does at a time

# What is run ----------------------------------------------------------------------------------------------------------


def cells(parts: Sequence[str], quick: bool) -> list[Cell]:
    """All settings of these parts; `quick` takes each world with 3 or with 6 gates, not both."""
    gates = {name: ((3, 6)[i % 2],) if quick else (3, 6) for i, name in enumerate(WORLDS)}
    worlds = [World(name, n_gates) for name in WORLDS for n_gates in gates[name]]
    found = []
    for world in worlds:
        last = world.n_gates - 1
        schedule = ((0, 0.50), (last, 0.80)) if last < 3 else ((0, 0.30), (last // 2, 0.60), (last, 0.80))
        found += [Cell("keep", world, n, keep) for n in (150, 400, 1500) for keep in KEEPS]
        found += [Cell("catch", world, n, catch=schedule) for n in (150, 400, 1500)]
        for n, rho in ((400, 0.50), (1500, 0.65)):
            found += [Cell("both", world, n, keep, ((last, 0.0),), rho) for keep in KEEPS]
            found.append(Cell("both", world, n, KEEPS[0], (((last + 1) // 2, 0.0), (last, 0.0)), rho))
        for deployed in (0.25, 0.80):
            found.append(Cell("shift", world, 400, 0.90, deployed=deployed))
            found.append(Cell("shift", world, 400, catch=schedule, deployed=deployed))
    for name, correlation in itertools.product(WORLDS, (-0.7, 0.0, 0.7)):
        world = World(name, 3)
        found += [Cell("groups", world, n, 0.90, correlation=correlation) for n in (60, 400)]
        found.append(Cell("groups", world, 400, catch=((2, 0.70),), correlation=correlation))
    return [cell for cell in found if cell.part in parts]


@dataclasses.dataclass(frozen=True)
class Job:
    """One batch of one setting, to be done by one process: of a cell, or of shrinking under an adversary."""

    setting: Cell | tuple[str, int, float]
    draws: range
    population: int
    seed: int

    def run(self) -> dict[str, list[Any]]:
        """Trials by entrant, or whether each shrinking broke its promise."""
        if isinstance(self.setting, Cell):
            return dict(run_trials(self.setting, ENTRANTS[self.setting.part], self.draws, self.population, self.seed))
        name, m, keep = self.setting
        rngs = (np.random.default_rng([self.seed, m, draw]) for draw in self.draws)
        return {name: [adversaries.broken(name, m, keep, rng) for rng in rngs]}


def run_all(jobs: Sequence[Job], workers: int) -> Iterator[tuple[Job, dict[str, list[Any]]]]:
    """Each job with its result, as they end."""
    if workers == 1:
        with threadpool_limits(1):
            yield from ((job, job.run()) for job in jobs)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=threadpool_limits, initargs=(1,)) as pool:
        waiting = {pool.submit(job.run): job for job in jobs}
        for done in as_completed(waiting):
            yield waiting[done], done.result()


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """One row per cell and method, one per adversary, with one progress bar over all of them."""
    settings: list[Cell | tuple[str, int, float]] = [*cells(options.parts, options.quick)]
    if "shrinking" in options.parts:
        settings += [(name, *sizes) for sizes in SHRINKING for name in adversaries.ADVERSARIES]
    starts = range(0, options.calibrations, _BATCH)
    jobs = [
        Job(setting, range(start, min(start + _BATCH, options.calibrations)), options.population, options.seed)
        for setting in settings
        for start in starts
    ]
    found: dict[Any, dict[str, list[Any]]] = {}
    with tqdm(total=sum(len(job.draws) for job in jobs), unit="calibration", file=sys.stderr) as bar:
        for job, result in run_all(jobs, options.jobs):
            trials = found.setdefault(job.setting, {})
            for name, batch in result.items():
                trials.setdefault(name, []).extend(batch)
            bar.update(len(job.draws))
    rows = [
        row for setting in settings if isinstance(setting, Cell) for row in cell_rows(setting, found[setting], options)
    ]
    shrunk = [adversary_row(setting, found[setting]) for setting in settings if not isinstance(setting, Cell)]
    return {"rows": rows, "shrinking": shrunk}


def cell_rows(cell: Cell, trials: Mapping[str, Sequence[Trial]], options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row per entrant: shares of the calibrations, and what is saved beside the two oracles."""
    truth = Truth.of(cell, options.population, options.seed)
    setting = {
        "part": cell.part,
        "world": cell.world.name,
        "gates": cell.world.n_gates,
        "n": cell.n,
        "keep": cell.keep,
        "catch": dict(truth.catch),
        "rho": cell.rho,
        "deployed": cell.deployed,
        "correlation": cell.correlation,
    }
    means = {name: {field: _mean(batch, field) for field in _SHARES} for name, batch in trials.items()}
    shaped = means.get(ORACLE_SHAPE.name, {}).get("saved")
    return [
        {
            **setting,
            "method": name,
            "calibrations": len(trials[name]),
            **mean,
            "broken": float(np.mean([t.keep_broken or t.catch_broken for t in trials[name]])),
            "saved_of_oracle": mean["saved"] / truth.oracle.saved if truth.oracle else None,
            "saved_of_shape": mean["saved"] / shaped if shaped else None,
        }
        for name, mean in means.items()
    ]


_SHARES = ("certified", "fires", "keep_broken", "catch_broken", "kept", "caught", "saved")


def _mean(trials: Sequence[Trial], field: str) -> float:
    return float(np.mean([getattr(trial, field) for trial in trials]))


def adversary_row(setting: tuple[str, int, float], broken: Mapping[str, Sequence[bool]]) -> dict[str, Any]:
    """How often a learner broke the level of shrinking, beside how often that happens by the exact law."""
    name, m, keep = setting
    level = adversaries.nominal(m, keep)
    count = len(broken[name])
    return {
        "learner": name,
        "certifying": m,
        "keep": keep,
        "calibrations": count,
        "broken": float(np.mean(broken[name])),
        "nominal": level,
        "bound": bound(level, count),
    }


def bound(level: float, count: int) -> float:
    """The level plus 2.33 standard errors of a share of so many calibrations: stayed below in 99 of 100 cells."""
    return level + 2.33 * float(np.sqrt(level * (1.0 - level) / count))


# The command ----------------------------------------------------------------------------------------------------------


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    add = parser.add_argument
    add("--json", action="store_true", help="print one JSON object and nothing else on the standard output")
    add("--calibrations", type=positive, help="calibrations of every cell (default: 1000, quick: 50)")
    add("--population", type=positive, help="episodes that stand for the truth (default: 100000, quick: 40000)")
    add("--quick", action="store_true", help="fewer cells, calibrations and episodes: minutes instead of hours")
    add("--parts", nargs="+", choices=PARTS, default=PARTS, help="run these parts only")
    add("--jobs", type=positive, default=os.cpu_count() or 1, help="processes, of one thread each (default: the cores)")
    add("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    options.calibrations = options.calibrations or (50 if options.quick else 1000)
    options.population = options.population or (40_000 if options.quick else 100_000)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    options = read_options(arguments)
    try:
        report = {
            "ran_on": machine(),
            "calibrations": options.calibrations,
            "population": options.population,
            "seed": options.seed,
            "bound": bound(DELTA, options.calibrations),
            **measure(options),
        }
    except ProbecascadeError as error:
        print(f"benchmarks/validity.py: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps(report) if options.json else as_markdown(report))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
