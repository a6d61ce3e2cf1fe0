"""How well the states of each checkpoint tell failures from successes, beside a prompt-only and a surface probe."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from probecascade.probes import (
    Interval,
    LogisticFitter,
    auroc_interval,
    choose_layer,
    fit_surface,
    grouped_folds,
)
from probecascade.probes.solver import log_odds
from probecascade.store import Run

Array = NDArray[np.float64]
Rows = NDArray[np.intp]
Fit = Callable[[Rows], Callable[[Rows], Array]]

MIN_CLASS = 20
"""Groups of each class that a checkpoint needs to be worth a number."""

_FOLDS = 5
_FITTER = LogisticFitter(strengths=(1e-4, 1e-3, 1e-2, 1e-1), folds=3)  # run in every fold, so kept cheap
_RESAMPLES = 1000
_SATURATED = 1e-12


@dataclass(frozen=True, slots=True)
class CheckpointAuroc:
    """AUROC of three probes on the same episodes, and by how much the first beats the others.

    Every score comes from a probe whose strength and layer were chosen without the scored group. `closing`: the
    checkpoint stands on the turn that finishes the episode, where nothing is left to save.
    """

    checkpoint: str
    closing: bool
    probe: Interval
    prompt: Interval
    surface: Interval
    over_prompt: Interval
    over_surface: Interval


def worthwhile(run: Run, names: Sequence[str]) -> tuple[str, ...]:
    """Those of the checkpoints that enough groups with a failure and enough with a success reach."""
    return tuple(name for name in names if name in run.checkpoint_names and _Reached.of(run, name).enough)


def auroc_by_checkpoint(run: Run, names: Sequence[str], *, seed: int = 0) -> Iterator[CheckpointAuroc]:
    """Cross-fit the probes of each checkpoint over all labelled episodes of a run, one checkpoint at a time.

    The prompt-only probe reads the state at `prompt` of all episodes. Turns that finish an episode are left out
    unless the checkpoint knows no other. Intervals (95 %) resample groups and say nothing of refitting. DataError
    for a checkpoint that is not `worthwhile`, StoreError where `prompt` or the checkpoint is not stored.
    """
    if not names:
        return
    prompt = _Reached.of(run, "prompt")
    first = prompt.cross_fitted(prompt.state_probe(run), seed)
    by_episode = np.full(len(run), np.nan)
    by_episode[prompt.episode] = first
    for name in names:
        reached = _Reached.of(run, name)
        probe = first if name == "prompt" else reached.cross_fitted(reached.state_probe(run), seed)
        surface = reached.cross_fitted(reached.surface_probe(run), seed)
        before = by_episode[reached.episode]
        yield CheckpointAuroc(
            checkpoint=name,
            closing=reached.closing,
            probe=auroc_interval(probe, reached.failed, reached.group, resamples=_RESAMPLES),
            prompt=auroc_interval(before, reached.failed, reached.group, resamples=_RESAMPLES),
            surface=auroc_interval(surface, reached.failed, reached.group, resamples=_RESAMPLES),
            over_prompt=gain(probe, before, reached.failed, reached.group),
            over_surface=gain(probe, surface, reached.failed, reached.group),
        )


def gain(scores: Array, others: Array, failed: NDArray[np.bool_], groups: NDArray[np.object_]) -> Interval:
    """AUROC of scores (n,) less that of others (n,), with a paired percentile bootstrap over groups."""
    codes = np.unique(groups.astype(str), return_inverse=True)[1].ravel()
    n_groups = int(codes.max()) + 1
    drawn = np.random.default_rng(0).multinomial(n_groups, np.full(n_groups, 1 / n_groups), size=_RESAMPLES)
    weights = drawn[:, codes].astype(np.float64)
    of_failed, of_success = weights[:, failed], weights[:, ~failed]
    ahead = _wins(scores, failed) - _wins(others, failed)
    pairs = of_failed.sum(axis=1) * of_success.sum(axis=1)
    usable = pairs > 0
    gains = ((of_failed @ ahead) * of_success).sum(axis=1)[usable] / pairs[usable]
    low, high = np.quantile(gains, [0.025, 0.975])
    return Interval(float(ahead.mean()), float(low), float(high), len(scores), n_groups, _RESAMPLES - int(usable.sum()))


def _wins(scores: Array, failed: NDArray[np.bool_]) -> Array:
    """1 where the failed episode scores higher, a half where they tie, (n_failed, n_successes)."""
    ours, theirs = scores[failed][:, None], scores[~failed][None, :]
    return np.where(ours == theirs, 0.5, (ours > theirs).astype(np.float64))


@dataclass(frozen=True, slots=True, eq=False)
class _Reached:
    """The labelled episodes that come to a checkpoint; `use` are their rows of the run's."""

    name: str
    closing: bool
    use: NDArray[np.bool_]
    episode: NDArray[np.int64]
    failed: NDArray[np.bool_]
    group: NDArray[np.object_]

    @classmethod
    def of(cls, run: Run, name: str) -> _Reached:
        rows = run.rows(name)
        closing = bool(rows.final.all())
        use = run.episodes.labelled[rows.episode] & (closing | ~rows.final)
        episode = rows.episode[use]
        return cls(name, closing, use, episode, run.episodes.failed[episode], run.episodes.group[episode])

    @property
    def enough(self) -> bool:
        classes = (self.group[self.failed], self.group[~self.failed])
        return all(len(set(groups.tolist())) >= MIN_CLASS for groups in classes)

    def state_probe(self, run: Run) -> Fit:
        """Fits on rows, layer chosen among them alone, and gives what scores others."""
        states = {layer: run.states(self.name, layer)[self.use] for layer in run.layers}

        def fit(train: Rows) -> Callable[[Rows], Array]:
            read = {layer: values[train] for layer, values in states.items()}
            choice = choose_layer(read.__getitem__, run.layers, self.failed[train], self.group[train], _FITTER)
            return lambda test: choice.fitted.probe.score(states[choice.layer][test])

        return fit

    def surface_probe(self, run: Run) -> Fit:
        """As `state_probe`, on the surface signals."""
        signals = run.rows(self.name).signals[self.use]

        def fit(train: Rows) -> Callable[[Rows], Array]:
            probe = fit_surface(signals[train], self.failed[train], self.group[train], _FITTER).probe
            return lambda test: probe.score(np.empty((len(test), 0)), signals[test])

        return fit

    def cross_fitted(self, fit: Fit, seed: int) -> Array:
        """Each episode scored by the fit of a fold that lacks its group, (n,).

        A fold with more failures leaves fewer to train on; the shift by the log-odds of failure undoes that, so that
        pooled scores of probes that know nothing do not run against the labels.
        """
        scores = np.empty(len(self.failed))
        for train, test in grouped_folds(self.failed, self.group, _FOLDS, seed):
            raw = np.clip(fit(train)(test), _SATURATED, 1 - _SATURATED)
            scores[test] = expit(logit(raw) + log_odds(self.failed) - log_odds(self.failed[train]))
        return scores
