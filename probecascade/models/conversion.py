"""GGUF files become safetensors folders once, in the user's cache, and are checked at every later start."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError

from probecascade.errors import ModelError
from probecascade.models.quiet import quiet_loading

_MANIFEST = "manifest.json"
_FORMAT = 1  # raised when a conversion would give other weights; older entries are then left unused


def cache_root() -> Path:
    """`$PROBECASCADE_CACHE`, else `$XDG_CACHE_HOME/probecascade`, else `~/.cache/probecascade`."""
    if own := os.environ.get("PROBECASCADE_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "probecascade"


def file_digest(path: Path) -> str:
    """`sha256:` and the hex digest of a file's bytes; about a second for a gigabyte."""
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def converted_folder(gguf: Path, digest: str) -> Path:
    """The folder with the float32 safetensors, config and tokenizer of a GGUF file, converted if need be.

    An entry of the cache is named by the file's content. It is written under a temporary name and renamed
    when whole; at every start its files are compared with the checksums of its manifest, and a damaged entry
    is made anew. Two processes that start at once convert once: the second waits for the first.

    Args:
        gguf: the GGUF file.
        digest: its `file_digest`.

    Raises:
        ModelError: the file is no GGUF model that transformers can read, or the cache cannot be written.
    """
    root = cache_root()
    entry = root / f"{gguf.stem}-v{_FORMAT}-{digest.removeprefix('sha256:')[:16]}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root / f"{entry.name}.lock"):
            if not _is_whole(entry, digest):
                _convert(gguf, digest, entry)
    except OSError as error:
        raise ModelError(
            f"the model cache {root} could not be written ({error.strerror or error}): "
            "free some space, or set PROBECASCADE_CACHE to a folder that can be written."
        ) from error
    return entry


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        # Released by the system when the file is closed, so a killed process leaves no stale lock.
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_whole(entry: Path, digest: str) -> bool:
    try:
        manifest = json.loads((entry / _MANIFEST).read_text(encoding="utf-8"))
        files = manifest["files"]
        return (
            manifest["gguf"] == digest
            and "model.safetensors" in files
            and all((entry / name).stat().st_size == seen["size"] for name, seen in files.items())
            and all(file_digest(entry / name) == seen["digest"] for name, seen in files.items())
        )
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _convert(gguf: Path, digest: str, entry: Path) -> None:
    prefix = f".{entry.name}-"
    for left_over in entry.parent.glob(f"{glob.escape(prefix)}*"):  # of a process that was killed
        shutil.rmtree(left_over, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=prefix, dir=entry.parent))
    try:
        _write_safetensors(gguf, scratch)
        files = {
            path.name: {"size": path.stat().st_size, "digest": file_digest(path)} for path in sorted(scratch.iterdir())
        }
        manifest = {"gguf": digest, "source": gguf.name, "files": files}
        (scratch / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink(missing_ok=True)
        scratch.rename(entry)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _write_safetensors(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        with quiet_loading():
            tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
            model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    except Exception as error:  # a damaged or foreign file surfaces as almost any exception
        raise ModelError(
            f"the GGUF file {gguf.name!r} cannot be converted ({type(error).__name__}): "
            "give a whole GGUF file of an architecture that transformers reads."
        ) from error
    # The weights are plain once dequantised, but the model calls itself quantised and refuses to be saved.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    for name in ("is_quantized", "quantization_method"):
        vars(model).pop(name, None)
    try:
        with quiet_loading():
            model.save_pretrained(folder, max_shard_size="1TB")
            tokenizer.save_pretrained(folder)
    except SafetensorError as error:  # a full disk arrives as this one
        raise OSError(f"the weights could not be written: {error}") from error
