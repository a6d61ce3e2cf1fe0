"""Which tokens a direction in the residual stream speaks for: the logit lens, with the final norm taken along.

The head reads a state through the final norm, which rescales, weighs (RMSNorm, LayerNorm) and centres (LayerNorm)
it. To first order, a step v at a state h changes the logits by W J(h) v, where J(h) is the Jacobian of the norm: its
weight and centring folded in, divided by the state's own scale, less what only stretches the state and is rescaled
away. That Jacobian is averaged over reference states, so no assumption about the kind of norm is made. A bias or a
soft cap of the head is left out: neither changes the order of tokens at a state.

For a state of the last layer this is what the step does to the logits. For an earlier layer it is the plain lens: the
blocks in between are passed over, as if they only added to the stream, so the reading is approximate, the more so the
earlier the layer.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probecascade.errors import ModelError
from probecascade.models.hooks import unembed

REFERENCES = 64
"""Reference states over which the norm's Jacobian is averaged."""

_ROWS = 16_384  # of the head that are brought to float32 at a time


@dataclass(frozen=True, slots=True)
class TokenShift:
    """What a step along a direction does to one token.

    shift: change of its logit, less the mean change over the vocabulary. random_share: of the random directions, the
    share that have this token among their own most promoted or suppressed: a token that is high there says nothing.
    """

    token: int
    text: str
    shift: float
    random_share: float


@dataclass(frozen=True, slots=True)
class Lens:
    """Tokens by what a step along a direction does to them, most promoted and most suppressed first.

    norm: class of the final norm. tied: the head shares its weights with the embedding. spread: standard deviation of
    the shifts over the vocabulary; peak: the largest shift in absolute value over the spread. `*_rank`: share of the
    random directions of the same length with a smaller spread or peak. Where both are below .95 the tokens are no
    more telling than those of a random direction.
    """

    norm: str
    tied: bool
    promoted: tuple[TokenShift, ...]
    suppressed: tuple[TokenShift, ...]
    spread: float
    spread_rank: float
    peak: float
    peak_rank: float
    random: int


@torch.inference_mode(False)
def read_direction(
    model: Any,
    tokenizer: Any,
    step: NDArray[np.floating[Any]],
    references: NDArray[np.floating[Any]],
    random: NDArray[np.floating[Any]],
    *,
    top: int = 12,
) -> Lens:
    """Put a step (d_model,) through the unembedding, beside `random` steps of the same length (count, d_model).

    references: states (n, d_model) at which the final norm is linearised; up to `REFERENCES` of them are used.
    Raises ModelError where the shapes differ from the model's, or its final norm cannot be found.
    """
    head: Any = model.get_output_embeddings()
    d_model = int(head.weight.shape[1])
    given = {"a step": np.shape(step)[-1], "references": np.shape(references)[-1], "random steps": np.shape(random)[-1]}
    for what, width in given.items():
        if width != d_model:
            raise ModelError(
                f"{what} of width {width} cannot pass the head of this model, which reads {d_model}: "
                "give the model that the probe was fitted on."
            )
    norm = final_norm(model)
    jacobian = _mean_jacobian(norm, references)
    steps = torch.from_numpy(np.vstack([np.asarray(step)[None], random])).float() @ jacobian.T
    shifts = _through(head.weight, steps)  # (vocab, 1 + count)
    shifts -= shifts.mean(dim=0)
    spread = shifts.std(dim=0)
    peak = shifts.abs().amax(dim=0) / spread.clamp_min(1e-30)
    own, others = shifts[:, 0], shifts[:, 1:]
    top = min(top, len(own))
    share = _random_shares(others, top)
    texts = _Texts(tokenizer, own, share)
    order = torch.argsort(own, descending=True, stable=True).tolist()
    embedding: Any = model.get_input_embeddings()
    return Lens(
        norm=type(norm).__name__,
        tied=embedding.weight.data_ptr() == head.weight.data_ptr(),
        promoted=tuple(texts.shift(token) for token in order[:top]),
        suppressed=tuple(texts.shift(token) for token in reversed(order[-top:])),
        spread=float(spread[0]),
        spread_rank=_rank(spread),
        peak=float(peak[0]),
        peak_rank=_rank(peak),
        random=others.shape[1],
    )


def final_norm(model: Any) -> nn.Module:
    """The module that `hooks.unembed` sends a state through before the head, found by watching it do so."""
    head = model.get_output_embeddings()
    called: list[nn.Module] = []
    leaves = [module for module in model.modules() if not any(module.children())]
    handles = [module.register_forward_hook(lambda own, args, output: called.append(own)) for module in leaves]
    try:
        with torch.inference_mode():
            unembed(model, torch.ones(head.weight.shape[1], dtype=head.weight.dtype, device=head.weight.device))
    finally:
        for handle in handles:
            handle.remove()
    if len(called) != 2 or called[1] is not head:
        raise ModelError(
            f"{type(model).__name__} reads its last state through {[type(m).__name__ for m in called]}, "
            "not through one norm and a head: its directions cannot be read as tokens."
        )
    return called[0]


def _mean_jacobian(norm: nn.Module, references: NDArray[np.floating[Any]]) -> Tensor:
    """(d_model, d_model), float32, on the CPU."""
    own = copy.deepcopy(norm).float().cpu()
    places = np.linspace(0, len(references) - 1, min(len(references), REFERENCES)).astype(int)
    total: Tensor | None = None
    for state in torch.from_numpy(np.asarray(references, dtype=np.float32)[places]):
        one = torch.func.jacrev(own)(state)
        total = one if total is None else total + one
    if total is None:
        raise ModelError("no reference state was given, so the final norm cannot be linearised: give one or more.")
    return (total / len(places)).detach()


def _through(weight: Tensor, steps: Tensor) -> Tensor:
    """(vocab, n): weight (vocab, d_model) times steps (n, d_model), float32, some rows of the head at a time."""
    with torch.no_grad():
        parts = [weight[at : at + _ROWS].float().cpu() @ steps.T for at in range(0, len(weight), _ROWS)]
    return torch.cat(parts)


def _random_shares(shifts: Tensor, top: int) -> Tensor:
    """(vocab,): share of the columns in which a token is among the `top` largest or smallest."""
    counts = torch.zeros(len(shifts))
    for sign in (1, -1):
        found = torch.topk(sign * shifts, top, dim=0).indices
        counts += torch.bincount(found.flatten(), minlength=len(shifts))
    return counts / max(shifts.shape[1], 1)


def _rank(values: Tensor) -> float:
    """Share of the entries after the first that are smaller than it."""
    return float((values[1:] < values[0]).float().mean()) if len(values) > 1 else float("nan")


@dataclass(frozen=True, slots=True)
class _Texts:
    tokenizer: Any
    shifts: Tensor
    shares: Tensor

    def shift(self, token: int) -> TokenShift:
        text = self.tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return TokenShift(token, text, float(self.shifts[token]), float(self.shares[token]))


def lens_layers(layer: int, n_layers: int) -> str:
    """In words, how far a reading of this layer can be trusted."""
    if layer == n_layers:
        return "the last layer: the logits change by this much, to first order"
    passed: Sequence[int] = range(layer + 1, n_layers + 1)
    blocks = f"block {passed[0]} is" if len(passed) == 1 else f"blocks {passed[0]} to {passed[-1]} are"
    return f"a plain logit lens: {blocks} passed over, so this is approximate"
