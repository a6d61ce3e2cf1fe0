"""Checks that rows, labels and groups pass before anything is computed from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from probecascade.errors import DataError


def as_matrix(rows: ArrayLike, what: str) -> NDArray[np.float64]:
    """Real, finite rows as float64, (n, width). Raises DataError naming `what` otherwise."""
    matrix = _as_real(rows, what)
    finite = np.isfinite(matrix)
    if not finite.all():
        bad = int((~finite.all(axis=1)).sum())
        raise DataError(f"{bad} of {len(matrix)} {what} hold NaN or infinity; leave those rows out.")
    return matrix


def as_blocks(rows: ArrayLike, what: str, blocks: int) -> NDArray[np.float64]:
    """Real rows as float64, (n, blocks * d), of which a block may be missing: all NaN, but not all blocks.

    Raises DataError naming `what` where the width is no multiple of `blocks`, a block is NaN in part or
    infinite, or a row has no block at all.
    """
    matrix = _as_real(rows, what)
    if not matrix.shape[1] or matrix.shape[1] % blocks:
        raise DataError(f"{what} have width {matrix.shape[1]}, no multiple of their {blocks} taps; give equal blocks.")
    parts = matrix.reshape(len(matrix), blocks, matrix.shape[1] // blocks)
    present = np.asarray(np.isfinite(parts).all(axis=2))
    missing = np.asarray(np.isnan(parts).all(axis=2))
    sound = (present | missing).all(axis=1) & present.any(axis=1)
    if not sound.all():
        bad = int((~sound).sum())
        raise DataError(
            f"{bad} of {len(matrix)} {what} hold infinity, a block that is NaN in part, or nothing but NaN; "
            "leave those rows out."
        )
    return matrix


def _as_real(rows: ArrayLike, what: str) -> NDArray[np.float64]:
    given = np.asarray(rows)
    if given.dtype.kind not in "fiub":
        raise DataError(f"{what} have dtype {given.dtype}; give real numbers (float16, float32 or float64).")
    if given.ndim != 2:
        raise DataError(f"{what} have shape {given.shape}; give one row per checkpoint, shape (n, width).")
    return given.astype(np.float64, copy=False)


def as_scores(scores: ArrayLike) -> NDArray[np.float64]:
    """Scores as float64, (n,). Raises DataError where one is not finite."""
    given = np.asarray(scores, dtype=np.float64)
    if given.ndim != 1:
        raise DataError(f"Scores have shape {given.shape}; give one score per episode, shape (n,).")
    if not np.isfinite(given).all():
        bad = int((~np.isfinite(given)).sum())
        raise DataError(f"{bad} of {len(given)} scores are NaN or infinite; leave those episodes out.")
    return given


def as_labels(failed: ArrayLike, n: int) -> NDArray[np.bool_]:
    """Labels as booleans, (n,), True where the episode failed. Raises DataError unless they are 0/1."""
    given = np.asarray(failed)
    if given.shape != (n,):
        raise DataError(f"Labels have shape {given.shape} for {n} rows; give one label per row.")
    if not np.isin(given, (0, 1)).all():
        raise DataError("Labels hold values other than 0 and 1; give True for failed, False for succeeded.")
    return given.astype(np.bool_)


def both_classes(failed: NDArray[np.bool_]) -> tuple[int, int]:
    """Number of failed and of successful episodes. Raises DataError unless there is one of each."""
    n_failed = int(failed.sum())
    n_success = len(failed) - n_failed
    if not n_failed or not n_success:
        raise DataError(
            f"The labels hold {n_failed} failed and {n_success} successful episodes; "
            "at least one of each is needed: collect more episodes."
        )
    return n_failed, n_success


def as_group_codes(groups: Sequence[Any] | NDArray[Any], n: int) -> NDArray[np.intp]:
    """Groups as codes 0..n_groups-1 in sorted order of their names, (n,). DataError on another shape."""
    given = np.asarray(groups)
    if given.shape != (n,):
        raise DataError(f"Groups have shape {given.shape} for {n} rows; give one group name per row.")
    if given.dtype.kind == "O":
        given = given.astype(str)
    return np.unique(given, return_inverse=True)[1].reshape(-1)
