"""The steps of `probecascade calibrate`: choose a target, predict, calibrate, judge, plot, write."""

from __future__ import annotations

import json
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import typer

from probecascade.cli.calibrate import Asked
from probecascade.cli.calibrate_text import (
    conditions,
    episodes_record,
    episodes_text,
    feasibility_record,
    judged_record,
    judged_text,
    operating_record,
    operating_text,
)
from probecascade.cli.scores import ScoreTable, read_scores, refuse_overlap
from probecascade.cli.tables import jsonable, print_json, wrapped
from probecascade.errors import UsageError
from probecascade.intervals import Resampling
from probecascade.report import save_figures
from probecascade.report.figures import IN_SAMPLE
from probecascade.thresholds import Calibration, calibrate, feasibility, parse_target
from probecascade.thresholds.operating import choose_target
from probecascade.thresholds.problem import Sample

_TEACHING = 0.30  # of the groups, where prices choose the target and no teachers are given


@dataclass(frozen=True, slots=True, eq=False)
class Files:
    """The episodes that certify, those that only teach the shape, and those that only judge."""

    certify: ScoreTable
    teach: ScoreTable | None
    test: ScoreTable | None


class Work:
    """One calibration: what was found so far, told at once to a person or gathered for a program."""

    def __init__(self, asked: Asked, files: Files, as_json: bool) -> None:
        self.asked = asked
        self.files = files
        self.record: dict[str, Any] = {}
        self._quiet = as_json

    def say(self, text: str = "") -> None:
        """Tell it to a person at once."""
        if not self._quiet:
            typer.echo(text)

    def run(self) -> Calibration | None:
        """Choose the target where prices are given, predict, calibrate and judge; None where nothing pays."""
        if self.asked.unit == "group" and self.files.certify.groups is None:
            raise UsageError(
                f"--unit group counts groups, but {self.files.certify.path} has no column 'group': add it, or leave "
                "out --unit."
            )
        targets = self.asked.targets(self.files.certify.gates)
        keep: str | Fraction | None = self.asked.keep
        if self.asked.prices:
            keep = self._choose(*self.asked.prices)
        certify, teach = self.files.certify, self.files.teach
        self.say(wrapped(episodes_text(certify, "certify the thresholds")))
        if teach is not None:
            self.say(wrapped(episodes_text(teach, "teach their shape")))
        self.record |= {
            "episodes": episodes_record(certify),
            "teachers": None if teach is None else episodes_record(teach),
        }
        if self.asked.prices and keep is None:
            return None
        self._predict(keep, targets)
        calibration = calibrate(
            certify.data.scores,
            certify.data.failed,
            certify.groups,
            certify.cost_after,
            catch=targets or None,
            keep=keep,
            confidence=self.asked.confidence,
            unit=self.asked.unit,
            teachers=_taught(teach),
            method=self.asked.method,
            seed=self.asked.seed,
            ids=certify.ids,
            gates=certify.gates,
            largest_group=self.asked.largest_group,
        )
        stated = conditions(calibration, certify)
        self.record |= calibration.record() | {"conditions": stated}
        for text in (*(f"note: {note}" for note in calibration.notes), calibration.promise, *stated):
            self.say(wrapped(text))
        self._judge(calibration)
        return calibration

    def _choose(self, price: float, worth: float) -> Fraction | None:
        """The keep target that is worth most on the teachers, or on groups set aside as teachers."""
        files = self.files
        if not files.certify.costs or files.certify.total is None:
            raise UsageError(
                f"prices need tokens: give {files.certify.path} the columns 'tokens' and '<gate>:after' for every gate."
            )
        if files.teach is None:
            self.files = files = _set_aside(files, self.asked.seed)
        teach = files.teach
        assert teach is not None
        if teach.total is None:
            raise UsageError(f"prices need tokens: give {teach.path} the column 'tokens'.")
        chosen = choose_target(
            teach.data,
            teach.total,
            price,
            worth,
            groups=teach.labels,
            certifying=_certifying(files.certify) if self.asked.method == "certified" else None,
            confidence=self.asked.confidence,
            resampling=_resampling(teach, self.asked.seed),
            seed=self.asked.seed,
        )
        self.record["operating"] = operating_record(chosen)
        self.say(operating_text(chosen))
        self.say()
        return chosen.keep

    def _predict(self, keep: str | Fraction | None, targets: dict[int, Fraction]) -> None:
        """Say whether both kinds of targets are likely to be certified, before anything certifies them."""
        if keep is None or not targets or self.asked.method != "certified":
            return
        certify = self.files.certify
        found = feasibility(
            certify.data.scores,
            certify.data.failed,
            certify.groups,
            certify.cost_after,
            catch=targets,
            keep=keep,
            confidence=self.asked.confidence,
            teachers=_taught(self.files.teach),
            seed=self.asked.seed,
        )
        if found is not None:
            sentence = found.sentence(parse_target(keep), certify.gates)
            self.record["feasibility"] = feasibility_record(found, certify.gates, sentence)
            self.say(wrapped(sentence))

    def _judge(self, calibration: Calibration) -> None:
        for key, table in (("seen", self.files.certify), ("test", self.files.test)):
            if table is None:
                self.record[key] = None
                continue
            resampling = _resampling(table, self.asked.seed)
            result = calibration.evaluate(
                table.data.scores,
                table.data.failed,
                table.groups,
                table.cost_after,
                cost_total=table.total,
                resampling=resampling,
            )
            self.record[key] = judged_record(calibration, table, result, resampling)
            self.say()
            self.say(judged_text(calibration, table, self.record[key], in_sample=key == "seen"))

    def plot(self, calibration: Calibration, folder: Path, overwrite: bool) -> None:
        """Figures on the test episodes, or without them on those that set the thresholds."""
        table = self.files.test or self.files.certify
        paths = save_figures(
            calibration,
            table.data.scores,
            table.data.failed,
            table.groups,
            table.cost_after,
            directory=folder,
            cost_total=table.total,
            of=IN_SAMPLE if self.files.test is None else "the test episodes, which shaped nothing",
            overwrite=overwrite,
            resampling=_resampling(table, self.asked.seed),
            seed=self.asked.seed,
        )
        self.record["figures"] = [str(path) for path in paths]
        self.say()
        self.say(f"figures: {', '.join(self.record['figures'])}")

    def write(self, output: Path, overwrite: bool) -> None:
        """The record as JSON in full precision, off thresholds as null. UsageError where it cannot be written."""
        text = json.dumps(jsonable(self.record), indent=2, ensure_ascii=False, allow_nan=False)
        try:
            with output.open("w" if overwrite else "x", encoding="utf-8") as file:
                file.write(text + "\n")
        except OSError as error:
            raise UsageError(f"{str(output)!r} cannot be written ({error.strerror}): give another file.") from error
        self.record["written"] = str(output)
        self.say(f"written to {output}")

    def finish(self, note: str | None = None) -> None:
        """Print the record for a program, or the note for a person."""
        if self._quiet:
            print_json(self.record | ({} if note is None else {"note": note}))
        elif note is not None:
            typer.echo(note)


def read_files(scores: Path, teachers: Path | None, test: Path | None) -> Files:
    """Read the files. DataError where one is malformed, or an episode or group is in two of them."""
    certify = read_scores(scores)
    teach = None if teachers is None else read_scores(teachers, certify)
    judged = None if test is None else read_scores(test, certify)
    read = [table for table in (certify, teach, judged) if table is not None]
    for place, table in enumerate(read):
        for other in read[:place]:
            refuse_overlap(table, other)
    return Files(certify, teach, judged)


def _taught(teach: ScoreTable | None) -> tuple[Any, ...] | None:
    if teach is None:
        return None
    return teach.data.scores, teach.data.failed, teach.data.cost_after, teach.labels


def _set_aside(files: Files, seed: int) -> Files:
    """Random groups as teachers, the others to certify."""
    labels = files.certify.labels
    # Labels may be row numbers of a sorted file: the seed alone would pick the same ranks of the scores every time.
    content = Sample.of(files.certify.data, labels).digest
    groups = np.random.default_rng([seed, content]).permutation(np.unique(labels))
    teaching = np.isin(labels, groups[: int(np.ceil(_TEACHING * len(groups)))])
    return Files(files.certify.take(~teaching), files.certify.take(teaching), files.test)


def _certifying(table: ScoreTable) -> int:
    """About how many independent successes certify: each group counts as its share of successes."""
    codes = np.unique(table.labels, return_inverse=True)[1].ravel()
    return int((np.bincount(codes, weights=~table.data.failed) / np.bincount(codes)).sum())


def _resampling(table: ScoreTable, seed: int) -> Resampling:
    """Fewer resamples where there are many groups: the intervals are narrow there, and their ends well known."""
    return Resampling(resamples=min(1000, max(200, 10_000_000 // len(np.unique(table.labels)))), seed=seed)
