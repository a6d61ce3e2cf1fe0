"""What policies catch, keep and save: back-tests, twins, replays, and intervals that respect groups."""

from probecascade.evaluation.adapted import Change, GateChange, compare_cascades
from probecascade.evaluation.backtest import backtest_run
from probecascade.evaluation.directions import Cosine, Direction, cosines, probe_direction
from probecascade.evaluation.modes import (
    ModeRow,
    failure_mode,
    failure_modes,
    losing_stretch,
    mode_table,
    modes_of_aborts,
    override_modes,
)
from probecascade.evaluation.pooled import PooledRuns
from probecascade.evaluation.replay import replay_policy
from probecascade.evaluation.steering import SteeringEffect, steering_effect
from probecascade.evaluation.sweep import Sweep, sweep_run
from probecascade.evaluation.sweep_result import SweepResult
from probecascade.evaluation.tokens import TokenScore, token_html, token_scores
from probecascade.evaluation.transfer import TransferMatrix, transfer_matrix
from probecascade.evaluation.triggers import TriggerRow, compare_triggers
from probecascade.evaluation.twins import PolicyOutcome, compare_twins, read_off
from probecascade.intervals import Resampling, mean_interval, ratio_interval, share_interval
from probecascade.thresholds import Backtest, GateOutcome, Saving, Spending, backtest

__all__ = [
    "Backtest",
    "Change",
    "Cosine",
    "Direction",
    "GateChange",
    "GateOutcome",
    "ModeRow",
    "PolicyOutcome",
    "PooledRuns",
    "Resampling",
    "Saving",
    "Spending",
    "SteeringEffect",
    "Sweep",
    "SweepResult",
    "TokenScore",
    "TransferMatrix",
    "TriggerRow",
    "backtest",
    "backtest_run",
    "compare_cascades",
    "compare_triggers",
    "compare_twins",
    "cosines",
    "failure_mode",
    "failure_modes",
    "losing_stretch",
    "mean_interval",
    "mode_table",
    "modes_of_aborts",
    "override_modes",
    "probe_direction",
    "ratio_interval",
    "read_off",
    "replay_policy",
    "share_interval",
    "steering_effect",
    "sweep_run",
    "token_html",
    "token_scores",
    "transfer_matrix",
]
