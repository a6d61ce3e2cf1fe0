"""A cascade judged on a run: the numbers of a back-test, and nothing of what an episode's own probe would say of it."""

from __future__ import annotations

import numpy as np
import pytest
from page_samples import FEW, World

from probecascade.errors import CascadeError
from probecascade.evaluation import backtest_run
from probecascade.policies import Cascade
from probecascade.report import Judged
from probecascade.report.browser import browser_record
from probecascade.store import assign_split


@pytest.fixture(scope="module")
def judged(world: World) -> Judged:
    return Judged.of(world.cascade, world.run, resampling=FEW)


def test_it_is_judged_as_a_back_test_of_the_test_split_judges(world: World, judged: Judged) -> None:
    expected = backtest_run(world.cascade, world.run, "test", resampling=FEW)
    assert judged.result is not None
    assert (judged.result.caught, judged.result.kept) == (expected.caught, expected.kept)
    assert judged.result.saved["tokens"] == expected.saved["tokens"]
    assert judged.result.first == expected.first == tuple(judged.first[judged.use].tolist())


def test_parts_are_those_of_the_split(world: World, judged: Judged) -> None:
    episodes = world.run.episodes
    split = assign_split(episodes.group.tolist(), seed=0)
    known = episodes.labelled
    assert judged.part[known].tolist() == split[known].tolist()
    assert judged.use.tolist() == (known & (split == "test")).tolist()
    assert judged.targets.keep is not None
    assert float(judged.targets.keep) == 0.8


def test_of_another_run_every_episode_is_fresh(world: World) -> None:
    bare = Cascade(world.cascade.gates, provenance={**world.cascade.provenance, "groups": {}})
    judged = Judged.of(bare, world.run, resampling=FEW)
    assert set(judged.part.tolist()) == {"test"}
    assert judged.use.tolist() == world.run.episodes.labelled.tolist()


def test_another_model_is_refused(world: World) -> None:
    foreign = Cascade(world.cascade.gates, provenance={"run": {"n_layers": 99}})
    with pytest.raises(CascadeError, match="n_layers 99"):
        Judged.of(foreign, world.run)
    assert Judged.of(foreign, world.run, force=True, resampling=FEW).result is not None


def test_the_browser_shows_held_out_scores_alone(world: World, judged: Judged) -> None:
    record = browser_record(world.run, np.full(len(world.run), ""), world.sweep.scores, judged)
    names, gates = record["checkpoints"], [gate["name"] for gate in record["gates"]]
    parts = set()
    for index, episode in enumerate(record["episodes"]):
        parts.add(episode["part"])
        assert (episode["abort"] is None) == (episode["part"] == "fit")
        for place, _, _, held_out, own in episode["points"]:
            name = names[place]
            swept = world.sweep.scores[name][index] if name in world.sweep.scores else np.nan
            assert held_out == (None if np.isnan(swept) else pytest.approx(swept, abs=1e-4))
            if episode["part"] == "fit" or name not in gates:
                assert own is None
            else:
                score = judged.table.scores[index, gates.index(name)]
                assert own == (None if np.isnan(score) else pytest.approx(score, abs=1e-4))
    assert parts == {"fit", "calibrate", "test"}


def test_what_an_abort_saves_is_told(world: World, judged: Judged) -> None:
    record = browser_record(world.run, np.full(len(world.run), ""), world.sweep.scores, judged)
    aborted = [(i, e) for i, e in enumerate(record["episodes"]) if e["abort"] is not None and e["abort"] >= 0]
    assert aborted
    for index, episode in aborted:
        at = record["checkpoints"].index(judged.gates[episode["abort"]])
        (spent,) = [tokens for place, _, tokens, _, _ in episode["points"] if place == at]
        assert episode["saved"][0] == world.run.episodes.tokens[index] - spent


def test_a_limit_is_spread_over_the_run(world: World) -> None:
    record = browser_record(world.run, np.full(len(world.run), ""), world.sweep.scores, None, limit=5)
    ids = world.run.episodes.episode_id
    assert [episode["id"] for episode in record["episodes"]] == [ids[k] for k in (0, 40, 80, 120, 160)]
    assert record["of"] == 161
    assert record["gates"] == []
