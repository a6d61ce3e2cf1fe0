"""Lets the tests import the benchmarks as they import each other: as modules of one folder."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
