from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_runs import HEADER, LAYERS, WIDTH, make_episode

from probecascade.episode import Decision, Episode, Recording
from probecascade.errors import DataError, StoreError, UsageError
from probecascade.policies.judged import best_cut, evidence_log, fit_evidence_probe, judges_of, tune_k, useless_rate
from probecascade.probes import LogisticFitter
from probecascade.store import Run, RunWriter


def judged(notes: dict[str, Any], rounds: int = 4, **attributes: Any) -> Episode:
    made = make_episode("t", "g", failed=False, rounds=rounds)
    return replace(made, attributes={"notes": notes, **attributes})


def said(verdict: str, run: int, **more: Any) -> dict[str, Any]:
    return {"judged": {"side": {"verdict": verdict, "run": run, **more}}}


def test_a_log_has_one_entry_for_every_observation() -> None:
    notes = {
        "observation:1": said("USELESS", 1, score=0.5) | {"beliefs": {"continuing": 0.75, "answering": None}},
        "observation:2": {"judged": {}},  # asks the next question
        "observation:3": said("USELESS", 1),
        "action:2": {"judged": {"thought": {"verdict": "USELESS", "run": 1}}},
        "action:4": {"judged": {"thought": {"verdict": "NONE", "run": 0}}},
    }
    episode = judged(notes)
    log = evidence_log(episode, "side")
    assert log.rounds == (1, 2, 3)
    assert log.verdicts == ("USELESS", "NONE", "USELESS")
    assert log.runs == (1, 0, 1)
    assert log.scores[0] == 0.5
    assert math.isnan(log.scores[2])
    assert log.continuing[0] == 0.75
    assert math.isnan(log.answering[0])
    assert log.injected == (False, False, False)
    assert evidence_log(episode, "thought").verdicts == ("USELESS", "NONE", "NONE")
    assert judges_of(episode) == ("side", "thought")
    steps = tuple(replace(step, injected="unrelated" if step.round == 3 else "") for step in episode.steps)
    assert evidence_log(replace(episode, steps=steps), "side").injected == (False, False, True)
    refused = tuple(replace(step, observation_kind="invalid") if step.round == 1 else step for step in steps)
    assert evidence_log(replace(episode, steps=refused), "side").injected == (None, False, True)


def test_a_log_outlives_the_store(tmp_path: Path) -> None:
    notes = {"observation:1": said("USELESS", 1, score=0.5), "observation:2": said("USEFUL", 0)}
    decision = Decision("answer", "observation:2", 1.0, 1.0, "1 useless observation", notes=notes["observation:2"])
    episode = replace(judged(notes), decision=decision)
    with RunWriter(tmp_path / "run", HEADER, layers=LAYERS, d_model=WIDTH, dtype="float32") as writer:
        writer.add(Recording(episode, np.zeros((len(episode.checkpoints), len(LAYERS), WIDTH), np.float32)))
    stored = Run.open(tmp_path / "run").episode(0)
    assert repr(evidence_log(stored, "side")) == repr(evidence_log(episode, "side"))
    assert stored.decision == decision


def test_notes_of_other_policies_are_none_of_a_judge() -> None:
    with pytest.raises(DataError, match="holds no verdicts"):
        evidence_log(judged({"observation:1": {"other": 1}}), "side")
    finished_at_once = replace(make_episode("t", "g", failed=False, rounds=1), attributes={})
    assert evidence_log(finished_at_once, "side").verdicts == ()


def test_the_rate_of_a_judge_is_over_all_observations() -> None:
    episodes = [
        judged({"observation:1": said("USELESS", 1), "observation:2": said("USEFUL", 0)}),
        judged({"observation:1": said("UNPARSED", 0), "observation:2": said("USELESS", 1)}),
    ]
    assert useless_rate(episodes, "side") == 0.5
    with pytest.raises(DataError, match="has no observation to be matched"):
        useless_rate([], "side")


def test_the_best_cut_by_hand() -> None:
    scores, useless = [0.1, 0.2, 0.3, 0.8, 0.9], [False, False, True, True, True]
    cut, accuracy = best_cut(scores, useless)
    assert cut == pytest.approx(0.25)
    assert accuracy == 1.0
    # caught 1, kept 2 of 3 at 0.15; caught 1/2, kept 1 at 0.45
    assert best_cut([0.1, 0.2, 0.3, 0.2, 0.6], [False, False, False, True, True]) == (pytest.approx(0.45), 0.75)
    assert best_cut([0.5, math.nan, 0.7], [False, True, True])[1] == 1.0
    assert best_cut([0.5, 0.5], [False, True]) == (0.5, 0.5)


@pytest.mark.parametrize("useless", [[True, True], [False, False]])
def test_a_cut_needs_both_kinds(useless: list[bool]) -> None:
    with pytest.raises(DataError, match="give some of both"):
        best_cut([0.1, 0.2], useless)


def failing_run(path: Path, *, injected: float, kinds: str = "", refused: int = 0) -> Run:
    """Layer 2 tells an injected failure at its observation, layer 0 nothing; round `refused` is no valid action."""
    rng = np.random.default_rng(0)
    with RunWriter(path, HEADER, layers=LAYERS, d_model=WIDTH, dtype="float32") as writer:
        for g in range(80):
            episode = make_episode(f"task-{g}", f"group-{g // 2}", failed=bool(g % 2), rounds=4)
            strikes = {r: rng.random() < injected for r in range(1, 5)}
            steps = tuple(replace(s, injected="unrelated" if strikes[s.round] else "") for s in episode.steps)
            steps = tuple(replace(s, observation_kind="invalid") if s.round == refused else s for s in steps)
            points = tuple(p for p in episode.checkpoints if not kinds or p.kind == kinds)
            states = rng.normal(size=(len(points), len(LAYERS), WIDTH))
            for i, point in enumerate(points):
                if point.kind == "observation":
                    states[i, 1, 3] += 3.0 if strikes[point.round] and point.round != refused else -3.0
                    states[i, 1, 2] += 9.0 * (point.round == refused)
            writer.add(Recording(replace(episode, steps=steps, checkpoints=points), states.astype(np.float32)))
    return Run.open(path)


def test_a_probe_learns_planted_failures_where_they_are(tmp_path: Path) -> None:
    run = failing_run(tmp_path / "run", injected=0.5)
    fitter = LogisticFitter(strengths=(0.01, 0.1), folds=3)
    fitted, blind = (fit_evidence_probe(run, layer, fitter) for layer in (2, 0))
    assert fitted.observations == 160  # round 2 of each episode asks the next question
    assert fitted.groups == 40
    assert 50 < fitted.injected < 110
    assert fitted.balanced_accuracy > 0.97
    assert fitted.auroc > 0.99
    assert blind.auroc < 0.65
    judge = fitted.judge()
    assert (judge.layer, judge.threshold, judge.name) == (2, fitted.threshold, "probe")


def test_refusals_are_useless_to_a_probe_and_its_accuracy_is_about_results(tmp_path: Path) -> None:
    run = failing_run(tmp_path / "run", injected=0.5, refused=3)
    fitted = fit_evidence_probe(run, 2, LogisticFitter(strengths=(0.01, 0.1), folds=3))
    assert (fitted.observations, fitted.refusals) == (80, 80)
    assert 20 < fitted.injected < 60
    assert fitted.auroc > 0.97
    assert fitted.rate == pytest.approx((fitted.injected + 80) / 160, abs=0.03)
    rows = run.rows("observation:3")
    score = fitted.probe.score(run.states("observation:3", 2), np.zeros((len(rows.episode), 9), np.float32))
    assert (score >= fitted.threshold).mean() > 0.95


def test_runs_that_teach_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="of the run's 160 observations 0 are injected"):
        fit_evidence_probe(failing_run(tmp_path / "clean", injected=0.0), 2)
    with pytest.raises(DataError, match="keeps no states at observations"):
        fit_evidence_probe(failing_run(tmp_path / "actions", injected=0.5, kinds="action"), 2)
    with pytest.raises(StoreError):
        fit_evidence_probe(failing_run(tmp_path / "layer", injected=0.5), 3)


def played(results: list[tuple[bool, int]]) -> list[Episode]:
    return [
        replace(make_episode(f"t{i}", "g", failed=not won, rounds=2), calls=calls)
        for i, (won, calls) in enumerate(results)
    ]


def test_k_is_that_of_the_best_utility() -> None:
    by_k = {
        2: played([(True, 2), (False, 2)]),  # 0.5 - 0.05 * 2
        5: played([(True, 5), (True, 5)]),  # 1 - 0.05 * 5
        7: played([(True, 7), (True, 7)]),
    }
    tuned = tune_k(by_k)
    assert (tuned.k, tuned.n, tuned.cost) == (5, 2, 0.05)
    assert tuned.utility == {2: pytest.approx(0.4), 5: pytest.approx(0.75), 7: pytest.approx(0.65)}
    assert tune_k(by_k, cost=0.3).k == 2
    assert tune_k(by_k, cost=0.0).k == 5  # the smaller of two equals
    assert tuned.success[2] == 0.5
    assert tuned.calls[7] == 7.0


def test_episodes_without_a_label_are_left_out_under_every_k() -> None:
    by_k = {2: played([(True, 2), (True, 2)]), 3: played([(True, 3), (False, 3)])}
    by_k[2][0] = replace(by_k[2][0], outcome="error")
    tuned = tune_k(by_k)
    assert tuned.n == 1
    assert tuned.success == {2: 1.0, 3: 0.0}


@pytest.mark.parametrize(
    ("by_k", "cost", "error"),
    [
        ({}, 0.05, UsageError),
        ({2: played([(True, 1)])}, -1.0, UsageError),
        ({2: played([(True, 1)])}, math.nan, UsageError),
        ({2: played([(True, 1)]), 3: played([(True, 1), (True, 1)])}, 0.05, DataError),
        ({2: played([(True, 1)]) * 2}, 0.05, DataError),
        ({2: [replace(played([(True, 1)])[0], outcome="error")]}, 0.05, DataError),
        ({2: []}, 0.05, DataError),
    ],
)
def test_what_cannot_be_tuned_on_is_refused(by_k: Any, cost: float, error: type[Exception]) -> None:
    with pytest.raises(error):
        tune_k(by_k, cost)
