"""`run`: a cascade attached to a live agent, its twins, and every refusal, on a tiny model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from probecascade import cli
from probecascade.policies import Cascade
from probecascade.store import Run, assign_split

Write = Callable[..., Path]


@pytest.fixture(scope="module")
def cascade(lottery_run: Path) -> Path:
    """Fitted on the lotteries, whose observations give away who wins."""
    output = lottery_run / "cascade"
    options = ["--recall", "0.5,0.9", "--gates", "observation:1,observation:2", "--layers", "2"]
    command = ["fit", str(lottery_run / "run"), *options, "-o", str(output)]
    assert cli.main(command) == 0
    return output


def live(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> Mapping[str, Any]:
    capsys.readouterr()
    assert cli.main(["run", *arguments, "--json"]) == 0
    record: Mapping[str, Any] = json.loads(capsys.readouterr().out)
    return record


def test_live_aborts_are_those_of_the_backtest(
    lottery_run: Path, lottery: None, cascade: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = str(lottery_run / "recipe.toml")
    record = live([recipe, "--cascade", str(cascade), "--tasks", "test"], capsys)
    assert cli.main(["eval", str(cascade), str(lottery_run / "run"), "--json"]) == 0
    stored = json.loads(capsys.readouterr().out)
    free, guarded = record["policies"]
    assert free["name"] == "no abort"
    assert free["tokens_saved"]["value"] == 0
    assert guarded["diverged"] == guarded["unlabelled"] == 0
    assert guarded["n"] == record["episodes"] == stored["episodes"]
    assert not guarded["read_off"]
    assert record["groups_seen_by_the_cascade"] == 0
    assert record["outcomes"]["aborted"] == sum(record["aborts_by_gate"].values()) > 0
    assert guarded["caught"] == {key: stored["caught"][key] for key in ("value", "low", "high", "n")}
    assert guarded["kept"] == {key: stored["kept"][key] for key in ("value", "low", "high", "n")}
    saved = {key: stored["saved"]["tokens"][key] for key in ("value", "low", "high", "n")}
    assert guarded["tokens_saved"] == saved
    assert saved["value"] > 0


def test_shadow_aborts_nobody_and_counts_the_same(
    lottery_run: Path, lottery: None, cascade: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(lottery_run / "recipe.toml"), "--cascade", str(cascade), "--limit", "20"]
    shadow, real = live([*arguments, "--shadow"], capsys), live(arguments, capsys)
    assert "aborted" not in shadow["outcomes"]
    assert shadow["aborts_by_gate"] == real["aborts_by_gate"]
    assert sum(real["aborts_by_gate"].values()) > 0
    for key in ("success", "caught", "kept", "tokens_saved", "calls_saved"):
        assert shadow["policies"][1][key] == real["policies"][1][key]
    assert shadow["policies"][1]["read_off"]


def test_fresh_tasks_are_in_no_run_and_can_be_stored(
    lottery_run: Path, lottery: None, cascade: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(lottery_run / "recipe.toml"), "--cascade", str(cascade), "--tasks", "fresh", "--limit", "6"]
    capsys.readouterr()
    assert cli.main(["run", *arguments, "--no-twins", "-o", str(tmp_path / "live")]) == 0
    out = capsys.readouterr().out
    assert out.startswith("6 fresh episodes: ")
    assert "policy" not in out
    stored, before = Run.open(tmp_path / "live"), Run.open(lottery_run / "run")
    assert len(stored) == 6
    assert not set(stored.episodes.group) & set(before.episodes.group)
    assert stored.layers == before.layers
    Cascade.load(cascade).check_fits(stored.header)
    aborted = [i for i in range(6) if stored.episodes.outcome[i] == "aborted"]
    assert aborted
    for index in aborted:
        decision = stored.episode(index).decision
        assert decision is not None
        assert decision.score >= decision.threshold


@pytest.mark.parametrize("which", ["test", "calibrate", "fit", "all"])
def test_tasks_are_chosen_by_the_cascades_split(
    lottery_run: Path, lottery: None, cascade: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], which: str
) -> None:
    arguments = [str(lottery_run / "recipe.toml"), "--cascade", str(cascade), "--tasks", which, "--limit", "5"]
    record = live([*arguments, "--no-twins", "-o", str(tmp_path / "live")], capsys)
    groups = Run.open(tmp_path / "live").episodes.group.tolist()
    splits = set(assign_split(groups, seed=0).tolist())
    assert len(groups) == 5
    if which != "all":
        assert splits == {which}
    seen = sum(name != "test" for name in assign_split(groups, seed=0).tolist())
    assert record["groups_seen_by_the_cascade"] == seen
    assert record["policies"] == []


def test_the_table_is_for_people(
    lottery_run: Path, lottery: None, cascade: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert cli.main(["run", str(lottery_run / "recipe.toml"), "--cascade", str(cascade), "--limit", "12"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    start = out.splitlines().index("", 1)
    header, _, *rows = out.splitlines()[start + 1 : start + 10]
    assert header.split() == ["policy", "no", "abort", "cascade"]
    titles = ["success", "failures caught", "successes kept", "tokens saved", "calls saved", "seconds saved"]
    assert [row[:15].strip() for row in rows] == [*titles, "s per episode"]
    assert "n=12" in rows[0]


def test_a_failing_probe_lets_the_episode_go_on_unless_asked_to_fail_closed(
    lottery_run: Path,
    lottery: None,
    cascade: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def broken(self: Cascade, moment: object) -> object:
        raise RuntimeError("no score today")

    monkeypatch.setattr(Cascade, "decide", broken)
    arguments = [str(lottery_run / "recipe.toml"), "--cascade", str(cascade), "--limit", "3", "--no-twins"]
    with pytest.warns(RuntimeWarning, match="no score today"):
        record = live(arguments, capsys)
    assert record["faults"] > 3
    assert not {"aborted", "error"} & set(record["outcomes"])
    assert live([*arguments, "--fail-closed"], capsys)["outcomes"] == {"error": 3}


def test_a_cascade_for_another_model_is_refused_unless_forced(
    lottery: None,
    cascade: Path,
    other_model: Path,
    write_recipe: Write,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recipe = str(write_recipe(8, model=other_model))
    arguments = [recipe, "--cascade", str(cascade), "--tasks", "all", "-o", str(tmp_path / "live")]
    capsys.readouterr()
    assert cli.main(["run", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("probecascade: the cascade was fitted with model.weights ")
    assert err.count("\n") == 1
    assert not (tmp_path / "live").exists()
    assert live([*arguments, "--force"], capsys)["episodes"] == 8


def test_ctrl_c_keeps_the_live_episodes(
    lottery_run: Path,
    lottery: None,
    cascade: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from probecascade.store import RunWriter

    add, added = RunWriter.add, 0

    def interrupted(self: RunWriter, recording: Any) -> None:
        nonlocal added
        added += 1
        if added == 4:
            raise KeyboardInterrupt
        add(self, recording)

    monkeypatch.setattr(RunWriter, "add", interrupted)
    arguments = [str(lottery_run / "recipe.toml"), "--cascade", str(cascade), "-o", str(tmp_path / "live")]
    capsys.readouterr()
    assert cli.main(["run", *arguments]) == 130
    assert f"the episodes so far are in {tmp_path / 'live'}" in capsys.readouterr().err
    assert len(Run.open(tmp_path / "live")) == 3


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--tasks", "train"], 2, "--tasks is 'train'"),
        (["--on-abort", "retry"], 2, "--on-abort is 'retry': give stop"),
        (["--limit", "-1"], 2, "--limit is -1"),
        (["--limit", "0"], 1, "there is no test task"),
        (["-o", "."], 2, "'.' exists already"),
        (["--device", "abacus"], 2, "the device 'abacus' cannot be used here"),
    ],
)
def test_a_wrong_option_is_one_sentence(
    lottery_run: Path,
    cascade: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    words: str,
) -> None:
    capsys.readouterr()
    command = ["run", str(lottery_run / "recipe.toml"), "--cascade", str(cascade), *arguments]
    assert cli.main(command) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert err.count("\n") == 1
