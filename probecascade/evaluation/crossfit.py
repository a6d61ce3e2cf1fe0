"""Out-of-fold scores at one checkpoint: folds shared by all that is compared there, choices made inside them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from probecascade.errors import DataError, UsageError
from probecascade.probes import SEQUENCES, fitter_named, grouped_folds
from probecascade.probes.batched import sweep_layers
from probecascade.probes.solver import log_odds
from probecascade.store import Run

Array = NDArray[np.float64]
Labels = NDArray[np.bool_]
Fold = tuple[NDArray[np.intp], NDArray[np.intp]]
Read = Callable[[int], NDArray[Any]]

MIN_CLASS = 20
"""Groups of each class that a checkpoint needs to be worth a number."""

STRENGTHS = tuple(10.0**k for k in range(-5, 1))
"""C of logistic regressions: whole decades, as everything is fitted in every fold of every fold."""

_SATURATED = 1e-12
_DIGITS = 12  # scores of probes that know nothing differ between folds by rounding, which must not rank them


@dataclass(frozen=True, slots=True, eq=False)
class Reached:
    """The labelled episodes that come to a checkpoint: `use` among its rows in the run, (n,) each for the rest.

    Turns that finish an episode are left out, where nothing is left to save, unless the checkpoint knows no other
    (`closing`). `codes` number the groups of the whole run.
    """

    name: str
    closing: bool
    use: Labels
    episode: NDArray[np.int64]
    failed: Labels
    codes: NDArray[np.intp]

    @classmethod
    def of(cls, run: Run, name: str, codes: NDArray[np.intp]) -> Reached:
        """`codes`: of all episodes of the run, (n_episodes,)."""
        rows = run.rows(name)
        closing = bool(rows.final.all())
        use = run.episodes.labelled[rows.episode] & (closing | ~rows.final)
        episode = rows.episode[use]
        return cls(name, closing, use, episode, run.episodes.failed[episode], codes[episode])

    def __len__(self) -> int:
        return len(self.episode)

    def groups_of(self, failed: bool) -> int:
        """How many groups have an episode here that failed, or one that did not."""
        return len(np.unique(self.codes[self.failed == failed]))

    def states(self, run: Run) -> Read:
        """Reads the states at this checkpoint, (n, d_model), one layer at a time."""
        return lambda layer: run.states(self.name, layer)[self.use]

    def states_at(self, run: Run, name: str) -> Read | None:
        """Reads the states of the same episodes at an earlier checkpoint; None where one of them has none."""
        if name not in run.checkpoint_names:
            return None
        row_of = np.full(len(run), -1, dtype=np.int64)
        rows = run.rows(name)
        row_of[rows.episode] = np.arange(len(rows.episode))
        wanted = row_of[self.episode]
        return None if (wanted < 0).any() else lambda layer: run.states(name, layer)[wanted]

    def spread(self, values: Array, n_episodes: int) -> Array:
        """Values (n,) in their places among the run's episodes, (n_episodes,), NaN elsewhere."""
        wide = np.full(n_episodes, np.nan)
        wide[self.episode] = values
        return wide


def group_codes(run: Run) -> NDArray[np.intp]:
    """The group of every episode as a number, (n_episodes,), in the order of the groups' names."""
    return np.unique(run.episodes.group.astype(str), return_inverse=True)[1].reshape(-1)


def too_few(reached: Reached) -> dict[str, Any] | None:
    """What to say of a checkpoint that fewer than MIN_CLASS groups of a class reach; None for one that enough do."""
    lost, won = reached.groups_of(True), reached.groups_of(False)
    if min(lost, won) >= MIN_CLASS:
        return None
    return {
        "checkpoint": reached.name,
        "n": len(reached),
        "failed": int(reached.failed.sum()),
        "reason": f"{lost} groups with a failed and {won} with a successful episode; {MIN_CLASS} of each are needed",
    }


def reached_by_enough(run: Run, names: Sequence[str]) -> tuple[str, ...]:
    """Those of the run's checkpoints that MIN_CLASS groups of either class reach."""
    codes = group_codes(run)
    return tuple(name for name in names if not too_few(Reached.of(run, name, codes)))


def shared_folds(failed: Labels, codes: NDArray[np.intp], folds: int, seed: int) -> NDArray[np.int64]:
    """The fold of every group by its code, from all labelled episodes; -1 for a group without one among them.

    DataError as `grouped_folds`.
    """
    fold_of = np.full(int(codes.max(initial=-1)) + 1, -1, dtype=np.int64)
    for number, (_, test) in enumerate(grouped_folds(failed, codes, folds, seed)):
        fold_of[codes[test]] = number
    return fold_of


def folds_at(reached: Reached, fold_of: NDArray[np.int64], folds: int, seed: int) -> tuple[list[Fold], bool]:
    """Folds of a checkpoint's rows, and whether they are the shared ones.

    Late checkpoints hold fewer episodes: where a shared fold lacks a class there, the checkpoint gets folds of its
    own.
    """
    here = fold_of[reached.codes]
    made = [(np.flatnonzero(here != f), np.flatnonzero(here == f)) for f in range(int(fold_of.max()) + 1)]
    if all(0 < reached.failed[test].sum() < len(test) for _, test in made):
        return made, True
    return grouped_folds(reached.failed, reached.codes, folds, seed), False


@dataclass(frozen=True, slots=True, eq=False)
class LayerScores:
    """Out-of-fold P(failure) of one kind of probe at each layer, (n_layers, n), and the AUROC inside each fold.

    inside: (n_layers, n_folds), cross-validated on the training rows alone, so that a layer can be chosen by it.
    """

    layers: tuple[int, ...]
    scores: Array
    inside: Array


def score_layers(
    probe: str,
    read: Read,
    layers: Sequence[int],
    failed: Labels,
    codes: NDArray[np.intp],
    folds: Sequence[Fold],
    seed: int,
) -> LayerScores:
    """Cross-fit one kind of probe at every layer, whatever it tunes tuned inside the folds.

    A fold with more failures leaves fewer to train on; each score is moved by the log-odds of failure overall less
    those of its training rows, so that pooled scores of probes that know nothing do not run against the labels.
    DataError names the layer at which the probe cannot be fitted.
    """
    if probe == "logistic":
        found = sweep_layers(
            read, layers, failed, codes, folds=folds, strengths=STRENGTHS, seed=seed, threads=os.cpu_count() or 1
        )
        return LayerScores(tuple(layers), np.round(found.scores, _DIGITS), found.train_auroc)
    fitter = fitter_named(probe, seed=seed)
    scores, inside = np.empty((len(layers), len(failed))), np.empty((len(layers), len(folds)))
    for i, layer in enumerate(layers):
        states = read(layer)
        for f, (train, test) in enumerate(folds):
            try:
                fitted = fitter.fit(states[train], failed[train], codes[train])
            except DataError as error:
                raise DataError(f"no {probe} probe can be fitted at layer {layer}: {error}") from error
            raw = np.clip(fitted.probe.score(states[test]), _SATURATED, 1 - _SATURATED)
            scores[i, test] = expit(logit(raw) + log_odds(failed) - log_odds(failed[train]))
            inside[i, f] = fitted.auroc
    return LayerScores(tuple(layers), np.round(scores, _DIGITS), inside)


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Scores (n,) of the probe and layer that each fold chose without its own rows, and what was chosen how often."""

    scores: Array
    layers: Mapping[int, int]
    probes: Mapping[str, int]

    @property
    def layer(self) -> int:
        """The layer chosen most often, the earlier on a tie."""
        return max(sorted(self.layers), key=lambda layer: self.layers[layer])

    @property
    def probe(self) -> str:
        """The probe chosen most often, the one given first on a tie."""
        return max(self.probes, key=lambda name: self.probes[name])


def select(found: Mapping[str, LayerScores], folds: Sequence[Fold]) -> Selection:
    """In each fold the probe and layer with the best AUROC inside it; the first probe and earliest layer on a tie."""
    candidates = [(name, layer) for name, of in found.items() for layer in of.layers]
    scores = np.concatenate([of.scores for of in found.values()])
    # nothing is known inside a fold that has too few groups of a class to be split again
    inside = np.nan_to_num(np.concatenate([of.inside for of in found.values()]), nan=-1.0)
    best = np.argmax(inside, axis=0)
    chosen = np.empty(scores.shape[1])
    for choice, (_, test) in zip(best, folds, strict=True):
        chosen[test] = scores[choice, test]
    layers = Counter(candidates[choice][1] for choice in best)
    probes = {name: sum(candidates[choice][0] == name for choice in best) for name in found}
    return Selection(chosen, dict(sorted(layers.items())), {name: n for name, n in probes.items() if n})


def check_probes(names: Sequence[str]) -> None:
    """UsageError for no probe, one named twice, or one that no sweep over single checkpoints can fit."""
    if not names or len(set(names)) < len(names):
        raise UsageError(f"the probes {', '.join(names) or 'none'} were given: name one or more, each once.")
    for name in names:
        if name in SEQUENCES:
            raise UsageError(
                f"the probe {name!r} pools several checkpoints and a sweep fits one at a time: "
                "fit it with `probecascade fit --probe`, and sweep another."
            )
        fitter_named(name)
