"""Recipes in a model's chat format: what the run says of its template, and native tool calls."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from probecascade import cli
from probecascade.store import Run

from .conftest import refused

Write = Callable[..., Path]
CHAT = 'template = "chat"\n'
CALLS = CHAT + 'actions = "tool_call"\n'
TRIMMING = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
FAITHFUL = TRIMMING.replace(" | trim", "")
DATED = "It is {{ strftime_now('%Y-%m-%d') }}." + FAITHFUL


@pytest.fixture
def written(model_folder: Path, write_recipe: Write, lottery: None, tmp_path: Path) -> Callable[[str, str], Path]:
    def write(template: str, keys: str) -> Path:
        folder = tmp_path / "chatty"
        shutil.copytree(model_folder, folder, dirs_exist_ok=True)
        (folder / "chat_template.jinja").write_text(template)
        recipe = write_recipe(6, old="temperature = 0.8", new=f"temperature = 0.8\n{keys}")
        recipe.write_text(recipe.read_text().replace(str(model_folder), str(folder)))
        return recipe

    return write


@pytest.mark.parametrize("keys", [CHAT, CALLS])
@pytest.mark.parametrize(
    ("template", "found"),
    [
        (FAITHFUL, []),
        (TRIMMING, ["changes blanks at the ends of messages"]),
        (DATED, ["states today's date"]),
    ],
)
def test_a_run_says_what_its_template_would_change(
    written: Callable[[str, str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    keys: str,
    template: str,
    found: list[str],
) -> None:
    if keys == CALLS and template == TRIMMING:
        found = []  # tools' texts stand between tags
    recipe = written(template, keys)
    assert cli.main(["extract", str(recipe), "-o", str(tmp_path / "run"), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["episodes"] == 6
    run = Run.open(tmp_path / "run")
    assert run.header["template_rewrites"] == found
    assert err.count("the model's chat template") == len(found)
    assert all(text in err for text in found)
    assert run.header["recipe"]["agent"]["actions"] == ("tool_call" if keys == CALLS else "react")
    assert ("actions" in run.header["recipe_identity"]["agent"]) == (keys == CALLS)


def test_calls_are_other_runs_than_words(
    written: Callable[[str, str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "run")
    assert cli.main(["extract", str(written(FAITHFUL, CHAT)), "-o", folder, "--limit", "2"]) == 0
    recipe = str(written(FAITHFUL, CALLS))
    capsys.readouterr()
    assert "cannot resume" in refused(["extract", recipe, "-o", folder, "--resume"], capsys)
    assert len(Run.open(folder)) == 2


def test_calls_need_the_chat_format(
    written: Callable[[str, str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = written(FAITHFUL, 'actions = "tool_call"\n')
    error = refused(["extract", str(recipe), "-o", str(tmp_path / "run")], capsys)
    assert 'add template = "chat"' in error
    assert not (tmp_path / "run").exists()
