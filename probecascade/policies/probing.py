"""The probe of one gate: which states it taps, what else it reads, and how it is fitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from probecascade.errors import DataError, UsageError
from probecascade.policies.cascade import Gate
from probecascade.policies.taps import Tap, stored
from probecascade.probes import (
    SEQUENCES,
    Calibrated,
    FittedProbe,
    Fitter,
    FusionFitter,
    LogisticFitter,
    Shown,
    StackingFitter,
    choose_layer,
    fit_surface,
    fitter_named,
)
from probecascade.store import Run
from probecascade.thresholds import OFF

MOST_STEPS = 8
"""A sequence probe looks back over so many checkpoints of its kind at most, its own included."""


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """What kind of probe each gate gets.

    kind, calibrated, class_weight, steps: as in `probes.fitter_named`. A sequence kind taps the earlier checkpoints
    of the gate's own kind too. strengths: values of C to choose from (None: the kind's own). uses: states, or
    signals for the surface baseline. last_layers, pooled: the last so many layers side by side (`concat`) or
    averaged, instead of one chosen by cross-validation. fuse: what is read besides, out of signals, text and
    checks; fusion: in one regression (`early`) or by stacking one probe for each (`late`).
    """

    kind: str = "logistic"
    calibrated: Literal["platt", "isotonic"] | None = None
    class_weight: Literal["balanced"] | None = None
    steps: tuple[str, ...] = ()
    strengths: tuple[float, ...] | None = None
    uses: Literal["states", "signals"] = "states"
    last_layers: int = 1
    pooled: Literal["concat", "average"] = "concat"
    fuse: tuple[str, ...] = ()
    fusion: Literal["early", "late"] = "early"

    def record(self) -> dict[str, Any]:
        """As JSON values, without what was left at its default."""
        usual = asdict(ProbeSettings())
        changed = {key: value for key, value in asdict(self).items() if value != usual[key]}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in changed.items()}

    def check(self) -> None:
        """UsageError where the settings do not go together."""
        unknown = [what for what in self.fuse if what not in ("signals", "text", "checks")]
        if unknown or len(set(self.fuse)) < len(self.fuse):
            raise UsageError(f"{', '.join(self.fuse)} was given to be fused: name signals, text or checks once each.")
        if self.last_layers < 1:
            raise UsageError(f"the last {self.last_layers} layers were asked for: give 1 or more.")
        sequence, plain = self.kind in SEQUENCES, self.kind == "logistic" and not self.steps
        if sequence and self.last_layers > 1:
            raise UsageError(f"a {self.kind} probe pools checkpoints, not layers: leave out the last layers.")
        if self.fuse and self.fusion == "early" and not (plain and self.pooled == "concat"):
            raise UsageError(
                "early fusion is one logistic regression on all there is, without steps or pooled layers: "
                "ask for late fusion to combine another kind of probe."
            )
        if self.uses == "signals" and (not plain or self.last_layers > 1):
            raise UsageError(
                "a probe on signals is a logistic regression on them: leave out kind, steps and last layers."
            )
        self.fitter(seed=0, blocks=1)

    def fitter(self, *, seed: int, blocks: int) -> Fitter:
        """The fitter for states of so many taps side by side; in a fusion calibrated only at the end.

        UsageError for a kind, step or strength that does not exist.
        """
        averaged = self.last_layers > 1 and self.pooled == "average"
        fitter = fitter_named(
            self.kind,
            seed=seed,
            calibrated=None if self.fuse else self.calibrated,
            class_weight=self.class_weight,
            steps=(*(("average",) if averaged else ()), *self.steps),
            blocks=blocks,
        )
        if self.strengths is None:
            return fitter
        bare = fitter.fitter if isinstance(fitter, Calibrated) else fitter
        if not isinstance(bare, LogisticFitter):
            raise UsageError(f"strengths are those of a logistic regression and were given for {self.kind}: drop them.")
        bare = replace(bare, strengths=self.strengths)
        return replace(fitter, fitter=bare) if isinstance(fitter, Calibrated) else bare


@dataclass(frozen=True, slots=True)
class FitRow:
    """One gate as it was fitted: its probe's cross-validation, and its threshold on the calibration episodes.

    `auroc` is grouped and cross-validated on the fit episodes; `layers` maps every layer tried to its own.
    """

    gate: Gate
    auroc: float
    layers: Mapping[int, float]
    strength: float
    folds: int
    fit_doomed: int
    fit_successes: int


@dataclass(frozen=True, slots=True, eq=False)
class GateFit:
    """A gate still without threshold, its fit, and the run's episodes that it was fitted on."""

    row: FitRow
    episodes: NDArray[np.int64]
    out_of_fold: NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class GateFitter:
    """Fits the probe of any gate of a run.

    layers: those to choose from. fit: (n_episodes,) bool, episodes that probes may be fitted on. given: a fitter to
    use instead of the one that the settings name.
    """

    run: Run
    settings: ProbeSettings
    layers: Sequence[int]
    fit: NDArray[np.bool_]
    seed: int
    gate_answers: bool
    given: Fitter | None = None

    def at(self, name: str, among: NDArray[np.bool_] | None = None) -> GateFit:
        """The probe of the gate at this checkpoint, fitted on the fit episodes, or on those that are `among` them.

        DataError where they hold one class only, or too little to fit on.
        """
        rows, episodes_of = self.run.rows(name), self.run.episodes
        use = self.fit[rows.episode] & (self.gate_answers | ~rows.final)
        if among is not None:
            use &= among[rows.episode]
        episodes = rows.episode[use]
        failed, groups = episodes_of.failed[episodes], episodes_of.group[episodes]
        try:
            taps, fitted, tried = self._fit(name, use, failed, groups)
        except DataError as error:
            raise DataError(f"no probe can be fitted at {name}: {error}") from error
        row = FitRow(
            gate=Gate(name, None, fitted.probe, OFF, taps=taps),
            auroc=fitted.auroc,
            layers=tried,
            strength=fitted.strength,
            folds=fitted.folds,
            fit_doomed=int(failed.sum()),
            fit_successes=int((~failed).sum()),
        )
        return GateFit(row, episodes, fitted.out_of_fold)

    def _fit(
        self, name: str, use: NDArray[np.bool_], failed: NDArray[np.bool_], groups: NDArray[np.object_]
    ) -> tuple[tuple[Tap, ...], FittedProbe, Mapping[int, float]]:
        """Taps, fit, and the cross-validated AUROC of each layer that was tried."""
        settings = self.settings
        taps: tuple[Tap, ...] = ()
        tried: Mapping[int, float] = {}
        states: Fitter = self.given or settings.fitter(seed=self.seed, blocks=1)
        if settings.uses == "states":
            candidates = self._candidates(name)
            taps = candidates[-1]
            if settings.kind in SEQUENCES or settings.last_layers > 1:
                states = settings.fitter(seed=self.seed, blocks=len(taps))
            if settings.last_layers == 1:
                by_layer = {own[-1][1]: own for own in candidates}
                found = choose_layer(
                    lambda layer: cast(NDArray[np.float32], self._shown(name, by_layer[layer], use).states),
                    self.layers,
                    failed,
                    groups,
                    states,
                )
                taps, tried = by_layer[found.layer], found.table
                if not settings.fuse:
                    return taps, found.fitted, tried
        shown = self._shown(name, taps, use)
        if settings.fuse:
            return taps, self._fuse(shown, failed, groups, states), tried
        if shown.states is not None:
            return taps, states.fit(shown.states, failed, groups), tried
        return taps, fit_surface(shown.signals, failed, groups, cast(LogisticFitter, states)), tried

    def _shown(self, name: str, taps: Sequence[Tap], use: NDArray[np.bool_]) -> Shown:
        return stored(self.run, name, taps, frozenset(self.settings.fuse)).take(use)

    def _fuse(
        self, shown: Shown, failed: NDArray[np.bool_], groups: NDArray[np.object_], states: Fitter
    ) -> FittedProbe:
        settings = self.settings
        blocks = tuple(dict.fromkeys((settings.uses, *settings.fuse)))
        fitter: Any = StackingFitter(states, blocks, seed=self.seed)
        if settings.fusion == "early" or len(blocks) == 1:
            fitter = FusionFitter(blocks, seed=self.seed, class_weight=settings.class_weight)
            fitter = fitter if settings.strengths is None else replace(fitter, strengths=settings.strengths)
        if settings.calibrated is not None:
            fitter = Calibrated(fitter, settings.calibrated)
        fitted: FittedProbe = fitter.fit(shown, failed, groups)
        return fitted

    def _candidates(self, name: str) -> list[tuple[Tap, ...]]:
        """The taps among which cross-validation chooses: for each layer those of the gate, else all layers at once."""
        settings, layers = self.settings, sorted(self.layers)
        if settings.last_layers > 1:
            if settings.last_layers > len(layers):
                raise UsageError(
                    f"the last {settings.last_layers} layers were asked for, and {len(layers)} are there to choose "
                    "from: ask for fewer, or extract more."
                )
            return [tuple((name, layer) for layer in layers[-settings.last_layers :])]
        places = earlier_of_kind(self.run, name) if settings.kind in SEQUENCES else (name,)
        return [tuple((place, layer) for place in places) for layer in layers]


def earlier_of_kind(run: Run, name: str) -> tuple[str, ...]:
    """The stored checkpoints of the same kind up to this one, by their numbers: at most the last `MOST_STEPS`."""
    kind, _, index = name.partition(":")
    if not index:
        return (name,)
    names = (f"{kind}:{k}" for k in range(int(index) + 1))
    return tuple(place for place in names if place in run.checkpoint_names)[-MOST_STEPS:]
