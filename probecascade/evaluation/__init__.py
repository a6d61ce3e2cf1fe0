"""What policies catch, keep and save: back-tests, twins, replays, and intervals that respect groups."""

from probecascade.evaluation.backtest import backtest_run
from probecascade.evaluation.replay import replay_policy
from probecascade.evaluation.sweep_result import SweepResult
from probecascade.evaluation.twins import PolicyOutcome, compare_twins, read_off
from probecascade.intervals import Resampling, mean_interval, ratio_interval, share_interval
from probecascade.thresholds import Backtest, GateOutcome, Saving, Spending, backtest

__all__ = [
    "Backtest",
    "GateOutcome",
    "PolicyOutcome",
    "Resampling",
    "Saving",
    "Spending",
    "SweepResult",
    "backtest",
    "backtest_run",
    "compare_twins",
    "mean_interval",
    "ratio_interval",
    "read_off",
    "replay_policy",
    "share_interval",
]
