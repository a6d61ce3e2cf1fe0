"""What every frozen probe can do, and the registry that restores each kind from its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from probecascade.errors import CascadeError, DataError
from probecascade.interfaces import Probe

Arrays = Mapping[str, NDArray[Any]]
Spec = Mapping[str, Any]


class FrozenProbe(Probe, Protocol):
    """A probe that can be written down: `spec()` is JSON, `arrays()` goes into safetensors; nothing is pickled."""

    def spec(self) -> dict[str, Any]:
        """What the arrays are not; `kind` names the loader."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The parameters by name."""


Loader = Callable[[Spec, Arrays], FrozenProbe]

_LOADERS: dict[str, Loader] = {}


def loads(kind: str) -> Callable[[Loader], Loader]:
    """Register a function as the loader of probes whose spec says `kind`."""

    def register(loader: Loader) -> Loader:
        _LOADERS[kind] = loader
        return loader

    return register


def load_probe(spec: Spec, arrays: Arrays) -> FrozenProbe:
    """The probe that `spec()` and `arrays()` came from, bit for bit. Raises CascadeError on anything else."""
    kind = spec.get("kind") if isinstance(spec, Mapping) else None
    if not isinstance(kind, str) or kind not in _LOADERS:
        known = ", ".join(sorted(_LOADERS))
        raise CascadeError(f"The cascade holds a probe of kind {kind!r}; this version reads {known}: upgrade or refit.")
    try:
        return _LOADERS[kind](spec, arrays)
    except (DataError, KeyError, TypeError, ValueError) as error:
        raise CascadeError(f"The cascade's probe is damaged, refit it: {error}") from error


def pick(arrays: Arrays, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """These arrays. Raises CascadeError that names the missing ones."""
    missing = [name for name in names if name not in arrays]
    if missing:
        raise CascadeError(f"The cascade's probe lacks the arrays {', '.join(missing)}; the file is damaged: refit it.")
    return {name: arrays[name] for name in names}


def number(arrays: Arrays, name: str) -> float:
    """The one value of an array of shape (1,). Raises CascadeError on another shape."""
    shape = arrays[name].shape
    if shape != (1,):
        raise CascadeError(f"The cascade's probe has a {name} of shape {shape}, not (1,); refit it.")
    return float(arrays[name][0])


def within(arrays: Arrays, prefix: str) -> dict[str, NDArray[Any]]:
    """The arrays of a part, whose names were put behind `prefix` and a dot."""
    start = f"{prefix}."
    return {name.removeprefix(start): values for name, values in arrays.items() if name.startswith(start)}


def under(prefix: str, arrays: Arrays) -> dict[str, NDArray[Any]]:
    """The arrays of a part, each name behind `prefix` and a dot."""
    return {f"{prefix}.{name}": values for name, values in arrays.items()}


def frozen(values: ArrayLike) -> NDArray[np.float64]:
    """A read-only copy as float64."""
    copy = np.array(values, dtype=np.float64)
    copy.flags.writeable = False
    return copy
