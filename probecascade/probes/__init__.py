"""Small frozen scorers of P(failure), the fitters that return them, and how well they rank."""

from __future__ import annotations

from probecascade.intervals import Interval
from probecascade.probes.calibrated import Calibrated, CalibratedProbe
from probecascade.probes.crossfit import FittedProbe, Fitter
from probecascade.probes.crossval import grouped_folds
from probecascade.probes.fit import LayerChoice, LogisticFitter, choose_layer
from probecascade.probes.fusion import BLOCKS, FusedProbe, FusionFitter
from probecascade.probes.kinds import FrozenProbe, load_probe
from probecascade.probes.linear import LinearProbe
from probecascade.probes.means import LDAFitter, MassMeanFitter
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
from probecascade.probes.mlp import MLPProbe
from probecascade.probes.mlp_fit import MLPFitter
from probecascade.probes.modes import FittedModes, ModeFitter, ModeProbe, load_mode_probe
from probecascade.probes.named import PROBES, SEQUENCES, STEPS, fitter_named
from probecascade.probes.piped import PipedProbe
from probecascade.probes.sequence import SequenceProbe
from probecascade.probes.sequence_fit import SequenceFitter
from probecascade.probes.shown import Shown, reads, signals_read
from probecascade.probes.stacking import StackedProbe, StackingFitter
from probecascade.probes.steps import PCA, Average, Centre, LayerNorm, Standardise
from probecascade.probes.surface import SURFACE, fit_surface

__all__ = [
    "BLOCKS",
    "PCA",
    "PROBES",
    "SEQUENCES",
    "STEPS",
    "SURFACE",
    "Average",
    "Calibrated",
    "CalibratedProbe",
    "Centre",
    "FittedModes",
    "FittedProbe",
    "Fitter",
    "FrozenProbe",
    "FusedProbe",
    "FusionFitter",
    "Interval",
    "LDAFitter",
    "LayerChoice",
    "LayerNorm",
    "LinearProbe",
    "LogisticFitter",
    "MLPFitter",
    "MLPProbe",
    "MassMeanFitter",
    "ModeFitter",
    "ModeProbe",
    "PairAccuracy",
    "PipedProbe",
    "SequenceFitter",
    "SequenceProbe",
    "Shown",
    "StackedProbe",
    "StackingFitter",
    "Standardise",
    "auprc",
    "auroc",
    "auroc_interval",
    "brier",
    "caught_at_keep",
    "choose_layer",
    "ece",
    "fit_surface",
    "fitter_named",
    "grouped_folds",
    "load_mode_probe",
    "load_probe",
    "pair_accuracy",
    "reads",
    "signals_read",
]
