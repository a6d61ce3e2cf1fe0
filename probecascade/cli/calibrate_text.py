"""What `probecascade calibrate` prints and writes: episodes, conditions, the choice of a target, shares by gate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from fractions import Fraction
from typing import Any

import numpy as np

from probecascade.cli.scores import ScoreTable
from probecascade.cli.tables import folded, interval_record, jsonable, table, wrapped
from probecascade.intervals import Interval, Resampling
from probecascade.report import shares_by_gate
from probecascade.thresholds import Backtest, Calibration, Feasibility, percent
from probecascade.thresholds.operating import ASSUMPTIONS, ON_TEACHERS, OperatingPoint
from probecascade.thresholds.promise import counted

_SHARES = ("alive", "fired", "caught", "kept", "saved")


def episodes_record(of: ScoreTable) -> dict[str, Any]:
    """How many episodes a file gives, as JSON values."""
    return {
        "file": of.path,
        "doomed": of.data.doomed,
        "successes": of.data.successes,
        "groups": len(np.unique(of.labels)),
        "gates": list(of.gates),
        "costs": of.costs,
    }


def episodes_text(of: ScoreTable, role: str) -> str:
    """The same in a line; `role` says what the episodes are for."""
    n = len(of.data.failed)
    groups = "" if of.groups is None else f" of {counted(len(np.unique(of.groups)), 'group')}"
    return (
        f"{counted(n, 'episode')}{groups} from {of.path} {role}: {counted(of.data.doomed, 'failure')}, "
        f"{counted(of.data.successes, 'success')}, {counted(len(of.gates), 'gate')}"
    )


def conditions(calibration: Calibration, of: ScoreTable) -> list[str]:
    """Under what conditions the promise holds; none where nothing is promised."""
    if not any(certificate.certified for certificate in calibration.certificates):
        return []
    if calibration.unit == "group":
        unit = "each group counts once, whatever its size; of single episodes nothing is promised"
    elif of.groups is not None:
        unit = "each episode counts, and episodes of one group may depend on each other; groups must not"
    else:
        unit = "each episode counts, and no two may depend on each other, since no groups were given"
    return [
        f"Unit: {unit}.",
        "New episodes must be exchangeable with these: the same mix of tasks, the same agent, model and probes.",
        f"The {percent(Fraction(str(calibration.confidence)))} are over all calibrations, those without a certificate "
        "included: "
        "where a target is so hard that few are certified, more of the certified ones may be wrong.",
    ]


def feasibility_record(found: Feasibility, gates: Sequence[str], sentence: str) -> dict[str, Any]:
    """A prediction as JSON values."""
    return {
        "likely": found.likely,
        "keep": None if found.keep is None else str(found.keep),
        "catch": {gates[gate]: str(share) for gate, share in found.catch},
        "doomed": found.doomed,
        "successes": found.successes,
        "sentence": sentence,
    }


def operating_record(chosen: OperatingPoint) -> dict[str, Any]:
    """The choice of a target as JSON values, with the whole curve."""
    return {
        "keep": None if chosen.keep is None else str(chosen.keep),
        "price_per_token": chosen.price_per_token,
        "worth_per_success": chosen.worth_per_success,
        "never_aborting": chosen.never,
        "best": str(chosen.best.keep),
        "gain": interval_record(chosen.gain),
        "over_neighbours": {str(keep): interval_record(gain) for keep, gain in chosen.over_neighbours.items()},
        "curve": [asdict(point) | {"keep": str(point.keep)} for point in chosen.points],
        "sentence": chosen.sentence,
        "assumptions": [ASSUMPTIONS, ON_TEACHERS],
    }


def operating_text(chosen: OperatingPoint) -> str:
    """The curve around the choice, and the choice in words."""
    rows = []
    for point in (*chosen.points, None):
        if point is None:
            mark = "best" if chosen.keep is None else ""
            rows.append(["never abort", "100.0 %", "0.0 %", "0.0 %", f"{chosen.never:.4g}", "0", mark])
            continue
        shares = [f"{100 * share:.1f} %" for share in (point.kept, point.caught, point.saved)]
        mark = "best" if point is chosen.best and chosen.keep is not None else ""
        rows.append([percent(point.keep), *shares, f"{point.value:.4g}", f"{point.gain:+.4g}", mark])
    titles = ["keep target", "successes kept", "failures caught", "tokens saved", "value", "gain", ""]
    beside = [
        f"over {percent(keep)} it gains {_signed(gain)} an episode" for keep, gain in chosen.over_neighbours.items()
    ]
    lines = [
        table(titles, rows),
        "value and gain per episode, cross-fitted on the teaching episodes",
        wrapped(chosen.sentence),
    ]
    if beside and chosen.keep is not None:
        lines.append(wrapped(f"Beside its neighbours: {'; '.join(beside)}."))
    return "\n".join(lines)


def judged_record(calibration: Calibration, of: ScoreTable, result: Backtest, resampling: Resampling) -> dict[str, Any]:
    """What the thresholds do to the episodes of a file, by gate and in all, as JSON values."""
    shares = shares_by_gate(of.data, result, of.groups, of.total, resampling)
    saving = result.saved["tokens"]
    return {
        "file": of.path,
        "doomed": result.doomed,
        "successes": result.successes,
        "caught": interval_record(shares[-1].caught) | {"count": result.caught_count},
        "kept": interval_record(shares[-1].kept) | {"count": result.kept_count},
        "precision": interval_record(result.precision),
        "saved": interval_record(saving.share)
        | {"of_doomed": interval_record(saving.doomed_share), "of_successes": interval_record(saving.success_share)},
        "saved_of": _saved_of(of),
        "gates": [
            {"gate": name, "threshold": jsonable(float(threshold))}
            | {
                f"{what}_{whom}": getattr(counts, f"{what}_{whom}")
                for what in ("alive", "fired")
                for whom in ("doomed", "successes")
            }
            | {"caught_count": counts.caught, "kept_count": counts.kept}
            | {key: interval_record(getattr(share, key)) for key in _SHARES}
            for name, threshold, counts, share in zip(
                calibration.gates, calibration.thresholds, result.gates, shares, strict=True
            )
        ],
    }


def judged_text(calibration: Calibration, of: ScoreTable, judged: Mapping[str, Any], *, in_sample: bool) -> str:
    """A record of `judged_record` for people."""
    counts, shares = [], []
    for gate, threshold in zip(judged["gates"], calibration.thresholds, strict=True):
        counts.append(
            [
                gate["gate"],
                f"{threshold:.4f}" if np.isfinite(threshold) else "never",
                f"{gate['alive_doomed']} + {gate['alive_successes']}",
                f"{gate['fired_doomed']} + {gate['fired_successes']}",
                f"{gate['caught_count']}/{judged['doomed']}",
                f"{gate['kept_count']}/{judged['successes']}",
            ]
        )
        shares.append([gate["gate"], *(_short(gate[key]) for key in _SHARES)])
    where = (
        f"On the episodes of {of.path}, which set the thresholds: these numbers flatter them"
        if in_sample
        else f"On the episodes of {of.path}, which shaped nothing"
    )
    count_titles = ["gate", "threshold", "alive (f + s)", "aborted (f + s)", "caught so far", "kept so far"]
    share_titles = ["gate", "alive, %", "aborted of alive, %", "failures caught, %", "successes kept, %", "saved, %"]
    by = "groups" if of.groups is not None else "episodes"
    return "\n".join(
        [
            where,
            folded(count_titles, counts),
            "f: failures, s: successes",
            "",
            folded(share_titles, shares),
            wrapped(
                f"in brackets: 95 % intervals over {by}; caught, kept and saved up to and including the gate; saved: "
                f"of {judged['saved_of']}"
            ),
            f"of the aborts {_percent(judged['precision'])} hit a failure",
        ]
    )


def _saved_of(of: ScoreTable) -> str:
    if not of.costs:
        return "the episodes that reach a gate, since the file gives no tokens"
    if of.total is None:
        return "the tokens after the first gate that an episode reaches, since the file has no column 'tokens'"
    return "all tokens, strictly after the gate"


def _short(share: Mapping[str, Any]) -> str:
    if not share["n"]:
        return "–"
    return f"{100 * share['value']:.1f} [{100 * share['low']:.1f}, {100 * share['high']:.1f}]"


def _percent(share: Mapping[str, Any]) -> str:
    if not share["n"]:
        return "– (there were none)"
    return f"{100 * share['value']:.1f} % [{100 * share['low']:.1f}, {100 * share['high']:.1f}] (n={share['n']})"


def _signed(gain: Interval) -> str:
    return f"{gain.value:+.4g} [{gain.low:+.4g}, {gain.high:+.4g}]"
