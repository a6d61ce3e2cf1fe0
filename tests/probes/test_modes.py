from __future__ import annotations

import json

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load, save
from sklearn.linear_model import LogisticRegression

from probecascade.episode import SIGNALS
from probecascade.errors import CascadeError, DataError
from probecascade.probes import ModeFitter, ModeProbe, load_mode_probe
from probecascade.probes.modes import softmax
from probecascade.probes.multinomial import multinomial_path

MODES = ("budget", "loop", "wrong")


def planted(
    n: int, seed: int, *, loud: float = 2.0, width: int = 12
) -> tuple[NDArray[np.float64], NDArray[np.object_]]:
    """Rows whose first three columns give the mode away, by `loud` standard deviations."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(3, size=n)
    rows = rng.normal(size=(n, width))
    rows[np.arange(n), codes] += loud
    return rows, np.array(MODES, dtype=object)[codes]


def groups_of(n: int, size: int = 2) -> NDArray[np.object_]:
    return np.array([f"g{i // size}" for i in range(n)], dtype=object)


def made(width: int = 7, seed: int = 0) -> ModeProbe:
    rng = np.random.default_rng(seed)
    scale = np.abs(rng.normal(size=width)) + 0.1
    return ModeProbe(MODES, rng.normal(size=width), scale, rng.normal(size=(3, width)), rng.normal(size=3))


def test_planted_modes_are_told_apart() -> None:
    rows, modes = planted(300, 0)
    fitted = ModeFitter().fit(rows, modes, groups_of(300))
    assert fitted.probe.names == MODES
    assert min(found.low for found in fitted.auroc.values()) > 0.85
    assert fitted.confusion.sum() == 300
    assert np.trace(fitted.confusion) > 210
    fresh, truth = planted(300, 1)
    likeliest = np.array(MODES, dtype=object)[fitted.probe.probabilities(fresh).argmax(axis=1)]
    assert (likeliest == truth).mean() > 0.7


def test_noise_tells_nothing_apart() -> None:
    values = []
    for seed in range(6):
        rows, modes = planted(150, seed, loud=0.0)
        values += [found.value for found in ModeFitter(folds=3).fit(rows, modes, groups_of(150)).auroc.values()]
    assert 0.4 < np.mean(values) < 0.6


def test_a_group_is_never_scored_by_a_model_that_saw_it() -> None:
    """Twins: each group has its own random mode and direction. Seen groups would be recognised at once."""
    rng = np.random.default_rng(3)
    centres = rng.normal(size=(60, 80)) * 6
    mode_of = np.array(MODES, dtype=object)[rng.integers(3, size=60)]
    which = np.repeat(np.arange(60), 3)
    rows = centres[which] + rng.normal(size=(180, 80)) * 0.1
    fitter = ModeFitter(strengths=(0.1,))
    together = fitter.fit(rows, mode_of[which], which.astype(str))
    apart = fitter.fit(rows, mode_of[which], [f"r{i}" for i in range(180)])
    assert np.mean([found.value for found in together.auroc.values()]) < 0.65
    assert np.mean([found.value for found in apart.auroc.values()]) > 0.95


def test_rare_modes_are_merged_and_rarer_ones_left_out() -> None:
    rows, modes = planted(200, 4)
    modes[:7], modes[7:14] = "typo", "crash"
    groups = np.array([f"g{i}" for i in range(200)], dtype=object)
    fitted = ModeFitter().fit(rows, modes, groups)
    assert fitted.probe.names == ("budget", "loop", "other", "wrong")
    assert (fitted.merged, fitted.left_out) == (("crash", "typo"), ())
    assert fitted.record()["modes"]["other"] == 14
    modes[7:14] = "loop"
    fitted = ModeFitter().fit(rows, modes, groups)
    assert (fitted.merged, fitted.left_out) == ((), ("typo",))
    assert np.isnan(fitted.out_of_fold[:7]).all()
    assert np.isfinite(fitted.out_of_fold[7:]).all()
    # ten episodes of one group are one group
    modes[:20] = "typo"
    groups[:20] = "same"
    assert ModeFitter().fit(rows, modes, groups).left_out == ("typo",)


def test_too_little_to_tell_apart_is_refused() -> None:
    rows, modes = planted(40, 0)
    with pytest.raises(DataError, match=r"1 failure modes occur in 10 groups or more \(loop\)"):
        ModeFitter().fit(rows, ["loop"] * 40, groups_of(40))
    with pytest.raises(DataError, match="39 modes and 40 groups were given for 40 rows"):
        ModeFitter().fit(rows, modes[:39], groups_of(40))
    rows[3, 3] = np.nan
    with pytest.raises(DataError, match="1 of 40 states hold NaN"):
        ModeFitter().fit(rows, modes, groups_of(40))


def test_a_row_has_its_bits_alone_and_in_any_batch() -> None:
    probe = made(61)
    rows = np.random.default_rng(1).normal(size=(37, 61)).astype(np.float16)
    together = probe.probabilities(rows)
    assert together.shape == (37, 3)
    np.testing.assert_allclose(together.sum(axis=1), 1.0, rtol=1e-12)
    for i, row in enumerate(rows):
        assert probe.probabilities(row[None, :])[0].tolist() == together[i].tolist()
    assert np.array_equal(probe.probabilities(np.asfortranarray(rows.astype(np.float32)[::-1]))[::-1], together)
    assert probe.probabilities(rows[:0]).shape == (0, 3)


def test_large_logits_do_not_overflow() -> None:
    np.testing.assert_array_equal(softmax(np.array([[1e4, 0.0], [-1e4, 0.0]])), [[1.0, 0.0], [0.0, 1.0]])


def test_it_round_trips_bit_exact() -> None:
    probe = made()
    restored = load_mode_probe(json.loads(json.dumps(probe.spec())), load(save(probe.arrays())))
    rows = np.random.default_rng(2).normal(size=(9, 7))
    assert np.array_equal(restored.probabilities(rows), probe.probabilities(rows))
    assert (restored.names, restored.uses) == (probe.names, probe.uses)


@pytest.mark.parametrize(
    ("spec", "drop"),
    [({"kind": "linear"}, ""), ({"names": ["a"]}, ""), ({"names": 3}, ""), ({"uses": "text"}, ""), ({}, "bias")],
)
def test_a_damaged_one_is_refused(spec: dict[str, object], drop: str) -> None:
    probe = made()
    arrays = {name: values for name, values in probe.arrays().items() if name != drop}
    with pytest.raises(CascadeError):
        load_mode_probe({**probe.spec(), **spec}, arrays)


def test_signals_are_read_with_their_roots() -> None:
    rng = np.random.default_rng(5)
    signals = rng.normal(size=(120, len(SIGNALS)))
    modes = np.where(signals[:, SIGNALS.index("entropy_mean")] > 0, "loop", "wrong").astype(object)
    fitted = ModeFitter().fit(signals, modes, groups_of(120, 1), uses="signals")
    assert fitted.auroc["loop"].value > 0.9
    assert len(fitted.probe.mean) == 2 * len(SIGNALS)
    assert fitted.probe.probabilities(None, signals).shape == (120, 2)
    with pytest.raises(DataError, match="reads signals and was given none"):
        fitted.probe.probabilities(signals)
    with pytest.raises(DataError, match="width 6 and the mode probe was fitted on width 7"):
        made().probabilities(np.zeros((1, 6)))


@pytest.mark.parametrize("width", [5, 90])
def test_the_path_is_that_of_scikit_learn(width: int) -> None:
    rows, modes = planted(80, 6, width=width)
    rows -= rows.mean(axis=0)
    codes = np.searchsorted(MODES, modes.tolist())
    weights, biases = multinomial_path(rows, codes, 3, (0.01, 1.0))
    for k, strength in enumerate((0.01, 1.0)):
        model = LogisticRegression(C=strength, tol=1e-9, max_iter=5000).fit(rows, codes)
        np.testing.assert_allclose(weights[k], model.coef_, atol=5e-4)
        np.testing.assert_allclose(biases[k], model.intercept_ - model.intercept_.mean(), atol=5e-4)
