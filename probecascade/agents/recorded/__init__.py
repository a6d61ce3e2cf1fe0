"""Runs that other agents recorded: read from the layouts in which they are published, without their labels' text."""

from probecascade.agents.recorded.closing import verdicts
from probecascade.agents.recorded.reading import LAYOUTS, Reading, read_counted, read_recorded
from probecascade.agents.recorded.records import Fault, RecordedFile, RecordedRun, RecordedStep

__all__ = [
    "LAYOUTS",
    "Fault",
    "Reading",
    "RecordedFile",
    "RecordedRun",
    "RecordedStep",
    "read_counted",
    "read_recorded",
    "verdicts",
]
