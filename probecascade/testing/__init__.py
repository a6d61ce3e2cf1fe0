"""Contract checks and fakes for the seams of `probecascade.interfaces`.

Run `check_environment`, `check_probe` or `check_policy` against one of your own, from any test framework: it raises
an AssertionError that says which promise was broken. The fakes need no torch. `World` and `Population` are simulated
scores with a known truth, to try a method of setting thresholds on.
"""

from __future__ import annotations

from probecascade.testing.environments import OBSERVATION_KINDS, ScriptedEnvironment, check_environment
from probecascade.testing.models import ScriptedModel
from probecascade.testing.policies import RecordingPolicy, check_policy
from probecascade.testing.probes import ConstantProbe, EvidenceProbe, check_probe
from probecascade.testing.worlds import WORLDS, Outcome, Population, World

__all__ = [
    "OBSERVATION_KINDS",
    "WORLDS",
    "ConstantProbe",
    "EvidenceProbe",
    "Outcome",
    "Population",
    "RecordingPolicy",
    "ScriptedEnvironment",
    "ScriptedModel",
    "World",
    "check_environment",
    "check_policy",
    "check_probe",
]
