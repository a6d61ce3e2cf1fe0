"""The page of a study of agents whose tools fail: does stopping follow the verdicts, and what does a rule gain?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from probecascade.report.judged_pictures import (
    Groups,
    answer_steps_picture,
    delta_forest,
    hazard_curve,
    judges_picture,
    spelled,
    success_picture,
)
from probecascade.report.page import NOTHING, BrowserWords, Chapter, Page, Table
from probecascade.report.pictures import Picture, Row

_MARKER = "Observation: "
_COSTS = {"tokens": "tokens", "side_tokens": "tokens of side questions", "seconds": "seconds"}
_WORDS = BrowserWords(
    hint="Choose an episode to read its transcript, with the verdict beside every observation that was judged.",
    find="question",
    mode="Regime",
    part="Condition",
)


@dataclass(frozen=True, eq=False)
class StudyMaterial:
    """What the page of a study is made of.

    record: what `study judged-useless --json` prints; published: the published figures to stand beside it (rows with
    model, split, condition, delta, low, high, mean6), of `source`; episodes: the lines of the file, whose
    `transcript`, `tokens`, `side_tokens` and `seconds` are shown where they are there. k: useless verdicts in a row
    after which answers are counted; cost: of a tool call in the utility.
    """

    record: Mapping[str, Any]
    published: Sequence[Row]
    source: str
    episodes: Sequence[Mapping[str, Any]]
    k: int
    cost: float

    @cached_property
    def groups(self) -> Groups:
        """The measures by the parts of model, split and condition that differ between the groups."""
        return _named(self.record)

    def page(self, *, limit: int | None = None) -> Page:
        """The page; `limit`: at most so many episodes in the browser, evenly spaced over the file."""
        told = [each for each in self.episodes if isinstance(each.get("transcript"), str)]
        shown = told
        if limit is not None and limit < len(told):
            shown = [told[place * len(told) // limit] for place in range(limit)]
        notes = [] if told else ["The file holds no transcripts, so no episode can be read here."]
        if len(shown) < len(told):
            notes.append(
                f"The episode browser holds {len(shown)} of {len(told)} episodes, evenly spaced over the file."
            )
        if self.record["faults"]:
            notes.append(f"{len(self.record['faults'])} records of the file could not be used and count nowhere.")
        return Page(
            title="Do agents act on tool results that they judge useless?",
            facts=self._facts(),
            verdicts=study_answer(self.record),
            chapters=self.chapters,
            episodes={
                "of": len(told),
                "base": None,
                "checkpoints": [],
                "gates": [],
                "episodes": [_readable(each) for each in shown],
                "texts": [""],
            },
            method=self._method(),
            notes=notes,
            browser=_WORDS,
        )

    @property
    def pictures(self) -> list[Picture]:
        """All figures, in the order of the page."""
        return [picture for chapter in self.chapters for picture in chapter.pictures]

    @cached_property
    def chapters(self) -> list[Chapter]:
        groups = self.groups
        judged = [judges_picture(groups)] if any(each["judge"]["accuracy"]["n"] for each in groups.values()) else []
        return [
            Chapter("Delta by condition", [delta_forest(groups, self.published)], [self._stopping()]),
            Chapter("Answers after a run", [hazard_curve(groups)], [_hazard_table(groups)]),
            Chapter("Success", [success_picture(groups)], [self._worth(), *self._compared()]),
            Chapter("Answers", [answer_steps_picture(groups)]),
            Chapter("Judges", judged, [*_judge_tables(groups), *_belief_tables(groups)]),
            Chapter("Cost", tables=[self._cost()]),
        ]

    def _facts(self) -> list[tuple[str, str]]:
        rows = self.record["groups"]
        facts = [("Episodes", str(sum(row["details"]["episodes"] for row in rows)))]
        facts.append(("Questions", str(max(row["details"]["questions"] for row in rows))))
        for title, key in (("Models", "model"), ("Splits", "split"), ("Conditions", "condition")):
            names = [name for name in dict.fromkeys(row[key] for row in rows) if name]
            facts += [(title, ", ".join(names))] if names else []
        regimes = dict.fromkeys(regime for row in rows for regime in row["details"]["regimes"])
        return [*facts, ("Regimes", ", ".join(regimes))]

    def _stopping(self) -> Table:
        titles = ["condition", "Delta", "Delta as worded", "integration index"]
        titles += [f"answer after {self.k}, persistent", f"answer after {self.k}, failing"]
        rows = [
            [
                name,
                spelled(each["delta"]["delta"], sign="+"),
                spelled(each["delta_as_worded"]["delta"], sign="+"),
                spelled(each["integration_index"], sign="+"),
                spelled(each["answer_rate_after_k"]),
                spelled(each["answer_rate_failing"]),
            ]
            for name, each in self.groups.items()
        ]
        note = (
            "n: decisions, and episodes for the last two. Delta as worded takes a plain description of the second arm "
            "literally; the published figures are of Delta."
        )
        return Table("Stopping, in numbers", titles, rows, note)

    def _worth(self) -> Table:
        keys = {"mean6": "", "utility": "+", "utility_with_verdicts": "+", "tool_calls": ""}
        titles = ["condition", "mean6", "utility", "utility, verdicts charged too", "tool calls"]
        rows = [[name, *(spelled(each[key], sign=s) for key, s in keys.items())] for name, each in self.groups.items()]
        note = (
            "Over the clean and the five failing regimes, of the questions with all six (n). mean6: success; utility: "
            f"1 for a right answer less {self.cost:g} per call."
        )
        return Table("Over the six regimes", titles, rows, note)

    def _compared(self) -> Iterator[Table]:
        rows = [
            [
                " ".join(part for part in (each["model"], each["split"], each["condition"]) if part),
                each["against"],
                each["measure"],
                spelled(each["difference"], sign="+"),
                *(NOTHING if each[key] is None else f"{each[key]:.4f}" for key in ("p_value", "p_holm")),
            ]
            for each in self.record["comparisons"]
        ]
        if rows:
            titles = ["condition", "less", "measure", "difference", "p", "p, Holm"]
            yield Table("Differences, paired by question", titles, rows, "p, Holm: corrected within a model and split.")

    def _cost(self) -> Table:
        """Means per episode of what the records hold, by condition; all regimes together."""
        sums: dict[tuple[str, str], list[float]] = {}
        names = Counter(_group(each) for each in self.episodes)
        for each in self.episodes:
            for key in _COSTS:
                if isinstance(each.get(key), int | float) and math.isfinite(each[key]):
                    sums.setdefault((_group(each), key), []).append(float(each[key]))
        rows = [
            [name or "all episodes", str(count), *(_mean(sums.get((name, key), [])) for key in _COSTS)]
            for name, count in names.items()
        ]
        note = "Means per episode over all regimes; what conditions share was computed once and counts in each."
        return Table.of("Cost per episode", ["condition", "episodes", *_COSTS.values()], rows, note)

    def _method(self) -> list[str]:
        return [
            "Delta pools, over 3 to budget-2 observations, the difference in answering between the two arms at the "
            "same number of observations (Mantel-Haenszel), in the five failing regimes.",
            "Intervals are 95 % and resample questions; a value without any decision or episode is undefined, and its "
            "n is printed.",
            "Only USELESS prolongs a run: any other verdict, or none, ends it.",
            f"Published figures are from {self.source}: of other models, and not measured here.",
        ]


def _named(record: Mapping[str, Any]) -> Groups:
    rows = record["groups"]
    keys = [key for key in ("model", "split", "condition") if len({row[key] for row in rows}) > 1] or ["condition"]
    return {" ".join(row[key] for key in keys if row[key]) or "all episodes": row["details"] for row in rows}


def study_answer(record: Mapping[str, Any]) -> list[str]:
    """What a study says, in sentences: does stopping follow the verdicts, and what does each condition gain?

    record: what `study judged-useless --json` prints.
    """
    return [*follow_sentences(_named(record)), *gain_sentences(record["comparisons"])]


def follow_sentences(groups: Groups) -> list[str]:
    """Under which conditions stopping follows the verdicts, by the interval of Delta; one sentence per kind."""
    kinds: dict[str, list[str]] = {}
    for name, each in groups.items():
        found, strata = each["delta"]["delta"], each["delta"]["strata"]
        said = spelled(found, sign="+")
        if found["value"] is None:
            said = " and ".join(f"n={sum(row[arm] for row in strata)}" for arm in ("n_a", "n_b"))
        kinds.setdefault(_kind(found), []).append(f"{name} ({said})")
    words = {
        "above": "Stopping follows the verdicts (Delta above 0) under {}.",
        "below": "Stopping goes against the verdicts (Delta below 0) under {}.",
        "open": "That stopping follows the verdicts is not shown (the interval of Delta holds 0) under {}.",
        "flat": "Too little varies between questions for an interval of Delta under {}.",
        "undefined": "Delta is undefined, for no number of observations has decisions of both arms, under {}: n counts "
        "those where all were judged useless, and those where the latest was but an earlier one was not.",
    }
    return [text.format("; ".join(kinds[kind])) for kind, text in words.items() if kind in kinds]


def gain_sentences(comparisons: Sequence[Mapping[str, Any]]) -> list[str]:
    """What each condition gains or loses in success over the six regimes, against the one compared with."""
    words = {
        "above": "{} gains success over the six regimes against {}: {}.",
        "below": "{} loses success over the six regimes against {}: {}.",
        "open": "{} is not shown to change success over the six regimes against {}: {}.",
        "flat": "{} against {}: the difference in success is {}, with too little variation for an interval.",
        "undefined": "{} against {}: the difference in success is {}.",
    }
    told = []
    for each in comparisons:
        if each["measure"] == "mean6":
            found = each["difference"]
            name = " ".join(part for part in (each["model"], each["split"], each["condition"]) if part)
            why = f" ({found['note']})" if found["value"] is None and found["note"] else ""
            told.append(words[_kind(found)].format(name, each["against"], spelled(found, sign="+") + why))
    return told


def _kind(found: Mapping[str, Any]) -> str:
    if found["value"] is None:
        return "undefined"
    if found["low"] is None or found["high"] is None or found["low"] == found["high"]:
        return "flat"
    return "above" if found["low"] > 0 else "below" if found["high"] < 0 else "open"


def _hazard_table(groups: Groups) -> Table:
    runs = sorted({int(run) for each in groups.values() for run in each["hazard"]})
    rows = []
    for name, each in groups.items():
        curve = {int(run): found for run, found in each["hazard"].items()}
        rows.append([name, *(spelled(curve[run], 2) if run in curve else NOTHING for run in runs)])
    return Table("h(run) with intervals", ["condition", *(f"run {run}" for run in runs)], rows, "n: decisions.")


def _judge_tables(groups: Groups) -> Iterator[Table]:
    counted = [[name, *(str(count) for count in each["verdicts"].values())] for name, each in groups.items()]
    titles = ["condition", *next(iter(groups.values()))["verdicts"]]
    yield Table("Verdicts", titles, counted, "none: observations without a verdict.")
    rows = [
        [
            name,
            f"{pair['first']} and {pair['second']}",
            NOTHING if pair["kappa"] is None else f"{pair['kappa']:+.3f}",
            NOTHING if pair["agreed"] is None else f"{pair['agreed']:.3f}",
            str(pair["n"]),
            pair["note"] or NOTHING,
        ]
        for name, each in groups.items()
        for pair in each["agreement"]
    ]
    if rows:
        yield Table.of("Agreement of judges", ["condition", "judges", "kappa", "same verdict", "n", "note"], rows,
                       "own: the verdicts of the condition's own judge.")  # fmt: skip


def _belief_tables(groups: Groups) -> Iterator[Table]:
    rows = [
        [name, str(run), f"{stated['continuing']:.3f}", f"{stated['answering']:.3f}", str(stated["n"])]
        for name, each in groups.items()
        for run, stated in each["beliefs"].items()
    ]
    if rows:
        titles = ["condition", "useless in a row", "if it goes on", "if it answers now", "n"]
        note = "Probability of success that the model states, means over n observations."
        yield Table.of("Beliefs", titles, rows, note)


def _group(episode: Mapping[str, Any]) -> str:
    return " ".join(str(episode[key]) for key in ("model", "split", "condition") if episode.get(key))


def _mean(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.1f}" if values else NOTHING


def _readable(episode: Mapping[str, Any]) -> dict[str, Any]:
    """An episode as the page's script reads it; the condition and the regime can be filtered."""
    actions = episode["actions"]
    outcome = str(episode.get("outcome") or ("success" if episode["success"] else "failure"))
    return {
        "id": str(episode["question_id"]),
        "group": _group(episode),
        "outcome": outcome,
        "reason": str(episode.get("reason") or outcome),
        "mode": str(episode["regime"]),
        "part": str(episode.get("condition") or ""),
        "tokens": tokens if isinstance(tokens := episode.get("tokens"), int) else 0,
        "rounds": len(actions),
        "lost": None,
        "abort": None,
        "saved": None,
        "live": str(episode.get("stopped") or ""),
        "about": {"condition": str(episode.get("condition") or NOTHING)},
        "points": [],
        "steps": [[0, 0, judged_transcript(episode), 0, "content"]],
    }


def judged_transcript(episode: Mapping[str, Any]) -> str:
    """The transcript with the verdict, and whether a failure was injected, at the start of every judged observation.

    Where the transcript does not hold one observation per action (a text may itself speak of observations), the
    verdicts stand in a line of their own at its end.
    """
    text = str(episode["transcript"])
    verdicts = episode.get("verdicts", episode.get("judgments")) or []
    injected = episode.get("injected") or []
    said = [
        f"judged {verdict or 'by nobody'}"
        + (", an injected failure" if place < len(injected) and injected[place] else "")
        for place, verdict in enumerate(verdicts)
    ]
    parts = ("\n" + text).split("\n" + _MARKER)
    if len(parts) - 1 != len(episode["actions"]):
        return f"{text}\n\nObservations in order: {'; '.join(said) or 'none judged'}."
    told = parts[0]
    for place, part in enumerate(parts[1:]):
        beside = f"Observation [{said[place]}]: " if place < len(said) else _MARKER
        told += f"\n{beside}{part}"
    return told.removeprefix("\n")
