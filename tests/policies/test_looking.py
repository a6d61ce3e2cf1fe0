from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from doubtful_runs import make_doubtful_run
from made_runs import make_run

from probecascade.episode import Recording
from probecascade.errors import CascadeError, DataError, UsageError
from probecascade.evaluation import failure_mode, failure_modes, modes_of_aborts, replay_policy
from probecascade.policies import (
    Cascade,
    FitResult,
    Trigger,
    TriggerShare,
    fit_cascade,
    fit_modes,
    look_less,
    score_run,
)
from probecascade.policies.gates import quiet_gates
from probecascade.probes import LogisticFitter
from probecascade.store import Run, assign_split
from probecascade.thresholds import calibrate

GATES = ("action:1", "part:1", "action:3")
HALF = TriggerShare.parse("entropy_mean:0.5")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_doubtful_run(tmp_path_factory.mktemp("doubtful") / "run")


@pytest.fixture(scope="module")
def fitted(run: Run) -> FitResult:
    return fit_cascade(run, keep="0.9", gates=GATES, layers=(4,), fitter=LogisticFitter(strengths=(0.1,), folds=3))


def split(run: Run, name: str) -> np.ndarray:
    return run.episodes.labelled & (assign_split(run.episodes.group.tolist(), seed=0, shares=(50, 25, 25)) == name)


def test_thresholds_are_those_of_the_masked_scores(run: Run, fitted: FitResult) -> None:
    less = look_less(fitted, run, HALF)
    use, fit = split(run, "calibrate"), split(run, "fit")
    scores = score_run(run, fitted.cascade.gates).scores
    for column, gate in enumerate(less.cascade.gates):
        rows = run.rows(gate.checkpoint)
        assert gate.trigger is not None
        assert gate.trigger == HALF.learn(rows.signals[fit[rows.episode] & ~rows.final])
        scores[rows.episode[~gate.trigger.looks(rows.signals)], column] = np.nan
    teachers = fitted.teachers
    masked = (np.where(np.isnan(scores[fit]), np.nan, teachers.scores), teachers.failed, teachers.cost_after)
    expected = calibrate(
        scores[use],
        run.episodes.failed[use],
        run.episodes.group[use],
        fitted.calibration.data.cost_after,
        keep="0.9",
        teachers=(*masked, run.episodes.group[fit]),
    )
    assert less.calibration.thresholds.tolist() == expected.thresholds.tolist()
    assert less.cascade.promise == less.calibration.promise
    assert less.calibration.certified
    # probes are the same, thresholds are not, and the live cascade scores what was calibrated
    assert [g.probe for g in less.cascade.gates] == [g.probe for g in fitted.cascade.gates]
    assert less.cascade.thresholds.tolist() != fitted.cascade.thresholds.tolist()
    assert np.array_equal(score_run(run, less.cascade.gates).scores, scores, equal_nan=True)
    assert [row.gate for row in less.table] == list(less.cascade.gates)


def test_each_gate_looks_at_its_share_of_the_fit_moments(run: Run, fitted: FitResult) -> None:
    less, fit = look_less(fitted, run, TriggerShare.parse("entropy_mean:0.25")), split(run, "fit")
    for gate in less.cascade.gates:
        rows = run.rows(gate.checkpoint)
        use = fit[rows.episode] & ~rows.final
        assert gate.looks(rows.signals)[use].sum() == np.ceil(use.sum() / 4)


def test_notes_are_those_of_the_new_thresholds(run: Run) -> None:
    fitter = LogisticFitter(strengths=(0.1,), folds=3)
    options = {"gates": ("action:1", "part:1"), "layers": (4,), "fitter": fitter, "method": "empirical"}
    reached = fit_cascade(run, recalls="0.5,0.8", **options)
    less = look_less(reached, run, TriggerShare.parse("entropy_mean:0.1"))
    assert reached.reached
    assert not less.reached
    assert any("of the failures are not caught by part:1" in note for note in less.warnings)
    nearly = look_less(reached, run, TriggerShare.parse("entropy_mean:0.999"))
    assert nearly.reached
    assert nearly.warnings == reached.warnings


def test_gates_that_have_triggers_get_no_others(run: Run, fitted: FitResult) -> None:
    """What they did not look at has no score any more, so thresholds for other triggers could not be set."""
    with pytest.raises(CascadeError, match="have triggers already"):
        look_less(look_less(fitted, run, HALF), run, HALF)


def test_another_run_is_refused(tmp_path: Path, fitted: FitResult) -> None:
    other = make_run(tmp_path / "other", groups=60)
    with pytest.raises(CascadeError, match="was not fitted on this run"):
        look_less(fitted, other, HALF)


def test_gates_say_how_what_they_abort_failed(run: Run, fitted: FitResult, tmp_path: Path) -> None:
    modes = failure_modes(run)
    assert set(modes.tolist()) == {"", "loop", "wrong_answer"}
    found = fit_modes(fitted.cascade, run, modes)
    assert found.notes == ()
    assert found.cascade.thresholds.tolist() == fitted.cascade.thresholds.tolist()
    assert min(fit.auroc["loop"].value for fit in found.fits.values()) > 0.9
    assert found.cascade.provenance["modes"] == found.record()
    found.cascade.save(tmp_path / "c")
    loaded = Cascade.load(tmp_path / "c")
    said = right = 0
    for index in np.flatnonzero(split(run, "test")):
        episode = run.episode(int(index))
        decision = replay_policy(loaded, Recording(episode, run.hidden(int(index))), layers=run.layers)
        if decision is not None and episode.failed:
            said += 1
            right += f"; likely {failure_mode(episode)} (0." in decision.reason or "(1.00)" in decision.reason
    counted = modes_of_aborts(loaded, run, "test")
    assert said > 10
    assert right > 0.9 * said
    assert sum(n for truth in counted.values() for name, n in truth.items() if name != "success") == said
    assert counted["loop"]["loop"] > 0.9 * sum(n for name, n in counted["loop"].items() if name != "success")
    assert modes_of_aborts(fitted.cascade, run, "test") == {}


def test_mode_probes_are_fitted_on_the_fit_failures_alone(run: Run, fitted: FitResult) -> None:
    """Modes of other episodes may be anything."""
    modes = failure_modes(run)
    changed = modes.copy()
    changed[~split(run, "fit") & (modes != "")] = "gave_up"
    first, second = (fit_modes(fitted.cascade, run, m).cascade.gates[0].modes for m in (modes, changed))
    assert first is not None
    assert second is not None
    assert first.names == second.names
    assert np.array_equal(first.weight, second.weight)


def test_a_gate_on_signals_tells_modes_by_signals(run: Run) -> None:
    fitter = LogisticFitter(strengths=(0.1,), folds=3)
    cascade = fit_cascade(run, keep="0.9", gates=("action:2",), uses="signals", fitter=fitter).cascade
    (gate,) = fit_modes(cascade, run, failure_modes(run)).cascade.gates
    assert gate.modes is not None
    assert gate.modes.uses == "signals"


def test_what_cannot_be_told_apart_is_noted(run: Run, fitted: FitResult) -> None:
    modes = failure_modes(run)
    modes[modes != ""] = "loop"
    found = fit_modes(fitted.cascade, run, modes)
    assert found.fits == {}
    assert len(found.notes) == 3
    assert "at action:1 aborts say no failure mode: 1 failure modes occur in 10 groups or more (loop)" in found.notes[0]
    assert all(gate.modes is None for gate in found.cascade.gates)
    with pytest.raises(UsageError, match="3 modes were given for 240"):
        fit_modes(fitted.cascade, run, modes[:3])


def test_gates_that_say_nothing_are_named_in_words(run: Run, fitted: FitResult) -> None:
    certifying = split(run, "calibrate")
    never, seldom = Trigger("entropy_mean", "above", 1e9), TriggerShare.parse("entropy_mean:0.05")
    gates = [replace(gate, trigger=never) for gate in fitted.cascade.gates[:1]]
    far = replace(gates[0], checkpoint="action:9", taps=(), trigger=None)
    unseen, blind = quiet_gates(run, [far, *gates], certifying, of="calibration episodes")
    n = int(certifying.sum())
    assert unseen.startswith(f"none of the {n} calibration episodes come to action:9 with anything left to do")
    assert f"looks at none of the {n} calibration episodes" in blind
    less = look_less(fitted, run, seldom)
    told = [note for note in less.warnings if "the trigger of" in note]
    assert len(told) == len(GATES)
    assert all("looks at only" in note or "looks at none" in note for note in told)
    assert quiet_gates(run, fitted.cascade.gates, certifying, of="calibration episodes") == []


def test_triggers_that_leave_no_calibration_episode_are_refused_in_words(
    run: Run, fitted: FitResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TriggerShare, "learn", lambda *_: Trigger("entropy_mean", "above", 1e9))
    with pytest.raises(DataError, match="no gate looks at any calibration episode: the trigger of action:1"):
        look_less(fitted, run, HALF)
