from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_runs import HEADER, LAYERS, WIDTH, make_episode, make_run, make_states

from probecascade.episode import Recording
from probecascade.errors import DataError, StoreError, UsageError
from probecascade.policies import Cascade, fit_cascade, score_run
from probecascade.policies.fit import unreached
from probecascade.probes import LogisticFitter
from probecascade.store import Run, RunWriter, assign_split
from probecascade.thresholds import firing, needed, parse_target

QUICK = LogisticFitter(strengths=(1e-2, 1e-1), folds=4)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("runs") / "run", outcomes=("aborted", "error", "error"))


def labelled(run: Run, split: str) -> np.ndarray:
    return run.episodes.labelled & (assign_split(run.episodes.group.tolist(), seed=0) == split)


def test_recalls_are_caught_on_the_calibration_episodes(run: Run) -> None:
    result = fit_cascade(run, recalls="0.6,0.8", gates=["action:1", "action:2"], fitter=QUICK, method="empirical")
    assert result.reached
    table = score_run(run, result.cascade.gates)
    calibrate = labelled(run, "calibrate")
    fired = firing(table.scores[calibrate], result.cascade.thresholds)
    doomed = run.episodes.failed[calibrate]
    for g, target in enumerate(("0.6", "0.8")):
        caught = int(fired[doomed, : g + 1].any(axis=1).sum())
        assert caught >= needed(parse_target(target), int(doomed.sum()))
        assert caught == result.table[g].gate.counts["caught"]
    assert result.calibration.seen.kept_count == int((~fired[~doomed].any(axis=1)).sum())
    assert f"catch {caught}/{doomed.sum()}" in result.cascade.promise
    assert "nothing is promised for new episodes" in result.cascade.promise


def test_a_keep_target_holds_on_the_calibration_episodes(run: Run) -> None:
    result = fit_cascade(run, keep="0.9", fitter=QUICK, method="empirical")
    fit, failed = labelled(run, "fit"), run.episodes.failed
    passing = {
        name: run.rows(name).episode[~run.rows(name).final]
        for name in ("action:1", "action:2", "part:1", "action:3", "action:4", "action:5")
    }
    enough = [name for name, e in passing.items() if min((fit[e] & failed[e]).sum(), (fit[e] & ~failed[e]).sum()) >= 20]
    assert [row.gate.checkpoint for row in result.table] == enough
    assert "action:5" not in enough  # every episode that comes so far finishes there
    table = score_run(run, result.cascade.gates)
    calibrate = labelled(run, "calibrate")
    fired = firing(table.scores[calibrate], result.cascade.thresholds).any(axis=1)
    successes = ~run.episodes.failed[calibrate]
    kept = int((~fired & successes).sum())
    assert kept >= needed(parse_target("0.9"), int(successes.sum()))
    assert kept == result.calibration.seen.kept_count
    assert (fired & ~successes).sum() == result.calibration.seen.caught_count > 0


def test_the_test_episodes_shape_nothing(run: Run) -> None:
    result = fit_cascade(run, recalls="0.6", gates=["action:1"], fitter=QUICK)
    groups = run.episodes.group
    test = labelled(run, "test")
    assert result.cascade.overlap(groups[test].tolist()) == ()
    used = labelled(run, "fit") | labelled(run, "calibrate")
    assert set(result.cascade.overlap(groups.tolist())) == set(groups[used].tolist())


def test_the_layer_is_chosen_by_cross_validation(run: Run) -> None:
    row = fit_cascade(run, recalls="0.6", gates=["action:2"], fitter=QUICK).table[0]
    assert row.gate.layer == 4
    assert set(row.layers) == set(LAYERS)
    assert row.layers[4] > row.layers[2] > row.layers[0]
    assert row.auroc == row.layers[4] > 0.85
    given = fit_cascade(run, recalls="0.6", gates=["action:2"], layers=[-3], fitter=QUICK).table[0]
    assert given.gate.layer == 2
    with pytest.raises(StoreError, match="layer 3 is not stored"):
        fit_cascade(run, recalls="0.6", gates=["action:2"], layers=[3], fitter=QUICK)


def test_unlabelled_episodes_are_left_out_and_counted_aloud(run: Run) -> None:
    result = fit_cascade(run, recalls="0.6", gates=["action:1"], fitter=QUICK)
    assert "3 of 243 episodes have no label and are left out (1 aborted, 2 error)." in result.warnings
    row = result.table[0]
    assert row.fit_doomed + row.fit_successes == labelled(run, "fit").sum()


def test_default_gates_are_those_of_the_recipe_or_the_first_rounds(run: Run) -> None:
    one = fit_cascade(run, recalls="0.5", fitter=QUICK)
    assert [gate.checkpoint for gate in one.cascade.gates] == ["part:1"]
    three = fit_cascade(run, recalls="0.5,0.6,0.7", fitter=QUICK)
    assert [gate.checkpoint for gate in three.cascade.gates] == ["action:1", "action:2", "action:3"]


def test_final_turns_are_no_gates_unless_asked(run: Run) -> None:
    plain = fit_cascade(run, recalls="0.3", gates=["action:3"], fitter=QUICK)
    withheld = fit_cascade(run, recalls="0.3", gates=["action:3"], gate_answers=True, fitter=QUICK)
    assert plain.table[0].fit_doomed < withheld.table[0].fit_doomed
    rows = run.rows("action:3")
    table = score_run(run, plain.cascade.gates)
    assert np.isnan(table.scores[rows.episode[rows.final], 0]).all()
    assert not np.isnan(table.scores[rows.episode[~rows.final], 0]).any()
    assert not np.isnan(score_run(run, withheld.cascade.gates, gate_answers=True).scores[rows.episode, 0]).any()


def test_costs_are_strictly_after_the_gate(run: Run) -> None:
    gates = fit_cascade(run, recalls="0.5", gates=["action:1"], fitter=QUICK).cascade.gates
    table = score_run(run, gates)
    episodes = run.episodes
    np.testing.assert_array_equal(table.tokens_after[:, 0], episodes.tokens - 10)
    np.testing.assert_array_equal(table.calls_after[:, 0], episodes.calls)  # the round's own call is saved
    np.testing.assert_allclose(table.seconds_after[:, 0], episodes.seconds - 1.0)


def test_a_target_out_of_reach_is_said_and_does_not_fail(run: Run) -> None:
    # Only episodes of five rounds come to action:4 without finishing there: about a third.
    result = fit_cascade(run, recalls="0.9", gates=["action:4"], fitter=QUICK)
    gate = result.cascade.gates[0]
    assert not result.reached
    assert not gate.reached
    assert any("90 % of the failures are not caught by action:4" in warning for warning in result.warnings)
    assert "nothing is promised for new episodes" in result.cascade.promise


def test_gates_that_come_in_another_order_are_warned_of(run: Run) -> None:
    result = fit_cascade(run, recalls="0.3,0.5", gates=["action:3", "part:1"], fitter=QUICK)
    told = [warning for warning in result.warnings if "part:1" in warning and "action:3" in warning]
    assert told == []  # no second time in other words
    (note,) = [warning for warning in result.warnings if "only after a later one" in warning]
    assert "failed episodes reach a gate up to action:3" in note
    kept = fit_cascade(run, keep="0.9", gates=["action:3", "part:1"], fitter=QUICK)
    assert any("reach part:1 before action:3" in warning for warning in kept.warnings)


def test_a_bound_on_groups_that_is_known_beforehand_is_no_assumption(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with RunWriter(tmp_path / "twice", HEADER, layers=LAYERS, d_model=WIDTH, dtype="float32") as writer:
        for g in range(160):
            failed = bool(rng.random() < 0.5)
            for seed in (0, 1):
                episode = make_episode(f"task-{g}", f"group-{g}", failed=failed, rounds=3, seed=seed)
                writer.add(Recording(episode, make_states(episode, rng, failed=failed)))
    twice = Run.open(tmp_path / "twice")
    options = {"keep": "0.8", "gates": ["action:1"], "fitter": QUICK}
    assumed, known = fit_cascade(twice, **options), fit_cascade(twice, **options, largest_group=3)
    assert "no group of new episodes is larger than the largest seen (2)" in assumed.cascade.promise
    assert "largest seen" not in known.cascade.promise
    assert known.cascade.calibration["largest_group"] == 3
    assert "largest_group" not in assumed.cascade.calibration
    with pytest.raises(DataError, match="one holds 2 episodes"):
        fit_cascade(twice, **options, largest_group=1)
    with pytest.raises(UsageError, match="a largest group of 0 was given"):
        fit_cascade(twice, **options, largest_group=0)


def test_the_surface_baseline_reads_signals_only(run: Run) -> None:
    result = fit_cascade(run, keep="0.9", gates=["action:1", "action:2"], uses="signals", fitter=QUICK)
    assert [gate.layer for gate in result.cascade.gates] == [None, None]
    assert result.cascade.layers == ()
    # The signals of this run carry nothing, so the baseline must not look clever.
    assert all(row.auroc < 0.65 for row in result.table)


def test_refitting_is_reproducible(run: Run, tmp_path: Path) -> None:
    for name in ("one", "two"):
        fit_cascade(run, keep="0.9", gates=["action:1"], fitter=QUICK).cascade.save(tmp_path / name)
    for file in ("cascade.json", "probes.safetensors"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    assert isinstance(Cascade.load(tmp_path / "one"), Cascade)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "neither recall targets nor a keep target"),
        ({"recalls": "1", "gates": ["action:1"]}, "catch target 1 cannot be promised"),
        ({"recalls": "0.9,0.5"}, "must rise strictly"),
        ({"recalls": "0.5,0.6,0.7", "gates": ["action:1", "action:2"]}, r"3 recall target\(s\).*2 gate\(s\)"),
        (
            {"recalls": "0.5", "gates": ["action:77"]},
            "gate 'action:77' is not in this run: choose among prompt",
        ),
        ({"keep": "0.9", "gates": ["action:1", "action:1"]}, "given twice"),
        ({"keep": "0.9", "gates": []}, "no gate was given"),
        ({"keep": "1.5"}, r"outside \(0, 1\]"),
    ],
)
def test_bad_options_are_refused(run: Run, options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fit_cascade(run, fitter=QUICK, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("failed", [True, False])
def test_one_class_is_refused_with_counts(tmp_path: Path, failed: bool) -> None:
    run = make_run(tmp_path / "run", groups=40, failed=failed)
    counts = r"\d+ failed and 0 successful" if failed else r"0 failed and \d+ successful"
    with pytest.raises(DataError, match=f"the fit split holds {counts}"):
        fit_cascade(run, keep="0.9", fitter=QUICK)


def test_too_few_episodes_for_default_keep_gates(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="20 failed and 20 successful"):
        fit_cascade(make_run(tmp_path / "run", groups=30), keep="0.9", fitter=QUICK)


@pytest.mark.parametrize(
    ("recalls", "keep", "words"),
    [
        (None, "0.99", "no threshold can be set that keeps 99 %, for .* calibration successes are too few"),
        ("0.5", None, "no threshold serves these targets on the .* calibration episodes"),
    ],
)
def test_gates_that_are_all_off_are_explained_without_blaming_the_probes(
    run: Run, recalls: str | None, keep: str | None, words: str
) -> None:
    found = fit_cascade(run, recalls=recalls, keep=keep, gates=("action:2",), layers=[4], fitter=QUICK)
    (row,) = found.table
    off = replace(row, gate=replace(row.gate, threshold=1.02))
    (note,) = unreached([off], found.calibration)
    assert re.search(f"{words}.*: all gates are off. That says nothing of how well they rank episodes", note)
    assert not any("all gates are off" in warning for warning in found.warnings)
