"""Sums of products for all probes: row by row, in float64, in a fixed order of summation.

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
            logits[start : start + height] = _fold(folded) + bias
    return logits


def row_products(rows: NDArray[np.float64], matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """The product rows @ matrix.T with each row's bits its own; (n, d) and (k, d) -> (n, k).

    Rows that hold NaN or infinity give what IEEE arithmetic gives, in their own row only.
    """
    n, d = rows.shape
    width = 1 << (d - 1).bit_length()
    span = max(1, min(len(matrix), _BLOCK // width))
    height = max(1, min(n, _BLOCK // (width * span)))
    products = np.empty((n, len(matrix)))
    buffer = np.empty((height, span, width))
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, n, height):
            block = rows[start : start + height, None, :]
            for first in range(0, len(matrix), span):
                part = matrix[first : first + span]
                folded = buffer[: len(block), : len(part)]
                folded[..., d:] = 0.0
                np.multiply(block, part, out=folded[..., :d])
                products[start : start + height, first : first + span] = _fold(folded)
    return products


def _fold(terms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums over the last axis, whose length is a power of two, by folding it in halves; `terms` is used up."""
    half = terms.shape[-1] // 2
    while half:
        left = terms[..., :half]
        left += terms[..., half : 2 * half]
        half //= 2
    return terms[..., 0]


def row_scores(
    rows: NDArray[np.float64],
    mean: NDArray[np.float64],
    scale: NDArray[np.float64],
    weight: NDArray[np.float64],
    bias: float,
) -> NDArray[np.float64]:
    """Sigmoid of `row_logits`: P(failure) in [0, 1], (n,). Raises DataError where it overflows to NaN."""
    return as_probabilities(row_logits(rows, mean, scale, weight, bias))


def as_probabilities(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sigmoid of logits (n,), bit for bit the same alone and in a batch. Raises DataError on NaN."""
    # scipy's expit is a scalar loop; numpy's exp may take another path for the last few of a vector.
    scores: NDArray[np.float64] = expit(logits)
    if np.isnan(scores).any():
        bad = int(np.isnan(scores).sum())
        raise DataError(f"{bad} of {len(scores)} rows are too large to score in float64; leave those rows out.")
    return scores
