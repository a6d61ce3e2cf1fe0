"""Cross-validated L2 logistic regression on many layers over shared folds, the strength chosen inside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from probecascade.errors import DataError, UsageError
from probecascade.probes.crossval import Fold, grouped_folds
from probecascade.probes.fit import STRENGTHS
from probecascade.probes.inputs import as_labels, as_matrix, both_classes
from probecascade.probes.metrics import auroc
from probecascade.probes.solver import log_odds, logistic_path

Array = NDArray[np.float64]
Labels = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class BatchedScores:
    """What a sweep over layers returns; rows are in the order in which `read` gives them.

    layers: as given. strengths: rising values of C. scores: (n_layers, n), out-of-fold P(failure). chosen:
    (n_layers, n_folds), the C of each fold. train_auroc: (n_layers, n_folds), cross-validated AUROC within
    the training rows of each fold at its chosen C, by which a layer can be chosen without a look at the
    fold's test rows; NaN where nothing was cross-validated there.
    """

    layers: tuple[int, ...]
    strengths: tuple[float, ...]
    scores: Array
    chosen: Array
    train_auroc: Array


def sweep_layers(
    read: Callable[[int], ArrayLike],
    layers: Sequence[int],
    failed: ArrayLike,
    groups: Sequence[Any] | NDArray[Any],
    *,
    folds: Sequence[Fold],
    strengths: Sequence[float] = STRENGTHS,
    inner_folds: int | None = 3,
    seed: int = 0,
) -> BatchedScores:
    """Out-of-fold scores of every layer on shared folds, strengths chosen within each fold's training rows.

    read(layer): states (n, d), called once per layer and let go before the next. failed, groups: (n,).
    folds: (train rows, test rows) each, as `grouped_folds` makes them. The strength with the least mean
    log-loss over `inner_folds` grouped folds of a fold's training rows wins, the smaller C on a tie; a fold
    whose training rows cannot be split so, because fewer than two groups hold a class, takes the smallest.
    inner_folds None: one strength per layer, chosen on `folds` themselves, hence slightly optimistic.
    Raises DataError on bad states, labels or folds, UsageError on strengths that are not positive.
    """
    labels = as_labels(failed, np.asarray(failed).size)
    both_classes(labels)
    names = np.asarray(groups)
    path = tuple(sorted(set(strengths)))
    if not path or not all(0 < c < float("inf") for c in path):
        raise UsageError(f"The strengths {tuple(strengths)} were given; give one or more positive finite numbers.")
    if not np.array_equal(np.sort(np.concatenate([test for _, test in folds])), np.arange(len(labels))):
        raise DataError("The folds do not test each row exactly once; make them with grouped_folds.")
    inner = [_inner(labels, names, train, inner_folds, seed) for train, _ in folds]
    scores = np.empty((len(layers), len(labels)))
    chosen = np.empty((len(layers), len(folds)))
    train_auroc = np.full((len(layers), len(folds)), np.nan)
    for i, layer in enumerate(layers):
        rows = as_matrix(read(layer), f"states of layer {layer}")
        outer = _held_out(rows, labels, folds, path)
        common = int(np.argmin(_loss(outer, labels)))
        for f, (train, test) in enumerate(folds):
            best = 0 if inner_folds is not None else common
            if inner[f]:
                held_out = _held_out(rows[train], labels[train], inner[f], path)
                best = int(np.argmin(_loss(held_out, labels[train])))
                train_auroc[i, f] = auroc(held_out[best], labels[train])
            scores[i, test] = expit(outer[best, test])
            chosen[i, f] = path[best]
    return BatchedScores(tuple(layers), path, scores, chosen, train_auroc)


def _inner(failed: Labels, groups: NDArray[Any], train: NDArray[np.intp], folds: int | None, seed: int) -> list[Fold]:
    if folds is None:
        return []
    kept = [len(np.unique(groups[train[failed[train] == label]])) for label in (False, True)]
    return grouped_folds(failed[train], groups[train], folds, seed) if min(kept) >= 2 else []


def _held_out(rows: Array, failed: Labels, folds: Sequence[Fold], strengths: tuple[float, ...]) -> Array:
    logits = np.empty((len(strengths), len(rows)))
    for train, test in folds:
        mean, scale = rows[train].mean(axis=0), rows[train].std(axis=0)
        constant = scale <= len(train) * np.finfo(np.float64).eps * np.abs(mean)
        mean[constant], scale[constant] = rows[train[0], constant], 1.0
        weights, biases = logistic_path((rows[train] - mean) / scale, failed[train], strengths)
        shift = log_odds(failed) - log_odds(failed[train])
        logits[:, test] = (((rows[test] - mean) / scale) @ weights + biases + shift).T
    return logits


def _loss(logits: Array, failed: Labels) -> Array:
    return np.asarray(np.logaddexp(0.0, np.where(failed, -logits, logits)).sum(axis=1))
