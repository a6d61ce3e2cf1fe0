"""`extract --replay`: recorded runs read by a tiny model; resumed, cut, chosen, and every refusal."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from probecascade import cli
from probecascade.agents.replay import replay
from probecascade.cli.replay import classes
from probecascade.environments import AtlasSettings, atlas_tasks, dump_tasks
from probecascade.store import Run

from .conftest import refused
from .test_chat import DATED, FAITHFUL

Make = Callable[..., Path]


def step(thought: str, action: str, argument: str, observation: str, kind: str = "content") -> dict[str, str]:
    return {
        "thought": thought, "action": action, "argument": argument, "observation": observation,
        "observation_kind": kind,
    }  # fmt: skip


def record(number: int, rounds: int = 2, **changes: Any) -> dict[str, Any]:
    page = f"City number {number} lies in the land of {number % 3}. " * (1 + number % 4)
    steps = [step(f"I look for {number}.", "search", f"City {r}", page) for r in range(rounds)]
    steps.append(step("I know.", "finish", f"Land {number % 3}", ""))
    return {
        "traj_id": f"run-{number}", "task_key": f"city-{number}", "question": f"Where is city {number}?",
        "model": f"agent-{number % 2}", "success": number % 2 == 0, "score": 1.0 - number % 2, "steps": steps,
    } | changes  # fmt: skip


@pytest.fixture
def write(tmp_path: Path) -> Make:
    def made(records: Sequence[dict[str, Any]]) -> Path:
        path = tmp_path / "theirs.jsonl"
        path.write_text("".join(json.dumps(each) + "\n" for each in records), encoding="utf-8")
        return path

    return made


@pytest.fixture
def command(model_folder: Path, tmp_path: Path) -> Callable[..., list[str]]:
    def made(file: Path, *more: str) -> list[str]:
        run = str(tmp_path / "run")
        return ["extract", "--replay", str(file), "--model", str(model_folder), "--device", "cpu", "-o", run, *more]

    return made


def test_an_ordinary_run_from_a_file_of_recorded_ones(
    write: Make,
    command: Callable[..., list[str]],
    tmp_path: Path,
    model_folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = write([record(n, rounds=n % 3) for n in range(6)] + [record(6, success=None, score=None)])
    assert cli.main(command(file, "--json")) == 0
    out, err = capsys.readouterr()
    assert err == ""
    told = json.loads(out)
    assert told["outcomes"] == {"failure": 3, "success": 3, "unlabelled": 1}
    assert (told["episodes"], told["labelled"], told["success_share"]) == (7, 6, 0.5)
    assert told["replay"]["layout"] == "steps"
    assert (told["replay"]["observer"], told["replay"]["max_tokens"]) == ("tiny", 4096)
    assert (told["replay"]["truncated"], told["replay"]["truncated_share"]) == (0, 0.0)
    run = Run.open(tmp_path / "run")
    assert run.checkpoint_names == (
        "prompt", "thought:1", "action:1", "observation:1", "thought:2", "action:2", "observation:2", "thought:3",
        "action:3",
    )  # fmt: skip
    assert run.header["replay"]["rule"] == "the prompt and the latest whole rounds that fit"
    assert run.header["files"]["replay"] == {"name": "theirs.jsonl", "sha256": told["replay"]["sha256"]}
    assert sorted(run.header["recipe"]) == ["capture", "model", "replay"]
    assert sorted(run.attributes("model")) == sorted([f"agent-{n % 2}" for n in range(7)])
    _equals_one_clean_forward(run, model_folder)


def _equals_one_clean_forward(run: Run, folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    for index in range(len(run)):
        episode = run.episode(index)
        with torch.no_grad():
            out = model(torch.tensor(episode.token_ids[None].astype(np.int64)), output_hidden_states=True)
        logprobs = torch.log_softmax(out.logits[0].float(), -1)
        rows = [c.position for c in episode.checkpoints]
        expected = torch.stack(out.hidden_states[:2], dim=1)[0][:, rows].numpy().transpose(1, 0, 2)
        np.testing.assert_allclose(run.hidden(index)[:, :2], expected, rtol=2e-3, atol=2e-3)  # float16 in the store
        for point in (c for c in episode.checkpoints if c.kind == "action"):
            turn = range(point.position + 1 - episode.steps[point.round - 1].turn_tokens, point.position + 1)
            own = [float(logprobs[p - 1, episode.token_ids[p]]) for p in turn]
            entropy = [float(-(logprobs[p - 1].exp() * logprobs[p - 1]).sum()) for p in turn]
            found = [np.mean(own), min(own), np.mean(entropy)]
            np.testing.assert_allclose(point.signals[3:6], found, rtol=1e-4)


def test_what_is_said_without_json(
    write: Make, command: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write([record(n, rounds=1 + 4 * (n == 2)) for n in range(3)])
    assert cli.main(command(file, "--max-tokens", "300")) == 0
    out = capsys.readouterr().out
    assert f"read from {file} (steps) by " in out
    assert "1 of 3 runs (33.3 %) were longer: of them the prompt and the latest whole rounds that fit were read" in out
    run = Run.open(tmp_path / "run")
    header = run.header["replay"]
    assert header["max_tokens"] == 300
    episodes = {run.episode(i).episode_id: run.episode(i) for i in range(3)}
    assert episodes["run-2"].attributes["rounds_dropped"] > 0
    assert all(len(e.token_ids) <= 300 for e in episodes.values())
    assert "rounds_dropped" not in episodes["run-0"].attributes


def test_it_goes_on_where_it_stopped_and_only_with_the_same_file(
    write: Make, command: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write([record(n) for n in range(5)])
    assert cli.main(command(file, "--limit", "2")) == 0
    assert sorted(Run.open(tmp_path / "run").episodes.episode_id) == ["run-0", "run-1"]
    said = " ".join(capsys.readouterr().out.split())
    assert "the first 2 of 5 runs, in the file's order" in said
    assert "turn limit" not in said
    assert "exists already" in refused(command(file), capsys)
    write([record(n) for n in range(6)])
    assert "'theirs.jsonl' is not the one that the run was begun with" in refused(command(file, "--resume"), capsys)
    write([record(n) for n in range(5)])
    assert "max_tokens is 4096, and now it would be 99" in refused(
        command(file, "--resume", "--max-tokens", "99"), capsys
    )
    assert cli.main(command(file, "--resume")) == 0
    told = capsys.readouterr()
    assert "resuming: 2 of 5 runs are stored, 3 are left." in told.err
    assert "in the file's order" not in told.out
    assert sorted(Run.open(tmp_path / "run").episodes.episode_id) == [f"run-{n}" for n in range(5)]


def test_ctrl_c_keeps_what_is_stored_and_says_how_to_go_on(
    write: Make,
    command: Callable[..., list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = write([record(n, dataset="x y") for n in range(4)])

    def interrupted(model: Any, run: Any, *rest: Any) -> Any:
        if run.run_id == "run-3":  # the longest, so read last
            raise KeyboardInterrupt
        return (yield from replay(model, run, *rest))

    monkeypatch.setattr("probecascade.agents.replay.replay", interrupted)
    assert cli.main(command(file, "--slots", "1", "--where", "dataset=x y")) == 130
    err = capsys.readouterr().err
    assert "episodes are stored" in err
    again = shlex.split(err.splitlines()[-1])
    assert again[1:2] == ["extract"]
    assert "--resume" in again
    monkeypatch.undo()
    assert cli.main(again[1:]) == 0
    assert len(Run.open(tmp_path / "run")) == 4


def test_runs_are_chosen_by_their_attributes(
    write: Make, command: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write([record(n) for n in range(5)])
    assert cli.main(command(file, "--where", "model=agent-1", "--limit", "5")) == 0
    assert "in the file's order" not in capsys.readouterr().out
    assert sorted(Run.open(tmp_path / "run").episodes.episode_id) == ["run-1", "run-3"]


def test_a_recipe_says_how_runs_are_laid_out(
    write: Make, command: Callable[..., list[str]], tmp_path: Path, model_folder: Path
) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        '[capture]\nlayers = [-1]\ncheckpoints = ["action", "turn_mean"]\nstore_dtype = "float32"\n'
        '[replay]\ninstruction = "Watch."\nmax_tokens = 1000\n'
    )
    file = write([record(n) for n in range(2)])
    assert cli.main(command(file, str(recipe))) == 0
    run = Run.open(tmp_path / "run")
    assert (run.layers, run.dtype, run.header["replay"]["max_tokens"]) == ((2,), "float32", 1000)
    assert set(run.checkpoint_names) == {f"{kind}:{r}" for kind in ("action", "turn_mean") for r in (1, 2, 3)}
    tokenizer = cli_tokenizer(model_folder)
    assert tokenizer.decode(run.episode(0).token_ids[:20]).startswith("Watch.\n\nQuestion: Where")


def cli_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def test_classes_of_length_hold_every_run_once() -> None:
    runs: Any = [(name, length) for name, length in zip("abcdef", (300, 5, 256, 257, 512, 4000), strict=True)]
    assert classes(runs) == [(256, ["b", "c"]), (512, ["d", "a", "e"]), (4096, ["f"])]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--seed", "3"], "--replay samples nothing"),
        (["--dry-run"], "`probecascade transcripts FILE`"),
        (["--limit", "0"], "--limit is 0"),
        (["--max-tokens", "0"], "--max-tokens is 0"),
        (["--max-tokens", "5000"], "reads 4096 tokens"),
        (["--where", "model"], "--where is 'model'"),
        (["--template", "fancy"], "give plain or chat"),
        (["--template", "chat"], "has no chat template: set template = \"plain\" in [replay]"),
        (["--layout", "none"], "none"),
        (["--layers", "7"], "7"),
    ],
)  # fmt: skip
def test_what_cannot_be_right_is_refused_and_writes_nothing(
    write: Make,
    command: Callable[..., list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    words: str,
) -> None:
    assert words in refused(command(write([record(0)]), *more), capsys)
    assert not (tmp_path / "run").exists()


def test_nothing_to_read(write: Make, command: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(command(write([record(0)]), "--where", "model=gpt"), capsys, code=1)
    assert "none of the 1 runs" in message
    assert "their attributes are run_id, task_id, group, model" in message


def test_a_task_file_that_has_changed_is_not_gone_on_with(
    tmp_path: Path, model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = list(atlas_tasks(AtlasSettings(groups=3, parts=1, question="city")))
    dump_tasks(tasks[:2], tmp_path / "tasks.jsonl")
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        f'[model]\nname = "{model_folder}"\ndevice = "cpu"\n[tasks]\nset = "{tmp_path / "tasks.jsonl"}"\n'
        "[agent]\nmax_rounds = 1\nmax_turn_tokens = 4\n[capture]\nlayers = [1]\n"
    )
    command = ["extract", str(recipe), "-o", str(tmp_path / "run")]
    assert cli.main([*command, "--limit", "1"]) == 0
    capsys.readouterr()
    dump_tasks(tasks, tmp_path / "tasks.jsonl")
    message = refused([*command, "--resume"], capsys)
    assert "cannot resume" in message
    assert "'tasks.jsonl' is not the one that the run was begun with" in message
    dump_tasks(tasks[:2], tmp_path / "tasks.jsonl")
    assert cli.main([*command, "--resume"]) == 0
    assert len(Run.open(tmp_path / "run")) == 2


@pytest.mark.parametrize(
    "option", [["--where", "a=b"], ["--max-tokens", "5"], ["--template", "chat"], ["--layout", "x"]]
)
def test_options_of_recorded_runs_need_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: list[str]
) -> None:
    assert "is about recorded runs" in refused(["extract", "r.toml", "-o", str(tmp_path / "run"), *option], capsys)
    assert "nothing says what to run" in refused(["extract", "-o", str(tmp_path / "run")], capsys)


def test_prompts_that_do_not_fit_are_refused_together_and_errors_alone(
    write: Make, command: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write([record(0), record(1, question="Where is it? " * 400)])
    words = "no prompt of these 2 runs fits into the 10 tokens that may be read"
    assert words in refused(command(file, "--max-tokens", "10"), capsys)
    assert not (tmp_path / "run").exists()
    assert cli.main(command(file, "--max-tokens", "1000", "--json")) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["outcomes"] == {"error": 1, "success": 1}
    assert told["replay"]["truncated"] == 0  # nothing was read of the other
    for number, more in enumerate((["--layers", "all"], ["--add", "turn_mean"])):
        output = tmp_path / f"again-{number}"
        assert cli.main(["reread", str(tmp_path / "run"), "-o", str(output), *more]) == 0
        again = Run.open(output)
        ids = [len(again.episode(index).token_ids) for index in range(2)]
        assert sorted(ids) == sorted(len(Run.open(tmp_path / "run").episode(index).token_ids) for index in range(2))
    assert "turn_mean:1" in again.checkpoint_names


def test_a_replay_of_errors_alone_is_no_success(
    write: Make,
    command: Callable[..., list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def cramped(model: Any, run: Any, template: Any, settings: Any, limit: int) -> Any:
        return (yield from replay(model, run, template, settings, 1))

    monkeypatch.setattr("probecascade.agents.replay.replay", cramped)
    assert cli.main([*command(write([record(n) for n in range(2)])), "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["outcomes"] == {"error": 2}
    assert err.startswith("probecascade: no episode could be played: all in ")
    assert "most often (2 of 2 episodes) 'error: the prompt takes" in err
    assert err.count("\n") == 1


FORGETTING = FAITHFUL.replace(
    "{{ m.content }}", "{{ m.content.split('</think>')[-1] if m.role == 'assistant' else m.content }}"
)


@pytest.mark.parametrize(
    ("template", "found"),
    [
        (FAITHFUL, []),
        (FORGETTING, ["drops earlier thinking"]),
        (DATED, ["states today's date"]),
    ],
)
def test_a_replay_says_what_the_chat_template_would_change_and_changes_nothing(
    write: Make,
    command: Callable[..., list[str]],
    tmp_path: Path,
    model_folder: Path,
    capsys: pytest.CaptureFixture[str],
    template: str,
    found: list[str],
) -> None:
    folder = tmp_path / "chatty"
    shutil.copytree(model_folder, folder)
    (folder / "chat_template.jinja").write_text(template)
    thinking = [step(f"<think>Is it {n}?</think> So.", "search", "City", f"Page {n}.") for n in range(3)]
    arguments = command(write([record(0, steps=thinking)]), "--template", "chat")
    arguments[arguments.index(str(model_folder))] = str(folder)
    assert cli.main(arguments) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.count("the model's chat template") == len(found)
    assert all(f"the model's chat template {words}; " in out for words in found)
    run = Run.open(tmp_path / "run")
    assert run.header["template_rewrites"] == found
    text = cli_tokenizer(folder).decode(run.episode(0).token_ids)
    places = [text.index(f"<think>Is it {n}?</think> So.") for n in range(3)]
    assert places == sorted(places)
    capsys.readouterr()
    assert cli.main([*arguments, "--resume", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["replay"]["template_rewrites"] == found


def test_plain_text_rewrites_nothing(
    write: Make, command: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*command(write([record(0)])), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["replay"]["template_rewrites"] == []
    assert "template_rewrites" not in Run.open(tmp_path / "run").header


def test_a_truth_value_is_chosen_as_the_file_writes_it(
    write: Make, command: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    file = write([record(n, heldout=n == 1) for n in range(3)])
    assert cli.main([*command(file, "--where", "heldout=true"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == 1
