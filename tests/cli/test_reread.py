"""`reread`: other layers of a stored run, from the ids that it holds; and every refusal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from probecascade import cli
from probecascade.agents.reread import common_head
from probecascade.store import Run

from .conftest import refused

Write = Callable[..., Path]


@pytest.fixture
def played(write_recipe: Write, lottery: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    folder = tmp_path / "run"
    assert cli.main(["extract", str(write_recipe(7)), "-o", str(folder), "--layers", "2"]) == 0
    capsys.readouterr()
    return folder


def test_other_layers_of_the_very_same_episodes(
    played: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {file: file.read_bytes() for file in played.rglob("*") if file.is_file()}
    assert cli.main(["reread", str(played), "-o", str(tmp_path / "all"), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["layers"] == [0, 1, 2]
    assert (record["next"] is None) == bool(record["not_yet"])
    assert {file: file.read_bytes() for file in played.rglob("*") if file.is_file()} == before
    old, new = Run.open(played), Run.open(tmp_path / "all")
    assert new.checkpoint_names == old.checkpoint_names
    assert new.header["reread"] == {"run": "run", "layers": [2], "tolerance": 2e-3}
    row = {name: index for index, name in enumerate(new.episodes.episode_id)}
    for index, name in enumerate(old.episodes.episode_id):
        ours, theirs = old.episode(index), new.episode(row[name])
        assert (ours.steps, ours.checkpoints, ours.outcome) == (theirs.steps, theirs.checkpoints, theirs.outcome)
    for name in old.checkpoint_names:
        order = np.argsort(new.episodes.episode_id[new.rows(name).episode].astype(str))
        wanted = np.argsort(old.episodes.episode_id[old.rows(name).episode].astype(str))
        ours, theirs = old.states(name, 2)[wanted], new.states(name, 2)[order]
        assert np.linalg.norm(ours - theirs) <= 1e-3 * np.linalg.norm(ours)  # float16 in the store
        assert not np.allclose(theirs, new.states(name, 1)[order], rtol=0.1)


def test_it_goes_on_where_it_stopped(played: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = ["reread", str(played), "-o", str(tmp_path / "some"), "--layers", "0,-1"]
    assert cli.main([*part, "--limit", "3"]) == 0
    assert len(Run.open(tmp_path / "some")) == 3
    capsys.readouterr()
    assert "exists already" in refused(part, capsys)
    assert cli.main([*part, "--resume"]) == 0
    assert sorted(Run.open(tmp_path / "some").episodes.episode_id) == sorted(Run.open(played).episodes.episode_id)


def test_the_head_that_all_episodes_share(played: Path) -> None:
    run = Run.open(played)
    episodes = [run.episode(index) for index in range(len(run))]
    shared = common_head(episodes)
    assert 0 < shared < min(episode.prompt_tokens for episode in episodes)
    assert len({tuple(episode.token_ids[:shared]) for episode in episodes}) == 1
    assert len({tuple(episode.token_ids[: shared + 1]) for episode in episodes}) > 1


def test_another_model_cannot_read_it(
    played: Path, other_model: Path, model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = json.loads((played / "run.json").read_text())
    header["recipe"]["model"]["name"] = str(other_model)
    (played / "run.json").write_text(json.dumps(header))
    assert "another model" in refused(["reread", str(played), "-o", str(tmp_path / "all")], capsys)
    assert not (tmp_path / "all").exists()


@pytest.mark.parametrize(("layers", "problem"), [("0,9", "9"), ("1,1", "twice"), ("x", "whole numbers")])
def test_layers_that_cannot_be_kept(
    played: Path, tmp_path: Path, layers: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert problem in refused(["reread", str(played), "-o", str(tmp_path / "all"), "--layers", layers], capsys)
    assert not (tmp_path / "all").exists()


@pytest.mark.parametrize("limit", ["0", "-3"])
def test_a_limit_takes_one_episode_or_more(
    played: Path, tmp_path: Path, limit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["reread", str(played), "-o", str(tmp_path / "all"), "--limit", limit]
    assert f"--limit is {limit}" in refused(arguments, capsys)
    assert not (tmp_path / "all").exists()


def test_a_run_is_not_read_into_itself(played: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same = played.parent / "elsewhere" / ".." / played.name
    for more in ([], ["--resume"]):
        assert "is the run that is read" in refused(["reread", str(played), "-o", str(same), *more], capsys)


@pytest.mark.parametrize("recipe", [None, "x", {}, {"model": {"name": "tiny"}}])
def test_a_run_without_its_recipe_cannot_be_read_again(
    played: Path, tmp_path: Path, recipe: object, capsys: pytest.CaptureFixture[str]
) -> None:
    header = json.loads((played / "run.json").read_text())
    del header["recipe"]
    (played / "run.json").write_text(json.dumps(header if recipe is None else header | {"recipe": recipe}))
    assert "which model made it" in refused(["reread", str(played), "-o", str(tmp_path / "all")], capsys)
    assert not (tmp_path / "all").exists()


def test_no_run_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(["reread", str(tmp_path / "none"), "-o", str(tmp_path / "all")], capsys)


def test_checkpoints_are_added_beside_those_of_the_run(
    write_recipe: Write, lottery: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = str(write_recipe(5, old="[capture]", new='[capture]\ncheckpoints = ["prompt", "part"]'))
    assert cli.main(["extract", recipe, "-o", str(tmp_path / "few")]) == 0
    whole = str(
        write_recipe(5, old="[capture]", new='[capture]\ncheckpoints = ["prompt", "part", "action", "turn_mean"]')
    )
    assert cli.main(["extract", whole, "-o", str(tmp_path / "whole")]) == 0
    capsys.readouterr()
    more = ["reread", str(tmp_path / "few"), "-o", str(tmp_path / "more"), "--add", "action,turn_mean", "--json"]
    assert cli.main(more) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["layers"], told["added"], told["nothing_added"]) == ([0, 1, 2], ["action", "turn_mean"], 0)
    found, expected = Run.open(tmp_path / "more"), Run.open(tmp_path / "whole")
    assert found.header["checkpoints"] == ["prompt", "part", "action", "turn_mean"]
    assert found.header["reread"]["tolerance"] == 2e-3
    row = {name: index for index, name in enumerate(found.episodes.episode_id)}
    for index, name in enumerate(expected.episodes.episode_id):
        ours, theirs = found.episode(row[name]).checkpoints, expected.episode(index).checkpoints
        assert [(c.name, c.position, c.tokens) for c in ours] == [(c.name, c.position, c.tokens) for c in theirs]
        np.testing.assert_allclose([c.signals for c in ours], [c.signals for c in theirs], rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(found.hidden(row[name]), expected.hidden(index), rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize(
    ("add", "words"),
    [("part", "give some of"), ("action,action", "each once"), ("action", "has such checkpoints"), (",", "name kinds")],
)
def test_kinds_that_cannot_be_added(
    played: Path, tmp_path: Path, add: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in refused(["reread", str(played), "-o", str(tmp_path / "all"), "--add", add], capsys)
    assert not (tmp_path / "all").exists()


def test_a_damaged_state_is_noticed_before_anything_is_written(
    played: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (shard,) = (played / "shards").glob("*.h5")
    with h5py.File(shard, "r+") as file:
        file["hidden/2"][:] = np.roll(file["hidden/2"][:], 1, axis=0)
    assert "comes out another at layer 2" in refused(["reread", str(played), "-o", str(tmp_path / "all")], capsys)
    assert not (tmp_path / "all").exists()
