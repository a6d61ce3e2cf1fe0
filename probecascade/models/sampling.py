"""Drawing one token for each of several conversations at once, each from its own random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_SCORED = 256  # rows of logits that are normalised at once


@dataclass(frozen=True, slots=True)
class Draw:
    """A drawn id with its log-probability and the entropy (nats) of the model's own distribution."""

    id: int
    logprob: float
    entropy: float


def draw_tokens(
    logits: Tensor,
    temperatures: Sequence[float],
    top_ps: Sequence[float],
    uniforms: Sequence[float],
    allowed: Sequence[Sequence[int] | None],
) -> list[Draw]:
    """One id per row of `logits` (n, vocab), by inversion of the row's cumulative distribution at its `uniforms` entry.

    A row of temperature 0 takes the largest logit and ignores its number, so the outcome of a row depends on
    nothing but its own logits and its own number. `logprob` and `entropy` always refer to the unmodified logits.
    """
    logprobs, entropies = _distributions(logits)
    scores = logits.float()
    if any(a is not None for a in allowed):
        scores = scores.clone()
        for row, ids in enumerate(allowed):
            if ids is not None:
                mask = torch.ones_like(scores[row], dtype=torch.bool)
                mask[torch.as_tensor(list(ids), device=scores.device)] = False
                scores[row].masked_fill_(mask, float("-inf"))
    chosen = scores.argmax(-1)
    warm = [row for row, t in enumerate(temperatures) if t > 0]
    if warm:
        index = torch.tensor(warm, device=logits.device)
        heat = torch.tensor([temperatures[r] for r in warm], device=logits.device)[:, None]
        probabilities = torch.softmax(scores[index] / heat, dim=-1)
        chosen[index] = _invert(
            probabilities,
            torch.tensor([top_ps[r] for r in warm], device=logits.device),
            torch.tensor([uniforms[r] for r in warm], dtype=torch.float64, device=logits.device),
        )
    picked = logprobs.gather(1, chosen[:, None])[:, 0]
    return [Draw(i, p, h) for i, p, h in zip(chosen.tolist(), picked.tolist(), entropies.tolist(), strict=True)]


def score_tokens(logits: Tensor, ids: Sequence[int]) -> NDArray[np.float64]:
    """Log-probability of `ids` under the rows of `logits` (n, vocab), and the rows' entropies (nats): (n, 2)."""
    found = [np.zeros((0, 2))]
    for start in range(0, len(ids), _SCORED):  # a whole vocabulary of numbers for each id is needed but for a moment
        logprobs, entropies = _distributions(logits[start : start + _SCORED])
        wanted = torch.tensor(ids[start : start + _SCORED], device=logits.device)
        picked = logprobs.gather(1, wanted[:, None])[:, 0]
        found.append(torch.stack([picked, entropies], dim=1).double().cpu().numpy())
    return np.concatenate(found)


def _distributions(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities (n, vocab) in float32 and entropies (n,) of the rows of `logits`."""
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    return logprobs, -(logprobs.exp() * logprobs).nan_to_num(0.0).sum(-1)


def _invert(probabilities: Tensor, top_p: Tensor, uniforms: Tensor) -> Tensor:
    if bool((top_p < 1).any()):
        ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
        before = ordered.cumsum(-1) - ordered
        # The likeliest id always stays, and a row without a limit stays whole although rounded sums may reach 1 early.
        ordered = ordered.masked_fill((before >= top_p[:, None]) & (top_p < 1)[:, None], 0.0)
        probabilities = torch.zeros_like(probabilities).scatter(-1, order, ordered)
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    targets = uniforms[:, None] * cumulative[:, -1:]
    found = torch.searchsorted(cumulative, targets, right=True)[:, 0]
    # Rounding may place a target on the last total; the last id with any probability is meant.
    last = probabilities.shape[-1] - 1 - (probabilities > 0).flip(-1).int().argmax(-1)
    return torch.minimum(found, last)
