"""The user's own words on the embedded model: extract a little, and believe the dry run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from probecascade import cli
from probecascade.store import Run

RECIPE = Path(__file__).parents[2] / "extract" / "quickstart.toml"


@pytest.mark.slow
def test_the_quickstart_recipe_on_the_embedded_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["extract", str(RECIPE), "--dry-run", "--limit", "32", "--json"]) == 0
    estimate = json.loads(capsys.readouterr().out)["bytes_per_checkpoint"]
    command = ["extract", str(RECIPE), "-o", str(tmp_path / "run"), "--limit", "32", "--json"]
    assert cli.main(command) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["episodes"] == 32
    assert not record["errors"]
    assert 0.1 < record["success_share"] < 0.9
    # A shard is closed after a minute at the latest and costs some kilobytes: a slow machine writes more of them.
    assert estimate == pytest.approx(record["bytes"] / record["checkpoints"], rel=0.1)
    run = Run.open(tmp_path / "run")
    assert run.header["model"]["model"] == "smollm2"
    assert {"prompt", "action:1", "observation:1", "part:1"} <= set(run.checkpoint_names)
