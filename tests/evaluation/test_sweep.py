"""The sweep finds what was planted, finds nothing in noise, and is not fooled by difficulty or by its own choices."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from probecascade.episode import SIGNALS
from probecascade.errors import DataError, StoreError, UsageError
from probecascade.evaluation import Resampling, Sweep, SweepResult, sweep_run
from probecascade.evaluation.crossfit import shared_folds
from probecascade.probes import auroc

LAYERS = (0, 2, 4)
FEW = Resampling(resamples=300)


class SimulatedRun:
    """What a sweep reads of a run, from arrays.

    states: by (checkpoint, layer), (n_episodes, d). reached: by checkpoint, which episodes come there (all if not
    named). final: checkpoints on the last turn. texts: by checkpoint.
    """

    path = Path("runs/simulated")

    def __init__(
        self,
        failed: np.ndarray,
        groups: np.ndarray,
        states: dict[tuple[str, int], np.ndarray],
        *,
        layers: Sequence[int] = LAYERS,
        reached: dict[str, np.ndarray] | None = None,
        final: Sequence[str] = (),
        signals: dict[str, np.ndarray] | None = None,
        texts: dict[str, list[str]] | None = None,
        labelled: np.ndarray | None = None,
    ) -> None:
        self.layers = tuple(layers)
        self.header: dict[str, Any] = {"n_layers": max(layers)}
        self.checkpoint_names = tuple(dict.fromkeys(name for name, _ in states))
        labelled = np.ones(len(failed), dtype=bool) if labelled is None else labelled
        self.episodes = SimpleNamespace(failed=failed, group=groups.astype(object), labelled=labelled)
        self._states, self._final = states, set(final)
        everyone = np.ones(len(failed), dtype=bool)
        self._reached = {name: (reached or {}).get(name, everyone) for name in self.checkpoint_names}
        self._signals, self._texts = signals or {}, texts or {}

    def __len__(self) -> int:
        return len(self.episodes.failed)

    def rows(self, name: str) -> SimpleNamespace:
        episode = np.flatnonzero(self._reached[name])
        signals = self._signals.get(name, np.zeros((len(self), len(SIGNALS))))
        return SimpleNamespace(
            episode=episode, final=np.full(len(episode), name in self._final), signals=signals[episode]
        )

    def states(self, name: str, layer: int) -> np.ndarray:
        return self._states[name, layer][self._reached[name]].astype(np.float32)

    def texts(self, name: str) -> list[str]:
        found = self._texts.get(name, [""] * len(self))
        return [found[i] for i in np.flatnonzero(self._reached[name])]


def noise(
    n: int, seed: int, *, names: Sequence[str] = ("prompt", "action:1"), layers: Sequence[int] = LAYERS, d: int = 6
) -> tuple[np.random.Generator, np.ndarray, dict[tuple[str, int], np.ndarray]]:
    """Coin flips for outcomes and states that know nothing of them."""
    rng = np.random.default_rng(seed)
    states = {(name, layer): rng.normal(size=(n, d)) for name in names for layer in layers}
    return rng, rng.random(n) < 0.5, states


def alone(n: int) -> np.ndarray:
    return np.array([f"task-{i:03d}" for i in range(n)])


def row_of(rows: Sequence[dict[str, Any]], **facts: Any) -> dict[str, Any]:
    (found,) = [row for row in rows if all(row[key] == value for key, value in facts.items())]
    return found


def sentence(result: SweepResult, words: str) -> str:
    (found,) = [text for text in result.verdicts if words in text]
    return found


@pytest.fixture(scope="module")
def planted() -> tuple[SimulatedRun, SweepResult]:
    """Layer 4 knows a little at action:1 and much at action:2; words and lengths know a little at action:2."""
    rng, failed, states = noise(240, 1, names=("prompt", "action:1", "action:2"))
    states["action:1", 4][:, 2] += 1.0 * failed
    states["action:2", 4][:, 2] += 2.5 * failed
    told = np.where(rng.random(240) < 0.7, failed, ~failed)
    signals = np.zeros((240, len(SIGNALS)))
    signals[:, 0] = 30 + 5 * told + rng.normal(size=240)
    run = SimulatedRun(
        failed,
        alone(240),
        states,
        final=("action:2",),
        signals={"action:2": signals},
        texts={"action:2": [f"I found {'nothing here' if t else 'the page'} again" for t in told]},
    )
    return run, sweep_run(run, resampling=Resampling(resamples=500))  # type: ignore[arg-type]


def test_the_planted_layer_and_checkpoint_are_found(planted: tuple[SimulatedRun, SweepResult]) -> None:
    _, result = planted
    late = row_of(result.selected, checkpoint="action:2")
    assert late["chosen"] == {"4": 5}
    assert late["auroc"]["low"] > 0.9
    assert late["above_chance"]
    assert late["closing"]
    early = row_of(result.selected, checkpoint="action:1")
    assert early["chosen"]["4"] >= 4
    assert 0.65 < early["auroc"]["low"] < early["auroc"]["value"] < 0.85
    assert {(c["checkpoint"], c["layer"]) for c in result.cells if c["above_chance"]} == {
        ("action:1", 4),
        ("action:2", 4),
    }
    assert (
        "Failure is predicted best, and first better than chance of the 2 checkpoints swept, at action:1, by the "
        "logistic probe at layer 4" in result.verdicts[0]
    )
    assert sentence(result, "not shown to be predicted better").endswith("at prompt.")


def test_baselines_are_measured_and_the_gain_over_them(planted: tuple[SimulatedRun, SweepResult]) -> None:
    _, result = planted
    late = row_of(result.selected, checkpoint="action:2")
    known = {
        name: row_of(result.baselines, checkpoint="action:2", name=name)["auroc"]["value"] for name in late["gains"]
    }
    assert known["majority"] == 0.5
    assert row_of(result.baselines, checkpoint="prompt", name="surface")["auroc"]["value"] == 0.5  # constant there
    assert 0.62 < known["surface"] < 0.78
    assert 0.62 < known["tfidf"] < 0.78
    assert known["prompt"] < 0.6
    assert known["embedding"] < 0.6
    assert known["embedding"] == row_of(result.cells, checkpoint="action:2", layer=0)["auroc"]["value"]
    assert known["random"] < 0.8
    for name, value in known.items():
        gain = late["gains"][name]["auroc"]
        assert gain["value"] == pytest.approx(late["auroc"]["value"] - value)
        assert 0 < gain["low"] < gain["value"] < gain["high"]
    control = row_of(result.baselines, checkpoint="action:2", name="shuffled")["auroc"]["value"]
    assert 0.42 < control < 0.58
    assert late["selectivity"]["value"] == pytest.approx(late["auroc"]["value"] - control)
    assert sentence(result, "beats the surface baseline").count("(") == 2
    assert "action:1" in sentence(result, "beats the prompt-only probe")
    assert {(row["checkpoint"], row["name"]) for row in result.absent} == {
        ("prompt", "prompt"),
        ("prompt", "tfidf"),
        ("action:1", "tfidf"),
    }


def test_scores_and_folds_are_those_of_the_runs_episodes(planted: tuple[SimulatedRun, SweepResult]) -> None:
    run, result = planted
    scores = result.scores["action:2"]
    assert scores.shape == (240,)
    failed = run.episodes.failed
    assert auroc(scores, failed) == row_of(result.selected, checkpoint="action:2")["auroc"]["value"]
    surface = result.baseline_scores["surface"]["action:2"]
    assert auroc(surface, failed) == row_of(result.baselines, checkpoint="action:2", name="surface")["auroc"]["value"]
    assert result.fold["action:1"].tolist() == result.fold["action:2"].tolist()
    assert set(result.fold["action:1"].tolist()) == set(range(5))
    assert result.own_folds == []


def test_the_same_seed_gives_the_same_sweep() -> None:
    _, failed, states = noise(90, 3, names=("prompt",))
    records = [
        sweep_run(SimulatedRun(failed, alone(90), states), seed=seed, resampling=FEW).record()  # type: ignore[arg-type]
        for seed in (4, 4, 5)
    ]
    assert records[0] == records[1]
    assert records[0]["cells"] != records[2]["cells"]


def grouped(n_groups: int, seed: int, *, within: float) -> SimulatedRun:
    """Six episodes per task. States show its difficulty and, `within` times as loudly, the episode's own course."""
    rng = np.random.default_rng(seed)
    difficulty = rng.normal(size=n_groups).repeat(6)
    course = rng.normal(size=6 * n_groups)
    failed = rng.random(6 * n_groups) < 1 / (1 + np.exp(-1.5 * difficulty - 1.5 * course))
    groups = np.array([f"task-{g:03d}" for g in range(n_groups)]).repeat(6)
    states = {("action:1", layer): rng.normal(size=(6 * n_groups, 6)) for layer in LAYERS}
    states["action:1", 2][:, 0] += 3 * difficulty
    states["action:1", 2][:, 1] += 3 * within * course
    return SimulatedRun(failed, groups, states)


def test_difficulty_is_told_from_the_course_of_the_episode() -> None:
    result = sweep_run(grouped(60, 0, within=0.0), baselines=(), resampling=FEW)  # type: ignore[arg-type]
    (row,) = result.selected
    assert row["auroc"]["low"] > 0.6
    assert row["above_chance"]
    assert row["pair_accuracy"]["low"] < 0.5 < row["pair_accuracy"]["high"]
    assert row["pair_accuracy"]["n_pairs"] > 200
    assert row["within_above_chance"] is False
    assert "action:1" in sentence(result, "Perhaps confounded by difficulty")

    result = sweep_run(grouped(60, 0, within=1.0), baselines=(), resampling=FEW)  # type: ignore[arg-type]
    (row,) = result.selected
    assert row["within_above_chance"] is True
    assert row["pair_accuracy"]["low"] > 0.6
    assert "action:1" in sentence(result, "same task are also told apart")
    assert not [text for text in result.verdicts if "Confounded" in text]


def test_choosing_inside_the_folds_is_not_optimistic_where_the_best_of_many_layers_is() -> None:
    layers = tuple(range(12))
    naive, nested = [], []
    for seed in range(24):
        _, failed, states = noise(80, 5000 + seed, names=("action:1",), layers=layers, d=3)
        run: Any = SimulatedRun(failed, alone(80), states, layers=layers)
        result = sweep_run(run, baselines=(), resampling=Resampling(resamples=20))
        naive.append(max(row["auroc"]["value"] for row in result.cells))
        nested.append(result.selected[0]["auroc"]["value"])
    assert np.mean(naive) > 0.58
    assert abs(np.mean(nested) - 0.5) < 3 * 0.08 / 24**0.5  # 0.08 is the spread of one run


def test_a_baseline_that_is_the_probe_is_not_beaten() -> None:
    _, failed, states = noise(160, 5)
    states["action:1", 0][:, 0] += 2.0 * failed
    states["prompt", 0] = states["action:1", 0]
    run: Any = SimulatedRun(failed, alone(160), states)
    result = sweep_run(run, layers=(0,), checkpoints=("action:1",), resampling=FEW)
    (row,) = result.selected
    assert row["above_chance"]
    for name in ("embedding", "prompt"):
        assert row["gains"][name]["auroc"] == {"value": 0.0, "low": 0.0, "high": 0.0}
        assert row["gains"][name]["pair_accuracy"] == {"value": None, "low": None, "high": None}
    assert "at action:1 (+0.000 [+0.000, +0.000]" in sentence(result, "is not shown to beat the prompt-only probe")
    assert sentence(result, "beats a random direction")


def test_only_episodes_that_come_there_with_a_label_count() -> None:
    rng, failed, states = noise(200, 6, names=("prompt", "action:1", "action:9"))
    labelled = rng.random(200) < 0.9
    reached = {"action:1": rng.random(200) < 0.7, "action:9": np.arange(200) < 30}
    run: Any = SimulatedRun(failed, alone(200), states, reached=reached, labelled=labelled)
    result = sweep_run(run, resampling=FEW, baselines=("majority", "prompt"))
    assert result.checkpoints == ["prompt", "action:1"]
    (skipped,) = result.skipped
    assert skipped["checkpoint"] == "action:9"
    assert "20 of each are needed" in skipped["reason"]
    here = labelled & reached["action:1"]
    assert np.isfinite(result.scores["action:1"]).tolist() == here.tolist()
    assert (result.fold["action:1"] >= 0).tolist() == here.tolist()
    assert row_of(result.selected, checkpoint="action:1")["n"] == here.sum()
    assert result.episodes == labelled.sum()


def test_a_checkpoint_at_which_a_shared_fold_lacks_a_class_gets_folds_of_its_own() -> None:
    _, failed, states = noise(200, 7)
    codes = np.arange(200)
    fold_of = shared_folds(failed, codes, 5, 0)
    reached = ~(failed & (fold_of == 2))
    run: Any = SimulatedRun(failed, alone(200), states, reached={"action:1": reached})
    result = sweep_run(run, resampling=FEW, baselines=())
    assert result.own_folds == ["action:1"]
    for fold in range(5):
        assert len(set(failed[result.fold["action:1"] == fold].tolist())) == 2


def test_several_kinds_of_probes_are_swept_and_chosen_among() -> None:
    _, failed, states = noise(120, 8, names=("action:1",))
    states["action:1", 2][:, 0] += 2.0 * failed
    run: Any = SimulatedRun(failed, alone(120), states)
    result = sweep_run(run, probes=("logistic", "mass-mean"), resampling=FEW, baselines=("shuffled",))
    assert {(row["probe"], row["layer"]) for row in result.cells} == {
        (probe, layer) for probe in ("logistic", "mass-mean") for layer in LAYERS
    }
    (row,) = result.selected
    assert sum(row["chosen_probes"].values()) == 5
    assert row_of(result.cells, probe="mass-mean", layer=2)["auroc"]["low"] > 0.75


def test_a_layer_that_is_the_same_for_all_episodes_is_worth_chance() -> None:
    """As the embedding layer is at a checkpoint whose token never changes."""
    _, failed, states = noise(160, 12, names=("prompt",))
    states["prompt", 0][:] = 3.7
    result = sweep_run(SimulatedRun(failed, alone(160), states), resampling=FEW)  # type: ignore[arg-type]
    for found in (row_of(result.cells, layer=0), row_of(result.baselines, name="embedding")):
        assert {key: found["auroc"][key] for key in ("value", "low", "high")} == {"value": 0.5, "low": 0.5, "high": 0.5}
    assert not row_of(result.cells, layer=0)["above_chance"]


def test_one_layer_of_one_checkpoint_is_in_memory_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = tuple(range(10))
    _, failed, states = noise(60, 11, layers=layers)
    run: Any = SimulatedRun(failed, alone(60), states, layers=layers)
    given: list[weakref.ref[np.ndarray]] = []
    most = 0

    class Watched(np.ndarray):
        pass

    def watched(name: str, layer: int) -> np.ndarray:
        nonlocal most
        read = states[name, layer].astype(np.float32).view(Watched)
        given.append(weakref.ref(read))
        most = max(most, sum(reference() is not None for reference in given))
        return read

    monkeypatch.setattr(run, "states", watched)
    sweep_run(run, resampling=Resampling(resamples=20))
    assert most < 5  # the engine reads ahead a little; far from the 20 that are stored


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"checkpoints": ("action:1", "part:7")}, StoreError, "part:7 are not in"),
        ({"layers": (1,)}, StoreError, "layers 1 are not stored"),
        ({"probes": ()}, UsageError, "the probes none were given"),
        ({"probes": ("logistic", "logistic")}, UsageError, "each once"),
        ({"probes": ("logistik",)}, UsageError, "logistic"),
        ({"probes": ("sequence-mean",)}, UsageError, "pools several checkpoints"),
        ({"baselines": ("surfac",)}, UsageError, "name some of majority"),
        ({"folds": 1}, UsageError, "1 folds were asked for"),
        ({"keep": 95}, UsageError, "a keep of 95 was given"),
        ({"seed": -1}, UsageError, "seed is -1"),
    ],
)
def test_what_cannot_be_right_is_refused(settings: dict[str, Any], error: type[Exception], words: str) -> None:
    _, failed, states = noise(60, 9)
    with pytest.raises(error, match=words):
        Sweep.of(SimulatedRun(failed, alone(60), states), **settings)  # type: ignore[arg-type]


def test_too_few_episodes_are_refused() -> None:
    _, failed, states = noise(30, 10)
    with pytest.raises(DataError, match="none of the 2 checkpoints is reached by 20 groups"):
        Sweep.of(SimulatedRun(failed, alone(30), states))  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(("probe", "names"), [("logistic", ("prompt", "action:1")), ("mass-mean", ("action:1",))])
def test_noise_is_hardly_ever_called_a_signal(probe: str, names: tuple[str, ...]) -> None:
    """Over 200 runs of pure noise at most 5 % may have any claim of better than chance, within binomial slack."""
    claims = naive = 0
    for seed in range(200):
        rng, failed, states = noise(100, 1000 + seed, names=names, d=4)
        groups = np.array([f"task-{i:02d}" for i in rng.integers(60, size=100)])
        run: Any = SimulatedRun(failed, groups, states)
        result = sweep_run(run, probes=(probe,), baselines=(), resampling=FEW)
        rows = [*result.cells, *result.selected]
        claims += any(row["above_chance"] or row.get("within_above_chance") for row in rows)
        naive += any(row["auroc"]["low"] > 0.5 for row in rows)
        if claims == 0:
            assert result.verdicts[0].startswith("No probe predicts failure better than chance")
    assert claims <= binom.ppf(0.999, 200, 0.05)
    assert naive > binom.ppf(0.999, 200, 0.05)  # each cell by its own interval would cry wolf
