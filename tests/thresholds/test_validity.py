"""Promises by simulation: as many are broken as is said, savings come near the oracle's, and the rivals break theirs.

The full version is `benchmarks/validity.py`. Every seed is fixed; a share of broken promises may exceed .05 by 2.33
standard errors, which a method that holds its promise does in 1 of 100 cells at most.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from scipy.stats import binom, norm

from benchmarks.adversaries import ADVERSARIES, broken, nominal
from benchmarks.trials import CERTIFIED, DELTA, ENTRANTS, ORACLE_SHAPE, WITH_TEACHERS, Cell, Entrant, Trial, run_trials
from probecascade.testing import World
from probecascade.thresholds import allowed_misses, calibrate

SIZE = 60_000
KEEP_CELLS = (
    Cell("keep", World("normal", 3), 400, 0.90),
    Cell("keep", World("heavy", 6), 400, 0.90),
    Cell("keep", World("ties", 6), 150, 0.90),
    Cell("keep", World("scales", 3), 400, 0.95),
    Cell("keep", World("heavy", 3), 1500, 0.95),
)
CHEAT = "cheat (reads what it must not)"


def bound(level: float, count: int) -> float:
    return level + 2.33 * float(np.sqrt(level * (1.0 - level) / count))


@cache
def trials(cell: Cell, entrants: tuple[Entrant, ...], count: int) -> dict[str, list[Trial]]:
    return run_trials(cell, entrants, range(count), SIZE, 11)


def share(found: list[Trial], what: str) -> float:
    return float(np.mean([getattr(trial, what) for trial in found]))


def named(cell: Cell) -> str:
    return f"{cell.world.name}-{cell.world.n_gates}-{cell.n}-{cell.keep or 'catch'}"


def of_part(part: str, *names: str) -> tuple[Entrant, ...]:
    return tuple(entrant for entrant in ENTRANTS[part] if entrant.name in names)


def kept_near_the_oracle(cell: Cell) -> dict[str, list[Trial]]:
    return trials(cell, (CERTIFIED, ORACLE_SHAPE), 200)


@pytest.mark.parametrize("cell", KEEP_CELLS, ids=named)
def test_a_keep_promise_is_broken_as_rarely_as_it_says_and_saves_nearly_what_the_oracle_does(cell: Cell) -> None:
    found = kept_near_the_oracle(cell)
    assert share(found["certified"], "keep_broken") <= bound(DELTA, 200)
    assert share(found["certified"], "certified") > 0.95
    assert share(found["certified"], "fires") > 0.85
    assert share(found["certified"], "saved") > 0.80 * share(found[ORACLE_SHAPE.name], "saved")


def test_savings_are_near_the_oracle_shape_on_average() -> None:
    ratios = [
        share(found["certified"], "saved") / share(found[ORACLE_SHAPE.name], "saved")
        for found in map(kept_near_the_oracle, KEEP_CELLS)
    ]
    assert np.mean(ratios) > 0.92


def test_teachers_bring_savings_to_the_oracle_shape() -> None:
    cell = KEEP_CELLS[1]
    found = trials(cell, (WITH_TEACHERS, ORACLE_SHAPE), 100)
    assert share(found[WITH_TEACHERS.name], "keep_broken") <= bound(DELTA, 100)
    assert share(found[WITH_TEACHERS.name], "saved") > 0.95 * share(found[ORACLE_SHAPE.name], "saved")


def test_rivals_without_a_certificate_break_the_same_promise() -> None:
    found = trials(KEEP_CELLS[1], of_part("keep", "empirical", "paper"), 60)
    for name, batch in found.items():
        assert share(batch, "keep_broken") > 2 * bound(DELTA, 60), name


def test_maxrank_holds_its_promise_and_saves_far_less() -> None:
    found = trials(KEEP_CELLS[1], of_part("keep", "maxrank"), 200)
    assert share(found["maxrank"], "keep_broken") <= bound(DELTA, 200)
    assert share(kept_near_the_oracle(KEEP_CELLS[1])["certified"], "saved") > 1.5 * share(found["maxrank"], "saved")


@pytest.mark.parametrize(
    "cell",
    [
        Cell("catch", World("normal", 6), 400, catch=((0, 0.3), (2, 0.6), (5, 0.8))),
        Cell("catch", World("ties", 3), 150, catch=((0, 0.5), (2, 0.8))),
        Cell("shift", World("heavy", 3), 400, catch=((0, 0.5), (2, 0.8)), deployed=0.25),
    ],
    ids=named,
)
def test_catch_promises_are_broken_as_rarely_as_they_say(cell: Cell) -> None:
    found = trials(cell, (CERTIFIED,), 200)["certified"]
    assert share(found, "catch_broken") <= bound(DELTA, 200)
    assert share(found, "certified") > 0.95
    assert share(found, "kept") > 0.4


def test_empirical_catch_thresholds_break_the_same_promise() -> None:
    cell = Cell("catch", World("normal", 6), 400, catch=((0, 0.3), (2, 0.6), (5, 0.8)))
    found = trials(cell, of_part("catch", "empirical"), 60)["empirical"]
    assert share(found, "catch_broken") > 2 * bound(DELTA, 60)


@pytest.mark.parametrize("deployed", [0.25, 0.80])
def test_another_share_of_doomed_episodes_breaks_no_keep_promise(deployed: float) -> None:
    found = trials(Cell("shift", World("normal", 3), 400, 0.90, deployed=deployed), (CERTIFIED,), 150)["certified"]
    assert share(found, "keep_broken") <= bound(DELTA, 150)
    assert share(found, "fires") > 0.95


@pytest.mark.parametrize(("name", "certified"), [("normal", 0.70), ("heavy", 0.55)])
def test_keep_and_catch_together(name: str, certified: float) -> None:
    found = trials(Cell("both", World(name, 3), 1500, 0.90, ((2, 0.0),), 0.65), (CERTIFIED,), 80)["certified"]
    assert share(found, "keep_broken") <= bound(DELTA, 80)
    assert share(found, "catch_broken") <= bound(DELTA, 80)
    assert share(found, "certified") >= certified


GROUPED = Cell("groups", World("normal", 3), 400, 0.90, correlation=-0.7)


def test_dependent_runs_hold_the_promise_of_the_declared_unit() -> None:
    found = trials(GROUPED, of_part("groups", "certified per episode", "certified per group"), 100)
    for name, batch in found.items():
        assert share(batch, "keep_broken") <= bound(DELTA, 100), name
        assert share(batch, "fires") > 0.9, name


def test_dependent_runs_taken_for_independent_break_their_promise() -> None:
    found = trials(GROUPED, of_part("groups", "pooled dependent runs"), 250)["pooled dependent runs"]
    assert share(found, "keep_broken") > bound(DELTA, 250)


@pytest.mark.parametrize("name", [name for name in ADVERSARIES if name != CHEAT])
def test_no_learner_breaks_the_level_of_shrinking(name: str) -> None:
    count = 400
    found = np.mean([broken(name, 93, 0.95, np.random.default_rng([5, draw])) for draw in range(count)])
    assert found <= bound(nominal(93, 0.95), count)


def test_a_learner_that_reads_what_it_must_not_is_found_out() -> None:
    found = np.mean([broken(CHEAT, 93, 0.95, np.random.default_rng([5, draw])) for draw in range(200)])
    assert found > bound(nominal(93, 0.95), 200)


def test_a_fixed_seed_does_not_fix_which_ranks_certify() -> None:
    """With as many successes each time, the random roles must differ from draw to draw though the seed does not."""
    count = 600
    wrong = 0
    for draw in range(count):
        rng = np.random.default_rng([17, draw])
        failed = np.arange(500) < 200
        scores = rng.normal(size=(500, 1)) + 3.0 * failed[:, None]
        result = calibrate(scores, failed, keep=0.9, catch={0: 0.1})
        assert result.certificates[0].certified
        wrong += float(norm.sf(result.thresholds[0])) > 0.1
    m = 300 - int(np.ceil(0.12 * 300))
    allowed = allowed_misses(m, 0.1, delta=0.05)
    assert wrong / count <= bound(float(binom.cdf(allowed, m, 0.1)), count)
