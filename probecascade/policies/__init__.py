"""What decides when an episode stops: the cascade and its rivals, siblings behind `StoppingPolicy`."""

from probecascade.policies.adapt import Adaptation, adapt
from probecascade.policies.advice import ADVICE, FAILURE_MODES
from probecascade.policies.cascade import Cascade, Gate, StorableProbe
from probecascade.policies.explore import Coin, Explore
from probecascade.policies.fit import FitResult, check_fittable, fit_cascade
from probecascade.policies.looking import look_less
from probecascade.policies.modes import ModeFit, fit_modes
from probecascade.policies.probing import FitRow, ProbeSettings
from probecascade.policies.recalibrate import Recalibration, recalibrate
from probecascade.policies.rules import (
    FailedSearches,
    FirstRepeatedFailedSearch,
    Never,
    RepeatedActions,
    TokenLimit,
    TranscriptRule,
)
from probecascade.policies.scoring import GateTable, score_episode, score_run
from probecascade.policies.shadow import FailOpen, Shadow, ShadowRecord
from probecascade.policies.trigger import Trigger, TriggerShare

__all__ = [
    "ADVICE",
    "FAILURE_MODES",
    "Adaptation",
    "Cascade",
    "Coin",
    "Explore",
    "FailOpen",
    "FailedSearches",
    "FirstRepeatedFailedSearch",
    "FitResult",
    "FitRow",
    "Gate",
    "GateTable",
    "ModeFit",
    "Never",
    "ProbeSettings",
    "Recalibration",
    "RepeatedActions",
    "Shadow",
    "ShadowRecord",
    "StorableProbe",
    "TokenLimit",
    "TranscriptRule",
    "Trigger",
    "TriggerShare",
    "adapt",
    "check_fittable",
    "fit_cascade",
    "fit_modes",
    "look_less",
    "recalibrate",
    "score_episode",
    "score_run",
]
