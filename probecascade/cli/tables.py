"""How results look: tables for people, the same numbers as JSON values for programs."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import typer

from probecascade.cli.escapes import in_line, shown
from probecascade.evaluation import Backtest, PolicyOutcome
from probecascade.policies import Cascade, Gate
from probecascade.probes import Interval, signals_read

SHARES = ("success", "caught", "kept", "tokens_saved", "calls_saved", "seconds_saved")
_TITLES = ("success", "failures caught", "successes kept", "tokens saved", "calls saved", "seconds saved")


WIDTH = 120
"""Columns of a page: longer sentences go on in the next line, wider tables below."""


def wrapped(sentence: str, indent: str = "") -> str:
    """A sentence in lines of at most `WIDTH`, the later ones indented; words, such as paths, stay whole."""
    return textwrap.fill(
        shown(sentence), WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def say(sentence: str, indent: str = "") -> None:
    """Print a sentence, wrapped, to a terminal and to a file alike."""
    typer.echo(wrapped(sentence, indent))


def print_json(record: Mapping[str, Any]) -> None:
    """One object on stdout. Numbers that do not exist (a share of nothing) are null."""
    text = json.dumps(jsonable(record), indent=2, ensure_ascii=False, allow_nan=False)
    # Half of a surrogate pair has no UTF-8, and its escape is JSON's own.
    typer.echo(text.encode("utf-8", "backslashreplace").decode("utf-8"))


def jsonable(value: Any) -> Any:
    """The value with every float that JSON cannot hold as None, tuples as lists."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value


def interval_record(interval: Interval) -> dict[str, Any]:
    """An interval as JSON values, with the n it is of."""
    return {
        "value": jsonable(interval.value),
        "low": jsonable(interval.low),
        "high": jsonable(interval.high),
        "n": interval.n,
    }


def share_text(interval: Interval) -> str:
    """`87.5 % [80.1, 93.0] n=40`, or `– n=0` where there is nothing to take a share of."""
    if not interval.n:
        return "– n=0"
    value, low, high = (100 * x for x in (interval.value, interval.low, interval.high))
    return f"{value:.1f} % [{low:.1f}, {high:.1f}] n={interval.n}"


def auroc_text(interval: Interval | None) -> str:
    """`0.812 [0.750, 0.871] n=100`, or `–` where one class is missing."""
    if interval is None:
        return "–"
    return f"{interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}] n={interval.n}"


def threshold_text(threshold: float) -> str:
    """A threshold on P(failure); `never` where no probability reaches it, whatever the number."""
    return "never" if threshold > 1 else f"{threshold:.4f}"


def seen_text(gate: Gate) -> str:
    """What a gate's probe looks at, in few letters: `20`, `29+30`, `20, 2 earlier`, `20 + text`, or `signals`."""
    own = sorted({layer for name, layer in gate.taps if name == gate.checkpoint})
    earlier = len({name for name, _ in gate.taps}) - 1
    states = "+".join(map(str, own)) + (f", {earlier} earlier" if earlier > 0 else "")
    more = ("signals",) if signals_read(gate.probe, gate.layer) else ()
    return " + ".join([*([states] if own else []), *more, *sorted(gate.reads & {"text", "checks"})])


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as they need to be, the first to the left and the others to the right."""
    cells = [[in_line(cell) for cell in row] for row in (titles, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(titles))]
    lines = []
    for row in cells:
        first, *others = (
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join([first, *others]).rstrip())
    lines.insert(1, "  ".join("─" * width for width in widths))
    return "\n".join(lines)


def folded(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """`table`, with the columns for which a page is not wide enough in further tables below, each with the first."""
    widths = [max(len(in_line(row[i])) for row in (titles, *rows)) for i in range(len(titles))]
    blocks: list[list[int]] = [[]]
    for i in range(1, len(titles)):
        if blocks[-1] and widths[0] + sum(widths[j] + 2 for j in (*blocks[-1], i)) > WIDTH:
            blocks.append([])
        blocks[-1].append(i)
    return "\n\n".join(
        table([titles[0], *(titles[i] for i in block)], [[row[0], *(row[i] for i in block)] for row in rows])
        for block in blocks
    )


def outcome_record(outcome: PolicyOutcome) -> dict[str, Any]:
    """A policy's outcome as JSON values."""
    return {
        "name": outcome.name,
        "n": outcome.n,
        **{key: interval_record(getattr(outcome, key)) for key in (*SHARES, "seconds")},
        "diverged": outcome.diverged,
        "unlabelled": outcome.unlabelled,
        "read_off": outcome.read_off,
    }


def outcome_table(outcomes: Sequence[PolicyOutcome]) -> str:
    """One column per policy: shares with 95 % intervals over groups and the n they are of."""
    rows = [
        [title, *(share_text(getattr(outcome, key)) for outcome in outcomes)]
        for key, title in zip(SHARES, _TITLES, strict=True)
    ]
    rows.append(["s per episode", *(_seconds_text(outcome.seconds) for outcome in outcomes)])
    return table(["policy", *(outcome.name for outcome in outcomes)], rows)


def _seconds_text(interval: Interval) -> str:
    return f"{interval.value:.2f} [{interval.low:.2f}, {interval.high:.2f}] n={interval.n}"


def backtest_record(result: Backtest, cascade: Cascade) -> dict[str, Any]:
    """A back-test as JSON values: counts, shares, savings by currency, and every gate's counts."""
    gates = []
    for gate, seen in zip(cascade.gates, result.gates, strict=True):
        gates.append(
            {
                "checkpoint": gate.checkpoint,
                "layer": gate.layer,
                "threshold": jsonable(gate.threshold),
                "target": gate.target,
                "alive_doomed": seen.alive_doomed,
                "alive_successes": seen.alive_successes,
                "fired_doomed": seen.fired_doomed,
                "fired_successes": seen.fired_successes,
                "caught": seen.caught,
                "kept": seen.kept,
            }
        )
    return {
        "episodes": result.doomed + result.successes,
        "doomed": result.doomed,
        "successes": result.successes,
        "caught": interval_record(result.caught) | {"count": result.caught_count},
        "kept": interval_record(result.kept) | {"count": result.kept_count},
        "precision": interval_record(result.precision),
        "saved": {
            name: interval_record(saving.share)
            | {
                "of_doomed": interval_record(saving.doomed_share),
                "of_successes": interval_record(saving.success_share),
            }
            for name, saving in result.saved.items()
        },
        "withheld": {"doomed": result.withheld_doomed, "successes": result.withheld_successes},
        "gates": gates,
    }


def alive_words(gates: Sequence[Gate]) -> tuple[str, str]:
    """The title over the counts of episodes that a gate judged, and what has to be said of it, if anything."""
    if not any(gate.trigger is not None for gate in gates):
        return "alive (f + s)", ""
    return "looked at (f + s)", "looked at: alive, and where the trigger looks; others pass a gate unseen"


def backtest_text(result: Backtest, cascade: Cascade) -> str:
    """A back-test for people."""
    rows = []
    for gate, seen in zip(cascade.gates, result.gates, strict=True):
        rows.append(
            [
                gate.checkpoint,
                seen_text(gate),
                threshold_text(gate.threshold),
                f"{seen.alive_doomed} + {seen.alive_successes}",
                f"{seen.fired_doomed} + {seen.fired_successes}",
                f"{seen.caught}/{result.doomed}",
                f"{seen.kept}/{result.successes}",
            ]
        )
    alive, note = alive_words(cascade.gates)
    titles = ["gate", "sees", "threshold", alive, "aborted (f + s)", "caught so far", "kept so far"]
    lines = [
        folded(titles, rows),
        "f: failures, s: successes" + (f"; {note}" if note else ""),
        "",
        f"failures caught            {share_text(result.caught)}",
        f"successes kept             {share_text(result.kept)}",
        f"aborts that hit a failure  {share_text(result.precision)}",
    ]
    for name, saving in result.saved.items():
        parts = f"of all: doomed {share_of_all(saving.doomed_share)}, successes {share_of_all(saving.success_share)}"
        lines.append(f"{name + ' saved':<26} {share_text(saving.share)} ({parts})")
    if cascade.gate_answers:
        withheld = f"{result.withheld_doomed} of failures, {result.withheld_successes} of successes"
        lines.append(f"answers withheld           {withheld}")
    return "\n".join(lines)


def share_of_all(interval: Interval) -> str:
    """A share without its interval."""
    return f"{100 * interval.value:.1f} %" if interval.n else "–"
