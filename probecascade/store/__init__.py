"""Runs on disk: recorded episodes and their hidden states in HDF5, written once, read by slices.

Needs neither torch nor the model that was recorded.
"""

from __future__ import annotations

from probecascade.store.layout import described_file
from probecascade.store.reader import CheckpointRows, EpisodeTable, Run
from probecascade.store.schema import DTYPES, FORMAT, LAYER_CONVENTION, cast
from probecascade.store.splits import SPLITS, assign_split, check_disjoint
from probecascade.store.writer import RunWriter

__all__ = [
    "DTYPES",
    "FORMAT",
    "LAYER_CONVENTION",
    "SPLITS",
    "CheckpointRows",
    "EpisodeTable",
    "Run",
    "RunWriter",
    "assign_split",
    "cast",
    "check_disjoint",
    "described_file",
]
