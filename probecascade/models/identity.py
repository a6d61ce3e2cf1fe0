"""Checksums that say which model, tokenizer and chat template a state was read from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probecascade.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SAMPLE = 4096  # bytes read at the start, middle and end of each tensor
_PROBE_TEXT = "Thought: I'll look up  Søren Ñandú (1842–1901).\nAction 2: Search[日本 🦜]\n\n\tObservation: 3.14%"


def weights_checksum(folder: Path) -> str:
    """Checksum of a folder's safetensors weights that takes milliseconds for any size.

    Every shard's size and header (names, shapes, dtypes) is taken whole, and three samples of 4 KiB of every
    tensor: another model, another fine-tune or a cut file is told apart, an edit of single bytes is not.

    Raises:
        ModelError: a shard that is no safetensors file.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(path.name.encode())
        for piece in _shard_pieces(path):
            digest.update(piece)
    return f"sampled-sha256:{digest.hexdigest()}"


def memory_checksum(model: Any) -> str:
    """Checksum of the weights of a model in memory: names, shapes and dtypes, and three samples of every tensor.

    It is another than `weights_checksum` of the folder that they were loaded from, for they may have been changed.
    """
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        if tensor.is_meta:  # its numbers are elsewhere and brought in when it is used
            continue
        flat = tensor.detach().reshape(-1)
        count = max(1, _SAMPLE // max(tensor.element_size(), 1))
        for at in (0, max(0, len(flat) // 2 - count), max(0, len(flat) - count)):
            piece = flat[at : at + count].cpu().contiguous()
            digest.update(piece.view(torch.uint8).numpy().tobytes())
    return f"memory-sha256:{digest.hexdigest()}"


def dtype_of(model: Any) -> str:
    """The dtype of a model's states, with the method where its weights are quantised: `bfloat16, bitsandbytes`."""
    dtype = str(model.dtype).removeprefix("torch.")
    settings = getattr(model.config, "quantization_config", None)
    if settings is None:
        return dtype
    told = settings if isinstance(settings, dict) else settings.to_dict()
    bits = next((f" {n}-bit" for n in (4, 8) if told.get(f"load_in_{n}bit") or told.get("bits") == n), "")
    return f"{dtype}, {getattr(told.get('quant_method'), 'value', told.get('quant_method'))}{bits}"


def tokenizer_checksum(tokenizer: PreTrainedTokenizerBase) -> str:
    """Checksum of what a tokenizer does: vocabulary, special tokens, and the ids of a text of hard cases.

    It does not depend on how the library writes tokenizers to disk, nor on padding settings. ModelError for what is
    no tokenizer.
    """
    if not callable(tokenizer) or not hasattr(tokenizer, "get_vocab"):
        raise ModelError(f"{type(tokenizer).__name__} is no tokenizer: give the model's own, of transformers.")
    return _digest(
        [
            sorted(tokenizer.get_vocab().items()),
            sorted((k, str(v)) for k, v in tokenizer.special_tokens_map.items()),
            list(tokenizer(_PROBE_TEXT)["input_ids"]),
        ]
    )


def template_checksum(template: Any) -> str | None:
    """Checksum of a chat template (text, or named templates as a dict); None where there is none."""
    return None if template is None else _digest(template)


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=True)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _shard_pieces(path: Path) -> Iterable[bytes]:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= size - 8:
            raise ModelError(
                f"the weights {path.name!r} in {path.parent} are no whole safetensors file: fetch them again."
            )
        raw = file.read(length)
        try:
            header = json.loads(raw)
            spans = [tuple(entry["data_offsets"]) for key, entry in header.items() if key != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(
                f"the weights {path.name!r} in {path.parent} have an unreadable header: fetch them again."
            ) from error
        yield str(size).encode()
        yield raw
        for start, end in sorted(spans):
            for at in (start, (start + end) // 2, max(start, end - _SAMPLE)):
                file.seek(8 + length + at)
                yield file.read(min(_SAMPLE, end - at))
