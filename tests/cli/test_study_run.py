"""`study judged-useless RECIPE`: a whole study of a tiny model, resumed, and every refusal."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probecascade import cli
from probecascade.cli import tasks
from probecascade.cli.study_run import run_study, tell
from probecascade.environments import Regime
from probecascade.episode import Action, Foresight, Observation, Task
from probecascade.errors import DataError, StoreError, UsageError
from probecascade.evaluation.judged_useless import read_study
from probecascade.policies import Cascade, Gate
from probecascade.policies.provenance import group_hash
from probecascade.store.durable import take_lock

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
    monkeypatch.setattr(tasks.TaskSet, "environment", lambda self, task, seed: Shelf(task.variant or "clean"))


@pytest.fixture
def recipe(write_recipe: Callable[..., Path], shelves: None) -> Path:
    path = write_recipe(3, old="[capture]", new="[capture]\nstore_dtype = 'float32'")
    text = path.read_text().replace("temperature = 0.8", "temperature = 0.0").replace('"part:1", "part:2"', "")
    text = text.replace("max_rounds = 4", "max_rounds = 6")
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
            n for n in range(1, 7) if truth[n - 1 : n] == ["USELESS"] and truth[max(0, n - 2) : n] == ["USELESS"] * 2
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
    assert (parts / "episodes.torn").read_bytes() == begun[begun[:-1].rfind(b"\n") + 1 : -30] + b"\n"

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


def test_a_whole_last_line_is_an_episode_without_its_end_too(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    play(recipe, out, limit=1)
    kept = (out / "episodes.jsonl").read_bytes()
    (out / "episodes.jsonl").write_bytes(kept[:-1])
    assert play(recipe, out, resume=True, limit=1)["computed"] == 0
    assert (out / "episodes.jsonl").read_bytes() == kept
    array = b"[" + kept.strip().replace(b"\n", b",\n") + b"]"
    (out / "episodes.jsonl").write_bytes(array)
    with pytest.raises(DataError, match=r"episodes\.jsonl, line 1 is no episode of a study: restore the file"):
        play(recipe, out, resume=True, limit=1)
    assert (out / "episodes.jsonl").read_bytes() == array


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("groups = 3", "groups = 4", "development"),
        ("layers = [0, 1, 2]", "layers = [0, 2]", "capture"),
        ("k = 2", "k = 3", "study"),
    ],
)
def test_the_judges_of_a_study_stay_what_they_are(recipe: Path, tmp_path: Path, old: str, new: str, key: str) -> None:
    play(recipe, tmp_path / "out", limit=1)
    recipe.write_text(recipe.read_text().replace(old, new))
    with pytest.raises(StoreError, match=f"holds a study that differs in '{key}'"):
        play(recipe, tmp_path / "out", resume=True)


def test_a_folder_that_is_no_study_or_is_played_already_is_left_alone(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    play(recipe, out, limit=1)
    lock = take_lock(out)
    with pytest.raises(StoreError, match="another process is writing to"):
        play(recipe, out, resume=True)
    os.close(lock)
    kept = (out / "study.json").read_text()
    (out / "study.json").write_text("[]")
    with pytest.raises(StoreError, match="is no description of a study"):
        play(recipe, out, resume=True)
    (out / "study.json").unlink()
    with pytest.raises(StoreError, match=r"holds no study\.json, so it is no study"):
        play(recipe, out, resume=True)
    (out / "study.json").write_text(kept)
    play(recipe, out, resume=True, limit=1)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--k", "0"], "a run of k = 0"),
        (["--budget", "3"], "a budget of 3 actions"),
        (["--budget", "1000000000"], "a budget of 1000000000 actions"),
        (["--cost", "nan"], "a cost of nan"),
        (["--margin", "-1"], "a margin of -1.0"),
        (["--seed", "-1"], "a seed of -1"),
        (["--against", "often"], "nothing can be compared against 'often'"),
        (["--by", "nobody"], "there is no judge 'nobody'"),
        (["--json", "--markdown"], "two ways to print"),
        (["--report", "{out}"], "which the study itself makes"),
        (["--report", "{out}/episodes.jsonl"], "which the study itself makes"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_played(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    out = tmp_path / "out"
    given = [word.format(out=out) for word in more]
    assert said in refused(["study", "judged-useless", str(recipe), "-o", str(out), *given], capsys)
    assert not out.exists()


def test_what_is_said_of_a_folder_that_is_not_there(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any, **options: Any) -> dict[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr("probecascade.cli.study_run.run_study", interrupted)
    out = tmp_path / "out"
    command = ["study", "judged-useless", str(recipe), "-o", str(out)]
    assert cli.main(command) == 130
    assert capsys.readouterr().err == "probecascade: stopped before anything was played.\n"
    assert cli.main([*command, "--resume"]) == 130
    assert capsys.readouterr().err.startswith(f"probecascade: there is no {out} yet, so a new study begins.\n")
    out.mkdir()
    assert cli.main(command) == 130
    assert f"what was played is in {out}" in capsys.readouterr().err


def test_a_reason_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    probe = dict.fromkeys(("layer", "auroc", "balanced_accuracy", "injected", "observations", "refusals"), 1)
    about = {
        "development": 4,
        "probe": probe,
        "odds": {"cut": 0.0, "balanced_accuracy": 0.5},
        "random": {"rate": 0.5},
        "errors": {"\x1b[31mred\nline": 2},
    }
    tell(about)
    told = capsys.readouterr().out.splitlines()
    assert max(map(len, told)) <= 120
    assert told[-1].startswith("2 episodes ended in an error and count nowhere; the commonest (2): ")
    assert "\x1b" not in told[-1]


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


class Eager:
    """A probe that is sure of everything."""

    def score(self, states: NDArray[Any], signals: NDArray[Any] | None = None) -> NDArray[np.float64]:
        return np.ones(len(states))


def with_cascade(recipe: Path, cascade: Cascade, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adds the condition to the recipe; the cascade's folder is not read."""
    monkeypatch.setattr(Cascade, "load", lambda path: cascade)
    recipe.write_text(recipe.read_text().replace("'none'", "'none', 'cascade'") + "cascade = 'cascades/eager'\n")


def test_a_cascade_makes_the_agent_answer_while_the_judges_speak(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_cascade(recipe, Cascade([Gate("observation:2", 1, Eager(), 0.5)]), monkeypatch)
    play(recipe, tmp_path / "out", limit=1)
    found = [row for row in rows(tmp_path / "out") if row["condition"] == "cascade"]
    assert len(found) == len(REGIMES)
    for row in found:
        assert row["actions"][2:] == ["finish"]
        assert row["stopped"] == "P(failure) 1.00 >= 0.50 at observation:2"
        assert len(row["verdicts"]) == 2
        assert set(row["judges"]) == {"side", "odds", "thought", "lexical", "random"}


@pytest.mark.parametrize(
    ("layer", "provenance", "said"),
    [
        (9, {}, r"the cascade reads layers \[9\]: add them to layers in \[capture\]"),
        (
            1,
            {"groups": {"fit": [group_hash("atlas-s0-p1-00001")]}},
            "was made on 1 of the study's tasks, such as 'atlas-s0-p1-00001'",
        ),
    ],
)
def test_a_cascade_that_does_not_fit_is_refused(
    recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    layer: int,
    provenance: dict[str, Any],
    said: str,
) -> None:
    gate = Gate("observation:2", layer, Eager(), 0.5)
    with_cascade(recipe, Cascade([gate], provenance=provenance), monkeypatch)
    with pytest.raises(UsageError, match=said):
        play(recipe, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_beliefs_are_asked_for_and_leave_no_trace(recipe: Path, tmp_path: Path) -> None:
    play(recipe, tmp_path / "without", limit=1)
    recipe.write_text(recipe.read_text() + "beliefs = true\n")
    play(recipe, tmp_path / "with", limit=1)
    pairs = list(zip(rows(tmp_path / "without"), rows(tmp_path / "with"), strict=True))
    assert pairs
    for without, asked in pairs:
        assert (asked["transcript"], asked["verdicts"]) == (without["transcript"], without["verdicts"])
        assert asked["side_tokens"] > without["side_tokens"]


def official(folder: Path) -> Path:
    """Questions in the layout of HotpotQA, of whose two pages the second, third ... lacks one."""
    pages = {name: [name, [f"{name} is a town."]] for name in ("Arden", "Brill", "Corby")}
    records = [
        {
            "_id": f"q{number}",
            "question": "Is Arden or Brill larger?",
            "answer": "Arden",
            "type": "comparison",
            "level": "easy",
            "supporting_facts": [["Arden", 0], ["Brill", 0]],
            "context": [pages["Corby"], pages["Arden"], *([] if number else [pages["Brill"]])],
        }
        for number in range(3)
    ]
    path = folder / "questions.json"
    path.write_text(json.dumps(records))
    return path


def test_judges_learnt_elsewhere_meet_pages_that_are_missing(recipe: Path, tmp_path: Path) -> None:
    taught = tmp_path / "taught"
    told = play(recipe, taught, limit=1)
    text = recipe.read_text().replace("parts = 1\n", "").replace('question = "city"\n', "")
    text = text.replace("groups = 3", f"set = '{official(tmp_path)}'").replace(
        f"[environment]\nfailures = {REGIMES}", ""
    )
    recipe.write_text(f"{text}learn = '{taught}'\n")
    natural = play(recipe, tmp_path / "out")
    assert natural["probe"] == told["probe"]
    assert natural["learnt_in"] == str(taught)
    assert not (tmp_path / "out" / "development").exists()
    played = rows(tmp_path / "out")
    assert {(row["question_id"], row["regime"]) for row in played} == {
        ("q0", "missing_0"),
        ("q1", "missing_1"),
        ("q2", "missing_1"),
    }
    file = read_study(tmp_path / "out" / "episodes.jsonl")
    assert not file.faults
    assert not file.unknown
    assert {episode.truth for episode in file.episodes} == {None}


def test_judges_are_not_learnt_from_what_is_no_study_of_this_model(recipe: Path, tmp_path: Path) -> None:
    text = recipe.read_text()
    recipe.write_text(f"{text}learn = '{tmp_path / 'nowhere'}'\n")
    with pytest.raises(StoreError, match="holds no development episodes: give the folder of a study"):
        play(recipe, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    recipe.write_text(text)
    play(recipe, tmp_path / "taught", limit=1)
    recipe.write_text(f"{text.replace('[0, 1, 2]', '[0, 1]')}learn = '{tmp_path / 'taught'}'\n")
    with pytest.raises(UsageError, match=r"may choose among layers \[2\] too: add them to layers in \[capture\]"):
        play(recipe, tmp_path / "other")
    recipe.write_text(f"{text.replace('groups = 3', 'groups = 4')}learn = '{tmp_path / 'taught'}'\n")
    with pytest.raises(UsageError, match="taught on 1 of the study's tasks, such as 'atlas-s0-p1-00003'"):
        play(recipe, tmp_path / "overlap")
    header = json.loads((tmp_path / "taught" / "development" / "run.json").read_text())
    header["model"]["model"] = "another"
    (tmp_path / "taught" / "development" / "run.json").write_text(json.dumps(header))
    recipe.write_text(f"{text}learn = '{tmp_path / 'taught'}'\n")
    with pytest.raises(UsageError, match="is of another model: give learn a study of the recipe's own model"):
        play(recipe, tmp_path / "other2")


def test_the_table_in_markdown(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert cli.main(["study", "judged-useless", str(recipe), "-o", str(out), "--limit", "1", "--markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| condition | Delta |")
    assert [line.split(" | ")[0].removeprefix("| tiny ") for line in lines[2:]] == CONDITIONS
    assert len({line.count("|") for line in lines}) == 1
    again = ["study", "judged-useless", "--episodes", str(out / "episodes.jsonl"), "--markdown"]
    assert cli.main(again) == 0
    assert capsys.readouterr().out.splitlines() == lines  # at six actions too, as played
    assert cli.main([*again, "--by", "lexical"]) == 0
    by_one = capsys.readouterr().out.splitlines()
    driven = CONDITIONS.index("lexical") + 2
    assert by_one[driven] == lines[driven]
    assert by_one != lines


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
        ("groups = 3", "groups = 3\nrepeats = 2", "drop repeats in [tasks]"),
        ("layers = [0, 1, 2]", "layers = [0]", "keep a layer above 0 in [capture]"),
        ("layers = [0, 1, 2]", "layers = [-3]", "keep a layer above 0 in [capture]"),
        ("development = 4", "development = 1", "development in [study] is 1, but a whole number at least 2"),
        ("max_rounds = 6", "max_rounds = 4", "max_rounds in [agent] is 4: give a study at least 5"),
        (f"failures = {REGIMES}", "flakiness = 0.0", "with learn in [study] the folder of a study"),
        ("'combo'", "'switch'", "set backup = true in [environment]"),
        ("'combo'", "'cascade'", "a cascade's folder belong together"),
        ("k = 2", "cascade = 'somewhere'", "a cascade's folder belong together"),
        ("'combo'", "'tuned'", "tuned needs development tasks of its own"),
        ("layers = [0, 1, 2]", "layers = [0, 1, 2]\ncheckpoints = ['action']", 'add "observation" to checkpoints'),
    ],
)
def test_a_recipe_that_makes_no_study_is_refused(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, said: str
) -> None:
    assert old in recipe.read_text()
    more = "learn = 'elsewhere'\n" if "tuned" in new else ""
    recipe.write_text(recipe.read_text().replace(old, new) + more)
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
