"""`probecascade tasks`, and recipes whose tasks are those of a public set."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probecascade import cli
from probecascade.cli.recipes import read_extract
from probecascade.cli.tasks import task_set
from probecascade.environments import FlakyEnvironment, WikiEnvironment, dump_tasks, load_tasks
from probecascade.episode import Action
from probecascade.errors import RecipeError
from probecascade.store import Run

ROOT = Path(__file__).parents[2]


def hotpot(number: int) -> dict[str, Any]:
    return {
        "_id": f"h{number}",
        "question": f"In which town does poet {number} live?",
        "answer": "Old Brosk",
        "type": "bridge" if number % 2 else "comparison",
        "level": "hard",
        "supporting_facts": [[f"Poet {number}", 0]],
        "context": [[f"Poet {number}", ["The poet lives in Old Brosk."]], ["Brosk", ["Brosk is a town."]]],
    }


def written(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def described(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert cli.main(["tasks", *arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    record: dict[str, Any] = json.loads(out)
    return record


def test_a_sound_file_is_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path / "x.jsonl", *map(hotpot, range(6)))
    record = described([str(file)], capsys)
    assert (record["format"], record["records"], record["tasks"], record["faults"]) == ("hotpotqa", 6, 6, [])
    assert record["types"] == {"comparison": 3, "bridge": 3}
    assert record["pages_per_task"] == {"min": 2, "median": 2, "max": 2}
    assert cli.main(["tasks", str(file)]) == 0
    out = capsys.readouterr().out
    assert "hotpotqa (distractor): 6 records, 6 tasks of 6 groups" in out
    assert "faults  none" in out


def test_faults_are_listed_with_their_lines_and_are_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = [{**hotpot(n), "answer": None} for n in range(100, 130)]
    file = written(tmp_path / "x.jsonl", hotpot(0), *lost)
    record = described([str(file)], capsys)
    assert [fault["line"] for fault in record["faults"]] == list(range(2, 32))
    assert all("no answer" in fault["problem"] for fault in record["faults"])
    assert cli.main(["tasks", str(file)]) == 0
    out = capsys.readouterr().out
    assert "faults  30; 30 records make no task" in out
    assert out.count("line ") == 20
    assert "and 10 more: --json lists them all" in out


def test_a_file_of_the_projects_own_is_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = described([str(ROOT / "data" / "atlas" / "tasks.jsonl.gz")], capsys)
    assert (record["format"], record["records"], record["answers"]) == ("probecascade", 1200, {"3 parts": 1200})


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.jsonl", b'{"steps": []}\n', "has none of the layouts that are read"),
        ("x.jsonl", b"", "x.jsonl holds no task"),
        ("x.json.gz", gzip.compress(b"{}" * 999)[:-9], "not a whole gzip file"),
        ("y", None, "cannot be read (No such file or directory)"),
    ],
)
def test_a_file_that_is_none_is_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes | None, said: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert cli.main(["tasks", str(tmp_path / name), "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


def recipe_for(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_tasks_are_played_as_suits_their_layout_and_the_recipe_may_differ(tmp_path: Path) -> None:
    file = written(tmp_path / "x.jsonl", *map(hotpot, range(4)))
    recipe = recipe_for(tmp_path, f"[tasks]\nset = '{file}'\ngroups = 3\n")
    chosen = task_set(read_extract(recipe))
    assert [task.task_id for task in chosen.tasks] == ["h0", "h1", "h2"]
    assert [task.task_id for task in chosen.fresh()] == ["h3"]
    assert chosen.max_rounds == 8
    assert chosen.usage == "Search[title], Lookup[keyword] or Finish[answer]"
    assert "town of Bramwick" in str(chosen.examples())
    wiki = chosen.environment(chosen.tasks[0], 0)
    assert isinstance(wiki, WikiEnvironment)
    wiki.reset(chosen.tasks[0])
    assert wiki.step(Action("search", "poet")).text == "[Poet 0] The poet lives in Old Brosk."
    end = wiki.step(Action("finish", "Brosk"))
    assert (end.reward, end.doomed) == (pytest.approx(2 / 3), False)
    changed = "[environment]\nlookup = false\nscore = 'exact'\nflakiness = 1.0\n[agent]\nmax_rounds = 3\n"
    other = task_set(read_extract(recipe_for(tmp_path, f"[tasks]\nset = '{file}'\n{changed}")))
    assert (other.max_rounds, other.usage) == (3, "Search[title] or Finish[answer]")
    assert (other.wiki.search, other.wiki.score, other.wiki.success_reward) == ("closest", "exact", 1.0)
    flaky = other.environment(other.tasks[0], 0)
    assert isinstance(flaky, FlakyEnvironment)
    flaky.reset(other.tasks[0])
    assert flaky.step(Action("search", "poet")).kind == "tool_error"


def test_a_prepared_file_is_played_as_the_official_one(tmp_path: Path) -> None:
    file = written(tmp_path / "x.jsonl", *map(hotpot, range(4)))
    dump_tasks(load_tasks(file), tmp_path / "own.jsonl.gz")
    official = task_set(read_extract(recipe_for(tmp_path, f"[tasks]\nset = '{file}'\n")))
    prepared = task_set(read_extract(recipe_for(tmp_path, f"[tasks]\nset = '{tmp_path / 'own.jsonl.gz'}'\n")))
    assert prepared == official


def test_what_the_recipe_leaves_to_the_tasks_is_recorded(tmp_path: Path) -> None:
    file = written(tmp_path / "x.jsonl", hotpot(1))
    recipe = read_extract(recipe_for(tmp_path, f"[tasks]\nset = '{file}'\n"))
    settled = task_set(recipe).settled(recipe)
    assert (settled.agent.max_rounds, settled.environment.search, settled.environment.success_reward) == (
        8,
        "closest",
        0.6,
    )
    atlas = read_extract(recipe_for(tmp_path, "[tasks]\ngroups = 2\n"))
    assert task_set(atlas).settled(atlas).environment == atlas.environment  # so that older runs can be resumed
    assert task_set(atlas).settled(atlas).agent.max_rounds == 20


def test_pages_beside_the_tasks_and_none_for_a_made_world(tmp_path: Path) -> None:
    pages = written(tmp_path / "pages.jsonl", {"title": "Ada", "text": "Ada is a poet."})
    file = written(tmp_path / "x.jsonl", {"Question": "Who is Ada?", "Answer": "a poet"})
    recipe = recipe_for(tmp_path, f"[tasks]\nset = '{file}'\npages = '{pages}'\n")
    assert [page.title for page in task_set(read_extract(recipe)).tasks[0].paragraphs] == ["Ada"]
    with pytest.raises(RecipeError, match="pages belong to tasks from a file"):
        read_extract(recipe_for(tmp_path, f"[tasks]\npages = '{pages}'\n"))


@pytest.fixture
def small_recipe(tmp_path: Path, model_folder: Path) -> Callable[[Path], Path]:
    """`extract/hotpotqa.toml` for the tiny model and another file."""

    def write(file: Path) -> Path:
        text = (ROOT / "extract" / "hotpotqa.toml").read_text(encoding="utf-8")
        for old, new in (
            ('name = "smollm2"', f'name = "{model_folder}"'),
            ('set = "hotpot_dev_distractor_v1.json"', f'set = "{file}"'),
            ("max_turn_tokens = 64", "max_turn_tokens = 4"),
            ("max_episode_tokens = 2048", "max_episode_tokens = 300"),
            ("layers = [10, 15, 20, 25, 30]", "layers = [1, 2]"),
        ):
            assert old in text
            text = text.replace(old, new)
        return recipe_for(tmp_path, text)

    return write


def test_the_hotpotqa_recipe_runs_on_an_official_file(
    tmp_path: Path, small_recipe: Callable[[Path], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "hotpot.json"
    file.write_text(json.dumps([hotpot(n) for n in range(5)]), encoding="utf-8")
    recipe = small_recipe(file)
    assert cli.main(["extract", str(recipe), "-o", str(tmp_path / "run"), "--limit", "3", "--json"]) == 0
    capsys.readouterr()
    run = Run.open(tmp_path / "run")
    assert sorted(run.episodes.task_id.tolist()) == ["h0", "h1", "h2"]
    assert set(run.attributes("set").tolist()) == {"hotpotqa"}
    assert set(run.attributes("type").tolist()) == {"bridge", "comparison"}
    assert all(len(run.episode(index).steps) <= 8 for index in range(len(run)))
    stated = run.header["recipe"]["environment"]
    assert (stated["search"], stated["lookup"], stated["score"], stated["success_reward"]) == (
        "closest",
        True,
        "f1",
        0.6,
    )


def claims(*answers: str) -> list[dict[str, Any]]:
    return [
        {
            "task_id": f"c{number}", "group": f"g{number}", "attributes": {"set": "fever", "label": answer},
            "parts": [{"question": f"Claim: city {number} is old.", "answers": [answer]}],
        }
        for number, answer in enumerate(answers)
    ]  # fmt: skip


def test_a_verdict_that_is_none_is_a_fault_of_its_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path / "x.jsonl", *claims("SUPPORTS", "perhaps", "NOT ENOUGH INFO"))
    (fault,) = described([str(file)], capsys)["faults"]
    assert (fault["line"], fault["record"]) == (2, 2)
    assert fault["problem"] == "the answer 'perhaps' is no verdict; give SUPPORTS, REFUTES or NOT ENOUGH INFO"


@pytest.mark.parametrize("score", ["", "[environment]\nscore = 'verdict'\n"])
def test_a_verdict_that_is_none_is_refused_before_the_model_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], score: str
) -> None:
    records = claims("SUPPORTS", "REFUTES", "perhaps")
    if score:  # the recipe says so, and the tasks do not
        records = [{**record, "attributes": {}} for record in records]
    file = written(tmp_path / "x.jsonl", *records)
    recipe = recipe_for(tmp_path, f"[model]\nname = 'none-of-that-name'\n[tasks]\nset = '{file}'\ngroups = 2\n{score}")
    command = ["extract", str(recipe), "-o", str(tmp_path / "run")]
    assert cli.main(command) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "task 'c2' (Claim: city 2 is old.): the answer 'perhaps' is no verdict; give SUPPORTS" in err
    assert not (tmp_path / "run").exists()
