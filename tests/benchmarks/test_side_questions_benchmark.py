"""The benchmark of side questions on a tiny model: what it counts, and that no question leaves a trace. No time is
judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import side_questions as benchmark

from probecascade.cli.session import Session, open_session
from probecascade.episode import Recording
from probecascade.policies.judged import judges_of
from tests.cli.conftest import save_model

RECIPE = """
[model]
name = "{model}"
device = "cpu"
[tasks]
parts = 1
question = "city"
[environment]
failures = ["clean", "persistent"]
flakiness = 0.01
[agent]
temperature = 0.8
max_rounds = 3
max_turn_tokens = 6
max_episode_tokens = 200
slots = 2
[capture]
layers = [0, 2]
checkpoints = ["observation"]
"""
EPISODES = 3


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("side_questions")
    path = folder / "recipe.toml"
    path.write_text(RECIPE.format(model=save_model(folder / "tiny")), encoding="utf-8")
    return path


@pytest.fixture
def session(recipe: Path) -> Session:
    options = benchmark.read_options(["--recipe", str(recipe), "--episodes", str(EPISODES)])
    return open_session(benchmark.greedy_recipe(options), layers=())


def run(recipe: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = benchmark.main(["--recipe", str(recipe), "--episodes", str(EPISODES), "--repeats", "2", "--json"])
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) == 1
    report: dict[str, Any] = json.loads(printed)
    return code, report


def test_every_side_plays_the_same_and_its_figures_follow_from_its_counts(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, report = run(recipe, capsys)
    sides = report["sides"]
    plain = sides.pop("plain")
    assert code == 0
    assert list(sides) == ["side", "odds", "both"]
    assert (plain["side_tokens"], plain["errors"]) == (0, 0)
    assert plain["tokens_computed"] >= plain["main_tokens"] > 10 * EPISODES
    for name, side in sides.items():
        assert side["token_equal"] == {"equal": EPISODES, "of": EPISODES}, name
        assert (side["main_tokens"], side["errors"]) == (plain["main_tokens"], 0), name
        assert len(side["wall_seconds"]) == len(side["cpu_seconds"]) == 2
        assert side["token_share"] == side["tokens_computed"] / plain["tokens_computed"] - 1
        assert side["ratio"] == pytest.approx(side["added_time"] / side["token_share"])
        assert side["cpu_ratio"] == pytest.approx(side["added_cpu_time"] / side["token_share"])
    added = {name: side["tokens_computed"] - plain["tokens_computed"] for name, side in sides.items()}
    assert added["odds"] == sides["odds"]["side_tokens"]  # one forward: nothing but what was fed
    assert added["both"] == added["side"] + added["odds"]
    assert added["odds"] < added["side"] <= sides["side"]["side_tokens"]


def test_the_sides_ask_after_every_observation_under_failures_in_turn(session: Session) -> None:
    episodes = list(benchmark.one_regime_each(session))
    assert [task.variant for task, _ in episodes] == ["clean", "persistent", "clean"]
    assert len({task.task_id for task, _ in episodes}) == EPISODES
    sides = benchmark.all_sides()
    assert benchmark.measure(session, sides, repeats=1)["sides"].keys() == {side.name for side in sides}
    asked = {side.name: {judges_of(episode) for episode in side.episodes.values()} for side in sides}
    assert asked == {"plain": {()}, "side": {("side",)}, "odds": {("odds",)}, "both": {("odds", "side")}}


def test_the_added_time_is_the_median_of_the_turns() -> None:
    plain, side = benchmark.Side("plain", None), benchmark.Side("side", None)
    plain.computed, side.computed = 100, 150
    plain.wall, side.wall = [1.0, 10.0, 4.0], [1.5, 30.0, 5.0]
    plain.cpu, side.cpu = [1.0, 1.0, 1.0], [1.25, 1.25, 1.25]
    found = side.beside(plain)
    assert (found["token_share"], found["added_time"], found["ratio"]) == (0.5, 0.5, 1.0)
    assert (found["added_cpu_time"], found["cpu_ratio"]) == (0.25, 0.5)


def test_a_question_that_leaves_a_trace_fails(
    recipe: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = benchmark.play

    def altered(session: Session, episodes: Any, policy: Any = None) -> Any:
        def touched(recording: Recording) -> Recording:
            if policy is not None:
                recording.episode.token_ids[-1] ^= 1
            return recording

        return map(touched, own(session, episodes, policy))

    monkeypatch.setattr(benchmark, "play", altered)
    code, report = run(recipe, capsys)
    assert code == 1
    assert report["sides"]["side"]["token_equal"] == {"equal": 0, "of": EPISODES}


def test_an_unknown_model_is_refused_in_one_sentence(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark.main(["--recipe", str(recipe), "--model", "no-such-folder/at-all.gguf"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.strip().splitlines()) == 1
