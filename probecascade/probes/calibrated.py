"""Calibrating a probe's scores on held-out scores: Platt's logistic, or isotonic regression that keeps the order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import isotonic_regression, minimize
from scipy.special import expit, logit

from probecascade.errors import DataError, UsageError
from probecascade.probes.crossfit import FittedProbe, Fitter, Groups
from probecascade.probes.crossval import Fold, grouped_folds
from probecascade.probes.inputs import as_labels
from probecascade.probes.kinds import Arrays, FrozenProbe, Spec, frozen, load_probe, loads, number, pick, under, within
from probecascade.probes.linear import LinearProbe
from probecascade.probes.metrics import auroc
from probecascade.probes.scoring import as_probabilities

Array = NDArray[np.float64]
Labels = NDArray[np.bool_]
Method = Literal["platt", "isotonic"]
METHODS: tuple[Method, ...] = ("platt", "isotonic")

_SURE = 1e-15  # scores nearer to 0 or 1 have lost their digits, and would have no finite logit
_TILT = 1e-3  # share of the score itself in an isotonic map
_LEAST_SLOPE = 1e-3  # per standard deviation of the logits: noise must not turn the order round


@dataclass(frozen=True)
class Platt:
    """P(failure) = sigmoid(slope * logit(score) + intercept), slope above 0. Source: Platt 1999."""

    slope: float
    intercept: float

    def __post_init__(self) -> None:
        if not (0 < self.slope < float("inf") and np.isfinite(self.intercept)):
            raise DataError(
                f"Platt calibration was given slope {self.slope} and intercept {self.intercept}; "
                "give a positive slope and finite numbers."
            )

    def apply(self, scores: Array) -> Array:
        return as_probabilities(self.slope * logit(np.clip(scores, _SURE, 1 - _SURE)) + self.intercept)

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"slope": np.array([self.slope]), "intercept": np.array([self.intercept])}


@dataclass(frozen=True, eq=False)
class Isotonic:
    """Linear interpolation between knots (x, y), both rising strictly within [0, 1], so scores keep their order."""

    x: Array
    y: Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", frozen(self.x))
        object.__setattr__(self, "y", frozen(self.y))
        for values in (self.x, self.y):
            if (
                values.ndim != 1
                or len(values) < 2
                or not (np.diff(values) > 0).all()
                or values[0] < 0
                or values[-1] > 1
            ):
                raise DataError("Isotonic calibration was given knots that do not rise strictly in [0, 1]; refit it.")
        if len(self.x) != len(self.y):
            raise DataError(f"Isotonic calibration was given {len(self.x)} and {len(self.y)} knots; give pairs.")

    def apply(self, scores: Array) -> Array:
        left = np.clip(np.searchsorted(self.x, scores, "right") - 1, 0, len(self.x) - 2)
        part = (scores - self.x[left]) / (self.x[left + 1] - self.x[left])
        # Clipped: rounding must not carry a score past the knot where the next piece starts.
        risen = self.y[left] + part * (self.y[left + 1] - self.y[left])
        return np.clip(risen, self.y[left], self.y[left + 1])

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"x": self.x, "y": self.y}


Map = Platt | Isotonic


@dataclass(frozen=True, eq=False)
class CalibratedProbe:
    """A probe whose scores go through a map that keeps their order."""

    probe: FrozenProbe
    map: Map

    @property
    def reads(self) -> frozenset[str]:
        """What the probe within reads."""
        reads: frozenset[str] = getattr(self.probe, "reads", frozenset({"states", "signals"}))
        return reads

    def score(self, states: Any, signals: Any = None, **inputs: Any) -> Array:
        """P(failure), (n,). Raises DataError as the probe within does."""
        return self.map.apply(self.probe.score(states, signals, **inputs))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Those of the map, and those of the probe under `probe`."""
        return self.map.arrays() | under("probe", self.probe.arrays())

    def spec(self) -> dict[str, Any]:
        """kind, method, and the spec of the probe within."""
        method: Method = "platt" if isinstance(self.map, Platt) else "isotonic"
        return {"kind": "calibrated", "method": method, "probe": self.probe.spec()}


@loads("calibrated")
def load_calibrated(spec: Spec, arrays: Arrays) -> CalibratedProbe:
    """The calibrated probe of spec and arrays."""
    probe = load_probe(spec["probe"], within(arrays, "probe"))
    if spec["method"] == "platt":
        own = pick(arrays, ("slope", "intercept"))
        return CalibratedProbe(probe, Platt(number(own, "slope"), number(own, "intercept")))
    if spec["method"] == "isotonic":
        return CalibratedProbe(probe, Isotonic(**pick(arrays, ("x", "y"))))
    raise DataError(f"it is calibrated by {spec['method']!r}, not by one of {', '.join(METHODS)}.")


@dataclass(frozen=True)
class Calibrated:
    """Another fitter's probe with its scores calibrated on held-out scores of whole groups.

    fitter: any. method: "platt" (two numbers, for some hundred episodes) or "isotonic" (any rising curve, for
    about a thousand). The order of scores stays, hence AUROC and what a threshold can separate. With a linear
    probe Platt's map is taken into its weights. Each row's held-out score goes through a map fitted on the
    other folds; the models behind those folds' scores had seen the row, as in stacking, which a map of two
    numbers or one rising curve cannot exploit much.
    """

    fitter: Fitter
    method: Method = "platt"

    @property
    def folds(self) -> int:
        return self.fitter.folds

    @property
    def seed(self) -> int:
        return self.fitter.seed

    def fit(self, X: ArrayLike, failed: ArrayLike, groups: Groups, **inputs: Any) -> FittedProbe:
        """Fit on X (n, width), failed and groups (n,); `inputs` go on to the fitter. Raises as the fitter does.

        UsageError on another method.
        """
        if self.method not in METHODS:
            raise UsageError(f"Calibration by {self.method!r} was asked for; give {' or '.join(METHODS)}.")
        fit: Callable[..., FittedProbe] = self.fitter.fit
        fitted = fit(X, failed, groups, **inputs)
        labels = as_labels(failed, len(fitted.out_of_fold))
        folds = grouped_folds(labels, groups, self.fitter.folds, self.fitter.seed)
        return calibrate_scores(fitted, labels, folds, self.method, np.ones(len(labels)))


def calibrate_scores(
    fitted: FittedProbe, failed: Labels, folds: Sequence[Fold], method: Method, weights: Array
) -> FittedProbe:
    """`fitted` with its probe's and its held-out scores calibrated; folds: those of the held-out scores."""
    fit_map = _fit_platt if method == "platt" else _fit_isotonic
    held_out = fitted.out_of_fold
    scores = np.empty(len(held_out))
    for train, test in folds:
        scores[test] = fit_map(held_out[train], failed[train], weights[train]).apply(held_out[test])
    probe = _through(fitted.probe, fit_map(held_out, failed, weights))
    return replace(fitted, probe=probe, out_of_fold=scores, auroc=auroc(scores, failed))


def _through(probe: FrozenProbe, fitted: Map) -> FrozenProbe:
    if isinstance(fitted, Platt) and isinstance(probe, LinearProbe):
        bias = fitted.slope * probe.bias + fitted.intercept
        return replace(probe, weight=fitted.slope * probe.weight, bias=bias)
    return CalibratedProbe(probe, fitted)


def _fit_platt(scores: Array, failed: Labels, weights: Array) -> Platt:
    """Logistic regression on the logit, towards Platt's targets, which keep the slope finite on separated scores."""
    logits = logit(np.clip(scores, _SURE, 1 - _SURE))
    centre, spread = float(logits.mean()), float(logits.std())
    if spread <= len(logits) * np.finfo(np.float64).eps * abs(centre):
        spread = 1.0
    x = (logits - centre) / spread
    n_failed = int(failed.sum())
    target = np.where(failed, (n_failed + 1) / (n_failed + 2), 1 / (len(failed) - n_failed + 2))

    def objective(point: Array) -> tuple[float, Array]:
        margin = point[0] * x + point[1]
        loss = float((weights * (np.logaddexp(0.0, margin) - target * margin)).sum())
        pull = weights * (expit(margin) - target)
        return loss, np.array([pull @ x, pull.sum()])

    found = minimize(
        objective, np.array([1.0, 0.0]), jac=True, method="L-BFGS-B", bounds=[(_LEAST_SLOPE, None), (None, None)]
    )
    slope = float(found.x[0]) / spread
    return Platt(slope, float(found.x[1]) - slope * centre)


def _fit_isotonic(scores: Array, failed: Labels, weights: Array) -> Isotonic:
    """Isotonic regression, linear between its steps.

    On a step it would tie what the probe tells apart, so the score itself is mixed in by a thousandth. Levels are
    drawn towards the overall rate by one episode's weight, so that none is 0 or 1.
    """
    x, place = np.unique(scores, return_inverse=True)
    mass = np.bincount(place, weights)
    fitted = isotonic_regression(np.bincount(place, weights * failed) / mass, weights=mass)
    edges = np.union1d(fitted.blocks[:-1], fitted.blocks[1:] - 1)
    total = weights.sum()
    levels = (total * fitted.x[edges] + (weights * failed).sum() / total) / (total + 1)
    knots = np.unique(np.r_[0.0, x[edges], 1.0])
    curve = (1 - _TILT) * np.interp(knots, x[edges], levels) + _TILT * knots
    apart = np.diff(curve, prepend=-1.0) > 0
    return Isotonic(knots[apart], curve[apart])
