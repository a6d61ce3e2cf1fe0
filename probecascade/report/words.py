"""What a cascade comes to on episodes that took no part in it, in sentences and rows of text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from probecascade.intervals import Interval
from probecascade.policies import Cascade
from probecascade.report.held_out import Judged

RIVALS = {"prompt": "the prompt alone", "surface": "surface signals", "tfidf": "the text so far"}
"""The baselines that the answer is told against."""

_AGAINST = (
    "The probe beats",
    "The probe is not shown to beat",
    "The probe does not count as beating",
    "The probe does worse than",
    "The probe does not beat",  # sweeps that are stored already
)
_RIVAL_ITSELF = " itself the AUROC lies below one half"


def against(sentence: str) -> bool:
    """Whether a verdict goes through the checkpoints one by one, against a baseline."""
    return sentence.startswith(_AGAINST) or _RIVAL_ITSELF in sentence


def cascade_sentences(cascade: Cascade, judged: Judged, early: Sequence[str] = ()) -> list[str]:
    """What it caught, kept and saved, how early that came, and what it promises."""
    promise = [cascade.promise] if cascade.promise else ["This cascade makes no promise."]
    result = judged.result
    if result is None:
        return [*promise, "Every labelled episode of this run had a part in making it, so none can judge it."]
    tokens, calls = result.saved["tokens"], result.saved["calls"]
    return [
        f"On {result.doomed + result.successes} episodes that took no part in making it ({result.doomed} failures, "
        f"{result.successes} successes) the cascade catches {share(result.caught)} of the failures and keeps "
        f"{share(result.kept)} of the successes.",
        f"That saves {share(tokens.share)} of all tokens and {share(calls.share)} of all tool calls: of the tokens "
        f"{percent(tokens.doomed_share.value)} on failures, and {percent(tokens.success_share.value)} on episodes that "
        "would have succeeded.",
        *early,
        *promise,
    ]


def answer(sweep: Mapping[str, Any]) -> list[str]:
    """The sweep's verdicts, with what the best probe adds to the obvious in place of the enumerations (`against`)."""
    told = [sentence for sentence in sweep["verdicts"] if not against(sentence)]
    first = 2 if len(told) > 1 and told[1].startswith("It is predicted best") else 1
    return [*told[:first], *_margins(sweep), *told[first:]]


def _margins(sweep: Mapping[str, Any]) -> list[str]:
    """What the best probe that is better than chance adds, where something is left to save, and where others do."""
    rows = [row for row in sweep["selected"] if row["above_chance"] and not row["closing"]]
    if not rows:
        return []
    best = max(rows, key=lambda row: row["auroc"]["value"])
    at = [
        f"{number(best['gains'][name]['auroc'], signed=True)} over {words}"
        for name, words in RIVALS.items()
        if name in best["gains"]
    ]
    judged = [row for row in sweep["selected"] if not row["closing"]]
    beaten = []
    for name, words in RIVALS.items():
        beside = [row for row in judged if name in row["gains"]]
        wins = sum(row["above_chance"] and row["gains"][name]["auroc"]["low"] > 0 for row in beside)
        if beside:
            beaten.append(f"{words} at {wins} of {len(beside)}")
    if not at:
        return []
    return [
        f"At {best['checkpoint']} that is, on the same episodes, {_listed(at)}.",
        f"Of the checkpoints at which something is left to save, the probe beats {_listed(beaten)}.",
    ]


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def gate_rows(cascade: Cascade, judged: Judged) -> list[list[str]]:
    """One row per gate: checkpoint, layer, threshold, aborts of failures and of successes, caught and kept so far."""
    rows = []
    outcomes: Sequence[Any] = [None] * len(cascade.gates) if judged.result is None else judged.result.gates
    for gate, seen in zip(cascade.gates, outcomes, strict=True):
        layer = "signals" if gate.layer is None else str(gate.layer)
        counts = ["–"] * 4
        if seen is not None and judged.result is not None:
            counts = [
                str(seen.fired_doomed),
                str(seen.fired_successes),
                percent(seen.caught / judged.result.doomed if judged.result.doomed else math.nan),
                percent(seen.kept / judged.result.successes if judged.result.successes else math.nan),
            ]
        rows.append([gate.checkpoint, layer, "never" if gate.never else f"{gate.threshold:.3f}", *counts])
    return rows


def selected_rows(sweep: Mapping[str, Any]) -> list[list[str]]:
    """One row per checkpoint: episodes, layer, AUROC, failures caught, pairs of one task, and gains over baselines."""
    rows = []
    for row in sweep["selected"]:
        gains = (row["gains"].get(name) for name in RIVALS)
        caught = row["caught_at_keep"]
        rows.append(
            [
                row["checkpoint"] + (" (ends the episode)" if row["closing"] else ""),
                f"{row['n']} ({row['failed']})",
                max(row["chosen"], key=row["chosen"].get),
                number(row["auroc"]),
                "–" if caught["value"] is None else percent(caught["value"]),
                number(row["pair_accuracy"]),
                *("–" if gain is None else number(gain["auroc"], signed=True, digits=2) for gain in gains),
            ]
        )
    return rows


def number(interval: Mapping[str, Any], *, signed: bool = False, digits: int = 3) -> str:
    """`0.812 [0.750, 0.871]`, or a dash."""
    if interval["value"] is None:
        return "–"
    value, low, high = (f"{interval[key]:{'+' if signed else ''}.{digits}f}" for key in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def share(interval: Interval) -> str:
    """`87.5 % [80.1, 93.0]`, or a dash where there is nothing to take a share of."""
    if not interval.n:
        return "–"
    return f"{percent(interval.value)} [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


def percent(value: float) -> str:
    """`87.5 %`, or a dash for NaN."""
    return "–" if math.isnan(value) else f"{100 * value:.1f} %"
