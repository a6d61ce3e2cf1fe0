"""Figures of a calibration: caught against target by gate, saved against kept, score histograms with thresholds.

They need matplotlib, the extra `plot`, and open no window. Colours are those of Okabe and Ito ("Color Universal
Design", 2008), and every series also has a mark or a line style of its own.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from probecascade.errors import DataError, UsageError
from probecascade.intervals import DEFAULT, Interval, Resampling, ratio_interval
from probecascade.report.pictures import DOOMED, SUCCESS, TARGET, literally, new_figure
from probecascade.report.shares import shares_by_gate
from probecascade.thresholds import Backtest, Calibration, GateScores
from probecascade.thresholds.calibration import judge
from probecascade.thresholds.operating import Frontier, frontier
from probecascade.thresholds.problem import Targets

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from probecascade.report.pictures import Row

FloatArray = NDArray[np.float64]

IN_SAMPLE = "the calibration episodes, which set the thresholds"
FIGURES = ("caught-by-gate", "scores", "saved-against-kept")
FORMATS = ("png", "svg", "pdf")

_BINS = 30  # at most; fewer episodes than its square get as many as the square root of theirs
_TAIL = 0.5  # per cent of the scores at each end that are gathered in the outermost bins
_COLUMNS = 3
_UPRIGHT = 6  # gates whose names find room side by side


class Thresholds(Protocol):
    """What is drawn of thresholds: the gates' names in order, (n_gates,) values, inf where off, and the targets."""

    @property
    def gates(self) -> tuple[str, ...]: ...
    @property
    def thresholds(self) -> FloatArray: ...
    @property
    def targets(self) -> Targets: ...


def caught_by_gate(
    calibration: Thresholds,
    data: GateScores,
    result: Backtest,
    *,
    groups: Sequence[Any] | NDArray[Any] | None = None,
    of: str = IN_SAMPLE,
    resampling: Resampling = DEFAULT,
) -> Figure:
    """Shares of the doomed caught and of the successes kept up to each gate, beside their targets.

    data, groups: the episodes that `result` is of, `of` what to call them. Bars are intervals at the confidence of
    `resampling`, over groups. UsageError where matplotlib is missing.
    """
    shares = shares_by_gate(data, result, groups, resampling=resampling)
    figure = new_figure(min(1.4 * len(shares) + 4.6, 9.6), 5.2)
    axes = figure.subplots()
    places = np.arange(len(shares))
    series = (
        ([s.caught for s in shares], DOOMED, "o", "-", f"doomed caught (n = {result.doomed})", -0.06),
        ([s.kept for s in shares], SUCCESS, "s", "--", f"successes kept (n = {result.successes})", 0.06),
    )
    for intervals, colour, mark, style, label, aside in series:
        axes.errorbar(
            places + aside,
            [100 * i.value for i in intervals],
            yerr=_reach(intervals),
            color=colour,
            marker=mark,
            linestyle=style,
            capsize=4,
            label=label,
        )
    targets = calibration.targets
    if targets.catch:
        at, wanted = zip(*targets.catch, strict=True)
        axes.plot(
            at, [100 * float(s) for s in wanted], linestyle="", marker="_", markersize=26, color=TARGET,
            label="target: doomed caught by this gate",
        )  # fmt: skip
    if targets.keep is not None:
        axes.axhline(100 * float(targets.keep), color=TARGET, linestyle=":", label="target: successes kept")
    axes.set_xticks(places, [f"{name}\n(off)" if off else name for name, off in _named(calibration)])
    if len(shares) > _UPRIGHT:
        axes.tick_params(axis="x", rotation=30)
    axes.set_xlim(-0.5, len(shares) - 0.5)
    axes.set_ylim(0, 103)
    axes.set_xlabel("gate, in order")
    axes.set_ylabel("share up to and including this gate (%)")
    axes.set_title(f"On {of};\nbars: {100 * resampling.confidence:g} % intervals", fontsize="medium")
    _legend_below(figure)
    return figure


def saved_against_kept(
    path: Frontier,
    data: GateScores,
    result: Backtest,
    *,
    groups: Sequence[Any] | NDArray[Any] | None = None,
    total: ArrayLike | None = None,
    of: str = IN_SAMPLE,
    resampling: Resampling = DEFAULT,
) -> Figure:
    """Tokens saved against successes kept along a cross-fitted path, with the chosen thresholds marked.

    path: of `operating.frontier` on `data`, the episodes that `result` is of; groups, total (n_episodes,): labels and
    tokens of whole episodes, as given to the back-test. The band and the bars are intervals over groups.
    """
    rows = frontier_shares(path, data, groups=groups, total=total, resampling=resampling)
    kept, value, low, high = (np.array([100 * row[key] for row in rows]) for key in ("kept", "saved", "low", "high"))
    level = f"{100 * resampling.confidence:g} %"
    figure = new_figure(6.4, 5.0)
    axes = figure.subplots()
    axes.fill_between(kept, low, high, color=SUCCESS, alpha=0.2, linewidth=0, label=f"{level} interval of the saving")
    axes.plot(
        kept,
        value,
        color=SUCCESS,
        marker=".",
        label=f"path shaped on other groups (n = {result.doomed} doomed, {result.successes} successes)",
    )
    chosen = result.saved["tokens"].share
    if chosen.n:
        axes.errorbar(
            [100 * result.kept.value],
            [100 * chosen.value],
            xerr=_reach([result.kept]),
            yerr=_reach([chosen]),
            color=DOOMED,
            marker="D",
            markersize=9,
            linestyle="",
            capsize=4,
            label=f"chosen thresholds, {level} intervals (doomed caught {_percent(result.caught)})",
        )
    axes.set_xlim(-2, 102)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("successes kept (% of the successes)")
    what = "what is spent after the first gate" if total is None else "all tokens"
    axes.set_ylabel(f"tokens saved, strictly after the gate\n(% of {what}, both classes)")
    axes.set_title(f"On {of}", fontsize="medium")
    _legend_below(figure)
    return figure


def frontier_shares(
    path: Frontier,
    data: GateScores,
    *,
    groups: Sequence[Any] | NDArray[Any] | None = None,
    total: ArrayLike | None = None,
    resampling: Resampling = DEFAULT,
) -> list[Row]:
    """Along the path, keep targets rising, never aborting last: shares of successes kept, of the doomed caught and of
    tokens saved, the latter with an interval (`low`, `high`). Arguments as of `saved_against_kept`."""
    after = np.where(np.isnan(data.scores), 0.0, data.cost_after)
    spent = after.max(axis=1) if total is None else np.asarray(total, dtype=np.float64)
    labels = np.arange(len(after)) if groups is None else groups
    rows: list[Row] = []
    for keep, first in zip(path.keeps, path.first, strict=True):
        fired = first >= 0
        share = ratio_interval(np.where(fired, after[np.arange(len(after)), first], 0.0), spent, labels, resampling)
        kept = float((~fired & ~data.failed).sum() / data.successes)
        caught = float((fired & data.failed).sum() / data.doomed)
        ends = {"saved": share.value, "low": share.low, "high": share.high}
        rows.append({"target": float(keep), "kept": kept, "caught": caught, **ends})
    return [*rows, {"target": 1.0, "kept": 1.0, "caught": 0.0, "saved": 0.0, "low": 0.0, "high": 0.0}]


def score_histograms(calibration: Thresholds, data: GateScores, *, of: str = IN_SAMPLE) -> Figure:
    """Scores of the doomed and of the successes that reached each gate, with its threshold, one panel per gate.

    Each class is shown as shares of its own scores. Half a per cent at either end lies in the outermost bins.
    """
    n_gates = data.scores.shape[1]
    columns = min(n_gates, _COLUMNS)
    rows = math.ceil(n_gates / columns)
    figure = new_figure(3.6 * columns + 0.6, 3.0 * rows + 0.8)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for gate, axes in enumerate(panels[:n_gates]):
        scores = data.scores[:, gate]
        here = ~np.isnan(scores)
        axes.set_title(calibration.gates[gate], fontsize="medium")
        axes.set_xlabel("score (higher: more likely doomed)")
        axes.set_ylabel("share of the class here (%)")
        threshold = float(calibration.thresholds[gate])
        _histogram(axes, scores[here & data.failed], scores[here & ~data.failed], threshold)
    for axes in panels[n_gates:]:
        axes.remove()
    figure.suptitle(f"On {of}", fontsize="medium")
    return figure


def save_figures(
    calibration: Calibration,
    scores: ArrayLike,
    failed: ArrayLike,
    groups: Sequence[Any] | NDArray[Any] | None = None,
    cost_after: ArrayLike | None = None,
    *,
    directory: str | Path,
    cost_total: ArrayLike | None = None,
    of: str = IN_SAMPLE,
    form: str = "png",
    overwrite: bool = False,
    resampling: Resampling = DEFAULT,
    seed: int = 0,
) -> tuple[Path, ...]:
    """Write the three figures into `directory`, made where it is missing, and give their paths.

    The arrays are those of `Calibration.evaluate`, and `of` says which episodes they are. The frontier is left out
    where fewer than two groups of either class exist. UsageError for an unknown format, a file that exists (unless
    `overwrite`) or a missing matplotlib; nothing is written then.
    """
    paths = check_figures(directory, form=form, overwrite=overwrite)
    data = GateScores.check(scores, failed, cost_after)
    result = judge(calibration.thresholds, data, groups, cost_total, resampling)
    figures = {
        "caught-by-gate": caught_by_gate(calibration, data, result, groups=groups, of=of, resampling=resampling),
        "scores": score_histograms(calibration, data, of=of),
    }
    with contextlib.suppress(DataError):  # too few groups to shape on some and judge on others
        path = frontier(data, groups, seed=seed)
        figures["saved-against-kept"] = saved_against_kept(
            path, data, result, groups=groups, total=cost_total, of=of, resampling=resampling
        )
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        for name, figure in figures.items():
            with literally(figure):
                figure.savefig(paths[name])
    except OSError as error:
        raise UsageError(
            f"figures cannot be written to {str(directory)!r} ({error.strerror}): give a folder that can be written to."
        ) from error
    return tuple(paths[name] for name in figures)


def check_figures(directory: str | Path, *, form: str = "png", overwrite: bool = False) -> dict[str, Path]:
    """The files that `save_figures` would write, by figure. UsageError where it would refuse to."""
    if form not in FORMATS:
        raise UsageError(f"the format is {form!r}: give one of {', '.join(FORMATS)}.")
    paths = {name: Path(directory) / f"{name}.{form}" for name in FIGURES}
    taken = [str(path) for path in paths.values() if path.exists()]
    if taken and not overwrite:
        raise UsageError(f"{taken[0]!r} exists already: choose another folder, or ask for it to be overwritten.")
    new_figure(1, 1)
    return paths


def _legend_below(figure: Figure) -> None:
    figure.legend(loc="outside lower center", fontsize="small", ncols=1)


def _named(calibration: Thresholds) -> list[tuple[str, bool]]:
    return [(name, math.isinf(t)) for name, t in zip(calibration.gates, calibration.thresholds, strict=True)]


def _reach(intervals: Sequence[Interval]) -> FloatArray:
    """(2, n): per cent from each value down to the low end and up to the high end, as error bars want them."""
    ends = [(100 * (i.value - i.low), 100 * (i.high - i.value)) for i in intervals]
    reach: FloatArray = np.maximum(np.array(ends).T, 0.0)
    return reach


def _percent(interval: Interval) -> str:
    return f"{100 * interval.value:.1f} %"


def _histogram(axes: Axes, doomed: FloatArray, successes: FloatArray, threshold: float) -> None:
    together = np.concatenate([doomed, successes])
    if not together.size:
        axes.text(0.5, 0.5, "no episode reached this gate", ha="center", transform=axes.transAxes)
        return
    low, high = np.percentile(together, [_TAIL, 100 - _TAIL])
    if low <= threshold <= together.max():
        high = max(high, threshold)
    bins = min(_BINS, math.isqrt(together.size))
    edges = np.linspace(low, high, bins + 1) if high > low else np.linspace(low - 0.5, low + 0.5, 2)
    for scores, colour, style, name in (
        (doomed, DOOMED, "-", "doomed"),
        (successes, SUCCESS, "--", "successes"),
    ):
        counts, _ = np.histogram(np.clip(scores, edges[0], edges[-1]), bins=edges)
        axes.stairs(
            100 * counts / max(len(scores), 1), edges, color=colour, linestyle=style, linewidth=1.6,
            label=f"{name} (n = {len(scores)})",
        )  # fmt: skip
    if edges[0] <= threshold <= edges[-1]:
        axes.axvline(threshold, color=TARGET, linestyle=":", label=f"fires from {threshold:.4g}")
    else:
        where = "off: never fires" if math.isinf(threshold) else f"fires from {threshold:.4g}, outside the panel"
        axes.plot([], [], " ", label=where)
    axes.legend(fontsize="x-small")
