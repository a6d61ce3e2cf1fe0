"""Gates that look back: what they see live, in a replay and in a run is the same, bit for bit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_runs import HEADER, LAYERS, WIDTH, make_episode, make_run, make_states
from numpy.typing import NDArray

from probecascade.episode import Moment, Recording, Task
from probecascade.errors import CascadeError
from probecascade.evaluation import replay_policy
from probecascade.policies import Cascade, Gate, score_run
from probecascade.policies.moments import stored_moment
from probecascade.policies.scoring import score_episode
from probecascade.policies.taps import stored_states
from probecascade.probes import LinearProbe
from probecascade.store import Run, RunWriter
from probecascade.testing import EvidenceProbe

TAPS = (("prompt", 4), ("observation:1", 2), ("part:1", 4), ("action:3", 2), ("action:3", 4))


class Blocks:
    """Scores by the number of blocks that are missing."""

    def score(self, states: NDArray[Any], signals: NDArray[Any] | None = None) -> NDArray[np.float64]:
        return np.isnan(states).sum(axis=1) / states.shape[1]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """As `make_run`, with checks at the actions and without one observation:1."""
    path = tmp_path_factory.mktemp("taps") / "run"
    rng = np.random.default_rng(3)
    with RunWriter(path, HEADER, layers=LAYERS, d_model=WIDTH, dtype="float32") as writer:
        for g in range(12):
            episode = make_episode(f"task-{g}", f"group-{g}", failed=g % 2 == 0, rounds=2 + g % 4)
            points = tuple(
                replace(c, checks={"depth": 0.1 * g}) if c.kind == "action" and g != 5 else c
                for c in episode.checkpoints
            )
            episode = replace(episode, checkpoints=points)
            states = make_states(episode, rng, failed=g % 2 == 0)
            if g == 7:
                states[[c.name for c in points].index("observation:1")] = np.nan  # the store leaves it out
            writer.add(Recording(episode, states))
    return Run.open(path)


def test_a_row_holds_the_taps_in_order_and_nan_where_there_is_no_state(run: Run) -> None:
    states, rows = stored_states(run, "action:3", TAPS), run.rows("action:3")
    assert (states.shape, states.dtype) == ((len(rows), len(TAPS) * WIDTH), np.float32)
    for row, index in enumerate(rows.episode.tolist()):
        names = [c.name for c in run.episode(index).checkpoints]
        for (name, layer), block in zip(TAPS, np.split(states[row], len(TAPS)), strict=True):
            if name in names:
                np.testing.assert_array_equal(block, run.hidden(index)[names.index(name), LAYERS.index(layer)])
            else:
                assert np.isnan(block).all()
                assert (index, name) == (7, "observation:1")


def test_what_comes_later_is_not_there(run: Run) -> None:
    later = stored_states(run, "action:2", (("part:1", 4), ("observation:2", 4), ("action:99", 4), ("action:2", 4)))
    assert np.isnan(later[:, : 3 * WIDTH]).all()  # part:1 stands on the same token, but is decided on after action:2
    assert not np.isnan(stored_states(run, "part:1", (("action:2", 4), ("part:1", 4)))).any()


def test_the_same_bits_live_replayed_inspected_and_from_the_run(run: Run) -> None:
    cascade = Cascade(
        [Gate("action:1", 2, EvidenceProbe(), 0.999), Gate("action:3", None, EvidenceProbe(), 1.0, taps=TAPS)]
    )
    assert (cascade.gates[1].layer, cascade.layers) == (4, (2, 4))
    table = score_run(run, cascade.gates)
    assert len(set(table.scores[~np.isnan(table.scores)].tolist())) > 12
    for index in range(len(run)):
        episode, hidden = run.episode(index), run.hidden(index)
        watch, live = cascade.begin(Task(episode.task_id, episode.group, ())), {}
        for point, states in zip(episode.checkpoints, hidden, strict=True):
            decision = watch.decide(stored_moment(episode, point, dict(zip(LAYERS, states, strict=True))))
            if decision.gate:
                live[decision.gate] = decision.score
        expected = {g.checkpoint: s for g, s in zip(cascade.gates, table.scores[index], strict=True) if not np.isnan(s)}
        assert live == expected == score_episode(run, index, cascade)
        eager = Cascade([replace(cascade.gates[1], threshold=0.0)])
        decision = replay_policy(eager, Recording(episode, hidden), layers=LAYERS)
        assert (None if decision is None else decision.score) == expected.get("action:3")


def test_episodes_that_are_live_together_do_not_see_each_other() -> None:
    cascade = Cascade([Gate("action:3", 4, Blocks(), 0.5, taps=TAPS)])
    episode = make_episode("t", "g", failed=True, rounds=4)
    states = {layer: np.ones(WIDTH, dtype=np.float32) for layer in LAYERS}
    moments: dict[str, Moment] = {c.name: stored_moment(episode, c, states) for c in episode.checkpoints}
    one, other = cascade.begin(Task("1", "g", ())), cascade.begin(Task("2", "g", ()))
    for name in ("prompt", "observation:1", "part:1"):
        one.decide(moments[name])
    broken = replace(moments["prompt"], hidden={**states, 4: np.full(WIDTH, np.inf, dtype=np.float32)})
    other.decide(broken)  # as the store leaves it out, so does the watch
    assert [watch.decide(moments["action:3"]).score for watch in (one, other)] == [0.0, 0.6]
    assert cascade.decide(moments["action:3"]).score == 0.6
    plain = Cascade([Gate("action:3", 4, Blocks(), 0.5)])
    assert plain.begin(Task("1", "g", ())) is plain


@pytest.mark.parametrize(
    ("layer", "taps"),
    [
        (4, (("action:1", 4),)),
        (2, (("action:1", 2), ("action:3", 4))),
        (4, (("action:3", 4), ("action:3", 4))),
    ],
)
def test_taps_that_lack_the_gate_itself_are_refused(layer: int, taps: tuple[tuple[str, int], ...]) -> None:
    with pytest.raises(CascadeError, match="with its own checkpoint and layer among them"):
        Gate("action:3", layer, Blocks(), 0.5, taps=taps)


def test_taps_are_stored_and_a_changed_folder_is_refused(tmp_path: Path) -> None:
    probe = LinearProbe(np.zeros(2), np.ones(2), np.array([1.0, 2.0]), 0.25)
    cascade = Cascade([Gate("action:3", 4, probe, 0.5, taps=TAPS), Gate("part:2", 2, probe, 0.25)])
    cascade.save(tmp_path / "c")
    loaded = Cascade.load(tmp_path / "c")
    assert [gate.taps for gate in loaded.gates] == [TAPS, (("part:2", 2),)]
    text = tmp_path / "c" / "cascade.json"
    record, kept = json.loads(text.read_text()), text.read_text()
    assert record["format"] == 3
    for change in ({"threshold": 0.75}, {"taps": [["action:3", 4]]}, {"layer": 2}):
        edited = [record["gates"][0] | change, record["gates"][1]]
        text.write_text(json.dumps(record | {"gates": edited}))
        with pytest.raises(CascadeError, match="changed by hand"):
            Cascade.load(tmp_path / "c")
    text.write_text(json.dumps({key: value for key, value in record.items() if key != "digest"}))
    with pytest.raises(CascadeError, match="changed by hand"):
        Cascade.load(tmp_path / "c")
    text.write_text(kept)
    other = Cascade(
        [replace(gate, probe=LinearProbe(np.zeros(2), np.ones(2), np.ones(2), 0.25)) for gate in cascade.gates]
    )
    other.save(tmp_path / "d")
    (tmp_path / "c" / "probes.safetensors").write_bytes((tmp_path / "d" / "probes.safetensors").read_bytes())
    with pytest.raises(CascadeError, match="changed by hand"):
        Cascade.load(tmp_path / "c")


def test_a_run_without_the_tapped_checkpoint_shows_nan(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", groups=4)
    assert np.isnan(stored_states(run, "action:1", (("thought:1", 4), ("action:1", 4)))[:, :WIDTH]).all()
