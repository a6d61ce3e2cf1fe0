"""Pictures of what aborts hit: how long before the end, which failure modes, and whether probes travel."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from probecascade.intervals import DEFAULT, Resampling, share_interval
from probecascade.report.held_out import Judged
from probecascade.report.pictures import DOOMED, HEAT, SUCCESS, TARGET, Picture, Row, drawable, new_figure
from probecascade.store import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CLASSES = (("failures", True, DOOMED, "-", "//"), ("would-be successes", False, SUCCESS, "--", "\\\\"))
_LABEL = 24  # characters of a kind's name that a transfer matrix has room for


def leads(run: Run, judged: Judged) -> list[Row]:
    """One row per abort of an episode that had no part in the cascade: how much was still to come, and how long it was
    lost (None where the environment does not know; below 0: the abort came first)."""
    return [row for g, gate in enumerate(judged.gates) for row in _leads_at(run, judged, g, gate)]


def lead_sentence(rows: Sequence[Row]) -> str:
    """How early the aborts of failures came, in words; empty where there is none."""
    own = [row for row in rows if row["failed"]]
    if not own:
        return ""
    tokens, rounds = (float(np.median([row[key] for row in own])) for key in ("tokens_to_end", "rounds_to_end"))
    text = (
        f"Half of the {len(own)} aborted failures had at least {tokens:.0f} tokens still to come, half at least "
        f"{rounds:g} rounds."
    )
    since = [row["tokens_after_doomed"] for row in own if row["tokens_after_doomed"] is not None]
    if not since:
        return text
    before, at = sum(value < 0 for value in since), sum(value == 0 for value in since)
    return (
        f"{text} Of the {len(since)} of which the environment knows when they were lost, {before} were aborted before "
        f"that token, {at} at it and {len(since) - before - at} after it."
    )


def lead_time(rows: Sequence[Row]) -> Picture:
    """How much was still to come when a gate aborted, and how long after the episode was lost; rows of `leads`."""
    known = [row for row in rows if row["tokens_after_doomed"] is not None]
    figure = new_figure(8.2, 6.2 if known else 3.4)
    panels = figure.subplots(2 if known else 1, 2, squeeze=False).ravel()
    _curve(panels[0], rows, "tokens_to_end", "tokens still to come at the abort")
    _bars(panels[1], rows, "rounds_to_end", "rounds still to come at the abort")
    if known:
        _curve(panels[2], known, "tokens_after_doomed", "tokens from being lost to the abort")
        _bars(panels[3], known, "rounds_after_doomed", "rounds from being lost to the abort")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", fontsize="small", ncols=2)
    return Picture(
        name="lead-time",
        title="How early do aborts come?",
        alt=lead_sentence(rows) or "No failure was aborted.",
        caption=(
            f"The {len(rows)} aborts among the episodes that took no part in the cascade. Upper panels: what the "
            "episode went on to spend after the gate."
            + (" Lower panels: from the moment at which the environment knew it as lost; below 0 the abort came first."
               if known else " The environment does not tell when an episode is lost.")
        ),
        figure=figure,
        rows=rows,
    )  # fmt: skip


def _leads_at(run: Run, judged: Judged, g: int, gate: str) -> Iterator[Row]:
    hit = judged.use & (judged.first == g)
    if not hit.any():
        return
    table, here = run.episodes, run.rows(gate)
    round_of = dict(zip(here.episode.tolist(), here.round.tolist(), strict=True))
    for index in np.flatnonzero(hit).tolist():
        lost_round, lost_tokens = int(table.doomed_round[index]), int(table.doomed_tokens[index])
        to_end = int(judged.table.tokens_after[index, g])
        since = int(table.tokens[index]) - to_end - lost_tokens
        yield {
            "episode": table.episode_id[index],
            "gate": gate,
            "failed": bool(table.failed[index]),
            "tokens_to_end": to_end,
            "rounds_to_end": int(table.rounds[index]) - round_of[index],
            "tokens_after_doomed": since if lost_tokens >= 0 else None,
            "rounds_after_doomed": round_of[index] - lost_round if lost_round >= 0 else None,
        }


def _curve(axes: Axes, rows: Sequence[Row], key: str, label: str) -> None:
    """Share of the aborts with at least so much of it."""
    for name, failed, colour, style, _ in _CLASSES:
        values = np.sort([row[key] for row in rows if row["failed"] is failed])
        if len(values):
            share = 100 * (1 - np.arange(len(values)) / len(values))
            axes.step(np.append(values, values[-1]), np.append(share, 0), where="pre", color=colour, linestyle=style,
                      label=f"{name} (n = {len(values)})")  # fmt: skip
    axes.set_xlabel(label)
    axes.set_ylabel("aborts with at least that (%)")
    axes.set_ylim(0, 103)
    if axes.get_xlim()[0] < 0:
        axes.axvline(0, color=TARGET, linewidth=0.8, linestyle=":")


def _bars(axes: Axes, rows: Sequence[Row], key: str, label: str) -> None:
    from matplotlib.ticker import MaxNLocator

    for k, (_, failed, colour, _, hatch) in enumerate(_CLASSES):
        counts = Counter(row[key] for row in rows if row["failed"] is failed and row[key] is not None)
        places = np.array(sorted(counts), dtype=float)
        axes.bar(places + 0.4 * k - 0.2, [counts[int(place)] for place in places], width=0.4, color=colour,
                 hatch=hatch, edgecolor="white", linewidth=0.3)  # fmt: skip
    axes.set_xlabel(label)
    axes.set_ylabel("aborts")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))


def failure_modes(run: Run, modes: NDArray[Any], judged: Judged | None, resampling: Resampling = DEFAULT) -> Picture:
    """How often episodes failed in each mode, and which of them a cascade catches.

    modes: (n_episodes,) text, empty where the episode did not fail; at least one is not.
    """
    counts = Counter(mode for mode in modes.tolist() if mode)
    names = sorted(counts, key=lambda mode: (counts[mode], mode))
    figure = new_figure(8.2 if judged else 5.4, 1.4 + 0.42 * len(names))
    panels = figure.subplots(1, 2 if judged else 1, squeeze=False, sharey=True).ravel()
    words = [name.replace("_", " ") for name in names]
    panels[0].barh(words, [counts[name] for name in names], color=SUCCESS)
    for y, name in enumerate(names):
        panels[0].text(counts[name], y, f" {counts[name]}", va="center", fontsize="small")
    panels[0].set_xlabel("failed episodes of the run")
    panels[0].margins(x=0.15)
    rows: list[Row] = []
    for y, name in reversed(list(enumerate(names))):
        row: dict[str, Any] = {"mode": name, "failed": counts[name]}
        if judged is not None:
            own = judged.use & (modes == name)
            share = share_interval(judged.first >= 0, own, run.episodes.group, resampling)
            row |= {"judged": share.n, "caught": share.value, "caught_low": share.low, "caught_high": share.high}
            if share.n:
                reach = np.maximum([[share.value - share.low], [share.high - share.value]], 0)
                panels[1].errorbar([100 * share.value], [y], xerr=100 * reach, color=DOOMED, marker="D", capsize=4)
            panels[1].text(103, y, f"n = {share.n}", va="center", fontsize="small")
        rows.append(row)
    if judged is not None:
        panels[1].set_xlim(-3, 122)
        panels[1].set_xticks([0, 25, 50, 75, 100])
        panels[1].set_xlabel("of these caught by the cascade (%)\n(episodes that took no part in it)")
    listed = ", ".join(f"{row['mode'].replace('_', ' ')} {row['failed']}" for row in rows)
    return Picture(
        name="failure-modes",
        title="How episodes fail",
        alt=f"Failed episodes by mode: {listed}.",
        caption=(
            "One mode per failed episode, by rules on the transcript (the first that holds)."
            + (f" Bars are {100 * resampling.confidence:g} % intervals over groups." if judged else "")
        ),
        figure=figure,
        rows=rows,
    )


def transfer_matrices(record: Mapping[str, Any]) -> Picture:
    """AUROC of probes trained on one kind of episodes and tested on another, one panel per checkpoint.

    record: what `probecascade transfer --json` printed. KeyError or TypeError where it is something else.
    """
    matrices = record["matrices"]
    widest, tallest = max(len(m["kinds"]) for m in matrices), max(len(m["rows"]) for m in matrices)
    columns = min(len(matrices), 2)
    lines = math.ceil(len(matrices) / columns)
    figure = new_figure((2.2 + 0.85 * widest) * columns, (1.5 + 0.5 * tallest) * lines)
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    rows: list[Row] = []
    for matrix, axes in zip(matrices, panels, strict=False):
        values = np.full((len(matrix["rows"]), len(matrix["kinds"])), np.nan)
        for cell in matrix["cells"]:
            y, x = matrix["rows"].index(cell["train"]), matrix["kinds"].index(cell["test"])
            auroc, surface = cell["auroc"], cell["surface"]
            if auroc["value"] is not None:
                values[y, x] = auroc["value"]
                axes.text(x, y, f"{auroc['value']:.2f}", ha="center", va="center", fontsize=8,
                          color="white" if auroc["value"] < 0.8 else "black")  # fmt: skip
            facts = {key: cell[key] for key in ("train", "test", "n", "failed")}
            ends = {"auroc": auroc["value"], "auroc_low": auroc["low"], "auroc_high": auroc["high"]}
            shares = {"surface": surface["value"], "kept": cell["kept"]["value"], "caught": cell["caught"]["value"]}
            rows.append({"checkpoint": matrix["checkpoint"], **facts, **ends, **shares})
        axes.imshow(values, aspect="auto", cmap=HEAT, vmin=0.5, vmax=1.0, interpolation="nearest")
        kinds, trained = ([_short(str(kind)) for kind in matrix[key]] for key in ("kinds", "rows"))
        axes.set_xticks(range(len(kinds)), kinds, rotation=30, ha="right", fontsize="small")
        axes.set_yticks(range(len(trained)), trained, fontsize="small")
        axes.set_title(matrix["checkpoint"], fontsize="medium")
        axes.set_xlabel("tested on")
        axes.set_ylabel("trained on")
    for axes in panels[len(matrices) :]:
        axes.remove()
    return Picture(
        name="transfer",
        title="Does a probe travel?",
        alt=" ".join(record["verdicts"]) or "AUROC by what a probe was trained and tested on.",
        caption="AUROC on groups that the probe has not seen; training sets are of one size. The diagonal is at home.",
        figure=figure,
        rows=rows,
    )


def _short(name: str) -> str:
    name = drawable(name)
    return name if len(name) <= _LABEL else name[: _LABEL - 1] + "…"
