"""A local model with readable layers: the catalogue of names and what is built on it.

The names below load on first use, so that importing this package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probecascade.models.catalogue import LoadedModel, ModelSource, load, resolve
    from probecascade.models.engine import Engine
    from probecascade.models.given import adopt

_HOMES = {
    "Engine": "engine",
    "LoadedModel": "catalogue",
    "ModelSource": "catalogue",
    "adopt": "given",
    "load": "catalogue",
    "resolve": "catalogue",
}

__all__ = ["Engine", "LoadedModel", "ModelSource", "adopt", "load", "resolve"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
