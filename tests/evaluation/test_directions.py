"""Which way a probe looks, and whether two probes look the same way, on states whose answer is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_runs import LAYERS, WIDTH, make_episode, make_run
from numpy.typing import NDArray
from scipy.special import expit

from probecascade.episode import Recording
from probecascade.errors import DataError
from probecascade.evaluation.directions import (
    choose_strength,
    cosines,
    neighbours,
    probe_direction,
    random_directions,
)
from probecascade.probes import CalibratedProbe, LinearProbe, LogisticFitter
from probecascade.probes.calibrated import Platt
from probecascade.store import Run, RunWriter


class Bent:
    """P(failure) from a sum of squashed columns: not linear, and rising along (3, 1, 0, 0)."""

    def score(self, states: NDArray[Any], signals: NDArray[Any] | None = None) -> NDArray[np.float64]:
        x = np.asarray(states, np.float64)
        return expit(3 * np.tanh(x[:, 0]) + np.tanh(x[:, 1]))


class Flat:
    def score(self, states: NDArray[Any], signals: NDArray[Any] | None = None) -> NDArray[np.float64]:
        return np.full(len(states), 0.5)


class Knowing(Flat):
    def direction(self) -> NDArray[np.float64]:
        return np.array([0.0, 0.0, -2.0])


def test_a_linear_probe_gives_the_gradient_of_its_log_odds() -> None:
    probe = LinearProbe(mean=np.ones(2), scale=np.array([1.0, 4.0]), weight=np.array([3.0, -16.0]), bias=1.0)
    found = probe_direction(probe)
    np.testing.assert_allclose(found.vector, [0.6, -0.8])
    assert (found.linear, found.slope, found.agreement) == (True, 5.0, 1.0)
    rows = np.array([[0.2, 0.1]])
    before, after = (np.log(p / (1 - p)) for p in (probe.score(rows), probe.score(rows + found.vector / found.slope)))
    assert (after - before).item() == pytest.approx(1.0)


def test_a_probe_may_know_its_direction() -> None:
    assert probe_direction(Knowing()).vector.tolist() == [0.0, 0.0, -1.0]


def test_a_calibration_leaves_the_direction_as_it_is() -> None:
    probe = LinearProbe(mean=np.ones(2), scale=np.ones(2), weight=np.array([3.0, -4.0]), bias=1.0)
    found = probe_direction(CalibratedProbe(probe, Platt(0.5, 0.1)))
    assert found.linear
    np.testing.assert_allclose(found.vector, [0.6, -0.8])


def test_any_other_probe_gives_its_mean_input_gradient() -> None:
    rng = np.random.default_rng(0)
    states = rng.normal(size=(300, 4)) * [0.3, 0.3, 1.0, 0.0]
    found = probe_direction(Bent(), states)
    assert not found.linear
    assert found.episodes == 64
    assert found.vector[0] > found.vector[1] > 0.2
    assert abs(found.vector[2:]).max() < 1e-6
    assert 0.9 < found.agreement < 1.0
    states[::2] = np.nan  # a block that an episode lacks
    assert np.isfinite(probe_direction(Bent(), states).vector).all()


def test_probes_without_a_direction_are_refused() -> None:
    states = np.random.default_rng(0).normal(size=(50, 3))
    with pytest.raises(DataError, match="does not change with the state"):
        probe_direction(Flat(), states)
    with pytest.raises(DataError, match="give a run"):
        probe_direction(Bent())
    with pytest.raises(DataError, match="1 were given"):
        probe_direction(Bent(), states[:1])
    surface = LinearProbe(
        mean=np.zeros(1), scale=np.ones(1), weight=np.ones(1), bias=0.0, uses="signals", columns=("round",)
    )
    with pytest.raises(DataError, match="reads signals, and a direction is one of states alone"):
        probe_direction(surface)


@pytest.mark.parametrize(("strength", "more"), [(1e-5, 0.3), (0.01, 0.05)])
def test_random_directions_lie_where_probes_on_meaningless_labels_do(strength: float, more: float) -> None:
    rng = np.random.default_rng(0)
    mixing = rng.normal(size=(40, 40)) * np.linspace(0.05, 2, 40)[:, None]
    states, groups = rng.normal(size=(400, 40)) @ mixing * np.linspace(1, 30, 40), np.arange(400)

    def share(directions: NDArray[np.float64]) -> float:
        """Of the length in standardised coordinates, what lies along the ten widest axes of the states."""
        standard = (states - states.mean(0)) / states.std(0)
        weights = directions * states.std(0)
        axes = np.linalg.svd(standard, full_matrices=False)[2][:10]
        return float(((weights @ axes.T) ** 2).sum() / (weights**2).sum())

    labels = [rng.random(400) < 0.5 for _ in range(20)]
    fitter = LogisticFitter(strengths=(strength,), folds=2)
    meaningless = np.array([probe_direction(fitter.fit(states, y, groups).probe).vector for y in labels])
    drawn = random_directions(40, 200, 0, states, strength)
    assert share(drawn) == pytest.approx(share(meaningless), abs=0.1)
    assert share(drawn) > share(random_directions(40, 200, 0)) + more
    np.testing.assert_allclose(np.linalg.norm(drawn, axis=1), 1.0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("made") / "run")


def test_neighbours_are_adjacent_layers_and_checkpoints_of_one_kind(run: Run) -> None:
    pairs = neighbours(run, ("action:2", 4))
    assert pairs[:2] == [(("action:2", 0), ("action:2", 2)), (("action:2", 2), ("action:2", 4))]
    assert (("action:1", 4), ("action:2", 4)) in pairs
    assert all(name.startswith("action") for pair in pairs for name, _ in pair)


def test_a_checkpoint_with_too_few_of_a_class_has_no_neighbours(tmp_path: Path) -> None:
    assert neighbours(make_run(tmp_path / "run", groups=30, failed=True), ("action:2", 4)) == []


def test_the_planted_direction_is_shared_by_rounds_and_not_by_layers(run: Run) -> None:
    strength = choose_strength(run, ("action:2", 4))
    found = {(c.first, c.second): c for c in cosines(run, neighbours(run, ("action:2", 4)), strength)}
    rounds = found[("action:2", 4), ("action:3", 4)]
    layers = found[("action:2", 0), ("action:2", 2)]
    assert rounds.raw > 0.9
    assert rounds.whitened > 0.9
    assert rounds.raw_null < rounds.raw
    assert abs(layers.raw) < layers.raw_null
    assert rounds.n == len(run.rows("action:2")) + len(run.rows("action:3"))


def test_whitened_cosines_are_correlations_of_scores(tmp_path: Path) -> None:
    """Two columns that say the same: probes on either point elsewhere, and score alike."""
    rng = np.random.default_rng(0)
    header = {"n_layers": 4, "model": {"model": "tiny"}}
    with RunWriter(tmp_path / "run", header, layers=LAYERS, d_model=WIDTH, dtype="float32") as writer:
        for g in range(200):
            failed = bool(g % 2)
            episode = make_episode(f"t{g}", f"g{g}", failed=failed, rounds=3)
            states = rng.normal(size=(len(episode.checkpoints), len(LAYERS), WIDTH)) * 0.05
            hidden = (1.0 if failed else -1.0) * 0.5 + rng.normal(size=(len(episode.checkpoints), 1))
            states[:, :, 0] += hidden
            states[:, :, 1] += hidden
            states[:, 1, 0] += rng.normal(size=len(states)) * 3  # layer 2 can read column 1 alone
            states[:, 2, 1] += rng.normal(size=len(states)) * 3  # layer 4 can read column 0 alone
            writer.add(Recording(episode, states.astype(np.float32)))
    stored = Run.open(tmp_path / "run")
    (pair,) = cosines(stored, [(("action:1", 2), ("action:1", 4))], 0.1)
    assert abs(pair.raw) < 0.5
    repeated = list(cosines(stored, [(("action:1", 2), ("action:1", 4))], 0.1))
    assert repeated == [pair]
    (itself,) = cosines(stored, [(("action:1", 0), ("action:1", 0))], 0.1)
    assert itself.raw == pytest.approx(1.0)
    assert itself.whitened == pytest.approx(1.0)
