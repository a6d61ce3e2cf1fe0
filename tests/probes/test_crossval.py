from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedGroupKFold

from probecascade.errors import DataError
from probecascade.probes import grouped_folds
from probecascade.probes.crossval import Fold


def check_folds(folds: list[Fold], failed: NDArray[np.bool_], groups: NDArray[np.int64]) -> None:
    everything = np.arange(len(failed))
    assert np.array_equal(np.sort(np.concatenate([test for _, test in folds])), everything)
    for train, test in folds:
        assert np.array_equal(np.sort(np.concatenate([train, test])), everything)
        assert not set(groups[train]) & set(groups[test])
        for part in (train, test):
            assert 0 < failed[part].sum() < len(part)


@settings(max_examples=200, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 25), st.booleans()), min_size=1, max_size=120),
    folds=st.integers(2, 7),
    seed=st.integers(0, 5),
)
def test_every_fold_holds_whole_groups_and_both_classes_or_there_are_none(
    rows: list[tuple[int, bool]], folds: int, seed: int
) -> None:
    groups = np.array([g for g, _ in rows])
    failed = np.array([f for _, f in rows])
    possible = min(len(set(groups[failed])), len(set(groups[~failed])))
    if possible < 2:
        with pytest.raises(DataError):
            grouped_folds(failed, groups, folds, seed)
        return
    made = grouped_folds(failed, groups, folds, seed)
    assert len(made) == min(folds, possible)
    check_folds(made, failed, groups)


def test_three_failures_in_three_hundred_give_three_folds() -> None:
    failed = np.zeros(300, dtype=bool)
    failed[[10, 100, 200]] = True
    groups = np.arange(300)
    made = grouped_folds(failed, groups, 5, 0)
    assert len(made) == 3
    assert sorted(len(test) for _, test in made) == [100, 100, 100]
    check_folds(made, failed, groups)


def test_folds_are_sound_where_those_of_scikit_learn_lack_a_class() -> None:
    counts = [(3, 17), (1, 5), (1, 1), (2, 0)]  # (failed, successful) of each group
    failed = np.concatenate([np.repeat([True, False], pair) for pair in counts])
    groups = np.repeat(np.arange(4), [sum(pair) for pair in counts])
    theirs = [failed[test] for _, test in StratifiedGroupKFold(3).split(groups, failed, groups)]
    assert any(labels.all() for labels in theirs)
    made = grouped_folds(failed, groups, 3, 0)
    assert len(made) == 3
    check_folds(made, failed, groups)


def test_folds_are_stratified() -> None:
    rng = np.random.default_rng(0)
    failed, groups = rng.random(500) < 0.3, np.arange(500)
    shares = [failed[test].sum() for _, test in grouped_folds(failed, groups, 5, 0)]
    assert max(shares) - min(shares) <= 1
    groups = np.repeat(np.arange(100), 5)
    failed = rng.random(500) < np.repeat(rng.random(100), 5)
    made = grouped_folds(failed, groups, 5, 0)
    assert {len(test) for _, test in made} == {100}
    assert np.ptp([failed[test].mean() for _, test in made]) < 0.05


def test_the_seed_and_not_the_order_of_rows_decides() -> None:
    rng = np.random.default_rng(0)
    groups = np.array([f"task-{g}" for g in rng.integers(0, 60, size=200)])
    failed = rng.random(200) < 0.5
    order = rng.permutation(200)

    def partition(failed: NDArray[np.bool_], groups: NDArray[np.str_], seed: int) -> set[frozenset[str]]:
        return {frozenset(groups[test].tolist()) for _, test in grouped_folds(failed, groups, 5, seed)}

    assert partition(failed, groups, 3) == partition(failed[order], groups[order], 3)
    assert partition(failed, groups, 3) != partition(failed, groups, 4)


@pytest.mark.parametrize(
    ("failed", "groups", "message"),
    [
        ([], [], "0 failed and 0 successful"),
        ([1, 1, 1], [0, 1, 2], "3 failed and 0 successful"),
        ([1, 1, 0, 0], [0, 0, 1, 2], "1 groups hold a failed and 2 a successful"),
        ([1, 0, 0, 1], [0, 0, 1], "Groups have shape"),
        ([0, 1, 2], [0, 1, 2], "other than 0 and 1"),
        ([[0, 1]], [0, 1], "Labels have shape"),
    ],
)
def test_data_that_admit_no_folds_are_refused(failed: list[int], groups: list[int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        grouped_folds(failed, groups, 5, 0)


def test_one_fold_is_refused() -> None:
    with pytest.raises(DataError, match="1 folds were asked for"):
        grouped_folds([0, 1, 0, 1], [0, 1, 2, 3], 1, 0)
