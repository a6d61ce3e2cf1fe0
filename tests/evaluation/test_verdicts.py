"""What is said of a probe and a baseline: one sentence for each case, each true of all that it names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from probecascade.evaluation.sweep_result import METRICS, SweepResult
from probecascade.evaluation.verdicts import verdicts


def interval(value: float, low: float, high: float) -> dict[str, Any]:
    return {"value": value, "low": low, "high": high, "n": 90, "groups": 90, "n_pairs": 0}


def selected(name: str, gain: tuple[float, float, float], *, above_chance: bool) -> dict[str, Any]:
    return {
        "checkpoint": name,
        "n": 90,
        "failed": 45,
        "closing": False,
        "probe": "logistic",
        "chosen": {"2": 5},
        "above_chance": above_chance,
        "within_above_chance": None,
        **{metric: interval(0.6, 0.5, 0.7) for metric in METRICS},
        "gains": {"surface": {"auroc": interval(*gain)}},
    }


def result(*rows: dict[str, Any]) -> SweepResult:
    blank: dict[str, Any] = dict.fromkeys(SweepResult.__dataclass_fields__, ())
    names = [row["checkpoint"] for row in rows]
    baselines = [{"checkpoint": name, "name": "surface", "auroc": interval(0.5, 0.4, 0.6)} for name in names]
    made = SweepResult(**blank)
    return replace(made, confidence=0.95, keep=0.95, selected=list(rows), baselines=baselines)


CASES = [
    ((0.2, 0.1, 0.3), True, "The probe beats the surface baseline in AUROC at action:1 (+0.200"),
    ((0.2, 0.1, 0.3), False, "its AUROC is the higher there, but not shown to be above chance."),
    ((0.1, -0.1, 0.3), True, "The probe is not shown to beat the surface baseline in AUROC at action:1 (+0.100"),
    ((0.1, -0.1, 0.3), False, "The probe is not shown to beat the surface baseline in AUROC at action:1 (+0.100"),
    ((-0.2, -0.3, -0.1), True, "The probe does worse than the surface baseline in AUROC at action:1 (-0.200"),
    ((-0.2, -0.3, -0.1), False, "The probe does worse than the surface baseline in AUROC at action:1 (-0.200"),
]


@pytest.mark.parametrize(("gain", "above_chance", "says"), CASES)
def test_each_case_has_a_sentence_that_is_true_of_it(
    gain: tuple[float, float, float], above_chance: bool, says: str
) -> None:
    found = verdicts(result(selected("action:1", gain, above_chance=above_chance)))
    (sentence,) = [text for text in found if "the surface baseline" in text]
    assert says in sentence


def test_a_gain_without_better_than_chance_is_not_mixed_with_no_gain() -> None:
    rows = [
        selected("prompt", (0.2, 0.1, 0.3), above_chance=False),
        selected("action:1", (0.1, -0.1, 0.3), above_chance=True),
        selected("action:2", (0.3, 0.2, 0.4), above_chance=True),
    ]
    found = [text for text in verdicts(result(*rows)) if "the surface baseline" in text]
    assert [[row["checkpoint"] for row in rows if row["checkpoint"] + " (" in text] for text in found] == [
        ["action:2"],
        ["action:1"],
        ["prompt"],
    ]
