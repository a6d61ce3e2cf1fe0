"""What `recorded_runs.py` found, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from recorded_measures import BASELINES, LEAST

Row = Mapping[str, Any]

_NONE = "-"
_TITLES = {
    "n": "runs (failed)",
    "probe": "probe on states",
    "layer": "layer",
    "prompt": "prompt only",
    "surface": "surface signals",
    "tfidf": "TF-IDF",
    "pairs": "probe, same task",
    "agent": "probe, same agent",
}
_USES = {"states": "probe on states", "signals": "surface signals"}


def page(report: Row) -> str:
    """All data sets of a report, then the transfer between files."""
    parts = [overview(report["data_sets"])]
    parts += [section(record) for record in report["data_sets"]]
    if report["transfer"]:
        lines = ["## Between files", "", *_transfers(report["transfer"])]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def overview(records: Sequence[Row]) -> str:
    """One line per data set: what was read, and the best checkpoint of every column, in its place in the run."""
    titles = ["data set", "runs", "groups", "failed", "cut", "tokens read", "reading"]
    rows = []
    for record in records:
        speed = record["tokens"] / record["seconds"] if record["seconds"] else 0.0
        reading = f"{record['seconds']:.0f} s, {speed:.0f} tokens/s"
        runs = f"{record['labelled']}" + (f" + {record['unlabelled']} unlabelled" if record["unlabelled"] else "")
        shares = [_percent(record["base_rate"]), _percent(record["truncated_share"])]
        rows.append([record["name"], runs, str(record["groups"]), *shares, f"{record['tokens']:,}", reading])
    return "\n".join(table(titles, rows))


def section(record: Row) -> str:
    """One data set: how it was read, AUROC by round, what it comes to, tokens saved, transfer between its agents."""
    lines = [f"## {record['name']}", "", _read(record), ""]
    lines += table(list(_TITLES.values()), [_round(row) for row in record["rounds"]], first="checkpoint")
    lines += ["", *(f"- {sentence}" for sentence in record["verdicts"])]
    lines += [f"- {note}" for note in record["notes"]]
    lines += ["", "### Tokens saved on the held-out third at a keep of .95", "", *_saved(record["saved"])]
    if record["transfer"]:
        lines += ["", "### From one agent to another", "", *_transfers(record["transfer"])]
    return "\n".join(lines)


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], first: str | None = None) -> list[str]:
    """Lines of a Markdown table."""
    head = [*([] if first is None else [first]), *titles]
    lines = [f"| {' | '.join(head)} |", f"|{'|'.join('---' for _ in head)}|"]
    return lines + [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]


def _read(record: Row) -> str:
    lasted = f"{record['seconds']:.0f} s" if record["seconds"] else "no time"
    return (
        f"{record['labelled']} runs with an outcome of {record['groups']} groups ({record['layout']} layout, "
        f"{record['limited']}), {_percent(record['base_rate'])} failed; {record['unlabelled']} without an outcome. "
        f"{record['tokens']:,} tokens read by {record['observer']} ({record['dtype']}) in {lasted}, at most "
        f"{record['max_tokens']} of a run: {record['truncated']} runs ({_percent(record['truncated_share'])}) lost "
        "rounds."
    )


def _round(row: Row) -> list[str]:
    start = [row["checkpoint"], f"{row['n']} ({row['failed']})"]
    if "reason" in row:
        return [*start, f"{_NONE} {row['reason']}", *[_NONE] * (len(_TITLES) - 2)]
    layer = max(row["chosen"].items(), key=lambda item: item[1])[0]
    shown = [_interval(row[name]) for name in BASELINES]
    pairs = _interval(row["pair_accuracy"], bold=bool(row["within_above_chance"]))
    return [
        *start,
        _interval(row["auroc"], bold=row["above_chance"]),
        layer,
        *shown,
        pairs,
        _interval(row["same_agent"]),
    ]


def _saved(rows: Sequence[Row]) -> list[str]:
    titles = ["thresholds on", "gates", "test runs (failed)", "failures caught", "successes kept", "tokens saved"]
    titles += ["of these on failures", "promised"]
    cells, notes = [], []
    for row in rows:
        name = _USES[row["uses"]]
        if "reason" in row:
            cells.append([name, f"{_NONE} {row['reason']}", *[_NONE] * (len(titles) - 2)])
            continue
        shares = [_interval(row[key], share=True) for key in ("caught", "kept", "saved", "saved_of_failures")]
        total = f"{row['doomed'] + row['successes']} ({row['doomed']})"
        promised = "yes" if row["certified"] else "no: uncertified"
        cells.append([name, ", ".join(row["gates"]) or "all off", total, *shares, promised])
        if row["lacking"]:
            notes.append(f"- {name}: {row['lacking']}")
    return [*table(titles, cells), *(["", *notes] if notes else [])]


def _transfers(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        files = f" ({', '.join(row['runs'])})" if len(row["runs"]) > 1 else ""
        yield f"{row['checkpoint']}{files}, {_percent(row['shared'])} of the groups run by more than one:"
        yield ""
        if "reason" in row:
            yield from (f"{_NONE} {row['reason']}", "")
            continue
        matrix = row["matrix"]
        cells = {(cell["train"], cell["test"]): cell for cell in matrix["cells"]}
        tested = [f"on {kind} (surface)" for kind in matrix["kinds"]]
        lines = []
        for train in matrix["rows"]:
            own = [cells[train, test] for test in matrix["kinds"]]
            shown = [
                f"{_interval(cell['auroc'], bold=cell['above_chance'])} ({_value(cell['surface'])})" for cell in own
            ]
            lines.append([train, *shown])
        yield from table([f"trained on {row['by']}", *tested], lines)
        yield from ("", row["verdict"], "", *matrix["notes"], *([""] if matrix["notes"] else []))


def legend() -> str:
    """What the columns of the tables are."""
    return (
        f"Checkpoints with at least {LEAST} failed and {LEAST} successful runs that go on behind them. AUROC for "
        "failure with 95 % intervals over resampled groups; bold where it exceeds one half with one allowance for "
        "false words over the whole table. The layer is chosen inside the folds (here: the one chosen most often). "
        "*Same task*: share of (failed, successful) pairs of one group that are ranked rightly. *Same agent*: mean "
        "AUROC among the runs of one agent and trial; a probe that knows nothing but the agent may lie below one half "
        "there, as cross-fitted scores do. A cell `-` could not be had."
    )


def _interval(record: Row | None, *, bold: bool = False, share: bool = False) -> str:
    if record is None or record["value"] is None:
        return _NONE
    scale, digits = (100, 0) if share else (1, 2)
    value, low, high = (f"{scale * record[key]:.{digits}f}" for key in ("value", "low", "high"))
    value += " %" if share else ""
    return f"{f'**{value}**' if bold else value} [{low}, {high}]"


def _value(record: Row) -> str:
    return _NONE if record["value"] is None else f"{record['value']:.2f}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
