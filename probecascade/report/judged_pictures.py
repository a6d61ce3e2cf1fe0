"""Pictures of a study of agents whose tools fail: Delta, answers after a run, success, answer steps, and judges.

All take groups by name (model, split or condition, as far as these differ), each the record of its measures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

from probecascade.report.pictures import (
    DOOMED,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    SUCCESS,
    TARGET,
    Picture,
    Row,
    drawable,
    new_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Groups = Mapping[str, Mapping[str, Any]]
"""By name of the group: every measure (`details` of `study --json`), values as mappings of value, low, high and n."""

_COLOURS = (SUCCESS, DOOMED, GREEN, PURPLE, ORANGE, SKY, TARGET)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
_JUDGED = {
    "accuracy": "right",
    "judged_useless": "failures judged useless",
    "judged_intact": "others not judged useless",
    "balanced": "balanced",
}
_WIDTH = 0.7  # of the space between two places, that all groups share


def spelled(found: Mapping[str, Any], digits: int = 3, sign: str = "", unit: str = "n") -> str:
    """`0.335 [0.251, 0.413] n=300`, or `undefined n=0` where there is no value."""
    if found["value"] is None:
        return f"undefined {unit}={found['n']}"
    ends = ""
    if found["low"] is not None and found["high"] is not None:
        ends = f" [{found['low']:{sign}.{digits}f}, {found['high']:{sign}.{digits}f}]"
    return f"{found['value']:{sign}.{digits}f}{ends} {unit}={found['n']}"


def delta_forest(groups: Groups, published: Sequence[Row]) -> Picture:
    """Delta of every group with its interval, and below them the published ones of other models."""
    rows: list[Row] = [
        {"source": "measured", "name": name, **_interval(each["delta"]["delta"])} for name, each in groups.items()
    ]
    for row in published:
        name = f"{row['model']} {row['split']} {row['condition']}"
        ends = {"value": row["delta"], "low": row["low"], "high": row["high"], "n": None, "note": ""}
        rows.append({"source": "published", "name": name, **ends})
    figure = new_figure(8.2, 1.4 + 0.28 * len(rows))
    axes = figure.subplots()
    looks = {"measured": (SUCCESS, "o", "full"), "published": (ORANGE, "s", "none")}
    for source, (colour, marker, fill) in looks.items():
        chosen = [
            (place, row) for place, row in enumerate(rows) if row["source"] == source and row["value"] is not None
        ]
        if chosen:
            places, known = [place for place, _ in chosen], [row for _, row in chosen]
            axes.errorbar([row["value"] for row in known], places, xerr=_reach(known), fmt=marker, color=colour,
                                 fillstyle=fill, capsize=3, label=source)  # fmt: skip
    for place, row in enumerate(rows):
        if row["value"] is None:
            axes.annotate(f"undefined, n={row['n']}", (0, place), xytext=(4, 0), textcoords="offset points",
                          va="center", fontsize="small")  # fmt: skip
    axes.axvline(0, color=TARGET, linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(rows)), [drawable(f"{row['name']}{_mark(row)}") for row in rows], fontsize="small")
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel("Delta: 0 stops by the clock, above 0 follows its verdicts")
    _legend(figure, axes)
    told = "; ".join(f"{name}: {spelled(each['delta']['delta'], sign='+')}" for name, each in groups.items())
    return Picture(
        name="delta",
        title="Does stopping follow the verdicts?",
        alt=f"Delta with its interval. Measured here: {told}. {len(published)} published ones stand below.",
        caption=(
            "Answers where all observations so far were judged useless, less answers where the latest was but an "
            "earlier one was not, at the same number of observations. Filled: measured here; hollow: published, of "
            "other models, not measured here. Undefined: one of the two arms is empty at every number (n: decisions)."
        ),
        figure=figure,
        rows=rows,
    )


def hazard_curve(groups: Groups) -> Picture:
    """h(run), the share of decisions after a run of so many useless verdicts that are answers."""
    runs = sorted({int(run) for each in groups.values() for run in each["hazard"]})
    values = {name: {int(run): found for run, found in each["hazard"].items()} for name, each in groups.items()}
    figure, rows = _by_place(values, runs, "run", joined=True)
    axes = figure.axes[0]
    axes.set_xlabel("useless verdicts in a row so far")
    axes.set_ylabel("share of decisions that are answers")
    longest = {name: max((run for run in runs if _known(each, run)), default=None) for name, each in values.items()}
    told = "; ".join(
        f"{name}: {spelled(values[name][run], 2)} after {run} in a row" if run is not None else f"{name}: no decision"
        for name, run in longest.items()
    )
    return Picture(
        name="hazard",
        title="Answers after a run of useless verdicts, h(run)",
        alt=f"Share of answers against the length of the run. At the longest run that occurs, {told}.",
        caption=(
            "Of the decisions in failing regimes after a run of so many useless verdicts, the share that are answers; "
            "bars are intervals over questions. The last action of the budget is left out; long runs come late, so "
            "the curve also rises for an agent that stops by the clock."
        ),
        figure=figure,
        rows=rows,
    )


def success_picture(groups: Groups) -> Picture:
    """Share of right answers by regime and group."""
    regimes = list(dict.fromkeys(regime for each in groups.values() for regime in each["success"]))
    values = {name: each["success"] for name, each in groups.items()}
    figure, rows = _by_place(values, regimes, "regime")
    figure.axes[0].set_ylabel("share of right answers")
    told = "; ".join(
        f"{regime}: "
        + ", ".join(f"{name} {spelled(each[regime], 2)}" for name, each in values.items() if regime in each)
        for regime in regimes
    )
    return Picture(
        name="success",
        title="Success by regime",
        alt=f"Share of right answers by regime and condition. {told}.",
        caption="Clean: no tool failure. Bars are intervals over questions (n: episodes, in the numbers).",
        figure=figure,
        rows=rows,
    )


def answer_steps_picture(groups: Groups) -> Picture:
    """Which action is the answer, as shares of the episodes in failing regimes; `never` are those without one."""
    steps = sorted({int(step) for each in groups.values() for step in each["answer_steps"]})
    places: list[int | str] = [*steps, "never"]
    figure = new_figure(8.2, 3.8)
    axes = figure.subplots()
    rows: list[Row] = []
    width = _WIDTH / max(1, len(groups))
    for order, ((name, each), colour) in enumerate(zip(groups.items(), cycle(_COLOURS), strict=False)):
        counts = {int(step): count for step, count in each["answer_steps"].items()}
        heights = [counts.get(step, 0) for step in steps] + [each["never_answered"]]
        total = sum(heights)
        rows += [
            {"name": name, "action": place, "episodes": count, "of": total}
            for place, count in zip(places, heights, strict=True)
        ]
        if total:
            at = [place + _offset(order, len(groups)) for place in range(len(places))]
            shares, hatch = [count / total for count in heights], ("", "//", "..")[order % 3]
            axes.bar(at, shares, width=width, color=colour, hatch=hatch, edgecolor="white", linewidth=0.3,
                     label=drawable(f"{name} (n = {total})"))  # fmt: skip
    axes.set_xticks(range(len(places)), [str(place) for place in places])
    axes.set_xlabel("number of the action that is the answer")
    axes.set_ylabel("share of episodes")
    _legend(figure, axes)
    told = "; ".join(
        f"{name}: {sum(each['answer_steps'].values())} answer and {each['never_answered']} never do"
        for name, each in groups.items()
    )
    return Picture(
        name="answer-steps",
        title="When does the answer come?",
        alt=f"Share of episodes by the number of the action that is the answer. {told}.",
        caption="Episodes of the failing regimes; never: the budget was spent without an answer.",
        figure=figure,
        rows=rows,
    )


def judges_picture(groups: Groups) -> Picture:
    """How well each group's verdicts tell the injected failures."""
    values = {name: {words: each["judge"][key] for key, words in _JUDGED.items()} for name, each in groups.items()}
    figure, rows = _by_place(values, list(_JUDGED.values()), "measure")
    figure.axes[0].set_ylabel("share")
    told = "; ".join(f"{name}: {spelled(each['balanced'], 2)}" for name, each in values.items())
    return Picture(
        name="judges",
        title="Verdicts against the injected failures",
        alt=f"How often verdicts are right. Balanced accuracy, {told}.",
        caption=(
            "The verdicts that each condition acts on or would act on. An observation that is no failure need not be "
            "of use, so that a perfect judge may call some of the others useless. Balanced: the mean of the two "
            "shares, 0.5 for a judge that always says the same."
        ),
        figure=figure,
        rows=rows,
    )


def _by_place(
    values: Mapping[str, Mapping[Any, Mapping[str, Any]]], places: Sequence[Any], title: str, *, joined: bool = False
) -> tuple[Figure, list[Row]]:
    """Points with intervals side by side at every place, a colour and a marker per name; and the rows of all."""
    figure = new_figure(8.2, 4.2)
    axes = figure.subplots()
    rows: list[Row] = []
    for order, ((name, each), colour, marker) in enumerate(
        zip(values.items(), cycle(_COLOURS), cycle(_MARKERS), strict=False)
    ):
        rows += [{"name": name, title: place, **_interval(each[place])} for place in places if place in each]
        at = [place for place, key in enumerate(places) if _known(each, key)]
        if at:
            known = [_interval(each[places[place]]) for place in at]
            axes.errorbar([place + _offset(order, len(values)) for place in at], [row["value"] for row in known],
                          yerr=_reach(known), fmt=marker, color=colour, capsize=2, markersize=5, linewidth=1,
                          linestyle="-" if joined else "none", label=drawable(name))  # fmt: skip
    axes.set_xticks(range(len(places)), [drawable(str(place).replace("_", " ")) for place in places], fontsize="small",
                    rotation=0 if joined or len(places) < 5 else 20)  # fmt: skip
    axes.set_ylim(-0.03, 1.03)
    axes.set_xlim(-0.6, max(len(places), 1) - 0.4)
    _legend(figure, axes)
    return figure, rows


def _known(values: Mapping[Any, Mapping[str, Any]], place: Any) -> bool:
    return place in values and values[place]["value"] is not None


def _interval(found: Mapping[str, Any]) -> Row:
    return {key: found[key] for key in ("value", "low", "high", "n", "note")}


def _reach(rows: Sequence[Row]) -> list[list[float]]:
    """How far the bars reach below and above the values; nowhere without an interval."""
    ends = [(row["value"], row["low"], row["high"]) for row in rows]
    below = [0.0 if low is None else max(0.0, value - low) for value, low, _ in ends]
    above = [0.0 if high is None else max(0.0, high - value) for value, _, high in ends]
    return [below, above]


def _offset(order: int, number: int) -> float:
    return _WIDTH * ((order + 0.5) / number - 0.5)


def _mark(row: Row) -> str:
    return " (published)" if row["source"] == "published" else ""


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", fontsize="small", ncols=min(3, len(handles)))
