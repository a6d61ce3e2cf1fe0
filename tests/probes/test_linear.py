from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from probecascade.episode import SIGNALS
from probecascade.errors import CascadeError, DataError
from probecascade.interfaces import Probe
from probecascade.probes import LinearProbe, load_probe


def states_probe(width: int = 6) -> LinearProbe:
    rng = np.random.default_rng(1)
    return LinearProbe(rng.normal(size=width), rng.uniform(0.5, 2, size=width), rng.normal(size=width), 0.1)


def signals_probe(roots: bool = False) -> LinearProbe:
    rng = np.random.default_rng(2)
    width = 4 if roots else 2
    return LinearProbe(
        rng.normal(size=width),
        np.ones(width),
        rng.normal(size=width),
        -0.3,
        uses="signals",
        columns=("logprob_mean", "failed_actions"),
        roots=roots,
    )


def test_it_is_a_probe() -> None:
    assert isinstance(states_probe(), Probe)


@pytest.mark.parametrize("probe", [states_probe(), signals_probe(), signals_probe(roots=True)])
def test_round_trip_through_json_and_safetensors_keeps_every_bit(probe: LinearProbe, tmp_path: Path) -> None:
    save_file(probe.arrays(), tmp_path / "probe.safetensors")
    spec = json.loads(json.dumps(probe.spec()))
    again = load_probe(spec, load_file(tmp_path / "probe.safetensors"))
    rng = np.random.default_rng(3)
    states, signals = rng.normal(size=(50, 6)), rng.normal(size=(50, len(SIGNALS)))
    assert again.score(states, signals).tobytes() == probe.score(states, signals).tobytes()
    assert again.spec() == probe.spec()


def test_a_probe_cannot_be_changed() -> None:
    weight = np.ones(3)
    probe = LinearProbe(np.zeros(3), np.ones(3), weight, 0.0)
    weight[:] = 5.0
    assert probe.weight.tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(ValueError, match="read-only"):
        probe.weight[0] = 2.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        probe.bias = 1.0  # type: ignore[misc]


def test_a_signals_probe_reads_its_columns_by_name_and_ignores_states() -> None:
    probe = signals_probe()
    signals = np.random.default_rng(4).normal(size=(8, len(SIGNALS)))
    chosen = signals[:, [SIGNALS.index("logprob_mean"), SIGNALS.index("failed_actions")]]
    expected = 1 / (1 + np.exp(-((chosen - probe.mean) / probe.scale @ probe.weight + probe.bias)))
    np.testing.assert_allclose(probe.score(None, signals), expected, rtol=1e-12)
    assert (probe.score(np.zeros((8, 3)), signals) == probe.score(None, signals)).all()


def test_roots_keep_the_sign() -> None:
    probe = LinearProbe(
        np.zeros(2),
        np.ones(2),
        np.array([0.0, 1.0]),
        0.0,
        uses="signals",
        columns=("logprob_min",),
        roots=True,
    )
    signals = np.zeros((3, len(SIGNALS)), dtype=np.float32)
    signals[:, SIGNALS.index("logprob_min")] = [-4.0, 0.0, 9.0]
    np.testing.assert_allclose(probe.score(None, signals), 1 / (1 + np.exp(-np.array([-2.0, 0.0, 3.0]))))


@pytest.mark.parametrize(
    ("states", "message"),
    [
        (np.zeros((2, 5)), "width 5 and the probe was fitted on width 6"),
        (np.zeros(6), r"shape \(6,\)"),
        (np.array([[0, 1, 2, 3, 4, np.nan], [0] * 6]), "1 of 2 states hold NaN or infinity"),
        (np.array([[0, 1, 2, 3, 4, np.inf]], dtype=np.float16), "1 of 1 states hold NaN or infinity"),
        (np.zeros((1, 6), dtype=np.complex128), "dtype complex128"),
        (None, "reads states and was given none"),
    ],
)
def test_states_that_cannot_be_scored_are_refused(states: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        states_probe().score(states)


def test_signals_that_cannot_be_scored_are_refused() -> None:
    with pytest.raises(DataError, match="reads signals and was given none"):
        signals_probe().score(np.zeros((1, 6)))
    with pytest.raises(DataError, match=f"2 columns; give all {len(SIGNALS)}"):
        signals_probe().score(None, np.zeros((1, 2)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale": np.array([1.0, 0.0])}, "scale that is not positive"),
        ({"weight": np.ones(3)}, "three arrays of one shape"),
        ({"mean": np.array([0.0, np.nan])}, "NaN or infinite parameters"),
        ({"bias": float("inf")}, "NaN or infinite parameters"),
        ({"uses": "tokens"}, "cannot use 'tokens'"),
        ({"columns": ("round",)}, "only signals have them"),
        ({"uses": "signals"}, "distinct names"),
        ({"uses": "signals", "columns": ("round", "mood")}, "distinct names"),
        ({"uses": "signals", "columns": ("round", "round")}, "distinct names"),
        ({"uses": "signals", "columns": ("round",)}, "2 parameters for 1 features"),
    ],
)
def test_parameters_that_do_not_fit_together_are_refused(change: dict[str, Any], message: str) -> None:
    sound: dict[str, Any] = {"mean": np.zeros(2), "scale": np.ones(2), "weight": np.ones(2), "bias": 0.0}
    LinearProbe(**sound)
    with pytest.raises(DataError, match=message):
        LinearProbe(**sound | change)


def test_a_damaged_or_unknown_probe_is_refused() -> None:
    probe = states_probe()
    with pytest.raises(CascadeError, match="kind 'forest'"):
        load_probe(probe.spec() | {"kind": "forest"}, probe.arrays())
    without = {name: values for name, values in probe.arrays().items() if name not in ("scale", "bias")}
    with pytest.raises(CascadeError, match="lacks the arrays scale, bias"):
        load_probe(probe.spec(), without)
    with pytest.raises(CascadeError, match="damaged"):
        load_probe(probe.spec(), probe.arrays() | {"weight": np.ones(7)})
    with pytest.raises(CascadeError, match=r"bias of shape \(2,\)"):
        load_probe(probe.spec(), probe.arrays() | {"bias": np.ones(2)})
    with pytest.raises(CascadeError, match="distinct names"):
        load_probe(probe.spec() | {"uses": "signals", "columns": ["mood"]}, probe.arrays())


def test_importing_probes_brings_no_deep_learning_library() -> None:
    code = "import sys, probecascade.probes; sys.exit(bool({'torch', 'transformers', 'sklearn'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
