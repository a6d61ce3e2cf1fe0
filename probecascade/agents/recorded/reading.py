"""Reading a file of recorded runs: which layout it is, its runs without what tells their outcome, its faults."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probecascade.agents.recorded.closing import (
    Closed,
    closed,
    told_failed,
    verdicts,
    without_reflections,
    without_verdicts,
)
from probecascade.agents.recorded.draft import Draft, Layout, is_finite, kind_name, text_of
from probecascade.agents.recorded.events import OPENHANDS, SWE_AGENT
from probecascade.agents.recorded.identity import identity
from probecascade.agents.recorded.messages import MESSAGES
from probecascade.agents.recorded.outcome import recorded_outcome
from probecascade.agents.recorded.react_text import REACT, split_text, text_difference
from probecascade.agents.recorded.records import Fault, RecordedFile, RecordedRun
from probecascade.agents.recorded.source import Source, read_source
from probecascade.agents.recorded.steps import AGENTSTOP, ROUNDS
from probecascade.errors import DataError, UsageError

_LAYOUTS = {layout.name: layout for layout in (ROUNDS, AGENTSTOP, SWE_AGENT, OPENHANDS, MESSAGES, REACT)}
LAYOUTS: tuple[str, ...] = tuple(_LAYOUTS)
"""The layouts that can be read, in the order in which they are tried."""

LONG_CHARACTERS = 400_000
"""Characters of a run, some 100,000 tokens, from which it is reported as long."""

_ATTRIBUTES = ("dataset", "model", "source", "heldout", "trial", "seed", "temperature")
_SAMPLE = 20  # records whose layout is looked at
_KEYS = 8  # keys of a record that are named where its layout is unknown


@dataclass
class Reading:
    """A file as it is read, and how much was dropped so that no text tells an outcome, by what it was."""

    layout: Layout
    name: str
    records: int = 0  # with those that are left out
    runs: list[RecordedRun] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    _lines: dict[str, int] = field(default_factory=dict)  # of the runs, by id

    @property
    def file(self) -> RecordedFile:
        """The runs in the order of the file, the faults by line."""
        return RecordedFile(self.layout.name, tuple(self.runs), tuple(sorted(self.faults, key=lambda each: each.line)))

    def take(self, line: int, record: object) -> None:
        """Add a record, as a run or as a fault."""
        self.records += 1
        difference = self.layout.difference(record)[1] if isinstance(record, Mapping) else f"it is {kind_name(record)}"
        if difference or not isinstance(record, Mapping):
            return self._fault(line, f"no record of the layout {self.layout.name!r} ({difference}): left out")
        draft = self.layout.read(record)
        for problem in draft.problems:
            self._fault(line, problem)
        while draft.steps and not draft.steps[-1].text.strip():
            draft.steps.pop()
            self._fault(line, "the last round holds no turn of the agent: left out")
        if not draft.steps:
            return self._fault(line, "the record has no steps: left out")
        end = closed(draft.steps)
        self._closed(line, draft, end)
        return self._keep(line, record, draft, end)

    def _fault(self, line: int, problem: str) -> None:
        self.faults.append(Fault(line, problem))

    def _closed(self, line: int, draft: Draft, end: Closed) -> None:
        """Count what was dropped; all but the observation after the last round is a fault as well."""
        told = (*verdicts(draft.question), *end.verdicts)
        self.dropped["closing observations"] += end.observation
        self.dropped["rounds after finish"] += end.after_finish
        self.dropped["verdicts"] += len(told)
        if end.after_finish:
            what = "a round follows" if end.after_finish == 1 else f"{end.after_finish} rounds follow"
            self._fault(line, f"{what} the first action 'finish': left out")
        for verdict in told:
            self._fault(line, f"the text tells the outcome ({_short(verdict)!r}): cut out")

    def _keep(self, line: int, record: Mapping[str, Any], draft: Draft, end: Closed) -> None:
        question = without_verdicts(without_reflections(draft.question))
        run_id, task_id, group = identity(record, question, f"{self.name}:{line}")
        if run_id in self._lines:
            renamed = f"{run_id}@{line}"
            self._fault(line, f"the id {run_id!r} is that of line {self._lines[run_id]} already: kept as {renamed!r}")
            run_id = renamed
        self._lines[run_id] = line
        failed, reward = recorded_outcome(record)
        if failed is None:
            failed = told_failed(draft.told or draft.steps[-1].observation)
        if failed is None:
            self._fault(line, "the record tells no outcome: kept without a label")
        elif is_finite(told := record.get("reward")) and (told >= 1 if failed else told <= 0):
            self._fault(line, f"the label is {'failure' if failed else 'success'}, but the reward {told:g}: kept so")
        if not question.strip():
            self._fault(line, "the record has no question: kept with an empty one")
        length = len(question) + sum(len(step.text) + len(step.observation) for step in end.steps)
        if length >= LONG_CHARACTERS:
            self._fault(line, f"a long transcript of {length:,} characters, some {length // 4:,} tokens: kept whole")
        given = {
            key: value for key in _ATTRIBUTES if isinstance(value := record.get(key), str | bool) or is_finite(value)
        }
        attributes = {**given, **draft.attributes}
        self.runs.append(RecordedRun(run_id, task_id, group, question, end.steps, failed, reward, attributes))


def read_recorded(path: str | os.PathLike[str], layout: str | None = None) -> RecordedFile:
    """Read runs that other agents recorded, in file order, without any text that tells how they ended.

    The file holds JSON Lines, a JSON array, one JSON object or plain text, gzipped or not; `layout` is one of
    `LAYOUTS`, None finds it from the records. The last round of every run has no observation, whatever its outcome
    (see `closing`). A record that cannot be read is left out and named among the faults, as is everything else that
    is wrong with the file: a run that tells no outcome is kept with `failed=None`, one whose id repeats is kept
    under a new id.

    Raises UsageError for an unknown layout or a file that cannot be opened, DataError for a file without any run or
    of no known layout: then it says what was tried and in what the nearest differs.
    """
    return read_counted(path, layout).file


def read_counted(path: str | os.PathLike[str], layout: str | None = None) -> Reading:
    """`read_recorded`, with the counts of what was dropped."""
    if layout is not None and layout not in _LAYOUTS:
        raise UsageError(f"there is no layout {layout!r}: name one of {', '.join(LAYOUTS)}, or none to find it.")
    file = Path(path)
    source = read_source(file)
    records = _records(file, source, layout)
    reading = Reading(_LAYOUTS[layout] if layout else _detected(file, records), file.name, faults=source.faults)
    for line, record in records:
        reading.take(line, record)
    if not reading.runs:
        first = f" (line {reading.faults[0].line}: {reading.faults[0].problem})" if reading.faults else ""
        raise DataError(
            f"{file.name} holds no run of the layout {reading.layout.name!r}{first}; give another file or layout."
        )
    return reading


def _records(file: Path, source: Source, layout: str | None) -> list[tuple[int, Any]]:
    """The records with their lines: those of plain text split, the events or messages of a single run put together."""
    if source.text is not None:
        problem = text_difference(source.text)
        if problem or layout not in (None, REACT.name):
            wrong = problem or f"it is plain text, no {layout}"
            raise DataError(
                f"{file.name} is of no known layout: neither JSON ({', '.join(LAYOUTS)}) nor ReAct text ({wrong}); "
                "give one JSON object a line, or text with the lines Question:, Thought:, Action: and Observation:."
            )
        return split_text(source.text, source.faults)
    items = [record for _, record in source.records]
    if items and all(isinstance(item, Mapping) for item in items):
        if all("role" in item for item in items):
            return [(1, {"messages": items})]
        if all("source" in item and ("action" in item or "observation" in item) for item in items):
            return [(1, {"events": items})]
    return list(source.records)


def _detected(file: Path, records: list[tuple[int, Any]]) -> Layout:
    """The layout of most of the first records. DataError says what was tried and where the nearest differs."""
    sample = [(line, record) for line, record in records if isinstance(record, Mapping)][:_SAMPLE]
    if not sample:
        raise DataError(f"{file.name} holds no JSON object; give one a line, in a layout of {', '.join(LAYOUTS)}.")
    found = Counter(name for _, record in sample if (name := _layout_of(record)))
    if found:
        return _LAYOUTS[found.most_common(1)[0][0]]
    line, record = sample[0]
    nearest = max(_LAYOUTS.values(), key=lambda layout: layout.difference(record)[0])
    keys = ", ".join(text_of(key) for key in list(record)[:_KEYS]) or "no keys"
    raise DataError(
        f"{file.name} is of no known layout: tried {', '.join(LAYOUTS)}; the nearest is {nearest.name!r}, but on line "
        f"{line} (with {keys}) {nearest.difference(record)[1]}; rewrite the records in one of these layouts."
    )


def _layout_of(record: Mapping[str, Any]) -> str:
    return next((layout.name for layout in _LAYOUTS.values() if not layout.difference(record)[1]), "")


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
