"""What a calibration looks like: shares by gate with intervals, and figures (matplotlib, the extra `plot`)."""

from probecascade.report.figures import (
    caught_by_gate,
    check_figures,
    save_figures,
    saved_against_kept,
    score_histograms,
)
from probecascade.report.shares import GateShares, shares_by_gate

__all__ = [
    "GateShares",
    "caught_by_gate",
    "check_figures",
    "save_figures",
    "saved_against_kept",
    "score_histograms",
    "shares_by_gate",
]
