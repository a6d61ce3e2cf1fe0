"""Adaptive shrinking: an abort region shaped by the very successes that certify it, at an exact level.

The argument is set out in docs/guarantees.md. What the code must never do is to read a certifying success
that is still inside the region: until it leaves, it may only be counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from probecascade.thresholds.firing import LOWEST, BoolArray, FloatArray
from probecascade.thresholds.shape import ShapeLearner

_RATIO = 0.75  # certifying successes inside after a stage, as a share of those before
_NEUTRAL = 0.5  # above this share the gates shrink alike: too few successes have left to weigh them


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """The region where at least one gate has score >= its threshold, and the certifying successes inside it."""

    thresholds: FloatArray
    inside: int


Steer = Callable[[ShapeLearner, FloatArray, FloatArray | None], None]
"""Called before a shape is fitted, with the learner and the weights of `fit`; it may set the bonus."""


def shrink(
    learner: ShapeLearner, certifying: BoolArray, open_: BoolArray, allowed: int, *, steer: Steer | None = None
) -> Region:
    """The region with at most `allowed` certifying successes inside, approached in stages from the whole space.

    certifying, open_: (n_episodes,) bool, disjoint; `open_` marks the successes that may be read freely, and
    failures are always open. Each stage refits the shape on what is open and on the certifying successes
    that have left the region, then raises the thresholds along that shape until the next count is reached.
    Without `steer` the counts of the stages do not depend on `allowed`, so the regions of smaller and smaller
    `allowed` are nested.
    """
    scores = learner.data.scores
    thresholds = np.full(scores.shape[1], LOWEST)
    m = int(certifying.sum())
    inside = certifying & ~np.isnan(scores).all(axis=1)
    while (count := int(inside.sum())) > allowed:
        goal = max(min(int(count * _RATIO), count - 1), 0)
        if count > _NEUTRAL * m:
            shape = learner.neutral()
        else:
            weights, unseen = _weights(learner, certifying, open_, inside, thresholds)
            if steer:
                steer(learner, weights, unseen)
            shape = learner.fit(weights, loss=(goal + 0.5) / m, unseen=unseen)
        # What is read of the successes inside is one number: the place of the block's boundary along the shape.
        index = shape.index(scores[inside])
        index[scores[inside] < thresholds] = -np.inf  # a gate that they left already cannot hold them
        reach = np.sort(index.max(axis=1))[::-1]
        stop = max(goal, allowed)
        thresholds = np.maximum(thresholds, shape.cut(float(reach[stop])))
        inside &= np.greater_equal(scores, thresholds).any(axis=1)
    return Region(thresholds, int(inside.sum()))


def _weights(
    learner: ShapeLearner, certifying: BoolArray, open_: BoolArray, inside: BoolArray, thresholds: FloatArray
) -> tuple[FloatArray, FloatArray | None]:
    """Weights (n_episodes,) of what may be read, and of what stands for the certifying successes inside.

    Open successes inside stand for them where there are any. Elsewhere they are laid on the doomed episodes inside, in
    proportion to the odds of success there: the logistic model says that the successes are distributed like these.
    """
    weights = (learner.data.failed | open_ | certifying).astype(np.float64)
    weights[inside] = 0.0
    region = np.greater_equal(learner.data.scores, thresholds).any(axis=1)
    stand, count = open_ & region, int(inside.sum())
    if stand.any():
        weights[stand] = 1.0 + count / int(stand.sum())
        return weights, None
    doomed = learner.data.failed & region
    unseen = np.zeros(len(weights))
    if doomed.any():
        odds = learner.odds(doomed)
        unseen[doomed] = count * odds / odds.sum()
    return weights, unseen
