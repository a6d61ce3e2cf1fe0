"""How fast calibration is: the exact search over allocations beside an enumeration, a certificate, and large inputs.

Both sides of the search judge the same episodes and candidates in one process, on one thread, in turns.
`benchmarks/README.md` says what is measured.

    python benchmarks/calibrate.py --json
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]
from machine import machine, positive
from threadpoolctl import threadpool_limits

from probecascade.errors import ProbecascadeError
from probecascade.testing.worlds import World
from probecascade.thresholds import OFF, GateScores, calibrate
from probecascade.thresholds.allocation import Allocations
from probecascade.thresholds.firing import BoolArray, FloatArray

PARTS = ("search", "certificate", "large")
KEEP = 0.95
_SUFFIX = 3  # gates whose allocations the enumeration judges at once: the fastest of 1 to 4

Best = tuple[FloatArray, int, float]

# The search and the enumeration ---------------------------------------------------------------------------------------


def search(data: GateScores, candidates: FloatArray, required: int) -> Best:
    """The allocation that saves most while it keeps `required` successes, by summed-area tables."""
    best = Allocations.of(data, candidates).best(required)
    assert best is not None  # every gate has a level at which it is off
    return best


def enumeration(data: GateScores, candidates: FloatArray, required: int) -> Best:
    """The same by judging every allocation on every episode.

    All is vectorised and nothing is judged twice: what the last gates do is worked out once for all of their
    allocations, and what the first ones do once for each of theirs.
    """
    n_gates, n_levels = candidates.shape
    fires = np.greater_equal(data.scores.T[:, None, :], candidates[:, :, None])
    costs = np.nan_to_num(data.cost_after.T)
    first = max(n_gates - _SUFFIX, 0)
    lives, savings = _suffixes(fires[first:], costs[first:])
    best: Best = (candidates[:, 0], 0, -1.0)
    for levels in itertools.product(range(n_levels), repeat=first):
        alive, saved = _prefix(fires, costs, levels)
        kept = np.count_nonzero(lives & (alive & ~data.failed), axis=1)
        total = np.where(alive, savings, saved).sum(axis=1)
        total[kept < required] = -1.0
        place = int(np.lexsort((-np.arange(len(kept)), kept, total))[-1])
        if (total[place], kept[place]) > (best[2], best[1]):
            chosen = np.array([*levels, *np.unravel_index(place, (n_levels,) * (n_gates - first))])
            best = (candidates[np.arange(n_gates), chosen], int(kept[place]), float(total[place]))
    return best


def _prefix(fires: BoolArray, costs: FloatArray, levels: Sequence[int]) -> tuple[BoolArray, FloatArray]:
    """(n_episodes,) each: whether no gate of the prefix fires, and the tokens saved where one does."""
    alive, saved = np.ones(costs.shape[1], dtype=np.bool_), np.zeros(costs.shape[1])
    for gate, level in enumerate(levels):
        now = alive & fires[gate, level]
        saved[now] = costs[gate, now]
        alive &= ~now
    return alive, saved


def _suffixes(fires: BoolArray, costs: FloatArray) -> tuple[BoolArray, FloatArray]:
    """(n_allocations, n_episodes) each: as `_prefix`, of all allocations of these gates."""
    n = costs.shape[1]
    alive, saved = np.ones((1, n), dtype=np.bool_), np.zeros((1, n))
    for gate in range(len(fires)):
        now = alive[:, None] & fires[gate][None]
        saved = np.where(now, costs[gate], saved[:, None]).reshape(-1, n)
        alive = (alive[:, None] & ~now).reshape(-1, n)
    return alive, saved


def levels_of(data: GateScores, n_levels: int) -> FloatArray:
    """(n_gates, n_levels) candidates: off, and thresholds that ever more of a gate's successes reach, up to 30 %."""
    shares = np.geomspace(0.005, 0.3, n_levels - 1)
    reached = np.nanquantile(data.scores[~data.failed], 1.0 - shares, axis=0).T
    return np.concatenate([np.full((len(reached), 1), OFF), reached], axis=1)


# What is measured -----------------------------------------------------------------------------------------------------


def timed(what: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and what came of it."""
    started = time.perf_counter()
    found = what()
    return time.perf_counter() - started, found


class PeakMemory:
    """Resident bytes of this process above those at the start, the most that was seen every few milliseconds."""

    def __enter__(self) -> PeakMemory:
        self._process = psutil.Process()
        self._start = self._process.memory_info().rss
        self.growth = 0
        self._done = threading.Event()
        self._watch = threading.Thread(target=self._look)
        self._watch.start()
        return self

    def _look(self) -> None:
        while not self._done.wait(0.002):
            self.growth = max(self.growth, self._process.memory_info().rss - self._start)

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._watch.join()
        self.growth = max(self.growth, self._process.memory_info().rss - self._start)


def measure_search(options: argparse.Namespace) -> dict[str, Any]:
    """The search beside the enumeration, in turns; medians are compared."""
    data = _episodes(options.episodes, options.gates, options.seed)
    candidates = levels_of(data, options.levels)
    required = -(-data.successes * 95 // 100)
    sides = {"search": search, "enumeration": enumeration}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    found: dict[str, Best] = {}
    for _ in range(options.repeats):
        for name, side in sides.items():
            spent, found[name] = timed(lambda side=side: side(data, candidates, required))  # type: ignore[misc]
            seconds[name].append(spent)
    fast, slow = (statistics.median(seconds[name]) for name in sides)
    tables = Allocations.of(data, candidates)
    frontier = [timed(tables.frontier)[0] for _ in range(options.repeats)]
    return {
        "speedup_vs_enumeration": slow / fast,
        "objective_ratio": found["search"][2] / found["enumeration"][2],
        "same_thresholds": bool((found["search"][0] == found["enumeration"][0]).all()),
        "search_ms": 1e3 * fast,
        "enumeration_ms": 1e3 * slow,
        "frontier_ms": 1e3 * statistics.median(frontier),
        "allocations": int(tables.kept.size),
    }


def measure_certificate(options: argparse.Namespace) -> dict[str, Any]:
    """A whole call of `calibrate` with a keep target."""
    data = _episodes(options.episodes, options.gates, options.seed)
    runs = [timed(lambda: _certified(data)) for _ in range(options.repeats + 1)][1:]
    return {"certify_ms": 1e3 * statistics.median(seconds for seconds, _ in runs), "certified": runs[0][1]}


def measure_large(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds and memory of one call on many episodes."""
    data = _episodes(options.large_episodes, options.large_gates, options.seed)
    with PeakMemory() as memory:
        seconds, certified = timed(lambda: _certified(data))
    return {"large_seconds": seconds, "large_gigabytes": memory.growth / 1e9, "large_certified": certified}


def _episodes(n: int, n_gates: int, seed: int) -> GateScores:
    return World("normal", n_gates).sample(n, np.random.default_rng(seed))


def _certified(data: GateScores) -> bool:
    return calibrate(data.scores, data.failed, cost_after=data.cost_after, keep=KEEP).certified


# The command ----------------------------------------------------------------------------------------------------------


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    add = parser.add_argument
    add("--json", action="store_true", help="print one JSON object and nothing else on the standard output")
    add("--episodes", type=positive, default=2000, help="episodes of the search and the certificate (default: 2000)")
    add("--gates", type=positive, default=6, help="their gates (default: 6)")
    add("--levels", type=positive, default=6, help="candidate thresholds of each gate (default: 6)")
    add("--large-episodes", type=positive, default=100_000, help="episodes of the large call (default: 100000)")
    add("--large-gates", type=positive, default=8, help="its gates (default: 8)")
    add("--repeats", type=positive, default=9, help="runs of each side (default: 9)")
    add("--only", nargs="+", choices=PARTS, default=PARTS, help="measure these parts only")
    add("--seed", type=int, default=0)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. 1 if the two searches differ, 2 on bad input."""
    options = read_options(arguments)
    measures = {"search": measure_search, "certificate": measure_certificate, "large": measure_large}
    try:
        with threadpool_limits(1):
            report: dict[str, Any] = {"ran_on": machine() | {"threads": 1}}
            for part in PARTS:
                if part in options.only:
                    report |= measures[part](options)
    except ProbecascadeError as error:
        print(f"benchmarks/calibrate.py: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps(report, indent=None if options.json else 2))
    return int(not report.get("same_thresholds", True))


if __name__ == "__main__":
    raise SystemExit(main())
