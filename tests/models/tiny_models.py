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
WINDOW = 5
"""Of the layers that slide: short, so that every conversation of the tests outgrows it."""

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
    "mistral": lambda: transformers.MistralConfig(**_LLAMA, sliding_window=WINDOW),
    "opt": lambda: transformers.OPTConfig(**_SIZES, ffn_dim=64, word_embed_proj_dim=32, init_std=0.3),
    "qwen3": lambda: transformers.Qwen3Config(**_LLAMA, head_dim=8),
    "gemma2": lambda: transformers.Gemma2Config(
        **_LLAMA, head_dim=8, sliding_window=WINDOW, attn_logit_softcapping=2.0, final_logit_softcapping=30.0
    ),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **_LLAMA,
        head_dim=8,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "phi3": lambda: transformers.Phi3Config(**_LLAMA, sliding_window=WINDOW),
    "falcon": lambda: transformers.FalconConfig(**_SIZES, multi_query=True, bias=False, alibi=False),
    "falcon_alibi": lambda: transformers.FalconConfig(**_SIZES, multi_query=False, bias=True, alibi=True),
    "falcon_40b": lambda: transformers.FalconConfig(**_SIZES, new_decoder_architecture=True, num_kv_heads=2),
    "olmo2": lambda: transformers.Olmo2Config(**_LLAMA),
    "granite": lambda: transformers.GraniteConfig(
        **_LLAMA, embedding_multiplier=2.0, residual_multiplier=0.5, logits_scaling=4.0, attention_multiplier=0.3
    ),
    "mixtral": lambda: transformers.MixtralConfig(**_LLAMA, num_local_experts=4, num_experts_per_tok=2),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(
        **_LLAMA, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32
    ),
    "gpt_oss": lambda: transformers.GptOssConfig(
        **_LLAMA, head_dim=8, sliding_window=WINDOW, num_local_experts=2, num_experts_per_tok=1
    ),
    "bloom": lambda: transformers.BloomConfig(
        vocab_size=VOCAB, hidden_size=32, n_layer=LAYERS, n_head=4, initializer_range=0.3
    ),
    "mamba": lambda: transformers.MambaConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=LAYERS, state_size=4),
    "recurrent_gemma": lambda: transformers.RecurrentGemmaConfig(**_LLAMA, lru_width=32, attention_window_size=8),
}
SUPPORTED = ("llama", "qwen2", "gpt2", "gpt2_scaled", "neox", "mistral")
"""Those of the tests that need more than one architecture; `BATCHED` and `APART` are all that are supported."""

BATCHED = (*SUPPORTED, "opt", "qwen3", "gemma2", "gemma3", "phi3", "olmo2", "granite", "mixtral", "qwen3_moe")
"""Decoders whose conversations share forwards."""

BRIDGED = (*BATCHED, "falcon", "bloom", "gpt_oss")
"""Decoders that TransformerLens runs as transformers does, in float32."""

APART = ("falcon", "falcon_alibi", "falcon_40b", "bloom", "gpt_oss")
"""Decoders that are run one conversation after the other."""


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
    for path in ("model.norm", "transformer.ln_f", "gpt_neox.final_layer_norm", "model.decoder.final_layer_norm"):
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
