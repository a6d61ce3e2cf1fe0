from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from store_samples import D_MODEL, LAYERS, checkpoint, header, recording

from probecascade.episode import Recording
from probecascade.errors import DuplicateEpisodeError, StoreError
from probecascade.store import Run, RunWriter

HERE = Path(__file__).parent


def writer(path: Path, **options: Any) -> RunWriter:
    stated = options.pop("header", header())
    return RunWriter(path, stated, **({"layers": LAYERS, "d_model": D_MODEL} | options))


def files(path: Path) -> set[str]:
    return {str(file.relative_to(path)) for file in path.rglob("*")}


def test_duplicates_are_refused_pending_or_stored(tmp_path: Path) -> None:
    with writer(tmp_path / "run") as one:
        one.add(recording(0))
        with pytest.raises(DuplicateEpisodeError, match="'e0'"):
            one.add(recording(0))
        one.flush()
        with pytest.raises(DuplicateEpisodeError, match="'e0'"):
            one.add(recording(0))
    with writer(tmp_path / "run", resume=True) as again, pytest.raises(DuplicateEpisodeError, match="'e0'"):
        again.add(recording(0))
    assert len(Run.open(tmp_path / "run")) == 1


def test_an_existing_folder_needs_resume_and_stays_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/mine.txt").write_text("mine")
    with pytest.raises(StoreError, match="add --resume"):
        writer(tmp_path / "run")
    with pytest.raises(StoreError, match=r"no run.json"):
        writer(tmp_path / "run", resume=True)
    assert files(tmp_path) == {"run", "run/mine.txt"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"layers": [5]}, "layers 0 .* to 4"),
        ({"layers": [-6]}, "layers 0 .* to 4"),
        ({"layers": [4, -1]}, "same layer 4"),
        ({"layers": []}, "no layers"),
        ({"layers": ["3"]}, "not a whole number"),
        ({"dtype": "float8"}, "bfloat16, float16, float32"),
        ({"d_model": 0}, "d_model is 0"),
        ({"header": header(dtype="float32")}, "dtype = 'float32'"),
        ({"header": header(note=float("nan"))}, "cannot be written as JSON"),
        ({"header": header(n_layers=None), "layers": [-1]}, "no n_layers"),
    ],
)
def test_what_cannot_be_stored_is_refused_before_anything_is_written(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(StoreError, match=said):
        writer(tmp_path / "run", **options)
    assert files(tmp_path) == set()


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="cannot create the run folder"):
        writer(tmp_path / "file" / "run")
    assert files(tmp_path) == {"file"}


def test_resume_adds_what_is_missing_whatever_the_order(tmp_path: Path) -> None:
    numbers = list(range(9))
    for upto, order in [(4, numbers), (7, numbers[::-1]), (9, numbers)]:
        with writer(tmp_path / "run", resume=True, flush_episodes=2) as one:
            for number in order:
                if f"e{number}" not in one.stored and len(one.stored) + one.pending < upto:
                    one.add(recording(number))
    run = Run.open(tmp_path / "run")
    assert sorted(run.episodes.episode_id) == [f"e{number}" for number in numbers]
    assert len(run.header["resumed"]) == 2
    assert [entry["episodes"] for entry in run.header["resumed"]] == [4, 7]
    assert len(run.rows("prompt")) == 9


def test_a_resume_changes_nothing_else_in_the_header(tmp_path: Path) -> None:
    writer(tmp_path / "run").close()
    before = json.loads((tmp_path / "run/run.json").read_text())
    writer(tmp_path / "run", resume=True, header=header(note="new", versions={"torch": "10"})).close()
    after = json.loads((tmp_path / "run/run.json").read_text())
    assert after.pop("resumed")[0]["versions"]["torch"] == "10"
    assert after == before


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"header": header(model={"name": "toy", "revision": "r2", "dtype": "float32"})},
            'model.revision is "r1".*"r2"',
        ),
        ({"header": header(template={"name": "chat", "hash": "abc"})}, 'template.name is "plain".*"chat"'),
        ({"header": header(checkpoints=["prompt"])}, "checkpoints is"),
        ({"header": header(recipe_identity="tasks-2")}, 'recipe_identity is "tasks-1".*"tasks-2"'),
        ({"header": header(layer_convention="other")}, "layer_convention is"),
        ({"layers": (0, 2)}, r"layers is \[0, 2, 4\].*\[0, 2\]"),
        ({"dtype": "float32"}, 'dtype is "float16".*"float32"'),
    ],
)
def test_a_resume_with_other_settings_is_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with writer(tmp_path / "run") as one:
        one.add(recording(0))
    before = {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()}
    with pytest.raises(StoreError, match=said):
        writer(tmp_path / "run", resume=True, **options)
    assert {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()} == before


def test_a_second_writer_is_refused_until_the_first_has_finished(tmp_path: Path) -> None:
    with writer(tmp_path / "run") as one:
        one.add(recording(0))
        with pytest.raises(StoreError, match="another process is writing to"):
            writer(tmp_path / "run", resume=True)
        one.add(recording(1))
    with writer(tmp_path / "run", resume=True) as two:
        assert two.stored == {"e0", "e1"}


def test_a_refused_resume_lets_go_of_the_folder(tmp_path: Path) -> None:
    with writer(tmp_path / "run") as one:
        one.add(recording(0))
    (shard,) = (tmp_path / "run/shards").glob("*.h5")
    whole = shard.read_bytes()
    shard.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StoreError, match=shard.name):
        writer(tmp_path / "run", resume=True)
    shard.write_bytes(whole)
    writer(tmp_path / "run", resume=True).close()


def add_all(one: RunWriter, numbers: Iterable[int]) -> None:
    for number in numbers:
        one.add(recording(number))


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_leaving_by_an_exception_stores_what_was_added(tmp_path: Path, error: type[BaseException]) -> None:
    def interrupted() -> None:
        with writer(tmp_path / "run") as one:
            one.add(recording(0))
            raise error

    with pytest.raises(error):
        interrupted()
    assert Run.open(tmp_path / "run").episodes.episode_id.tolist() == ["e0"]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_ctrl_c_in_the_middle_of_a_flush_stores_each_episode_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    rename, calls = os.replace, []

    def interrupted(source: Any, target: Any) -> None:
        calls.append(target)
        if len(calls) == 1:
            if moment == "after":
                rename(source, target)
            raise KeyboardInterrupt
        rename(source, target)

    def extract() -> None:
        with writer(tmp_path / "run") as one:
            add_all(one, range(2))
            monkeypatch.setattr(os, "replace", interrupted)
            one.flush()

    with pytest.raises(KeyboardInterrupt):
        extract()
    run = Run.open(tmp_path / "run")
    assert run.episodes.episode_id.tolist() == ["e0", "e1"]
    assert run.incomplete == 0


def test_an_episode_added_after_an_interrupted_flush_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.replace

    def interrupted(source: Any, target: Any) -> None:
        rename(source, target)
        raise KeyboardInterrupt

    with writer(tmp_path / "run") as one:
        one.add(recording(0))
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", interrupted)
            with pytest.raises(KeyboardInterrupt):
                one.flush()
        one.add(recording(1))
        assert one.stored == {"e0"}
        assert one.pending == 1
    assert Run.open(tmp_path / "run").episodes.episode_id.tolist() == ["e0", "e1"]


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[2])
from store_samples import D_MODEL, LAYERS, header, recording
from probecascade.store import RunWriter
writer = RunWriter(sys.argv[1], header(), layers=LAYERS, d_model=D_MODEL, flush_episodes=4)
for number in range(10):
    writer.add(recording(number))
real = os.fsync
def killed(descriptor):
    os.kill(os.getpid(), signal.SIGKILL)
os.fsync = killed
writer.flush()
"""


def test_a_killed_writer_loses_at_most_its_open_shard(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "run"), str(HERE)], check=False)
    assert done.returncode == -signal.SIGKILL
    run = Run.open(tmp_path / "run")
    assert run.episodes.episode_id.tolist() == [f"e{number}" for number in range(8)]
    assert run.incomplete == 1
    np.testing.assert_array_equal(run.hidden(7), recording(7).hidden)
    with writer(tmp_path / "run", resume=True) as again:
        assert again.stored == set(run.episodes.episode_id)
        again.add(recording(8))
    after = Run.open(tmp_path / "run")
    assert len(after) == 9
    assert after.incomplete == 0
    assert after.header["resumed"][0]["incomplete_removed"] == 1


def test_a_full_disk_leaves_the_stored_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def extract() -> None:
        with writer(tmp_path / "run", flush_episodes=2) as one:
            add_all(one, range(3))
            monkeypatch.setattr(os, "fsync", full)
            one.add(recording(3))

    with pytest.raises(StoreError, match=r"disk full.*\(2 episodes\) stays readable; free space and resume"):
        extract()
    monkeypatch.undo()
    run = Run.open(tmp_path / "run")
    assert run.episodes.episode_id.tolist() == ["e0", "e1"]
    assert run.incomplete == 0
    with writer(tmp_path / "run", resume=True) as again:
        assert again.stored == {"e0", "e1"}


def test_a_flush_may_be_tried_again_when_space_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with writer(tmp_path / "run") as one:
        one.add(recording(0))
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(StoreError, match="disk full"):
                one.flush()
        one.flush()
        one.add(recording(1))
    assert len(Run.open(tmp_path / "run")) == 2


LIMITED = """
import resource, sys
sys.path.insert(0, sys.argv[2])
from store_samples import D_MODEL, LAYERS, header, recording
from probecascade.errors import StoreError
from probecascade.store import RunWriter
try:
    with RunWriter(sys.argv[1], header(), layers=LAYERS, d_model=D_MODEL) as writer:
        writer.add(recording(0))
        writer.flush()
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        writer.add(recording(1))
except StoreError as error:
    print(error)
"""


def test_a_disk_that_really_refuses_is_one_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "run"), str(HERE)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "File too large" in done.stdout
    assert "(1 episodes) stays readable" in done.stdout
    assert done.stderr == ""
    run = Run.open(tmp_path / "run")
    assert run.episodes.episode_id.tolist() == ["e0"]
    assert run.incomplete == 0


def with_value(one: Recording, row: int, value: float) -> Recording:
    hidden = one.hidden.copy()
    hidden[row, 1, 3] = value
    return Recording(one.episode, hidden)


@pytest.mark.parametrize(
    ("dtype", "value", "reason"),
    [
        ("float16", np.nan, "non_finite"),
        ("float32", np.inf, "non_finite"),
        ("bfloat16", -np.inf, "non_finite"),
        ("float16", 7e4, "overflow"),
        ("float16", -65520.0, "overflow"),
        ("bfloat16", 3.4e38, "overflow"),
    ],
)
def test_a_state_that_cannot_be_kept_is_left_out_and_counted(
    tmp_path: Path, dtype: str, value: float, reason: str
) -> None:
    one = recording(0)
    with writer(tmp_path / "run", dtype=dtype) as storing:
        storing.add(with_value(one, 1, value))
        storing.add(recording(1))
        assert storing.rejected == 1
    run = Run.open(tmp_path / "run")
    assert [c.name for c in run.episode(0).checkpoints] == [
        c.name for c in one.episode.checkpoints if c.name != "action:1"
    ]
    np.testing.assert_array_equal(run.hidden(0), np.delete(one.hidden, 1, axis=0))
    assert run.rows("action:1").episode.tolist() == [1]
    assert all(np.isfinite(run.states(name, layer)).all() for name in run.checkpoint_names for layer in LAYERS)
    assert run.describe()["rejected_by_reason"] == {"non_finite": 0, "overflow": 0} | {reason: 1}
    with writer(tmp_path / "run", dtype=dtype, resume=True) as again:
        assert again.rejected == 1


def test_the_largest_values_that_fit_are_kept(tmp_path: Path) -> None:
    with writer(tmp_path / "run") as storing:
        storing.add(with_value(recording(0), 1, 65519.0))
        assert storing.rejected == 0
    assert Run.open(tmp_path / "run").hidden(0)[1, 1, 3] == 65504.0


def test_a_signal_that_is_no_number_is_left_out_and_counted(tmp_path: Path) -> None:
    for value in (float("nan"), 1e39):
        bad = checkpoint("prompt", 0, 0, 0, 0)
        signals = (value, *bad.signals[1:])
        one = recording(0, checkpoints=(type(bad)("prompt", 0, 0, 0, 0, 0, 0, 0.0, False, signals),))
        with writer(tmp_path / f"run-{value}") as storing:
            storing.add(one)
            assert storing.rejected == 1


def test_a_run_of_overflowing_states_stops_early(tmp_path: Path) -> None:
    def extract() -> None:
        with writer(tmp_path / "run") as storing:
            for number in range(1000):
                storing.add(with_value(recording(number), 1, 1e5))

    with pytest.raises(StoreError, match=r"too large for float16\), more than 10%; store another dtype"):
        extract()
    assert 0 < len(Run.open(tmp_path / "run")) < 20


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"outcome": "won"}, "outcome 'won'"),
        ({"seed": 2**63}, "64 bits"),
        ({"calls": -1}, "calls = -1"),
        ({"doomed_round": -1}, "doomed_round = -1"),
        ({"reward": float("nan")}, "reward = nan"),
        ({"token_ids": np.zeros((2, 9), np.int32)}, "token ids of shape"),
        ({"token_ids": np.array([2**31] * 20)}, "token ids outside"),
        ({"token_ids": np.arange(3, dtype=np.int32)}, "outside its 3 token ids"),
        ({"attributes": {"x": object()}}, "attributes that JSON cannot hold"),
        ({"attributes": {"x": float("inf")}}, "attributes that JSON cannot hold"),
        ({"checkpoints": (checkpoint("prompt", 0, 0, 0, 0),) * 2}, "two checkpoints called prompt"),
    ],
)
def test_an_episode_that_would_not_come_back_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with writer(tmp_path / "run") as one:
        with pytest.raises(StoreError, match=said):
            one.add(recording(0, **changes))
        one.add(recording(1))
    assert Run.open(tmp_path / "run").episodes.episode_id.tolist() == ["e1"]


def test_states_of_another_shape_are_refused(tmp_path: Path) -> None:
    """A batch recorded for every sample, or a layer too few, would silently mix episodes."""
    good = recording(0)
    for hidden in (
        np.concatenate([good.hidden, good.hidden]),
        good.hidden[1:],
        good.hidden[:, 1:],
        good.hidden[..., 1:],
        good.hidden.astype(np.int64),
        good.hidden[None],
    ):
        with (
            writer(tmp_path / "run", resume=True) as one,
            pytest.raises(StoreError, match="expected floats of shape"),
        ):
            one.add(Recording(good.episode, hidden))
    assert len(Run.open(tmp_path / "run")) == 0


def test_shards_are_written_by_count_by_time_and_by_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with writer(tmp_path / "count", flush_episodes=2) as one:
        one.add(recording(0))
        assert one.stored == frozenset()
        one.add(recording(1))
        assert one.stored == {"e0", "e1"}
        assert one.pending == 0
    with writer(tmp_path / "time", flush_seconds=0.0) as one:
        one.add(recording(0))
        assert one.stored == {"e0"}
    wide = recording(0)
    hidden = np.zeros((len(wide.episode.checkpoints), 1, 6_000_000), dtype=np.float16)
    with writer(tmp_path / "size", layers=[0], d_model=6_000_000) as one:
        one.add(Recording(wide.episode, hidden))
        assert one.stored == {"e0"}


def test_a_closed_writer_takes_nothing_more(tmp_path: Path) -> None:
    one = writer(tmp_path / "run")
    one.close()
    one.close()
    with pytest.raises(StoreError, match="is closed"):
        one.add(recording(0))


def test_no_file_is_ever_opened_for_overwriting() -> None:
    source = "".join(file.read_text() for file in (HERE.parents[1] / "probecascade/store").glob("*.py"))
    assert '"w"' not in source
    assert '"wb"' not in source
    assert "pickle" not in source.replace("pickled", "").replace("allow_pickle=False", "")
