"""Which episodes fit, calibrate and test: whole groups, by a hash that depends on nothing but group and
seed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from probecascade.errors import DataError, UsageError

SPLITS = ("fit", "calibrate", "test")


def assign_split(groups: Sequence[str], *, seed: int, shares: tuple[int, int, int] = (50, 25, 25)) -> NDArray[np.str_]:
    """Split of each group, (n,) of names in `SPLITS`, in the order given.

    A group's split is the same on every machine and whatever other groups are present, so a run that grows
    never moves a group. `shares` are whole percentages that sum to 100; the groups follow them only on
    average. UsageError if the shares are wrong.
    """
    whole = all(isinstance(share, int) and not isinstance(share, bool) for share in shares)
    if len(shares) != len(SPLITS) or not whole or min(shares) < 0 or sum(shares) != 100:
        raise UsageError(
            f"split shares {shares!r} are not three whole percentages that sum to 100; give for example 50,25,25."
        )
    split_of = {group: _split_of(group, seed, shares) for group in set(groups)}
    return np.array([split_of[group] for group in groups], dtype=np.str_)


def _split_of(group: str, seed: int, shares: tuple[int, int, int]) -> str:
    digest = hashlib.sha256(f"{seed}\0{group}".encode("utf-8", "surrogatepass")).digest()
    percent = int.from_bytes(digest[:8], "big") * 100 >> 64
    if percent < shares[0]:
        return SPLITS[0]
    return SPLITS[1] if percent < shares[0] + shares[1] else SPLITS[2]


def check_disjoint(groups: Sequence[str], splits: Sequence[str]) -> None:
    """Refuse an assignment, one split per row, that puts a group in two splits. DataError names the group."""
    if len(groups) != len(splits):
        raise DataError(f"{len(groups)} groups came with {len(splits)} splits; give one split for each row.")
    seen: dict[str, str] = {}
    for group, split in zip(groups, splits, strict=True):
        first = seen.setdefault(group, split)
        if first != split:
            raise DataError(
                f"group {str(group)!r} is in both {str(first)!r} and {str(split)!r}; all episodes of a group "
                "must be in one split, or the test numbers leak."
            )
