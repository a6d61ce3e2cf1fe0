from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from probecascade.errors import CascadeError, DataError
from probecascade.probes import (
    PCA,
    Calibrated,
    FrozenProbe,
    LayerNorm,
    LogisticFitter,
    MassMeanFitter,
    MLPFitter,
    SequenceFitter,
    fitter_named,
    load_probe,
)
from probecascade.testing import check_probe

GOLDEN = Path(__file__).parent / "golden"
D, BLOCKS = 12, 3


def sample(blocks: int = 1, n: int = 90) -> tuple[NDArray[np.float32], NDArray[np.bool_], NDArray[np.int64]]:
    rng = np.random.default_rng(3)
    failed = rng.random(n) < 0.5
    states = rng.normal(size=(n, blocks, D)) + 0.7 * failed[:, None, None]
    if blocks > 1:
        states[::4, 0] = np.nan
    return states.reshape(n, blocks * D).astype(np.float32), failed, np.arange(n) // 2


def fitted_probes() -> dict[str, tuple[FrozenProbe, int]]:
    one, many = sample(), sample(BLOCKS)
    quick = {"strengths": (0.01, 0.1), "folds": 3}
    mlp = MLPFitter(hidden=(5, 4), members=2, folds=3)
    normed = SequenceFitter(BLOCKS, steps=(LayerNorm(BLOCKS), PCA(6, BLOCKS)), **quick)
    return {
        "linear": (LogisticFitter(**quick).fit(*one).probe, 1),
        "mass-mean": (MassMeanFitter(folds=3).fit(*one).probe, 1),
        "piped": (LogisticFitter(steps=(PCA(8), LayerNorm(), PCA(5)), **quick).fit(*one).probe, 1),
        "mlp": (mlp.fit(*one).probe, 1),
        "platt of mlp": (Calibrated(mlp, "platt").fit(*one).probe, 1),
        "isotonic": (Calibrated(LogisticFitter(**quick), "isotonic").fit(*one).probe, 1),
        "running mean": (SequenceFitter(BLOCKS, **quick).fit(*many).probe, BLOCKS),
        "attention": (SequenceFitter(BLOCKS, "attention", **quick).fit(*many).probe, BLOCKS),
        "piped sequence": (normed.fit(*many).probe, BLOCKS),
        "calibrated sequence": (Calibrated(normed, "isotonic").fit(*many).probe, BLOCKS),
    }


PROBES = fitted_probes()


@pytest.mark.parametrize("name", PROBES)
def test_every_kind_keeps_the_contract_and_comes_back_bit_for_bit(name: str, tmp_path: Path) -> None:
    probe, blocks = PROBES[name]
    check_probe(probe, blocks * D)
    save_file({k: np.ascontiguousarray(v) for k, v in probe.arrays().items()}, tmp_path / "probe.safetensors")
    spec = json.loads(json.dumps(probe.spec(), allow_nan=False))
    again = load_probe(spec, load_file(tmp_path / "probe.safetensors"))
    states = sample(blocks)[0]
    assert again.score(states).tobytes() == probe.score(states).tobytes()
    assert again.spec() == probe.spec()
    assert {k: v.tobytes() for k, v in again.arrays().items()} == {k: v.tobytes() for k, v in probe.arrays().items()}
    assert type(again) is type(probe)


@pytest.mark.parametrize("name", ["attention", "running mean", "piped sequence", "calibrated sequence"])
def test_rows_with_missing_blocks_have_the_same_bits_alone_and_in_a_batch(name: str) -> None:
    probe, _ = PROBES[name]
    states = sample(BLOCKS)[0]
    batch = probe.score(states)
    alone = [probe.score(states[i : i + 1])[0] for i in range(len(states))]
    assert batch.tolist() == alone
    assert probe.score(np.asfortranarray(states[::-1]))[::-1].tolist() == alone


@pytest.mark.parametrize("name", PROBES)
def test_parameters_are_read_only_and_every_missing_array_is_refused(name: str) -> None:
    probe, _ = PROBES[name]
    arrays = probe.arrays()
    for array in arrays:
        if array.rpartition(".")[2] not in ("bias", "slope", "intercept"):
            assert not arrays[array].flags.writeable
        with pytest.raises(CascadeError, match=r"lacks the arrays|damaged"):
            load_probe(probe.spec(), {k: v for k, v in arrays.items() if k != array})


@pytest.mark.parametrize("name", PROBES)
def test_states_that_cannot_be_scored_are_refused(name: str) -> None:
    probe, blocks = PROBES[name]
    wrong: list[Any] = [None, np.zeros((2, blocks * D + 1)), np.zeros((2, blocks * (D + 1))), np.zeros(blocks * D)]
    part_missing = np.zeros((2, blocks * D))
    part_missing[0, 0] = np.nan
    infinite = np.zeros((2, blocks * D))
    infinite[1, :D] = np.inf
    for states in [*wrong, part_missing, infinite, np.full((1, blocks * D), np.nan)]:
        with pytest.raises(DataError):
            probe.score(states)


def test_a_probe_without_a_known_kind_or_step_is_refused() -> None:
    probe, _ = PROBES["piped"]
    for spec in ({}, {"kind": "forest"}, {"kind": ["linear"]}, [1]):
        with pytest.raises(CascadeError, match=r"this version reads .*linear, .*mlp, .*sequence"):
            load_probe(spec, {})  # type: ignore[arg-type]
    step = probe.spec() | {"steps": [{"kind": "whiten"}]}
    with pytest.raises(CascadeError, match="step of kind 'whiten'"):
        load_probe(step, probe.arrays())
    with pytest.raises(CascadeError, match="damaged"):
        load_probe(PROBES["isotonic"][0].spec() | {"method": "guess"}, PROBES["isotonic"][0].arrays())


def test_probes_of_the_previous_format_load_and_score_bit_for_bit() -> None:
    """Written by the version that knew linear probes only."""
    specs = json.loads((GOLDEN / "linear.json").read_text())
    arrays = load_file(GOLDEN / "linear.safetensors")
    given = {name: arrays[f"given.{name}"] for name in ("states", "signals")}
    for name, spec in specs.items():
        assert set(spec) == {"kind", "uses", "columns", "roots"}
        own = {k: arrays[f"{name}.{k}"] for k in ("mean", "scale", "weight", "bias")}
        scores = load_probe(spec, own).score(given["states"], given["signals"])
        assert scores.tobytes() == arrays[f"expected.{name}"].tobytes()


SCORE_WITHOUT_THEM = """
import json, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("sklearn", "torch", "transformers"):
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
from safetensors.numpy import load_file
from probecascade.probes import load_probe
arrays = load_file(sys.argv[1])
probe = load_probe(json.loads(sys.argv[2]), {k[2:]: v for k, v in arrays.items() if k.startswith("p.")})
print(probe.score(arrays["states"]).tobytes().hex())
"""


@pytest.mark.parametrize("name", ["linear", "mlp", "piped sequence", "isotonic"])
def test_probes_load_and_score_where_scikit_learn_and_torch_cannot_be_imported(name: str, tmp_path: Path) -> None:
    probe, blocks = PROBES[name]
    states = sample(blocks)[0]
    path = tmp_path / "probe.safetensors"
    save_file({f"p.{k}": np.ascontiguousarray(v) for k, v in probe.arrays().items()} | {"states": states}, path)
    command = [sys.executable, "-c", SCORE_WITHOUT_THEM, str(path), json.dumps(probe.spec())]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == probe.score(states).tobytes().hex()


def test_a_fit_leaves_its_input_alone_and_repeats_bit_for_bit() -> None:
    for name, blocks in (("mlp", 1), ("sequence-attention", BLOCKS), ("elastic-net", 1)):
        states, failed, groups = sample(blocks)
        kept = states.copy()
        fitter = fitter_named(name, blocks=blocks, folds=3, calibrated="platt", class_weight="balanced")
        first, second = fitter.fit(states, failed, groups), fitter.fit(states, failed, groups)
        assert first.out_of_fold.tobytes() == second.out_of_fold.tobytes()
        assert first.probe.score(states).tobytes() == second.probe.score(states).tobytes()
        np.testing.assert_array_equal(states, kept)
