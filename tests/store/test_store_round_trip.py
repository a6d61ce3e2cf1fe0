from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_samples import D_MODEL, LAYERS, assert_same_episode, episode, header, recording, states

from probecascade.episode import SIGNALS, Checkpoint, Decision, Episode, Recording, Step
from probecascade.store import DTYPES, Run, RunWriter, cast
from probecascade.store.schema import decode, encode, is_finite


def store(path: Path, recordings: list[Recording], dtype: str = "float16", **options: Any) -> Run:
    settings_ = {"layers": LAYERS, "d_model": D_MODEL} | options
    with RunWriter(path, header(), dtype=dtype, **settings_) as writer:
        for one in recordings:
            writer.add(one)
    return Run.open(path)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_everything_comes_back(tmp_path: Path, dtype: str) -> None:
    recordings = [
        recording(0),
        recording(1, "failure"),
        recording(2, "aborted", rounds=1),
        recording(3, "truncated"),
    ]
    run = store(tmp_path / "run", recordings, dtype, flush_episodes=3)
    assert len(run) == 4
    for number, one in enumerate(recordings):
        assert_same_episode(run.episode(number), one.episode)
        np.testing.assert_array_equal(run.hidden(number), one.hidden)
    for name in run.checkpoint_names:
        rows = run.rows(name)
        for slot, layer in enumerate(LAYERS):
            found = run.states(name, layer)
            assert found.dtype == np.float32
            for row, number in enumerate(rows.episode):
                source = recordings[number]
                ordinal = [c.name for c in source.episode.checkpoints].index(name)
                np.testing.assert_array_equal(found[row], source.hidden[ordinal, slot])
                kept = source.episode.checkpoints[ordinal]
                facts = ("round", "position", "tokens", "generated", "calls", "seconds", "final")
                assert tuple(getattr(rows, fact)[row] for fact in facts) == tuple(getattr(kept, fact) for fact in facts)
                assert tuple(rows.signals[row]) == kept.signals


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_cast_is_a_projection_and_keeps_representable_values(dtype: str, values: list[float]) -> None:
    array = np.array(values, dtype=np.float32)
    once = cast(array, dtype)
    finite = is_finite(encode(array, dtype), dtype)
    np.testing.assert_array_equal(finite, np.isfinite(once))
    np.testing.assert_array_equal(cast(once[finite], dtype), once[finite])


def test_bfloat16_bits_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(0)
    bits = random.integers(0, 2**32, 20_000, dtype=np.uint32)
    halves = (random.integers(0, 2**16, 2_000, dtype=np.uint32) << 16) | 0x8000  # exactly between two neighbours
    values = np.concatenate([bits, halves]).view(np.float32)
    values = values[~np.isnan(values)]
    expected = torch.from_numpy(values).to(torch.bfloat16)
    np.testing.assert_array_equal(encode(values, "bfloat16"), expected.view(torch.int16).numpy().view(np.uint16))
    np.testing.assert_array_equal(decode(encode(values, "bfloat16"), "bfloat16"), expected.float().numpy())
    assert not is_finite(
        encode(np.array([0xFFFFFFFF, 0x7F800001], np.uint32).view(np.float32), "bfloat16"), "bfloat16"
    ).any()


TEXT = st.text(st.characters(), max_size=12)  # all of Unicode: NUL and lone surrogates included
COUNT = st.integers(0, 2**40)
FLOAT32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
STEPS = st.builds(
    Step,
    round=st.integers(0, 99),
    part=st.integers(0, 9),
    text=TEXT,
    thought=TEXT,
    action=TEXT,
    argument=TEXT,
    observation=TEXT,
    observation_kind=TEXT,
    turn_tokens=COUNT,
    observation_tokens=COUNT,
    finish_reason=TEXT,
)
DECISIONS = st.builds(
    Decision,
    action=st.sampled_from(["continue", "abort", "answer"]),
    gate=TEXT,
    score=st.floats(),
    threshold=st.floats(),
    reason=TEXT,
    append=TEXT,
    allow=st.none() | st.lists(TEXT, max_size=2).map(tuple),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
POINTS = st.builds(
    Checkpoint,
    kind=st.sampled_from(["prompt", "thought", "action", "observation", "part"]) | TEXT,
    index=st.integers(0, 20),
    round=st.integers(0, 20),
    position=st.integers(0, 9),
    tokens=COUNT,
    generated=COUNT,
    calls=COUNT,
    seconds=st.floats(0, 1e9),
    final=st.booleans(),
    signals=st.tuples(*[FLOAT32] * len(SIGNALS)),
)
EPISODES = st.builds(
    Episode,
    episode_id=TEXT,
    task_id=TEXT,
    group=TEXT,
    seed=st.integers(-(2**63), 2**63 - 1),
    outcome=st.sampled_from(["success", "failure", "truncated", "aborted", "error"]),
    reward=st.floats(0, 1),
    reason=TEXT,
    steps=st.lists(STEPS, max_size=2).map(tuple),
    checkpoints=st.lists(POINTS, max_size=4, unique_by=lambda point: point.name).map(tuple),
    token_ids=st.lists(st.integers(0, 2**31 - 1), min_size=10, max_size=12).map(lambda ids: np.array(ids, np.int32)),
    prompt_tokens=COUNT,
    generated=COUNT,
    observed=COUNT,
    calls=COUNT,
    seconds=st.floats(0, 1e9),
    side_tokens=COUNT,
    doomed_round=st.none() | st.integers(0, 99),
    doomed_tokens=st.none() | COUNT,
    decision=st.none() | DECISIONS,
    attributes=st.dictionaries(TEXT, JSON, max_size=3),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(EPISODES, min_size=1, max_size=3, unique_by=lambda one: one.episode_id))
def test_any_episode_comes_back(episodes: list[Episode]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        recordings = [Recording(one, states(n, len(one.checkpoints))) for n, one in enumerate(episodes)]
        run = store(Path(folder) / "run", recordings)
        for number, one in enumerate(recordings):
            assert_same_episode(run.episode(number), one.episode)
            np.testing.assert_array_equal(run.hidden(number), one.hidden)
        assert run.episodes.group.tolist() == [one.group for one in episodes]


def test_table_holds_the_episodes_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    numbers = [7, 2, 9, 4, 0]
    run = store(tmp_path / "run", [recording(number) for number in numbers], flush_episodes=2)
    table = run.episodes
    assert len(table) == 5
    assert table.episode_id.tolist() == [f"e{number}" for number in numbers]
    assert table.tokens.tolist() == [13 + number for number in numbers]
    assert table.rounds.tolist() == [2] * 5
    assert table.seconds.tolist() == [1.5 + number for number in numbers]
    assert run.rows("action:1").episode.tolist() == [0, 1, 2, 3, 4]
    assert run.rows("action:1").tokens.tolist() == [10 * number + 3 for number in numbers]


def test_labels_come_back_and_the_unlabelled_stay_so(tmp_path: Path) -> None:
    outcomes = ["success", "failure", "truncated", "aborted", "error"]
    run = store(tmp_path / "run", [recording(n, outcome) for n, outcome in enumerate(outcomes)])
    assert run.episodes.outcome.tolist() == outcomes
    assert run.episodes.labelled.tolist() == [True, True, True, False, False]
    assert run.episodes.failed.tolist() == [False, True, True, False, False]
    assert run.episodes.doomed_round.tolist() == [-1, 1, -1, -1, -1]
    assert run.episodes.doomed_tokens.tolist() == [-1, 12, -1, -1, -1]


def test_names_are_ordered_by_round_and_kind(tmp_path: Path) -> None:
    run = store(tmp_path / "run", [recording(0, rounds=3), recording(1, rounds=1)])
    assert run.checkpoint_names == (
        "prompt",
        "action:1",
        "observation:1",
        "action:2",
        "part:1",
        "observation:2",
        "action:3",
        "observation:3",
    )


def test_a_late_part_stays_after_an_earlier_one(tmp_path: Path) -> None:
    """Episodes close a part in different rounds; `part:1` must come before `part:2` all the same."""

    def closing(number: int, *rounds: int) -> Recording:
        points = tuple(
            Checkpoint("part", part, round_, part, 1, 1, 1, 0.0, False, (0.0,) * len(SIGNALS))
            for part, round_ in enumerate(rounds, start=1)
        )
        return recording(number, checkpoints=points)

    run = store(tmp_path / "run", [closing(0, 9), closing(1, 9), closing(2, 2, 4)])
    assert run.checkpoint_names == ("part:1", "part:2")


@pytest.mark.parametrize(("layers", "stored"), [([3], [3]), ([-1], [4]), ([3, 4], [3, 4]), ([0, -5 + 1], [0, 1])])
def test_as_many_layers_come_back_as_were_asked_for(tmp_path: Path, layers: list[int], stored: list[int]) -> None:
    one = recording(1, n_layers=len(layers))
    run = store(tmp_path / "run", [one], layers=layers)
    assert list(run.layers) == stored
    assert run.hidden(0).shape == (len(one.episode.checkpoints), len(layers), D_MODEL)
    for slot, layer in enumerate(layers):
        np.testing.assert_array_equal(run.states("prompt", layer), one.hidden[:1, slot])


def test_layers_keep_the_order_asked_for(tmp_path: Path) -> None:
    one = recording(1)
    run = store(tmp_path / "run", [one], layers=(4, 0, 2))
    assert run.layers == (4, 0, 2)
    np.testing.assert_array_equal(run.states("prompt", 4), one.hidden[:1, 0])
    np.testing.assert_array_equal(run.hidden(0), one.hidden)


def test_episodes_without_checkpoints_are_kept(tmp_path: Path) -> None:
    run = store(tmp_path / "run", [recording(0, "error", checkpoints=(), steps=())])
    assert run.hidden(0).shape == (0, len(LAYERS), D_MODEL)
    assert run.checkpoint_names == ()
    assert_same_episode(run.episode(0), episode(0, "error", checkpoints=(), steps=()))


def test_numpy_values_in_attributes_become_plain(tmp_path: Path) -> None:
    run = store(tmp_path / "run", [recording(0, attributes={"loss": np.float32(0.5), "ids": np.arange(2)})])
    assert run.episode(0).attributes == {"loss": 0.5, "ids": [0, 1]}


def test_the_header_states_convention_and_versions(tmp_path: Path) -> None:
    run = store(tmp_path / "run", [recording(0)], layers=[0, 2, -1])
    assert run.header["layers"] == [0, 2, 4]
    assert run.header["final_norm"] is False
    assert "before the final norm" in run.header["layer_convention"]
    assert run.header["dtype"] == "float16"
    assert set(run.header["versions"]) == {"torch", "h5py", "numpy"}
    assert run.header["model"] == header()["model"]


def test_describe_counts_what_is_there(tmp_path: Path) -> None:
    run = store(tmp_path / "run", [recording(0), recording(1, "failure"), recording(2, "error", rounds=1)])
    (tmp_path / "run/shards/.tmp-00009-x.h5").write_bytes(b"half")
    described = Run.open(tmp_path / "run").describe()
    assert described["episodes"] == 3
    assert described["groups"] == 2
    assert described["outcomes"] == {"error": 1, "failure": 1, "success": 1}
    assert described["labelled"] == 2
    assert described["checkpoints"]["prompt"] == 3
    assert described["checkpoints"]["action:2"] == 2
    assert described["incomplete"] == 1
    assert described["rejected"] == 0
    assert described["bytes"] == sum(f.stat().st_size for f in (tmp_path / "run").rglob("*") if f.is_file())
    assert run.incomplete == 0


def test_an_empty_run_is_a_run(tmp_path: Path) -> None:
    run = store(tmp_path / "run", [])
    assert len(run) == len(run.episodes) == 0
    assert run.checkpoint_names == ()
    assert run.describe()["rejected"] == 0
