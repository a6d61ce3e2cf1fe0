"""From a run, its sweep and a cascade to the chapters of a page, in the order in which one would ask."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probecascade.errors import DataError
from probecascade.intervals import DEFAULT, Resampling
from probecascade.policies import Cascade
from probecascade.probes.metrics import auroc
from probecascade.report import figures
from probecascade.report.browser import browser_record
from probecascade.report.held_out import Judged
from probecascade.report.layers import by_round, heat_map, reliability, trajectories
from probecascade.report.outcomes import failure_modes, lead_sentence, lead_time, leads, transfer_matrices
from probecascade.report.page import Chapter, Page, Table
from probecascade.report.pictures import Picture, Row
from probecascade.report.shares import shares_by_gate
from probecascade.report.words import against, answer, cascade_sentences, gate_rows, percent, selected_rows
from probecascade.store import Run
from probecascade.thresholds.operating import frontier

FRESH = "the episodes that took no part in making the cascade"

_ROUNDING = 1e-9  # by which an AUROC may differ from the same one, summed in another order
_RELIABILITY = 6  # checkpoints whose reliability is drawn, at most


@dataclass(frozen=True, eq=False)
class Material:
    """What a page is made of.

    sweep: `SweepResult.record()`; scores: its out-of-fold scores by checkpoint, (n_episodes,). modes: (n_episodes,)
    failure mode, empty where there is none. cascade and judged: both or neither. transfer: what
    `probecascade transfer --json` printed.
    """

    run: Run
    sweep: Mapping[str, Any]
    scores: Mapping[str, NDArray[np.float64]]
    modes: NDArray[Any]
    cascade: Cascade | None = None
    judged: Judged | None = None
    transfer: Mapping[str, Any] | None = None
    resampling: Resampling = DEFAULT

    def __post_init__(self) -> None:
        check_sweep(self.run, self.sweep, self.scores)

    def page(self, *, limit: int | None = None) -> Page:
        """The page; `limit`: at most so many episodes in the browser."""
        run = self.run
        record = browser_record(run, self.modes, self.scores, self.judged, limit=limit)
        told: list[str] = []
        if self.cascade is not None and self.judged is not None:
            early = lead_sentence(leads(run, self.judged))
            told = cascade_sentences(self.cascade, self.judged, [early] if early else [])
        shown = len(record["episodes"])
        return Page(
            title=f"When does {run.header.get('model', {}).get('model', 'the model')} know that it fails?",
            facts=self._facts(),
            verdicts=answer(self.sweep),
            against=[sentence for sentence in self.sweep["verdicts"] if against(sentence)],
            cascade=told,
            chapters=self.chapters,
            episodes=record,
            method=self._method(),
            notes=[f"The episode browser holds {shown} of {len(run)} episodes, evenly spaced over the run."]
            if shown < len(run)
            else [],
        )

    @property
    def pictures(self) -> list[Picture]:
        """All figures, in the order of the page."""
        return [picture for chapter in self.chapters for picture in chapter.pictures]

    @cached_property
    def chapters(self) -> list[Chapter]:
        found = [
            Chapter(
                "Layers and checkpoints",
                pictures=[heat_map(self.sweep), by_round(self.sweep)],
                tables=[self._selected()],
            ),
            Chapter(
                "Scores", pictures=[trajectories(self._drawn_scores(), self.run.episodes.failed), self._reliable()]
            ),
        ]
        if self.judged is not None and self.cascade is not None:
            found.append(self._cascade_chapter(self.cascade, self.judged))
        if any(self.modes.tolist()):
            judged = self.judged if self.judged is not None and self.judged.use.any() else None
            found.append(Chapter("Failures", pictures=[failure_modes(self.run, self.modes, judged, self.resampling)]))
        if self.transfer is not None:
            drawn = transfer_picture(self.transfer)
            found.append(Chapter("Transfer", pictures=[drawn], text=self.transfer["verdicts"]))
        return found

    def _drawn_scores(self) -> dict[str, NDArray[np.float64]]:
        """Out-of-fold scores without the checkpoints that end the episode."""
        closing = {row["checkpoint"] for row in self.sweep["selected"] if row["closing"]}
        return {name: values for name, values in self.scores.items() if name not in closing} or dict(self.scores)

    def _reliable(self) -> Picture:
        """Of the gates where they were swept, else of the checkpoints with the highest AUROC."""
        rows = {row["checkpoint"]: row for row in self.sweep["selected"]}
        open_ends = [name for name in rows if not rows[name]["closing"]] or list(rows)
        wanted = set() if self.judged is None else set(self.judged.gates) & set(rows)
        wanted = wanted or set(sorted(open_ends, key=lambda name: -rows[name]["auroc"]["value"])[:_RELIABILITY])
        names = [name for name in rows if name in wanted][:_RELIABILITY]
        episodes = self.run.episodes
        errors = {name: float(rows[name]["ece"]["value"]) for name in names}
        chosen = {name: self.scores[name] for name in names}
        return reliability(chosen, episodes.failed, episodes.group, errors, self.resampling)

    def _cascade_chapter(self, cascade: Cascade, judged: Judged) -> Chapter:
        aborts = ("aborts (failures)", "aborts (successes)")
        titles = ["gate", "layer", "fires from", *aborts, "caught so far", "kept so far"]
        gates = Table("The gates", titles, gate_rows(cascade, judged), f"Counts and shares: on {FRESH}.")
        pictures = [] if judged.result is None else self._cascade_pictures(judged)
        return Chapter("The cascade", pictures=pictures, tables=[gates])

    def _cascade_pictures(self, judged: Judged) -> list[Picture]:
        assert judged.result is not None
        result, episodes = judged.result, self.run.episodes
        data, groups = judged.scores_of(episodes.failed), episodes.group[judged.use]
        total, level = episodes.tokens[judged.use].astype(np.float64), f"{100 * self.resampling.confidence:g} %"
        common: dict[str, Any] = {"groups": groups, "resampling": self.resampling}
        shares = shares_by_gate(data, result, groups, total, self.resampling)
        pictures = [
            Picture(
                name="scores",
                title="Scores at the gates",
                alt="Histograms of the scores of failures and of successes at each gate, with its threshold.",
                caption=f"On {FRESH}. Each class as shares of its own; dotted: the threshold.",
                figure=figures.score_histograms(judged, data, of=FRESH),
                rows=_score_rows(judged, data.scores, data.failed),
            ),
            Picture(
                name="caught-by-gate",
                title="Caught and kept, against what was asked",
                alt="; ".join(
                    f"up to {gate} {percent(of.caught.value)} of the failures are caught and "
                    f"{percent(of.kept.value)} of the successes kept"
                    for gate, of in zip(judged.gates, shares, strict=True)
                ),
                caption=f"Cumulative, on {FRESH}; bars are {level} intervals.",
                figure=figures.caught_by_gate(judged, data, result, of=FRESH, **common),
                rows=[
                    {
                        "gate": gate,
                        **{
                            f"{what}{end and '_'}{end}": getattr(getattr(of, what), end or "value")
                            for what in ("caught", "kept", "saved", "fired")
                            for end in ("", "low", "high")
                        },
                    }
                    for gate, of in zip(judged.gates, shares, strict=True)
                ],
            ),
        ]
        try:
            path = frontier(data, groups, seed=self.resampling.seed)
        except DataError:  # too few groups to shape on some and judge on others
            path = None
        if path is not None:
            along = figures.frontier_shares(path, data, groups=groups, total=total, resampling=self.resampling)
            pictures.append(
                Picture(
                    name="saved-against-kept",
                    title="What keeping more would cost",
                    alt=f"Tokens saved against successes kept. The cascade keeps {percent(result.kept.value)} and "
                    f"saves {percent(result.saved['tokens'].share.value)} of the tokens.",
                    caption=(
                        f"Line: thresholds along one index, shaped on other groups; diamond: the cascade. On {FRESH}; "
                        f"band and bars are {level} intervals."
                    ),
                    figure=figures.saved_against_kept(path, data, result, total=total, of=FRESH, **common),
                    rows=along,
                )
            )
        early = leads(self.run, judged)
        return [*pictures, lead_time(early)] if early else pictures

    def _selected(self) -> Table:
        titles = [
            "checkpoint",
            "episodes (failed)",
            "layer",
            "AUROC",
            f"caught keeping {100 * self.sweep['keep']:g} %",
            "pairs of one task",
            "over prompt only",
            "over surface signals",
            "over the text",
        ]
        note = (
            "Layer and probe are chosen inside the folds; shown is the layer chosen most often. Pairs of one task: of "
            "pairs of a failure and a success on the same task, the share in the right order. Over: what the probe "
            "adds to the AUROC of a baseline, on the same episodes. Columns that no checkpoint has are left out."
        )
        return Table.of("Checkpoint by checkpoint", titles, selected_rows(self.sweep), note)

    def _facts(self) -> list[tuple[str, str]]:
        run, sweep = self.run, self.sweep
        outcomes = Counter(run.episodes.outcome.tolist())
        facts = [
            ("Run", run.path.resolve().name),
            ("Episodes", f"{len(run)} of {len(set(run.episodes.group.tolist()))} groups"),
            ("Outcomes", ", ".join(f"{count} {name}" for name, count in sorted(outcomes.items()))),
            ("Layers", f"{len(sweep['layers'])} ({sweep['layers'][0]} to {sweep['layers'][-1]})"),
            ("Checkpoints", str(len(sweep["checkpoints"]))),
        ]
        if self.judged is not None:
            facts.append(("Gates", ", ".join(self.judged.gates)))
        return facts

    def _method(self) -> list[str]:
        sweep = self.sweep
        level = f"{100 * sweep['confidence']:g} %"
        method = [
            f"Probes were fitted and scored over {sweep['folds']} folds of whole groups (seed {sweep['seed']}); "
            "strength, layer and kind were chosen without the scored fold.",
            f"Intervals are {level} and resample whole groups, with the probes as they are: they do not say how "
            "probes vary when fitted anew.",
            "Score: P(failure). Failed are episodes that ended in failure or ran out of their budget; aborted ones and "
            "errors have no label and count nowhere.",
            "Layer 0 is the embedding output, layer k the output of block k before the final norm.",
        ]
        if self.judged is not None:
            parts = Counter(self.judged.part.tolist())
            method.append(
                f"Of all {len(self.run)} episodes, {parts['fit']} are of groups that fitted the cascade's probes and "
                f"{parts['calibrate']} of groups that set its thresholds; the cascade is judged on the labelled ones "
                f"of the other {parts['test']} alone."
            )
        method += [f"Skipped: {row['checkpoint']} ({row['reason']})." for row in sweep["skipped"]]
        absent: dict[tuple[str, str], list[str]] = {}
        for row in sweep["absent"]:
            absent.setdefault((row["name"], row["reason"]), []).append(row["checkpoint"])
        return method + [
            f"Not to be had: the baseline {name} at {', '.join(places)} ({reason})."
            for (name, reason), places in absent.items()
        ]


def check_sweep(run: Run, sweep: Mapping[str, Any], scores: Mapping[str, NDArray[np.float64]]) -> None:
    """DataError unless these are scores of exactly the labelled episodes of this run, checkpoint by checkpoint.

    Scores of as many episodes of another run are told by their AUROC, which is another with this run's labels.
    """
    labelled = run.episodes.labelled
    stated = {row["checkpoint"]: row["auroc"]["value"] for row in sweep["selected"]}
    for name, values in scores.items():
        here = np.zeros(len(run), dtype=np.bool_)
        if name in run.checkpoint_names:
            rows = run.rows(name)  # finishing turns are scored only where a checkpoint knows no other
            here[rows.episode[rows.final.all() | ~rows.final]] = True
        alike = values.shape == here.shape and np.array_equal(~np.isnan(values), here & labelled)
        if alike and stated.get(name) is not None:
            scored = here & labelled
            found = auroc(values[scored], run.episodes.failed[scored])
            alike = abs(found - stated[name]) < _ROUNDING
        if not alike:
            raise DataError(
                f"the sweep is not of the run at {str(run.path)!r}: its scores at {name} are of other episodes; sweep "
                "this run, or leave the sweep out."
            )


def _score_rows(judged: Judged, scores: NDArray[np.float64], failed: NDArray[np.bool_]) -> list[Row]:
    return [
        {"gate": gate, "failed": int(label), "score": float(score)}
        for g, gate in enumerate(judged.gates)
        for label, score in zip(failed.tolist(), scores[:, g].tolist(), strict=True)
        if not np.isnan(score)
    ]


def transfer_picture(record: Mapping[str, Any]) -> Picture:
    """The figure of what `probecascade transfer --json` printed. DataError for anything else."""
    try:
        return transfer_matrices(record)
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise DataError(
            "the transfer file holds no transfer matrices: give what `probecascade transfer --json` printed."
        ) from error
