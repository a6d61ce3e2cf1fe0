from __future__ import annotations

import json
from pathlib import Path

import pytest

from probecascade.agents.react import AgentSettings, ReActAgent, episode_id
from probecascade.agents.templates import plain_template
from probecascade.cli.recipes import plain, read_extract
from probecascade.cli.tasks import task_set
from probecascade.environments import FailingEnvironment
from probecascade.episode import Action, Recording
from probecascade.errors import RecipeError, UsageError
from probecascade.store.transcript import dump_transcript, load_transcript
from probecascade.testing import ScriptedModel

ATLAS = "[tasks]\ngroups = 6\nparts = 1\n"


def recipe(folder: Path, environment: str, tasks: str = ATLAS) -> Path:
    path = folder / "recipe.toml"
    path.write_text(f"{tasks}[environment]\n{environment}", encoding="utf-8")
    return path


def played(path: Path) -> Recording:
    """The first task of a recipe, played by an agent that searches the right page twice and then answers."""
    chosen = task_set(read_extract(path))
    task = chosen.tasks[0]
    turns = [f" a\nAction: Search[{task.paragraphs[-1].title}]"] * 2
    model = ScriptedModel([*turns, f" b\nAction: Finish[{task.parts[0].answers[0]}]"])
    agent = ReActAgent(model, plain_template(chosen.examples()), AgentSettings(), (model.end_id,))
    (recording,) = model.run([agent.play(task, chosen.environment(task, 0), 0)])
    return recording


def test_a_recipe_injects_failures_and_the_truth_of_it_is_recorded(tmp_path: Path) -> None:
    clean = played(recipe(tmp_path, "")).episode
    failed = played(recipe(tmp_path, "failures = 'recover_after_1'\n")).episode
    assert [step.injected for step in failed.steps] == ["unrelated", "", ""]
    assert failed.steps[0].observation != clean.steps[0].observation
    assert failed.steps[0].observation_kind == clean.steps[0].observation_kind == "content"
    assert [step.observation for step in failed.steps[1:]] == [step.observation for step in clean.steps[1:]]
    assert (failed.outcome, clean.outcome) == ("success", "success")
    steps, _, _ = load_transcript(dump_transcript(failed))
    assert steps == failed.steps


def test_a_clean_regime_is_no_failure_at_all(tmp_path: Path) -> None:
    clean, regime = (played(recipe(tmp_path, text)).episode for text in ("", "failures = 'clean'\n"))
    assert clean.steps == regime.steps
    assert clean.token_ids.tolist() == regime.token_ids.tolist()


def test_a_transcript_from_before_there_were_injected_failures_is_read(tmp_path: Path) -> None:
    episode = played(recipe(tmp_path, "")).episode
    record = json.loads(dump_transcript(episode))
    for step in record["steps"]:
        del step["injected"]
    steps, _, _ = load_transcript(json.dumps(record))
    assert steps == episode.steps


def test_the_kind_is_that_of_the_recipe_and_both_stay_in_the_settled_recipe(tmp_path: Path) -> None:
    asked = read_extract(recipe(tmp_path, "failures = 'persistent'\nfailure_kind = 'stale'\nflakiness = 0.5\n"))
    chosen = task_set(asked)
    environment = chosen.environment(chosen.tasks[0], 0)
    assert isinstance(environment, FailingEnvironment)
    environment.reset(chosen.tasks[0])
    environment.step(Action("search", "x"))
    assert environment.step(Action("search", "y")).injected == "stale"
    settled = plain(chosen.settled(asked))["environment"]
    assert {key: value for key, value in settled.items() if value is not None} == {
        "flakiness": 0.5,
        "failures": "persistent",
        "failure_kind": "stale",
        "backup": False,
    }


def test_unrelated_pages_come_from_all_tasks_of_a_file(tmp_path: Path) -> None:
    lines = [
        {"question": f"Q{n}?", "answer": f"answer {n}", "paragraphs": [{"title": f"T{n}", "text": f"Page {n}."}]}
        for n in range(3)
    ]
    file = tmp_path / "own.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    chosen = task_set(
        read_extract(recipe(tmp_path, "failures = 'persistent'\n", f"[tasks]\nset = '{file}'\ngroups = 1\n"))
    )
    environment = chosen.environment(chosen.tasks[0], 0)
    environment.reset(chosen.tasks[0])
    seen = {environment.step(Action("search", "T0")).text for _ in range(2)}
    assert seen == {"[T1] Page 1.", "[T2] Page 2."}  # as this wiki writes them


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ("failures = 'sometimes'\n", "the failures 'sometimes' are unknown; choose clean, persistent"),
        ("failures = ['clean', 'sometimes']\n", "the failures 'sometimes' are unknown"),
        ("failures = []\n", "failures is an empty list"),
        ("failures = ['clean', 'clean']\n", "failures names something twice"),
        ("failure_kind = 'stale'\n", "failure_kind is of no use without failures"),
        ("failures = 'clean'\nfailure_kind = 'odd'\n", "failure_kind in [environment] is 'odd'"),
    ],
)
def test_failures_that_cannot_be_are_refused_with_their_line(tmp_path: Path, environment: str, said: str) -> None:
    with pytest.raises(RecipeError, match=r"recipe\.toml, line \d") as caught:
        read_extract(recipe(tmp_path, environment))
    assert said in str(caught.value)


def test_pages_are_needed_to_show_wrong_ones(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    task = {"task_id": "t", "group": "t", "parts": [{"question": "Q?", "answers": ["a"]}]}
    file.write_text(json.dumps(task), encoding="utf-8")
    tasks = f"[tasks]\nset = '{file}'\n"
    with pytest.raises(UsageError, match="made of pages, and the tasks have none"):
        task_set(read_extract(recipe(tmp_path, "failures = 'persistent'\n", tasks)))
    empty = recipe(tmp_path, "failures = 'persistent'\nfailure_kind = 'empty'\n", tasks)
    assert task_set(read_extract(empty)).failing


def test_every_task_is_played_under_each_of_several_regimes(tmp_path: Path) -> None:
    regimes = ["clean", "persistent", "recover_after_1"]
    asked = recipe(tmp_path, f"failures = {regimes}\n", "[tasks]\ngroups = 2\nparts = 1\nrepeats = 2\n")
    chosen = task_set(read_extract(asked))
    assert len(chosen.tasks) == 2
    task = chosen.tasks[0]
    variants = chosen.variants(task)
    assert [variant.variant for variant in variants] == regimes
    assert {(variant.task_id, variant.group) for variant in variants} == {(task.task_id, task.group)}
    assert [chosen.told_of(variant)["failures"] for variant in variants] == regimes
    assert [episode_id(variant, 3) for variant in variants] == [f"{task.task_id}~3~{name}" for name in regimes]
    seen = []
    for variant in variants:
        environment = chosen.environment(variant, 0)
        environment.reset(variant)
        seen.append([environment.step(Action("search", task.paragraphs[0].title)) for _ in range(2)])
    clean, persistent, recovering = seen
    assert [step.injected for step in persistent] == ["unrelated"] * 2
    assert [step.injected for step in recovering] == ["unrelated", ""]
    assert recovering == [persistent[0], clean[1]]  # the same misleading page, then the truth


def test_a_second_source_never_fails_and_is_told_to_the_agent(tmp_path: Path) -> None:
    asked = read_extract(recipe(tmp_path, "failures = 'persistent'\nfailure_kind = 'empty'\nbackup = true\n"))
    chosen = task_set(asked)
    assert chosen.settled(asked).environment.backup
    assert chosen.usage == "Search[title], Backup_search[title] or Finish[answer]"
    task = chosen.tasks[0]
    environment = chosen.environment(task, 0)
    environment.reset(task)
    page = task.paragraphs[0]
    assert environment.step(Action("search", page.title)).injected == "empty"
    found = environment.step(Action("backup_search", page.title))
    assert (found.injected, found.text) == ("", page.text)
    assert "backup" not in chosen.told_of(task)
    without = task_set(read_extract(recipe(tmp_path, "failures = 'persistent'\n")))
    assert "backup_search" not in without.environment(task, 0).tools


def test_one_regime_leaves_the_names_of_episodes_as_they_are(tmp_path: Path) -> None:
    chosen = task_set(read_extract(recipe(tmp_path, "failures = ['persistent']\n")))
    (variant,) = chosen.variants(chosen.tasks[0])
    assert episode_id(variant, 0) == f"{chosen.tasks[0].task_id}~0"
    assert chosen.told_of(variant)["failures"] == "persistent"
    assert "failures" not in task_set(read_extract(recipe(tmp_path, ""))).told_of(variant)
