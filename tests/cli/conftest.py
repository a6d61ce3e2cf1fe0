"""A tiny random llama with a byte-level tokenizer, a recipe for it, and an environment that it can win in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

from probecascade import cli
from probecascade.cli import tasks
from probecascade.environments import AtlasSettings, atlas_tasks
from probecascade.episode import Action, Foresight, Observation, Task

N_LAYERS, D_MODEL = 2, 64
RECIPE = """
[model]
name = "{model}"
device = "cpu"
[tasks]
groups = {groups}
parts = 1
question = "city"
[agent]
temperature = 0.8
max_rounds = 4
max_turn_tokens = 5
max_episode_tokens = 200
slots = 8
[capture]
layers = [0, 1, 2]
gates = ["part:1", "part:2"]
"""


def save_model(folder: Path, seed: int = 0, d_model: int = D_MODEL) -> Path:
    """A llama of two blocks whose weights come from the seed, as `save_pretrained` writes it."""
    settings = AtlasSettings(groups=20)
    texts = [page.text for task in atlas_tasks(settings) for page in task.paragraphs]
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(texts, vocab_size=500, special_tokens=["<end>"], show_progress=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=trained._tokenizer, eos_token="<end>")
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=d_model,
        intermediate_size=64,
        num_hidden_layers=N_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=0,
    )
    shows_bar = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    LlamaForCausalLM(config).save_pretrained(folder)
    if shows_bar:
        logging.enable_progress_bar()
    tokenizer.save_pretrained(folder)
    return folder


class Lottery:
    """Ends after three parts of one turn each; whether they are won is written in the task's name.

    A random model writes no action that can be read, so this one asks for none.
    """

    tools = ("search", "finish")

    def reset(self, task: Task) -> str:
        self.number = int(task.group.rsplit("-", 1)[1])
        self.turn = 0
        return "win win win win" if self.won else "lose lose lose lose"

    @property
    def won(self) -> bool:
        return self.number % 2 == 0

    def foresee(self, action: Action) -> Foresight:
        return Foresight((("part", self.turn + 1),), self.turn == 2)

    def step(self, action: Action) -> Observation:
        self.turn += 1
        if self.turn == 3:
            return Observation("Over.", "finish", True, float(self.won), not self.won)
        text = "win win win win" if self.won else "lose lose lose lose"
        return Observation(text, "next_part", doomed=self.turn == 2 and not self.won)


def refused(arguments: Sequence[str], capsys: pytest.CaptureFixture[str], code: int = 2) -> str:
    """The one sentence on stderr with which the command refuses these arguments."""
    assert cli.main(list(arguments)) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("probecascade: ")
    assert err.count("\n") == 1
    return err


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the same name and shape with other weights."""
    return save_model(tmp_path_factory.mktemp("others") / "tiny", seed=1)


@pytest.fixture(scope="session")
def wide_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose states are wide enough to outweigh the transcripts, as those of real models are."""
    return save_model(tmp_path_factory.mktemp("wide") / "wide", d_model=512)


@pytest.fixture
def write_recipe(tmp_path: Path, model_folder: Path) -> Callable[..., Path]:
    """Writes a recipe of the tiny model; `old` is exchanged for `new` in its text."""

    def write(groups: int = 6, *, model: Path | str = model_folder, old: str = "", new: str = "") -> Path:
        text = RECIPE.format(model=model, groups=groups)
        assert old in text
        path = tmp_path / "recipe.toml"
        path.write_text(text.replace(old, new) if old else text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def lottery(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every task is played in a `Lottery` of its own."""
    monkeypatch.setattr(tasks, "atlas_environment", lambda settings, seed: Lottery())


@pytest.fixture(scope="session")
def lottery_run(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `recipe.toml` and `run`: 200 episodes of the tiny model in lotteries."""
    folder = tmp_path_factory.mktemp("lottery")
    (folder / "recipe.toml").write_text(RECIPE.format(model=model_folder, groups=200), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "atlas_environment", lambda settings, seed: Lottery())
        assert cli.main(["extract", str(folder / "recipe.toml"), "-o", str(folder / "run"), "--json"]) == 0
    return folder
