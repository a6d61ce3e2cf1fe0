"""A frozen probe moved to new data: its standardisation, its last step, or its direction, each drawn to what it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, logit

from probecascade.errors import DataError
from probecascade.probes.calibrated import CalibratedProbe, Platt
from probecascade.probes.crossval import grouped_folds
from probecascade.probes.inputs import both_classes
from probecascade.probes.kinds import FrozenProbe
from probecascade.probes.linear import LinearProbe, signal_features
from probecascade.probes.piped import PipedProbe
from probecascade.probes.scoring import row_logits
from probecascade.probes.shown import Shown

Array = NDArray[np.float64]
Labels = NDArray[np.bool_]
Change = Callable[[LinearProbe, Array], LinearProbe]

PRIOR = 20
"""How many new rows the old mean and scale weigh as much as."""

STRENGTHS: tuple[float, ...] = (0.0, *(float(10.0 ** (k / 2)) for k in range(-10, 1)))
"""C of the ridge towards the old direction; at 0 the direction stays and only the bias moves."""

_SURE = 1e-12  # scores nearer to 0 or 1 have lost their digits
_LOOSE_BIAS = 10.0  # standard deviations of the normal priors on the logarithm of the slope and on the bias, in logits
_LOOSE_SLOPE = 1.0


def recentred(probe: FrozenProbe, shown: Shown) -> FrozenProbe:
    """The probe with the mean and scale of its features drawn to those of new rows; needs no labels.

    Mean and variance are weighted means of the old ones, which count as `PRIOR` rows, and those of the rows. A feature
    that is constant there keeps its scale. A difference in how common failure is moves the mean too and is taken
    out with it. Source: the re-estimation of batch statistics under shift (Schneider et al. 2020), for one layer.
    DataError for a probe without a linear part, or without rows.
    """

    def change(linear: LinearProbe, rows: Array) -> LinearProbe:
        if not len(rows):
            raise DataError("no new episode comes to this checkpoint: give more episodes to adapt on.")
        share = len(rows) / (len(rows) + PRIOR)
        spread = rows.var(axis=0)
        variance = np.where(spread > 0, share * spread + (1 - share) * linear.scale**2, linear.scale**2)
        mean = share * rows.mean(axis=0) + (1 - share) * linear.mean
        return replace(linear, mean=mean, scale=np.sqrt(variance))

    return _changed(probe, shown, change)


def rescored(probe: FrozenProbe, scores: Array, failed: Labels) -> FrozenProbe:
    """The probe with slope and bias of its logit fitted to labelled rows; the order of scores stays.

    scores: (n,), what it says of them. The slope is drawn to 1 and the bias, weakly, to 0, so that a handful of rows
    cannot turn every score into certainty. DataError with one class.
    """
    both_classes(failed)
    logits = logit(np.clip(scores, _SURE, 1 - _SURE))
    sign = np.where(failed, -1.0, 1.0)

    def loss(point: Array) -> float:
        data = np.logaddexp(0.0, sign * (np.exp(point[0]) * logits + point[1])).sum()
        return float(data + (point[0] / _LOOSE_SLOPE) ** 2 / 2 + (point[1] / _LOOSE_BIAS) ** 2 / 2)

    found = minimize(loss, np.zeros(2), method="L-BFGS-B", bounds=[(-10, 10), (-100, 100)]).x
    return _through(probe, Platt(float(np.exp(found[0])), float(found[1])))


def refitted(
    probe: FrozenProbe,
    shown: Shown,
    failed: Labels,
    groups: Sequence[Any] | NDArray[Any],
    *,
    folds: int = 5,
    seed: int = 0,
) -> FrozenProbe:
    """The probe, re-centred and re-scaled, with its direction fitted to labelled rows by a ridge towards the old one.

    failed, groups: (n,). Minimises |w - w_old|^2 / 2 + C * log-loss in the old scale, C from `STRENGTHS` by grouped
    cross-validation, so that with few rows or none that teach anything the direction stays. DataError for a probe
    without a linear part, with one class, or with fewer than two groups that hold one.
    """
    labels = np.asarray(failed, dtype=np.bool_)

    def change(linear: LinearProbe, rows: Array) -> LinearProbe:
        z = (rows - linear.mean) / linear.scale
        offset = row_logits(rows, linear.mean, linear.scale, linear.weight, linear.bias)
        loss = np.zeros(len(STRENGTHS))
        for train, test in grouped_folds(labels, groups, folds, seed):
            for k, (step, bias) in enumerate(_towards(z[train], offset[train], labels[train], STRENGTHS)):
                logits = z[test] @ step + offset[test] + bias
                loss[k] += np.logaddexp(0.0, np.where(labels[test], -logits, logits)).sum()
        ((step, bias),) = _towards(z, offset, labels, (STRENGTHS[int(np.argmin(loss))],))
        return replace(linear, weight=linear.weight + step, bias=linear.bias + bias)

    both_classes(labels)
    return _changed(recentred(probe, shown), shown, change)


def _towards(z: Array, offset: Array, failed: Labels, strengths: Sequence[float]) -> list[tuple[Array, float]]:
    """What to add to weights and bias at each C: argmin |u|^2 / 2 + C * log-loss(offset + z u + b)."""
    sign = np.where(failed, 1.0, -1.0)
    left, lengths, axes = np.linalg.svd(z, full_matrices=False)  # u lies in the span of the rows
    spanned = left * lengths
    found = []
    for strength in strengths:
        reduced = spanned if strength > 0 else spanned[:, :0]
        solved = minimize(
            _objective,
            np.zeros(reduced.shape[1] + 1),
            args=(reduced, offset, sign, strength or 1.0),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 500},
        ).x
        found.append((solved[:-1] @ axes[: reduced.shape[1]], float(solved[-1])))
    return found


def _objective(point: Array, rows: Array, offset: Array, sign: Array, strength: float) -> tuple[float, Array]:
    margin = sign * (offset + rows @ point[:-1] + point[-1])
    pull = -sign * strength * expit(-margin)
    value = strength * float(np.logaddexp(0.0, -margin).sum()) + float(point[:-1] @ point[:-1]) / 2
    return value, np.append(rows.T @ pull + point[:-1], pull.sum())


def _changed(probe: FrozenProbe, shown: Shown, change: Change) -> FrozenProbe:
    """The probe with its linear part changed, given that part and what comes to it of the rows."""
    if isinstance(probe, LinearProbe):
        if probe.uses == "signals":
            return change(probe, signal_features(shown.signals, probe.columns, probe.roots))
        return change(probe, np.asarray(shown.states, dtype=np.float64))
    if isinstance(probe, CalibratedProbe):
        return replace(probe, probe=_changed(probe.probe, shown, change))
    if isinstance(probe, PipedProbe) and probe.blocks == 1:
        rows = np.asarray(shown.states, dtype=np.float64)
        for step in probe.steps:
            rows = step.apply(rows)
        return replace(probe, head=_changed(probe.head, replace(shown, states=rows), change))
    raise DataError(
        f"a probe of kind {probe.spec()['kind']!r} has no linear part whose mean, scale or direction could be adapted: "
        "adapt its bias instead."
    )


def _through(probe: FrozenProbe, moved: Platt) -> FrozenProbe:
    if isinstance(probe, LinearProbe):
        return replace(probe, weight=moved.slope * probe.weight, bias=moved.slope * probe.bias + moved.intercept)
    return CalibratedProbe(probe, moved)
