"""What a sweep comes to, in sentences: where failure is predicted, how well, and whether it is more than obvious."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from probecascade.evaluation.baselines import IN_WORDS
from probecascade.evaluation.sweep_result import Row, SweepResult

RIVALS = ("prompt", "surface", "tfidf", "embedding", "random")
"""Baselines that a probe is said to beat or not."""

_TOLD_ONE_BY_ONE = 3
"""Checkpoints of one sentence that get their intervals in it; of more the tables have them."""

_CHANCE = 0.5

_BEATS = "The probe beats {rival} in AUROC at {where}."
_OPEN = "The probe is not shown to beat {rival} in AUROC at {where}."
_WORSE = "The probe does worse than {rival} in AUROC at {where}."
_UNPROVEN = (
    "The probe does not count as beating {rival} at {where}: its AUROC is the higher there, but not shown to be above "
    "chance."
)
_AGAINST = (_BEATS, _OPEN, _UNPROVEN, _WORSE)
"""What can be said of a probe and a baseline; each row is told by the one that is true of it."""


def verdicts(result: SweepResult) -> list[str]:
    """The answer first, then what qualifies it. A probe is said to beat a baseline only where it also beats chance."""
    return [
        *_answer(result),
        *_multiplicity(result),
        *(sentence for name in RIVALS for sentence in _against(result, name)),
        *_within(result),
        *_control(result),
    ]


def interval_text(row: Row, signed: bool = False) -> str:
    """`0.812 [0.750, 0.871]`, with signs if `signed`, or `–` where there is no value."""
    if row["value"] is None:
        return "–"
    value, low, high = (f"{row[key]:{'+' if signed else ''}.3f}" for key in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def _answer(result: SweepResult) -> Iterator[str]:
    above = [row for row in result.selected if row["above_chance"]]
    if not above:
        best = max(result.selected, key=_auroc)
        yield (
            f"No probe predicts failure better than chance at any of {_count(len(result.selected), 'checkpoint')}: the "
            f"highest AUROC with layer and probe chosen inside the folds is {interval_text(best['auroc'])}, at "
            f"{best['checkpoint']}."
        )
        return
    early = [row for row in above if not row["closing"]]
    if not early:
        yield (
            "Failure is predicted better than chance only on the turn that ends the episode, where nothing is left to "
            f"save: AUROC {interval_text(above[0]['auroc'])} at {above[0]['checkpoint']}."
        )
        return
    first, best = early[0], max(early, key=_auroc)
    open_ends = [row for row in result.selected if not row["closing"]]
    among = f"of the {_count(len(open_ends), 'checkpoint')} swept"
    always = all(row["above_chance"] for row in open_ends[open_ends.index(first) :])
    yield (
        f"Failure is predicted better than chance {'from' if always else 'first at'} {first['checkpoint']}"
        f"{' on' if always else ''}, {among}, by {_chosen(first)}: AUROC {interval_text(first['auroc'])} of "
        f"{first['n']} episodes."
        if first is not best
        else f"Failure is predicted best, and first better than chance {among}, at {_how_well(best, result)}."
    )
    if first is not best:
        yield (
            f"It is predicted best at {_how_well(best, result)} (the highest of "
            f"{_count(len([row for row in result.selected if not row['closing']]), 'checkpoint')}, "
            "hence a little optimistic)."
        )
    gaps = [row["checkpoint"] for row in result.selected if not row["closing"] and not row["above_chance"]]
    if gaps:
        yield f"It is not shown to be predicted better than chance at {', '.join(gaps)}."


def _how_well(row: Row, result: SweepResult) -> str:
    caught = row["caught_at_keep"]
    return (
        f"{row['checkpoint']}, by {_chosen(row)}: AUROC {interval_text(row['auroc'])} of {row['n']} episodes; a "
        f"threshold that keeps {100 * result.keep:g} % of the successes catches {100 * caught['value']:.0f} % "
        f"[{100 * caught['low']:.0f}, {100 * caught['high']:.0f}] of the failures"
    )


def _chosen(row: Row) -> str:
    layer, count = max(row["chosen"].items(), key=lambda item: item[1])
    folds = sum(row["chosen"].values())
    return f"the {row['probe']} probe at layer {layer} (chosen in {count} of {folds} folds)"


def _multiplicity(result: SweepResult) -> Iterator[str]:
    """What looking at many cells does to the evidence of one."""
    n, level = len(result.cells), f"{100 * (1 - result.confidence):g} %"
    passed = sum(row["above_chance"] for row in result.cells)
    alone = sum(_above_half(row) and not row["above_chance"] for row in result.cells)
    yield (
        f"Of {_count(n, 'cell')} (layer by checkpoint by probe), {passed} exceed an AUROC of one half with at most "
        f"{level} for one false word among them all (largest deviation over all cells in resamples of groups)."
    )
    if alone:
        yield (
            f"{_count(alone, 'more cell')} whose own {100 * result.confidence:g} % interval lies above one half "
            f"{'does' if alone == 1 else 'do'} not count: among {n} looks chance brings such cells."
        )


def _against(result: SweepResult, name: str) -> Iterator[str]:
    """In words whether the probe beats a baseline; what is no better than chance beats nothing."""
    rivals = {row["checkpoint"]: row["auroc"]["value"] for row in result.baselines if row["name"] == name}
    rows = [row for row in result.selected if name in row["gains"]]
    kinds: dict[str, list[Row]] = {words: [] for words in _AGAINST}
    for row in rows:
        kinds[_standing(row, name)].append(row)
    beats = kinds[_BEATS]
    for words, chosen in kinds.items():
        if not chosen:
            continue
        if len(chosen) <= _TOLD_ONE_BY_ONE:
            where = ", ".join(
                f"{row['checkpoint']} ({interval_text(row['gains'][name]['auroc'], signed=True)} "
                f"over {rivals[row['checkpoint']]:.3f})"
                for row in chosen
            )
        else:
            gains = [row["gains"][name]["auroc"]["value"] for row in chosen]
            which = f"{len(chosen)} of" if len(chosen) < len(rows) else "all"
            where = (
                f"{which} {len(rows)} checkpoints ({', '.join(row['checkpoint'] for row in chosen)}; "
                f"{min(gains):+.3f} to {max(gains):+.3f})"
            )
        yield words.format(rival=IN_WORDS[name], where=where)
    if beats and (low := [row["checkpoint"] for row in beats if rivals[row["checkpoint"]] < _CHANCE]):
        yield (
            f"Of {IN_WORDS[name]} itself the AUROC lies below one half at {len(low)} of these, as that of scores which "
            "know nothing may when they are cross-fitted: there the gain over chance, not over it, is what counts."
        )


def _standing(row: Row, name: str) -> str:
    """Which sentence of `_AGAINST` is true of a row and a baseline."""
    gain = row["gains"][name]["auroc"]
    if gain["high"] < 0:
        return _WORSE
    if gain["low"] <= 0:
        return _OPEN
    return _BEATS if row["above_chance"] else _UNPROVEN


def _within(result: SweepResult) -> Iterator[str]:
    """Whether it is the task's difficulty that is predicted or how the episode goes."""
    judged = [row for row in result.selected if row["within_above_chance"] is not None]
    if not judged:
        yield (
            "Too few groups hold both a failure and a success to compare episodes of the same task, so the difficulty "
            "of the task cannot be told from the course of the episode: extract several episodes per task to tell."
        )
        return
    shown = [row for row in judged if row["within_above_chance"]]
    if shown:
        yield f"Episodes of the same task are also told apart better than chance: {_pairs(shown)}."
    confounded = [row for row in judged if row["above_chance"] and not row["within_above_chance"]]
    if confounded:
        yield (
            "Perhaps confounded by difficulty: the pooled AUROC is above chance, but episodes of the same task are not "
            "shown to be told apart, so it may be the task that is recognised and not how the episode goes: "
            f"{_pairs(confounded)}."
        )


def _pairs(rows: Sequence[Row]) -> str:
    return ", ".join(
        f"{row['checkpoint']} {interval_text(row['pair_accuracy'])} of {row['pair_accuracy']['n_pairs']} pairs"
        for row in rows
    )


def _control(result: SweepResult) -> Iterator[str]:
    controls = [row["auroc"]["value"] for row in result.baselines if row["name"] == "shuffled"]
    if controls:
        yield (
            f"Taught shuffled labels, the same probes reach an AUROC of {min(controls):.3f} to {max(controls):.3f}: "
            "what exceeds that comes from the labels."
        )


def _above_half(row: Row) -> bool:
    return bool(row["auroc"]["low"] is not None and row["auroc"]["low"] > 0.5)


def _auroc(row: Row) -> float:
    return float(row["auroc"]["value"])


def _count(n: int, thing: str) -> str:
    return f"{n} {thing}{'' if n == 1 else 's'}"
