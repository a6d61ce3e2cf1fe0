"""Calibrations on episodes drawn from a population: what is promised, and whether it is true of the population."""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Iterable, Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from probecascade.bounds import allowed_misses
from probecascade.testing.worlds import Outcome, Population, World
from probecascade.thresholds import Calibration, GateScores, IndexShape, calibrate, learn_shape
from probecascade.thresholds.firing import FloatArray

DELTA = 0.05
SIZES = (4, 8)  # episodes of a group
_SHAPED_ON = 20_000  # episodes of the population that the oracle's shape is learnt from


@dataclasses.dataclass(frozen=True)
class Cell:
    """One setting. `n` counts calibration episodes, or groups where `correlation` is given.

    `catch` are targets by gate; with `rho` they are that part of what the population oracle catches at the keep target
    instead, by the gates `catch` names. `deployed` is the share of doomed episodes after deployment, where it changes.
    """

    part: str
    world: World
    n: int
    keep: float | None = None
    catch: tuple[tuple[int, float], ...] = ()
    rho: float | None = None
    deployed: float | None = None
    correlation: float | None = None


@dataclasses.dataclass(frozen=True)
class Entrant:
    """A way to calibrate; `pooled` hides the groups. The promise is judged per `unit`."""

    name: str
    method: str
    teachers: bool = False
    pooled: bool = False
    unit: Literal["episode", "group"] = "episode"


CERTIFIED, EMPIRICAL = Entrant("certified", "certified"), Entrant("empirical", "empirical")
WITH_TEACHERS = Entrant("certified + teachers", "certified", teachers=True)
ORACLE_SHAPE = Entrant("oracle shape, all certify", "")
ENTRANTS: Mapping[str, tuple[Entrant, ...]] = {
    "keep": (
        EMPIRICAL,
        *(Entrant(name, name) for name in ("paper", "uniform", "single", "maxrank")),
        CERTIFIED,
        WITH_TEACHERS,
        ORACLE_SHAPE,
    ),
    "catch": (EMPIRICAL, CERTIFIED),
    "both": (CERTIFIED, WITH_TEACHERS),
    "shift": (CERTIFIED,),
    "groups": (
        Entrant("certified per episode", "certified"),
        Entrant("certified per group", "certified", unit="group"),
        Entrant("pooled dependent runs", "certified", pooled=True),
        Entrant("empirical", "empirical", pooled=True),
    ),
}
"""By part of the harness; those that promise nothing are judged as if their target were a promise."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """One calibration: whether every target is promised, which promises are false of the population, and what is saved.

    `saved` are mean tokens per episode, 0 where nothing is promised; `kept` and `caught` (by the last gate) are shares
    of the population under the thresholds; `fires` whether any of its episodes is aborted under a promise.
    """

    certified: bool
    keep_broken: bool
    catch_broken: bool
    fires: bool
    kept: float
    caught: float
    saved: float


@dataclasses.dataclass(frozen=True, eq=False)
class Truth:
    """The population of a cell, the targets, and what the oracle that knows the population does."""

    population: Population
    keep: float | None
    catch: Mapping[int, float]
    oracle: Outcome | None

    @classmethod
    def of(cls, cell: Cell, size: int, seed: int) -> Truth:
        world = cell.world if cell.deployed is None else dataclasses.replace(cell.world, failure=cell.deployed)
        rng = np.random.default_rng([seed, _code(world), 0])
        if cell.correlation is None:
            population = Population(world.sample(size, rng))
        else:
            population = Population(*world.sample_groups(2 * size // sum(SIZES), SIZES, rng, cell.correlation))
        oracle = None
        if cell.keep is not None:
            oracle = population.outcome(_oracle(population.data, 1.0 - cell.keep))
        catch = dict(cell.catch)
        if cell.rho is not None:
            assert oracle is not None
            catch = {gate: round(cell.rho * float(oracle.caught[gate]), 4) for gate in catch}
        return cls(population, cell.keep, catch, oracle)

    def judge(self, result: Calibration) -> Trial:
        """The trial of a calibration, per the unit that its promise is about."""
        outcome = self.population.outcome(result.thresholds, result.unit)
        # A method without certificates claims its targets; of the others only what they certify counts.
        claims = [(c.kind, c.gate) for c in result.certificates if c.certified]
        if not result.certificates:
            claims = [("catch", gate) for gate in self.catch] + ([] if self.keep is None else [("keep", None)])
        false = [
            outcome.caught[gate] < self.catch[gate] for kind, gate in claims if kind == "catch" and gate is not None
        ]
        return Trial(
            certified=result.certified,
            keep_broken=("keep", None) in claims and self.keep is not None and outcome.kept < self.keep,
            catch_broken=any(false),
            fires=bool(claims) and outcome.caught[-1] > 0,
            kept=outcome.kept,
            caught=float(outcome.caught[-1]),
            saved=outcome.saved if claims else 0.0,
        )


def run_trials(cell: Cell, entrants: Iterable[Entrant], draws: range, size: int, seed: int) -> dict[str, list[Trial]]:
    """Trials by entrant, one for each of the draws, which are the same in any range. `size`: of the population."""
    truth = _truth(cell, size, seed)
    found: dict[str, list[Trial]] = {entrant.name: [] for entrant in entrants}
    for draw in draws:
        rng = np.random.default_rng([seed, _code(cell), 1, draw])
        if cell.correlation is None:
            failure = None if cell.deployed is None else cell.world.failure
            data, group = truth.population.sample(cell.n, rng, failure), np.arange(cell.n)
        else:
            data, group = truth.population.sample_groups(cell.n, rng)
        teachers = truth.population.sample(cell.n, rng)
        for entrant in entrants:
            if entrant.name == ORACLE_SHAPE.name:
                found[entrant.name].append(_oracle_shape(cell, truth, data))
            else:
                result = _calibrate(cell, truth, entrant, data, group, teachers, draw)
                found[entrant.name].append(truth.judge(result))
    return found


def _calibrate(
    cell: Cell,
    truth: Truth,
    entrant: Entrant,
    data: GateScores,
    group: NDArray[np.intp],
    teachers: GateScores,
    seed: int,
) -> Calibration:
    return calibrate(
        data.scores,
        data.failed,
        None if cell.correlation is None or entrant.pooled else group,
        data.cost_after,
        catch=dict(truth.catch) or None,
        keep=truth.keep,
        confidence=1.0 - DELTA,
        unit=entrant.unit,
        teachers=teachers if entrant.teachers else None,
        method=entrant.method,
        seed=seed,
    )


def _oracle_shape(cell: Cell, truth: Truth, data: GateScores) -> Trial:
    """One order statistic of all calibration successes along the shape that the population teaches.

    The shape is that of the level where the order statistic lies in expectation.
    """
    assert cell.keep is not None
    m = data.successes
    allowed = allowed_misses(m, 1.0 - cell.keep, delta=DELTA)
    if allowed < 0:
        return Trial(False, False, False, False, 1.0, 0.0, 0.0)
    usual = round(cell.n * (1.0 - cell.world.failure))
    loss = max(allowed_misses(usual, 1.0 - cell.keep, delta=DELTA), 0) + 0.5
    shape = _shape(truth, loss / usual)
    reach = np.sort(shape.index(data.scores[~data.failed]).max(axis=1))[::-1]
    outcome = truth.population.outcome(shape.cut(float(reach[allowed])))
    caught = float(outcome.caught[-1])
    return Trial(True, outcome.kept < cell.keep, False, caught > 0, outcome.kept, caught, outcome.saved)


@functools.lru_cache(maxsize=2)
def _truth(cell: Cell, size: int, seed: int) -> Truth:
    return Truth.of(cell, size, seed)


@functools.lru_cache(maxsize=4)
def _shape(truth: Truth, loss: float) -> IndexShape:
    return _learnt(truth.population.data, loss)


def _learnt(data: GateScores, loss: float) -> IndexShape:
    head = slice(_SHAPED_ON)
    return learn_shape(GateScores(data.scores[head], data.failed[head], data.cost_after[head]), loss=loss)


def _oracle(data: GateScores, loss: float) -> FloatArray:
    """Thresholds that lose this share of the population's successes, along the shape that it teaches at that loss."""
    shape = _learnt(data, loss)
    reach = np.sort(shape.index(data.scores[~data.failed]).max(axis=1))[::-1]
    return shape.cut(float(reach[int(loss * len(reach))]))


def _code(setting: Cell | World) -> int:
    """A number that stays the same from run to run, so that every setting draws episodes of its own."""
    return zlib.crc32(repr(setting).encode())
