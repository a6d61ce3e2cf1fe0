"""Small frozen scorers of P(failure), the fitters that return them, and how well they rank."""

from __future__ import annotations

from probecascade.intervals import Interval
from probecascade.probes.crossfit import FittedProbe, Fitter
from probecascade.probes.crossval import grouped_folds
from probecascade.probes.fit import LayerChoice, LogisticFitter, choose_layer
from probecascade.probes.kinds import FrozenProbe, load_probe
from probecascade.probes.linear import LinearProbe
from probecascade.probes.metrics import (
    PairAccuracy,
    auprc,
    auroc,
    auroc_interval,
    brier,
    caught_at_keep,
    ece,
    pair_accuracy,
)
from probecascade.probes.modes import FittedModes, ModeFitter, ModeProbe, load_mode_probe
from probecascade.probes.surface import SURFACE, fit_surface

__all__ = [
    "SURFACE",
    "FittedModes",
    "FittedProbe",
    "Fitter",
    "FrozenProbe",
    "Interval",
    "LayerChoice",
    "LinearProbe",
    "LogisticFitter",
    "ModeFitter",
    "ModeProbe",
    "PairAccuracy",
    "auprc",
    "auroc",
    "auroc_interval",
    "brier",
    "caught_at_keep",
    "choose_layer",
    "ece",
    "fit_surface",
    "grouped_folds",
    "load_mode_probe",
    "load_probe",
    "pair_accuracy",
]
