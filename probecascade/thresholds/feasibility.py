"""Whether catch and keep can be certified together, predicted from episodes that certify nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from scipy.special import ndtri

from probecascade.bounds import allowed_misses
from probecascade.thresholds.balance import Balance
from probecascade.thresholds.certified import roles
from probecascade.thresholds.firing import FloatArray, GateScores, stacked
from probecascade.thresholds.problem import Problem
from probecascade.thresholds.shape import ShapeLearner
from probecascade.thresholds.targets import percent

_KEEPS = tuple(Fraction(k, 100) for k in (99, 98, 97, 96, 95, 94, 92, 90, 88, 85, 80, 75, 70, 60, 50))
_SCALES = tuple(Fraction(s, 20) for s in range(20, 0, -1))
_ROUNDS = 4  # of balancing the bonuses, three fits each


@dataclass(frozen=True, slots=True)
class Feasibility:
    """Whether all certificates are `likely` (an even chance or better), and the frontier through the targets.

    `keep`: the strictest keep of a grid that these catches leave in reach; `catch`: the shares in reach at this keep
    when all are lowered alike; None or empty where none is. `doomed`, `successes`: the episodes it is read from.
    """

    likely: bool
    keep: Fraction | None
    catch: tuple[tuple[int, Fraction], ...]
    doomed: int
    successes: int

    def sentence(self, targets_keep: Fraction, gates: Sequence[str]) -> str:
        """The prediction in words."""
        start = (
            f"Predicted from {self.doomed} failures and {self.successes} successes that certify nothing: keep and "
            f"catch together are {'likely' if self.likely else 'unlikely'} to be certified"
        )
        if self.likely:
            return f"{start}."
        keep = "no keep of 50 % or more" if self.keep is None else f"a keep of about {percent(self.keep)}"
        shares = ", ".join(f"{float(share):.2f} by {gates[gate]}" for gate, share in self.catch)
        catch = f"catches of about {shares}" if shares else "no catch worth the name"
        return f"{start}; at these catches {keep} is within reach, at a keep of {percent(targets_keep)} {catch}."


def predict(problem: Problem) -> Feasibility | None:
    """The prediction for a problem with both kinds of targets on independent episodes; None for others."""
    keep, catch = problem.targets.keep, problem.targets.catch
    if keep is None or not catch or problem.sample.dependent:
        return None
    opened, held = roles(problem)
    data = problem.sample.data
    own = problem.sample.take(opened | (data.failed & ~held)).data
    parts = [own] if problem.teachers is None else [own, problem.teachers.data]
    teach = stacked(parts)
    m, tests = data.successes - int(opened.sum()), int(held.sum())
    if not teach.doomed or not teach.successes or not m or not tests:
        return None

    def reachable(share: Fraction, wanted: tuple[tuple[int, Fraction], ...]) -> bool:
        allowed = allowed_misses(m, 1 - share, delta=problem.delta)
        return allowed >= 0 and _caught_enough(teach, wanted, (allowed + 0.5) / m, tests, problem.delta)

    likely = reachable(keep, catch)
    if likely:
        return Feasibility(True, keep, catch, teach.doomed, teach.successes)
    scaled = (tuple((gate, share * scale) for gate, share in catch) for scale in _SCALES)
    return Feasibility(
        False,
        next((share for share in _KEEPS if share < keep and reachable(share, catch)), None),
        next((wanted for wanted in scaled if reachable(keep, wanted)), ()),
        teach.doomed,
        teach.successes,
    )


def _caught_enough(
    teach: GateScores, wanted: tuple[tuple[int, Fraction], ...], loss: float, tests: int, delta: float
) -> bool:
    """Whether a region that loses this share of the successes catches enough to pass its tests half of the time."""
    learner = ShapeLearner(teach, np.ones(len(teach.failed), dtype=np.bool_))
    weights: FloatArray = np.ones(len(teach.failed))
    balance = Balance(wanted, loss=loss, tests=tests, delta=delta)
    for _ in range(_ROUNDS):
        balance(learner, weights)
    shape = learner.fit(weights, loss=loss)
    fired = np.greater_equal(teach.scores[teach.failed], shape.cut(learner.level))
    for gate, share in wanted:
        target = float(share)
        margin = -float(ndtri(delta)) * np.sqrt(target * (1.0 - target) / tests)
        if fired[:, : gate + 1].any(axis=1).mean() < target + margin:
            return False
    return True
