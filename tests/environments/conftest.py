"""Where the real task files are: beside the project, not in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

SHARED = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture(scope="session")
def shared() -> Callable[[str], Path]:
    """The path of a file of the folder `shared/data` beside the project; the test is skipped where it is absent."""

    def find(name: str) -> Path:
        if not (SHARED / name).exists():
            pytest.skip(f"{SHARED / name} is not here")
        return SHARED / name

    return find
