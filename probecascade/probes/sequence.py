"""The frozen sequence probe: pools the states of several checkpoints, of which earlier ones may be missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from probecascade.errors import DataError
from probecascade.probes.inputs import as_blocks
from probecascade.probes.kinds import Arrays, Spec, frozen, loads, number, pick
from probecascade.probes.scoring import as_probabilities, row_products

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SequenceProbe:
    """P(failure) = sigmoid(weight . pooled + bias), pooled = sum of a_t z_t over the blocks present, a_t summing to 1.

    Block t of a row is the state at tap t, z_t = (x_t - mean_t) / scale_t; a missing block is NaN throughout.
    mean, scale: (blocks, d). weight: (d,). query: (d,), with which a_t is proportional to exp(query . z_t)
    (attention pooling); None for the plain mean of the blocks present. Raises DataError where shapes do not
    fit together or a parameter is not finite.
    """

    mean: Array
    scale: Array
    weight: Array
    bias: float
    query: Array | None = None

    def __post_init__(self) -> None:
        for name in ("mean", "scale", "weight"):
            object.__setattr__(self, name, frozen(getattr(self, name)))
        if self.query is not None:
            object.__setattr__(self, "query", frozen(self.query))
        object.__setattr__(self, "bias", float(self.bias))
        d = self.weight.shape
        shapes = self.mean.ndim == 2 and self.mean.size and self.mean.shape == self.scale.shape
        if not shapes or self.mean.shape[1:] != d or (self.query is not None and self.query.shape != d):
            raise DataError("A sequence probe was given arrays of other shapes than (blocks, d) and (d,); refit it.")
        query = () if self.query is None else (self.query,)
        if not all(np.isfinite(v).all() for v in (self.mean, self.scale, self.weight, self.bias, *query)):
            raise DataError("A sequence probe was given NaN or infinite parameters; give finite ones.")
        if not (self.scale > 0).all():
            raise DataError("A sequence probe was given a scale that is not positive; give 1 for constant features.")

    @property
    def blocks(self) -> int:
        """How many taps it pools."""
        return len(self.mean)

    def score(self, states: ArrayLike | None, signals: ArrayLike | None = None) -> Array:
        """P(failure), (n,), of states (n, blocks * d). DataError where absent, of another width or NaN in part."""
        if states is None:
            raise DataError("This probe reads states and was given none; pass states.")
        rows = as_blocks(states, "states", self.blocks)
        if rows.shape[1] != self.mean.size:
            raise DataError(
                f"States have width {rows.shape[1]} and the probe was fitted on width {self.mean.size}; "
                "score states of the model and taps it was fitted on."
            )
        with np.errstate(over="ignore", invalid="ignore"):
            z = (rows.reshape(len(rows), *self.mean.shape) - self.mean) / self.scale
        present = ~np.isnan(z[..., 0])
        directions = self.weight[None] if self.query is None else np.stack([self.weight, self.query])
        found = row_products(z.reshape(-1, z.shape[2]), directions).reshape(len(rows), self.blocks, len(directions))
        evidence = np.where(present, found[..., 0], 0.0)
        share = present.astype(np.float64) if self.query is None else attention(found[..., 1], present)
        return as_probabilities(_in_order(share * evidence) / _in_order(share) + self.bias)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The parameters; `query` only with attention."""
        own = {"mean": self.mean, "scale": self.scale, "weight": self.weight, "bias": np.array([self.bias])}
        return own if self.query is None else own | {"query": self.query}

    def spec(self) -> dict[str, Any]:
        """kind, and how it pools."""
        return {"kind": "sequence", "pooling": "mean" if self.query is None else "attention"}


@loads("sequence")
def load_sequence(spec: Spec, arrays: Arrays) -> SequenceProbe:
    """The sequence probe of spec and arrays."""
    attends = spec["pooling"] == "attention"
    own = pick(arrays, ["mean", "scale", "weight", "bias", *(["query"] if attends else [])])
    return SequenceProbe(own["mean"], own["scale"], own["weight"], number(own, "bias"), own.get("query"))


def attention(logits: Array, present: NDArray[np.bool_]) -> Array:
    """exp(logit - largest) where present, 0 elsewhere, (n, blocks); largest over the blocks present."""
    largest = np.where(present, logits, -np.inf).max(axis=1, keepdims=True)
    behind = np.where(present, logits - largest, -np.inf)
    # exp by way of the scalar sigmoid: numpy's exp may take another path for the last few of a vector.
    share: Array = np.where(present, expit(behind) / expit(-behind), 0.0)
    return share


def _in_order(terms: Array) -> Array:
    """Sums over blocks, first to last, (n, blocks) -> (n,): in an order that does not depend on the batch."""
    total: Array = terms[:, 0].copy()
    for k in range(1, terms.shape[1]):
        total += terms[:, k]
    return total
