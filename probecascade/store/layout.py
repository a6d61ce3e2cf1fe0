"""The run folder: where its header and shards are, and whether a stored header agrees with a new one."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from probecascade.errors import StoreError
from probecascade.store import schema

_SHARD = re.compile(r"(\d{5,})-[^.]+\.h5")
_IDENTITY = (
    "model",
    "n_layers",
    "layers",
    "d_model",
    "layer_convention",
    "final_norm",
    "dtype",
    "checkpoints",
    "template",
    "recipe_identity",
)
"""Keys of `run.json` that decide what the vectors mean: a resumed run must agree in all of them."""


def read_header(path: Path) -> dict[str, Any]:
    """`run.json` of a run folder. StoreError if there is none, it is unreadable, or its format is newer."""
    if not path.is_dir():
        raise StoreError(f"there is no run at {str(path)!r}; give a folder that `probecascade extract -o` made.")
    try:
        header = json.loads((path / "run.json").read_text(encoding="utf-8"))
        version = int(header["format"])
        if version <= schema.FORMAT:
            if header["dtype"] not in schema.DTYPES or not header["layers"] or header["d_model"] < 1:
                raise ValueError("dtype, layers or d_model make no sense")
            return dict(header)
    except FileNotFoundError as error:
        raise StoreError(
            f"{str(path)!r} is not a run: it holds no run.json; give a folder that `probecascade extract -o` made."
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{str(path / 'run.json')!r} is damaged ({type(error).__name__}: {error}); restore it from a copy."
        ) from error
    raise StoreError(f"{str(path)!r} has format {version}, newer than {schema.FORMAT}; update probecascade.")


def shard_number(path: Path) -> int:
    """The number that a shard's name begins with: shards are read in its order."""
    return int(path.name.split("-", 1)[0])


def list_shards(path: Path) -> list[Path]:
    """Whole shards of a run, oldest first."""
    found = [file for file in (path / "shards").glob("*.h5") if _SHARD.fullmatch(file.name)]
    return sorted(found, key=lambda file: (shard_number(file), file.name))


def list_incomplete(path: Path) -> list[Path]:
    """Shards that were begun and not finished; one of them may belong to a writer at work."""
    return sorted((path / "shards").glob(".tmp-*"))


def bytes_on_disk(path: Path) -> int:
    """Size of all files of a run, in bytes."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def described_file(path: Path) -> dict[str, str]:
    """An entry of the header's `files`: the name of a file that a run is made from, and its SHA-256."""
    with path.open("rb") as file:
        return {"name": path.name, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def check_resumable(path: Path, stored: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse to mix recordings. StoreError names the first key that differs, with both values."""
    stored, given = schema.stated_backend(stored), schema.stated_backend(given)
    known, found = stored.get("files", {}), given.get("files", {})
    for role in (role for role in known if role in found and known[role]["sha256"] != found[role]["sha256"]):
        raise StoreError(
            f"cannot resume {str(path)!r}: the file {found[role]['name']!r} is not the one that the run was begun "
            f"with (its SHA-256 begins with {found[role]['sha256'][:12]}, then with {known[role]['sha256'][:12]}); "
            "give that file, or choose another folder."
        )
    for key in _IDENTITY:
        difference = _first_difference(key, stored.get(key), given.get(key))
        if difference is not None:
            name, before, now = difference
            raise StoreError(
                f"cannot resume {str(path)!r}: its {name} is {_short(before)}, and now it would be "
                f"{_short(now)}; use the settings it was made with, or choose another folder."
            )


def _first_difference(name: str, stored: Any, given: Any) -> tuple[str, Any, Any] | None:
    if isinstance(stored, Mapping) and isinstance(given, Mapping):
        for key in (*stored, *(key for key in given if key not in stored)):
            found = _first_difference(f"{name}.{key}", stored.get(key), given.get(key))
            if found is not None:
                return found
        return None
    return None if stored == given else (name, stored, given)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def full_header(header: Mapping[str, Any], *, layers: tuple[int, ...], d_model: int, dtype: str) -> dict[str, Any]:
    """The caller's header with the store's own facts, as JSON gives it back."""
    facts = {"layers": list(layers), "d_model": d_model, "dtype": dtype}
    defaults = {"layer_convention": schema.LAYER_CONVENTION, "final_norm": False}
    for key in ("d_model", "dtype"):
        if key in header and header[key] != facts[key]:
            raise StoreError(
                f"the header says {key} = {header[key]!r}, but the writer was asked for {facts[key]!r}; make "
                "them agree."
            )
    versions = {**header.get("versions", {}), "h5py": h5py.__version__, "numpy": np.__version__}
    own = {"format": schema.FORMAT, "created": now()}
    full = own | defaults | dict(header) | facts | {"versions": versions}
    try:
        return dict(json.loads(json.dumps(full, allow_nan=False)))
    except (TypeError, ValueError) as error:
        raise StoreError(
            f"the header cannot be written as JSON ({error}); use text, finite numbers, lists and mappings."
        ) from error


def json_bytes(header: Mapping[str, Any]) -> bytes:
    """`run.json` as it is written."""
    return (json.dumps(header, indent=2, ensure_ascii=True) + "\n").encode("ascii")


def now() -> str:
    """The time, UTC, to the second, in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")
