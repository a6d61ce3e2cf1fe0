"""`inspect`: what is in a run, in a cascade and in one episode."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_runs import make_run

from probecascade import cli
from probecascade.cli.inspect_task import ending
from probecascade.environments import AtlasSettings, atlas_tasks
from probecascade.episode import Part, Task
from probecascade.policies import Cascade, Gate, score_run
from probecascade.probes import LinearProbe
from probecascade.store import Run


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run and a cascade that was fitted on it."""
    folder = tmp_path_factory.mktemp("inspect")
    make_run(folder / "run", groups=200)
    command = ["fit", str(folder / "run"), "--recall", "0.7,0.9", "--gates", "part:1,action:3"]
    assert cli.main([*command, "-o", str(folder / "cascade")]) == 0
    return folder / "run", folder / "cascade"


def shown(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert cli.main(["inspect", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_a_run(folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    run = Run.open(folders[0])
    out = shown([str(folders[0]), "--limit", "2"], capsys)
    assert "run of tiny in float32" in out
    assert f"200 episodes of 200 groups: {int(run.episodes.failed.sum())} failure" in out
    assert "layers 0, 2, 4 (layer 0 = embedding output" in out
    assert "task-0-0" in out
    assert "task-2-0" not in out
    record = json.loads(shown([str(folders[0]), "--json"], capsys))
    assert record["checkpoints"]["part:1"] == 200
    assert "listed" not in record


def test_a_cascade(folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    cascade = Cascade.load(folders[1])
    out = shown([str(folders[1])], capsys)
    assert cascade.promise in " ".join(out.split())
    assert f"{cascade.gates[0].threshold:.4f}" in out
    assert "held out: failures caught" in out
    record = json.loads(shown([str(folders[1]), "--json"], capsys))
    assert [gate["target"] for gate in record["gates"]] == ["70 %", "90 %"]
    assert record["provenance"]["groups"]["fit"] > 0


def test_a_cascade_of_another_tool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model by its name alone, and held-out numbers of a shape of their own."""
    gates = [Gate("action:1", 4, LinearProbe(np.zeros(4), np.ones(4), np.ones(4), 0.0), 0.5)]
    made = Cascade(gates, provenance={"run": {"model": "mine"}}, held_out={"kept": 0.5, "caught": {"value": 0.25}})
    made.save(tmp_path / "cascade")
    out = shown([str(tmp_path / "cascade")], capsys)
    assert out.startswith("cascade for mine in an unknown dtype\n")
    assert "held out: failures caught 25.0 % n=unknown" in out
    assert "successes kept" not in out


def test_an_episode_with_its_scores(folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    run, cascade = Run.open(folders[0]), Cascade.load(folders[1])
    table = score_run(run, cascade.gates)
    firing = [int(i) for i in (table.scores >= cascade.thresholds).any(axis=1).nonzero()[0]]
    passing = [i for i in range(len(run)) if i not in firing]
    for index in (firing[0], passing[0]):
        arguments = [str(folders[0]), "--episode", str(index), "--cascade", str(folders[1])]
        record = json.loads(shown([*arguments, "--json"], capsys))
        scores = [record["scores"].get(gate.checkpoint, {}).get("score") for gate in cascade.gates]
        expected = [None if value != value else float(value) for value in table.scores[index]]
        assert scores == expected
        assert (record["aborted_at"] is None) == (index not in firing)
        out = shown(arguments, capsys)
        assert out.startswith(f"{run.episodes.episode_id[index]}: {run.episodes.outcome[index]} (finished)")
        assert "[1] think 1\nAction: search[page 1]" in out
        assert "tokens_so_far" in out
        assert max(map(len, out.splitlines())) <= 120
        assert out.count("<- aborted here") == (index in firing)
        assert ("no gate fires" in out) == (index not in firing)


def test_the_first_question_is_shown_where_the_recipe_gives_it(
    lottery_run: Path, folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run.open(lottery_run / "run")
    tasks = {task.task_id: task for task in atlas_tasks(AtlasSettings(groups=200, parts=1, question="city"))}
    asked = tasks[run.episodes.task_id[3]].parts[0].question
    out = shown([str(run.path), "--episode", "3"], capsys)
    assert f"\n\nQuestion: {asked}\n[1]" in out
    assert json.loads(shown([str(run.path), "--episode", "3", "--json"], capsys))["question"] == asked
    other = [str(folders[0]), "--episode", "3"]
    assert "Question:" not in shown(other, capsys)
    assert json.loads(shown([*other, "--json"], capsys))["question"] is None


def test_an_episode_says_what_was_answered_what_is_right_and_what_makes_a_success(
    lottery_run: Path, folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run.open(lottery_run / "run")
    tasks = {task.task_id: task for task in atlas_tasks(AtlasSettings(groups=200, parts=1, question="city"))}
    lost = int(run.episodes.failed.nonzero()[0][0])
    (right,) = tasks[run.episodes.task_id[lost]].parts[0].answers
    assert f"\nno answer; right: {right!r}; reward 0.00, 1.00 makes a success\n" in shown(
        [str(run.path), "--episode", str(lost)], capsys
    )
    record = json.loads(shown([str(run.path), "--episode", str(lost), "--json"], capsys))
    assert (record["answers_given"], record["answers_right"], record["success_reward"]) == ([], [[right]], 1.0)
    other = [str(folders[0]), "--episode", "3"]
    out = shown(other, capsys)
    assert f"\nreward {Run.open(folders[0]).episode(3).reward:.2f}\n" in out  # no recipe tells what makes a success
    assert "right:" not in out
    record = json.loads(shown([*other, "--json"], capsys))
    assert (record["answers_right"], record["success_reward"]) == (None, None)


def test_each_part_has_a_line_of_its_own_and_long_lists_are_cut(folders: tuple[Path, Path]) -> None:
    episode = Run.open(folders[0]).episode(0)
    first = replace(episode.steps[0], action="finish", argument="Hector Berlioz")
    played = replace(episode, outcome="failure", reward=0.0, steps=(first, *episode.steps[1:]))
    parts = (Part("Who?", ("Louis-Hector Berlioz", "Berlioz, H.")), Part("When?", tuple("abcdefg")))
    assert ending(played, Task("t", "g", parts), 0.6) == [
        "part 1: answer 'Hector Berlioz'; right: 'Louis-Hector Berlioz' or 'Berlioz, H.'",
        "part 2: no answer; right: 'a' or 'b' or 'c' or 'd' or 'e' or 2 others",
        "reward 0.00, 0.60 makes a success",
    ]
    assert ending(played, Task("t", "g", parts[:1]), 0.6)[0].endswith("; reward 0.00, 0.60 makes a success")
    game = Task("t", "g", (Part("Put a cup on the table.", ()),))
    assert ending(replace(played, outcome="unlabelled"), game, None) == ["no reward is told"]


def test_thresholds_that_nothing_reaches_are_never(
    folders: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = Cascade.load(folders[1])
    gates = [replace(old.gates[0], threshold=1.0243), *old.gates[1:]]
    Cascade(gates, promise="p", provenance=old.provenance).save(tmp_path / "c")
    assert Cascade.load(tmp_path / "c").gates[0].threshold == 1.0243
    out = shown([str(tmp_path / "c")], capsys)
    assert f"{gates[0].checkpoint} " in out
    assert " never" in out
    assert "1.02" not in out
    out = shown([str(folders[0]), "--episode", "0", "--cascade", str(tmp_path / "c")], capsys)
    assert f"    {gates[0].checkpoint}: P(failure) " in out
    assert ", threshold never\n" in out


def test_the_doomed_round_is_marked(lottery_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run.open(lottery_run / "run")
    doomed = int((run.episodes.doomed_round == 2).nonzero()[0][0])
    out = shown([str(lottery_run / "run"), "--episode", str(doomed)], capsys)
    assert "doomed in round 2" in out.splitlines()[0]
    assert out.count("<- doomed here") == 1
    by_name = shown([str(lottery_run / "run"), "--episode", str(run.episodes.episode_id[doomed])], capsys)
    assert by_name == out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{run}", "--episode", "200"], "the episode '200' is not in"),
        (["{run}", "--episode", "nobody"], "which holds 200: give an id such as 'task-0-0'"),
        (["{run}", "--cascade", "{cascade}"], "add --episode 0"),
        (["{run}", "--limit", "-2"], "--limit is -2"),
        (["{run}", "--limit", "2", "--episode", "0"], "leave one out"),
        (["{run}", "--force"], "--force is about the cascade that --cascade gives"),
        (["{cascade}", "--episode", "0"], "is a cascade and holds no episodes"),
        (["{run}/shards"], "is neither a run nor a cascade"),
        (["{run}/nowhere"], "there is no run at"),
    ],
)
def test_a_wrong_question_is_one_sentence(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    run, cascade = map(str, folders)
    capsys.readouterr()
    assert cli.main(["inspect", *(a.format(run=run, cascade=cascade) for a in arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert err.count("\n") == 1
