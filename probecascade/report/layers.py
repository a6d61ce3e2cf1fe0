"""Pictures of a sweep: which layer knows, from which round on, beside its baselines; scores over rounds; reliability.

All take the record of a sweep (`SweepResult.record()`) and its out-of-fold scores by checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from probecascade.intervals import DEFAULT, Resampling, share_interval
from probecascade.report.pictures import (
    DOOMED,
    GREEN,
    HEAT,
    ORANGE,
    PURPLE,
    SKY,
    SUCCESS,
    TARGET,
    Picture,
    Row,
    new_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Scores = Mapping[str, NDArray[np.float64]]
BoolArray = NDArray[np.bool_]

BASELINES: Mapping[str, tuple[str, str, str, str]] = {
    "prompt": ("prompt only", ORANGE, "s", "--"),
    "surface": ("surface signals", GREEN, "^", ":"),
    "tfidf": ("text so far (TF-IDF)", PURPLE, "D", "-."),
    "embedding": ("embedding layer", SKY, "v", (0, (5, 1, 1, 1, 1, 1))),  # type: ignore[dict-item]
    "random": ("random direction", "#888888", "x", (0, (1, 3))),  # type: ignore[dict-item]
}
"""The baselines that are drawn: what they are called, and colour, mark and line that no other series has."""

FEWEST = 5
"""Episodes of a class below which its average score at a checkpoint is not drawn."""

_VALUES_UP_TO = 150  # cells of one panel into which their values are written
_BINS, _PER_BIN = 10, 20  # of a reliability diagram: at most so many, with at least so many episodes in each


def heat_map(sweep: Mapping[str, Any]) -> Picture:
    """AUROC of every layer and checkpoint, one panel per kind of probe."""
    from matplotlib.patches import Rectangle

    names, layers, probes = sweep["checkpoints"], sweep["layers"], sweep["probes"]
    written = len(names) * len(layers) <= _VALUES_UP_TO
    width = min(max(2.2 + 0.42 * len(names), 5.2), 11.0)
    height = min(max(1.9 + 0.26 * len(layers), 2.8), 9.0) * len(probes)
    figure = new_figure(width, height)
    panels = figure.subplots(len(probes), 1, squeeze=False).ravel()
    cells = {(row["probe"], row["layer"], row["checkpoint"]): row for row in sweep["cells"]}
    chosen = {row["checkpoint"]: (row["probe"], max(row["chosen"], key=row["chosen"].get)) for row in sweep["selected"]}
    for probe, axes in zip(probes, panels, strict=True):
        image = _panel(axes, [[cells[probe, layer, name] for name in names] for layer in layers], written=written)
        if len(probes) > 1:
            axes.set_title(probe, fontsize="medium")
        axes.set_xticks(range(len(names)), names, rotation=60, ha="right", rotation_mode="anchor", fontsize="small")
        shown = range(0, len(layers), 1 if len(layers) <= 16 else 2)
        axes.set_yticks(list(shown), [str(layers[k]) for k in shown], fontsize="small")
        axes.set_ylabel("layer")
        for at, name in enumerate(names):
            of, layer = chosen[name]
            if of != probe:
                continue
            corner = (at - 0.5, layers.index(int(layer)) - 0.5)
            axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=DOOMED, linewidth=2, zorder=3))
        figure.colorbar(image, ax=axes, label="AUROC, out of fold", fraction=0.04, pad=0.02)
    best = max(sweep["cells"], key=lambda row: row["auroc"]["value"])
    passed = sum(bool(row["above_chance"]) for row in sweep["cells"])
    return Picture(
        name="auroc-by-layer",
        title="Which layer knows, and when",
        alt=(
            f"Heat map of the AUROC at {len(names)} checkpoints and {len(layers)} layers. The highest is "
            f"{best['auroc']['value']:.3f} at {best['checkpoint']}, layer {best['layer']}; {passed} of "
            f"{len(sweep['cells'])} cells lie above chance."
        ),
        caption=(
            "Each cell: AUROC of a probe fitted at this layer and checkpoint, on groups that it has not seen. "
            f"{'In brackets' if written else 'Crossed out'}: not above chance at a level that holds for all cells "
            f"together. Orange frames: the {'layer and the probe' if len(probes) > 1 else 'layer'} chosen most often "
            "inside the folds."
        ),
        figure=figure,
        rows=[
            {
                "checkpoint": row["checkpoint"],
                "layer": row["layer"],
                "probe": row["probe"],
                "n": row["n"],
                "failed": row["failed"],
                **_spread("auroc", row["auroc"]),
                "above_chance": row["above_chance"],
            }
            for row in sweep["cells"]
        ],
    )


def _panel(axes: Axes, rows: Sequence[Sequence[Row]], *, written: bool) -> Any:
    values = np.array([[row["auroc"]["value"] for row in line] for line in rows], dtype=np.float64)
    low = min(0.5, float(np.nanmin(values)))
    image = axes.imshow(values, origin="lower", aspect="auto", cmap=HEAT, vmin=low, vmax=1.0, interpolation="nearest")
    for y, line in enumerate(rows):
        for x, row in enumerate(line):
            sure, value = bool(row["above_chance"]), values[y, x]
            if written:
                text = f"{value:.2f}".lstrip("0")
                dark = (value - low) / (1 - low) < 0.6
                axes.text(x, y, text if sure else f"({text})", ha="center", va="center", fontsize=7,
                          color="white" if dark else "black")  # fmt: skip
            elif not sure:
                axes.plot(x, y, marker="x", color="#bbbbbb", markersize=4)
    return image


def by_round(sweep: Mapping[str, Any]) -> Picture:
    """AUROC by round of the probe that was chosen inside the folds, and of the baselines, with intervals."""
    selected = {row["checkpoint"]: row for row in sweep["selected"]}
    rivals = {(row["name"], row["checkpoint"]): row for row in sweep["baselines"]}
    drawn = [name for name in BASELINES if any(rival == name for rival, _ in rivals)]
    kinds = _kinds(sweep["checkpoints"])
    figure, panels = _grid(len(kinds))
    for (kind, names), axes in zip(kinds.items(), panels, strict=True):
        places = np.arange(len(names), dtype=float)
        series = [("probe", "probe on hidden states", SUCCESS, "o", "-"), *((name, *BASELINES[name]) for name in drawn)]
        for k, (name, label, colour, mark, style) in enumerate(series):
            found = [selected.get(at) if name == "probe" else rivals.get((name, at)) for at in names]
            _with_errors(axes, places + 0.07 * k, found, color=colour, marker=mark, linestyle=style, label=label)
        axes.axhline(0.5, color=TARGET, linewidth=0.8)
        axes.set_xticks(places, [name.split(":")[-1] for name in names], fontsize="small",
                        rotation=30 if "prompt" in names else 0)  # fmt: skip
        axes.set_xlabel(f"{kind} checkpoint")
        axes.set_ylabel("AUROC")
        axes.set_ylim(min(0.4, axes.get_ylim()[0]), 1.01)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", fontsize="small", ncols=2)
    best = max(sweep["selected"], key=lambda row: row["auroc"]["value"])
    beside = "; ".join(
        f"{BASELINES[name][0]} {rivals[name, best['checkpoint']]['auroc']['value']:.3f}"
        for name in drawn
        if (name, best["checkpoint"]) in rivals
    )
    level = f"{100 * sweep['confidence']:g} %"
    return Picture(
        name="auroc-by-round",
        title="How early, and is it more than what shows anyway?",
        alt=(
            f"AUROC by checkpoint. The probe reaches {best['auroc']['value']:.3f} at {best['checkpoint']}"
            f"{f', where the baselines have: {beside}' if beside else ''}."
        ),
        caption=(
            f"The probe (layer and kind chosen inside the folds) and the baselines, on the same episodes in the same "
            f"folds; bars are {level} intervals over groups. At 0.5 scores say nothing. Later checkpoints are reached "
            "by fewer episodes."
        ),
        figure=figure,
        rows=[
            {
                "checkpoint": row["checkpoint"],
                "series": row.get("name", "probe"),
                "n": row["auroc"]["n"],
                **_spread("auroc", row["auroc"]),
                **_spread("pair_accuracy", row["pair_accuracy"]),
            }
            for row in (*sweep["selected"], *sweep["baselines"])
        ],
    )


def trajectories(scores: Scores, failed: BoolArray) -> Picture:
    """Out-of-fold scores of failures and of successes over the rounds: medians and quartiles.

    scores: by checkpoint, (n_episodes,), NaN where there is none; failed: (n_episodes,).
    """
    kinds = {kind: names for kind, names in _kinds(list(scores)).items() if len(names) > 1} or _kinds(list(scores))
    figure, panels = _grid(len(kinds))
    rows: list[Row] = []
    for (kind, names), axes in zip(kinds.items(), panels, strict=True):
        for label, members, colour, mark, style, hatch in (
            ("failures", failed, DOOMED, "o", "-", "//"),
            ("successes", ~failed, SUCCESS, "s", "--", "\\\\"),
        ):
            quartiles = np.full((3, len(names)), np.nan)
            for at, name in enumerate(names):
                values = scores[name][members & ~np.isnan(scores[name])]
                if len(values) >= FEWEST:
                    quartiles[:, at] = np.quantile(values, [0.25, 0.5, 0.75])
                ends = dict(zip(("lower_quartile", "median", "upper_quartile"), quartiles[:, at].tolist(), strict=True))
                rows.append({"kind": kind, "checkpoint": name, "class": label, "n": len(values), **ends})
            places = np.arange(len(names))
            axes.fill_between(places, quartiles[0], quartiles[2], color=colour, alpha=0.22, hatch=hatch, linewidth=0)
            axes.plot(places, quartiles[1], color=colour, marker=mark, linestyle=style, label=label)
        axes.set_xticks(np.arange(len(names)), [name.split(":")[-1] for name in names], fontsize="small",
                        rotation=30 if "prompt" in names else 0)  # fmt: skip
        axes.set_xlabel(f"{kind} checkpoint")
        axes.set_ylabel("P(failure)")
        axes.set_ylim(-0.02, 1.02)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", fontsize="small", ncols=2)
    return Picture(
        name="trajectories",
        title="Scores of failures and successes as episodes go on",
        alt=f"Median and quartiles of the score by checkpoint. {_widest(rows)}",
        caption=(
            "Lines: median out-of-fold score of the episodes still running; bands: their quartiles. A checkpoint that "
            f"fewer than {FEWEST} episodes of a class reach is left out. Each checkpoint has a probe of its own, "
            "and an episode that ended earlier is no longer in later ones."
        ),
        figure=figure,
        rows=rows,
    )


def _widest(rows: Sequence[Row]) -> str:
    """Where the medians of the two classes lie furthest apart."""
    medians = {(row["checkpoint"], row["class"]): row["median"] for row in rows}
    gaps = {
        name: medians[name, "failures"] - medians[name, "successes"]
        for name, label in medians
        if label == "failures" and not math.isnan(medians[name, "failures"] - medians[name, "successes"])
    }
    if not gaps:
        return "No checkpoint is reached by enough episodes of both classes."
    name = max(gaps, key=lambda key: gaps[key])
    failures, successes = medians[name, "failures"], medians[name, "successes"]
    return f"Medians are furthest apart at {name}: {failures:.2f} for failures, {successes:.2f} for successes."


def reliability(
    scores: Scores,
    failed: BoolArray,
    groups: NDArray[Any],
    errors: Mapping[str, float],
    resampling: Resampling = DEFAULT,
) -> Picture:
    """Share of failures among episodes of about the same score, one panel per checkpoint.

    scores: by checkpoint, (n_episodes,), NaN where there is none; errors: calibration error by checkpoint.
    """
    figure, panels = _grid(len(scores), square=True)
    rows: list[Row] = []
    for (name, all_scores), axes in zip(scores.items(), panels, strict=True):
        here = ~np.isnan(all_scores)
        values, labels, own = all_scores[here], failed[here], groups[here]
        bins = max(1, min(_BINS, len(values) // _PER_BIN))
        order = np.argsort(values, kind="stable")
        for part in np.array_split(order, bins):
            chosen = np.zeros(len(values), dtype=np.bool_)
            chosen[part] = True
            share = share_interval(labels, chosen, own, resampling)
            rows.append(
                {
                    "checkpoint": name,
                    "n": share.n,
                    "mean_score": float(values[part].mean()),
                    "failed": share.value,
                    "failed_low": share.low,
                    "failed_high": share.high,
                }
            )
        mine = rows[-bins:]
        values_at = np.array([row["failed"] for row in mine])
        reach = np.array([[r["failed"] - r["failed_low"], r["failed_high"] - r["failed"]] for r in mine]).T
        axes.plot([0, 1], [0, 1], color=TARGET, linewidth=0.8, linestyle=":")
        axes.errorbar([row["mean_score"] for row in mine], values_at, yerr=np.maximum(reach, 0), color=SUCCESS,
                      marker="o", markersize=4, capsize=3)  # fmt: skip
        axes.set_title(f"{name}, calibration error {errors[name]:.3f}", fontsize="small")
        axes.set_xlabel("mean score")
        axes.set_ylabel("share that failed")
        axes.set_xlim(-0.02, 1.02)
        axes.set_ylim(-0.02, 1.02)
    listed = ", ".join(f"{name} {error:.3f}" for name, error in errors.items())
    return Picture(
        name="reliability",
        title="Does a score of 0.8 mean that 8 in 10 fail?",
        alt=f"Share of failures against mean score, in bins of equal size. Calibration errors: {listed}.",
        caption=(
            "Out-of-fold scores in bins of as many episodes each; on the dotted line scores are shares. Bars are "
            f"{100 * resampling.confidence:g} % intervals over groups. Thresholds need the order of scores only."
        ),
        figure=figure,
        rows=rows,
    )


def _kinds(names: Sequence[str]) -> dict[str, list[str]]:
    """Checkpoints by kind, in order of their numbers; `prompt` stands before those of every other kind."""
    kinds: dict[str, list[str]] = {}
    for name in names:
        kind, _, index = name.partition(":")
        if index:
            kinds.setdefault(kind, []).append(name)
    start = [name for name in names if ":" not in name]
    if not kinds:
        return {name: [name] for name in start}
    return {kind: [*start, *sorted(own, key=lambda name: int(name.split(":")[1]))] for kind, own in kinds.items()}


def _grid(n: int, *, square: bool = False) -> tuple[Figure, list[Axes]]:
    columns = min(n, 3 if square else 2)
    lines = math.ceil(n / columns)
    figure = new_figure(2.9 * columns + 0.6 if square else 3.9 * columns + 0.6, 3.0 * lines + (0.1 if square else 0.7))
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes in panels[n:]:
        axes.remove()
    return figure, list(panels[:n])


def _with_errors(axes: Axes, places: NDArray[np.float64], rows: Sequence[Row | None], **look: Any) -> None:
    """A line through the AUROC of the rows that there are, with their intervals."""
    there: Iterator[tuple[float, Row]] = (
        (place, row["auroc"])
        for place, row in zip(places.tolist(), rows, strict=True)
        if row is not None and row["auroc"]["value"] is not None
    )
    points = list(there)
    if not points:
        return
    values = np.array([auroc["value"] for _, auroc in points])
    low, high = (np.array([auroc[end] for _, auroc in points], dtype=np.float64) for end in ("low", "high"))
    axes.errorbar([place for place, _ in points], values, yerr=np.maximum([values - low, high - values], 0),
                  markersize=4.5, capsize=2, linewidth=1.4, **look)  # fmt: skip


def _spread(name: str, interval: Row) -> dict[str, Any]:
    return {name: interval["value"], f"{name}_low": interval["low"], f"{name}_high": interval["high"]}
