"""The surface baseline: a probe on what transcript and log-probabilities show, without hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import ArrayLike, NDArray

from probecascade.probes.crossfit import FittedProbe
from probecascade.probes.fit import LogisticFitter

SURFACE: tuple[str, ...] = (
    "tokens_so_far",
    "round",
    "turn_tokens",
    "logprob_mean",
    "logprob_min",
    "entropy_mean",
    "failed_actions",
    "repeated_actions",
    "not_found",
)
"""Columns of `episode.SIGNALS` that the baseline reads: all that needs no hidden state, as is fair."""


def fit_surface(
    signals: ArrayLike, failed: ArrayLike, groups: Sequence[Any] | NDArray[Any], fitter: LogisticFitter
) -> FittedProbe:
    """Fit the surface baseline on signals (n, len(SIGNALS)); the probe reads signals when it scores.

    Each column also enters as its signed square root, which tames counts and lets effects bend. Chosen
    and cross-validated exactly as a probe on states is. Raises as `LogisticFitter.fit` does.
    """
    return fitter.fit(signals, failed, groups, columns=SURFACE, roots=True)
