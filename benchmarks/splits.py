"""Promises on recorded episodes: over many splits of one run, how often does a promise break, and what is saved?

    python benchmarks/splits.py RUN --keep 0.9 0.95 --splits 20

Every split fits the probes anew on half of the groups, sets thresholds by every method on a quarter, and counts on the
last quarter. A *break* is a test side that refutes the promise: the one-sided 95 % upper bound (Clopper-Pearson) on the
share of its successes that are kept lies below the target. Splits of one run overlap, so their breaks come together.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from probecascade.policies import fit_cascade, score_run
from probecascade.store import Run, assign_split
from probecascade.thresholds import METHODS, calibrate, upper_bound

SHARES = (50, 25, 25)


def judge_split(run: Run, keeps: list[str], gates: list[str] | None, seed: int) -> list[dict[str, Any]]:
    """One row per method and keep target: what it promises, and what it does on the test episodes of this split."""
    fitted = fit_cascade(run, keep=keeps[0], gates=gates, method="empirical", split_seed=seed, shares=SHARES)
    table, episodes = score_run(run, fitted.cascade.gates), run.episodes
    split = assign_split(episodes.group.tolist(), seed=seed, shares=SHARES)
    own, test = (episodes.labelled & (split == name) for name in ("calibrate", "test"))
    rows = []
    for keep in keeps:
        for method in METHODS:
            found = calibrate(
                table.scores[own],
                episodes.failed[own],
                episodes.group[own],
                table.tokens_after[own],
                keep=keep,
                method=method,
                teachers=fitted.teachers,
                seed=seed,
            )
            seen = found.evaluate(
                table.scores[test],
                episodes.failed[test],
                episodes.group[test],
                table.tokens_after[test],
                cost_total=episodes.tokens[test],
            )
            limit = float(upper_bound(seen.kept_count, seen.successes, confidence=0.95))
            rows.append(
                {
                    "split": seed,
                    "keep": keep,
                    "method": method,
                    "certified": found.certified,
                    "missing": found.needed["successful"],
                    "broken": limit < float(keep),
                    "kept": seen.kept.value,
                    "caught": seen.caught.value,
                    "saved": seen.saved["tokens"].share.value,
                    "successes": seen.successes,
                    "doomed": seen.doomed,
                }
            )
    return rows


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over the splits, one row per keep target and method."""
    cells: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        cells[row["keep"], row["method"]].append(row)
    return [
        {
            "keep": keep,
            "method": method,
            "splits": len(cell),
            "certified": sum(row["certified"] for row in cell),
            "broken": sum(row["broken"] for row in cell),
            "below": sum(row["kept"] < float(keep) for row in cell),
            **{name: float(np.mean([row[name] for row in cell])) for name in ("kept", "caught", "saved", "successes")},
        }
        for (keep, method), cell in cells.items()
    ]


def markdown(cells: list[dict[str, Any]]) -> str:
    """The summary as a table."""
    lines = [
        "| keep | method | certified | breaks | kept below target | kept | failures caught | tokens saved |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {c['keep']} | {c['method']} | {c['certified']}/{c['splits']} | {c['broken']}/{c['splits']} "
        f"| {c['below']}/{c['splits']} | {c['kept']:.3f} | {c['caught']:.3f} | {c['saved']:.3f} |"
        for c in cells
    ]
    return "\n".join(lines)


def main() -> int:
    """Run from the command line; see the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run that `probecascade extract` made")
    parser.add_argument("--keep", nargs="+", default=["0.9", "0.95"], help="keep targets")
    parser.add_argument("--gates", help="checkpoints, comma-separated; default: all that enough episodes reach")
    parser.add_argument("--splits", type=int, default=20, help="how many splits by group")
    parser.add_argument("--json", action="store_true", help="print one JSON object with every row")
    options = parser.parse_args()
    run = Run.open(options.run)
    gates = options.gates.split(",") if options.gates else None
    rows: list[dict[str, Any]] = []
    for seed in tqdm(range(options.splits), file=sys.stderr, disable=not sys.stderr.isatty(), unit="split"):
        rows += judge_split(run, options.keep, gates, seed)
    episodes = run.episodes
    counted = {
        "labelled": int(episodes.labelled.sum()),
        "success_share": float(1 - episodes.failed[episodes.labelled].mean()),
    }
    if options.json:
        print(json.dumps({"run": run.path.name, **counted, "summary": summary(rows), "rows": rows}))
        return 0
    print(f"{counted['labelled']} labelled episodes, success {100 * counted['success_share']:.1f} %")
    print(markdown(summary(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
