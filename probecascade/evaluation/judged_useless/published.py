"""The figures that the study published, to stand beside one's own: of other models, and not measured here."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

SOURCE = "arXiv 2610.06191 (HotpotQA, 300 questions each, budget of 8 actions)"

AFTER_FIVE = (
    "answered after five useless verdicts, persistent: Qwen3-8B unaided 1 of 292, agents of 7B to 8B at most 7 %"
)
JUDGED = "failing results judged useless: 97 % to 100 %"

_ALIASES = {
    "none": "unaided",
    "prompt_permit": "permit",
    "prompt_budget": "budget",
    "prompt_policy": "stated_rule",
    "prompt_cost": "call_cost",
    "own_reason": "decide",
    "enforced": "enforced_rule",
    "rule_k5_side": "enforced_rule",
    "combo_budget_rule_k5": "combo",
}


@dataclass(frozen=True, slots=True)
class Published:
    """Delta with its 95 % interval, and mean6, of one model in one condition on one set of questions."""

    split: str
    model: str
    condition: str
    delta: float
    low: float
    high: float
    mean6: float


def published_name(condition: str) -> str:
    """The name under which the study published a condition; others stay as they are."""
    return _ALIASES.get(condition, condition)


def published_figures(conditions: Collection[str] = (), split: str | None = "test300") -> tuple[Published, ...]:
    """The published figures of these conditions, under either name, or of all if none is named.

    `split` is the set of questions, test300 or fresh300, None for both.
    """
    wanted = {published_name(condition) for condition in conditions}
    return tuple(row for row in FIGURES if split in (None, row.split) and (not conditions or row.condition in wanted))


# Rounded from `data/episodes/paper_values.json` of the study's public repository (CC BY 4.0).
FIGURES = (
    Published("test300", "qwen2.5-7b", "unaided", -0.108, -0.171, -0.049, 0.1917),
    Published("test300", "qwen2.5-7b", "permit", -0.164, -0.309, -0.057, 0.2133),
    Published("test300", "qwen2.5-7b", "budget", -0.175, -0.247, -0.112, 0.3278),
    Published("test300", "qwen2.5-7b", "stated_rule", -0.308, -0.552, -0.134, 0.2061),
    Published("test300", "qwen2.5-7b", "call_cost", -0.176, -0.246, -0.114, 0.3261),
    Published("test300", "qwen2.5-7b", "decide", -0.237, -0.373, -0.134, 0.3600),
    Published("test300", "qwen2.5-7b", "enforced_rule", 0.335, 0.251, 0.413, 0.2367),
    Published("test300", "qwen2.5-7b", "combo", 0.208, 0.112, 0.288, 0.3750),
    Published("test300", "llama3.1-8b", "unaided", -0.023, -0.031, -0.015, 0.2633),
    Published("test300", "llama3.1-8b", "permit", -0.190, -0.226, -0.158, 0.2689),
    Published("test300", "llama3.1-8b", "budget", -0.100, -0.124, -0.078, 0.3117),
    Published("test300", "llama3.1-8b", "stated_rule", 0.095, 0.062, 0.131, 0.2667),
    Published("test300", "llama3.1-8b", "call_cost", -0.167, -0.194, -0.141, 0.3167),
    Published("test300", "llama3.1-8b", "decide", -0.143, -0.179, -0.109, 0.2656),
    Published("test300", "llama3.1-8b", "enforced_rule", 0.373, 0.356, 0.390, 0.3278),
    Published("test300", "llama3.1-8b", "combo", 0.273, 0.249, 0.296, 0.3367),
    Published("test300", "qwen3-8b", "unaided", -0.065, -0.095, -0.039, 0.4478),
    Published("test300", "qwen3-8b", "permit", -0.322, -0.414, -0.239, 0.4233),
    Published("test300", "qwen3-8b", "budget", -0.199, -0.255, -0.148, 0.4644),
    Published("test300", "qwen3-8b", "stated_rule", -0.175, -0.255, -0.108, 0.4394),
    Published("test300", "qwen3-8b", "call_cost", -0.186, -0.237, -0.140, 0.4578),
    Published("test300", "qwen3-8b", "decide", -0.146, -0.293, -0.012, 0.4256),
    Published("test300", "qwen3-8b", "enforced_rule", 0.329, 0.286, 0.373, 0.4739),
    Published("test300", "qwen3-8b", "combo", 0.202, 0.130, 0.272, 0.4778),
    Published("test300", "qwen3-32b", "unaided", -0.071, -0.103, -0.044, 0.5094),
    Published("test300", "qwen3-32b", "permit", 0.006, -0.077, 0.087, 0.5172),
    Published("test300", "qwen3-32b", "budget", -0.003, -0.059, 0.051, 0.5811),
    Published("test300", "qwen3-32b", "stated_rule", 0.082, 0.008, 0.156, 0.5256),
    Published("test300", "qwen3-32b", "call_cost", 0.092, 0.039, 0.144, 0.5750),
    Published("test300", "qwen3-32b", "enforced_rule", 0.328, 0.291, 0.361, 0.5722),
    Published("test300", "qwen3-32b", "combo", 0.185, 0.117, 0.250, 0.5778),
    Published("fresh300", "qwen2.5-7b", "unaided", -0.090, -0.155, -0.031, 0.1750),
    Published("fresh300", "qwen2.5-7b", "budget", -0.168, -0.236, -0.105, 0.3150),
    Published("fresh300", "qwen2.5-7b", "enforced_rule", 0.306, 0.223, 0.380, 0.2050),
    Published("fresh300", "llama3.1-8b", "unaided", -0.034, -0.047, -0.022, 0.2339),
    Published("fresh300", "llama3.1-8b", "budget", -0.136, -0.161, -0.113, 0.2806),
    Published("fresh300", "llama3.1-8b", "enforced_rule", 0.351, 0.331, 0.373, 0.2944),
    Published("fresh300", "qwen3-8b", "unaided", -0.052, -0.075, -0.033, 0.4217),
    Published("fresh300", "qwen3-8b", "budget", -0.190, -0.240, -0.143, 0.4528),
    Published("fresh300", "qwen3-8b", "enforced_rule", 0.344, 0.313, 0.379, 0.4578),
    Published("fresh300", "qwen3-32b", "unaided", -0.063, -0.087, -0.041, 0.4772),
    Published("fresh300", "qwen3-32b", "budget", -0.046, -0.099, 0.008, 0.5278),
    Published("fresh300", "qwen3-32b", "enforced_rule", 0.297, 0.257, 0.335, 0.5339),
)
