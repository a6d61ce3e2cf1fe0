from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit

from probecascade.errors import DataError, UsageError
from probecascade.probes import LogisticFitter, MLPFitter, MLPProbe
from probecascade.probes.mlp_fit import _backward, _forward, _initial


def xor(n: int, d: int = 8, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.int64]]:
    """Failure where two features agree in sign: no plane tells anything."""
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(n, d))
    return states, states[:, 0] * states[:, 1] > 0, np.arange(n) // 2


@pytest.mark.parametrize("hidden", [(16,), (16, 8)])
def test_it_learns_what_no_plane_separates(hidden: tuple[int, ...]) -> None:
    states, failed, groups = xor(500)
    assert MLPFitter(hidden=hidden, folds=3).fit(states, failed, groups).auroc > 0.8
    assert LogisticFitter(folds=3).fit(states, failed, groups).auroc < 0.6


def test_scores_are_the_mean_of_its_members_probabilities() -> None:
    rng = np.random.default_rng(0)
    shapes = [(2, 5, 4), (2, 3, 5), (2, 1, 3)]
    weights = tuple(rng.normal(size=s) for s in shapes)
    biases = tuple(rng.normal(size=s[:2]) for s in shapes)
    probe = MLPProbe(rng.normal(size=4), rng.uniform(0.5, 2, size=4), weights, biases)
    states = rng.normal(size=(7, 4))
    chances = []
    for member in range(2):
        units = (states - probe.mean) / probe.scale
        for layer in range(3):
            units = np.maximum(units, 0) if layer else units
            units = units @ weights[layer][member].T + biases[layer][member]
        chances.append(expit(units[:, 0]))
    np.testing.assert_allclose(probe.score(states), np.mean(chances, axis=0), rtol=1e-12)


def test_gradients_agree_with_finite_differences() -> None:
    rng = np.random.default_rng(0)
    weights, biases = _initial(6, (5, 4), 2, 0.3, 0)
    parameters = [p.astype(np.float64) for p in (*weights, *biases)]
    features, sign = rng.normal(size=(9, 6)), rng.choice([-1.0, 1.0], size=9)

    def loss() -> float:
        logits = _forward(features, parameters[:3], parameters[3:])[-1][..., 0]  # type: ignore[arg-type]
        return float(np.logaddexp(0, -sign * logits).sum())

    layers = _forward(features, parameters[:3], parameters[3:])  # type: ignore[arg-type]
    pull = -(sign * expit(-sign * layers[-1][..., 0]))[..., None]
    of_weights, of_biases = _backward(features, layers, parameters[:3], pull)  # type: ignore[arg-type]
    for p, gradient in zip(parameters, [*of_weights, *of_biases], strict=True):
        for place in [(0,) * p.ndim, tuple(s - 1 for s in p.shape)]:
            kept = p[place]
            p[place] = kept + 1e-6
            up = loss()
            p[place] = kept - 1e-6
            down = loss()
            p[place] = kept
            assert gradient[place] == pytest.approx((up - down) / 2e-6, abs=1e-6)


def test_early_stopping_on_held_out_groups_keeps_noise_from_being_learnt_by_heart() -> None:
    """States name their group and labels are drawn per group: stopping by torn groups would train to the end."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(60), 6)
    states = rng.normal(size=(60, 20))[groups] + 0.05 * rng.normal(size=(360, 20))
    failed = rng.permutation(np.arange(60) % 2 == 0)[groups]
    fitter = MLPFitter(hidden=(16,), folds=3)
    honest = fitter.fit(states, failed, groups).probe.score(states)
    torn = fitter.fit(states, failed, np.arange(360)).probe.score(states)
    assert np.abs(honest - 0.5).mean() < 0.25
    assert np.abs(torn - 0.5).mean() > 0.4


def test_members_and_seeds_differ_and_the_decay_is_chosen() -> None:
    states, failed, groups = xor(300)
    first = MLPFitter(hidden=(8,), folds=3).fit(states, failed, groups).probe
    other = MLPFitter(hidden=(8,), folds=3, seed=1).fit(states, failed, groups).probe
    assert isinstance(first, MLPProbe)
    assert first.weights[0].shape == (3, 8, 8)
    assert not np.allclose(first.weights[0][0], first.weights[0][1])
    assert not np.allclose(first.score(states), other.score(states))
    chosen = MLPFitter(hidden=(8,), folds=3, members=1, decays=(0.1, 300.0)).fit(states, failed, groups)
    assert chosen.strength == 0.1  # at 300 every weight decays to nothing within an epoch
    assert chosen.auroc > 0.65


def test_settings_and_parameters_that_cannot_be_are_refused() -> None:
    states, failed, groups = xor(40)
    for settings in ({"hidden": ()}, {"hidden": (4, 4, 4)}, {"hidden": (0,)}, {"members": 0}):
        with pytest.raises(UsageError, match="one or two layers and at least one member"):
            MLPFitter(**settings).fit(states, failed, groups)
    with pytest.raises(UsageError, match="weight decays"):
        MLPFitter(decays=(-1.0,)).fit(states, failed, groups)
    rare = np.arange(40) < 4
    with pytest.raises(DataError, match="needs two of each"):
        MLPFitter().fit(states, rare, groups)
    sound = (np.zeros(2), np.ones(2), (np.ones((1, 3, 2)), np.ones((1, 1, 3))), (np.ones((1, 3)), np.ones((1, 1))))
    MLPProbe(*sound)
    wrong = [
        (sound[0], np.zeros(2), *sound[2:]),
        (*sound[:2], (np.ones((1, 3, 2)),), (np.ones((1, 3)),)),
        (*sound[:2], (np.ones((1, 3, 2)), np.ones((1, 1, 4))), sound[3]),
        (*sound[:3], (np.ones((1, 3)), np.ones((2, 1)))),
        (*sound[:2], (), ()),
    ]
    for parts in wrong:
        with pytest.raises(DataError, match="MLP probe"):
            MLPProbe(*parts)
