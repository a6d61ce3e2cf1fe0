"""Every kind of probe at a gate: what it is shown live is what it was fitted on, and no episode judges itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_runs import HEADER, LAYERS, WIDTH, make_episode, make_states

from probecascade.episode import Recording, Task
from probecascade.errors import DataError, UsageError
from probecascade.policies import Cascade, ProbeSettings, fit_cascade, recalibrate, score_run
from probecascade.policies.moments import stored_moment
from probecascade.policies.probing import MOST_STEPS, earlier_of_kind
from probecascade.policies.scoring import score_episode
from probecascade.probes import LogisticFitter, auroc, reads
from probecascade.store import Run, RunWriter, assign_split

GATES = ["action:1", "action:2", "action:3"]
CS = (1e-2, 1e-1)


def make_told_run(path: Path, groups: int, seed: int) -> Run:
    """As `make_run`, and the transcript and the checks give some failures away too."""
    rng = np.random.default_rng(seed)
    with RunWriter(path, HEADER, layers=LAYERS, d_model=WIDTH, dtype="float16") as writer:
        for g in range(groups):
            failed = bool(rng.random() < 0.5)
            episode = make_episode(f"task-{g}", f"group-{seed}-{g}", failed=failed, rounds=int(rng.integers(3, 6)))
            said = "could not find it" if rng.random() < (0.7 if failed else 0.3) else "found"
            steps = tuple(replace(step, observation=said) for step in episode.steps)
            depth = float(rng.random() < (0.7 if failed else 0.3))
            points = tuple(
                replace(c, checks={"depth": depth} if c.kind == "action" and g % 5 else {}) for c in episode.checkpoints
            )
            episode = replace(episode, steps=steps, checkpoints=points)
            writer.add(Recording(episode, make_states(episode, rng, failed=failed)))
    return Run.open(path)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_told_run(tmp_path_factory.mktemp("told") / "run", 160, 0)


SETTINGS: dict[str, ProbeSettings] = {
    "plain": ProbeSettings(),
    "sequence": ProbeSettings("sequence-mean"),
    "whitened": ProbeSettings("mass-mean-whitened", steps=("layernorm", "pca:4"), calibrated="platt"),
    "concat": ProbeSettings(strengths=CS, last_layers=2, class_weight="balanced", calibrated="isotonic"),
    "average": ProbeSettings(strengths=CS, last_layers=2, pooled="average"),
    "early": ProbeSettings(strengths=CS, fuse=("signals", "text", "checks"), calibrated="platt"),
    "late": ProbeSettings("lda", fuse=("text", "checks"), fusion="late"),
    "surface": ProbeSettings(uses="signals", fuse=("text",)),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_seen_live_is_what_the_probe_was_fitted_on(run: Run, tmp_path: Path, name: str) -> None:
    fitted = fit_cascade(run, keep="0.7", gates=GATES[1:], layers=(2, 4), probe=SETTINGS[name], seed=1)
    fitted.cascade.save(tmp_path / "c")
    loaded = Cascade.load(tmp_path / "c")
    assert loaded.provenance["probe"] == SETTINGS[name].record()
    gates = [replace(gate, threshold=2.0) for gate in loaded.gates]  # never off, never fires
    live = Cascade(gates)
    table = score_run(run, fitted.cascade.gates)
    for index in range(0, len(run), 7):
        episode, hidden = run.episode(index), run.hidden(index)
        watch, found = live.begin(Task(episode.task_id, episode.group, ())), {}
        for point, states in zip(episode.checkpoints, hidden, strict=True):
            kept = {layer: states[LAYERS.index(layer)] for layer in live.layers}
            decision = watch.decide(stored_moment(episode, point, kept))  # type: ignore[union-attr]
            if decision.gate:
                found[decision.gate] = decision.score
        stored = dict(zip(GATES[1:], table.scores[index].tolist(), strict=True))
        assert found == {gate: score for gate, score in stored.items() if not np.isnan(score)}
        assert found == score_episode(run, index, loaded)


def test_probes_read_what_the_settings_say(run: Run) -> None:
    def gate(name: str, **options: Any) -> Any:
        return fit_cascade(run, keep="0.7", gates=["action:3"], probe=SETTINGS[name], **options).cascade.gates[0]

    assert gate("sequence", layers=(4,)).taps == tuple((f"action:{r}", 4) for r in (1, 2, 3))
    assert gate("concat").taps == (("action:3", 2), ("action:3", 4))
    assert gate("average").taps == (("action:3", 2), ("action:3", 4))
    assert reads(gate("early").probe) == {"states", "signals", "text", "checks"}
    assert reads(gate("late", layers=(4,)).probe) == {"states", "text", "checks"}
    surface = gate("surface")
    assert (surface.layer, surface.taps, reads(surface.probe)) == (None, (), {"signals", "text"})


def test_fused_gates_know_more_than_their_parts(run: Run, tmp_path: Path) -> None:
    fresh = make_told_run(tmp_path / "fresh", 200, 9)
    found = {}
    for name, probe in (
        ("states", ProbeSettings(strengths=CS)),
        ("fused", replace(SETTINGS["early"], calibrated=None)),
    ):
        gates = fit_cascade(run, keep="0.7", gates=["action:2"], layers=(2,), probe=probe).cascade.gates
        scores = score_run(fresh, gates).scores[:, 0]
        found[name] = auroc(scores, fresh.episodes.failed)
    assert found["fused"] > found["states"] + 0.05


def test_a_cascade_of_any_kind_can_be_recalibrated(run: Run, tmp_path: Path) -> None:
    fresh = make_told_run(tmp_path / "fresh", 60, 9)
    for name in ("sequence", "late"):
        cascade = fit_cascade(run, keep="0.7", gates=["action:3"], layers=(4,), probe=SETTINGS[name]).cascade
        renewed = recalibrate(cascade, fresh).cascade
        assert renewed.gates[0].taps == cascade.gates[0].taps
        assert renewed.gates[0].probe is cascade.gates[0].probe


def test_a_sequence_looks_back_over_its_own_kind_and_not_too_far() -> None:
    class Names:
        checkpoint_names = ("prompt", *(f"action:{r}" for r in range(1, 21) if r != 4), "part:1", "part:2")

    look = Names()
    assert earlier_of_kind(look, "prompt") == ("prompt",)  # type: ignore[arg-type]
    assert earlier_of_kind(look, "part:2") == ("part:1", "part:2")  # type: ignore[arg-type]
    assert earlier_of_kind(look, "action:5") == ("action:1", "action:2", "action:3", "action:5")  # type: ignore[arg-type]
    assert earlier_of_kind(look, "action:20") == tuple(f"action:{r}" for r in range(13, 21))  # type: ignore[arg-type]
    assert len(earlier_of_kind(look, "action:20")) == MOST_STEPS  # type: ignore[arg-type]


# Survivors ---------------------------------------------------------------------------------------------------------


def make_two_kinds(path: Path, groups: int = 300) -> Run:
    """Half the failures show in column 1 already in round 1; the other half show in column 2 from round 2 on, but
    there the failures of the first kind show the opposite."""
    rng = np.random.default_rng(4)
    with RunWriter(path, HEADER, layers=(4,), d_model=WIDTH, dtype="float32") as writer:
        for g in range(groups):
            kind = int(rng.choice([0, 0, 1, 2]))  # 0: success
            episode = make_episode(f"task-{g}", f"group-{g}", failed=kind > 0, rounds=4)
            states = rng.normal(size=(len(episode.checkpoints), 1, WIDTH))
            for i, point in enumerate(episode.checkpoints):
                states[i, 0, 1] += (4.0 if kind == 1 else 0.0) if point.round == 1 else 0.0
                states[i, 0, 2] += {0: 0.0, 1: -2.5, 2: 2.5}[kind] if point.round > 1 else 0.0
            writer.add(Recording(episode, states.astype(np.float32)))
    return Run.open(path)


def test_a_gate_learns_from_the_episodes_that_come_to_it(tmp_path: Path) -> None:
    run = make_two_kinds(tmp_path / "run")
    options: dict[str, Any] = {
        "recalls": "0.45,0.8",
        "gates": GATES[:2],
        "fitter": LogisticFitter(CS, folds=3),
        "method": "empirical",
    }
    plain = fit_cascade(run, **options)
    later = fit_cascade(run, **options, survivors=True)
    assert later.cascade.provenance["probe"] == {"survivors": True}
    assert later.table[0].fit_doomed == plain.table[0].fit_doomed
    np.testing.assert_array_equal(
        later.table[0].gate.probe.arrays()["weight"], plain.table[0].gate.probe.arrays()["weight"]
    )  # type: ignore[attr-defined]
    assert later.table[1].fit_doomed < 0.7 * plain.table[1].fit_doomed  # the first kind is gone
    assert later.table[1].fit_successes > 0.9 * plain.table[1].fit_successes
    assert later.table[1].auroc > 0.75 > plain.table[1].auroc
    assert later.calibration.seen.kept_count > plain.calibration.seen.kept_count
    split = assign_split(run.episodes.group.tolist(), seed=0) == "fit"
    assert len(later.teachers.failed) == split.sum()
    assert not np.isnan(later.teachers.scores[:, 1]).any()  # those that were stopped are scored too, by a stranger


def test_without_an_earlier_abort_nothing_changes(run: Run) -> None:
    one = fit_cascade(run, keep="0.9", gates=["action:1"], probe=SETTINGS["plain"])
    same = fit_cascade(run, keep="0.9", gates=["action:1"], probe=SETTINGS["plain"], survivors=True)
    assert one.cascade.thresholds.tolist() == same.cascade.thresholds.tolist()


def test_a_gate_that_nobody_comes_to_keeps_its_probe(tmp_path: Path) -> None:
    run = make_two_kinds(tmp_path / "run", 80)
    fitted = fit_cascade(
        run,
        recalls="0.98,0.99",
        gates=GATES[:2],
        fitter=LogisticFitter(CS, folds=3),
        method="empirical",
        survivors=True,
    )
    assert any("action:2 keeps the probe of all episodes" in warning for warning in fitted.warnings)


# Refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("probe", "message"),
    [
        (ProbeSettings("logistc"), "did you mean 'logistic'"),
        (ProbeSettings(fuse=("smell",)), "name signals, text or checks once each"),
        (ProbeSettings(fuse=("text", "text")), "name signals, text or checks once each"),
        (ProbeSettings("lda", fuse=("text",)), "ask for late fusion"),
        (ProbeSettings(steps=("layernorm",), fuse=("text",)), "ask for late fusion"),
        (ProbeSettings("sequence-mean", last_layers=2), "pools checkpoints, not layers"),
        (ProbeSettings(last_layers=0), "give 1 or more"),
        (ProbeSettings(last_layers=9), "the last 9 layers were asked for, and 3 are there"),
        (ProbeSettings("mlp", uses="signals"), "a probe on signals is a logistic regression"),
        (ProbeSettings("lda", strengths=CS), "strengths are those of a logistic regression"),
        (ProbeSettings(steps=("pca",)), "'pca:' with the number"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(run: Run, probe: ProbeSettings, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fit_cascade(run, keep="0.7", gates=["action:2"], probe=probe)


def test_evidence_that_is_not_recorded_is_refused_with_the_gate(run: Run) -> None:
    with pytest.raises(DataError, match="no probe can be fitted at part:1: no check is recorded"):
        fit_cascade(run, keep="0.7", gates=["part:1"], probe=ProbeSettings(strengths=CS, fuse=("checks",)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "paper", "recalls": "0.5"}, "method 'paper' sets thresholds for a keep target alone"),
        ({"method": "single", "recalls": "0.5", "keep": "0.9"}, "method 'single'"),
        ({"confidence": 1.0, "keep": "0.9"}, "confidence 1.0 is outside"),
        ({"unit": "month", "keep": "0.9"}, "unit is 'month'"),
    ],
)
def test_targets_that_a_method_cannot_set_are_refused_before_anything_is_fitted(
    run: Run, options: dict[str, Any], message: str
) -> None:
    class Never:
        folds = 3
        seed = 0

        def fit(self, *given: Any, **more: Any) -> Any:
            raise AssertionError("a probe was fitted")

    with pytest.raises(UsageError, match=message):
        fit_cascade(run, gates=["action:1"], fitter=Never(), **options)
