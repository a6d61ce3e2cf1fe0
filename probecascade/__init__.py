"""probecascade: probes on a local model's hidden states that abort doomed agent episodes.

The public names, on one page. Each loads on first use, so `import probecascade` is quick and needs no torch; of these
names only `Engine`, `attach` and a call of `load_model` bring it in. Fitters, thresholds, rival policies, back-tests
and task sets are public in their own packages: `probecascade.probes`, `thresholds`, `policies`, `evaluation`,
`environments`; fakes and contract checks in `probecascade.testing`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probecascade.agents.react import AgentSettings, ReActAgent
    from probecascade.environments import FlakyEnvironment, WikiEnvironment, load_tasks
    from probecascade.episode import (
        Action,
        Checkpoint,
        Decision,
        Episode,
        Moment,
        Observation,
        Paragraph,
        Part,
        Question,
        Recording,
        Step,
        Task,
    )
    from probecascade.errors import (
        CascadeError,
        DataError,
        DuplicateEpisodeError,
        EpisodeAborted,
        ModelError,
        NothingToDoError,
        ProbecascadeError,
        RecipeError,
        StaleCheckpointError,
        StoreError,
        UsageError,
    )
    from probecascade.evaluation import backtest_run, replay_policy
    from probecascade.interfaces import Environment, EpisodeWatch, LanguageModel, Probe, StoppingPolicy
    from probecascade.models import Engine
    from probecascade.models import load as load_model
    from probecascade.models.attach import attach
    from probecascade.policies import Cascade, Gate, Shadow, fit_cascade
    from probecascade.store import Run, RunWriter
    from probecascade.thresholds import Calibration, calibrate

__version__ = "0.1.0"

_PAGE = {
    "agents.react": ("AgentSettings", "ReActAgent"),
    "environments": ("FlakyEnvironment", "WikiEnvironment", "load_tasks"),
    "episode": (
        *("Action", "Checkpoint", "Decision", "Episode", "Moment", "Observation"),
        *("Paragraph", "Part", "Question", "Recording", "Step", "Task"),
    ),
    "errors": (
        *("CascadeError", "DataError", "DuplicateEpisodeError", "EpisodeAborted", "ModelError", "NothingToDoError"),
        *("ProbecascadeError", "RecipeError", "StaleCheckpointError", "StoreError", "UsageError"),
    ),
    "evaluation": ("backtest_run", "replay_policy"),
    "interfaces": ("Environment", "EpisodeWatch", "LanguageModel", "Probe", "StoppingPolicy"),
    "models": ("Engine", "load_model"),
    "models.attach": ("attach",),
    "policies": ("Cascade", "Gate", "Shadow", "fit_cascade"),
    "store": ("Run", "RunWriter"),
    "thresholds": ("Calibration", "calibrate"),
}
_HOMES = {name: home for home, names in _PAGE.items() for name in names}
_NAMES_AT_HOME = {"load_model": "load"}

__all__ = [  # noqa: RUF022 - by what they are for
    # run a model as an agent
    "load_model",
    "Engine",
    "ReActAgent",
    "AgentSettings",
    "load_tasks",
    "WikiEnvironment",
    "FlakyEnvironment",
    # keep and read its hidden states
    "Run",
    "RunWriter",
    # thresholds with a promise, from scores of any kind
    "calibrate",
    "Calibration",
    # fit, judge and use a cascade
    "Cascade",
    "Gate",
    "Shadow",
    "fit_cascade",
    "backtest_run",
    "replay_policy",
    "attach",
    # records
    "Task",
    "Part",
    "Paragraph",
    "Action",
    "Observation",
    "Step",
    "Checkpoint",
    "Episode",
    "Recording",
    "Moment",
    "Decision",
    "Question",
    # what others may implement
    "LanguageModel",
    "Environment",
    "Probe",
    "StoppingPolicy",
    "EpisodeWatch",
    # errors
    "ProbecascadeError",
    "UsageError",
    "RecipeError",
    "ModelError",
    "StoreError",
    "DuplicateEpisodeError",
    "DataError",
    "CascadeError",
    "StaleCheckpointError",
    "NothingToDoError",
    "EpisodeAborted",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(f"{__name__}.{_HOMES[name]}")
    return getattr(home, _NAMES_AT_HOME.get(name, name))


def __dir__() -> list[str]:
    return sorted(__all__)
