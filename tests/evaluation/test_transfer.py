"""Does it travel: what a wording does to states shows in the matrix, and nothing shows where nothing changed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from made_runs import HEADER, make_episode
from varied_runs import Change, make_varied, rotated, same, stretched

from probecascade.episode import SIGNALS, Recording
from probecascade.errors import DataError, StoreError, UsageError
from probecascade.evaluation import PooledRuns, TransferMatrix, transfer_matrix
from probecascade.evaluation.pooled import PooledRows
from probecascade.evaluation.transfer import EVERY, OTHERS
from probecascade.intervals import Resampling
from probecascade.store import Run, RunWriter

FEW = Resampling(resamples=200)


def matrix(run: Run, by: str = "wording", **options: object) -> TransferMatrix:
    pool = PooledRuns([run])
    return transfer_matrix(pool, pool.by_value(by), "action:2", resampling=FEW, **options)  # type: ignore[arg-type]


def made(path: Path, *changes: Change, **options: object) -> Run:
    names = ("plain", "polite", "terse")
    return make_varied(path, dict(zip(names, changes, strict=False)), **options)  # type: ignore[arg-type]


def values(found: TransferMatrix, *, home: bool) -> np.ndarray:
    return np.array(
        [c.auroc["value"] for c in found.cells if c.train in found.kinds and (c.train == c.test) == home], np.float64
    )


def mass_mean(read, layers, failed, codes, *, folds, **_):  # type: ignore[no-untyped-def]
    """Differences of class means in place of ridge probes, so that many worlds take seconds."""
    scores = np.zeros((1, len(failed)))
    states = read(layers[0]).astype(np.float64)
    for train, test in folds:
        lost, won = (states[train[failed[train] == label]].mean(axis=0) for label in (True, False))
        scores[0, test] = (states[test] - (lost + won) / 2) @ (lost - won)
    return SimpleNamespace(scores=1 / (1 + np.exp(-scores)), train_auroc=np.ones((1, len(folds))), layers=layers[:1])


# --- what it must tell apart ------------------------------------------------------------------------------------------


def test_kinds_that_are_told_apart_without_a_slip_still_have_an_interval(tmp_path: Path) -> None:
    """Resamples of an AUROC of one do not move, which is no certainty."""
    with RunWriter(tmp_path / "run", HEADER, layers=(4,), d_model=1, dtype="float32") as writer:
        for g in range(100):
            failed = g % 2 == 0
            episode = make_episode(f"task-{g}", f"group-{g}", failed=failed, rounds=3)
            episode = replace(episode, attributes={"wording": "plain" if g % 4 < 2 else "terse"})
            states = np.full((len(episode.checkpoints), 1, 1), 1.0 if failed else -1.0, dtype=np.float32)
            writer.add(Recording(episode, states))
    found = matrix(Run.open(tmp_path / "run"))
    for loss in (found.loss, found.cell("plain", "terse").loss):
        assert loss is not None
        assert loss["value"] == 0.0
        assert -1 <= loss["low"] < -0.05 < 0.05 < loss["high"] <= 1


def test_the_same_distribution_gives_a_flat_matrix(tmp_path: Path) -> None:
    found = matrix(made(tmp_path / "run", same, same, same))
    assert found.loss["low"] < 0 < found.loss["high"]
    assert abs(found.loss["value"]) < 0.05
    assert "loses nothing sure" in found.verdict()
    assert min(values(found, home=True).min(), values(found, home=False).min()) > 0.7
    for cell in found.cells:
        assert cell.loss is None or cell.loss["low"] < 0.05  # no cell is far from home, and none is by much


def null_matrix(seed: int, loudness: float) -> TransferMatrix:
    """Two kinds of 60 episodes each, alike in everything."""
    rng = np.random.default_rng((9, seed))
    failed = rng.permutation(np.arange(120) % 4 < 2)
    states = rng.normal(size=(120, 16))
    states[:, 0] += loudness * np.where(failed, 1, -1)
    signals = rng.random((120, len(SIGNALS)))
    rows = PooledRows("part:1", False, np.arange(120), failed, np.arange(120), signals, lambda _: states)
    kinds = {kind: np.arange(120) % 2 == number for number, kind in enumerate("ab")}
    pool = SimpleNamespace(rows=lambda _: rows, layers=(0,), n_layers=1)
    return transfer_matrix(pool, kinds, "part:1", mixtures=False, resampling=FEW)  # type: ignore[arg-type]


def test_no_difference_is_called_one_as_seldom_as_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resamples of the scores as they are, without the factor, claim too often in the very same worlds."""
    monkeypatch.setattr("probecascade.evaluation.transfer.sweep_layers", mass_mean)
    claims = as_they_are = 0
    for seed in range(48):
        value, low, high = (null_matrix(seed, 0.3).loss[key] for key in ("value", "low", "high"))
        claims += not low <= 0 <= high
        as_they_are += not value + (low - value) / 1.75 <= 0 <= value + (high - value) / 1.75
    assert claims <= 5  # at a true rate of .05, more happen once in 29
    assert as_they_are > claims


def test_noise_is_no_gain_away_from_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """A home probe that ranks backwards by chance leaves a loss below zero, and no probe above chance."""
    monkeypatch.setattr("probecascade.evaluation.transfer.sweep_layers", mass_mean)
    matrices = [null_matrix(seed, 0.0) for seed in range(16)]
    below = [found for found in matrices if found.loss["high"] < 0]
    assert below
    assert not any("gains rather" in found.verdict() for found in matrices)
    assert not any("gains rather" in found.verdict("a", "b") for found in matrices)
    assert any("has nothing to lose, since none is above chance" in found.verdict() for found in below)


def test_a_gain_of_a_probe_above_chance_is_called_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probecascade.evaluation.transfer.sweep_layers", mass_mean)
    found = null_matrix(0, 2.0)
    lower = replace(found, loss={"value": -0.2, "low": -0.3, "high": -0.1})
    assert "gains rather than loses (-0.200 [-0.300, -0.100] of AUROC lost)" in lower.verdict()
    blind = replace(lower, cells=tuple(replace(cell, above_chance=False) for cell in lower.cells))
    assert "has nothing to lose" in blind.verdict()


def test_stretched_states_lose_away_from_home_and_not_at_home(tmp_path: Path) -> None:
    found = matrix(made(tmp_path / "run", same, stretched(1), stretched(2)))
    assert found.loss["low"] > 0.05
    assert "a probe loses 0." in found.verdict()
    assert values(found, home=True).min() > 0.7
    assert values(found, home=False).mean() < values(found, home=True).mean() - 0.1
    # What a wording does to states it does not do to what the transcript shows.
    assert found.surface_loss["low"] < 0.05
    kept = {home: [c.kept["value"] for c in found.cells if (c.train == c.test) == home] for home in (True, False)}
    assert min(kept[True]) > 0.85
    assert min(kept[False]) < 0.5  # the promise does not travel


def test_rotated_states_are_at_chance_away_from_home(tmp_path: Path) -> None:
    found = matrix(made(tmp_path / "run", same, rotated(1), rotated(2)))
    assert values(found, home=True).min() > 0.7
    assert abs(values(found, home=False).mean() - 0.5) < 0.08


def test_training_on_a_mixture_mends_what_one_kind_alone_cannot(tmp_path: Path) -> None:
    """Two features tell failure, and each wording spoils one of them in its own way."""

    def spoiled(feature: int) -> Change:
        def change(states: np.ndarray) -> np.ndarray:
            both = states.copy()
            both[:, 1] = states[:, 0] + np.random.default_rng(len(states)).normal(size=len(states)) * 0.1
            both[:, feature] *= -1
            return both

        return change

    found = matrix(made(tmp_path / "run", same, spoiled(0), spoiled(1)), layers=[2])
    alone = [found.cell(row, kind).auroc["value"] for row in found.kinds for kind in found.kinds if row != kind]
    assert min(alone) < 0.35  # a sign learnt elsewhere points the wrong way
    assert min(found.cell(EVERY, kind).auroc["value"] for kind in found.kinds) > min(alone) + 0.1


# --- how it is made ---------------------------------------------------------------------------------------------------


def test_rows_are_of_one_size_and_no_group_is_on_both_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from probecascade.evaluation import transfer as module

    seen = []
    swept = module.sweep_layers

    def spy(read, layers, failed, codes, *, folds, **options):  # type: ignore[no-untyped-def]
        seen.append((codes, folds))
        return swept(read, layers, failed, codes, folds=folds, **options)

    monkeypatch.setattr(module, "sweep_layers", spy)
    run = make_varied(tmp_path / "run", {"plain": same, "terse": same, "polite": same}, groups=60)
    few = run.attributes("wording") != "terse"
    few |= np.arange(len(run)) % 3 > 0  # the terse ones are fewer
    pool = PooledRuns([run])
    kinds = {kind: mask & few for kind, mask in pool.by_value("wording").items()}
    found = transfer_matrix(pool, kinds, "action:2", resampling=FEW, folds=4)
    assert len(seen) == 2 * (3 + 1 + 3)  # states and surface; kinds, their mixture, and all others of each
    for codes, folds in seen:
        assert tuple(len(train) for train, _ in folds) == found.train_size
        for train, test in folds:
            assert not set(codes[train]) & set(codes[test])
    assert found.rows == ("plain", "polite", "terse", EVERY, OTHERS)
    assert max(found.train_size) <= 40


def test_two_kinds_need_no_row_of_all_others(tmp_path: Path) -> None:
    run = made(tmp_path / "run", same, same, groups=60)
    assert matrix(run).rows == ("plain", "polite", EVERY)
    assert matrix(run, mixtures=False).rows == ("plain", "polite")


def test_a_threshold_keeps_its_share_where_it_was_set(tmp_path: Path) -> None:
    found = matrix(made(tmp_path / "run", same, same, groups=150), keep="0.9")
    assert found.keep == "90 %"
    for cell in found.cells:
        assert cell.kept["n"] == cell.n - cell.failed
        assert cell.caught["n"] == cell.failed
        assert abs(cell.kept["value"] - 0.9) < 0.09
        assert cell.caught["value"] > 0.3


def test_it_is_the_same_twice_and_another_with_another_seed(tmp_path: Path) -> None:
    run = made(tmp_path / "run", same, stretched(1), groups=60)
    assert matrix(run, seed=3).record() == matrix(run, seed=3).record()
    assert matrix(run, seed=3).record() != matrix(run, seed=4).record()
    json.dumps(matrix(run).record(), allow_nan=False)


def test_several_runs_are_one_table(tmp_path: Path) -> None:
    one = make_varied(tmp_path / "one", {"plain": same}, groups=70)
    two = make_varied(tmp_path / "two", {"terse": stretched(1)}, groups=70)
    both = make_varied(tmp_path / "both", {"plain": same, "terse": same}, groups=40, seed=2)
    pool = PooledRuns([one, two])
    assert list(pool.by_value("run")) == ["one", "two"]
    assert (pool.by_value("run")["one"] == pool.by_value("wording")["plain"]).all()
    assert len(np.unique(pool.codes)) == 70  # the same groups in both runs
    rows = pool.rows("action:2")
    np.testing.assert_array_equal(rows.read(2), np.concatenate([one.states("action:2", 2), two.states("action:2", 2)]))
    np.testing.assert_array_equal(rows.episode, np.arange(140))
    found = transfer_matrix(pool, pool.by_value("run"), "action:2", resampling=FEW)
    assert found.kinds == ("one", "two")
    three = PooledRuns([one, two, both])
    assert len(three) == 220
    assert three.by_value("wording")["terse"].sum() == 110


def test_conditions_pick_episodes_by_text_and_by_number(tmp_path: Path) -> None:
    pool = PooledRuns([made(tmp_path / "run", same, same, groups=50)])
    cold = pool.matching({"temperature": "0.10"})
    assert cold.sum() == 50
    assert pool.matching({"wording": "plain", "temperature": "0.5"}).sum() == 25
    assert list(pool.by_value("temperature")) == ["0.1", "0.5"]
    assert list(pool.by_value("seed")) == ["0", "1"]
    with pytest.raises(UsageError, match=r"no episode has wording = rude: the values are plain, polite\."):
        pool.matching({"wording": "rude"})


def with_values(path: Path, *values: object) -> Run:
    """One episode for each value of the attribute `site`."""
    with RunWriter(path, HEADER, layers=(0, 2), d_model=3, dtype="float32") as writer:
        for number, value in enumerate(values):
            episode = make_episode(f"task-{number}", f"group-{number}", failed=number % 2 == 0, rounds=3)
            states = np.ones((len(episode.checkpoints), 2, 3), dtype=np.float32)
            writer.add(Recording(replace(episode, attributes={"site": value}), states))
    return Run.open(path)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.12345671, 0.1234567], ["0.1234567", "0.12345671"]),
        ([10**400, 10**400 + 1, -(10**400)], [f"-1{'0' * 400}", f"1{'0' * 400}", f"1{'0' * 399}1"]),
        ([1, 1.0, True, "1", "true"], ["1", '"1"', '"true"', "true"]),
        ([1e300, 2.0, 10**16, 1e16], ["2", "10000000000000000", "1e+300"]),
        (["all kinds", "all others", '"all kinds"', "b"], [r'"\"all kinds\""', '"all kinds"', '"all others"', "b"]),
        ([["x"], '["x"]', {"b": 1, "a": 2}, {"a": 2, "b": 1}], ['"[\\"x\\"]"', '["x"]', '{"a": 2, "b": 1}']),
    ],
)
def test_no_two_values_are_one_kind_and_none_is_a_mixture(
    tmp_path: Path, values: list[object], expected: list[str]
) -> None:
    pool = PooledRuns([with_values(tmp_path / "run", *values)])
    kinds = pool.by_value("site")
    assert list(kinds) == expected
    assert np.sum(list(kinds.values()), axis=0).tolist() == [1] * len(values)
    for kind, mask in kinds.items():
        np.testing.assert_array_equal(pool.matching({"site": kind}), mask)


def test_text_in_quotes_is_text_and_numbers_are_told_apart_to_the_last_digit(tmp_path: Path) -> None:
    values = [0.1234567, 0.12345671, "Paris, Texas", 5, "5", 10**400, 10**400 + 1]
    pool = PooledRuns([with_values(tmp_path / "run", *values)])
    for wanted, place in (
        ("0.12345670", 0),
        ("0.12345671", 1),
        ('"Paris, Texas"', 2),
        ("5.0", 3),
        ('"5"', 4),
        (str(10**400 + 1), 6),
    ):
        assert np.flatnonzero(pool.matching({"site": wanted})).tolist() == [place]
    with pytest.raises(UsageError, match=r"no episode has site = \"7: the values are 0\.1234567, "):
        pool.matching({"site": '"7'})


def test_an_error_lists_a_dozen_values_and_counts_the_others(tmp_path: Path) -> None:
    pool = PooledRuns([with_values(tmp_path / "run", *range(30))])
    with pytest.raises(UsageError, match=r"the values are 0, 1, .*, 11 and 18 more\."):
        pool.matching({"site": "x"})


def test_folders_of_one_name_are_told_apart_by_those_above(tmp_path: Path) -> None:
    runs = [with_values(tmp_path / name / "run", 1, 2) for name in ("cold", "warm")]
    pool = PooledRuns(runs)
    assert {kind: mask.tolist() for kind, mask in pool.by_value("run").items()} == {
        "cold/run": [True, True, False, False],
        "warm/run": [False, False, True, True],
    }
    assert pool.matching({"run": "warm/run"}).tolist() == [False, False, True, True]
    with pytest.raises(UsageError, match=r"run' is given twice: give each run once"):
        PooledRuns([runs[0], Run.open(tmp_path / "warm" / ".." / "cold" / "run")])


# --- what is refused --------------------------------------------------------------------------------------------------


def test_kinds_that_are_too_small_are_left_out_and_named(tmp_path: Path) -> None:
    run = made(tmp_path / "run", same, same, same, groups=60)
    pool = PooledRuns([run])
    kinds = pool.by_value("wording")
    kinds["terse"] &= np.arange(len(run)) % 6 == 0
    found = transfer_matrix(pool, kinds, "action:2", resampling=FEW)
    assert found.kinds == ("plain", "polite")
    assert "terse (" in found.notes[0]
    assert "fewer than 20 groups of a class" in found.notes[0]
    assert len(found.notes) == 1
    kinds["polite"] &= kinds["plain"]
    with pytest.raises(DataError, match="needs two kinds with 20 failed and 20 successful groups each and finds plain"):
        transfer_matrix(pool, kinds, "action:2", resampling=FEW)


def test_one_kind_under_two_names_and_a_kind_called_like_a_mixture_are_refused(tmp_path: Path) -> None:
    pool = PooledRuns([made(tmp_path / "run", same, same, groups=50)])
    kinds = pool.by_value("wording")
    with pytest.raises(UsageError, match="plain and again are the very same episodes at action:2"):
        transfer_matrix(pool, {**kinds, "again": kinds["plain"]}, "action:2", resampling=FEW)
    with pytest.raises(UsageError, match="a kind is called 'all others', which is the name of a mixture"):
        transfer_matrix(pool, {**kinds, OTHERS: kinds["plain"]}, "action:2", resampling=FEW)


def test_unknown_checkpoints_layers_and_attributes_are_refused(tmp_path: Path) -> None:
    run = made(tmp_path / "run", same, same, groups=50)
    pool = PooledRuns([run])
    with pytest.raises(StoreError, match="checkpoint 'action:9' is not in"):
        transfer_matrix(pool, pool.by_value("wording"), "action:9", resampling=FEW)
    with pytest.raises(StoreError, match="layer 1 is not stored"):
        matrix(run, layers=[1])
    with pytest.raises(UsageError, match="did you mean 'wording'"):
        pool.by_value("wordings")
    with pytest.raises(UsageError, match="no run was given"):
        PooledRuns([])


def test_runs_of_other_models_or_layers_do_not_mix(tmp_path: Path) -> None:
    one = make_varied(tmp_path / "one", {"plain": same}, groups=5)
    other = {**HEADER, "model": {**HEADER["model"], "weights": "sha256:9"}}  # type: ignore[dict-item]
    two = make_varied(tmp_path / "two", {"plain": same}, groups=5, header=other)
    with pytest.raises(DataError, match="differ in model"):
        PooledRuns([one, two])
    three = Run(one.path, {**one.header, "layers": [0]}, ())
    with pytest.raises(UsageError, match=r"holds layers \[0\] of width 24"):
        PooledRuns([one, three])


def test_the_closing_turn_is_left_out_where_others_come_to_the_checkpoint(tmp_path: Path) -> None:
    run = made(tmp_path / "run", same, same, groups=50)
    pool = PooledRuns([run])
    assert not pool.rows("action:2").closing
    assert pool.rows("action:4").closing  # every episode ends there
    assert len(pool.rows("action:4").episode) == len(run)
