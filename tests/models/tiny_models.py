"""Tiny random decoders of several architectures, a byte-level tokenizer, an oracle that shares no code with ours."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

VOCAB = 264
LAYERS = 3
END = 256

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "max_position_embeddings": 1024,
    # Larger than the default, so that greedy choices are not decided by rounding.
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_LLAMA = _SIZES | {"intermediate_size": 64, "num_key_value_heads": 2}
_GPT2 = {
    "vocab_size": VOCAB,
    "n_embd": 32,
    "n_layer": LAYERS,
    "n_head": 4,
    "n_positions": 1024,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
}
_CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**_LLAMA),
    "qwen2": lambda: transformers.Qwen2Config(**_LLAMA),
    "gpt2": lambda: transformers.GPT2Config(**_GPT2),
    "gpt2_scaled": lambda: transformers.GPT2Config(**_GPT2, scale_attn_by_inverse_layer_idx=True),
    "neox": lambda: transformers.GPTNeoXConfig(**_SIZES, intermediate_size=64),
    "mistral": lambda: transformers.MistralConfig(**_LLAMA, sliding_window=5),
    "gemma2": lambda: transformers.Gemma2Config(**_LLAMA, head_dim=8, attn_logit_softcapping=50.0),
    "gpt_oss": lambda: transformers.GptOssConfig(**_LLAMA, head_dim=8, num_local_experts=2, num_experts_per_tok=1),
    "bloom": lambda: transformers.BloomConfig(
        vocab_size=VOCAB, hidden_size=32, n_layer=LAYERS, n_head=4, initializer_range=0.3
    ),
    "mamba": lambda: transformers.MambaConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=LAYERS, state_size=4),
}
SUPPORTED = ("llama", "qwen2", "gpt2", "gpt2_scaled", "neox", "mistral")


def make_model(kind: str = "llama", seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(_CONFIGS[kind]())
    return model.eval().requires_grad_(False).to(dtype)


def make_tokenizer(padding_side: str = "right") -> Any:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<end>", pad_token="<pad>", padding_side=padding_side
    )


@contextlib.contextmanager
def _input_of(module: Any) -> Iterator[list[torch.Tensor]]:
    seen: list[torch.Tensor] = []
    handle = module.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    try:
        yield seen
    finally:
        handle.remove()


def final_norm(model: Any) -> Any:
    for path in ("model.norm", "transformer.ln_f", "gpt_neox.final_layer_norm"):
        with contextlib.suppress(AttributeError):
            return model.get_submodule(path)
    raise LookupError(type(model).__name__)


@torch.no_grad()
def clean_states(model: Any, ids: Sequence[int]) -> NDArray[np.float32]:
    """States of all layers in one forward over `ids`: (n_ids, n_layers + 1, d_model).

    The tuple of transformers gives the inputs of the blocks; what enters the final norm is the last layer.
    """
    with _input_of(final_norm(model)) as last:
        output = model(input_ids=torch.tensor([list(ids)]), use_cache=False, output_hidden_states=True)
    tensors = [*output.hidden_states[:-1], last[0]]
    stacked: NDArray[np.float32] = torch.stack([t[0] for t in tensors], 1).float().numpy()
    return stacked


@torch.no_grad()
def generated(model: Any, ids: Sequence[int], n: int) -> list[int]:
    """The next `n` ids that `model.generate` chooses greedily."""
    inputs = torch.tensor([list(ids)])
    out = model.generate(
        inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=n, do_sample=False, pad_token_id=0
    )
    return out[0, len(ids) :].tolist()


def relative_error(states: NDArray[np.float32], clean: NDArray[np.float32]) -> float:
    """The largest relative L2 error of any position and layer."""
    gap = np.linalg.norm(states - clean, axis=-1)
    return float((gap / np.linalg.norm(clean, axis=-1)).max())


def random_ids(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(1, 250, n).tolist()
