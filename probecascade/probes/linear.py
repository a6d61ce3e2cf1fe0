"""The frozen linear probe: a standardised weighted sum and a sigmoid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from probecascade.episode import SIGNALS
from probecascade.errors import DataError
from probecascade.probes.inputs import as_matrix
from probecascade.probes.kinds import Arrays, Spec, frozen, loads, number, pick
from probecascade.probes.scoring import row_scores


def signal_features(signals: ArrayLike, columns: tuple[str, ...], roots: bool) -> NDArray[np.float64]:
    """The named columns of signals (n, len(SIGNALS)), then, if `roots`, sign(x) * sqrt(|x|) of each.

    The root tames counts and lets a linear model bend. Unlike a logarithm it is correctly rounded in
    IEEE arithmetic, so scores keep their bits everywhere. Raises DataError on another width.
    """
    rows = as_matrix(signals, "signals")
    if rows.shape[1] != len(SIGNALS):
        raise DataError(f"Signals have {rows.shape[1]} columns; give all {len(SIGNALS)} of episode.SIGNALS, in order.")
    chosen = rows[:, [SIGNALS.index(name) for name in columns]]
    if not roots:
        return chosen
    return np.hstack([chosen, np.sign(chosen) * np.sqrt(np.abs(chosen))])


@dataclass(frozen=True, eq=False)
class LinearProbe:
    """P(failure) = sigmoid(sum_j weight_j * (x_j - mean_j) / scale_j + bias); satisfies `interfaces.Probe`.

    mean, scale, weight: (d,), float64, copied and made read-only. bias: in logits.
    uses: whether x is the hidden state (`states`) or surface signals (`signals`, the surface baseline).
    columns: with `signals`, the names from `episode.SIGNALS` that it reads.
    roots: with `signals`, x also holds the signed square root of each column, so d = 2 * len(columns).
    Raises DataError where these do not fit together.
    """

    mean: NDArray[np.float64]
    scale: NDArray[np.float64]
    weight: NDArray[np.float64]
    bias: float
    uses: Literal["states", "signals"] = "states"
    columns: tuple[str, ...] = ()
    roots: bool = False

    def __post_init__(self) -> None:
        for name in ("mean", "scale", "weight"):
            object.__setattr__(self, name, frozen(getattr(self, name)))
        object.__setattr__(self, "bias", float(self.bias))
        object.__setattr__(self, "columns", tuple(self.columns))
        self._check_arrays()
        self._check_columns()

    def _check_arrays(self) -> None:
        shapes = {name: getattr(self, name).shape for name in ("mean", "scale", "weight")}
        if len(set(shapes.values())) != 1 or self.mean.ndim != 1 or not self.mean.size:
            raise DataError(
                f"A linear probe was given the shapes {shapes}; give three arrays of one shape (d,), d >= 1."
            )
        if not all(np.isfinite(v).all() for v in (self.mean, self.scale, self.weight, self.bias)):
            raise DataError("A linear probe was given NaN or infinite parameters; give finite ones.")
        if not (self.scale > 0).all():
            raise DataError("A linear probe was given a scale that is not positive; give 1 for constant features.")

    def _check_columns(self) -> None:
        if self.uses not in ("states", "signals"):
            raise DataError(f"A linear probe cannot use {self.uses!r}; give 'states' or 'signals'.")
        if self.uses == "states":
            if self.columns or self.roots:
                raise DataError("A linear probe on states was given columns or roots; only signals have them.")
            return
        unknown = [name for name in self.columns if name not in SIGNALS]
        if unknown or not self.columns or len(set(self.columns)) != len(self.columns):
            raise DataError(
                f"A signals probe was given the columns {self.columns}; give distinct names from {SIGNALS}."
            )
        expected = len(self.columns) * (2 if self.roots else 1)
        if len(self.mean) != expected:
            raise DataError(f"A signals probe has {len(self.mean)} parameters for {expected} features; give one each.")

    def score(self, states: ArrayLike | None, signals: ArrayLike | None = None) -> NDArray[np.float64]:
        """P(failure), (n,), of states (n, d_model), or of signals (n, len(SIGNALS)) where `uses` says so.

        The score of a row has the same bits alone and in any batch (see `scoring`). Raises DataError
        where the array that the probe reads is absent, of another width, or not finite.
        """
        given = states if self.uses == "states" else signals
        if given is None:
            raise DataError(f"This probe reads {self.uses} and was given none; pass {self.uses}.")
        if self.uses == "signals":
            rows = signal_features(given, self.columns, self.roots)
        else:
            rows = as_matrix(given, "states")
            if rows.shape[1] != len(self.mean):
                raise DataError(
                    f"States have width {rows.shape[1]} and the probe was fitted on width {len(self.mean)}; "
                    "score states of the model and layer it was fitted on."
                )
        return row_scores(rows, self.mean, self.scale, self.weight, self.bias)

    def arrays(self) -> dict[str, NDArray[np.float64]]:
        """The parameters, float64: mean, scale, weight (d,) and bias (1,)."""
        return {"mean": self.mean, "scale": self.scale, "weight": self.weight, "bias": np.array([self.bias])}

    def spec(self) -> dict[str, Any]:
        """What the parameters are not, JSON-able: kind, uses, columns, roots."""
        return {"kind": "linear", "uses": self.uses, "columns": list(self.columns), "roots": self.roots}


@loads("linear")
def load_linear(spec: Spec, arrays: Arrays) -> LinearProbe:
    """The linear probe of spec and arrays."""
    own = pick(arrays, ("mean", "scale", "weight", "bias"))
    return LinearProbe(
        mean=own["mean"],
        scale=own["scale"],
        weight=own["weight"],
        bias=number(own, "bias"),
        uses=spec.get("uses", "states"),
        columns=tuple(spec.get("columns", ())),
        roots=bool(spec.get("roots", False)),
    )
