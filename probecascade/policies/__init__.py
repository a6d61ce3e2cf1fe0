"""What decides when an episode stops: the cascade and its rivals, siblings behind `StoppingPolicy`."""

from probecascade.policies.cascade import Cascade, Gate, StorableProbe
from probecascade.policies.fit import FitResult, FitRow, fit_cascade
from probecascade.policies.rules import (
    FailedSearches,
    FirstRepeatedFailedSearch,
    Never,
    RepeatedActions,
    TokenLimit,
    TranscriptRule,
)
from probecascade.policies.scoring import GateTable, score_run
from probecascade.policies.shadow import FailOpen, Shadow, ShadowRecord

__all__ = [
    "Cascade",
    "FailOpen",
    "FailedSearches",
    "FirstRepeatedFailedSearch",
    "FitResult",
    "FitRow",
    "Gate",
    "GateTable",
    "Never",
    "RepeatedActions",
    "Shadow",
    "ShadowRecord",
    "StorableProbe",
    "TokenLimit",
    "TranscriptRule",
    "fit_cascade",
    "score_run",
]
