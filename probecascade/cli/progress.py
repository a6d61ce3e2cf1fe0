"""The one progress bar: on stderr, silent where that is no terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def progress(items: Iterable[T], total: int, what: str, unit: str = "ep") -> Iterator[T]:
    """Pass items on and count them, with the time left by the average so far."""
    from tqdm import tqdm

    # Episodes end in bursts, so a moving average would jump: the average since the start does not.
    yield from tqdm(items, total=total, desc=what, unit=unit, smoothing=0, disable=None, dynamic_ncols=True)
