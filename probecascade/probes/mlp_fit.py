"""Training multilayer perceptrons: AdamW, early stopping on held-out groups, several seeds side by side."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logit

from probecascade.errors import UsageError
from probecascade.probes.crossfit import Array, ClassWeight, FittedProbe, Groups, Plan, Sample, cross_fit
from probecascade.probes.crossval import grouped_folds
from probecascade.probes.fit import rising
from probecascade.probes.inputs import as_matrix
from probecascade.probes.mlp import MLPProbe
from probecascade.probes.steps import Step, column_moments

Floats = NDArray[np.float32]

_RATE, _FIRST, _SECOND, _TINY = 3e-3, 0.9, 0.999, 1e-8
_BATCH = 64
_MOST_EPOCHS, _PATIENCE = 200, 15
_STOPPING_FOLDS = 5
_SURE = 1e-12


@dataclass(frozen=True)
class MLPFitter:
    """A perceptron with one or two hidden layers of ReLU units, for what no plane can separate.

    hidden: units of each hidden layer. decays: weight decay as in AdamW (Loshchilov and Hutter 2019), chosen by
    grouped cross-validation where several are given. members: networks whose probabilities are averaged; each
    starts from another seed and holds out another fifth of the groups, on whose log-loss it stops. It sees
    standardised features; with states much wider than episodes are many, put `PCA` into `steps`. folds, seed,
    class_weight, steps: as in `LogisticFitter`. Training is float32 in numpy, a member's weights are its best
    epoch's.
    """

    hidden: tuple[int, ...] = (32,)
    decays: tuple[float, ...] = (1.0,)
    members: int = 3
    folds: int = 5
    seed: int = 0
    class_weight: ClassWeight = None
    steps: tuple[Step, ...] = ()

    def fit(self, X: ArrayLike, failed: ArrayLike, groups: Groups) -> FittedProbe:
        """Fit on states X (n, width), failed and groups (n,).

        Raises DataError as `LogisticFitter.fit` does, and where the training rows of a fold hold too few groups
        to hold some out; UsageError on other than one or two hidden layers, no members, or decays not positive.
        """
        if len(self.hidden) not in (1, 2) or min(self.hidden) < 1 or self.members < 1:
            raise UsageError(
                f"Hidden layers {self.hidden} and {self.members} members were given; "
                "give the units of one or two layers and at least one member."
            )
        # Less decay fits more closely; cross-validation asks for values in that order.
        decays = rising(self.decays, "weight decays")[::-1]
        plan = Plan(self.folds, self.seed, self.steps, self.class_weight)
        return cross_fit(self._train, decays, as_matrix(X, "states"), failed, groups, plan).fitted

    def _train(self, sample: Sample, values: tuple[float, ...]) -> MLPPath:
        mean, scale = column_moments(sample.rows)
        features = ((sample.rows - mean) / scale).astype(np.float32)
        held_out = self._held_out(sample)
        models = []
        for decay in values:
            weights, biases = _train_members(features, sample, held_out, self.hidden, decay, self.seed)
            exact = [tuple(p.astype(np.float64) for p in part) for part in (weights, biases)]
            models.append(MLPProbe(mean, scale, *exact))
        return MLPPath(tuple(models))

    def _held_out(self, sample: Sample) -> NDArray[np.bool_]:
        """Which rows each member stops by, (members, n)."""
        folds = grouped_folds(sample.failed, sample.codes, _STOPPING_FOLDS, self.seed)
        held_out = np.zeros((self.members, len(sample.rows)), dtype=np.bool_)
        for member in range(self.members):
            held_out[member, folds[member % len(folds)][1]] = True
        return held_out


@dataclass(frozen=True, eq=False)
class MLPPath:
    """Perceptrons at several weight decays."""

    models: tuple[MLPProbe, ...]

    def logits(self, rows: Array) -> Array:
        columns = []
        for model in self.models:
            features = ((rows - model.mean) / model.scale).astype(np.float32)
            weights = [w.astype(np.float32) for w in model.weights]
            logits = _forward(features, weights, [b.astype(np.float32) for b in model.biases])[-1][..., 0]
            chance = (1 / (1 + np.exp(-np.clip(logits.astype(np.float64), -500, 500)))).mean(axis=0)
            columns.append(logit(np.clip(chance, _SURE, 1 - _SURE)))
        return np.stack(columns, axis=1)

    def rebased(self, old: float, new: float) -> MLPPath:
        moved = [replace(m, biases=(*m.biases[:-1], new + (m.biases[-1] - old))) for m in self.models]
        return MLPPath(tuple(moved))

    def probe(self, place: int) -> MLPProbe:
        return self.models[place]


def _forward(features: Floats, weights: list[Floats], biases: list[Floats]) -> list[Floats]:
    """Units of every layer before the ReLU, (members, n, units) each."""
    layers: list[Floats] = []
    units = features
    for weight, bias in zip(weights, biases, strict=True):
        layers.append(np.matmul(units, weight.transpose(0, 2, 1)) + bias[:, None, :])
        units = np.maximum(layers[-1], 0)
    return layers


def _backward(
    features: Floats, layers: list[Floats], weights: list[Floats], pull: Floats
) -> tuple[list[Floats], list[Floats]]:
    """Gradients of all weights and biases from that of the logits, `pull` (members, n, 1)."""
    of_weights: list[Floats] = []
    of_biases: list[Floats] = []
    for k in range(len(weights) - 1, -1, -1):
        below = np.maximum(layers[k - 1], 0) if k else features
        of_weights.insert(0, np.matmul(pull.transpose(0, 2, 1), below))
        of_biases.insert(0, pull.sum(axis=1))
        if k:
            pull = np.matmul(pull, weights[k]) * (layers[k - 1] > 0)
    return of_weights, of_biases


def _initial(
    width: int, hidden: tuple[int, ...], members: int, log_odds: float, seed: int
) -> tuple[list[Floats], list[Floats]]:
    """Weights as in He et al. 2015, a member's from its own seed; the last bias is the log-odds of failure."""
    sizes = (width, *hidden, 1)
    streams = [np.random.default_rng([seed, member]) for member in range(members)]
    weights = [
        np.stack([rng.normal(scale=np.sqrt(2 / fan_in), size=(fan_out, fan_in)) for rng in streams]).astype(np.float32)
        for fan_in, fan_out in pairwise(sizes)
    ]
    weights[-1] *= np.float32(0.1)  # starts near the overall rate
    biases = [np.zeros((members, size), dtype=np.float32) for size in sizes[1:]]
    biases[-1] += np.float32(log_odds)
    return weights, biases


def _train_members(
    features: Floats, sample: Sample, held_out: NDArray[np.bool_], hidden: tuple[int, ...], decay: float, seed: int
) -> tuple[list[Floats], list[Floats]]:
    """Train all members at once on the same batches, each blind to the rows it holds out; return their best epochs."""
    members = len(held_out)
    weights, biases = _initial(features.shape[1], hidden, members, sample.log_odds, seed)
    parameters = [*weights, *biases]
    moments = [(np.zeros_like(p), np.zeros_like(p)) for p in parameters]
    sign = np.where(sample.failed, 1.0, -1.0).astype(np.float32)
    share = np.where(held_out, 0.0, sample.weights).astype(np.float32)
    best = [p.copy() for p in parameters]
    best_loss = _held_out_loss(features, weights, biases, sign, sample.weights, held_out)
    waited = np.zeros(members, dtype=np.int64)
    rng = np.random.default_rng([seed, members])
    step = 0
    for _ in range(_MOST_EPOCHS):
        order = rng.permutation(len(features))
        for start in range(0, len(order), _BATCH):
            step += 1
            batch = order[start : start + _BATCH]
            layers = _forward(features[batch], weights, biases)
            margin = np.clip(sign[batch, None] * layers[-1], -80, 80)
            pull = -(sign[batch] * share[:, batch])[..., None] / (1 + np.exp(margin)) / len(batch)
            of_weights, of_biases = _backward(features[batch], layers, weights, pull)
            for k, (p, gradient) in enumerate(zip(parameters, [*of_weights, *of_biases], strict=True)):
                _adam(p, gradient, *moments[k], step, decay if k < len(weights) else 0.0)
        loss = _held_out_loss(features, weights, biases, sign, sample.weights, held_out)
        better = loss < best_loss
        for kept, p in zip(best, parameters, strict=True):
            kept[better] = p[better]
        best_loss = np.where(better, loss, best_loss)
        waited = np.where(better, 0, waited + 1)
        if (waited >= _PATIENCE).all():
            break
    return best[: len(weights)], best[len(weights) :]


def _adam(p: Floats, gradient: Floats, first: Floats, second: Floats, step: int, decay: float) -> None:
    """One step of AdamW, in place."""
    first += (1 - _FIRST) * (gradient - first)
    second += (1 - _SECOND) * (np.square(gradient) - second)
    p *= 1 - _RATE * decay
    p -= _RATE / (1 - _FIRST**step) * first / (np.sqrt(second / (1 - _SECOND**step)) + _TINY)


def _held_out_loss(
    features: Floats,
    weights: list[Floats],
    biases: list[Floats],
    sign: Floats,
    row_weights: Array,
    held_out: NDArray[np.bool_],
) -> Array:
    """Log-loss of each member on the rows it holds out, (members,)."""
    margin = sign * _forward(features, weights, biases)[-1][..., 0].astype(np.float64)
    share = np.where(held_out, row_weights, 0.0)
    loss: Array = (share * np.logaddexp(0.0, -margin)).sum(axis=1) / share.sum(axis=1)
    return loss
