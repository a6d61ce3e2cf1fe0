from __future__ import annotations

import multiprocessing
import pickle
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from store_samples import D_MODEL, LAYERS, header, recording

from probecascade.episode import Recording
from probecascade.errors import StoreError
from probecascade.store import Run, RunWriter


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    with RunWriter(path, header(), layers=LAYERS, d_model=D_MODEL, flush_episodes=4) as writer:
        for number in range(12):
            writer.add(recording(number, "failure" if number % 3 else "success"))
    return path


def shards(path: Path) -> list[Path]:
    return sorted((path / "shards").glob("*.h5"))


def test_a_folder_that_is_no_run_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no run at"):
        Run.open(tmp_path / "nothing")
    with pytest.raises(StoreError, match=r"holds no run.json"):
        Run.open(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(StoreError, match=r"run\.json' is damaged"):
        Run.open(tmp_path)
    (tmp_path / "run.json").write_text('{"format": 99}')
    with pytest.raises(StoreError, match="format 99, newer"):
        Run.open(tmp_path)


@pytest.mark.parametrize("damage", ["truncated", "overwritten", "empty", "missing column"])
def test_a_damaged_shard_is_named_or_skipped(run_path: Path, damage: str) -> None:
    victim = shards(run_path)[1]
    whole = victim.read_bytes()
    if damage == "truncated":
        victim.write_bytes(whole[:-200])
    elif damage == "overwritten":
        victim.write_bytes(b"\0" * len(whole))
    elif damage == "empty":
        victim.write_bytes(b"")
    else:
        with h5py.File(victim, "r+") as file:
            del file["episodes/reward"]
    with pytest.raises(StoreError, match=f"{victim.name}.*damaged"):
        Run.open(run_path)
    run = Run.open(run_path, skip_damaged=True)
    assert run.skipped == (victim.name,)
    assert run.describe()["skipped"] == [victim.name]
    assert run.episodes.episode_id.tolist() == [f"e{n}" for n in (0, 1, 2, 3, 8, 9, 10, 11)]
    np.testing.assert_array_equal(run.hidden(4), recording(8).hidden)


def test_flipped_bits_among_the_states_are_noticed(run_path: Path) -> None:
    victim = shards(run_path)[0]
    with h5py.File(victim, "r") as file:
        where = file["hidden/2"].id.get_chunk_info(0).byte_offset
    damaged = bytearray(victim.read_bytes())
    damaged[where + 5] ^= 0xFF
    victim.write_bytes(damaged)
    run = Run.open(run_path)
    with pytest.raises(StoreError, match=victim.name):
        run.states("prompt", 2)
    assert len(run.states("prompt", 4)) == 12


def test_a_shard_that_vanished_is_named(run_path: Path) -> None:
    run = Run.open(run_path)
    shards(run_path)[2].unlink()
    with pytest.raises(StoreError, match="is gone"):
        run.states("prompt", 0)


def test_opaque_values_of_a_foreign_writer_are_refused(run_path: Path) -> None:
    with h5py.File(shards(run_path)[0], "r+") as file:
        values = file["hidden/2"][:]
        del file["hidden/2"]
        file["hidden"].create_dataset("2", data=values.view("V2"))
    with pytest.raises(StoreError, match=r"layer 2 as opaque values .*uint16"):
        Run.open(run_path)


@pytest.mark.parametrize(
    ("layer", "data", "said"),
    [
        ("9", np.zeros((24, D_MODEL), np.float16), "holds layers"),
        ("2", np.zeros((3, D_MODEL)), "belongs to another run"),
    ],
)
def test_a_shard_of_another_run_is_refused(run_path: Path, layer: str, data: Any, said: str) -> None:
    with h5py.File(shards(run_path)[0], "r+") as file:
        if layer in file["hidden"]:
            del file["hidden"][layer]
        file["hidden"].create_dataset(layer, data=data)
    with pytest.raises(StoreError, match=said):
        Run.open(run_path)


def test_the_same_episode_in_two_shards_is_refused(run_path: Path) -> None:
    source = shards(run_path)[0]
    (source.parent / "00007-copy.h5").write_bytes(source.read_bytes())
    with pytest.raises(StoreError, match=r"'e0' is in both .*00007-copy\.h5"):
        Run.open(run_path)


def test_asking_for_what_is_not_stored_lists_what_is(run_path: Path) -> None:
    run = Run.open(run_path)
    with pytest.raises(StoreError, match="stored are: 0, 2, 4"):
        run.states("prompt", 3)
    with pytest.raises(StoreError, match=r"layers 0 .* to 4"):
        run.states("prompt", 7)
    with pytest.raises(StoreError, match="stored are: prompt, action:1"):
        run.states("action:9", 2)
    with pytest.raises(StoreError, match="holds 12"):
        run.episode(12)
    np.testing.assert_array_equal(run.states("prompt", -1), run.states("prompt", 4))


def test_reading_while_another_writes_sees_whole_shards_only(run_path: Path) -> None:
    with RunWriter(run_path, header(), layers=LAYERS, d_model=D_MODEL, resume=True) as writer:
        writer.add(recording(50))
        assert len(Run.open(run_path)) == 12
        (run_path / "shards/.tmp-00003-other.h5").write_bytes(b"half")
        during = Run.open(run_path)
        assert during.incomplete == 1
        writer.flush()
        assert len(Run.open(run_path)) == 13
        assert len(during.states("prompt", 0)) == 12


def _read(job: tuple[Run, str, int]) -> bytes:
    run, name, layer = job
    return run.states(name, layer).tobytes()


def test_forked_readers_read_what_a_serial_one_reads(run_path: Path) -> None:
    run = Run.open(run_path)
    jobs = [(run, name, layer) for name in run.checkpoint_names for layer in run.layers] * 3
    serial = [_read(job) for job in jobs]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(_read, jobs, chunksize=1) == serial


def test_a_run_can_be_sent_to_another_process(run_path: Path) -> None:
    run = Run.open(run_path)
    bare = len(pickle.dumps(run))
    run.hidden(0)
    sent = pickle.loads(pickle.dumps(run))
    assert len(pickle.dumps(run)) == bare  # no vectors travel
    np.testing.assert_array_equal(sent.hidden(5), run.hidden(5))
    assert _read((sent, "action:1", 2)) == _read((run, "action:1", 2))


def test_episodes_may_be_replayed_in_any_order(run_path: Path) -> None:
    run = Run.open(run_path)
    for number in (0, 11, 3, 4, 4, 1):
        np.testing.assert_array_equal(run.hidden(number), recording(number).hidden)
        assert run.episode(number).episode_id == f"e{number}"
    run.hidden(0)[:] = 0
    np.testing.assert_array_equal(run.hidden(0), recording(0).hidden)


def test_one_checkpoint_of_one_layer_reads_nothing_else(run_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.open(run_path)
    reads: list[tuple[str, Any]] = []
    original = h5py.Dataset.__getitem__

    def counted(self: Any, key: Any, **options: Any) -> Any:
        reads.append((self.name, key))
        return original(self, key, **options)

    monkeypatch.setattr(h5py.Dataset, "__getitem__", counted)
    assert run.states("action:2", 2).shape == (12, D_MODEL)
    assert [name for name, _ in reads] == ["/hidden/2"] * 3
    assert sum(key.stop - key.start for _, key in reads) == 12


def test_memory_grows_with_what_is_asked_for_only(tmp_path: Path) -> None:
    width, layers = 2048, tuple(range(5))
    states = np.random.default_rng(0).standard_normal((6, 5, width)).astype(np.float32)
    with RunWriter(tmp_path / "run", header(), layers=layers, d_model=width, flush_episodes=16) as writer:
        for number in range(48):
            writer.add(Recording(recording(number).episode, states))
    run = Run.open(tmp_path / "run")
    asked = 48 * width * 4
    stored = 48 * 6 * 5 * width * 2
    run.states("prompt", 0)
    tracemalloc.start()
    run.states("action:1", 3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * asked < stored / 5


def test_the_store_needs_neither_torch_nor_transformers(run_path: Path) -> None:
    code = (
        "import sys\n"
        "sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from probecascade.store import Run\n"
        f"run = Run.open({str(run_path)!r})\n"
        "print(len(run), run.states('prompt', 0).shape)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split("\n")[0] == f"12 (12, {D_MODEL})"
