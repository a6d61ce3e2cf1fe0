"""Checks of an action, kept as columns beside the signals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from store_samples import D_MODEL, LAYERS, assert_same_episode, header, recording

from probecascade.episode import Recording
from probecascade.errors import StoreError
from probecascade.store import Run, RunWriter


def checked(number: int, **checks: float) -> Recording:
    made = recording(number)
    points = tuple(replace(c, checks=checks if c.kind == "action" else {}) for c in made.episode.checkpoints)
    return replace(made, episode=replace(made.episode, checkpoints=points))


def store(path: Path, recordings: list[Recording], resume: bool = False) -> Run:
    with RunWriter(path, header(), layers=LAYERS, d_model=D_MODEL, resume=resume) as writer:
        for one in recordings:
            writer.add(one)
    return Run.open(path)


def test_checks_come_back_as_columns_and_with_their_episode(tmp_path: Path) -> None:
    kept = [checked(0, tool_exists=1.0, depth=0.1), checked(1, tool_exists=0.0), recording(2)]
    run = store(tmp_path / "run", kept)
    assert run.check_names == ("depth", "tool_exists")
    rows = run.rows("action:1")
    np.testing.assert_array_equal(rows.checks["tool_exists"], [1.0, 0.0, np.nan])
    np.testing.assert_array_equal(rows.checks["depth"], [0.1, np.nan, np.nan])  # float64: the bits that were given
    assert all(np.isnan(values).all() for values in run.rows("observation:1").checks.values())
    for index, one in enumerate(kept):
        assert_same_episode(run.episode(index), one.episode)


def test_shards_without_checks_stand_beside_shards_with_them(tmp_path: Path) -> None:
    old = store(tmp_path / "run", [recording(0)])
    with h5py.File(next((tmp_path / "run" / "shards").glob("*.h5"))) as file:
        assert "checks" not in file["checkpoints"]
    assert (old.check_names, dict(old.rows("action:1").checks)) == ((), {})
    run = store(tmp_path / "run", [checked(1, tool_exists=1.0)], resume=True)
    np.testing.assert_array_equal(run.rows("action:1").checks["tool_exists"], [np.nan, 1.0])


@pytest.mark.parametrize(("name", "value"), [("tool_exists", float("nan")), ("depth", float("inf")), ("a/b", 1.0)])
def test_a_check_that_would_not_come_back_is_refused(tmp_path: Path, name: str, value: float) -> None:
    with pytest.raises(StoreError, match=r"e0.* has the check .* at action:1"):
        store(tmp_path / "run", [checked(0, **{name: value})])
