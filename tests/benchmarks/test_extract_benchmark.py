"""The benchmark on a tiny model: what it prints, and that all sides play the same episodes. Times are not judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import loops_on_generate as loops
import numpy as np
import pytest
import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import extract as benchmark
from probecascade.agents.templates import plain_template
from probecascade.cli.session import Session, open_session
from probecascade.environments import AtlasSettings, atlas_examples, atlas_tasks
from probecascade.models.quiet import quiet_loading

RECIPE = """
[model]
name = "{model}"
device = "cpu"
[tasks]
parts = 1
question = "city"
[environment]
flakiness = 0.3
[agent]
temperature = 0.8
max_rounds = 3
max_turn_tokens = 6
max_episode_tokens = 200
slots = 3
[capture]
layers = [0, 2]
"""
EPISODES = 5
COUNTS = {"equal": EPISODES, "of": EPISODES}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe for a random llama of two blocks, whose logits lie far enough apart that rounding picks no token."""
    folder = tmp_path_factory.mktemp("benchmark")
    settings = AtlasSettings(groups=10, parts=1, question="city", flakiness=0.3)
    texts = [page.text for task in atlas_tasks(settings) for page in task.paragraphs]
    texts.append(plain_template(atlas_examples(settings)).head)
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(texts, vocab_size=1500, special_tokens=["<end>"], show_progress=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=trained._tokenizer, eos_token="<end>")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=0,
    )
    with quiet_loading():
        LlamaForCausalLM(config).save_pretrained(folder / "tiny")
        tokenizer.save_pretrained(folder / "tiny")
    path = folder / "recipe.toml"
    path.write_text(RECIPE.format(model=folder / "tiny"), encoding="utf-8")
    return path


def run(recipe: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = benchmark.main(["--recipe", str(recipe), "--episodes", str(EPISODES), "--json", *arguments])
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) == 1
    report: dict[str, Any] = json.loads(printed)
    return code, report


@pytest.fixture
def session(recipe: Path) -> Session:
    return open_session(benchmark.greedy_recipe(benchmark.read_options(["--recipe", str(recipe), "--episodes", "5"])))


def test_it_prints_one_object_with_every_figure(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = run(recipe, capsys, "--repeats", "2", "--memory-episodes", "5", "9")
    assert code == 0
    for figure in ("speedup_vs_generate", "speedup_vs_batched_generate", "hook_ms", "attached_hook_ms"):
        assert report[figure] > 0, figure
    assert report["capture_overhead"] > -1
    assert 0 < report["hook_share"] < 1
    assert -1 < report["memory_growth"] < 1
    assert sorted(report["resident_bytes"]) == ["5", "9"]
    assert report["ran_on"]["cpu"]
    assert report["ran_on"]["threads"] == torch.get_num_threads()
    assert report["ran_on"]["dtype"] == "float32"


def test_all_sides_play_the_same_episodes_to_the_token(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, report = run(recipe, capsys, "--repeats", "1", "--only", "generate", "batched", "capture")
    assert report["token_equal"] == {"generate": COUNTS, "batched_generate": COUNTS}
    sides = report["sides"]
    assert sorted(sides) == ["batched_generate", "extract", "generate", "keep_nothing"]
    for name, side in sides.items():
        assert (side["episodes"], side["errors"]) == (EPISODES, 0), name
        assert side["tokens"] == sides["extract"]["tokens"] > 10 * EPISODES, name


def test_fewer_episodes_one_at_a_time_are_compared_by_token(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ("--repeats", "1", "--only", "generate", "--serial-episodes", "2")
    code, report = run(recipe, capsys, *chosen)
    slow, fast = report["sides"]["generate"], report["sides"]["extract"]
    assert (code, report["token_equal"]["generate"]) == (0, {"equal": 2, "of": 2})
    pace = slow["seconds"][0] / slow["tokens"] * fast["tokens"] / fast["seconds"][0]
    assert report["speedup_vs_generate"] == pytest.approx(pace, rel=0.05)
    assert "capture_overhead" not in report


def test_a_transcript_of_other_tokens_is_counted_and_fails(
    recipe: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = loops.Row.answer

    def altered(row: loops.Row, drawn: list[int], keep: int, hit_limit: bool) -> None:
        own(row, [drawn[0] ^ 1, *drawn[1:]], keep, hit_limit)

    monkeypatch.setattr(loops.Row, "answer", altered)
    code, report = run(recipe, capsys, "--repeats", "1", "--only", "generate")
    assert (code, report["token_equal"]["generate"]) == (1, {"equal": 0, "of": EPISODES})


def test_the_loop_on_generate_keeps_the_states_of_its_own_tokens(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[loops.Row] = []
    begin = loops.Row.advance

    def noted(row: loops.Row, reply: Any) -> None:
        if reply is None:
            rows.append(row)
        begin(row, reply)

    monkeypatch.setattr(loops.Row, "advance", noted)
    episodes = list(session.episodes(session.tasks.tasks))[:2]
    (recording,) = loops.play_by_generate(session, episodes[:1], 1, max_rounds=1)
    ids = recording.episode.token_ids.tolist()
    with torch.inference_mode():
        clean = session.engine.model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    first, newest = rows[0].states
    torch.testing.assert_close(first[0], clean[0][0, recording.episode.prompt_tokens - 1])
    # The newest state is that of the id before the one just sampled, which is dropped if it only closes the turn.
    dropped = recording.episode.steps[0].finish_reason == "end_token"
    torch.testing.assert_close(newest[1], clean[2][0, len(ids) - (1 if dropped else 2)], atol=1e-4, rtol=1e-4)


def test_the_cost_of_keeping_is_that_of_the_same_steps(session: Session) -> None:
    episodes = list(session.episodes(session.tasks.tasks))
    kept = list(benchmark.extract(session, episodes))
    assert {recording.hidden.shape[1] for recording in kept} == {2}
    side, sides = benchmark.Side("extract"), {}
    overhead = benchmark.measure_capture(session, episodes, side, sides, repeats=2)
    assert -0.9 < overhead < 5
    assert len(side.seconds) == len(sides["keep_nothing"]["seconds"]) == 2
    assert session.engine.layers == (0, 2)


def test_a_step_counts_with_the_least_of_its_times(session: Session) -> None:
    clock = benchmark.StepClock(session)
    clock.runs, clock.between = [[3.0, 1.0], [2.0, 4.0]], [0.5, 0.25]
    assert clock.least() == 3.25
    clock = benchmark.StepClock(session)
    list(benchmark.play_by_engine(session, session.agent, session.episodes(session.tasks.tasks)))
    clock.end_run(1000.0)
    assert len(clock.runs[0]) > EPISODES
    assert sum(clock.runs[0]) + clock.between[0] == pytest.approx(1000.0)


def test_the_timed_cascade_scores_every_checkpoint_and_stops_none(session: Session) -> None:
    agent, cascade = benchmark.TimedAgent(session), benchmark.full_cascade(session)
    episodes = list(session.episodes(session.tasks.tasks))
    played = list(benchmark.play_by_engine(session, agent, episodes, cascade))
    names = [checkpoint.name for recording in played for checkpoint in recording.episode.checkpoints]
    assert len(agent.looks) == len(names) > 4 * EPISODES
    assert all(recording.episode.outcome in ("failure", "success", "truncated") for recording in played)
    for recording in played:
        scored = recording.episode.attributes["scores"]
        assert sorted(scored) == sorted(checkpoint.name for checkpoint in recording.episode.checkpoints)
        assert np.isfinite(list(scored.values())).all()


def test_an_unknown_model_is_refused_in_one_sentence(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark.main(["--recipe", str(recipe), "--model", "no-such-folder/at-all.gguf"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--memory-episodes", "9", "5"), "must rise"),
        (("--repeats", "0"), "0 is no count"),
        (("--episodes", "-3"), "-3 is no count"),
    ],
)
def test_counts_that_cannot_be_are_refused(
    arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        benchmark.main(arguments)
    assert stopped.value.code == 2
    assert told in capsys.readouterr().err
