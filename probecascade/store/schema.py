"""What a run looks like on disk: names, format version, dtypes and the rules for layers and text.

    run.json               format, layers and their convention, dtype, versions, and the caller's header
    .lock                  held by the one writer
    shards/00000-<hex>.h5  whole shards; `.tmp-*` beside them are shards that were never finished
        hidden/<layer>     (n_checkpoints, d_model) float16, float32, bfloat16 as uint16 (attribute `dtype`)
        checkpoints/*      one column per fact, (n_checkpoints,), rows grouped by checkpoint name and in
                           episode order within a name: one checkpoint of one layer is one contiguous slice
        checkpoints/signals/*  one float32 column per name in `episode.SIGNALS`
        checkpoints/checks/*   one float64 column per check that the environment supplied, NaN where it did not;
                           the group is absent from shards without any
        episodes/*         one column per fact, (n_episodes,), in the order in which episodes were added
        episodes/transcript    JSON text: steps, attributes, decision
        episodes/token_ids     exact ids of all episodes, flat; `token_offset`, (n_episodes + 1,), cuts them

HDF5 knows no bfloat16 and h5py would write it as opaque two-byte values that nobody reads back, hence uint16.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probecascade.episode import Checkpoint
from probecascade.errors import StoreError

FORMAT = 1
"""Version of the layout above; a reader refuses a newer one."""

LAYER_CONVENTION = "layer 0 = embedding output, layer k = output of block k before the final norm"

DTYPES: Mapping[str, type[np.generic]] = {"float16": np.float16, "float32": np.float32, "bfloat16": np.uint16}
"""Name of a stored dtype -> numpy type of its HDF5 dataset."""

TEXT = "text"
EPISODE_COLUMNS: Mapping[str, Any] = {
    "episode_id": TEXT,
    "task_id": TEXT,
    "group": TEXT,
    "seed": np.int64,
    "outcome": TEXT,
    "reward": np.float64,
    "reason": TEXT,
    "rounds": np.int64,
    "tokens": np.int64,
    "generated": np.int64,
    "observed": np.int64,
    "prompt_tokens": np.int64,
    "calls": np.int64,
    "seconds": np.float64,
    "side_tokens": np.int64,
    "doomed_round": np.int64,  # -1: never doomed, or unknown
    "doomed_tokens": np.int64,
    "rejected_non_finite": np.int64,  # checkpoints left out because a value was NaN or infinite
    "rejected_overflow": np.int64,  # checkpoints left out because a value is beyond the stored dtype
}
CHECKPOINT_COLUMNS: Mapping[str, Any] = {
    "episode": np.int64,  # row in episodes/* of the same shard
    "ordinal": np.int64,  # place in the episode's own list of checkpoints
    "kind": TEXT,
    "index": np.int64,
    "round": np.int64,
    "position": np.int64,
    "tokens": np.int64,
    "generated": np.int64,
    "calls": np.int64,
    "seconds": np.float64,
    "final": np.bool_,
}

_KIND_ORDER = {"thought": 0, "action": 1, "observation": 3}
_EVENT_ORDER = 2  # part and other events close a turn: after its action, before its observation
_BFLOAT16_EXPONENT = 0x7F80


def check_dtype(dtype: str) -> str:
    """The dtype's own name, or StoreError naming the known ones."""
    if dtype not in DTYPES:
        raise StoreError(f"dtype {dtype!r} cannot be stored; choose one of {', '.join(sorted(DTYPES))}.")
    return dtype


def encode(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Float values of any shape as they are stored, rounded to nearest even (as torch does).

    Values beyond the dtype's range become infinite: ask `is_finite` of the result.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        single = np.ascontiguousarray(values, dtype=np.float32)
        if dtype != "bfloat16":
            return single.astype(DTYPES[check_dtype(dtype)])
    bits = single.view(np.uint32)
    rounded = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    # Rounding up a NaN whose payload is all ones would carry into the sign bit and make it a zero.
    return np.where(np.isnan(single), np.uint16(0x7FC0), rounded)


def decode(stored: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    """Stored values as float32, exactly."""
    if dtype != "bfloat16":
        return stored.astype(np.float32)
    return (stored.astype(np.uint32) << 16).view(np.float32)


def cast(values: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    """Values as they will be read back: what a probe must see live to see what it was fitted on."""
    return decode(encode(values, dtype), dtype)


def is_finite(stored: NDArray[Any], dtype: str) -> NDArray[np.bool_]:
    """Elementwise: neither NaN nor infinite in the stored dtype."""
    if dtype == "bfloat16":
        return np.asarray((stored & _BFLOAT16_EXPONENT) != _BFLOAT16_EXPONENT)
    return np.asarray(np.isfinite(stored))


def n_layers_of(header: Mapping[str, Any]) -> int | None:
    """Number of decoder blocks that the header states, at its top or under `model`."""
    model = header.get("model")
    found = header.get("n_layers", model.get("n_layers") if isinstance(model, Mapping) else None)
    return None if found is None else int(found)


def stated_backend(header: Mapping[str, Any]) -> dict[str, Any]:
    """The header with `model.backend` said: `transformers` in those from before there was another to read states by."""
    model = header.get("model")
    return {**header, "model": {"backend": "transformers", **model}} if isinstance(model, Mapping) else dict(header)


def resolve_layer(layer: int, n_layers: int | None) -> int:
    """The layer counted from the embedding output (0); -1 is the last block. StoreError outside
    0..n_layers."""
    if isinstance(layer, bool) or not isinstance(layer, int | np.integer):
        raise StoreError(f"layer {layer!r} is not a whole number; give layers such as 0, 12 or -1.")
    if n_layers is None:
        if layer < 0:
            raise StoreError(f"layer {layer} counts from the last block, but the header has no n_layers; give it.")
        return int(layer)
    if not -n_layers - 1 <= layer <= n_layers:
        raise StoreError(f"layer {layer} does not exist: the model has layers 0 (embeddings) to {n_layers}.")
    return int(layer) if layer >= 0 else n_layers + 1 + int(layer)


def resolve_layers(layers: Sequence[int], n_layers: int | None) -> tuple[int, ...]:
    """All layers in the order asked for; StoreError if there is none or two are the same one."""
    resolved = tuple(resolve_layer(layer, n_layers) for layer in layers)
    if not resolved:
        raise StoreError("no layers were given; name at least one layer to store.")
    for place, layer in enumerate(resolved):
        if layer in resolved[:place]:
            asked = [given for given, same in zip(layers, resolved, strict=True) if same == layer]
            raise StoreError(f"layers {asked} are the same layer {layer}; name each layer once.")
    return resolved


def checkpoint_order(kind: str, index: int, first_round: int) -> tuple[bool, int, int, str, int]:
    """Sort key of a checkpoint name: prompt, then by round, thought < action < events < observation.

    `first_round` is the earliest round at which the name occurs: an event such as `part:2` has no round of
    its own.
    """
    return kind != "prompt", first_round, _KIND_ORDER.get(kind, _EVENT_ORDER), kind, index


def checkpoint_name(kind: str, index: int) -> str:
    """The name that a stored checkpoint goes by, `Checkpoint.name`."""
    return Checkpoint(kind, index, 0, 0, 0, 0, 0, 0.0, False, ()).name


def encode_text(text: str) -> bytes:
    """Text as the body of a JSON string in UTF-8: an HDF5 string cannot hold a NUL, and a model may emit one.

    Plain text stays as it is; quotes, backslashes and control characters are escaped; lone surrogates
    survive.
    """
    return json.dumps(text, ensure_ascii=False)[1:-1].encode("utf-8", "surrogatepass")


def decode_text(stored: bytes) -> str:
    """Inverse of `encode_text`."""
    text = stored.decode("utf-8", "surrogatepass")
    return str(json.loads(f'"{text}"')) if "\\" in text else text
