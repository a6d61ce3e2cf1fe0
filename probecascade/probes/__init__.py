"""Small frozen scorers of P(failure), the fitters that return them, and how well they rank."""

from __future__ import annotations

from probecascade.intervals import Interval
from probecascade.probes.crossval import grouped_folds
from probecascade.probes.fit import FittedProbe, LayerChoice, LogisticFitter, choose_layer
from probecascade.probes.linear import LinearProbe, load_probe
from probecascade.probes.metrics import PairAccuracy, auroc, auroc_interval, pair_accuracy
from probecascade.probes.surface import SURFACE, fit_surface

__all__ = [
    "SURFACE",
    "FittedProbe",
    "Interval",
    "LayerChoice",
    "LinearProbe",
    "LogisticFitter",
    "PairAccuracy",
    "auroc",
    "auroc_interval",
    "choose_layer",
    "fit_surface",
    "grouped_folds",
    "load_probe",
    "pair_accuracy",
]
