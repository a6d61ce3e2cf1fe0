"""`study judged-useless RECIPE`: a whole study of a tiny model, resumed, and every refusal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probecascade import cli
from probecascade.cli import tasks
from probecascade.cli.study_run import run_study
from probecascade.environments import Regime
from probecascade.episode import Action, Foresight, Observation, Task
from probecascade.errors import StoreError
from probecascade.evaluation.judged_useless import read_study

from .conftest import refused

REGIMES = ["clean", "persistent", "recover_after_2"]
CONDITIONS = ["none", "budget", "enforced", "combo", "lexical", "random", "enforced_k1"]
SECTIONS = f"""
[environment]
failures = {REGIMES}
[study]
conditions = {CONDITIONS}
development = 4
k = 2
"""


class Shelf:
    """Every turn looks something up, whatever the model writes; a forced answer ends it."""

    tools = ("search", "finish")

    def __init__(self, regime: str) -> None:
        self.regime, self.calls = Regime.named(regime), 0

    def reset(self, task: Task) -> str:
        self.question = task.parts[0].question
        return self.question

    def foresee(self, action: Action) -> Foresight:
        return Foresight(final=action.name == "finish")

    def step(self, action: Action) -> Observation:
        if action.name == "finish":
            return Observation("", "finish", True, float(self.calls < 3))
        self.calls += 1
        if self.regime.strikes(self.calls):
            return Observation("zzz zzz zzz zzz.", "content", injected="unrelated")
        return Observation(f"It is said: {self.question}", "content")


@pytest.fixture
def shelves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks.TaskSet, "environment", lambda self, task, seed: Shelf(task.variant))


@pytest.fixture
def recipe(write_recipe: Callable[..., Path], shelves: None) -> Path:
    path = write_recipe(3, old="[capture]", new="[capture]\nstore_dtype = 'float32'")
    text = path.read_text().replace("temperature = 0.8", "temperature = 0.0").replace('"part:1", "part:2"', "")
    path.write_text(text.replace("max_turn_tokens = 5", "max_turn_tokens = 12") + SECTIONS)
    return path


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]


def play(recipe: Path, folder: Path, resume: bool = False, limit: int | None = None) -> dict[str, Any]:
    return run_study(recipe, folder, resume=resume, limit=limit, device=None)


def test_a_study_is_played_and_measured(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert cli.main(["study", "judged-useless", str(recipe), "-o", str(out), "--json", "--k", "2"]) == 0
    told = json.loads(capsys.readouterr().out)
    played = rows(out)
    assert told["learnt"]["errors"] == {}
    assert told["report"] == str(out / "report.html")
    assert "Action: " in (out / "report.html").read_text()
    assert len(played) == 3 * len(REGIMES) * len(CONDITIONS)
    assert {(row["regime"], row["condition"]) for row in played} == {(r, c) for r in REGIMES for c in CONDITIONS}
    assert [group["condition"] for group in told["groups"]] == CONDITIONS
    assert told["learnt"]["probe"]["auroc"] == 1.0  # the two kinds of pages are worlds apart
    file = read_study(out / "episodes.jsonl")
    assert not file.faults
    for row in played:
        truth = ["USELESS" if struck else "USEFUL" for struck in row["injected"]]
        verdicts = {**row["judges"], "lexical": row["judges"].get("lexical", row["verdicts"])}
        assert verdicts["lexical"] == truth
        assert set(row["judges"]) | {"x"} >= {"side", "odds", "thought"}
        useless = [
            n for n in range(1, 5) if truth[n - 1 : n] == ["USELESS"] and truth[max(0, n - 2) : n] == ["USELESS"] * 2
        ]
        if row["condition"] in ("enforced", "combo", "lexical") and useless:
            assert row["actions"][useless[0] :] == ["finish"]
        if row["condition"] == "enforced_k1" and "USELESS" in truth:
            assert row["actions"][truth.index("USELESS") + 1 :] == ["finish"]
        if row["condition"] in ("none", "budget"):
            assert "finish" not in row["actions"]
            assert row["outcome"] == "truncated"
    texts = {(row["question_id"], row["regime"], row["condition"]): row["transcript"] for row in played}
    assert all(texts[q, r, "none"] == text for (q, r, c), text in texts.items() if r == "clean" and c == "enforced")


def test_what_conditions_share_is_computed_once(recipe: Path, tmp_path: Path) -> None:
    told = play(recipe, tmp_path / "all", limit=1)
    text = recipe.read_text()
    alone = 0
    for name in CONDITIONS:
        recipe.write_text(text.replace(str(CONDITIONS), f"['{name}']"))
        alone += play(recipe, tmp_path / name, limit=1)["computed"]
        here = {row["episode_id"]: row for row in rows(tmp_path / "all") if row["condition"] == name}
        for other in rows(tmp_path / name):
            one = here.pop(other["episode_id"])
            assert {k: v for k, v in one.items() if k not in ("seconds", "scores")} == {
                k: v for k, v in other.items() if k not in ("seconds", "scores")
            }
        assert not here
    assert told["computed"] < 0.55 * alone


def test_a_study_goes_on_where_it_stopped(recipe: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    play(recipe, whole)
    play(recipe, parts, limit=1)
    begun = (parts / "episodes.jsonl").read_bytes()
    (parts / "episodes.jsonl").write_bytes(begun[:-30])  # as a killed process leaves it
    play(recipe, parts, resume=True)

    def kept(folder: Path) -> list[str]:
        return sorted(
            json.dumps({k: row[k] for k in ("episode_id", "condition", "transcript", "verdicts")})
            for row in rows(folder)
        )

    assert kept(parts) == kept(whole)
    assert (parts / "episodes.jsonl").read_bytes().startswith(begun[: begun[:-30].rfind(b"\n") + 1])
    again = play(recipe, parts, resume=True)
    assert again["computed"] == 0
    assert kept(parts) == kept(whole)


def test_k_is_tuned_on_development_tasks(recipe: Path, tmp_path: Path) -> None:
    text = recipe.read_text().replace("'enforced'", "'enforced', 'tuned'")
    recipe.write_text(text.replace("k = 2", "k = 7"))  # the usual k is of no concern
    told = play(recipe, tmp_path / "out", limit=1)
    worth = told["tuned"]["utility"]
    assert set(worth) == {2, 3, 4, 5, 6, 7}
    k = told["tuned"]["k"]
    assert k == min(k for k in worth if worth[k] == max(worth.values())) != told["k"]
    stopped = [row["stopped"] for row in rows(tmp_path / "out") if row["condition"] == "tuned" and row["stopped"]]
    assert stopped
    assert {int(reason.split()[0]) for reason in stopped} == {k}


def test_another_study_is_not_continued(recipe: Path, tmp_path: Path) -> None:
    play(recipe, tmp_path / "out", limit=1)
    before = (tmp_path / "out" / "episodes.jsonl").read_bytes()
    with pytest.raises(StoreError, match="exists already: add --resume"):
        play(recipe, tmp_path / "out")
    recipe.write_text(recipe.read_text().replace("k = 2", "k = 3"))
    with pytest.raises(StoreError, match="holds a study that differs in 'study'"):
        play(recipe, tmp_path / "out", resume=True)
    assert (tmp_path / "out" / "episodes.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (str(REGIMES), "'persistent'", "give several regimes in [environment]"),
        (str(CONDITIONS), "['none', 'often']", "the condition 'often' in [study] is unknown: choose from none, permit"),
        (str(CONDITIONS), "[]", "conditions is an empty list"),
        ("layers = [0, 1, 2]", "layers = [0, 1, 2]\ncheckpoints = ['action']", 'add "observation" to checkpoints'),
    ],
)
def test_a_recipe_that_makes_no_study_is_refused(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, said: str
) -> None:
    assert old in recipe.read_text()
    recipe.write_text(recipe.read_text().replace(old, new))
    assert said in refused(["study", "judged-useless", str(recipe), "-o", str(tmp_path / "out")], capsys)
    assert not (tmp_path / "out").exists()


def test_a_study_is_played_or_read_but_not_both(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = ["study", "judged-useless"]
    both = [*name, str(recipe), "-o", str(tmp_path / "out"), "--episodes", str(tmp_path / "x.jsonl")]
    assert "give a recipe to play or --episodes FILE to read, not both" in refused(both, capsys)
    assert "add -o" in refused([*name, str(recipe)], capsys)
    assert "give a recipe, or recorded episodes with --episodes FILE" in refused(name, capsys)
    assert "--resume is about playing" in refused([*name, "--episodes", "x.jsonl", "--resume"], capsys)
