from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_runs import HEADER, LAYERS, make_run
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from signing import write_signed

from probecascade.episode import CONTINUE, SIGNALS, Action, Checkpoint, Moment, Task
from probecascade.errors import CascadeError, DataError
from probecascade.interfaces import StoppingPolicy
from probecascade.policies import Cascade, Gate, fit_cascade, score_run
from probecascade.probes import LinearProbe, LogisticFitter
from probecascade.thresholds import OFF

GOLDEN = Path(__file__).parent / "golden" / "cascade-1"


def probe(weight: float = 1.0, width: int = 2) -> LinearProbe:
    return LinearProbe(np.zeros(width), np.ones(width), np.full(width, weight), 0.0)


def moment(name: str, hidden: Mapping[int, NDArray[np.float32]], *, final: bool = False, tokens: int = 0) -> Moment:
    kind, _, index = name.partition(":")
    number = int(index or 0)
    signals = tuple(float(tokens) if column == "tokens_so_far" else 0.0 for column in SIGNALS)
    return Moment(
        checkpoint=Checkpoint(kind, number, number, 9, tokens, tokens, 0, 0.0, final, signals),
        hidden=hidden,
        transcript=(),
        thought="",
        action=Action("search", "x"),
        observation="",
        rounds_left=3,
        tokens_left=100,
    )


def state(*values: float) -> dict[int, NDArray[np.float32]]:
    return {4: np.array(values, dtype=np.float32)}


def watch(cascade: Cascade) -> Cascade:
    return cascade.begin(Task("t", "g", ()))


def test_a_gate_fires_at_its_threshold_and_says_why() -> None:
    cascade = Cascade([Gate("action:2", 4, probe(), 0.5)])
    decision = watch(cascade).decide(moment("action:2", state(0.0, 0.0)))
    assert (decision.action, decision.gate, decision.score, decision.threshold) == (
        "abort",
        "action:2",
        0.5,
        0.5,
    )
    assert decision.reason == "P(failure) 0.50 >= 0.50 at action:2"
    below = watch(cascade).decide(moment("action:2", state(-1.0, 0.0)))
    assert (below.action, below.gate) == ("continue", "action:2")
    assert below.score < 0.5
    assert below.reason == "P(failure) 0.27 < 0.50 at action:2"


def test_other_checkpoints_off_gates_and_final_turns_are_let_pass() -> None:
    cascade = Cascade([Gate("action:1", 4, probe(), OFF), Gate("action:2", 4, probe(), 0.1)])
    assert watch(cascade).decide(moment("observation:2", {})) is CONTINUE
    assert watch(cascade).decide(moment("action:1", {})) is CONTINUE
    assert watch(cascade).decide(moment("action:2", state(9.0, 9.0), final=True)) is CONTINUE
    eager = Cascade(cascade.gates, gate_answers=True)
    assert watch(eager).decide(moment("action:2", state(9.0, 9.0), final=True)).action == "abort"
    assert np.isnan(cascade.score(moment("observation:2", {})))


def test_only_the_layers_of_live_gates_are_asked_for() -> None:
    gates = [
        Gate("action:1", 7, probe(), OFF),
        Gate("action:2", 4, probe(), 0.1),
        Gate("action:3", 2, probe(), 0.1),
    ]
    cascade = Cascade(gates)
    assert cascade.layers == (2, 4)
    assert isinstance(cascade, StoppingPolicy)


def test_a_missing_layer_and_a_broken_score_are_errors() -> None:
    cascade = Cascade([Gate("action:2", 4, probe(), 0.5)])
    with pytest.raises(CascadeError, match=r"reads layer 4, but the moment holds layers \[2\]"):
        watch(cascade).decide(moment("action:2", {2: np.zeros(2, dtype=np.float32)}))
    with pytest.raises(DataError):
        watch(cascade).decide(moment("action:2", state(float("nan"), 0.0)))

    class Broken:
        def score(self, states: NDArray[Any], signals: NDArray[Any] | None = None) -> NDArray[np.float64]:
            return np.full(len(states), np.nan)

    with pytest.raises(DataError, match="no number"):
        watch(Cascade([Gate("action:2", 4, Broken(), 0.5)])).decide(moment("action:2", state(0.0, 0.0)))
    with pytest.raises(CascadeError, match=r"Broken\) cannot be stored"):
        Cascade([Gate("action:2", 4, Broken(), 0.5)]).save("nowhere/at/all")


@pytest.mark.parametrize("names", [[], ["action:1", "action:1"]])
def test_gates_must_be_distinct(names: list[str]) -> None:
    with pytest.raises(CascadeError, match="make no cascade"):
        Cascade([Gate(name, 4, probe(), 0.5) for name in names])


def test_the_live_score_has_the_bits_of_the_stored_one(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", groups=80)
    fitter = LogisticFitter(strengths=(0.1,), folds=3)
    states = fit_cascade(run, keep="0.8", gates=["action:1", "part:1"], fitter=fitter).cascade
    signals = fit_cascade(run, keep="0.8", gates=["action:2"], uses="signals", fitter=fitter).cascade
    signals = Cascade([Gate("action:2", None, signals.gates[0].probe, 0.0)])  # never off
    states = Cascade([Gate(g.checkpoint, g.layer, g.probe, 0.0) for g in states.gates])
    for cascade in (states, signals):
        table = score_run(run, cascade.gates)
        for index in range(len(run)):
            hidden = run.hidden(index)
            for point, row in zip(run.episode(index).checkpoints, hidden, strict=True):
                for g, gate in enumerate(cascade.gates):
                    if gate.checkpoint == point.name and not point.final:
                        live = moment(point.name, dict(zip(LAYERS, row, strict=True)))
                        live = Moment(point, live.hidden, (), "", None, "", 0, 0)
                        assert cascade.score(live) == table.scores[index, g]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.floats(-50, 50, width=32), min_size=4, max_size=4),
    st.lists(st.floats(-3, 3), min_size=4, max_size=4),
    st.floats(0, 1),
)
def test_saving_and_loading_keeps_every_bit(
    tmp_path_factory: pytest.TempPathFactory, values: list[float], weight: list[float], threshold: float
) -> None:
    path = tmp_path_factory.mktemp("cascade") / "c"
    mean, scale = np.array(values[::-1]) / 3, np.abs(np.array(values)) + 0.1
    cascade = Cascade(
        [
            Gate(
                "action:1",
                4,
                LinearProbe(mean, scale, np.array(weight), weight[0]),
                threshold,
                "90 %",
                False,
                {"n": 3},
            ),
            Gate("part:1", 2, probe(width=4), OFF),
        ],
        gate_answers=True,
        promise="On the calibration episodes …",
        provenance={"run": {"model": "tiny"}},
        held_out={"kept": 0.95},
    )
    cascade.save(path)
    loaded = Cascade.load(path)
    given_moment = moment("action:1", {4: np.array(values, dtype=np.float32)})
    assert loaded.score(given_moment) == cascade.score(given_moment)
    assert loaded.thresholds.tolist() == cascade.thresholds.tolist()
    for name in ("promise", "provenance", "held_out", "gate_answers", "layers"):
        assert getattr(loaded, name) == getattr(cascade, name)
    for old, new in zip(cascade.gates, loaded.gates, strict=True):
        assert (old.record(), old.counts) == (new.record(), new.counts)


def test_the_folder_holds_two_plain_files_and_no_pickle(tmp_path: Path) -> None:
    Cascade([Gate("action:1", 4, probe(), OFF)]).save(tmp_path / "c")
    files = sorted(file.name for file in (tmp_path / "c").iterdir())
    assert files == ["cascade.json", "probes.safetensors"]
    assert [file.name for file in tmp_path.iterdir()] == ["c"]
    assert json.loads((tmp_path / "c" / "cascade.json").read_text())["gates"][0]["threshold"] is None
    for file in (tmp_path / "c").iterdir():
        data = file.read_bytes()
        assert not data.startswith((b"\x80", b"PK"))
        assert b"sklearn" not in data
        assert b"pickle" not in data


def test_an_existing_folder_is_kept_unless_it_is_a_cascade_and_may_go(tmp_path: Path) -> None:
    path = tmp_path / "c"
    Cascade([Gate("action:1", 4, probe(), 0.25)]).save(path)
    other = Cascade([Gate("action:2", 4, probe(), 0.75)])
    with pytest.raises(CascadeError, match="exists already"):
        other.save(path)
    assert Cascade.load(path).gates[0].checkpoint == "action:1"
    other.save(path, overwrite=True)
    assert Cascade.load(path).gates[0].checkpoint == "action:2"
    assert [file.name for file in tmp_path.iterdir()] == ["c"]
    foreign = tmp_path / "photos"
    foreign.mkdir()
    with pytest.raises(CascadeError, match="is no cascade"):
        other.save(foreign, overwrite=True)


def test_a_stop_between_two_renames_keeps_the_old_cascade(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c"
    Cascade([Gate("action:1", 4, probe(), 0.25)]).save(path)
    rename = Path.rename

    def stopped(self: Path, target: Path) -> Path:
        if target == path and not self.name.endswith("-old"):
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", stopped)
    with pytest.raises(KeyboardInterrupt):
        Cascade([Gate("action:2", 4, probe(), 0.75)]).save(path, overwrite=True)
    assert Cascade.load(path).gates[0].checkpoint == "action:1"
    assert [file.name for file in tmp_path.iterdir()] == ["c"]


def test_a_failed_save_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("probecascade.policies.folder._write", full)
    with pytest.raises(OSError, match="No space"):
        Cascade([Gate("action:1", 4, probe(), 0.25)]).save(tmp_path / "c")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(CascadeError, match="not plain JSON"):
        Cascade([Gate("action:1", 4, probe(), 0.25)], held_out={"kept": float("nan")}).save(tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("file", ["cascade.json", "probes.safetensors"])
@pytest.mark.parametrize("damage", ["gone", "cut", "rubbish", "empty"])
def test_a_damaged_folder_names_the_file(tmp_path: Path, file: str, damage: str) -> None:
    Cascade([Gate("action:1", 4, probe(), 0.25)]).save(tmp_path / "c")
    target = tmp_path / "c" / file
    data = target.read_bytes()
    if damage == "gone":
        target.unlink()
    else:
        target.write_bytes({"cut": data[: len(data) // 2], "rubbish": b"\x00\xff{}", "empty": b""}[damage])
    with pytest.raises(
        CascadeError, match="there is no cascade" if (damage, file) == ("gone", "cascade.json") else file
    ):
        Cascade.load(tmp_path / "c")


def test_newer_formats_unknown_probes_and_absent_keys_are_refused(tmp_path: Path) -> None:
    Cascade([Gate("action:1", 4, probe(), 0.25)]).save(tmp_path / "c")
    text = tmp_path / "c" / "cascade.json"
    record = json.loads(text.read_text())
    text.write_text(json.dumps(record | {"format": 99}))
    with pytest.raises(CascadeError, match="newer than"):
        Cascade.load(tmp_path / "c")
    text.write_text(json.dumps(record))
    write_signed(tmp_path / "c", {"gates": [record["gates"][0] | {"probe": {"kind": "forest"}}]})
    with pytest.raises(CascadeError, match="forest"):
        Cascade.load(tmp_path / "c")
    text.write_text(json.dumps({key: value for key, value in record.items() if key != "promise"}))
    write_signed(tmp_path / "c", {})
    with pytest.raises(CascadeError, match=r"cascade\.json"):
        Cascade.load(tmp_path / "c")


@pytest.mark.parametrize(
    ("version", "dropped", "says"),
    [
        (1, (), "says format 1 but holds"),
        (1, ("digest",), "says format 1 but holds"),  # the gates' taps give it away
        (0, ("digest",), "has format 0"),
        (-5, ("digest",), "has format -5"),
        (True, ("digest",), "has format True"),
        ("1", ("digest",), "has format '1'"),
        (2, (), "says format 2, and probes.safetensors is of format 3"),
        (2, ("digest",), "says format 2, and probes.safetensors is of format 3"),
        (3, ("digest",), "not what was saved"),
    ],
)
def test_another_format_does_not_lift_the_digest(
    tmp_path: Path, version: Any, dropped: tuple[str, ...], says: str
) -> None:
    Cascade([Gate("action:1", 4, probe(), 0.25)]).save(tmp_path / "c")
    text = tmp_path / "c" / "cascade.json"
    record = {key: value for key, value in json.loads(text.read_text()).items() if key not in dropped}
    record["gates"][0]["threshold"] = 0.9
    text.write_text(json.dumps(record | {"format": version}))
    with pytest.raises(CascadeError, match=says):
        Cascade.load(tmp_path / "c")


@pytest.mark.parametrize(
    ("provenance", "what"),
    [
        ([], "provenance is"),
        ("x", "provenance is 'x'"),
        ({"run": "x"}, "run is 'x'"),
        ({"run": {"model": 3}}, "run.model is 3"),
        ({"split": "x"}, "split is 'x'"),
        ({"split": {"seed": 0}}, "split is"),
        ({"split": {"seed": True, "shares": [50, 25, 25]}}, "split is"),
        ({"split": {"seed": 0, "shares": [50, 25]}}, "split is"),
        ({"split": {"seed": 0, "shares": [50, 25, 24]}}, "split is"),
        ({"groups": [1]}, "groups is"),
        ({"groups": {"fit": 3}}, "groups.fit is 3"),
        ({"groups": {"fit": [["0f"]]}}, "groups.fit is"),
        ({"episodes": 4}, "episodes is 4"),
        ({"recalibrated": {}}, "recalibrated is"),
    ],
)
def test_a_damaged_provenance_is_refused(tmp_path: Path, provenance: Any, what: str) -> None:
    Cascade([Gate("action:1", 4, probe(), 0.25)]).save(tmp_path / "c")
    write_signed(tmp_path / "c", {"provenance": provenance})
    with pytest.raises(CascadeError, match=f"provenance is damaged: {what}"):
        Cascade.load(tmp_path / "c")


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"promise": 3}, "promise is 3, not a text"),
        ({"gate_answers": "yes"}, "gate_answers is 'yes', not true or false"),
        ({"held_out": [1]}, "held_out is"),
        ({"calibration": [1]}, "calibration is"),
        ({"calibration": {"targets": 3}}, "calibration.targets is 3"),
        ({"calibration": {"targets": {"catch": {"action:1": "2"}, "keep": None}}}, "calibration.targets is"),
        ({"calibration": {"targets": {"catch": {}, "keep": "1/0"}}}, "calibration.targets is"),
        ({"calibration": {"certificates": [{"kind": "keep"}]}}, "calibration.certificates is"),
    ],
)
def test_a_damaged_record_is_refused(tmp_path: Path, changes: dict[str, Any], what: str) -> None:
    Cascade([Gate("action:1", 4, probe(), 0.25)]).save(tmp_path / "c")
    write_signed(tmp_path / "c", changes)
    with pytest.raises(CascadeError, match=f"record is damaged: {what}"):
        Cascade.load(tmp_path / "c")


@pytest.mark.parametrize("changes", [{"target": 5}, {"reached": "no"}])
def test_a_gate_with_a_damaged_target_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    Cascade([Gate("action:1", 4, probe(), 0.25)]).save(tmp_path / "c")
    gate = json.loads((tmp_path / "c" / "cascade.json").read_text())["gates"][0]
    write_signed(tmp_path / "c", {"gates": [gate | changes]})
    with pytest.raises(CascadeError, match="no target in words"):
        Cascade.load(tmp_path / "c")


@pytest.mark.parametrize(
    "change",
    [
        {"promise": "With 95 % confidence, all successes are kept."},
        {"calibration": {"certified": True}},
        {"provenance": {"groups": {"fit": []}}},
        {"held_out": {"kept": 1.0}},
        {"gate_answers": True},
        {"note": "mine"},
    ],
)
def test_all_that_a_cascade_says_is_covered_by_its_digest(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "c"
    told = {"calibration": {"certified": False, "gates": ("action:1",)}, "provenance": {"groups": {"fit": ["0f"]}}}
    Cascade([Gate("action:1", 4, probe(), 0.25)], promise="Nothing is promised.", **told).save(path)
    assert Cascade.load(path).promise == "Nothing is promised."
    record = json.loads((path / "cascade.json").read_text())
    (path / "cascade.json").write_text(json.dumps(record | change))
    with pytest.raises(CascadeError, match="changed by hand"):
        Cascade.load(path)


def test_a_number_beyond_a_float_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c"
    Cascade([Gate("action:1", 4, probe(), 0.25)], held_out={"kept": 0.5}).save(path)
    text = path / "cascade.json"
    text.write_text(text.read_text().replace('"kept": 0.5', '"kept": 1e999'))
    with pytest.raises(CascadeError, match="is damaged"):
        Cascade.load(path)


def test_a_record_stripped_to_the_first_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c"
    Cascade([Gate("action:1", 4, probe(), 0.25)], promise="Nothing is promised.").save(path)
    record = json.loads((path / "cascade.json").read_text())
    del record["digest"], record["gates"][0]["taps"]
    stripped = record | {"format": 1, "promise": "All successes are kept."}
    (path / "cascade.json").write_text(json.dumps(stripped))
    with pytest.raises(CascadeError, match=r"says format 1, and probes\.safetensors is of format 3"):
        Cascade.load(path)


def test_a_cascade_of_the_second_format_loads_and_its_gates_are_covered(tmp_path: Path) -> None:
    path = tmp_path / "c"
    shutil.copytree(GOLDEN.parent / "cascade-2", path)
    assert Cascade.load(path).thresholds.tolist() == [0.625, 0.5]
    record = json.loads((path / "cascade.json").read_text())
    record["gates"][0]["threshold"] = 0.9
    (path / "cascade.json").write_text(json.dumps(record))
    with pytest.raises(CascadeError, match="not what was saved"):
        Cascade.load(path)
    arrays = load_file(path / "probes.safetensors")
    save_file({name: values + 1 for name, values in arrays.items()}, path / "probes.safetensors")
    shutil.copy(GOLDEN.parent / "cascade-2" / "cascade.json", path / "cascade.json")
    with pytest.raises(CascadeError, match="not what was saved"):
        Cascade.load(path)


def test_the_golden_folder_still_loads_and_scores_the_same() -> None:
    cascade = Cascade.load(GOLDEN)
    assert [gate.checkpoint for gate in cascade.gates] == ["action:1", "part:1", "action:3"]
    assert cascade.thresholds.tolist() == [0.625, float("inf"), 0.7]
    values = {8: np.array([0.5, -1.0, 2.0], dtype=np.float32)}
    assert cascade.score(moment("action:1", values)) == pytest.approx(0.7310585786300049, rel=1e-14)
    assert cascade.score(moment("action:3", {}, tokens=120)) == pytest.approx(0.6224593312018546, rel=1e-14)
    assert cascade.decide(moment("action:1", values)).action == "abort"
    assert cascade.decide(moment("action:3", {}, tokens=120)).action == "continue"
    cascade.check_fits({"model": "tiny", "layer_convention": "blocks", "dtype": "float16", "template": None})


def test_another_model_is_refused_and_the_first_difference_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", groups=80)
    cascade = fit_cascade(run, keep="0.8", gates=["action:1"], fitter=LogisticFitter((0.1,), folds=3)).cascade
    cascade.check_fits(run.header)
    model = HEADER["model"]
    assert isinstance(model, dict)
    for changed, key in [
        ({"model": model | {"model": "other"}}, "model.model 'tiny', but this is 'other'"),
        ({"model": model | {"revision": "abc"}}, "model.revision None, but this is 'abc'"),
        ({"model": model | {"weights": "sha256:9"}}, "model.weights"),
        ({"dtype": "bfloat16"}, "dtype 'float32', but this is 'bfloat16'"),
        ({"layer_convention": "tuple of hidden_states"}, "layer_convention"),
        ({"template": "sha256:3"}, "template 'sha256:2', but this is 'sha256:3'"),
    ]:
        with pytest.raises(CascadeError, match=key):
            cascade.check_fits(run.header | changed)
        cascade.check_fits(run.header | changed, force=True)
    without = {key: value for key, value in run.header.items() if key != "template"}
    with pytest.raises(CascadeError, match="template"):
        cascade.check_fits(without)


def test_held_out_numbers_are_added_without_touching_the_rest() -> None:
    cascade = Cascade([Gate("action:1", 4, probe(), 0.25)], promise="p", provenance={"run": {}})
    later = cascade.with_held_out({"kept": 0.9})
    assert later.held_out == {"kept": 0.9}
    assert cascade.held_out == {}
    assert (later.gates, later.promise, later.provenance) == (cascade.gates, "p", {"run": {}})
