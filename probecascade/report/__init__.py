"""What a run and a calibration look like: figures (matplotlib, the extra `plot`), and one page that holds them all."""

from probecascade.report.compose import Material, transfer_picture
from probecascade.report.figures import (
    caught_by_gate,
    check_figures,
    save_figures,
    saved_against_kept,
    score_histograms,
)
from probecascade.report.held_out import Judged
from probecascade.report.judged_useless import StudyMaterial, study_answer
from probecascade.report.page import BrowserWords, Chapter, Page, Table
from probecascade.report.pictures import Picture, check_exports, export, new_figure
from probecascade.report.shares import GateShares, shares_by_gate

__all__ = [
    "BrowserWords",
    "Chapter",
    "GateShares",
    "Judged",
    "Material",
    "Page",
    "Picture",
    "StudyMaterial",
    "Table",
    "caught_by_gate",
    "check_exports",
    "check_figures",
    "export",
    "new_figure",
    "save_figures",
    "saved_against_kept",
    "score_histograms",
    "shares_by_gate",
    "study_answer",
    "transfer_picture",
]
