"""The frozen multilayer perceptron: several members of one shape, whose probabilities are averaged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from probecascade.errors import DataError
from probecascade.probes.inputs import as_matrix
from probecascade.probes.kinds import Arrays, Spec, frozen, loads, pick
from probecascade.probes.scoring import as_probabilities, row_products

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class MLPProbe:
    """Mean over members of P(failure) = sigmoid of a perceptron with ReLU units on (x - mean) / scale.

    mean, scale: (d,). weights: one array per layer, (members, units out, units in), the last with one unit out.
    biases: one per layer, (members, units out). Scores are computed row by row in float64, so that a row's bits
    do not depend on its batch. Source of averaging members: Lakshminarayanan, Pritzel and Blundell 2017.
    Raises DataError where shapes do not fit together or a parameter is not finite.
    """

    mean: Array
    scale: Array
    weights: tuple[Array, ...]
    biases: tuple[Array, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", frozen(self.mean))
        object.__setattr__(self, "scale", frozen(self.scale))
        object.__setattr__(self, "weights", tuple(frozen(w) for w in self.weights))
        object.__setattr__(self, "biases", tuple(frozen(b) for b in self.biases))
        self._check()

    def _check(self) -> None:
        arrays = (self.mean, self.scale, *self.weights, *self.biases)
        if not all(np.isfinite(values).all() for values in arrays) or not (self.scale > 0).all():
            raise DataError("An MLP probe was given parameters that are not finite or a scale that is not positive.")
        members = self.weights[0].shape[0] if self.weights and self.weights[0].ndim == 3 else 0
        width = self.mean.shape
        for weight, bias in zip(self.weights, self.biases, strict=True):
            if weight.ndim != 3 or weight.shape[0] != members or weight.shape[2:] != width:
                raise DataError(f"An MLP probe was given a layer of shape {weight.shape} after one of width {width}.")
            if bias.shape != weight.shape[:2]:
                raise DataError(f"An MLP probe was given biases {bias.shape} for weights {weight.shape}.")
            width = weight.shape[1:2]
        if not members or width != (1,) or self.scale.shape != self.mean.shape:
            raise DataError("An MLP probe needs members, a scale per feature and one unit in its last layer.")

    def score(self, states: ArrayLike | None, signals: ArrayLike | None = None) -> Array:
        """P(failure), (n,), of states (n, d). DataError where they are absent, not finite or of another width."""
        if states is None:
            raise DataError("This probe reads states and was given none; pass states.")
        rows = as_matrix(states, "states")
        if rows.shape[1] != len(self.mean):
            raise DataError(
                f"States have width {rows.shape[1]} and the probe was fitted on width {len(self.mean)}; "
                "score states of the model and layer it was fitted on."
            )
        with np.errstate(over="ignore", invalid="ignore"):
            features = (rows - self.mean) / self.scale
        total = np.zeros(len(rows))
        members = len(self.weights[0])
        for member in range(members):
            units = features
            for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
                units = row_products(np.maximum(units, 0.0) if layer else units, weight[member]) + bias[member]
            total += as_probabilities(units[:, 0])
        total /= members
        return total

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The parameters: mean, scale, and per layer k `weight.k` and `bias.k`."""
        named = {"mean": self.mean, "scale": self.scale}
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            named |= {f"weight.{layer}": weight, f"bias.{layer}": bias}
        return named

    def spec(self) -> dict[str, Any]:
        """kind, and the number of layers."""
        return {"kind": "mlp", "layers": len(self.weights)}


@loads("mlp")
def load_mlp(spec: Spec, arrays: Arrays) -> MLPProbe:
    """The perceptron of spec and arrays."""
    layers = range(int(spec["layers"]))
    own = pick(arrays, ["mean", "scale", *(f"{name}.{layer}" for name in ("weight", "bias") for layer in layers)])
    weights, biases = (tuple(own[f"{name}.{layer}"] for layer in layers) for name in ("weight", "bias"))
    return MLPProbe(own["mean"], own["scale"], weights, biases)
