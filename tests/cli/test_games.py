"""Recipes whose tasks are a folder of text games, and `probecascade tasks` on one."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probecascade import cli
from probecascade.agents.react import AgentSettings, ReActAgent
from probecascade.agents.templates import GAME_WORDINGS, WORDINGS, plain_template
from probecascade.cli.recipes import ExtractRecipe, read_extract
from probecascade.cli.tasks import GameSet, task_of, task_set
from probecascade.environments import FailingEnvironment, TextGameEnvironment
from probecascade.errors import UsageError
from probecascade.store import Run
from probecascade.testing import ScriptedModel

ROOT = Path(__file__).parents[2]
GRAMMAR = '{"task": [{"rhs": "Your task is to: put some mug on desk."}]}'
GAME = {"pddl_domain": "(define)", "grammar": GRAMMAR, "pddl_problem": "(define)", "solvable": True}
KINDS = ("look_at_obj_in_light", "pick_and_place_simple", "pick_heat_then_place_in_recep")


@pytest.fixture
def household(tmp_path: Path) -> Path:
    """A folder of files that are read as games of ALFWorld, and cannot be played."""
    folder = tmp_path / "household"
    for kind in KINDS:
        for scene in range(1, 9):
            for trial in ("trial_1", "trial_2"):
                path = folder / f"{kind}-Mug-None-Desk-{scene}" / trial / "game.tw-pddl"
                path.parent.mkdir(parents=True)
                path.write_text(json.dumps(GAME), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def rooms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small game of TextWorld, twice."""
    textworld = pytest.importorskip("textworld", reason="needs the extra `games`")
    pytest.importorskip("alfworld", reason="needs the extra `games`")
    folder = tmp_path_factory.mktemp("rooms")
    options = textworld.GameOptions()
    options.seeds, options.nb_rooms, options.nb_objects, options.quest_length = 1234, 2, 4, 2
    options.path = str(folder / "one.z8")
    textworld.make(options)
    for kind in ("z8", "json"):
        shutil.copy(folder / f"one.{kind}", folder / f"two.{kind}")
    return folder


def recipe_of(tmp_path: Path, folder: Path | str, more: str = "", tasks: str = "") -> Path:
    path = tmp_path / "games.toml"
    path.write_text(f"[tasks]\nset = '{folder}'\n{tasks}{more}", encoding="utf-8")
    return path


def read(tmp_path: Path, folder: Path | str, more: str = "", tasks: str = "") -> ExtractRecipe:
    return read_extract(recipe_of(tmp_path, folder, more, tasks))


@pytest.fixture
def toy(tmp_path: Path, model_folder: Path) -> Callable[..., Path]:
    """`extract/alfworld.toml` for the tiny model and another folder of games."""

    def write(folder: Path, max_rounds: int = 3) -> Path:
        text = (ROOT / "extract" / "alfworld.toml").read_text(encoding="utf-8")
        for old, new in (
            ('name = "smollm2"', f'name = "{model_folder}"'),
            ('set = "games/"', f'set = "{folder}"'),
            ("max_rounds = 50 ", f"max_rounds = {max_rounds}"),
            ("max_turn_tokens = 64", "max_turn_tokens = 4"),
            ("max_episode_tokens = 3072", "max_episode_tokens = 400"),
            ("layers = [10, 15, 20, 25, 30]", "layers = [1, 2]"),
            ("slots = 8", "slots = 1"),
        ):
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "alfworld.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


# The tasks, for which nothing needs to be installed ----------------------------------------------------------------


@pytest.fixture
def without_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the extra were there, for what only reads the files of games."""
    monkeypatch.setattr("probecascade.cli.tasks.check_games_extra", lambda: None)


@pytest.mark.usefixtures("without_extra")
def test_a_folder_of_games_is_played_as_games(tmp_path: Path, household: Path) -> None:
    recipe = read(tmp_path, household, tasks="groups = 6\n")
    chosen = task_set(recipe)
    assert isinstance(chosen, GameSet)
    assert (chosen.max_rounds, chosen.usage) == (50, "Do[command] or Finish[reason]")
    assert chosen.settled(recipe).agent.max_rounds == 50
    assert chosen.settled(recipe).environment == recipe.environment
    environment = chosen.environment(chosen.tasks[0], 0)
    assert isinstance(environment, TextGameEnvironment)
    assert environment.steps == 50
    shorter = task_set(read(tmp_path, household, "[agent]\nmax_rounds = 7\n"))
    limited = shorter.environment(shorter.tasks[0], 0)
    assert isinstance(limited, TextGameEnvironment)
    assert limited.steps == shorter.max_rounds == 7


@pytest.mark.usefixtures("without_extra")
def test_the_first_groups_are_of_several_kinds_and_the_others_are_fresh(tmp_path: Path, household: Path) -> None:
    chosen = task_set(read(tmp_path, household, tasks="groups = 6\n"))
    assert len(chosen.tasks) == 12
    assert len({task.group for task in chosen.tasks}) == 6
    assert {task.attributes["type"] for task in chosen.tasks} == set(KINDS)
    fresh = list(chosen.fresh())
    assert len(fresh) == 36
    assert {task.group for task in fresh}.isdisjoint(task.group for task in chosen.tasks)
    recipe = read(tmp_path, household, tasks="groups = 6\n")
    assert task_of(fresh[0].task_id, recipe.tasks, recipe.environment) == fresh[0]


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ("[environment]\nsearch = 'bm25'\n", "search"),
        ("[environment]\nlookup = true\n", "lookup"),
        ("[environment]\nscore = 'f1'\n", "score"),
        ("[environment]\nsuccess_reward = 0.5\n", "success_reward"),
        ("[environment]\nsentences = 2\n", "sentences"),
        ("[environment]\nflakiness = 0.1\n", "flakiness"),
        ("[environment]\nbackup = true\n", "backup"),
        ("pages = 'pages.jsonl'\n", "pages"),
    ],
)
def test_what_belongs_to_a_wiki_is_refused(tmp_path: Path, household: Path, more: str, key: str) -> None:
    with pytest.raises(UsageError, match=rf"^{key} is about searching a wiki, and '.*household' is a folder of games"):
        task_set(read(tmp_path, household, more))


@pytest.mark.usefixtures("without_extra")
def test_failures_without_pages_can_be_injected(tmp_path: Path, household: Path) -> None:
    with pytest.raises(UsageError, match="'unrelated' are made of pages, and the tasks have none"):
        task_set(read(tmp_path, household, "[environment]\nfailures = 'persistent'\n"))
    text = "[environment]\nfailures = ['clean', 'persistent']\nfailure_kind = 'stale'\n"
    chosen = task_set(read(tmp_path, household, text))
    environment = chosen.environment(chosen.variants(chosen.tasks[0])[1], 0)
    assert isinstance(environment, FailingEnvironment)
    assert isinstance(environment.inner, TextGameEnvironment)


def test_without_the_extra_nothing_is_begun(
    tmp_path: Path, household: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "textworld", None)
    arguments = ["extract", str(recipe_of(tmp_path, household)), "-o", str(tmp_path / "run")]
    assert cli.main(arguments) == 2
    assert "text games need the extra `games`: pip install 'probecascade[games]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no folder .*none; unpack the games"):
        task_set(read(tmp_path, f"{tmp_path}/none/"))


def described(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert cli.main(["tasks", str(folder), "--json"]) == 0
    record: dict[str, Any] = json.loads(capsys.readouterr().out)
    return record


def test_a_folder_of_games_is_described(household: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = described(household, capsys)
    assert (record["format"], record["records"], record["tasks"], record["groups"]) == ("alfworld", 48, 48, 24)
    assert record["types"] == dict.fromkeys(KINDS, 16)
    assert record["faults"] == []
    assert cli.main(["tasks", str(household)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("alfworld: 48 games, 48 tasks of 24 groups\n")
    assert "pages" not in out
    assert "faults  none" in out


def test_faulty_games_are_listed_and_are_no_failure(household: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged, hard, again, *_ = sorted(household.rglob("*.tw-pddl"))
    damaged.write_text("{")
    hard.write_text(json.dumps({**GAME, "solvable": False}))
    shutil.copytree(again.parents[1], household / "copy" / again.parents[1].name)
    (household / "lonely.z8").write_bytes(b"")
    record = described(household, capsys)
    assert (record["format"], record["records"], record["tasks"]) == ("alfworld, textworld", 51, 46)
    said = "\n".join(fault["problem"] for fault in record["faults"])
    for problem in ("is not JSON", "not solvable", "keep one of them", "has no lonely.json beside it"):
        assert problem in said
    assert cli.main(["tasks", str(household)]) == 0
    assert "faults  5; 5 games make no task" in capsys.readouterr().out


def test_every_wording_speaks_of_commands(household: Path) -> None:
    assert GAME_WORDINGS.keys() == WORDINGS.keys()
    for name in WORDINGS:
        head = plain_template((), name, TextGameEnvironment.usage).head
        assert head.count("Do[command] or Finish[reason]") == 1
        assert "Search" not in head
        assert "question" not in head.lower()


# Play, with the extra ----------------------------------------------------------------------------------------------


def extracted(arguments: list[str]) -> Run:
    assert cli.main(["extract", *arguments]) == 0
    return Run.open(arguments[arguments.index("-o") + 1])


def test_the_recipe_plays_games_and_goes_on_where_it_stopped(
    tmp_path: Path, toy: Callable[..., Path], rooms: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = str(toy(rooms))
    folder = str(tmp_path / "run")
    assert cli.main(["extract", recipe, "--dry-run"]) == 0
    assert "at most 14 checkpoints" in capsys.readouterr().out
    first = extracted([recipe, "-o", folder, "--limit", "1"])
    assert len(first) == 1
    run = extracted([recipe, "-o", folder, "--resume"])
    assert sorted(run.episodes.task_id.tolist()) == ["one", "two"]
    assert set(run.episodes.outcome.tolist()) == {"truncated"}
    assert set(run.attributes("set").tolist()) == {"textworld"}
    assert [len(run.episode(index).steps) for index in range(2)] == [3, 3]
    assert run.header["recipe"]["agent"]["max_rounds"] == 3
    capsys.readouterr()
    assert cli.main(["inspect", folder, "--episode", "0"]) == 0
    assert "Goal: " in capsys.readouterr().out
    beside = tmp_path / "changed"
    shutil.copytree(rooms, beside)
    with (beside / "two.json").open("a") as file:
        file.write("\n")
    changed = toy(beside)
    assert cli.main(["extract", str(changed), "-o", folder, "--resume"]) == 2
    assert "cannot resume" in capsys.readouterr().err


def test_an_agent_that_follows_the_walkthrough_wins(tmp_path: Path, rooms: Path) -> None:
    chosen = task_set(read(tmp_path, rooms))
    task = chosen.tasks[0]
    oracle = TextGameEnvironment(rooms)
    opening = oracle.reset(task)
    turns = [f" I go on.\nAction: Do[{command}]" for command in oracle.plan]
    template = plain_template(chosen.examples(), "plain", chosen.usage)
    model = ScriptedModel(turns)
    settings = AgentSettings(max_turn_tokens=200, max_episode_tokens=4000, max_rounds=chosen.max_rounds)
    agent = ReActAgent(model, template, settings, (model.end_id,))
    (recording,) = model.run([agent.play(task, chosen.environment(task, 0), 0)])
    episode = recording.episode
    assert (episode.outcome, episode.reward) == ("success", 1.0)
    prompt = model.decode(episode.token_ids[: episode.prompt_tokens].tolist())
    instruction = "Do the tasks. Think, then use one action at a time: Do[command] or Finish[reason].\n\n"
    assert prompt.startswith(f"{instruction}Task: -= ")
    assert prompt.endswith(f"Action: Do[put oar on stool]\n\nTask: {opening}\nThought:")


def test_a_cascade_watches_live_games(
    tmp_path: Path, toy: Callable[..., Path], rooms: Path, lottery_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cascade = str(tmp_path / "cascade")
    gates = ["--recall", "0.9", "--gates", "observation:1", "--layers", "2"]
    assert cli.main(["fit", str(lottery_run / "run"), *gates, "-o", cascade]) == 0
    capsys.readouterr()
    assert cli.main(["run", str(toy(rooms)), "--cascade", cascade, "--tasks", "all", "--force", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert sum(record["outcomes"].values()) == 2
    assert set(record["outcomes"]) <= {"aborted", "failure", "truncated"}
    guarded = record["policies"][1]
    assert (guarded["n"], guarded["diverged"], guarded["unlabelled"]) == (2, 0, 0)
