"""Attributes of episodes as columns, beside the facts that are asked for in the same way."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from store_samples import D_MODEL, LAYERS, header, recording

from probecascade.errors import UsageError
from probecascade.store import Run, RunWriter

ATTRIBUTES = [
    {"wording": "plain", "temperature": 0.1, "path": ["a", "b"]},
    {"wording": "terse", "temperature": 0.5, "path": ["c", "d"]},
    {"temperature": 0},
    {"wording": "plain", "path": []},
    {},
]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    with RunWriter(
        tmp_path / "a run", header(), layers=LAYERS, d_model=D_MODEL, dtype="float32", flush_episodes=2
    ) as writer:
        for number, attributes in enumerate(ATTRIBUTES):
            outcome = "failure" if number % 2 else "success"
            writer.add(recording(number, outcome, attributes=attributes))
    return Run.open(tmp_path / "a run")


def test_attributes_come_back_in_the_order_of_the_episodes_over_all_shards(run: Run) -> None:
    assert len(list((run.path / "shards").glob("*.h5"))) == 3
    assert run.attributes("wording").tolist() == ["plain", "terse", None, "plain", None]
    assert run.attributes("temperature").tolist() == [0.1, 0.5, 0, None, None]
    found = run.attributes("path")
    assert found.shape == (5,)
    assert found.tolist() == [["a", "b"], ["c", "d"], None, [], None]


def test_they_are_those_of_the_full_records(run: Run) -> None:
    for index in range(len(run)):
        record = run.episode(index)
        assert run.attributes("wording")[index] == record.attributes.get("wording")
        for name in ("seed", "task_id", "group", "outcome"):
            assert run.attributes(name)[index] == getattr(record, name)


def test_facts_and_the_folder_are_asked_for_alike(run: Run) -> None:
    assert run.attributes("run").tolist() == ["a run"] * 5
    assert run.attributes("seed").tolist() == [0, 1, 2, 3, 4]
    assert all(type(seed) is int for seed in run.attributes("seed"))
    assert run.attributes("seed").dtype == run.attributes("group").dtype == run.attributes("run").dtype == object


def test_an_unknown_attribute_is_refused_and_the_nearest_named(run: Run) -> None:
    with pytest.raises(UsageError, match=r"attribute 'wordings': did you mean 'wording'\?") as caught:
        run.attributes("wordings")
    assert "group, outcome, path, run, seed, task_id, temperature, wording" in str(caught.value)
    with pytest.raises(UsageError, match=r"'zzz': known are"):
        run.attributes("zzz")


def test_an_empty_run_and_a_pickled_one(run: Run, tmp_path: Path) -> None:
    again = pickle.loads(pickle.dumps(run))
    assert again.attributes("wording").tolist() == run.attributes("wording").tolist()
    with RunWriter(tmp_path / "none", header(), layers=LAYERS, d_model=D_MODEL, dtype="float32"):
        pass
    empty = Run.open(tmp_path / "none")
    assert empty.attributes("outcome").shape == (0,)
    with pytest.raises(UsageError, match="known are group, outcome, run, seed, task_id"):
        empty.attributes("wording")
