"""Every shared file of recorded runs: it is read whole, and nothing in it tells how a run ended.

The shared files lie in `shared/data` beside the project and are no part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GroupKFold

from probecascade.agents.recorded import RecordedFile, read_recorded, verdicts

from .recorded_samples import SHARED, SHARED_FILES, read_lines

pytestmark = pytest.mark.skipif(not SHARED_FILES, reason=f"no shared recorded runs in {SHARED}")
each_file = pytest.mark.parametrize("path", SHARED_FILES, ids=lambda path: path.name.split("_shared")[0])

LAYOUTS = {"tau-bench-airline": "messages", "frames": "agentstop"}
FAULTS = {
    "trajectories_hotpotqa_fireact_shared.jsonl.gz": 5,  # rounds after the first finish
    "trajectories_hotpotqa_knowagent_shared.jsonl.gz": 2,  # two last rounds in which the agent wrote nothing
}


@cache
def _read(path: Path) -> RecordedFile:
    return read_recorded(path)


def _auroc(texts: Sequence[str], failed: Sequence[bool], groups: Sequence[str]) -> float:
    """AUROC of failure from the words of a text, each run scored by a fit on other groups."""
    labels, scores = np.array(failed), np.zeros(len(failed))
    for fit, test in GroupKFold(5).split(labels, groups=list(groups)):
        words = TfidfVectorizer(sublinear_tf=True, max_features=3000)
        found = words.fit_transform([texts[i] for i in fit])
        model = LogisticRegression(C=3.0, class_weight="balanced").fit(found, labels[fit])
        scores[test] = model.decision_function(words.transform([texts[i] for i in test]))
    return float(roc_auc_score(labels, scores))


@each_file
def test_every_record_is_read(path: Path) -> None:
    read, records = _read(path), read_lines(path)
    assert read.layout == LAYOUTS.get(records[0]["dataset"], "steps")
    assert [run.run_id for run in read.runs] == [record["traj_id"] for record in records]
    assert [run.failed for run in read.runs] == [not record["success"] for record in records]
    assert [run.reward for run in read.runs] == [record["score"] for record in records]
    assert len(read.faults) == FAULTS.get(path.name, 0)
    assert all(run.question.strip() for run in read.runs)
    assert all(step.text.strip() for run in read.runs for step in run.steps)
    models = {record["model"] for record in records}
    assert {run.attributes["model"] for run in read.runs} == models


@each_file
def test_groups_are_those_of_the_tasks(path: Path) -> None:
    keys = [record["task_key"] for record in read_lines(path)]
    pairs = {(run.group, key) for run, key in zip(_read(path).runs, keys, strict=True)}
    assert len(pairs) == len(set(keys)) == len({run.group for run in _read(path).runs})


@each_file
def test_no_text_tells_the_outcome(path: Path) -> None:
    for run in _read(path).runs:
        finishes = [i for i, step in enumerate(run.steps) if step.action == "finish"]
        assert finishes in ([], [len(run.steps) - 1])
        assert (run.steps[-1].observation, run.steps[-1].observation_kind) == ("", "finish")
        assert all(step.observation_kind != "finish" for step in run.steps[:-1])
        texts = [text for s in run.steps for text in (s.text, s.thought, s.argument, s.observation)]
        assert not verdicts("\n".join([run.question, *texts]))


@each_file
def test_answers_and_scores_are_kept_in_no_attribute(path: Path) -> None:
    known = {"dataset", "model", "source", "heldout", "trial", "step_numbers"}
    assert all(set(run.attributes) <= known for run in _read(path).runs)


def test_the_closing_observation_of_a_game_tells_its_outcome_and_is_gone() -> None:
    """ALFWorld stops when the goal is reached: its last answer, "You put the mug on the desk.", is the label."""
    (path,) = (each for each in SHARED_FILES if "alfworld" in each.name)
    runs = _read(path).runs
    failed, groups = [bool(run.failed) for run in runs], [run.group for run in runs]
    untreated = [record["steps"][-1]["observation"] for record in read_lines(path)]
    assert _auroc(untreated, failed, groups) > 0.95
    seen = [next((step.observation for step in reversed(run.steps) if step.observation), "") for run in runs]
    assert _auroc(seen, failed, groups) < 0.9


def test_a_verdict_that_a_shared_file_holds_is_gone() -> None:
    """One agent went on after its answer and wrote the environment's verdict into its own thought."""
    (path,) = (each for each in SHARED_FILES if "fireact" in each.name)
    told = [i for i, record in enumerate(read_lines(path)) if any(verdicts(s["thought"]) for s in record["steps"])]
    assert len(told) == 1
    run = _read(path).runs[told[0]]
    assert run.steps[-1].action == "finish"
    assert "Episode finished" not in repr(run)


def test_users_scripts_are_not_shown_to_the_agent() -> None:
    (path,) = (each for each in SHARED_FILES if "taubench" in each.name)
    for run, record in zip(_read(path).runs, read_lines(path), strict=True):
        assert run.question == record["messages"][0]["content"]
        assert record["question"] not in repr(run)
