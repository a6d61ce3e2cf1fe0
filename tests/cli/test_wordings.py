"""Runs whose prompt, temperature and world vary: which episode gets what, what is recorded, and what then fits what."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from probecascade import cli
from probecascade.agents.templates import WORDINGS
from probecascade.cli.recipes import WordingName, read_extract
from probecascade.errors import CascadeError, RecipeError, UsageError
from probecascade.policies.provenance import check_header, identity_of
from probecascade.store import Run

Write = Callable[..., Path]
VARIED = 'temperature = [0.5, 0.8]\nwordings = ["plain", "terse", "polite"]'


def by_id(path: Path, name: str) -> dict[str, object]:
    run = Run.open(path)
    return dict(zip(run.episodes.episode_id.tolist(), run.attributes(name).tolist(), strict=True))


@pytest.fixture
def varied(write_recipe: Write, lottery: None) -> Callable[[int], str]:
    return lambda groups: str(write_recipe(groups, old="temperature = 0.8", new=VARIED))


def test_each_episode_has_one_wording_and_one_temperature_whatever_else_is_played(
    varied: Callable[[int], str], tmp_path: Path
) -> None:
    recipe = varied(36)
    assert cli.main(["extract", recipe, "-o", str(tmp_path / "full")]) == 0
    assert cli.main(["extract", recipe, "-o", str(tmp_path / "part"), "--limit", "5", "--slots", "2"]) == 0
    for name, choices in (("wording", ("plain", "terse", "polite")), ("temperature", (0.5, 0.8))):
        full, part = by_id(tmp_path / "full", name), by_id(tmp_path / "part", name)
        assert set(full.values()) == set(choices)
        assert part == {key: full[key] for key in part}
    pairs = Counter(zip(*(by_id(tmp_path / "full", n).values() for n in ("wording", "temperature")), strict=True))
    assert len(pairs) == 6  # drawn apart from each other
    assert set(by_id(tmp_path / "full", "world").values()) == {0}


def test_the_prompt_is_that_of_the_recorded_wording(varied: Callable[[int], str], tmp_path: Path) -> None:
    from probecascade.cli.session import open_session

    recipe = varied(12)
    assert cli.main(["extract", recipe, "-o", str(tmp_path / "run")]) == 0
    run = Run.open(tmp_path / "run")
    session = open_session(read_extract(recipe))
    assert set(session.agents) == {(w, t) for w in ("plain", "terse", "polite") for t in (0.5, 0.8)}
    seen = set()
    for index in range(len(run)):
        episode = run.episode(index)
        agent = session.agents[episode.attributes["wording"], episode.attributes["temperature"]]
        assert episode.token_ids[: len(agent.head)].tolist() == agent.head
        assert agent.settings.temperature == episode.attributes["temperature"]
        seen.add(episode.attributes["wording"])
    assert len(seen) == 3


def test_resume_goes_on_with_the_same_draws_and_refuses_others(
    varied: Callable[[int], str], write_recipe: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, folder = varied(9), str(tmp_path / "run")
    assert cli.main(["extract", recipe, "-o", folder, "--limit", "4"]) == 0
    first = by_id(tmp_path / "run", "wording")
    assert cli.main(["extract", recipe, "-o", folder, "--resume"]) == 0
    whole = by_id(tmp_path / "run", "wording")
    assert len(whole) == 9
    assert {key: whole[key] for key in first} == first
    capsys.readouterr()
    assert cli.main(["extract", str(write_recipe(9)), "-o", folder, "--resume"]) == 2
    assert "cannot resume" in capsys.readouterr().err
    assert by_id(tmp_path / "run", "wording") == whole


def test_a_recipe_that_varies_nothing_writes_the_header_it_always_wrote(
    write_recipe: Write, lottery: None, tmp_path: Path
) -> None:
    recipe = write_recipe(2)
    assert cli.main(["extract", str(recipe), "-o", str(tmp_path / "run")]) == 0
    header = Run.open(tmp_path / "run").header
    assert isinstance(header["template"], str)
    assert header["wordings"] == {"plain": header["template"]}
    assert header["recipe_identity"]["agent"]["wordings"] is None
    assert "backup" not in header["recipe_identity"]["environment"]  # nor had runs from before there were two sources
    assert by_id(tmp_path / "run", "wording") == dict.fromkeys(by_id(tmp_path / "run", "wording"), "plain")
    # A run from before there were wordings lacks the key, and goes on.
    stored = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    del stored["recipe_identity"]["agent"]["wordings"], stored["recipe"]["agent"]["wordings"], stored["wordings"]
    (tmp_path / "run" / "run.json").write_text(json.dumps(stored), encoding="utf-8")
    assert cli.main(["extract", str(recipe), "-o", str(tmp_path / "run"), "--resume"]) == 0


def test_a_cascade_of_several_wordings_fits_each_of_them_and_no_other(
    varied: Callable[[int], str], write_recipe: Write, tmp_path: Path
) -> None:
    headers = {}
    recipes = {"varied": varied(1)}
    for name in recipes:
        assert cli.main(["extract", recipes[name], "-o", str(tmp_path / name)]) == 0
        headers[name] = Run.open(tmp_path / name).header
    for wording in WORDINGS:
        recipe = write_recipe(1, old="[agent]", new=f'[agent]\nwordings = ["{wording}"]')
        assert cli.main(["extract", str(recipe), "-o", str(tmp_path / wording)]) == 0
        headers[wording] = Run.open(tmp_path / wording).header
    fitted = identity_of(headers["varied"])
    assert len(fitted["template"]) == 3
    for wording in ("plain", "terse", "polite", "varied"):
        check_header(fitted, headers[wording])
    with pytest.raises(CascadeError, match="fitted with template"):
        check_header(fitted, headers["formal"])
    with pytest.raises(CascadeError, match="fitted with template"):  # more wordings than it has seen
        check_header(identity_of(headers["plain"]), headers["varied"])


def test_wordings_of_recipes_are_those_of_the_templates() -> None:
    assert set(get_args(WordingName)) == set(WORDINGS)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('wordings = ["plain", "plain"]', "wordings names something twice"),
        ("wordings = []", "wordings is an empty list"),
        ('wordings = ["plan"]', "a list of 'plain' or 'terse' or 'polite' or 'formal' is expected"),
        ("temperature = []", "temperature is an empty list"),
        ("temperature = [0.1, 0.1]", "temperature names something twice"),
        ("temperature = [0.1, -1]", "a number at least 0 or a list of numbers at least 0 is expected"),
    ],
)
def test_what_cannot_vary_is_refused_with_its_line(line: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text(f"[agent]\n{line}\n", encoding="utf-8")
    with pytest.raises(RecipeError, match=said) as caught:
        read_extract(path)
    assert "line" in str(caught.value)


def test_an_attribute_that_no_episode_has_is_refused(varied: Callable[[int], str], tmp_path: Path) -> None:
    assert cli.main(["extract", varied(1), "-o", str(tmp_path / "run")]) == 0
    with pytest.raises(UsageError, match="did you mean 'wording'"):
        Run.open(tmp_path / "run").attributes("wordng")
