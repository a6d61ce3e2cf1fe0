"""Hidden states that another program dumped: one file holds the ids of a sequence and a state for each of them.

    .safetensors   hidden_states (n_tokens, n_layers, d_model), token_ids (n_tokens,): what vLLM's hidden-state
                   connectors and speculators write (`hs_*.safetensors`)
    .npz           the same two arrays, and `layers` (n_layers,) where the file says which they are

Source: vLLM, docs/features/speculative_decoding/extract_hidden_states.md: a layer id k is the output of block k before
the final norm, the number of blocks included, which is our own convention.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probecascade.errors import DataError
from probecascade.store.schema import decode

STATES, IDS, LAYERS = "hidden_states", "token_ids", "layers"
_SAFETENSORS = {"F32": np.float32, "F16": np.float16, "F64": np.float64, "BF16": np.uint16}
_INTEGERS = {"I64": np.int64, "I32": np.int32, "U32": np.uint32}
# The last two are zipfile's, where a wrong byte asks for a version, a method or a password.
_UNREADABLE = (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError)
_STORED = {"BF16": "bfloat16", "F16": "float16", "float16": "float16"}


@dataclass(frozen=True, slots=True, eq=False)
class Dump:
    """A dumped sequence: `token_ids` (n_tokens,) and a state of every layer for each.

    `dtype` is the store's that holds the states as they are (float32 for wider ones). `layers` are those that the file
    names, None where it names none.
    """

    path: Path
    token_ids: NDArray[np.int32]
    dtype: str
    layers: tuple[int, ...] | None
    raw: NDArray[Any]  # (n_tokens, n_layers, d_model), bfloat16 as uint16

    @property
    def n_layers(self) -> int:
        return int(self.raw.shape[1])

    @property
    def d_model(self) -> int:
        return int(self.raw.shape[2])

    def states(self, positions: Sequence[int]) -> NDArray[np.float32]:
        """States at these positions, (len(positions), n_layers, d_model), exactly."""
        with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, and is refused as such
            return decode(self.raw[list(positions)], self.dtype)


def read_dump(path: Path) -> Dump:
    """Read a dump. DataError for a file that is none, or whose states are not one for each id."""
    if path.name.endswith(".zst"):
        raise DataError(f"{str(path)!r} is compressed: unpack it first, with `zstd -d`.")
    if path.suffix not in (".safetensors", ".npz"):
        raise DataError(f"{str(path)!r} is no dump of hidden states: give a .safetensors or .npz file.")
    try:
        found = _safetensors(path) if path.suffix == ".safetensors" else _npz(path)
    except FileNotFoundError as error:
        raise DataError(f"there is no dump {str(path)!r}: name files as seen from the folder of the index.") from error
    except _UNREADABLE as error:
        raise DataError(f"{str(path)!r} cannot be read ({error}): dump it again.") from error
    for key in (STATES, IDS):
        if key not in found:
            raise DataError(f"{str(path)!r} holds no {key!r}: give a file with {STATES!r} and {IDS!r}.")
    return _checked(path, found)


def _safetensors(path: Path) -> dict[str, tuple[str, NDArray[Any]]]:
    import safetensors

    try:
        tensors = safetensors.deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        raise ValueError(str(error)) from error
    found = {}
    for name, tensor in tensors:
        if name not in (STATES, IDS):  # speculators adds masks for its losses
            continue
        kind = (_SAFETENSORS | _INTEGERS).get(tensor["dtype"])
        if kind is None:
            raise ValueError(f"{name} has the type {tensor['dtype']}")
        found[name] = tensor["dtype"], np.frombuffer(tensor["data"], kind).reshape(tensor["shape"])
    return found


def _npz(path: Path) -> dict[str, tuple[str, NDArray[Any]]]:
    with path.open("rb") as opened:
        file = np.load(opened, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise ValueError("it holds one array without a name")
        return {name: (file[name].dtype.name, file[name]) for name in file.files if name in (STATES, IDS, LAYERS)}


def _checked(path: Path, found: dict[str, tuple[str, NDArray[Any]]]) -> Dump:
    (kind, states), (_, ids) = found[STATES], found[IDS]
    ids = ids.reshape(-1) if ids.ndim == 2 and len(ids) == 1 else ids
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise DataError(f"{str(path)!r} has {IDS} of shape {ids.shape} and type {ids.dtype}; expected integers (n,).")
    if states.ndim != 3 or (states.dtype.kind != "f" and kind != "BF16"):
        raise DataError(
            f"{str(path)!r} has {STATES} of shape {states.shape} and type {kind}; expected numbers of shape (n_tokens, "
            "n_layers, d_model)."
        )
    if len(states) != len(ids):
        raise DataError(
            f"{str(path)!r} has {len(states)} states for {len(ids)} ids: each id needs its own; with prefix caching or "
            "chunked prefill vLLM leaves some out, so dump again without them."
        )
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) <= np.iinfo(np.int32).max:
        raise DataError(f"{str(path)!r} has ids outside 0..{np.iinfo(np.int32).max}: give those that the model read.")
    named = found[LAYERS][1] if LAYERS in found else None
    if named is not None and named.dtype.kind not in "iu":
        raise DataError(f"{str(path)!r} names its layers as {named.dtype}; expected whole numbers (n_layers,).")
    layers = None if named is None else tuple(int(layer) for layer in named.reshape(-1))
    if layers is not None and len(layers) != states.shape[1]:
        raise DataError(f"{str(path)!r} has states of {states.shape[1]} layers and names {len(layers)}.")
    return Dump(path, ids.astype(np.int32), _STORED.get(kind, "float32"), layers, states)
