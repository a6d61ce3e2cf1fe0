from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probecascade.errors import DataError, UsageError
from probecascade.store import SPLITS, assign_split, check_disjoint

GROUPS = [f"group-{number}" for number in range(4000)]


def test_the_split_of_a_group_never_changes() -> None:
    """Golden: another machine, another Python or another release must give the same."""
    split = assign_split(["atlas-0", "atlas-1", "atlas-2", "atlas-3", "größe", ""], seed=0)
    assert split.tolist() == ["test", "fit", "calibrate", "test", "test", "test"]


@given(st.lists(st.text(), max_size=30), st.integers())
def test_a_group_has_one_split_whatever_the_company(groups: list[str], seed: int) -> None:
    together = assign_split(groups, seed=seed)
    assert together.shape == (len(groups),)
    assert together.tolist() == [assign_split([group], seed=seed)[0] for group in groups]
    check_disjoint(groups, together.tolist())


@pytest.mark.parametrize("shares", [(50, 25, 25), (80, 0, 20), (0, 0, 100)])
def test_shares_are_met_on_average(shares: tuple[int, int, int]) -> None:
    split = assign_split(GROUPS, seed=1, shares=shares)
    found = [float(np.mean(split == name)) * 100 for name in SPLITS]
    assert found == pytest.approx(list(shares), abs=3)
    assert all(share or not part for share, part in zip(shares, found, strict=True))


def test_another_seed_is_another_split() -> None:
    agree = np.mean(assign_split(GROUPS, seed=1) == assign_split(GROUPS, seed=2))
    assert agree == pytest.approx(0.5**2 + 2 * 0.25**2, abs=0.04)


@pytest.mark.parametrize("shares", [(50, 25, 24), (-10, 60, 50), (50, 50), (33.3, 33.3, 33.4), (True, 49, 50)])
def test_shares_that_are_no_percentages_are_refused(shares: Any) -> None:
    with pytest.raises(UsageError, match="sum to 100"):
        assign_split(["a"], seed=0, shares=shares)


def test_a_group_in_two_splits_is_refused() -> None:
    check_disjoint(["a", "a", "b"], ["fit", "fit", "test"])
    with pytest.raises(DataError, match="'a' is in both 'fit' and 'test'"):
        check_disjoint(["a", "b", "a"], ["fit", "fit", "test"])
    with pytest.raises(DataError, match="2 groups came with 1"):
        check_disjoint(["a", "b"], ["fit"])
