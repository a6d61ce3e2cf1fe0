"""Cross-validated L2 logistic regression on many layers over shared folds, the strength chosen inside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit
from threadpoolctl import threadpool_limits

from probecascade.errors import DataError, UsageError
from probecascade.probes.crossval import Fold, grouped_folds
from probecascade.probes.design import Array, Design, Index, Labels
from probecascade.probes.fit import STRENGTHS
from probecascade.probes.inputs import as_labels, as_matrix, both_classes
from probecascade.probes.metrics import auroc
from probecascade.probes.newton import solve
from probecascade.probes.solver import log_odds

_AT_ONCE = 1 << 22  # logits of the models that are fitted together: 32 MiB an array, of which there are some ten


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
    threads: int = 1,
) -> BatchedScores:
    """Out-of-fold scores of every layer on shared folds, strengths chosen within each fold's training rows.

    The model is that of `LogisticFitter`: standardised L2 logistic regression with the prior correction of
    each fold's bias. read(layer): states (n, d), called once per layer, never by two threads at a time, and
    let go when the layer is done. failed, groups: (n,). folds: (train rows, test rows) each, as
    `grouped_folds` makes them. The strength with the least mean log-loss over `inner_folds` grouped folds of
    a fold's training rows wins, the smaller C on a tie; a fold whose training rows cannot be split so,
    because fewer than two groups hold a class, takes the smallest. inner_folds None: one strength per layer,
    chosen on `folds` themselves, hence slightly optimistic. seed: of the inner folds. threads: layers fitted
    at a time, which changes no score. Raises DataError on bad states, labels or folds, UsageError on
    strengths that are not positive or no thread.
    """
    labels = as_labels(failed, np.asarray(failed).size)
    both_classes(labels)
    path = tuple(sorted(set(strengths)))
    if not path or not all(0 < c < float("inf") for c in path):
        raise UsageError(f"The strengths {tuple(strengths)} were given; give one or more positive finite numbers.")
    if threads < 1:
        raise UsageError(f"{threads} threads were asked for; ask for one or more.")
    _check_folds(folds, labels)
    names = np.asarray(groups)
    inner = None if inner_folds is None else [_inner(labels, names, train, inner_folds, seed) for train, _ in folds]
    reading = Lock()

    def sweep(layer: int) -> tuple[Array, Array, Array]:
        with reading:
            rows = as_matrix(read(layer), f"states of layer {layer}")
        if len(rows) != len(labels):
            raise DataError(f"Layer {layer} has {len(rows)} rows for {len(labels)} labels; give one row per label.")
        return _sweep_layer(Design.of(rows), labels, folds, inner, path)

    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(sweep, layers))
    scores, chosen, train_auroc = (np.array([of_layer[k] for of_layer in found]) for k in range(3))
    return BatchedScores(tuple(layers), path, scores, chosen, train_auroc)


def held_out_logits(design: Design, failed: Labels, folds: Sequence[Fold], strengths: Sequence[float]) -> Array:
    """Logits of P(failure) at each strength, (n_strengths, n), each row's by the fold that tests it."""
    return _held_out(_fit(design, failed, [train for train, _ in folds], strengths), failed, folds)


def _sweep_layer(
    design: Design,
    failed: Labels,
    folds: Sequence[Fold],
    inner: Sequence[Sequence[Fold]] | None,
    strengths: tuple[float, ...],
) -> tuple[Array, Array, Array]:
    """Scores (n,), chosen strengths and AUROC within the training rows, (n_folds,) each."""
    sets = [folds, *(inner or ())]
    fits = _fit(design, failed, [train for some in sets for train, _ in some], strengths)
    outer, *nested = np.split(fits, np.cumsum([len(some) for some in sets])[:-1])
    logits = _held_out(outer, failed, folds)
    best = np.zeros(len(folds), dtype=np.intp)
    train_auroc = np.full(len(folds), np.nan)
    if inner is None:
        best[:] = np.argmin(_loss(logits, failed))
    for fold, (own, some) in enumerate(zip(nested, inner or (), strict=True)):
        if some:
            train, _ = folds[fold]
            within = _held_out(own, failed, some)[:, train]
            best[fold] = np.argmin(_loss(within, failed[train]))
            train_auroc[fold] = auroc(within[best[fold]], failed[train])
    scores = np.empty(len(failed))
    for (_, test), place in zip(folds, best, strict=True):
        scores[test] = expit(logits[place, test])
    return scores, np.asarray(strengths)[best], train_auroc


def _fit(design: Design, failed: Labels, trains: Sequence[Index], strengths: Sequence[float]) -> Array:
    """As `solve`, with as many fits at a time as memory should hold, in designs that suit them."""
    suited = design.suits(trains)
    common, apart = np.flatnonzero(suited), np.flatnonzero(~suited)
    some = max(1, _AT_ONCE // (len(failed) * len(strengths)))
    batches = [(common[first : first + some], design) for first in range(0, len(common), some)]
    batches += [(np.array([fit]), Design.of(design.rows, trains[fit])) for fit in map(int, apart)]
    logits = np.empty((len(trains), len(strengths), len(failed)))
    for fits, own in batches:
        logits[fits] = solve(own, failed, [trains[fit] for fit in fits], strengths)
    return logits


def _held_out(fits: Array, failed: Labels, folds: Sequence[Fold]) -> Array:
    """From logits of all rows by each fold's fit, (n_folds, n_strengths, n), those of the rows that it tests.

    (n_strengths, n), NaN where no fold tests. Every model's bias is moved by the difference between the
    log-odds of failure over all tested rows and over its training rows, as in `LogisticFitter`.
    """
    held_out = np.full(fits.shape[1:], np.nan)
    overall = log_odds(failed[np.concatenate([test for _, test in folds])])
    for fit, (train, test) in zip(fits, folds, strict=True):
        # In this order a logit that is just the log-odds becomes `overall` exactly, the same in every fold.
        held_out[:, test] = overall + (fit[:, test] - log_odds(failed[train]))
    return held_out


def _loss(logits: Array, failed: Labels) -> Array:
    """Mean log-loss of each row of logits (n_strengths, n)."""
    return np.asarray(np.logaddexp(0.0, np.where(failed, -logits, logits)).mean(axis=1))


def _check_folds(folds: Sequence[Fold], failed: Labels) -> None:
    tested = np.concatenate([test for _, test in folds]) if folds else np.empty(0, dtype=np.intp)
    whole = np.array_equal(np.sort(tested), np.arange(len(failed)))
    apart = all(not np.isin(train, test).any() for train, test in folds)
    if not (whole and apart and all(len(np.unique(failed[train])) == 2 for train, _ in folds)):
        raise DataError(
            "The folds must test every row once and train on both classes in rows that they do not test; "
            "make them with grouped_folds."
        )


def _inner(failed: Labels, groups: NDArray[Any], train: Index, folds: int, seed: int) -> list[Fold]:
    """Folds of the training rows, in numbers of all rows; none where fewer than two groups hold a class."""
    if min(len(np.unique(groups[train[failed[train] == label]])) for label in (False, True)) < 2:
        return []
    return [(train[a], train[b]) for a, b in grouped_folds(failed[train], groups[train], folds, seed)]
