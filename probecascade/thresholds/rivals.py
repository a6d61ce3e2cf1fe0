"""Other ways to set keep thresholds, behind the same interface, so that they can be compared."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from fractions import Fraction

import numpy as np

from probecascade.bounds import allowed_misses
from probecascade.errors import UsageError
from probecascade.thresholds.allocation import Allocations
from probecascade.thresholds.certified import one_per_group
from probecascade.thresholds.firing import LOWEST, OFF, BoolArray, FloatArray
from probecascade.thresholds.problem import Certificate, Found, Problem, more_needed, pick
from probecascade.thresholds.targets import needed

PAPER_GRID = (
    Fraction(1),
    Fraction(99, 100),
    Fraction(98, 100),
    Fraction(95, 100),
    Fraction(90, 100),
    Fraction(85, 100),
)
PAPER_MARGIN = Fraction(2, 100)
_CHOOSERS = 0.30  # of the successes choose the single gate; the others certify it
_REFERENCE = 0.5  # of the successes rank the gates' scores; the others certify the largest rank


def paper(problem: Problem) -> Found:
    """The published recipe: per-gate Clopper-Pearson thresholds on one half, their allocation searched on the other.

    Half the groups give, per gate, the lowest threshold whose survival bound (one-sided, at the confidence) is each
    level of `PAPER_GRID`; the other half picks the allocation that saves most while it keeps the target plus a
    margin of .02. That is no correction for the search, so nothing is promised.
    Source: "Doomed from the Start" (arXiv 2607.06503), with savings counted strictly after the gate.
    """
    keep = _keep_only(problem, "paper")
    sample = problem.sample
    groups = problem.rng("roles").permutation(np.unique(sample.group))
    search = np.isin(sample.group, groups[: len(groups) // 2])
    data, levels = sample.take(search).data, sample.take(~search).data
    successes = levels.scores[~levels.failed]
    candidates = np.array(
        [
            [_lowest(column, _paper_misses(column, share, problem.delta)) for share in PAPER_GRID]
            for column in successes.T
        ]
    )
    required = needed(min(keep + PAPER_MARGIN, Fraction(1)), data.successes)
    best = Allocations.of(data, candidates).best(required)
    assert best is not None  # all gates off keeps everything
    return Found(best[0])


def _paper_misses(column: FloatArray, share: Fraction, delta: float) -> int:
    return -1 if share == 1 else allowed_misses(int((~np.isnan(column)).sum()), 1 - share, delta=delta)


def uniform(problem: Problem) -> Found:
    """Every gate keeps the share keep**(1/n_gates) of the successes that reach it. Promises nothing."""
    keep = _keep_only(problem, "uniform")
    data = problem.sample.data
    n_gates = data.scores.shape[1]
    columns = data.scores[~data.failed].T
    return Found(np.array([_lowest(c, _even_loss(int((~np.isnan(c)).sum()), keep, n_gates)) for c in columns]))


def _even_loss(n: int, keep: Fraction, n_gates: int) -> int:
    """The most of n that may be lost while the share kept, to the power of n_gates, is at least `keep`."""
    least = keep.numerator * n**n_gates
    return n - bisect_left(range(n + 1), True, key=lambda kept: kept**n_gates * keep.denominator >= least)


def single(problem: Problem) -> Found:
    """The one gate that saves most, chosen on some successes and all doomed, certified on the other successes."""
    keep = _keep_only(problem, "single")
    problem = _units(problem)
    data = problem.sample.data
    choosers = pick(problem.rng("roles"), ~data.failed, _CHOOSERS)
    certifying = ~data.failed & ~choosers
    m = int(certifying.sum())
    allowed = allowed_misses(m, 1 - keep, delta=problem.delta)
    thresholds = np.full(data.scores.shape[1], OFF)
    if allowed >= 0:
        lost = (2 * allowed + 1) * int(choosers.sum()) // (2 * m)
        tried = [_lowest(column, lost) for column in data.scores[choosers].T]
        costs = np.where(np.isnan(data.cost_after), 0.0, data.cost_after)[data.failed]
        gains = np.where(np.greater_equal(data.scores[data.failed], tried), costs, 0.0).sum(axis=0)
        gate = int(np.argmax(gains))
        thresholds[gate] = _lowest(data.scores[certifying, gate], allowed)
    return _found(problem, keep, certifying, _CHOOSERS, allowed, thresholds)


def maxrank(problem: Problem) -> Found:
    """Ranks among half of the successes make the gates alike; their maximum is certified on the other half.

    One binomial order statistic of the running maximum, so the promise is exact and no shape is learnt. Source: the
    PAC baseline of E-valuator (arXiv 2512.03109).
    """
    keep = _keep_only(problem, "maxrank")
    problem = _units(problem)
    data = problem.sample.data
    reference = pick(problem.rng("roles"), ~data.failed, _REFERENCE)
    certifying = ~data.failed & ~reference
    allowed = allowed_misses(int(certifying.sum()), 1 - keep, delta=problem.delta)
    thresholds = np.full(data.scores.shape[1], OFF)
    notes: tuple[str, ...] = ()
    if allowed >= 0:
        columns = [np.sort(column[~np.isnan(column)]) for column in data.scores[reference].T]
        ranks = np.stack([_ranks(c, data.scores[certifying, g]) for g, c in enumerate(columns)], axis=1)
        level = float(np.sort(ranks.max(axis=1))[::-1][allowed])
        thresholds = np.array([_over(column, level) for column in columns])
        if level == 1.0:
            notes = (
                f"more than {allowed} of the {int(certifying.sum())} successes that certify lie above all that rank "
                "the gates, at one gate or another, so no gate may fire and the promise is kept by aborting nothing: "
                "give fewer gates or more successes, or choose the method certified.",
            )
    found = _found(problem, keep, certifying, _REFERENCE, allowed, thresholds)
    return replace(found, notes=(*found.notes, *notes))


def _units(problem: Problem) -> Problem:
    """One episode of every group where groups are what the promise counts."""
    dependent = problem.sample.dependent and problem.unit == "group"
    return one_per_group(problem)[0] if dependent else problem


def _ranks(reference: FloatArray, scores: FloatArray) -> FloatArray:
    """Share of the sorted reference below each score; -1 where there is no score or no reference."""
    below = np.searchsorted(reference, scores, side="left") / max(reference.size, 1)
    return np.where(np.isnan(scores) | (reference.size == 0), -1.0, below)


def _over(reference: FloatArray, level: float) -> float:
    """The smallest score whose rank exceeds `level`."""
    if not reference.size:
        return OFF
    count = int(np.argmax(np.arange(reference.size + 1) / reference.size > level))
    if not count / reference.size > level:
        return OFF
    return LOWEST if count == 0 else float(np.nextafter(reference[count - 1], np.inf))


def _lowest(scores: FloatArray, lost: int) -> float:
    """The lowest threshold that at most `lost` of these scores reach; off for a negative number."""
    present = np.sort(scores[~np.isnan(scores)])[::-1]
    if lost < 0:
        return OFF
    return LOWEST if lost >= present.size else float(np.nextafter(present[lost], np.inf))


def _found(
    problem: Problem, keep: Fraction, certifying: BoolArray, apart: float, allowed: int, thresholds: FloatArray
) -> Found:
    """The thresholds with their keep certificate, which dependent episodes do not give.

    `apart` is the share of the successes that certifies nothing.
    """
    data = problem.sample.data
    lost = int(np.greater_equal(data.scores[certifying], thresholds).any(axis=1).sum())
    notes: tuple[str, ...] = ()
    missing: int | None = 0
    if problem.sample.dependent:
        missing = None
        notes = ("episodes of one group may depend on each other, and this method's bound is for independent ones",)
    elif allowed < 0:
        missing = more_needed(data.successes, apart, 1 - keep, problem.delta)
    certificate = Certificate(
        "keep", None, keep, missing == 0, int(certifying.sum()), max(allowed, 0), lost, missing, problem.unit
    )
    return Found(thresholds, (certificate,), notes)


def _keep_only(problem: Problem, name: str) -> Fraction:
    if problem.targets.keep is None or problem.targets.catch:
        raise UsageError(f"method {name!r} sets thresholds for a keep target alone: give keep, or choose certified.")
    return problem.targets.keep
