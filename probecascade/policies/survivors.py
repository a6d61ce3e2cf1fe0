"""Probes fitted on the episodes that will come to them: those that the gates before let through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from probecascade.errors import DataError
from probecascade.policies.probing import GateFit, GateFitter
from probecascade.policies.scoring import GateTable
from probecascade.thresholds import calibrate, firing


def held_out_scores(table: GateTable, fits: Sequence[GateFit], fit: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Scores (n_episodes, n_gates) of fit episodes by probes that had not seen their group; NaN for all others.

    Out of fold for the episodes that a probe was fitted on; by the probe itself for fit episodes that it was not.
    `table` holds the scores of these probes, `fit` marks the fit episodes, (n_episodes,).
    """
    scores = np.where(fit[:, None], table.scores, np.nan)
    for g, one in enumerate(fits):
        scores[one.episodes, g] = one.out_of_fold
    return scores


def refit_survivors(
    fitting: GateFitter,
    fits: Sequence[GateFit],
    table: GateTable,
    *,
    catch: Mapping[int, Fraction],
    keep: Fraction | None,
) -> tuple[list[GateFit], list[str]]:
    """Each gate refitted, in order, on the fit episodes that no gate before stops; and what a user should know.

    Which they stop is told by the thresholds that the targets set on held-out scores of the fit episodes, so that no
    probe judges an episode it has seen; episodes that certify anything are not looked at. A gate that too few come
    to keeps its probe.
    """
    fit, episodes = fitting.fit, fitting.run.episodes
    found, notes = list(fits), []
    scores = held_out_scores(table, fits, fit)
    for g in range(1, len(found)):
        known = (scores[fit], episodes.failed[fit], episodes.group[fit], table.tokens_after[fit])
        thresholds = calibrate(*known, catch=catch, keep=keep, method="empirical").thresholds
        passed = np.logical_not(firing(scores[:, :g], thresholds[:g]).any(axis=1))
        if passed[found[g].episodes].all():
            continue
        name = found[g].row.gate.checkpoint
        try:
            found[g] = fitting.at(name, among=passed)
        except DataError as error:
            notes.append(f"{name} keeps the probe of all episodes, for too few pass the gates before it: {error}")
            continue
        scores[found[g].episodes, g] = found[g].out_of_fold
    return found, notes
