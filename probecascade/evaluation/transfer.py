"""Does it travel? Probes fitted on episodes of one kind (a wording, a temperature, a world), tested on those of others.

All kinds share folds of whole groups: a probe fitted on one kind outside a fold is tested on every kind inside it, its
own included, so that no group is ever on both sides and own and foreign numbers are of one making. Training sets are
drawn down to the size of the smallest, so that rows differ in what was seen and not in how much.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probecascade.errors import DataError, UsageError
from probecascade.evaluation.crossfit import LayerScores, Selection, select
from probecascade.evaluation.pooled import EVERY, MIXTURES, OTHERS, PooledRows, PooledRuns, listed
from probecascade.evaluation.resample import Column, Measure, above_chance, draw_groups, interval_of
from probecascade.intervals import DEFAULT, Resampling, share_interval
from probecascade.probes import SURFACE, grouped_folds
from probecascade.probes.batched import sweep_layers
from probecascade.probes.linear import signal_features
from probecascade.store.schema import resolve_layers
from probecascade.thresholds import needed, parse_target, percent
from probecascade.thresholds.targets import TargetLike

Array = NDArray[np.float64]
Labels = NDArray[np.bool_]
Rows = NDArray[np.intp]
Fold = tuple[Rows, Rows]

MIN_CLASS = 20
"""Groups with a failure, and groups with a success, that a kind of episodes needs to take part."""

STRENGTHS: tuple[float, ...] = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
"""Of the ridge penalty (C), chosen inside every training set as is the layer."""

# Resamples of fixed scores leave out that both fits compared vary with the folds. Of simulated kinds that are alike,
# 24 % are called different at a factor of 1, 12 % at the square root of 2, 4 % here.
_CROSS_FITTED = 1.75


@dataclass(frozen=True, slots=True)
class Cell:
    """Trained on one kind, tested on another: {value, low, high} each, and n episodes, of which so many failed.

    loss: AUROC of the probe that was trained on the tested kind itself less that of this one, on the same episodes,
    its interval 1.75 times as wide as resamples of fixed scores say; None on the diagonal. above_chance: whether
    the AUROC exceeds one half, with one allowance for false words over all cells of the matrix.
    kept, caught: shares of successes and of failures below and above the threshold that keeps
    the asked share of the successes of the training kind. layers: how often each was chosen, over the folds.
    """

    train: str
    test: str
    n: int
    failed: int
    groups: int
    auroc: dict[str, Any]
    above_chance: bool
    surface: dict[str, Any]
    loss: dict[str, Any] | None
    kept: dict[str, Any]
    caught: dict[str, Any]
    layers: dict[str, int]


@dataclass(frozen=True, slots=True)
class TransferMatrix:
    """One checkpoint's matrix. `rows` are kinds to train on, `kinds` those that are tested.

    Rows beyond the kinds are mixtures of the same size: `all kinds`, and with three kinds or more `all others`,
    everything but the tested kind. loss and surface_loss: the mean over cells of two different kinds, for the probe
    on states and for the surface baseline, widened as a cell's.
    train_size: episodes in each training set, fold by fold.
    """

    checkpoint: str
    closing: bool
    kinds: tuple[str, ...]
    rows: tuple[str, ...]
    train_size: tuple[int, ...]
    keep: str
    cells: tuple[Cell, ...]
    loss: dict[str, Any]
    surface_loss: dict[str, Any]
    notes: tuple[str, ...]

    def cell(self, train: str, test: str) -> Cell:
        """The cell of this row and column. KeyError if there is none."""
        for cell in self.cells:
            if (cell.train, cell.test) == (train, test):
                return cell
        raise KeyError((train, test))

    def record(self) -> dict[str, Any]:
        """The matrix as JSON values."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    def verdict(self, train: str | None = None, test: str | None = None) -> str:
        """In words: what a probe loses on kinds that it has not seen, or this probe on this kind. KeyError if unknown.

        A change is one where its interval leaves out zero and a probe that it compares is above chance: on noise,
        cross-fitting ranks slightly backwards at home and not elsewhere, which is no gain.
        """
        if train is None or test is None:
            loss: dict[str, Any] | None = self.loss
            cells = [cell for cell in self.cells if cell.train in self.kinds]
            start = f"{self.checkpoint}: trained on another kind, a probe"
            end = f"; the surface baseline loses {self.surface_loss['value']:.3f}."
        else:
            loss, cells = self.cell(train, test).loss, [self.cell(train, test), self.cell(test, test)]
            start = f"{self.checkpoint}: trained on {train} and tested on {test}, a probe"
            end = f", against one trained on {test} itself."
        if loss is None or loss["value"] is None:
            return f"{start} cannot be compared with one at home."
        amount = f"{loss['value']:.3f} [{loss['low']:.3f}, {loss['high']:.3f}]"
        if not any(cell.above_chance for cell in cells):
            return f"{start} has nothing to lose, since none is above chance: {amount} of AUROC{end}"
        if loss["low"] > 0:
            return f"{start} loses {amount} of AUROC{end}"
        if loss["high"] < 0:
            return f"{start} gains rather than loses ({amount} of AUROC lost){end}"
        return f"{start} loses nothing sure: {amount} of AUROC{end}"


def transfer_matrix(
    pool: PooledRuns,
    kinds: Mapping[str, Labels],
    checkpoint: str,
    *,
    mixtures: bool = True,
    layers: Sequence[int] | None = None,
    keep: TargetLike = "0.95",
    folds: int = 5,
    seed: int = 0,
    resampling: Resampling = DEFAULT,
) -> TransferMatrix:
    """Train at this checkpoint on each kind of episodes and test on each, over shared folds of groups.

    kinds: (n_episodes,) bool each; they may overlap. Kinds with fewer than `MIN_CLASS` groups of either class are
    left out and named in `notes`. layers: those to choose from, inside each training set (None: all stored).
    mixtures: add the rows of several kinds. Intervals resample groups with the probes as they are, those of losses
    widened for cross-fitting; they say nothing of how a probe varies when it is fitted anew.
    DataError where fewer than two kinds are left, UsageError for two that are the very same episodes or one that is
    called as a mixture is, StoreError for a checkpoint or layer that is not stored.
    """
    for name in MIXTURES:
        if name in kinds:
            raise UsageError(f"a kind is called {name!r}, which is the name of a mixture: give it another name.")
    target = parse_target(keep, what="keep target")
    chosen = pool.layers if layers is None else resolve_layers(layers, pool.n_layers)
    rows, members, notes = _members(pool.rows(checkpoint), kinds)
    setting = _Setting.of(rows, members, chosen, folds, seed)
    fits = _fits(setting, members, mixtures)
    names = tuple(dict.fromkeys(row for row, _ in fits))
    counts = draw_groups(int(rows.codes.max()) + 1, resampling)
    cells: list[Cell] = []
    losses: list[_Lost] = []
    surface_losses: list[_Lost] = []
    measured: list[Column] = []
    for test, inside in members.items():
        measure = Measure(rows.failed[inside], rows.codes[inside], counts, float(target))
        own = _Columns.of(measure, fits[test, test], inside)
        for row in names:
            fit = fits[row, test]
            columns = own if row == test else _Columns.of(measure, fit, inside)
            lost = _Lost.of(measure, own.states, columns.states, resampling.confidence)
            if row != test and row in members:
                losses.append(lost)
                surface_losses.append(_Lost.of(measure, own.surface, columns.surface, resampling.confidence))
            measured.append(columns.states)
            fired = fit.fired(rows, setting.tests, target)[inside]
            cells.append(
                Cell(
                    train=row,
                    test=test,
                    n=int(inside.sum()),
                    failed=int(measure.failed.sum()),
                    groups=measure.n_groups,
                    auroc=measure.interval(columns.states, "auroc", resampling.confidence),
                    above_chance=False,
                    surface=measure.interval(columns.surface, "auroc", resampling.confidence),
                    loss=None if row == test else lost.interval,
                    kept=_share(~fired, ~measure.failed, measure.codes, resampling),
                    caught=_share(fired, measure.failed, measure.codes, resampling),
                    layers=dict(sorted(fit.layers.items())),
                )
            )
    aurocs, draws = [c.values["auroc"] for c in measured], [c.draws["auroc"] for c in measured]
    above = above_chance(aurocs, draws, resampling.confidence)
    return TransferMatrix(
        checkpoint=checkpoint,
        closing=rows.closing,
        kinds=tuple(members),
        rows=names,
        train_size=setting.sizes,
        keep=percent(target),
        cells=tuple(replace(cell, above_chance=sure) for cell, sure in zip(cells, above, strict=True)),
        loss=_mean(losses, resampling.confidence),
        surface_loss=_mean(surface_losses, resampling.confidence),
        notes=notes,
    )


def _members(reached: PooledRows, kinds: Mapping[str, Labels]) -> tuple[PooledRows, dict[str, Labels], tuple[str, ...]]:
    """The rows of the kinds that are large enough, which of them each kind holds, and a note on the others."""
    members, sizes = {}, {}
    for kind, mask in kinds.items():
        inside = mask[reached.episode]
        lost, won = (len(np.unique(reached.codes[inside & (reached.failed == label)])) for label in (True, False))
        if min(lost, won) >= MIN_CLASS:
            members[kind] = inside
        else:
            sizes[kind] = f"{kind} ({lost} failed, {won} successful)"
    same = next(((a, b) for a, b in combinations(members, 2) if np.array_equal(members[a], members[b])), None)
    if same is not None:
        raise UsageError(
            f"{same[0]} and {same[1]} are the very same episodes at {reached.name}, so that nothing can be lost "
            "between them: give two kinds that differ."
        )
    if len(members) < 2:
        small = f"; too small are {listed(list(sizes.values()))}" if sizes else ""
        raise DataError(
            f"a transfer at {reached.name} needs two kinds with {MIN_CLASS} failed and {MIN_CLASS} successful "
            f"groups each and finds {', '.join(members) or 'none'}{small}: extract more episodes."
        )
    notes = (
        f"left out at {reached.name}, with fewer than {MIN_CLASS} groups of a class: {listed(list(sizes.values()))}.",
    )
    any_kind = np.logical_or.reduce(list(members.values()))
    return reached.take(any_kind), {kind: inside[any_kind] for kind, inside in members.items()}, notes if sizes else ()


def _fits(setting: _Setting, members: Mapping[str, Labels], mixtures: bool) -> dict[tuple[str, str], _Fit]:
    """Every row's fit for every tested kind."""
    own = {kind: setting.fit(inside) for kind, inside in members.items()}
    fits = {(row, test): own[row] for row in members for test in members}
    if mixtures:
        mixed = setting.fit(np.logical_or.reduce(list(members.values())))
        fits |= {(EVERY, test): mixed for test in members}
    if mixtures and len(members) > 2:
        for test in members:
            rest = [inside for kind, inside in members.items() if kind != test]
            fits[OTHERS, test] = setting.fit(np.logical_or.reduce(rest))
    return fits


@dataclass(frozen=True, slots=True, eq=False)
class _Setting:
    """What all fits at a checkpoint share: its rows, the folds (which rows each tests), and the training sizes."""

    rows: PooledRows
    layers: tuple[int, ...]
    tests: tuple[Labels, ...]
    sizes: tuple[int, ...]
    seed: int

    @classmethod
    def of(
        cls, rows: PooledRows, members: Mapping[str, Labels], layers: Sequence[int], folds: int, seed: int
    ) -> _Setting:
        made = grouped_folds(rows.failed, rows.codes, folds, seed)
        tests = tuple(np.isin(np.arange(len(rows.failed)), test) for _, test in made)
        sizes = tuple(min(int((inside & ~test).sum()) for inside in members.values()) for test in tests)
        return cls(rows, tuple(layers), tests, sizes, seed)

    def fit(self, inside: Labels) -> _Fit:
        """Scores of all rows by probes that were trained on these rows outside the fold that tests."""
        splits: list[Fold] = []
        for number, (test, size) in enumerate(zip(self.tests, self.sizes, strict=True)):
            rng = np.random.default_rng((self.seed, number))
            splits.append((_drawn(self.rows.failed, inside & ~test, size, rng), np.flatnonzero(test)))
        states = self._scores(self.rows.read, self.layers, splits)
        features = signal_features(self.rows.signals, SURFACE, roots=True)
        surface = self._scores(lambda _: features, (0,), splits)
        return _Fit(inside, states.scores, surface.scores, {str(k): n for k, n in states.layers.items()})

    def _scores(self, read: Callable[[int], NDArray[Any]], layers: Sequence[int], splits: Sequence[Fold]) -> Selection:
        """P(failure) of all rows, (n,), with the layer of each fold, the best inside its training rows."""
        swept = sweep_layers(
            read,
            layers,
            self.rows.failed,
            self.rows.codes,
            folds=splits,
            strengths=STRENGTHS,
            seed=self.seed,
            threads=os.cpu_count() or 1,
        )
        return select({"logistic": LayerScores(swept.layers, swept.scores, swept.train_auroc)}, splits)


def _drawn(failed: Labels, among: Labels, size: int, rng: np.random.Generator) -> Rows:
    """`size` rows of those marked, failures in the share that they have there. DataError where a class is missing."""
    lost, won = np.flatnonzero(among & failed), np.flatnonzero(among & ~failed)
    if not len(lost) or not len(won):
        raise DataError("a training set of the transfer lacks a class: ask for fewer folds, or extract more episodes.")
    losing = min(max(round(size * len(lost) / (len(lost) + len(won))), 1), size - 1)
    return np.sort(np.concatenate([rng.permutation(lost)[:losing], rng.permutation(won)[: size - losing]]))


@dataclass(frozen=True, slots=True, eq=False)
class _Fit:
    """P(failure) of all rows, (n,), by probes on states and by the baseline, trained on rows `inside`."""

    inside: Labels
    states: Array
    surface: Array
    layers: Mapping[str, int]

    def fired(self, rows: PooledRows, tests: Sequence[Labels], target: Fraction) -> Labels:
        """Where the score reaches the threshold that keeps the target share of successes of the trained kind.

        The threshold of a fold is set on the groups of the other folds, (n,).
        """
        fired = np.zeros(len(self.states), dtype=np.bool_)
        for test in tests:
            safe = np.sort(self.states[self.inside & ~test & ~rows.failed])
            fired[test] = self.states[test] > safe[max(needed(target, len(safe)), 1) - 1]
        return fired


@dataclass(frozen=True, slots=True, eq=False)
class _Columns:
    """A fit on one tested kind, measured."""

    states: Column
    surface: Column

    @classmethod
    def of(cls, measure: Measure, fit: _Fit, inside: Labels) -> _Columns:
        return cls(measure.column(fit.states[inside]), measure.column(fit.surface[inside]))


@dataclass(frozen=True, slots=True, eq=False)
class _Lost:
    """A difference of two cross-fitted AUROCs: value, draws (resamples,), and {value, low, high}.

    The draws are spread 1.75 times as far from the value. Where an AUROC is 0 or 1 they do not move at all
    (`exact`), and the ends are those of `Measure.gain`, spread likewise and cut at what AUROCs can differ by.
    """

    value: float
    draws: Array
    interval: dict[str, Any]
    exact: bool

    @classmethod
    def of(cls, measure: Measure, own: Column, other: Column, confidence: float) -> _Lost:
        value, draws = own.less(other, "auroc")
        exact = any(column.values["auroc"] in (0.0, 1.0) for column in (own, other))
        interval = _loss(value, draws, confidence)
        ends = measure.gain(own, other, "auroc", confidence)
        if exact and ends["value"] is not None:
            low, high = (value + _CROSS_FITTED * (ends[end] - value) for end in ("low", "high"))
            interval = {"value": float(value), "low": max(float(low), -1.0), "high": min(float(high), 1.0)}
        return cls(value, draws, interval, exact)


def _mean(lost: Sequence[_Lost], confidence: float) -> dict[str, Any]:
    """The mean over cells, on the same resamples, as {value, low, high}.

    Where resamples of a cell do not move, its ends and those of the others are averaged, as if all moved together:
    wide rather than narrow.
    """
    value = float(np.mean([cell.value for cell in lost]))
    ends = [cell.interval for cell in lost]
    if any(cell.exact for cell in lost) and all(end["value"] is not None for end in ends):
        return {"value": value} | {key: float(np.mean([end[key] for end in ends])) for key in ("low", "high")}
    return _loss(value, np.mean([cell.draws for cell in lost], axis=0), confidence)


def _loss(value: float, draws: Array, confidence: float) -> dict[str, Any]:
    return interval_of(value, value + _CROSS_FITTED * (draws - value), confidence)


def _share(hits: Labels, among: Labels, codes: NDArray[np.intp], resampling: Resampling) -> dict[str, Any]:
    found = share_interval(hits, among, codes, resampling)
    return {"value": found.value, "low": found.low, "high": found.high, "n": found.n}
