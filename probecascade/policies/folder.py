"""The two files of a cascade folder, cascade.json and probes.safetensors: written whole, nothing pickled."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from probecascade.errors import CascadeError

FORMAT = 2
"""Version of the folder's layout; 1 had neither taps nor a digest, and is still read."""

_SIGNED = ("gates", "gate_answers")
_SINCE_DIGEST = frozenset({"taps", "trigger", "modes"})
"""Keys of a gate that came with the digest."""

_TEXT, _ARRAYS = "cascade.json", "probes.safetensors"


def write_folder(path: Path, record: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], *, overwrite: bool) -> None:
    """Write record and arrays under a temporary name beside `path`, then rename the folder into place.

    CascadeError if `path` exists (with `overwrite`: if it is no cascade), or the record is not plain JSON.
    """
    if path.exists():
        if not overwrite:
            raise CascadeError(f"{str(path)!r} exists already: choose another folder, or ask to overwrite it.")
        if not (path / _TEXT).is_file():
            raise CascadeError(f"{str(path)!r} is no cascade and is not overwritten: choose another folder.")
    try:
        signed = {"format": FORMAT, "digest": digest(record, arrays), **record}
        text = json.dumps(signed, indent=2, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise CascadeError(
            f"the cascade's record is not plain JSON ({error}): keep only text and finite numbers in it."
        ) from error
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        _write(draft / _TEXT, text.encode() + b"\n")
        _write(draft / _ARRAYS, save_arrays({name: np.ascontiguousarray(a) for name, a in arrays.items()}))
        draft.chmod(path.parent.stat().st_mode & 0o777)
        _put_in_place(draft, path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def read_folder(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Record and arrays of this folder. CascadeError names the file that is absent, damaged or too new."""
    if not (path / _TEXT).is_file():
        raise CascadeError(f"there is no cascade at {str(path)!r}: give a folder that `probecascade fit -o` made.")
    try:
        record = json.loads((path / _TEXT).read_text(encoding="utf-8"), parse_constant=_refuse_constant)
        version = _version(path, record)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise damaged(path / _TEXT, error) from error
    try:
        arrays = load_arrays((path / _ARRAYS).read_bytes())
    except (OSError, SafetensorError) as error:
        raise damaged(path / _ARRAYS, error) from error
    if version > 1 and record.get("digest") != digest(record, arrays):
        raise CascadeError(
            f"the gates of {str(path)!r} are not those that were saved: a file was changed by hand, so its promise "
            "holds no more; restore it from a copy, or fit the cascade again."
        )
    return record, arrays


def _version(path: Path, record: Mapping[str, Any]) -> int:
    """The record's format. CascadeError if it is none of ours, or one without a digest is claimed beside newer keys."""
    version = record["format"]
    if type(version) is not int or version < 1:
        raise CascadeError(
            f"{str(path)!r} has format {version!r}, and formats count from 1 to {FORMAT}: restore it from a copy, or "
            "fit the cascade again."
        )
    if version > FORMAT:
        raise CascadeError(f"{str(path)!r} has format {version}, newer than {FORMAT}: update probecascade.")
    if version == 1 and ("digest" in record or any(_SINCE_DIGEST & set(gate) for gate in record["gates"])):
        raise CascadeError(
            f"{str(path)!r} says format 1 but holds what only later formats have: a file was changed by hand, so its "
            "promise holds no more; restore it from a copy, or fit the cascade again."
        )
    return version


def digest(record: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> str:
    """Checksum of all that decides: the gates with their thresholds, and every array of their probes."""
    found = hashlib.sha256()
    signed = {key: record.get(key) for key in _SIGNED}
    found.update(json.dumps(signed, sort_keys=True, allow_nan=False).encode())
    for name in sorted(arrays):
        values = np.ascontiguousarray(arrays[name])
        found.update(f"\0{name}\0{values.dtype.str}\0{values.shape}\0".encode())
        found.update(values.tobytes())
    return f"sha256:{found.hexdigest()}"


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def damaged(path: Path, error: Exception) -> CascadeError:
    """The error that says this file cannot be read, and why."""
    return CascadeError(f"{str(path)!r} is damaged or absent ({type(error).__name__}: {error}): fit the cascade again.")


def _put_in_place(draft: Path, path: Path) -> None:
    if not path.exists():
        draft.rename(path)
        return
    old = draft.with_name(f"{draft.name}-old")
    path.rename(old)
    try:
        draft.rename(path)
    except OSError:
        old.rename(path)
        raise
    shutil.rmtree(old)


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
