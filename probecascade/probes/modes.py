"""Which failure mode, given that the episode fails: a multinomial logistic probe."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from probecascade.episode import SIGNALS
from probecascade.errors import CascadeError, DataError
from probecascade.intervals import Interval
from probecascade.probes.fit import rising
from probecascade.probes.inputs import as_matrix
from probecascade.probes.kinds import frozen, pick
from probecascade.probes.linear import signal_features
from probecascade.probes.metrics import auroc_interval
from probecascade.probes.multinomial import multinomial_path
from probecascade.probes.scoring import row_products
from probecascade.probes.steps import column_moments

Array = NDArray[np.float64]
Uses = Literal["states", "signals"]

OTHER = "other"
"""The class that modes with too few groups are merged into."""

STRENGTHS: tuple[float, ...] = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
MIN_GROUPS = 10
_ARRAYS = ("mean", "scale", "weight", "bias")


@dataclass(frozen=True, eq=False)
class ModeProbe:
    """P(mode | failure) = softmax over modes of weight_k . (x - mean) / scale + bias_k.

    names: (k,), distinct, at least two. mean, scale: (d,). weight: (k, d). bias: (k,), logits; all float64, copied
    and made read-only. uses: whether x is the hidden state, or all surface signals and their signed roots.
    Raises DataError where these do not fit together.
    """

    names: tuple[str, ...]
    mean: Array
    scale: Array
    weight: Array
    bias: Array
    uses: Uses = "states"

    def __post_init__(self) -> None:
        for name in _ARRAYS:
            object.__setattr__(self, name, frozen(getattr(self, name)))
        object.__setattr__(self, "names", tuple(self.names))
        k, d = len(self.names), self.mean.size
        shapes = {name: getattr(self, name).shape for name in _ARRAYS}
        if k < 2 or len(set(self.names)) != k or not d:
            raise DataError(f"a mode probe was given the modes {self.names}: give two or more distinct ones.")
        if shapes != {"mean": (d,), "scale": (d,), "weight": (k, d), "bias": (k,)}:
            raise DataError(f"a mode probe of {k} modes was given the shapes {shapes}: give (d,), (d,), (k, d), (k,).")
        if not all(np.isfinite(getattr(self, name)).all() for name in _ARRAYS) or not (self.scale > 0).all():
            raise DataError("a mode probe was given parameters that are not finite, or a scale that is not positive.")
        if self.uses not in ("states", "signals"):
            raise DataError(f"a mode probe cannot use {self.uses!r}: give 'states' or 'signals'.")

    def probabilities(self, states: ArrayLike | None, signals: ArrayLike | None = None) -> Array:
        """P(mode | failure), (n, k), of states (n, d), or of signals (n, len(SIGNALS)) where `uses` says so.

        A row's values have the same bits alone and in any batch. DataError where the array that the probe reads is
        absent, of another width, or not finite.
        """
        given = states if self.uses == "states" else signals
        if given is None:
            raise DataError(f"this mode probe reads {self.uses} and was given none: pass {self.uses}.")
        rows = features(given, self.uses)
        if rows.shape[1] != len(self.mean):
            raise DataError(
                f"the states have width {rows.shape[1]} and the mode probe was fitted on width {len(self.mean)}: "
                "give states of the model and layer it was fitted on."
            )
        return softmax(row_products((rows - self.mean) / self.scale, self.weight) + self.bias)

    def arrays(self) -> dict[str, Array]:
        """The parameters by name, float64."""
        return {name: getattr(self, name) for name in _ARRAYS}

    def spec(self) -> dict[str, Any]:
        """What the parameters are not, JSON-able: kind, names, uses."""
        return {"kind": "modes", "names": list(self.names), "uses": self.uses}


def load_mode_probe(spec: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> ModeProbe:
    """The probe that `spec()` and `arrays()` came from, bit for bit. CascadeError on anything else."""
    if spec.get("kind") != "modes":
        raise CascadeError(f"the cascade holds a mode probe of kind {spec.get('kind')!r}, not 'modes': refit it.")
    try:
        return ModeProbe(tuple(spec["names"]), **pick(arrays, _ARRAYS), uses=spec.get("uses", "states"))
    except (DataError, KeyError, TypeError) as error:
        raise CascadeError(f"the cascade's mode probe is damaged, refit it: {error}") from error


def features(given: ArrayLike, uses: Uses) -> Array:
    """What a mode probe reads of states (n, d), or of signals (n, len(SIGNALS)): (n, width) float64."""
    return signal_features(given, SIGNALS, True) if uses == "signals" else as_matrix(given, "states")


def softmax(logits: Array) -> Array:
    """Softmax of each row (n, k). `math.exp` and a fixed order of summation, so that no batch changes a bit."""
    highest = logits.max(axis=1, keepdims=True) if logits.size else logits
    raised = np.array([math.exp(value) for value in (logits - highest).ravel()]).reshape(logits.shape)
    total = np.zeros(len(logits))
    for column in raised.T:
        total += column
    return raised / total[:, None]


@dataclass(frozen=True, eq=False)
class FittedModes:
    """What a fit returns.

    modes: (n,) str, the classes fitted on, after merging; empty for episodes left out. out_of_fold: (n, k), each
    row from a model that lacks its group, NaN where left out. auroc: one mode against the rest, with an interval
    over groups. confusion: (k, k) counts, a row per true mode, a column per likeliest one. merged: modes that
    became "other". left_out: modes that are too few even so. strength: the chosen C.
    """

    probe: ModeProbe
    strength: float
    folds: int
    modes: NDArray[np.object_]
    out_of_fold: Array
    auroc: Mapping[str, Interval]
    confusion: NDArray[np.int64]
    merged: tuple[str, ...]
    left_out: tuple[str, ...]

    def record(self) -> dict[str, Any]:
        """The cross-validated numbers as JSON values."""
        return {
            "modes": {name: int((self.modes == name).sum()) for name in self.probe.names},
            "auroc": {
                name: {"value": i.value, "low": i.low, "high": i.high, "n": i.n} for name, i in self.auroc.items()
            },
            "confusion": self.confusion.tolist(),
            "merged": list(self.merged),
            "left_out": list(self.left_out),
            "folds": self.folds,
            "strength": self.strength,
        }


@dataclass(frozen=True)
class ModeFitter:
    """Standardised multinomial logistic regression; strength C by grouped, stratified cross-validated log-loss.

    Modes seen in fewer than `min_groups` groups are merged into "other"; if that is too rare as well, its episodes
    are left out. folds: at most this many. seed: of the folds.
    """

    strengths: tuple[float, ...] = STRENGTHS
    folds: int = 5
    seed: int = 0
    min_groups: int = MIN_GROUPS

    def fit(
        self,
        X: ArrayLike,
        modes: Sequence[str] | NDArray[Any],
        groups: Sequence[Any] | NDArray[Any],
        *,
        uses: Uses = "states",
    ) -> FittedModes:
        """Fit on failed episodes: X (n, width) states or signals, modes and groups (n,).

        DataError on rows that are not finite, or with fewer than two modes that are frequent enough.
        """
        rows, given = features(X, uses), np.asarray(modes, dtype=object)
        names = np.asarray(groups, dtype=object).astype(str)
        if given.shape != (len(rows),) or names.shape != (len(rows),):
            raise DataError(
                f"{given.size} modes and {names.size} groups were given for {len(rows)} rows: give one each."
            )
        classes, merged, left_out = self._classes(given, names)
        use = classes != ""
        kept = tuple(sorted(set(classes[use].tolist())))
        if len(kept) < 2:
            raise DataError(
                f"{len(kept)} failure modes occur in {self.min_groups} groups or more ({', '.join(kept) or 'none'}); "
                "telling modes apart takes two: collect more failures."
            )
        codes = np.searchsorted(kept, classes[use].tolist())
        strength, inside, folds = self._cross_validate(rows[use], codes, names[use], len(kept))
        mean, scale = column_moments(rows[use])
        path = tuple(c for c in rising(self.strengths) if c <= strength)
        weights, biases = multinomial_path((rows[use] - mean) / scale, codes, len(kept), path)
        out_of_fold = np.full((len(rows), len(kept)), np.nan)
        out_of_fold[use] = inside
        counts = np.zeros((len(kept), len(kept)), dtype=np.int64)
        np.add.at(counts, (codes, inside.argmax(axis=1)), 1)
        return FittedModes(
            probe=ModeProbe(kept, mean, scale, weights[-1], biases[-1], uses=uses),
            strength=strength,
            folds=folds,
            modes=classes,
            out_of_fold=out_of_fold,
            auroc={name: auroc_interval(inside[:, k], codes == k, names[use]) for k, name in enumerate(kept)},
            confusion=counts,
            merged=merged,
            left_out=left_out,
        )

    def _classes(
        self, modes: NDArray[np.object_], groups: NDArray[Any]
    ) -> tuple[NDArray[np.object_], tuple[str, ...], tuple[str, ...]]:
        """Modes with the rare ones merged, or emptied where even together they are too rare."""
        seen = Counter(mode for mode, _ in set(zip(modes.tolist(), groups.tolist(), strict=True)))
        rare = tuple(sorted(mode for mode, count in seen.items() if count < self.min_groups))
        together = len(set(groups[np.isin(modes.astype(str), rare)].tolist()))
        classes = modes.copy()
        classes[np.isin(modes.astype(str), rare)] = OTHER if together >= self.min_groups else ""
        return (classes, rare, ()) if together >= self.min_groups else (classes, (), rare)

    def _cross_validate(
        self, rows: Array, codes: NDArray[np.intp], groups: NDArray[Any], k: int
    ) -> tuple[float, Array, int]:
        """The strength with the least held-out log-loss, the held-out probabilities (n, k) at it, and the folds.

        Biases are moved by the difference between the log-shares of the modes overall and in the training rows: a
        fold that holds more of a mode leaves less of it to train on, and pooled scores would run against it.
        """
        from sklearn.model_selection import StratifiedGroupKFold

        splitter = StratifiedGroupKFold(self.folds, shuffle=True, random_state=self.seed)
        folds = list(splitter.split(rows, codes, groups))
        strengths = rising(self.strengths)
        overall = np.bincount(codes, minlength=k) / len(codes)
        scores = np.empty((len(strengths), len(rows), k))
        for train, test in folds:
            shares = np.bincount(codes[train], minlength=k) / len(train)
            if not shares.all():
                raise DataError("a training fold lacks a failure mode: collect more failures, or ask for more folds.")
            mean, scale = column_moments(rows[train])
            weights, biases = multinomial_path((rows[train] - mean) / scale, codes[train], k, strengths)
            logits = ((rows[test] - mean) / scale) @ weights.transpose(0, 2, 1) + biases[:, None]
            for s, moved in enumerate(logits + np.log(overall / shares)):
                scores[s, test] = softmax(moved)
        own = np.take_along_axis(scores, codes[None, :, None], axis=2)[:, :, 0]
        best = int(np.argmin(-np.log(np.maximum(own, np.finfo(np.float64).tiny)).sum(axis=1)))
        return strengths[best], scores[best], len(folds)
