"""Thresholds from scores: targets, methods, certificates and what they promise; pure arithmetic on plain arrays."""

from probecascade.bounds import allowed_misses, clopper_pearson, lower_bound, smallest_sample, upper_bound
from probecascade.thresholds.backtest import Backtest, GateOutcome, Saving, Spending, backtest
from probecascade.thresholds.calibration import METHODS, Calibration, calibrate, feasibility
from probecascade.thresholds.choice import choose_gates
from probecascade.thresholds.feasibility import Feasibility
from probecascade.thresholds.firing import OFF, GateScores, firing, first_firing
from probecascade.thresholds.keep import KeepResult, keep_thresholds
from probecascade.thresholds.monitor import CatchMonitor, ExchangeabilityMonitor, KeepMonitor
from probecascade.thresholds.operating import OperatingPoint, choose_target, frontier
from probecascade.thresholds.problem import Certificate, Targets
from probecascade.thresholds.sequential import RecallGate, SequentialResult, recall_thresholds
from probecascade.thresholds.shape import IndexShape, learn_shape
from probecascade.thresholds.targets import match_gates, needed, parse_rising, parse_target, percent

__all__ = [
    "METHODS",
    "OFF",
    "Backtest",
    "Calibration",
    "CatchMonitor",
    "Certificate",
    "ExchangeabilityMonitor",
    "Feasibility",
    "GateOutcome",
    "GateScores",
    "IndexShape",
    "KeepMonitor",
    "KeepResult",
    "OperatingPoint",
    "RecallGate",
    "Saving",
    "SequentialResult",
    "Spending",
    "Targets",
    "allowed_misses",
    "backtest",
    "calibrate",
    "choose_gates",
    "choose_target",
    "clopper_pearson",
    "feasibility",
    "firing",
    "first_firing",
    "frontier",
    "keep_thresholds",
    "learn_shape",
    "lower_bound",
    "match_gates",
    "needed",
    "parse_rising",
    "parse_target",
    "percent",
    "recall_thresholds",
    "smallest_sample",
    "upper_bound",
]
