"""How much a catch is worth: bonus tokens, set so that the catch promises can be certified beside a keep promise."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from scipy.special import ndtri

from probecascade.thresholds.firing import FloatArray
from probecascade.thresholds.shape import ShapeLearner

_TRIES = 3  # fits per call; the bonus carries over from one call to the next
_START = 0.1  # first bonus, in mean tokens gained
_UP, _DOWN = 1.7, 1.25


class Balance:
    """Raises the bonus of each catch target until the doomed episodes that may be read predict its certificate.

    `catch`: (gate, share) each; `loss`: the share of the successes that the region will contain; `tests`: how many
    doomed episodes will test the promise, at level `delta`.
    """

    def __init__(self, catch: tuple[tuple[int, Fraction], ...], *, loss: float, tests: int, delta: float) -> None:
        self.gates = [gate for gate, _ in catch]
        shares = np.array([float(share) for _, share in catch])
        self.error = np.sqrt(shares * (1.0 - shares) / max(tests, 1))
        # A test passes from about z standard errors above its target; half a one more makes that likely.
        self.wanted = np.minimum(shares + (float(-ndtri(delta)) + 0.5) * self.error, 1.0)
        self.loss = loss
        self.bonus = np.zeros(len(catch))

    def __call__(self, learner: ShapeLearner, weights: FloatArray, unseen: FloatArray | None = None) -> None:
        data = learner.data
        doomed = data.scores[data.failed]
        if not len(doomed):
            return
        for _ in range(_TRIES):
            learner.set_bonus(self._by_gate(doomed.shape[1]))
            fired = np.greater_equal(doomed, learner.fit(weights, loss=self.loss, unseen=unseen).cut(learner.level))
            caught = np.array([fired[:, : gate + 1].any(axis=1).mean() for gate in self.gates])
            short, ample = caught < self.wanted, caught > self.wanted + self.error
            if not short.any() and not (ample & (self.bonus > 0)).any():
                return
            least = _START * learner.mean_gain
            self.bonus = np.where(short, np.maximum(self.bonus * _UP, least), self.bonus)
            self.bonus = np.where(ample, self.bonus / _DOWN, self.bonus)
        learner.set_bonus(self._by_gate(doomed.shape[1]))

    def _by_gate(self, n_gates: int) -> FloatArray:
        """An abort at a gate counts for every target at that gate or later."""
        total = np.zeros(n_gates)
        for gate, bonus in zip(self.gates, self.bonus, strict=True):
            total[: gate + 1] += bonus
        return total
