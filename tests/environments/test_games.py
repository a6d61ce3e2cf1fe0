from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from probecascade.agents.react import AgentSettings, ReActAgent
from probecascade.agents.templates import plain_template
from probecascade.environments import FailingEnvironment, TextGameEnvironment, game_tasks, unpack_games
from probecascade.environments.games import LONGEST_COMMAND
from probecascade.episode import Action, Observation, Part, Task
from probecascade.errors import DataError, UsageError
from probecascade.testing import ScriptedModel, check_environment

ROOT = Path(__file__).parents[2]
GRAMMAR = '{"task": [{"rhs": "Your task is to: put some mug on desk."}]}'
GAME = {"pddl_domain": "(define)", "grammar": GRAMMAR, "pddl_problem": "(define)", "solvable": True}


def write_game(folder: Path, name: str, **changes: object) -> Path:
    path = folder / name / "game.tw-pddl"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({**GAME, **changes}), encoding="utf-8")
    return path


def archive(path: Path, files: dict[str, bytes], kind: bytes = tarfile.REGTYPE) -> Path:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
            for name, content in files.items():
                entry = zipfile.ZipInfo(name)
                entry.external_attr = (0o120777 if kind == tarfile.SYMTYPE else 0o100644) << 16
                packed.writestr(entry, content)
        return path
    with tarfile.open(path, "w:xz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.type, member.linkname = len(content), kind, "/etc/passwd"
            tar.addfile(member, io.BytesIO(content))
    return path


def do(command: str) -> Action:
    return Action("do", command)


# Tasks, for which nothing needs to be installed ------------------------------------------------------------------


def test_a_game_is_a_task_called_after_its_folders(tmp_path: Path) -> None:
    write_game(tmp_path, "valid/pick_and_place_simple-Mug-None-Desk-308/trial_1")
    write_game(tmp_path, "valid/pick_and_place_simple-Book-None-Bed-308/trial_2")
    write_game(tmp_path, "valid/pick_and_place_simple-Book-None-Bed-308/trial_3", solvable=False)
    book, mug = game_tasks(tmp_path)
    assert mug.task_id == "pick_and_place_simple-Mug-None-Desk-308/trial_1"
    assert mug.group == book.group == "pick_and_place_simple-308"
    assert mug.parts == (Part("put some mug on desk", ()),)
    game = "valid/pick_and_place_simple-Mug-None-Desk-308/trial_1/game.tw-pddl"
    assert mug.attributes == {"set": "alfworld", "type": "pick_and_place_simple", "scene": "308", "game": game}


def test_the_objective_of_a_textworld_game_stands_beside_it(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.z8").write_bytes(b"")
    with pytest.raises(DataError, match=r"has no a\.json beside it"):
        game_tasks(tmp_path)
    (tmp_path / "sub" / "a.json").write_text("{}")
    with pytest.raises(DataError, match="tells no objective"):
        game_tasks(tmp_path)
    (tmp_path / "sub" / "a.json").write_text('{"objective": "Take it."}')
    (task,) = game_tasks(tmp_path)
    assert (task.task_id, task.group, task.parts[0].question) == ("sub/a", "sub/a", "Take it.")


@pytest.mark.parametrize("content", ["{", "[]", "{}", json.dumps({**GAME, "grammar": "no goal"}), '"\\ud800"'])
def test_a_damaged_game_is_named(tmp_path: Path, content: str) -> None:
    write_game(tmp_path, "a-b-1/trial").write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=r"game\.tw-pddl"):
        game_tasks(tmp_path)


def test_a_folder_must_hold_games_of_different_names(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no folder"):
        game_tasks(tmp_path / "none")
    with pytest.raises(DataError, match="no game to play"):
        game_tasks(tmp_path)
    for split in ("train", "valid"):
        write_game(tmp_path, f"{split}/a-b-1/trial")
    with pytest.raises(DataError, match=r"two games .* are called 'a-b-1/trial'"):
        game_tasks(tmp_path)


PACKED = pytest.mark.parametrize("packed_as", ["g.tar.xz", "g.zip"])


@PACKED
def test_only_games_are_unpacked_and_again_is_no_harm(tmp_path: Path, packed_as: str) -> None:
    content = json.dumps(GAME).encode()
    packed = archive(tmp_path / packed_as, {"a-b-1/trial/game.tw-pddl": content, "run.sh": b"rm", "a.z8": b"z"})
    assert unpack_games(packed, tmp_path / "out") == 2
    assert unpack_games(packed, tmp_path / "out") == 2
    found = sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.*"))
    assert found == ["a-b-1/trial/game.tw-pddl", "a.z8"]
    assert (tmp_path / "out" / "a-b-1" / "trial" / "game.tw-pddl").read_bytes() == content
    (tmp_path / "out" / "a.z8").write_bytes(b"mine")
    with pytest.raises(DataError, match="exists with other content"):
        unpack_games(packed, tmp_path / "out")
    assert (tmp_path / "out" / "a.z8").read_bytes() == b"mine"


@PACKED
@pytest.mark.parametrize("name", ["../out.z8", "/tmp/out.z8", "a/../../out.z8", "a\\..\\out.z8"])
def test_a_path_that_leads_out_of_the_folder_is_refused(tmp_path: Path, name: str, packed_as: str) -> None:
    packed = archive(tmp_path / packed_as, {name: b"x"})
    with pytest.raises(DataError, match="leads out of the folder"):
        unpack_games(packed, tmp_path / "in" / "out")
    assert [path.name for path in tmp_path.rglob("*")] == [packed_as]


@PACKED
def test_links_are_not_unpacked(tmp_path: Path, packed_as: str) -> None:
    with pytest.raises(DataError, match="holds no game"):
        unpack_games(archive(tmp_path / packed_as, {"a.z8": b""}, tarfile.SYMTYPE), tmp_path / "out")


@PACKED
def test_a_damaged_archive_is_refused(tmp_path: Path, packed_as: str) -> None:
    packed = archive(tmp_path / packed_as, {"a.z8": bytes(range(256)) * 4096})
    whole = packed.read_bytes()
    for content in (whole[:-200], whole[:60] + bytes(40) + whole[100:], b"no archive", b""):
        packed.write_bytes(content)
        with pytest.raises(DataError, match="not a whole zip or tar archive"):
            unpack_games(packed, tmp_path / "out")
        assert not (tmp_path / "out").exists() or not any((tmp_path / "out").iterdir())
    with pytest.raises(UsageError, match="cannot be unpacked"):
        unpack_games(tmp_path / "none", tmp_path / "out")


def test_a_task_without_a_game_or_outside_the_folder_is_refused(tmp_path: Path) -> None:
    for game in (None, "../a.z8", "/a.z8"):
        with pytest.raises(DataError, match="'t'"):
            TextGameEnvironment(tmp_path).reset(Task("t", "t", (Part("?", ()),), attributes={"game": game}))
    with pytest.raises(UsageError, match="at least 1"):
        TextGameEnvironment(tmp_path, steps=0)


def test_the_data_script_unpacks_and_counts(tmp_path: Path) -> None:
    script = [sys.executable, str(ROOT / "data" / "alfworld" / "prepare.py")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    packed = archive(tmp_path / "g.zip", {"x/a-b-1/trial/game.tw-pddl": json.dumps(GAME).encode()})
    done = subprocess.run([*script, packed, tmp_path / "o"], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("1 games to play, 1 groups\n")
    done = subprocess.run([*script, "nowhere", tmp_path / "o"], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("prepare.py: nowhere cannot be unpacked")
    text = (ROOT / "data" / "alfworld" / "README.md").read_text(encoding="utf-8")
    assert "python data/alfworld/prepare.py" in text
    assert "| licence | " in text


def test_without_the_extra_its_name_is_told() -> None:
    code = (
        "import sys; sys.modules['textworld'] = None\n"
        "from probecascade.environments import TextGameEnvironment\n"
        "from probecascade.episode import Task\n"
        "from probecascade.errors import UsageError\n"
        "try: TextGameEnvironment('.').reset(Task('t', 't', (), attributes={'game': 'a.z8'}))\n"
        "except UsageError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip().startswith("text games need the extra `games`: pip install 'probecascade[games]'")


# Play, with the extra --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def textworld_games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    textworld = pytest.importorskip("textworld", reason="needs the extra `games`")
    pytest.importorskip("alfworld", reason="needs the extra `games`")
    folder = tmp_path_factory.mktemp("textworld")
    options = textworld.GameOptions()
    options.seeds, options.nb_rooms, options.nb_objects, options.quest_length = 1234, 2, 4, 3
    options.path = str(folder / "small.z8")
    textworld.make(options)
    return folder


def play(folder: Path, task: Task) -> list[Observation]:
    """What is seen when an oracle plays the game's own plan."""
    env = TextGameEnvironment(folder)
    env.reset(task)
    seen = []
    for command in env.plan:
        assert env.foresee(do(command)).checks["admissible"] == 1.0
        seen.append(env.step(do(command)))
    return seen


def test_a_small_textworld_game_is_won_by_its_walkthrough(textworld_games: Path) -> None:
    (task,) = game_tasks(textworld_games)
    env = TextGameEnvironment(textworld_games)
    said = env.reset(task)
    assert said.startswith("-= ")
    assert said.endswith(task.parts[0].question)
    assert ">" not in said
    seen = play(textworld_games, task)
    assert [result.kind for result in seen[:-1]] == ["content"] * (len(seen) - 1)
    assert (seen[-1].kind, seen[-1].done, seen[-1].reward, seen[-1].doomed) == ("finish", True, 1.0, False)
    winning = [do(command) for command in env.plan]
    check_environment(lambda: TextGameEnvironment(textworld_games), task, winning)
    check_environment(
        lambda: FailingEnvironment(TextGameEnvironment(textworld_games), "persistent", "stale"), task, winning
    )


def test_an_agent_that_writes_commands_wins(textworld_games: Path) -> None:
    (task,) = game_tasks(textworld_games)
    env = TextGameEnvironment(textworld_games)
    env.reset(task)
    plan = env.plan
    model = ScriptedModel([f" I go on.\nAction: Do[{command}]" for command in plan])
    agent = ReActAgent(model, plain_template(()), AgentSettings(max_turn_tokens=200), (model.end_id,))
    (recording,) = model.run([agent.play(task, env, 0)])
    episode = recording.episode
    assert (episode.outcome, episode.reward, episode.calls) == ("success", 1.0, len(plan))
    assert [(step.action, step.argument) for step in episode.steps] == [("do", command) for command in plan]
    points = [point for point in episode.checkpoints if point.kind == "action"]
    assert [point.checks["admissible"] for point in points] == [1.0] * len(plan)


def test_commands_are_taken_in_any_case_and_what_is_no_command_is_refused(textworld_games: Path) -> None:
    (task,) = game_tasks(textworld_games)
    env = TextGameEnvironment(textworld_games)
    env.reset(task)
    command = env.plan[0]
    shouted = do("  ".join(command.upper().split()))
    assert env.foresee(shouted).checks == {"tool_exists": 1.0, "argument_well_formed": 1.0, "admissible": 1.0}
    nonsense = do("dance with the moon")
    assert env.foresee(nonsense).checks["admissible"] == 0.0
    seen = env.step(nonsense)
    assert (seen.kind, seen.done, seen.doomed) == ("invalid", False, None)
    assert ">" not in seen.text
    for refused in ("undo", "Save the day", "quit", "x" * (LONGEST_COMMAND + 1)):
        assert env.step(do(refused)).text.startswith("Invalid action. ")
    assert env.step(shouted).kind == "content"
    assert len(env.plan) > 1
    assert command not in env.admissible


def test_an_episode_ends_when_its_commands_are_spent(textworld_games: Path) -> None:
    (task,) = game_tasks(textworld_games)
    env = TextGameEnvironment(textworld_games, steps=2)
    env.reset(task)
    assert not env.step(do("")).done  # refused, so it does not count
    assert not env.foresee(do("look")).final
    assert not env.step(do("look")).done
    assert env.foresee(do("look")).final
    assert not env.foresee(do("")).final
    last = env.step(do("look"))
    assert (last.kind, last.done, last.reward, last.doomed) == ("finish", True, 0.0, True)


def test_a_game_that_cannot_be_played_is_named(textworld_games: Path, tmp_path: Path) -> None:
    write_game(tmp_path, "a-b-1/trial")
    (task,) = game_tasks(tmp_path)
    with pytest.raises(DataError, match=r"game\.tw-pddl cannot be played"):
        TextGameEnvironment(tmp_path).reset(task)


@pytest.fixture(scope="module")
def alfworld_games(tmp_path_factory: pytest.TempPathFactory, shared: Callable[[str], Path]) -> Path:
    pytest.importorskip("alfworld", reason="needs the extra `games`")
    pytest.importorskip("fast_downward", reason="needs the extra `games`")
    folder = tmp_path_factory.mktemp("alfworld")
    unpack_games(shared("alfworld_games_shared.tar.xz"), folder)
    return folder


def smallest(folder: Path, tasks: Sequence[Task]) -> Task:
    return min(tasks, key=lambda task: (folder / task.attributes["game"]).stat().st_size)


def test_every_shared_game_is_a_task(alfworld_games: Path) -> None:
    tasks = game_tasks(alfworld_games)
    assert len(tasks) == 340
    assert len({task.group for task in tasks}) == 200
    assert {len(task.task_id.split("/")) for task in tasks} == {2}
    assert {task.attributes["type"] for task in tasks} >= {"look_at_obj_in_light", "pick_two_obj_and_place"}


@pytest.mark.slow
def test_the_planner_wins_two_games_of_every_type(alfworld_games: Path) -> None:
    tasks = sorted(
        game_tasks(alfworld_games), key=lambda task: (alfworld_games / task.attributes["game"]).stat().st_size
    )
    types = sorted({task.attributes["type"] for task in tasks})
    assert len(types) == 6
    # the smallest, since the planner may take a minute for a large kitchen; data/alfworld/measure.py plays all
    chosen = [task for kind in types for task in [task for task in tasks if task.attributes["type"] == kind][:2]]
    assert [task.task_id for task in chosen if play(alfworld_games, task)[-1].reward < 1.0] == []


def test_games_at_once_do_not_disturb_each_other(alfworld_games: Path) -> None:
    tasks = game_tasks(alfworld_games)
    chosen = [smallest(alfworld_games, tasks)]
    chosen.append(smallest(alfworld_games, [t for t in tasks if t.group != chosen[0].group]))
    envs = [TextGameEnvironment(alfworld_games) for _ in chosen]
    said = [env.reset(task) for env, task in zip(envs, chosen, strict=True)]
    assert all(text.startswith("You are in the middle of a room.") for text in said)
    assert all(task.parts[0].question in text for task, text in zip(chosen, said, strict=True))
    plans = [list(env.plan) for env in envs]
    ends = []
    while any(plans):
        for env, plan in zip(envs, plans, strict=True):
            if plan:
                command = plan.pop(0)
                seen = env.step(do(command))
                assert seen.kind in ("content", "finish"), command
                ends += [seen.reward] if seen.done else []
    assert ends == [1.0, 1.0]


@pytest.mark.slow
def test_an_alfworld_game_keeps_the_contract(alfworld_games: Path) -> None:
    task = smallest(alfworld_games, game_tasks(alfworld_games))
    env = TextGameEnvironment(alfworld_games)
    env.reset(task)
    check_environment(lambda: TextGameEnvironment(alfworld_games), task, [do(command) for command in env.plan])


def test_a_game_is_the_same_every_time(alfworld_games: Path) -> None:
    task = smallest(alfworld_games, game_tasks(alfworld_games))
    env = TextGameEnvironment(alfworld_games)
    first = [env.reset(task), env.admissible, env.step(do("go to the moon"))]
    assert first[2] == Observation("Nothing happens.", "invalid")
    assert [env.reset(task), env.admissible, env.step(do("go to the moon"))] == first


def test_a_process_that_has_played_ends_in_peace(alfworld_games: Path) -> None:
    task = smallest(alfworld_games, game_tasks(alfworld_games))
    code = (
        "import sys\n"
        "from probecascade.environments import TextGameEnvironment, game_tasks\n"
        "from probecascade.episode import Action\n"
        "task = next(task for task in game_tasks(sys.argv[1]) if task.task_id == sys.argv[2])\n"
        "environment = TextGameEnvironment(sys.argv[1])\n"
        "for _ in range(2): environment.reset(task); environment.step(Action('finish', 'x'))\n"
        "from probecascade.environments import games\n"
        "print(len(games._idle))"
    )
    command = [sys.executable, "-c", code, str(alfworld_games), task.task_id]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
