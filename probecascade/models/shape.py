"""How many blocks a model has and how wide they are, read from its configuration: no weights are loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from probecascade.errors import ModelError
from probecascade.models.catalogue import ModelSource
from probecascade.models.conversion import converted_folder, file_digest
from probecascade.models.quiet import quiet_loading


@dataclass(frozen=True, slots=True)
class ModelShape:
    """`n_layers` decoder blocks, so layers 0..n_layers can be read; states of `d_model` numbers.

    `kv_width` numbers are the keys of one token in one block, and as many its values.
    """

    n_layers: int
    d_model: int
    kv_width: int


def read_shape(source: ModelSource) -> ModelShape:
    """The shape of a model of the catalogue.

    A GGUF file (the embedded model too) is converted on first use, as `load` would. Raises ModelError for a
    configuration that cannot be fetched or read.
    """
    from transformers import AutoConfig

    where: str | Path = source.name
    if source.path is not None:
        is_file = source.path.is_file()
        where = converted_folder(source.path, file_digest(source.path)) if is_file else source.path
    try:
        with quiet_loading():
            config = AutoConfig.from_pretrained(where, revision=source.revision, trust_remote_code=False)
        text = config.get_text_config()
        heads = int(getattr(text, "num_attention_heads", None) or 1)
        width = getattr(text, "head_dim", None) or int(text.hidden_size) // heads
        kv_heads = getattr(text, "num_key_value_heads", None) or heads
        return ModelShape(int(text.num_hidden_layers), int(text.hidden_size), int(kv_heads) * int(width))
    except Exception as error:  # a damaged or unreachable configuration surfaces as almost any exception
        raise ModelError(
            f"the configuration of {source.name!r} cannot be read ({type(error).__name__}): "
            "check the name, the revision and the network."
        ) from error
