"""How a sweep is told: the answer in words, tables by checkpoint, the AUROC of every layer; and as a CSV file."""

from __future__ import annotations

import csv
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from probecascade.cli.tables import WIDTH, say, table, wrapped
from probecascade.errors import ProbecascadeError
from probecascade.evaluation.sweep import Sweep
from probecascade.evaluation.sweep_result import METRICS, Row, SweepResult
from probecascade.store import Run

_RIVALS = {"prompt": "prompt-only", "surface": "surface", "tfidf": "text", "embedding": "embedding"}


def next_sweep(run: Run) -> dict[str, str | None]:
    """The command that sweeps this run, or else why it would be refused, as JSON values `next` and `not_yet`."""
    try:
        Sweep.of(run)
    except ProbecascadeError as error:
        return {"next": None, "not_yet": str(error)}
    return {"next": shlex.join(["probecascade", "sweep", str(run.path)]), "not_yet": None}


def tell_next(record: Mapping[str, Any]) -> None:
    """Print what `next_sweep` found."""
    if record["next"] is None:
        return say(f"too little to sweep yet: {record['not_yet']}")
    return typer.echo(f"next: {record['next']}")


def report(result: SweepResult) -> str:
    """All of it, at most 120 columns wide."""
    parts = [
        f"{result.episodes} labelled episodes of {result.groups} groups in {result.run}, {result.failed} failed; "
        f"{len(result.layers)} layers, {len(result.checkpoints)} checkpoints",
        "\n".join(wrapped(sentence, indent="  ") for sentence in result.verdicts),
        _how_well(result),
    ]
    if any(name in row["gains"] for row in result.selected for name in _RIVALS):
        parts.append(_beyond(result))
    parts += [*_grids(result), "\n".join(wrapped(note, indent="  ") for note in _notes(result))]
    return "\n\n".join(parts)


def _how_well(result: SweepResult) -> str:
    titles = [
        "",
        "n",
        "failed",
        "layer",
        "AUROC",
        "AUPRC",
        "Brier",
        "ECE",
        f"caught {_plain(result.keep)}",
        "same task",
    ]
    rows = [
        [
            row["checkpoint"] + ("*" if row["closing"] else ""),
            str(row["n"]),
            f"{100 * row['failed'] / row['n']:.0f} %",
            _layer(row),
            *(_short(row[name]) for name in ("auroc", "auprc")),
            *(_plain(row[name]["value"]) for name in ("brier", "ece")),
            *(_short(row[name]) for name in ("caught_at_keep", "pair_accuracy")),
        ]
        for row in result.selected
    ]
    return table(titles, rows)


def _beyond(result: SweepResult) -> str:
    names = [name for name in _RIVALS if any(name in row["gains"] for row in result.selected)]
    rivals = {(row["checkpoint"], row["name"]): row["auroc"]["value"] for row in result.baselines}
    rows = []
    for row in result.selected:
        cells = [
            f"{_plain(rivals[row['checkpoint'], name])} {_short(row['gains'][name]['auroc'], signed=True)}"
            if name in row["gains"]
            else "–"
            for name in names
        ]
        rows.append([row["checkpoint"] + ("*" if row["closing"] else ""), *cells])
    titles = ["AUROC of, and beyond", *(_RIVALS[name] for name in names)]
    return table(titles, rows)


def _grids(result: SweepResult) -> Iterator[str]:
    """AUROC by checkpoint and layer, one grid per probe, in blocks of layers that fit."""
    found = {(row["probe"], row["checkpoint"], row["layer"]): row for row in result.cells}
    first = max(len(name) for name in [*result.checkpoints, "AUROC by layer"])
    fit = max(1, (WIDTH - first - 12) // 6)
    for probe in result.probes:
        for start in range(0, len(result.layers), fit):
            layers = result.layers[start : start + fit]
            rows = [[name, *(_cell(found[probe, name, layer]) for layer in layers)] for name in result.checkpoints]
            title = "AUROC by layer" if len(result.probes) == 1 else f"AUROC, {probe}"
            yield table([title, *(f"{layer} " for layer in layers)], rows)


def _cell(row: Row) -> str:
    return f"{_plain(row['auroc']['value'])}{'+' if row['above_chance'] else ' '}"


def _notes(result: SweepResult) -> Iterator[str]:
    percent = f"{100 * result.confidence:g} %"
    yield (
        "layer: chosen most often inside the folds; caught: failures, at the threshold that keeps "
        f"{100 * result.keep:g} % of successes; same task: pairs (failure, success) of a group that are ranked rightly"
    )
    yield (
        f"intervals: {percent} over resampled groups, for scores as they are; grid: + above chance at {percent} over "
        f"all {len(result.cells)} cells"
    )
    if any(row["closing"] for row in result.selected):
        yield "*: stands on the turn that ends the episode, where nothing is left to save"
    if result.skipped:
        names = ", ".join(row["checkpoint"] for row in result.skipped)
        yield f"skipped, as fewer than 20 groups of a class come there: {names}"
    if result.own_folds:
        yield f"folds of their own, as a shared one lacks a class there: {', '.join(result.own_folds)}"
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in result.absent:
        reasons.setdefault((row["name"], row["reason"]), []).append(row["checkpoint"])
    for (name, reason), checkpoints in reasons.items():
        where = "" if len(checkpoints) == len(result.checkpoints) else f" at {', '.join(checkpoints)}"
        yield f"no {name} baseline{where}: {reason}"


def _layer(row: Row) -> str:
    layer, count = max(row["chosen"].items(), key=lambda item: item[1])
    return f"{layer} ({count}/{sum(row['chosen'].values())})"


def _short(interval: Row, signed: bool = False) -> str:
    """`.81 [.75, .87]`, with signs if `signed`; `–` where there is nothing."""
    if interval["value"] is None:
        return "–"
    value, low, high = (_plain(interval[key], signed) for key in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def _plain(value: float | None, signed: bool = False) -> str:
    if value is None:
        return "–"
    text = f"{value:{'+' if signed else ''}.2f}"
    return text.replace("0.", ".", 1) if abs(value) < 1 and not text.endswith("1.00") else text


def write_csv(result: SweepResult, file: Path) -> None:
    """One line per cell, selected row and baseline: what it is, its counts, and value, low and high of each metric."""
    facts = ("row", "checkpoint", "layer", "probe", "n", "failed", "closing", "above_chance")
    metrics = [f"{name}{part}" for name in METRICS for part in ("", "_low", "_high")]
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("x", newline="", encoding="utf-8") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([*facts, *metrics])
        for kind, rows in (("cell", result.cells), ("selected", result.selected), ("baseline", result.baselines)):
            for row in rows:
                writer.writerow([*_facts(kind, row, facts[1:]), *_values(row)])


def _facts(kind: str, row: Row, names: Sequence[str]) -> Iterator[object]:
    yield kind
    named = row | {"layer": row.get("layer", _layer(row).split()[0] if "chosen" in row else "")}
    named["probe"] = row.get("probe", row.get("name"))
    for name in names:
        yield named.get(name, "")


def _values(row: Row) -> Iterator[object]:
    for name in METRICS:
        for key in ("value", "low", "high"):
            yield "" if row[name][key] is None else row[name][key]
