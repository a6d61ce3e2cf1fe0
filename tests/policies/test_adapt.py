"""A cascade under new conditions: what each way of adapting mends and cannot mend, and that nothing is promised."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from made_runs import HEADER, make_run
from varied_runs import LAYERS, WIDTH, Change, make_varied, rotated, same, stretched

from probecascade.episode import SIGNALS, Episode, Recording
from probecascade.errors import CascadeError, DataError, NothingToDoError, UsageError
from probecascade.evaluation import compare_cascades
from probecascade.evaluation.adapted import GateChange
from probecascade.intervals import Resampling
from probecascade.policies import Adaptation, Cascade, Gate, adapt, fit_cascade, recalibrate, score_run
from probecascade.policies.adapt import WAYS
from probecascade.probes import LinearProbe, LogisticFitter
from probecascade.store import Run, RunWriter

QUICK = LogisticFitter(strengths=(1e-1,), folds=3)
FEW = Resampling(resamples=100)
OTHER = {**HEADER, "template": "sha256:other"}
Make = Callable[[str], Run]
WORLDS: dict[str, Change] = {"same": same, "stretched": stretched(1), "rotated": rotated(1)}
WORLDS["shifted"] = lambda states: states + 1.5 * np.eye(WIDTH)[0]  # towards failure


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def cascade(folder: Path) -> Cascade:
    home = make_varied(folder / "home", {"plain": same}, groups=240)
    return fit_cascade(home, keep="0.9", gates=["action:1", "action:2"], layers=[2], fitter=QUICK).cascade


@pytest.fixture(scope="module")
def world(folder: Path) -> Make:
    made: dict[str, Run] = {}

    def make(name: str) -> Run:
        if name not in made:
            made[name] = make_varied(folder / name, {"terse": WORLDS[name]}, groups=240, seed=4, header=OTHER)
        return made[name]

    return make


def judged(cascade: Cascade, run: Run, found: Adaptation) -> GateChange:
    change = compare_cascades(cascade, found.cascade, run, found.held_out, FEW)
    assert change is not None
    return change.gates[1]


def moved(change: GateChange, metric: str) -> tuple[float, float]:
    record = getattr(change, metric)
    return record["before"]["value"], record["after"]["value"]


# --- what it mends ----------------------------------------------------------------------------------------------------


def test_recentring_restores_what_stretching_cost(cascade: Cascade, world: Make) -> None:
    run = world("stretched")
    change = judged(cascade, run, adapt(cascade, run, "recentre", episodes=120))
    before, after = moved(change, "auroc")
    assert before < 0.8
    assert after > 0.85
    assert change.auroc is not None
    assert change.auroc["change"]["low"] > 0
    lost, found = moved(change, "brier")
    assert found < lost - 0.03


def test_recentring_needs_no_labels(cascade: Cascade, world: Make, folder: Path) -> None:
    run = world("stretched")
    with RunWriter(folder / "unlabelled", OTHER, layers=LAYERS, d_model=WIDTH, dtype="float32") as writer:
        for i in range(len(run)):
            writer.add(Recording(dataclasses.replace(run.episode(i), outcome="aborted"), run.hidden(i)))
    blind = Run.open(folder / "unlabelled")
    seen = adapt(cascade, run, "recentre", episodes=60)
    unseen = adapt(cascade, blind, "recentre", episodes=60)
    for one, other in zip(seen.cascade.gates, unseen.cascade.gates, strict=True):
        for name, values in one.arrays().items():
            np.testing.assert_array_equal(values, other.arrays()[name])
    assert not unseen.held_out.any()
    assert compare_cascades(cascade, unseen.cascade, blind, unseen.held_out, FEW) is None
    for how in ("bias", "refit"):
        with pytest.raises(NothingToDoError, match="holds no labelled episode to adapt on"):
            adapt(cascade, blind, how)


def test_recentring_cannot_mend_a_rotation_and_refitting_can(cascade: Cascade, world: Make) -> None:
    run = world("rotated")
    before, recentred = moved(judged(cascade, run, adapt(cascade, run, "recentre", episodes=120)), "auroc")
    assert before < 0.6
    assert abs(recentred - before) < 0.05
    _, refitted = moved(judged(cascade, run, adapt(cascade, run, "refit", episodes=120)), "auroc")
    assert refitted > 0.8


def test_a_new_bias_mends_probabilities_and_never_the_order(cascade: Cascade, world: Make) -> None:
    run = world("shifted")
    found = adapt(cascade, run, "bias", episodes=120)
    change = judged(cascade, run, found)
    before, after = moved(change, "auroc")
    assert after == before
    lost, won = moved(change, "brier")
    assert won < lost - 0.02
    old, new = (score_run(run, c.gates).scores[:, 0] for c in (cascade, found.cascade))
    there = ~np.isnan(old)
    assert (np.argsort(old[there], kind="stable") == np.argsort(new[there], kind="stable")).all()


@pytest.mark.parametrize("how", WAYS)
def test_where_nothing_changed_little_is_lost(how: str, cascade: Cascade, world: Make) -> None:
    run = world("same")
    change = judged(cascade, run, adapt(cascade, run, how, episodes=120))  # type: ignore[arg-type]
    before, after = moved(change, "auroc")
    assert after > before - 0.03
    lost, won = moved(change, "brier")
    assert won < lost + 0.02


def test_few_episodes_move_a_probe_less_than_many(cascade: Cascade, world: Make) -> None:
    run = world("stretched")

    def distance(n: int) -> float:
        new = adapt(cascade, run, "recentre", episodes=n).cascade.gates[1].probe
        old = cascade.gates[1].probe
        assert isinstance(new, LinearProbe)
        assert isinstance(old, LinearProbe)
        return float(np.abs(new.mean - old.mean).sum())

    assert 0 < distance(3) < 0.5 * distance(100)


# --- what it leaves and says ------------------------------------------------------------------------------------------


def test_the_promise_is_void_until_thresholds_are_set_anew(cascade: Cascade, world: Make, folder: Path) -> None:
    run = world("stretched")
    found = adapt(cascade, run, "recentre", episodes=60)
    assert found.cascade.promise.startswith(
        "Nothing is promised: the probes were adapted (recentre) on 60 new episodes"
    )
    assert found.cascade.calibration["certified"] is False
    assert found.cascade.thresholds.tolist() == cascade.thresholds.tolist()
    assert found.cascade.held_out == {}
    entry = found.cascade.provenance["adapted"][-1]
    assert (entry["how"], entry["episodes"], entry["replaced"]["promise"]) == ("recentre", 60, cascade.promise)
    found.cascade.save(folder / "adapted")
    loaded = Cascade.load(folder / "adapted")
    np.testing.assert_array_equal(score_run(run, loaded.gates).scores, score_run(run, found.cascade.gates).scores)
    renewed = recalibrate(loaded, run)  # its targets are still there, and the groups that adapted it stay out
    assert "60 episodes are of groups that adapted the cascade and are left out." in renewed.warnings
    assert renewed.calibration.seen.doomed + renewed.calibration.seen.successes == 180
    assert renewed.cascade.calibration["targets"]["keep"] == "9/10"
    assert "Nothing is promised: the probes" not in renewed.cascade.promise


def test_it_fits_the_template_it_was_adapted_to_and_no_longer_the_old_one(cascade: Cascade, world: Make) -> None:
    run = world("same")
    with pytest.raises(CascadeError, match="template"):
        cascade.check_fits(run.header)
    found = adapt(cascade, run, "recentre").cascade
    found.check_fits(run.header)
    with pytest.raises(CascadeError, match="template"):
        found.check_fits(HEADER | {"d_model": WIDTH, "dtype": "float32"})


def test_whole_groups_adapt_and_those_that_shaped_the_cascade_go_first(cascade: Cascade, folder: Path) -> None:
    known = make_varied(folder / "known", {"terse": stretched(1)}, groups=300)  # 240 of them made the cascade
    found = adapt(cascade, known, "recentre", episodes=30)
    assert set(cascade.overlap(known.episodes.group[found.used])) == set(known.episodes.group[found.used])
    assert not cascade.overlap(known.episodes.group[found.held_out])
    twice = make_varied(folder / "twice", {"terse": same, "polite": same}, groups=60, seed=9)
    found = adapt(cascade, twice, "bias", episodes=31)
    assert found.used.sum() == 32
    assert not set(twice.episodes.group[found.used]) & set(twice.episodes.group[found.held_out])
    assert (found.used | found.held_out).all()
    assert (adapt(cascade, twice, "bias", episodes=31, seed=1).used != found.used).any()
    assert (adapt(cascade, twice, "bias", episodes=31).used == found.used).all()
    assert adapt(cascade, twice, "bias").used.sum() == 60


def test_signals_adapt_as_states_do(folder: Path) -> None:
    home = make_varied(folder / "spoken", {"plain": same}, groups=240, loudness=0.0)
    surface = fit_cascade(home, keep="0.9", gates=["action:2"], uses="signals", fitter=QUICK).cascade
    place = SIGNALS.index("tokens_so_far")

    def longer(episode: Episode) -> Episode:
        points = []
        for point in episode.checkpoints:
            signals = list(point.signals)
            signals[place] = 40 * signals[place] + 100
            points.append(dataclasses.replace(point, signals=tuple(signals)))
        return dataclasses.replace(episode, checkpoints=tuple(points))

    source = make_varied(folder / "source", {"plain": same}, groups=240, loudness=0.0, seed=5)
    with RunWriter(folder / "longer", HEADER, layers=LAYERS, d_model=WIDTH, dtype="float32") as writer:
        for i in range(len(source)):
            writer.add(Recording(longer(source.episode(i)), source.hidden(i)))
    run = Run.open(folder / "longer")
    found = adapt(surface, run, "recentre", episodes=120)
    change = compare_cascades(surface, found.cascade, run, found.held_out, FEW)
    assert change is not None
    lost, won = moved(change.gates[0], "brier")
    assert won < lost - 0.1


# --- what is refused --------------------------------------------------------------------------------------------------


def test_what_cannot_be_adapted_is_refused(cascade: Cascade, world: Make, folder: Path) -> None:
    run = world("same")
    with pytest.raises(UsageError, match="how is 'rotate': give one of recentre, bias, refit"):
        adapt(cascade, run, "rotate")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="episodes is 0"):
        adapt(cascade, run, "bias", episodes=0)
    with pytest.raises(UsageError, match="seed is -1"):
        adapt(cascade, run, "bias", seed=-1)
    with pytest.raises(DataError, match=r"the gate at action:1 cannot be adapted: .*at least one of each"):
        adapt(cascade, run, "bias", episodes=1)
    with pytest.raises(CascadeError, match=r"fitted with .*model"):
        adapt(cascade, make_run(folder / "narrow", groups=10), "recentre")
    other = make_varied(folder / "otherwise", {"plain": same}, groups=4, header={**HEADER, "model": {"model": "big"}})
    with pytest.raises(CascadeError, match=r"model\.model"):
        adapt(cascade, other, "recentre")


def test_a_gate_that_nobody_reaches_is_refused(cascade: Cascade, world: Make) -> None:
    far = Cascade(
        [dataclasses.replace(cascade.gates[0], checkpoint="action:9", taps=())], provenance=cascade.provenance
    )
    with pytest.raises(DataError, match="comes to the gate at action:9"):
        adapt(far, world("same"), "recentre")


class Constant:
    """A probe that is not linear."""

    def score(self, states: np.ndarray, signals: np.ndarray | None = None) -> np.ndarray:
        return np.full(len(states), 0.4)

    def spec(self) -> dict[str, object]:
        return {"kind": "constant"}

    def arrays(self) -> dict[str, np.ndarray]:
        return {}


def test_a_probe_without_a_linear_part_can_only_have_a_new_bias(cascade: Cascade, world: Make) -> None:
    flat = Cascade([Gate("action:1", 2, Constant(), 0.9)], provenance=cascade.provenance)
    run = world("same")
    for how in ("recentre", "refit"):
        with pytest.raises(DataError, match=r"kind 'constant' has no linear part .* adapt its bias instead"):
            adapt(flat, run, how)
    found = adapt(flat, run, "bias")
    rate = run.episodes.failed[found.used].mean()
    assert np.nanmax(np.abs(score_run(run, found.cascade.gates).scores - rate)) < 0.02
