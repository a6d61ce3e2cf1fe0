"""Scripted agents whose reason for stopping is known, and their episodes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from probecascade.evaluation.judged_useless import SIX_REGIMES, StudyEpisode

Stops = Callable[[int, int], float]  # (observations so far, useless verdicts in a row) -> probability of an answer


def episode(
    verdicts: str,
    *,
    then: str = "finish",
    question: str = "q",
    regime: str = "persistent",
    success: bool = False,
    condition: str = "",
) -> StudyEpisode:
    """Searches judged `u` (USELESS), `+` (USEFUL), `?` (UNPARSED) or `.` (no verdict asked for), then a last action."""
    words = {"u": "USELESS", "+": "USEFUL", "?": "UNPARSED", ".": ""}
    actions = (*["search"] * len(verdicts), then)
    return StudyEpisode(question, regime, tuple(words[v] for v in verdicts), actions, success, condition)


def played(
    stops: Stops, questions: int, seed: int, *, condition: str = "", judged: float = 0.95, budget: int = 8
) -> list[StudyEpisode]:
    """Episodes of every question in each of the six regimes; `judged` is the accuracy of the verdicts."""
    rng = np.random.default_rng(seed)
    episodes = []
    for number in range(questions):
        for regime in SIX_REGIMES:
            actions, verdicts, injected = _one(stops, regime, rng, judged, budget)
            success = bool(rng.random() < 0.4)
            name = f"q{number}"
            episodes.append(StudyEpisode(name, regime, verdicts, actions, success, condition, injected))
    return episodes


def _one(
    stops: Stops, regime: str, rng: np.random.Generator, judged: float, budget: int
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[bool, ...]]:
    verdicts: list[str] = []
    injected: list[bool] = []
    run = 0
    for t in range(budget):
        if t and rng.random() < stops(t, run):
            return (*["search"] * t, "finish"), tuple(verdicts), tuple(injected)
        fails = {"clean": False, "persistent": True, "late_onset_from_3": t >= 2}.get(regime)
        injected.append(t < int(regime[-1]) if fails is None else fails)
        useless = injected[-1] if rng.random() < judged else not injected[-1]
        verdicts.append("USELESS" if useless else "USEFUL")
        run = run + 1 if useless else 0
    return tuple(["search"] * budget), tuple(verdicts), tuple(injected)


def by_clock(t: int, run: int) -> float:
    """Answers more and more often as time goes by, whatever the evidence."""
    return 0.05 * t


def by_evidence(t: int, run: int) -> float:
    """Answers for certain once all there is, and at least three observations, is useless; else never."""
    return float(run == t >= 3)
