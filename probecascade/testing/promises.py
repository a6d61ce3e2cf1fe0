"""How a contract check says which promise was broken."""

from __future__ import annotations


def expect(kept: bool, promise: str) -> None:
    """Raise an AssertionError that names `promise` unless it was `kept`."""
    if not kept:
        raise AssertionError(f"broken promise: {promise}")
