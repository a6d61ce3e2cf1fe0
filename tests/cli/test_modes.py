"""`modes`, `triggers`, and what `fit` and `eval` make of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from doubtful_runs import make_doubtful_run
from made_runs import HEADER, LAYERS, WIDTH, make_episode, make_run, make_states

from probecascade import cli
from probecascade.cli.modes import write_modes
from probecascade.episode import Recording
from probecascade.evaluation import failure_modes
from probecascade.policies import Cascade, Gate, Trigger
from probecascade.probes import LinearProbe
from probecascade.store import Run, RunWriter

from .conftest import refused

FIT = ["--keep", "0.9", "--gates", "action:1,part:1", "--layers", "4"]


@pytest.fixture(scope="module")
def doubtful(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_doubtful_run(tmp_path_factory.mktemp("doubtful") / "run").path


def test_modes_are_counted(doubtful: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["modes", str(doubtful), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    counts = {row["mode"]: row["count"] for row in record["modes"]}
    assert set(counts) == {"loop", "wrong_answer"}
    assert sum(counts.values()) == record["failures"] == int(Run.open(doubtful).episodes.failed.sum())
    assert sum(row["share"]["value"] for row in record["modes"]) == pytest.approx(1)
    assert cli.main(["modes", str(doubtful)]) == 0
    out = capsys.readouterr().out
    assert f"{record['failures']} failures of 240 labelled episodes" in out
    assert f"loop: {record['modes'][[*counts].index('loop')]['examples'][0]}" in out


def test_the_file_can_be_corrected_and_given_back(
    doubtful: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "modes.csv"
    assert cli.main(["modes", str(doubtful), "--csv", str(file), "--json"]) == 0
    before = json.loads(capsys.readouterr().out)
    assert cli.main(["modes", str(doubtful), "--labels", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["modes"] == before["modes"]
    written = file.read_text(encoding="utf-8")
    file.write_text(written.replace(",loop,", ",stuck,", 1), encoding="utf-8")
    err = refused(["modes", str(doubtful), "--labels", str(file)], capsys)
    assert "gives the mode 'stuck'" in err
    assert cli.main(["modes", str(doubtful), "--labels", str(file), "--allow-new", "--json"]) == 0
    changed = {row["mode"]: row["count"] for row in json.loads(capsys.readouterr().out)["modes"]}
    assert changed["stuck"] == 1


def test_an_id_with_half_a_character_comes_back_from_a_new_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    with RunWriter(tmp_path / "run", HEADER, layers=LAYERS, d_model=WIDTH, dtype="float32") as writer:
        episode = make_episode("half \ud800", "g", failed=True, rounds=3)
        writer.add(Recording(episode, make_states(episode, rng, failed=True)))
    file = tmp_path / "new" / "modes.csv"
    assert cli.main(["modes", str(tmp_path / "run"), "--csv", str(file)]) == 0
    capsys.readouterr()
    assert cli.main(["modes", str(tmp_path / "run"), "--labels", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["modes"][0]["examples"] == ["half \ud800-0"]


def test_a_full_disk_leaves_no_half_a_file(doubtful: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    run = Run.open(doubtful)
    monkeypatch.setattr("probecascade.store.durable.os.fsync", full)  # where the last of it is refused
    with pytest.raises(OSError, match="No space"):
        write_modes(run, failure_modes(run), tmp_path / "modes.csv")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_counted_is_refused(doubtful: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = tmp_path / "there.csv"
    there.write_text("kept", encoding="utf-8")
    assert "exists already" in refused(["modes", str(doubtful), "--csv", str(there)], capsys)
    assert there.read_text(encoding="utf-8") == "kept"
    assert "--allow-new is about" in refused(["modes", str(doubtful), "--allow-new"], capsys)
    assert "'nowhere.csv'" in refused(["modes", str(doubtful), "--labels", "nowhere.csv"], capsys)
    winners = make_run(tmp_path / "winners", groups=3, failed=False)
    assert "no labelled episode" in refused(["modes", str(winners.path)], capsys, code=1)


def test_fit_with_a_trigger_and_modes(doubtful: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "c"
    command = ["fit", str(doubtful), *FIT, "--trigger", "entropy_mean:0.5", "--modes", "rules", "-o", str(output)]
    assert cli.main(command) == 0
    out = capsys.readouterr().out
    assert "a gate looks, and can fire, only where: action:1 entropy_mean >= " in out
    assert "which failure mode, given that the episode fails" in out
    assert "looked at (f + s)" in out
    assert "alive (f + s)" not in out
    assert cli.main(["inspect", str(output)]) == 0
    shown = capsys.readouterr().out
    assert "a gate looks, and can fire, only where: action:1 entropy_mean >= " in shown
    assert "action:1 wrong_answer" in shown
    cascade = Cascade.load(output)
    assert all(gate.trigger is not None and gate.modes is not None for gate in cascade.gates)
    assert set(cascade.provenance["modes"]) == {"action:1", "part:1"}
    assert cli.main(["eval", str(output), str(doubtful), "--json"]) == 0
    judged = json.loads(capsys.readouterr().out)
    assert set(judged["aborts_by_likely_mode"]) <= {"loop", "wrong_answer"}
    assert sum(sum(truth.values()) for truth in judged["aborts_by_likely_mode"].values()) == (
        judged["caught"]["count"] + judged["successes"] - judged["kept"]["count"]
    )
    assert cli.main(["eval", str(output), str(doubtful)]) == 0
    out = capsys.readouterr().out
    assert "aborted as loop" in out
    assert "looked at (f + s)" in out
    assert "looked at: alive, and where the trigger looks" in out


def test_many_modes_and_gates_still_fit_on_a_page() -> None:
    from probecascade.cli.fit_extras import extras_lines

    names = [f"a_rather_long_mode_{k}" for k in range(7)]
    ranked = {"value": 0.5, "low": 0.4, "high": 0.6}
    fitted = {
        "modes": dict.fromkeys(names, 20),
        "confusion": [[k + 1 if k else 0 for k in range(7)]] * 7,
        "auroc": dict.fromkeys(names, ranked),
    }
    probe = LinearProbe(np.zeros(2), np.ones(2), np.ones(2), 0.0)
    gates = [Gate(f"action:{k}", 2, probe, 0.5, trigger=Trigger("entropy_mean", "above", 0.5)) for k in range(12)]
    provenance = {"modes": {gate.checkpoint: fitted for gate in gates}}
    text = "\n".join(extras_lines(Cascade(gates, promise="p", provenance=provenance)))
    assert max(map(len, text.splitlines())) <= 120
    assert f"{names[6]} 7, {names[5]} 6, {names[4]} 5, others 9" in text
    assert " ".join(text.split()).count("entropy_mean >= 0.5") == 12


def test_a_recipe_asks_for_a_trigger_and_modes_and_options_go_before_it(
    doubtful: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "calibrate.toml"
    text = '[targets]\nkeep = 0.9\n[gates]\nnames = ["action:1"]\n[probe]\nlayers = [4]\nstrengths = [0.01]\n'
    recipe.write_text(f'{text}trigger = "entropy_mean:0.5"\nmodes = "rules"\n', encoding="utf-8")
    command = ["fit", str(doubtful), "--recipe", str(recipe)]
    assert cli.main([*command, "-o", str(tmp_path / "both")]) == 0
    (gate,) = Cascade.load(tmp_path / "both").gates
    assert gate.trigger is not None
    assert gate.trigger.signal == "entropy_mean"
    assert gate.modes is not None
    assert cli.main([*command, "--trigger", "logprob_min:0.5", "--modes", "", "-o", str(tmp_path / "one")]) == 0
    (gate,) = Cascade.load(tmp_path / "one").gates
    assert gate.trigger is not None
    assert gate.trigger.signal == "logprob_min"
    assert gate.modes is None
    capsys.readouterr()
    recipe.write_text(f'{text}modes = "nowhere.csv"\n', encoding="utf-8")
    assert "modes is 'nowhere.csv', which is no file" in refused([*command, "-o", str(tmp_path / "no")], capsys)


def test_fit_in_json_and_by_file(doubtful: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "modes.jsonl"
    first = Run.open(doubtful).episodes.episode_id[Run.open(doubtful).episodes.failed][0]
    file.write_text(json.dumps({"episode_id": first, "mode": "stuck"}), encoding="utf-8")
    command = ["fit", str(doubtful), *FIT, "--modes", str(file), "--json"]
    err = refused([*command, "-o", str(tmp_path / "no")], capsys)
    assert "--allow-new" in err
    assert not (tmp_path / "no").exists()
    assert cli.main([*command, "--allow-new", "-o", str(tmp_path / "c")]) == 0
    record = json.loads(capsys.readouterr().out)
    assert set(record["modes"]["action:1"]["modes"]) == {"loop", "wrong_answer"}
    assert record["gates"][0]["trigger"] is None
    plain = ["fit", str(doubtful), *FIT, "--json", "-o", str(tmp_path / "plain")]
    assert cli.main(plain) == 0
    assert json.loads(capsys.readouterr().out)["modes"] is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--trigger", "entropy_mean"], "the trigger is 'entropy_mean'"),
        (["--trigger", "entropy_mean:1"], "the share 1"),
        (["--modes", "rule"], "--modes is 'rule', which is no file"),
        (["--modes", "rules", "--allow-new"], "--allow-new is about"),
    ],
)
def test_options_that_cannot_be_right_are_refused_before_anything_is_fitted(
    doubtful: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    says: str,
) -> None:
    monkeypatch.setattr("probecascade.policies.fit_cascade", None)
    assert says in refused(["fit", str(doubtful), *FIT, *options, "-o", str(tmp_path / "c")], capsys)
    assert not (tmp_path / "c").exists()


def test_triggers_are_compared(doubtful: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["triggers", str(doubtful), *FIT, "--shares", "1/2"]
    assert cli.main([*command, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [row["share"] for row in record["rows"]] == [1, 0.5]
    assert record["rows"][1]["looked"]["value"] < 1
    assert cli.main(command) == 0
    out = capsys.readouterr().out
    assert "difference from gates that always look" in out
    assert "action:1 entropy_mean >= " in out
    assert max(map(len, out.splitlines())) <= 120
    assert "which leaves nothing to compare" in refused([*command[:-1], "1"], capsys)
    for shares in ("half", "1e400", "1,1e9999999", "1,1e-9999999", "2", "0"):
        command = ["triggers", str(doubtful), "--keep", "0.9", "--shares", shares]
        assert f"--shares is '{shares}'" in refused(command, capsys)
    assert "give above or below" in refused(["triggers", str(doubtful), "--keep", "0.9", "--side", "up"], capsys)
    assert "neither recall targets nor a keep target" in refused(["triggers", str(doubtful)], capsys)
