"""New thresholds from new episodes: which episodes may set them, from which targets, and what is recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_runs import HEADER, LAYERS, WIDTH, make_run

from probecascade.episode import Recording
from probecascade.errors import CascadeError, DataError, NothingToDoError, ProbecascadeError, UsageError
from probecascade.evaluation import backtest_run
from probecascade.policies import Cascade, Coin, fit_cascade, recalibrate, score_run
from probecascade.policies.provenance import group_hash
from probecascade.probes import LogisticFitter
from probecascade.store import Run, RunWriter
from probecascade.thresholds import OFF, calibrate, firing

QUICK = LogisticFitter(strengths=(1e-2,), folds=3)
GATES = ["action:1", "action:2"]
COIN = Coin.of("0.4", 3)
ABORTED = {"outcome": "aborted"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def fitted(folder: Path) -> Run:
    return make_run(folder / "fitted")


@pytest.fixture(scope="module")
def fresh(folder: Path) -> Run:
    return make_run(folder / "fresh", groups=300, seed=1, outcomes=("error",))


@pytest.fixture(scope="module")
def cascade(fitted: Run) -> Cascade:
    return fit_cascade(fitted, keep="0.9", recalls="0.3,0.5", gates=GATES, fitter=QUICK, confidence=0.9).cascade


def changed(run: Run, path: Path, header: Mapping[str, Any], fields: Callable[[int], Mapping[str, Any]]) -> Run:
    """A copy of a run with other fields of its episodes."""
    with RunWriter(path, {**HEADER, **header}, layers=LAYERS, d_model=WIDTH, dtype="float32") as writer:
        for i in range(len(run)):
            writer.add(Recording(replace(run.episode(i), **fields(i)), run.hidden(i)))
    return Run.open(path)


@pytest.fixture(scope="module")
def fired(cascade: Cascade, fresh: Run) -> np.ndarray:
    scores = score_run(fresh, cascade.gates).scores
    return firing(scores, cascade.thresholds).any(axis=1) & fresh.episodes.labelled


@pytest.fixture(scope="module")
def live(fresh: Run, fired: np.ndarray, folder: Path) -> Run:
    """The fresh episodes as the cascade would have left them: aborted unless the coin let them through."""
    through = [COIN.explores(task) for task in fresh.episodes.task_id.tolist()]
    header = {"policy": {"cascade": "c", "shadow": False, "explore": COIN.record()}}
    return changed(fresh, folder / "live", header, lambda i: ABORTED if fired[i] and not through[i] else {})


def test_the_thresholds_are_those_of_calibrate_with_the_stored_targets(cascade: Cascade, fresh: Run) -> None:
    found = recalibrate(cascade, fresh)
    use, table = fresh.episodes.labelled, score_run(fresh, cascade.gates)
    by_hand = calibrate(
        table.scores[use],
        fresh.episodes.failed[use],
        fresh.episodes.group[use],
        table.tokens_after[use],
        catch={0: "0.3", 1: "0.5"},
        keep="0.9",
        confidence=0.9,
        gates=GATES,
    )
    assert found.cascade.thresholds.tolist() == by_hand.thresholds.tolist() != cascade.thresholds.tolist()
    assert found.cascade.promise == by_hand.promise
    assert found.cascade.calibration == by_hand.record()
    assert [gate.target for gate in found.cascade.gates] == ["30 %", "50 %"]
    assert "1 of 301 episodes have no label and are left out (1 error)." in found.warnings


def test_the_probes_stay_and_the_counts_are_of_the_new_episodes(cascade: Cascade, fresh: Run) -> None:
    found = recalibrate(cascade, fresh)
    old, new = score_run(fresh, cascade.gates), score_run(fresh, found.cascade.gates)
    assert np.array_equal(old.scores, new.scores, equal_nan=True)
    judged = backtest_run(cascade, fresh, "all")
    assert (found.before.caught, found.before.kept) == (judged.caught, judged.kept)
    assert found.before.saved["tokens"] == judged.saved["tokens"]
    for gate, outcome in zip(found.cascade.gates, found.after.gates, strict=True):
        assert (gate.counts["caught"], gate.counts["kept"]) == (outcome.caught, outcome.kept)
        assert gate.counts["doomed"] == found.after.doomed == int(fresh.episodes.failed.sum())
    assert found.cascade.held_out == {}


def test_given_targets_replace_the_stored_ones_altogether(cascade: Cascade, fresh: Run) -> None:
    keep = recalibrate(cascade, fresh, keep="0.8", confidence=0.8).calibration
    assert keep.record()["targets"] == {"catch": {}, "keep": "4/5"}
    assert (keep.confidence, keep.method) == (0.8, "certified")
    catch = recalibrate(cascade, fresh, recalls="0.2,0.6", method="empirical").calibration
    assert catch.record()["targets"] == {"catch": {"action:1": "1/5", "action:2": "3/5"}, "keep": None}
    assert (catch.confidence, catch.method, catch.certified) == (0.9, "empirical", False)


def test_gates_that_were_off_may_come_back(cascade: Cascade, fresh: Run) -> None:
    asleep = Cascade(
        [replace(gate, threshold=OFF) for gate in cascade.gates],
        calibration=cascade.calibration,
        provenance=cascade.provenance,
    )
    found = recalibrate(asleep, fresh)
    assert found.before.caught_count == 0
    assert found.after.caught_count > 0
    assert found.cascade.provenance["recalibrated"][0]["replaced"]["thresholds"] == [None, None]


def test_what_it_was_recalibrated_on_is_recorded_and_not_used_again(
    cascade: Cascade, fitted: Run, fresh: Run, folder: Path
) -> None:
    once = recalibrate(cascade, fresh).cascade
    once.save(folder / "once")
    once = Cascade.load(folder / "once")
    assert set(once.overlap(fresh.episodes.group.tolist())) == set(fresh.episodes.group[fresh.episodes.labelled])
    assert once.overlap(fitted.episodes.group.tolist()) == cascade.overlap(fitted.episodes.group.tolist())
    assert once.provenance["groups"]["earlier"] == cascade.provenance["groups"]["calibrate"]
    assert once.provenance["episodes"]["calibrate"] == 300
    (entry,) = once.provenance["recalibrated"]
    assert entry["replaced"]["thresholds"] == cascade.thresholds.tolist()
    assert entry["replaced"]["promise"] == cascade.promise
    assert entry["exploration"] is None
    with pytest.raises(DataError, match=r"300 groups of these episodes \(first: 'group-1-0'\) shaped the cascade"):
        recalibrate(once, fresh)
    newer = make_run(folder / "newer", seed=2)
    twice = recalibrate(once, newer).cascade.provenance
    assert len(twice["recalibrated"]) == 2
    assert group_hash("group-1-0") in twice["groups"]["earlier"]
    assert set(cascade.provenance["groups"]["calibrate"]) < set(twice["groups"]["earlier"])
    with pytest.raises(CascadeError, match="exists already"):
        once.save(folder / "once")


def test_of_a_run_with_aborts_only_the_explored_sample_counts(cascade: Cascade, fresh: Run, live: Run) -> None:
    chosen = np.array([COIN.explores(task) for task in fresh.episodes.task_id.tolist()])
    use, table = chosen & fresh.episodes.labelled, score_run(fresh, cascade.gates)
    found = recalibrate(cascade, live)
    by_hand = calibrate(
        table.scores[use],
        fresh.episodes.failed[use],
        fresh.episodes.group[use],
        table.tokens_after[use],
        catch={0: "0.3", 1: "0.5"},
        keep="0.9",
        confidence=0.9,
        gates=GATES,
    )
    assert found.cascade.thresholds.tolist() == by_hand.thresholds.tolist()
    assert found.before.doomed + found.before.successes == use.sum()
    whole = backtest_run(cascade, fresh, "all")
    assert found.before.caught.low <= whole.caught.value <= found.before.caught.high
    # Episodes that ended by themselves beside the aborted ones would say that the cascade caught next to nothing.
    naive = backtest_run(cascade, live, "all")
    assert naive.caught.high < whole.caught.value
    stopped = int((live.episodes.outcome == "aborted").sum())
    assert found.warnings[0] == (
        f"{stopped} of 301 episodes were stopped: only the {chosen.sum()} that exploration chose before they began "
        "(40 % of the tasks) are used."
    )
    assert found.cascade.provenance["recalibrated"][0]["exploration"] == {"share": "2/5", "seed": 3}


@pytest.mark.parametrize(
    ("policy", "stopped", "words"),
    [
        (None, ABORTED, "no random share was let through, so those that ended by themselves are no fair sample"),
        (None, {"reason": "answered"}, "no random share was let through"),
        (COIN.record(), ABORTED, "was let through by exploration, but it was stopped"),
    ],
    ids=["aborted", "made to answer", "contradicted"],
)
def test_stopped_episodes_without_an_honest_exploration_are_refused(
    cascade: Cascade, fresh: Run, tmp_path: Path, policy: Any, stopped: Mapping[str, Any], words: str
) -> None:
    header = {"policy": {"cascade": "c", "shadow": False, "explore": policy}}
    run = changed(fresh, tmp_path / "run", header, lambda i: stopped if i % 3 == 0 else {})
    with pytest.raises(DataError, match=words):
        recalibrate(cascade, run)


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"recalls": "0.5"}, UsageError, "1 recall target.* were given for 2 gate"),
        ({"recalls": "0.5,0.4"}, UsageError, "must rise strictly"),
        ({"keep": "1.2"}, UsageError, "keep target 1.2 is outside"),
        ({"method": "magic"}, UsageError, "method is 'magic'"),
        ({"confidence": 1.0}, UsageError, "confidence 1.0 is outside"),
    ],
)
def test_wrong_targets_are_refused(
    cascade: Cascade, fresh: Run, settings: Mapping[str, Any], error: type[ProbecascadeError], words: str
) -> None:
    with pytest.raises(error, match=words):
        recalibrate(cascade, fresh, **settings)


def test_runs_and_cascades_that_do_not_go_together_are_refused(
    cascade: Cascade, fitted: Run, fresh: Run, folder: Path
) -> None:
    with pytest.raises(DataError, match="shaped the cascade already: recalibrate on episodes of fresh groups"):
        recalibrate(cascade, fitted)
    other = changed(fresh, folder / "other", {"template": "sha256:other"}, lambda i: {})
    with pytest.raises(CascadeError, match="fitted with template"):
        recalibrate(cascade, other)
    silent = changed(fresh, folder / "silent", {}, lambda i: {"outcome": "error"})
    with pytest.raises(NothingToDoError, match="no labelled episode that may set thresholds"):
        recalibrate(cascade, silent)
    with pytest.raises(UsageError, match="stores no targets: give recall targets"):
        recalibrate(Cascade(cascade.gates, provenance=cascade.provenance), fresh)


def test_too_few_explored_episodes_are_refused_with_what_it_would_take(cascade: Cascade, live: Run) -> None:
    rare = Coin.of("0.02", COIN.seed)
    chosen = np.array([rare.explores(task) for task in live.episodes.task_id.tolist()])
    header = {"policy": {"explore": rare.record()}}
    assert chosen.any()
    ended = {"outcome": "success", "reason": "finished"}
    path = live.path.parent / "rare"
    run = changed(live, path, header, lambda i: ended if chosen[i] else {})
    n = int(chosen.sum())
    words = rf"0 failures and {n} success(es)? with a label are too few .* more than {20 * n * 50} live episodes at the"
    with pytest.raises(DataError, match=words):
        recalibrate(cascade, run)
    with pytest.raises(DataError, match=f"hold 0 failed and {n} successful ones: thresholds need both"):
        recalibrate(cascade, run, force=True)
