"""Fitters by name, as the command line and recipes give them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any

from probecascade.errors import UsageError
from probecascade.probes.calibrated import METHODS, Calibrated, Method
from probecascade.probes.crossfit import ClassWeight, Fitter
from probecascade.probes.fit import LogisticFitter
from probecascade.probes.means import LDAFitter, MassMeanFitter
from probecascade.probes.mlp_fit import MLPFitter
from probecascade.probes.sequence_fit import SequenceFitter
from probecascade.probes.steps import PCA, Average, Centre, LayerNorm, Standardise, Step

ELASTIC_STRENGTHS: tuple[float, ...] = tuple(float(10.0 ** (k / 2)) for k in range(-6, 1))
"""C from 1e-3 to 1: below it the L1 part leaves no weight at all."""
ATTENTION_STRENGTHS: tuple[float, ...] = (1e-4, 1e-3, 1e-2, 1e-1)

_LINEAR: dict[str, Callable[..., Fitter]] = {
    "logistic": LogisticFitter,
    "elastic-net": lambda **options: LogisticFitter(strengths=ELASTIC_STRENGTHS, l1_ratio=0.5, **options),
    "mass-mean": MassMeanFitter,
    "mass-mean-whitened": lambda **options: MassMeanFitter(whiten=True, **options),
    "lda": LDAFitter,
    "mlp": MLPFitter,
}
_SEQUENCE: dict[str, Callable[..., Fitter]] = {
    "sequence-mean": lambda **options: SequenceFitter(pooling="mean", **options),
    "sequence-attention": lambda **options: SequenceFitter(
        pooling="attention", strengths=ATTENTION_STRENGTHS, **options
    ),
}
PROBES: tuple[str, ...] = (*_LINEAR, *_SEQUENCE)
SEQUENCES: frozenset[str] = frozenset(_SEQUENCE)
STEPS: tuple[str, ...] = ("standardise", "centre", "layernorm", "pca", "average")


def fitter_named(
    name: str,
    *,
    seed: int = 0,
    folds: int = 5,
    calibrated: Method | None = None,
    class_weight: ClassWeight = None,
    steps: Sequence[str] = (),
    blocks: int = 1,
) -> Fitter:
    """The fitter of a name in `PROBES`, with its default settings.

    calibrated: "platt" or "isotonic", see `Calibrated`. class_weight: "balanced" or None. steps: texts in the
    order of their application: "standardise", "centre", "layernorm", "pca:64" (so many components) or
    "average" (of all blocks). blocks: how many taps lie side by side in a row; names in `SEQUENCES` pool them,
    "average" makes one block of them, and without either the probe reads their concatenation.
    Raises UsageError that names the nearest name.
    """
    chosen = _nearest(name, PROBES, "probe")
    if calibrated is not None:
        _nearest(calibrated, METHODS, "calibration")
    if class_weight is not None:
        _nearest(class_weight, ("balanced",), "class weight")
    made, left = _steps(steps, blocks, pooled=chosen in _SEQUENCE)
    options: dict[str, Any] = {"seed": seed, "folds": folds, "class_weight": class_weight, "steps": made}
    fitter = _SEQUENCE[chosen](blocks=left, **options) if chosen in _SEQUENCE else _LINEAR[chosen](**options)
    return fitter if calibrated is None else Calibrated(fitter, calibrated)


def _steps(texts: Sequence[str], blocks: int, *, pooled: bool) -> tuple[tuple[Step, ...], int]:
    """The steps, and how many blocks they leave. Blocks that will be pooled need one basis, others none."""
    made: list[Step] = []
    for text in texts:
        name, _, size = text.strip().partition(":")
        kind = _nearest(name, STEPS, "step")
        if bool(size) != (kind == "pca") or (size and not (size.isdecimal() and int(size) > 0)):
            raise UsageError(f"The step {text!r} was given; give 'pca:' with the number of components, others without.")
        if kind == "pca":
            made.append(PCA(int(size), blocks if pooled else 1))
        elif kind == "average":
            made.append(Average(blocks))
            blocks = 1
        elif kind == "layernorm":
            made.append(LayerNorm(blocks))
        else:
            made.append(Standardise() if kind == "standardise" else Centre())
    return tuple(made), blocks


def _nearest(name: str, known: Sequence[str], what: str) -> str:
    if name in known:
        return name
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}? There are " if near else "give one of "
    raise UsageError(f"There is no {what} {name!r}; {hint}{', '.join(known)}.")
