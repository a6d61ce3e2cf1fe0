"""The empirical method: targets met on the calibration episodes themselves, which promises nothing of new ones."""

from __future__ import annotations

import numpy as np

from probecascade.thresholds.firing import OFF
from probecascade.thresholds.keep import keep_thresholds
from probecascade.thresholds.problem import Found, Problem
from probecascade.thresholds.sequential import recall_thresholds


def empirical(problem: Problem) -> Found:
    """Keep by the index shape at the calibration episodes' own order statistic; catch alone in sequence.

    With both, keep goes first and the catch targets are what it leaves. Gates without a target stay off where
    only catch is asked.
    """
    data, targets = problem.sample.data, problem.targets
    if targets.keep is not None:
        teachers = None if problem.teachers is None else problem.teachers.data
        return Found(
            keep_thresholds(data.scores, data.failed, data.cost_after, targets.keep, teachers=teachers).thresholds
        )
    gates = [gate for gate, _ in targets.catch]
    thresholds = np.full(data.scores.shape[1], OFF)
    found = recall_thresholds(data.scores[:, gates], data.failed, [share for _, share in targets.catch])
    thresholds[gates] = found.thresholds
    return Found(thresholds)
