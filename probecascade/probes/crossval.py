"""Cross-validation folds of whole groups, in which no fold lacks a class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from probecascade.errors import DataError
from probecascade.probes.inputs import as_group_codes, as_labels, both_classes

Fold = tuple[NDArray[np.intp], NDArray[np.intp]]


def grouped_folds(failed: ArrayLike, groups: Sequence[Any] | NDArray[Any], folds: int, seed: int) -> list[Fold]:
    """Stratified folds of whole groups: (train rows, test rows) each, rows ascending.

    Every test fold, hence every training set, holds both classes. That admits at most as many folds as
    there are groups with a failure or groups with a success; if `folds` is more, fewer come back.
    Which group lands where depends on the seed and the group names, not on the order of the rows.
    Raises DataError with one class, or with fewer than two groups that hold it.
    """
    labels = as_labels(failed, np.asarray(failed).size)
    both_classes(labels)
    codes = as_group_codes(groups, len(labels))
    counts = np.stack([np.bincount(codes, ~labels), np.bincount(codes, labels)], axis=1).astype(np.int64)
    with_success, with_failure = (counts > 0).sum(axis=0)
    if min(with_success, with_failure) < 2:
        raise DataError(
            f"{with_failure} groups hold a failed and {with_success} a successful episode; "
            "cross-validation needs two of each: collect more groups."
        )
    if folds < 2:
        raise DataError(f"{folds} folds were asked for; ask for two or more.")
    fold_of = _assign(counts, min(folds, int(with_success), int(with_failure)), seed)[codes]
    return [(np.flatnonzero(fold_of != f), np.flatnonzero(fold_of == f)) for f in range(int(fold_of.max()) + 1)]


def _assign(counts: NDArray[np.int64], folds: int, seed: int) -> NDArray[np.intp]:
    """Fold of each group, from its (successes, failures), (n_groups, 2).

    Each fold first gets what it must have: one group with both classes, or one of each class. The other
    groups follow, largest first, each to the fold that has the smallest share of the classes it brings.
    """
    shuffled = np.random.default_rng(seed).permutation(len(counts))
    order = shuffled[np.argsort(-counts[shuffled].sum(axis=1), kind="stable")]
    holds = counts[order] > 0
    mixed = order[holds.all(axis=1)]
    pure = [order[holds[:, c] & ~holds[:, 1 - c]] for c in (0, 1)]
    fold_of = np.full(len(counts), -1, dtype=np.intp)
    seeded = min(folds, len(mixed))
    fold_of[mixed[:seeded]] = np.arange(seeded)
    for groups_of_class in pure:
        fold_of[groups_of_class[: folds - seeded]] = np.arange(seeded, folds)
    held = np.zeros((folds, 2), dtype=np.int64)
    np.add.at(held, fold_of[fold_of >= 0], counts[fold_of >= 0])
    weight = 1.0 / counts.sum(axis=0) ** 2
    for group in order[fold_of[order] < 0]:
        crowding = held @ (counts[group] * weight)
        fold = int(np.lexsort((held.sum(axis=1), crowding))[0])
        fold_of[group] = fold
        held[fold] += counts[group]
    return fold_of
