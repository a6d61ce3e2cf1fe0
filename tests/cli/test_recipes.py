"""Recipes: the ones that ship, what is refused, and that every refusal names its line."""

from __future__ import annotations

import json
import tomllib
from dataclasses import FrozenInstanceError
from decimal import Decimal, InvalidOperation
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probecascade.cli.recipes import (
    ExtractRecipe,
    plain,
    read_calibrate,
    read_extract,
)
from probecascade.cli.tasks import task_set
from probecascade.environments import AtlasSettings, atlas_tasks
from probecascade.errors import RecipeError
from probecascade.models.catalogue import DTYPES

ROOT = Path(__file__).parents[2]
EXTRACT = sorted((ROOT / "extract").glob("*.toml"))
CALIBRATE = sorted((ROOT / "calibrate").glob("*.toml"))


def write(folder: Path, text: str) -> Path:
    path = folder / "x.toml"
    path.write_text(text, encoding="utf-8")
    return path


def normal(value: object) -> object:
    """Numbers as Decimals, so that 1e-4, 0.0001 and "0.0001" are the same."""
    if isinstance(value, list):
        return [normal(item) for item in value]
    try:
        return value if isinstance(value, bool) else Decimal(str(value))
    except InvalidOperation:
        return value


# --- the recipes that ship -------------------------------------------------------------------------------


def test_there_are_recipes_of_both_kinds() -> None:
    assert {path.stem for path in EXTRACT} >= {"quickstart", "qwen2.5-7b-gpu"}
    assert {path.stem for path in CALIBRATE} >= {"quickstart", "quickstart-keep"}


@pytest.mark.parametrize("path", [*EXTRACT, *CALIBRATE], ids=lambda p: f"{p.parent.name}/{p.name}")
def test_a_recipe_loads_as_written_and_is_short(path: Path) -> None:
    recipe = read_extract(path) if path in EXTRACT else read_calibrate(path)
    written = tomllib.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)
    read = plain(recipe)
    for section, table in written.items():
        for key, value in table.items():
            assert normal(read[section][key]) == normal(value), f"{key} in [{section}]"
    assert len(path.read_text(encoding="utf-8").splitlines()) < 60


def test_the_dtypes_of_recipes_are_those_of_the_catalogue(tmp_path: Path) -> None:
    for dtype in DTYPES:
        path = write(tmp_path, f'[model]\ndtype = "{dtype}"\n')
        assert read_extract(path).model.dtype == dtype


# --- values ----------------------------------------------------------------------------------------------


def test_the_keys_that_shape_the_atlas_reach_it_and_defaults_stay_its_own(tmp_path: Path) -> None:
    text = "[tasks]\ngroups = 2\nseed = 5\nparts = 1\nquestion = 'city'\ndistractors = ['former']\ndistracted = 0.25\n"
    asked = AtlasSettings(5, 2, 1, "city", ("former",), 0.25, 0.5)
    chosen = task_set(read_extract(write(tmp_path, f"{text}[environment]\nflakiness = 0.5\n")))
    assert chosen.settings == asked
    assert chosen.tasks == tuple(atlas_tasks(asked))
    plainly = task_set(read_extract(write(tmp_path, "[tasks]\ngroups = 2\n")))
    assert plainly.settings == AtlasSettings(groups=2, flakiness=0.0)


def test_an_empty_recipe_is_all_defaults_and_frozen(tmp_path: Path) -> None:
    recipe = read_extract(write(tmp_path, ""))
    assert recipe == ExtractRecipe()
    assert recipe.capture.layers == "all"
    with pytest.raises(FrozenInstanceError):
        recipe.model.name = "other"  # type: ignore[misc]


def test_values_become_the_kinds_that_the_fields_say(tmp_path: Path) -> None:
    recipe = read_extract(
        write(
            tmp_path,
            "[agent]\ntemperature = 1\ntop_p = 0.9\nslots = 4\n"
            "[capture]\nlayers = [0, -1]\n[environment]\nflakiness = 5e-1\n"
            "[tasks]\ndistractors = ['former']\ndistracted = 1\n",
        )
    )
    assert (recipe.agent.temperature, type(recipe.agent.temperature)) == (1.0, float)
    assert (recipe.agent.top_p, recipe.environment.flakiness) == (0.9, 0.5)
    assert recipe.capture.layers == (0, -1)
    assert (recipe.tasks.distractors, recipe.tasks.distracted) == (("former",), 1.0)
    assert read_extract(write(tmp_path, '[capture]\nlayers = "all"\n')).capture.layers == "all"


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=5, unique=True))
def test_targets_keep_every_digit_that_was_written(
    tmp_path_factory: pytest.TempPathFactory, millionths: list[int]
) -> None:
    written = [f"{n // 10**6}.{n % 10**6:06d}" for n in sorted(millionths)]
    path = write(tmp_path_factory.mktemp("recipe"), f"[targets]\nrecall = [{', '.join(written)}]\n")
    recipe = read_calibrate(path)
    assert recipe.targets.recall is not None
    assert [str(target) for target in recipe.targets.recall] == written
    assert plain(recipe)["targets"]["recall"] == written


def test_a_whole_number_is_a_target_too(tmp_path: Path) -> None:
    assert read_calibrate(write(tmp_path, "[targets]\nkeep = 1\n")).targets.keep == Decimal(1)


def test_a_plain_recipe_is_json_with_defaults_filled_in(tmp_path: Path) -> None:
    recipe = read_extract(write(tmp_path, "[capture]\nlayers = [3, 1]\n"))
    told = plain(recipe)
    assert json.loads(json.dumps(told)) == told
    assert told["capture"]["layers"] == [3, 1]
    assert told["model"]["revision"] is None
    assert set(told) == {"model", "tasks", "environment", "agent", "capture", "replay", "study"}


# --- refusals --------------------------------------------------------------------------------------------

BAD_EXTRACT = {
    "unknown key": (
        "# a comment\n[model]\nname = 'smollm2'\n\n[capture]\nlayer = [1]\n",
        "x.toml, line 6: unknown key 'layer' in [capture]; did you mean 'layers'?",
    ),
    "unknown key, nothing near": (
        "[environment]\nzzz = 1\n",
        "x.toml, line 2: unknown key 'zzz' in [environment]; known are flakiness, search, lookup",
    ),
    "unknown section": (
        "[model]\n[captures]\nlayers = [1]\n",
        "x.toml, line 2: unknown section or key 'captures'; did you mean 'capture'?",
    ),
    "key outside a section": (
        "slots = 3\n",
        "x.toml, line 1: unknown section or key 'slots'; known are model",
    ),
    "section as a value": ("\nmodel = 'smollm2'\n", "x.toml, line 2: model is a section: write [model]"),
    "text for a number": (
        "[agent]\n\nslots = 'many'\n",
        "x.toml, line 3: slots in [agent] is 'many', but a whole number at least 1 is expected.",
    ),
    "fraction for a whole number": (
        "[agent]\nslots = 2.5\n",
        "x.toml, line 2: slots in [agent] is 2.5, but a whole",
    ),
    "true for a number": ("[agent]\nslots = true\n", "x.toml, line 2: slots in [agent] is true, but a whole"),
    "a date": ("[agent]\nslots = 2020-01-01\n", "x.toml, line 2: slots in [agent] is 2020-01-01, but"),
    "number for text": ("[model]\nname = 3\n", "x.toml, line 2: name in [model] is 3, but text is expected."),
    "out of range": (
        "[environment]\nflakiness = 1.5\n",
        "x.toml, line 2: flakiness in [environment] is 1.5, but a number at least 0 and at most 1",
    ),
    "above, not at": (
        "[agent]\ntop_p = 0.0\n",
        "top_p in [agent] is 0.0, but a number above 0 and at most 1",
    ),
    "not a number": (
        "[agent]\ntemperature = nan\n",
        "x.toml, line 2: temperature in [agent] is NaN, but a number",
    ),
    "infinite": (
        "[agent]\ntemperature = inf\n",
        "x.toml, line 2: temperature in [agent] is Infinity, but a number",
    ),
    "beyond any float": (
        f"[agent]\ntemperature = 1{'0' * 400}\n",
        "x.toml, line 2: temperature in [agent] is 1000",
    ),
    "unknown choice": (
        "[agent]\ntemplate = 'chatty'\n",
        "x.toml, line 2: template in [agent] is 'chatty', but 'plain' or 'chat' is expected.",
    ),
    "one layer without brackets": (
        "[capture]\nlayers = 3\n",
        "x.toml, line 2: layers in [capture] is 3, but a list of whole numbers or 'all' is expected.",
    ),
    "wrong item": (
        "[capture]\nlayers = [1, '2']\n",
        "x.toml, line 2: layers in [capture] is [1, '2'], but a list",
    ),
    "unknown checkpoint": (
        "[capture]\ncheckpoints = ['action', 'thougth']\n",
        "x.toml, line 2: checkpoints in [capture] is ['action', 'thougth'], but a list of 'prompt' or",
    ),
    "duplicate layers": (
        "[model]\n[capture]\nlayers = [2, 2]\n",
        "x.toml, line 2: layers names something twice in",
    ),
    "no layers": (
        "[capture]\nlayers = []\n",
        "x.toml, line 1: layers is empty, so nothing would be kept in [capture].",
    ),
    "atlas keys for a file": (
        "[tasks]\nset = 'my.jsonl'\nparts = 2\n",
        "x.toml, line 1: parts shapes the generated set 'atlas' and was given for 'my.jsonl': drop it in",
    ),
    "no TOML": ("[model]\nname = smollm2\n", "x.toml, line 2: this is not TOML (Invalid value): correct it."),
    "cut off": ("[model]\nname = [1,\n", "x.toml, line 3: this is not TOML"),
    "key given twice": ("[model]\nname = 'a'\nname = 'b'\n", "x.toml, line 3: this is not TOML"),
    "inline section": (
        "model = { nam = 'a' }\n",
        "x.toml, line 1: unknown key 'nam' in [model]; did you mean 'name'?",
    ),
    "dotted key": ("model.nam = 'a'\n", "x.toml, line 1: unknown key 'nam' in [model]; did you mean 'name'?"),
    "endless digits": (f"[agent]\nslots = {'1' * 5000}\n", "x.toml: this is not TOML (Exceeds the limit"),
    "inside a long text": (
        "[model]\nname = '''\nslots = 'x'\n[agent]\n'''\n[agent]\nslots = 'x'\n",
        "x.toml, line 7: slots in [agent] is 'x'",
    ),
}

BAD_CALIBRATE = {
    "neither": ("[targets]\n", "x.toml, line 1: recall, keep or both must be given in [targets]."),
    "nothing at all": ("", "x.toml: recall, keep or both must be given in [targets]."),
    "falling": ("[targets]\nrecall = [0.95, 0.9]\n", "x.toml, line 1: recall must rise, but is 0.95, 0.9 in"),
    "repeated": (
        "[targets]\nrecall = [0.9, 0.90]\n",
        "x.toml, line 1: recall must rise, but is 0.9, 0.90 in",
    ),
    "empty": ("[targets]\nrecall = []\n", "x.toml, line 1: recall must rise, but is empty in"),
    "zero": (
        "[targets]\nrecall = [0.0]\n",
        "recall in [targets] is [0.0], but a list of numbers above 0 and at most",
    ),
    "over one": (
        "[targets]\nkeep = 95\n",
        "keep in [targets] is 95, but a number above 0 and at most 1 is expected.",
    ),
    "shares": (
        "[targets]\nkeep = 0.9\n[split]\nshares = [50, 25, 20]\n",
        "x.toml, line 3: shares must add up to 100, but add up to 95 in [split].",
    ),
    "two shares": ("[targets]\nkeep = 0.9\n[split]\nshares = [50, 50]\n", "but a list of 3 whole numbers"),
    "strength": (
        "[targets]\nkeep = 0.9\n[probe]\nstrengths = [0]\n",
        "x.toml, line 4: strengths in [probe] is [0]",
    ),
}


@pytest.mark.parametrize(("text", "says"), BAD_EXTRACT.values(), ids=BAD_EXTRACT)
def test_a_bad_extract_recipe_is_refused_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(RecipeError) as caught:
        read_extract(write(tmp_path, text))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(("text", "says"), BAD_CALIBRATE.values(), ids=BAD_CALIBRATE)
def test_a_bad_calibrate_recipe_is_refused_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(RecipeError) as caught:
        read_calibrate(write(tmp_path, text))
    assert says in str(caught.value)


def test_a_recipe_of_the_other_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="unknown section or key 'targets'"):
        read_extract(write(tmp_path, "[targets]\nkeep = 0.95\n"))


def test_an_unreadable_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"nowhere\.toml cannot be read \(No such file or directory\)"):
        read_extract(tmp_path / "nowhere.toml")
    with pytest.raises(RecipeError, match=r"cannot be read \(Is a directory\)"):
        read_extract(tmp_path)
    (tmp_path / "latin.toml").write_bytes("[model]\n# é\nname = 'x'\n".encode("latin-1"))
    with pytest.raises(RecipeError, match=r"latin\.toml, line 2: this is not UTF-8"):
        read_extract(tmp_path / "latin.toml")


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused_in_one_line(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(f"[agent]\n{text}".encode("utf-8", "replace"))
    outcome = read_or_refuse(path)
    assert isinstance(outcome, ExtractRecipe) or str(path) in str(outcome)
    assert "\n" not in str(outcome)


def read_or_refuse(path: Path) -> ExtractRecipe | RecipeError:
    try:
        return read_extract(path)
    except RecipeError as error:
        return error
