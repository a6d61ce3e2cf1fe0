"""Thresholds from scores: targets, exact bounds, sequential recall, keep; pure arithmetic on plain arrays."""

from probecascade.thresholds.bounds import clopper_pearson, lower_bound, upper_bound
from probecascade.thresholds.firing import OFF, GateScores, firing, first_firing
from probecascade.thresholds.keep import IndexShape, KeepResult, keep_thresholds, learn_shape
from probecascade.thresholds.promise import promise
from probecascade.thresholds.sequential import RecallGate, SequentialResult, recall_thresholds
from probecascade.thresholds.targets import match_gates, needed, parse_rising, parse_target, percent

__all__ = [
    "OFF",
    "GateScores",
    "IndexShape",
    "KeepResult",
    "RecallGate",
    "SequentialResult",
    "clopper_pearson",
    "firing",
    "first_firing",
    "keep_thresholds",
    "learn_shape",
    "lower_bound",
    "match_gates",
    "needed",
    "parse_rising",
    "parse_target",
    "percent",
    "promise",
    "recall_thresholds",
    "upper_bound",
]
