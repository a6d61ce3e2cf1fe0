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
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from probecascade.errors import CascadeError

FORMAT = 3
"""Version of the folder's layout. 1 had neither taps nor a digest, the digest of 2 covered the gates alone; both are
still read. From 3 on the arrays' file says its format too, so that no record of an older one can be put beside it."""

_SIGNED_BY_2 = ("gates", "gate_answers")
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
        # As it will be read: texts as keys, lists for tuples.
        plain = json.loads(json.dumps({**record, "format": FORMAT}, ensure_ascii=False, allow_nan=False))
        signed = {"format": FORMAT, "digest": digest(plain, arrays), **plain}
        text = json.dumps(signed, indent=2, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise CascadeError(
            f"the cascade's record is not plain JSON ({error}): keep only text and finite numbers in it."
        ) from error
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        _write(draft / _TEXT, text.encode() + b"\n")
        packed = {name: np.ascontiguousarray(a) for name, a in arrays.items()}
        _write(draft / _ARRAYS, save_arrays(packed, metadata={"format": str(FORMAT)}))
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
        with safe_open(path / _ARRAYS, framework="numpy") as file:
            written_as = (file.metadata() or {}).get("format")
    except (OSError, SafetensorError) as error:
        raise damaged(path / _ARRAYS, error) from error
    if written_as != (str(version) if version > 2 else None):
        raise _changed(path, f"{_TEXT} says format {version}, and {_ARRAYS} is of {_known(written_as)}")
    if version > 1 and record.get("digest") != _digest_read(path, record, arrays):
        raise _changed(path, "what it holds is not what was saved")
    return record, arrays


def _digest_read(path: Path, record: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> str:
    try:
        return digest(record, arrays)
    except ValueError as error:  # a number too large for a float
        raise damaged(path / _TEXT, error) from error


def _known(written_as: str | None) -> str:
    return "format 1 or 2" if written_as is None else f"format {written_as}"


def _changed(path: Path, how: str) -> CascadeError:
    return CascadeError(
        f"the cascade {str(path)!r} was changed by hand ({how}), so its promise holds no more; restore it from a copy, "
        "or fit the cascade again."
    )


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
        raise _changed(path, f"{_TEXT} says format 1 but holds what only later formats have")
    return version


def digest(record: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> str:
    """Checksum of a record as JSON gives it and of every array: of all that it says but the checksum itself.

    Of a record of format 2, the gates and whether answers are gated.
    """
    found = hashlib.sha256()
    old = record["format"] == 2
    signed = {key: record.get(key) for key in (_SIGNED_BY_2 if old else record) if key != "digest"}
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
    except BaseException:  # Ctrl-C too
        if not path.exists():
            old.rename(path)
        raise
    shutil.rmtree(old)


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
