"""The script of the recorded runs: what is planted is found, a second call reads nothing, small data is told."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recorded_measures as measures
import recorded_runs as script
import recorded_tables as tables
from made_runs import HEADER, LAYERS, WIDTH, make_episode, make_run

from probecascade.episode import Recording
from probecascade.errors import DataError
from probecascade.evaluation import PooledRuns, SweepResult
from probecascade.probes import auroc
from probecascade.store import Run, RunWriter
from tests.cli.conftest import save_model

PAGE = f"# Recorded\n\nBefore.\n\n{script.MARKS[0]}\nwas here before\n{script.MARKS[1]}\n\nAfter.\n"


def record(group: int, agent: int, rng: np.random.Generator) -> dict[str, Any]:
    """A run whose first observation tells the outcome nine times in ten; nothing before it does."""
    failed = bool(rng.random() < 0.5)
    told = failed if rng.random() < 0.9 else not failed
    answer = "no such page, nothing" if told else "the capital is far north"
    steps = [
        {"thought": "I look.", "action": "search", "argument": f"City {group % 5}", "observation": answer},
        {"thought": "I know.", "action": "finish", "argument": "it", "observation": ""},
    ]
    return {
        "traj_id": f"{agent}-{group}", "task_key": f"city-{group}", "question": f"Where is city {group % 7}?",
        "model": f"agent {agent}", "success": not failed, "steps": steps,
    }  # fmt: skip


def write_records(path: Path, groups: int, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    records = [record(group, agent, rng) for group in range(groups) for agent in range(2)]
    path.write_text("".join(json.dumps(each) + "\n" for each in records), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_records(folder / "trajectories_fever_ours_shared.jsonl", 60, seed=1)
    write_records(folder / "trajectories_webshop_small.jsonl", 3, seed=2)
    (folder / "page.md").write_text(PAGE, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def command(model: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    output = tmp_path_factory.mktemp("output") / "recorded"
    return [str(data), "-o", str(output), "--model", str(model), "--device", "cpu", "--layers", "2"]


@pytest.fixture(scope="module")
def report(command: list[str], data: Path) -> dict[str, Any]:
    assert script.main([*command, "--page", str(data / "page.md")]) == 0
    found: dict[str, Any] = json.loads((Path(command[2]) / "results.json").read_text(encoding="utf-8"))
    return found


def test_what_is_planted_is_found_where_it_is_planted(report: dict[str, Any]) -> None:
    large, small = report["data_sets"]
    assert (large["name"], large["labelled"], large["groups"], large["truncated"]) == ("fever_ours", 120, 60, 0)
    assert large["tokens"] > 120 * 10
    rows = {row["checkpoint"]: row for row in large["rounds"]}
    assert list(rows) == ["prompt", "action:1", "observation:1", "action:2"]
    for before in ("prompt", "action:1"):
        assert not rows[before]["above_chance"]
    assert rows["observation:1"]["above_chance"]
    assert rows["observation:1"]["auroc"]["low"] > 0.7
    assert rows["observation:1"]["prompt"]["value"] < 0.7
    assert rows["observation:1"]["tfidf"]["value"] > 0.8  # the text says it
    assert rows["observation:1"]["same_agent"]["agents"] == 2
    assert rows["observation:1"]["same_agent"]["value"] == pytest.approx(0.85, abs=0.12)
    assert rows["observation:1"]["pair_accuracy"]["n_pairs"] >= 20
    assert rows["action:2"] == {
        "checkpoint": "action:2", "n": 120, "failed": large["rounds"][0]["failed"],
        "reason": "every run ends with this turn",
    }  # fmt: skip
    assert "at observation:1, by the logistic probe at layer 2" in large["verdicts"][0]
    assert small["verdicts"] == ["Too few runs of a class for any number."]
    assert all("reason" in row for row in (*small["rounds"], *small["saved"], *small["transfer"]))


def test_agents_of_one_file_are_trained_and_tested_on_each_other(report: dict[str, Any]) -> None:
    moved = {row["checkpoint"]: row for row in report["data_sets"][0]["transfer"]}
    assert list(moved) == ["action:1", "observation:1", "action:2"]
    cells = {(cell["train"], cell["test"]): cell for cell in moved["observation:1"]["matrix"]["cells"]}
    assert set(cells) == {(a, b) for a in ("agent 0", "agent 1") for b in ("agent 0", "agent 1")}
    assert cells["agent 0", "agent 1"]["auroc"]["value"] > 0.7
    assert moved["observation:1"]["shared"] == 1.0
    assert report["transfer"] == []  # the two files are of different tasks


def test_the_pages_hold_the_numbers(report: dict[str, Any], command: list[str], data: Path) -> None:
    page = (data / "page.md").read_text(encoding="utf-8")
    assert page.startswith(f"# Recorded\n\nBefore.\n\n{script.MARKS[0]}\n")
    assert page.endswith(f"{script.MARKS[1]}\n\nAfter.\n")
    assert "was here before" not in page
    row = next(row for row in report["data_sets"][0]["rounds"] if row["checkpoint"] == "observation:1")
    cell = f"**{row['auroc']['value']:.2f}** [{row['auroc']['low']:.2f}, {row['auroc']['high']:.2f}]"
    for text in (page, (Path(command[2]) / "fever_ours.md").read_text(encoding="utf-8")):
        assert f"| observation:1 | {row['n']} ({row['failed']}) | {cell} |" in text
        assert "### Tokens saved on the held-out third" in text
    assert "- every run ends with this turn" in page
    widths = {line.count("|") for line in page.splitlines() if line.startswith("| observation:")}
    assert len(widths) == 1


def test_a_second_call_reads_and_sweeps_nothing(
    report: dict[str, Any], command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*given: object, **options: object) -> None:
        raise AssertionError("it is read and swept already")

    monkeypatch.setattr(script, "read_runs", refuse)
    monkeypatch.setattr(measures.Sweep, "of", refuse)
    assert script.main([*command, "--only", "fever", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["data_sets"] == report["data_sets"][:1]


def test_what_was_read_otherwise_is_refused(
    report: dict[str, Any], command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main([*command, "--only", "webshop", "--max-tokens", "2000"]) == 2
    assert "cannot resume" in capsys.readouterr().err


def test_runs_that_lose_rounds_are_counted_and_told(
    report: dict[str, Any], command: list[str], model: Path, data: Path, tmp_path: Path
) -> None:
    run = Run.open(Path(command[2]) / "runs" / "webshop_small")
    most = str(int((run.episodes.prompt_tokens + run.episodes.tokens).min()) - 5)
    given = ["--model", str(model), "--device", "cpu", "--layers", "2", "--only", "webshop", "--max-tokens", most]
    assert script.main([str(data), "-o", str(tmp_path / "out"), *given]) == 0
    found = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))["data_sets"][0]
    assert found["truncated"] == found["labelled"] == 6
    assert any("lost their first rounds" in note for note in found["notes"])


def test_a_limit_takes_whole_groups_and_more_only_adds(data: Path) -> None:
    chosen = script.choose(data / "trajectories_fever_ours_shared.jsonl", None, (), None)
    few, more = (script.first_groups(chosen, limit) for limit in (4, 9))
    assert len(few.runs) == 8
    assert len({run.group for run in few.runs}) == 4
    assert {run.run_id for run in few.runs} < {run.run_id for run in more.runs}
    assert script.first_groups(chosen, None).runs == chosen.runs
    assert script.guessed_tokens(few, 1) == 8


# Measures on invented runs --------------------------------------------------------------------------------------------


def agents_run(path: Path) -> Run:
    """Two agents, one of which fails more; layer 4 tells the agent and nothing else."""
    rng = np.random.default_rng(3)
    with RunWriter(path, HEADER, layers=LAYERS, d_model=WIDTH, dtype="float32") as writer:
        for number in range(240):
            agent = number % 2
            failed = bool(rng.random() < (0.25, 0.75)[agent])
            episode = make_episode(f"task-{number}", f"group-{number // 2}", failed=failed, rounds=2, seed=agent)
            episode = dataclasses.replace(episode, attributes={"model": f"agent {agent}"})
            states = rng.normal(size=(len(episode.checkpoints), len(LAYERS), WIDTH))
            states[:, 2, 0] += 4 * agent
            writer.add(Recording(episode, states.astype(np.float32)))
    return Run.open(path)


def test_an_agent_that_fails_more_is_recognised_but_not_among_its_own_runs(tmp_path: Path) -> None:
    run = agents_run(tmp_path / "run")
    rows, _ = measures.by_round(run, tmp_path / "sweep", 0)
    row = next(row for row in rows if row["checkpoint"] == "action:1")
    assert row["above_chance"]
    assert row["auroc"]["low"] > 0.6
    assert row["same_agent"]["value"] < 0.55
    assert row["same_agent"]["low"] < 0.5
    scores = SweepResult.load(tmp_path / "sweep").scores["action:1"]
    model, failed = run.attributes("model"), run.episodes.failed
    own = [auroc(scores[model == agent], failed[model == agent]) for agent in ("agent 0", "agent 1")]
    assert row["same_agent"]["value"] == pytest.approx(np.mean(own))


def test_rounds_go_on_as_long_as_enough_runs_of_both_classes_do(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", groups=120)
    rows = list(measures.places(run))
    failed, rounds = run.episodes.failed, run.episodes.rounds
    for row in rows[1:]:
        going_on = rounds > int(row["checkpoint"].split(":")[1])
        assert (row["n"], row["failed"]) == (going_on.sum(), (going_on & failed).sum())
        assert ("reason" in row) == (min((going_on & failed).sum(), (going_on & ~failed).sum()) < measures.LEAST)
    assert rows[0]["checkpoint"] == "prompt"
    assert "reason" in rows[-1]
    assert "reason" not in rows[-3]


def test_the_length_of_the_whole_run_is_an_auroc_of_rounds(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", groups=60)
    found = measures.length_alone(run, 0)
    assert found is not None
    assert found["value"] == pytest.approx(auroc(run.episodes.rounds / 5, run.episodes.failed))
    assert found["low"] < found["value"] < found["high"]
    assert measures.length_alone(make_run(tmp_path / "one", groups=5, failed=True), 0) is None


@pytest.mark.slow
def test_savings_are_certified_where_there_are_enough_and_say_what_lacks_where_not(tmp_path: Path) -> None:
    few = measures.saved(make_run(tmp_path / "few", groups=160), "states", 0)
    assert not few["certified"]
    assert "more successful episode" in few["lacking"]
    many = measures.saved(make_run(tmp_path / "many", groups=600, seed=1), "states", 0)
    assert many["certified"]
    assert many["lacking"] == ""
    assert many["kept"]["high"] > 0.95
    assert 0 < many["saved"]["value"] < 1
    assert many["doomed"] + many["successes"] == pytest.approx(600 / 3, rel=0.2)
    lines = "\n".join(tables._saved([few, many]))
    assert "| no: uncertified |" in lines
    assert "| yes |" in lines
    assert f"- probe on states: {few['lacking']}" in lines


def test_a_fit_third_that_is_too_small_to_choose_gates_gets_the_first_turns(tmp_path: Path) -> None:
    found = measures._fitted(make_run(tmp_path / "run", groups=90), "signals", "empirical", 0)
    assert [gate.checkpoint for gate in found.cascade.gates] == ["action:1", "action:2"]
    with pytest.raises(DataError, match="extract more"):
        measures._fitted(make_run(tmp_path / "less", groups=40), "signals", "empirical", 0)


def test_files_of_one_task_are_compared_with_each_other(tmp_path: Path) -> None:
    runs = {f"hotpotqa_{name}": make_run(tmp_path / name, groups=60, seed=seed) for seed, name in enumerate("ab")}
    rows = script.between_files(runs | {"fever_c": make_run(tmp_path / "c", groups=8)}, 0)
    assert [row["checkpoint"] for row in rows] == ["action:1", "observation:1", "action:2", "observation:2"]
    assert {row["shared"] for row in rows} == {0.0}
    assert rows[0]["matrix"]["kinds"] == ["a", "b"]
    pool = PooledRuns(list(runs.values()))
    every = np.ones(len(pool), dtype=np.bool_)
    assert measures.shared_groups(pool, {"one": every, "two": every}) == 1.0


# Refusals -------------------------------------------------------------------------------------------------------------


def test_what_cannot_be_read_is_refused_before_a_model_is_loaded(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "read_runs", lambda *given, **options: pytest.fail("nothing is to be read"))
    unmarked = tmp_path / "unmarked.md"
    unmarked.write_text("no marks", encoding="utf-8")
    out = str(tmp_path / "out")
    twice = str(write_records(tmp_path / "webshop_small.jsonl", 2, seed=0))
    for arguments, words in {
        (str(tmp_path),): "holds no file trajectories_*",
        (str(data), "--only", "unknown"): "no data set is called unknown",
        (str(data), "--page", str(unmarked)): "lacks the marks",
        (str(data), "--page", str(tmp_path / "none.md")): "cannot be read",
        (str(data), "--file", twice): "have the same name",
    }.items():
        assert script.main([*arguments, "-o", out]) == 2
        assert words in capsys.readouterr().err
    with pytest.raises(SystemExit):
        script.main([str(data), "-o", out, "--layers", "a"])
    assert "a are no layers" in capsys.readouterr().err
    assert not Path(out).exists()
