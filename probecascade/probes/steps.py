"""Preprocessing that becomes part of a frozen probe: each step is fitted on training rows, then only applied.

A step sees rows (n, blocks * d): the states of several taps side by side, most often one block. What is learnt
is learnt on the rows that `fit` is given, so inside cross-validation on the training rows of a fold alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from probecascade.errors import CascadeError, DataError, UsageError
from probecascade.probes.kinds import Arrays, Spec, frozen, pick
from probecascade.probes.linear import LinearProbe
from probecascade.probes.scoring import row_products
from probecascade.probes.solver import principal_axes

Array = NDArray[np.float64]

_LEAST_VARIANCE = 1e-12  # added in LayerNorm, so that a constant block gives zeros


class FrozenStep(Protocol):
    """A step that has been fitted."""

    def apply(self, rows: Array) -> Array:
        """(n, width) -> (n, new width); a row has the same bits alone and in any batch, a missing block stays NaN."""

    def before(self, probe: LinearProbe) -> LinearProbe | None:
        """The linear probe that equals `probe` after this step, up to rounding; None where there is none."""

    def spec(self) -> dict[str, Any]: ...
    def arrays(self) -> dict[str, NDArray[Any]]: ...


class Step(Protocol):
    """The settings of a step."""

    def fit(self, rows: Array) -> FrozenStep:
        """Learn from training rows (n, width)."""


@dataclass(frozen=True)
class Centre:
    """Remove the mean of the training rows, feature by feature, hence layer by layer."""

    def fit(self, rows: Array) -> Affine:
        mean, scale = column_moments(rows)
        return Affine(mean, np.ones_like(scale))


@dataclass(frozen=True)
class Standardise:
    """Remove each feature's mean over the training rows and divide by its standard deviation (1 where constant)."""

    def fit(self, rows: Array) -> Affine:
        return Affine(*column_moments(rows))


@dataclass(frozen=True)
class PCA:
    """Project each block on the `components` leading principal axes of the training rows, or on all there are.

    Blocks share one mean and one basis, so that they stay comparable. Raises UsageError below one component.
    """

    components: int
    blocks: int = 1

    def fit(self, rows: Array) -> Projection:
        if self.components < 1:
            raise UsageError(f"PCA was given {self.components} components; give one or more.")
        parts = _parts(rows, self.blocks)
        present = parts[np.isfinite(parts).all(axis=1)]
        mean = present.mean(axis=0)
        axes, _ = principal_axes(present - mean)
        if not axes.shape[1]:
            raise DataError("PCA was given rows that are all alike; there is no axis to project on.")
        return Projection(mean, axes[:, ::-1][:, : self.components].T, self.blocks)


@dataclass(frozen=True, eq=False)
class Affine:
    """(x - mean) / scale, both (width,)."""

    mean: Array
    scale: Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", frozen(self.mean))
        object.__setattr__(self, "scale", frozen(self.scale))

    def apply(self, rows: Array) -> Array:
        return (_wide(rows, len(self.mean)) - self.mean) / self.scale

    def before(self, probe: LinearProbe) -> LinearProbe:
        mean = self.mean + self.scale * probe.mean
        return LinearProbe(mean, self.scale * probe.scale, probe.weight, probe.bias)

    def spec(self) -> dict[str, Any]:
        return {"kind": "affine"}

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"mean": self.mean, "scale": self.scale}


@dataclass(frozen=True, eq=False)
class Projection:
    """Coordinates along orthonormal axes (k, d) of each block x - mean, mean (d,)."""

    mean: Array
    axes: Array
    blocks: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", frozen(self.mean))
        object.__setattr__(self, "axes", frozen(self.axes))

    def apply(self, rows: Array) -> Array:
        parts = _parts(_wide(rows, self.blocks * len(self.mean)), self.blocks)
        return row_products(parts - self.mean, self.axes).reshape(len(rows), self.blocks * len(self.axes))

    def before(self, probe: LinearProbe) -> LinearProbe:
        slopes = (probe.weight / probe.scale).reshape(self.blocks, -1)
        bias = probe.bias - float(np.sum(probe.weight * probe.mean / probe.scale))
        mean = np.tile(self.mean, self.blocks)
        return LinearProbe(mean, np.ones_like(mean), (slopes @ self.axes).ravel(), bias)

    def spec(self) -> dict[str, Any]:
        return {"kind": "pca", "blocks": self.blocks}

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"mean": self.mean, "axes": self.axes}


@dataclass(frozen=True)
class LayerNorm:
    """Each block of a row less its own mean, divided by its own standard deviation; nothing is learnt.

    Source: Ba, Kiros and Hinton 2016, without gain and bias, which a head supplies.
    """

    blocks: int = 1

    def fit(self, rows: Array) -> LayerNorm:
        _parts(rows, self.blocks)
        return self

    def apply(self, rows: Array) -> Array:
        parts = _parts(rows, self.blocks)
        ones = np.ones((1, parts.shape[1]))
        with np.errstate(over="ignore", invalid="ignore"):
            centred = parts - row_products(parts, ones) / parts.shape[1]
            variance = row_products(np.square(centred), ones) / parts.shape[1]
            normed: Array = centred / np.sqrt(variance + _LEAST_VARIANCE)
        return normed.reshape(rows.shape)

    def before(self, probe: LinearProbe) -> None:
        return None

    def spec(self) -> dict[str, Any]:
        return {"kind": "layernorm", "blocks": self.blocks}

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {}


@dataclass(frozen=True)
class Average:
    """The mean of a row's blocks: (n, blocks * d) -> (n, d), such as of the last few layers; nothing is learnt."""

    blocks: int

    def fit(self, rows: Array) -> Average:
        _parts(rows, self.blocks)
        return self

    def apply(self, rows: Array) -> Array:
        blocks = _parts(rows, self.blocks).reshape(len(rows), self.blocks, rows.shape[1] // self.blocks)
        total: Array = blocks[:, 0].copy()
        for k in range(1, self.blocks):
            total += blocks[:, k]
        total /= self.blocks
        return total

    def before(self, probe: LinearProbe) -> LinearProbe:
        mean, scale = np.tile(probe.mean, self.blocks), np.tile(probe.scale, self.blocks)
        return LinearProbe(mean, scale, np.tile(probe.weight / self.blocks, self.blocks), probe.bias)

    def spec(self) -> dict[str, Any]:
        return {"kind": "average", "blocks": self.blocks}

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {}


_STEPS: dict[str, Callable[[Spec, Arrays], FrozenStep]] = {
    "affine": lambda spec, arrays: Affine(**pick(arrays, ("mean", "scale"))),
    "pca": lambda spec, arrays: Projection(**pick(arrays, ("mean", "axes")), blocks=int(spec["blocks"])),
    "layernorm": lambda spec, arrays: LayerNorm(int(spec["blocks"])),
    "average": lambda spec, arrays: Average(int(spec["blocks"])),
}


def load_step(spec: Spec, arrays: Arrays) -> FrozenStep:
    """The fitted step of spec and arrays. Raises CascadeError on an unknown kind."""
    kind = spec.get("kind")
    if kind not in _STEPS:
        raise CascadeError(
            f"The cascade's probe has a step of kind {kind!r}; this version reads {', '.join(_STEPS)}: "
            "upgrade or refit."
        )
    return _STEPS[kind](spec, arrays)


def column_moments(rows: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of each column over the rows where it is present, (d,) each.

    A constant column has its value as mean and scale 1: it may show a spread of rounding size, which must not
    be blown up to unit variance. A column without any value has mean 0 and scale 1.
    """
    absent = np.isnan(rows)
    if not absent.any():
        mean, scale = rows.mean(axis=0), rows.std(axis=0)
        first = rows[0]
    else:
        count = np.maximum((~absent).sum(axis=0), 1)
        mean = np.where(absent, 0.0, rows).sum(axis=0) / count
        scale = np.sqrt(np.square(np.where(absent, 0.0, rows - mean)).sum(axis=0) / count)
        first = np.where(absent.all(axis=0), 0.0, rows[absent.argmin(axis=0), np.arange(rows.shape[1])])
    constant = scale <= len(rows) * np.finfo(np.float64).eps * np.abs(mean)
    mean[constant], scale[constant] = first[constant], 1.0
    return mean, scale


def _parts(rows: Array, blocks: int) -> Array:
    """Blocks as rows of their own, (n * blocks, d)."""
    if blocks < 1 or rows.shape[1] % blocks:
        raise DataError(f"States have width {rows.shape[1]}, no multiple of {blocks} blocks; give equal blocks.")
    return rows.reshape(len(rows) * blocks, rows.shape[1] // blocks)


def _wide(rows: Array, width: int) -> Array:
    if rows.shape[1] != width:
        raise DataError(
            f"States have width {rows.shape[1]} and the probe was fitted on width {width}; "
            "score states of the model and layer it was fitted on."
        )
    return rows
