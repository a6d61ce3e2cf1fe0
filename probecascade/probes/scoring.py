"""The one scorer of linear probes: row by row, in float64, in a fixed order of summation.

A score decides whether a live episode is aborted, so it must not depend on what else is in the batch.
BLAS and `numpy.sum` choose their order of summation by shape and memory layout. Here the d products of
a row are summed by folding the row in halves: every step is an elementwise IEEE addition, so a row's
score has the same bits alone, in any batch, in any layout and from any float dtype holding its values.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from probecascade.errors import DataError

_BLOCK = 1 << 18  # float64 values folded at a time: 2 MiB, which stays in a core's cache


def row_logits(
    rows: NDArray[np.float64],
    mean: NDArray[np.float64],
    scale: NDArray[np.float64],
    weight: NDArray[np.float64],
    bias: float,
) -> NDArray[np.float64]:
    """sum_j weight_j * (x_j - mean_j) / scale_j + bias of each row x; (n, d) -> (n,)."""
    n, d = rows.shape
    width = 1 << (d - 1).bit_length()
    height = max(1, min(n, _BLOCK // width))
    logits = np.empty(n)
    buffer = np.empty((height, width))
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, n, height):
            block = rows[start : start + height]
            folded = buffer[: len(block)]
            folded[:, d:] = 0.0
            products = folded[:, :d]
            np.subtract(block, mean, out=products)
            np.divide(products, scale, out=products)
            np.multiply(products, weight, out=products)
            half = width // 2
            while half:
                left = folded[:, :half]
                left += folded[:, half : 2 * half]
                half //= 2
            logits[start : start + height] = folded[:, 0] + bias
    return logits


def row_scores(
    rows: NDArray[np.float64],
    mean: NDArray[np.float64],
    scale: NDArray[np.float64],
    weight: NDArray[np.float64],
    bias: float,
) -> NDArray[np.float64]:
    """Sigmoid of `row_logits`: P(failure) in [0, 1], (n,). Raises DataError where it overflows to NaN."""
    # scipy's expit is a scalar loop; numpy's exp may take another path for the last few of a vector.
    scores: NDArray[np.float64] = expit(row_logits(rows, mean, scale, weight, bias))
    if np.isnan(scores).any():
        bad = int(np.isnan(scores).sum())
        raise DataError(f"{bad} of {len(scores)} rows are too large to score in float64; leave those rows out.")
    return scores
