"""The certified method: thresholds whose promise holds for new episodes, at an exact level.

docs/guarantees.md states and proves what is promised here; the functions below follow its sections.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np

from probecascade.bounds import allowed_misses, smallest_sample
from probecascade.thresholds.balance import Balance
from probecascade.thresholds.betting import certified_dependent
from probecascade.thresholds.empirical import empirical
from probecascade.thresholds.firing import OFF, BoolArray, FloatArray, stacked
from probecascade.thresholds.problem import Certificate, Found, Problem, Sample, Unit, more_needed, pick, refused
from probecascade.thresholds.shape import IndexShape, ShapeLearner, learn_shape
from probecascade.thresholds.shrink import shrink

# Of a class, when there are catch targets but no teachers: read from the start, and certifies nothing.
_OPEN = 0.12
_CATCH_LOSS = 0.3  # of the successes: about what catching most of the doomed costs; only the gains depend on it
_HELD = 0.60  # of the doomed, when no teachers are given: they test the catch promises and shape nothing


def certified(problem: Problem) -> Found:
    """Thresholds with a certificate for each target, or the empirical ones where a target admits none.

    Independent episodes: keep by adaptive shrinking, catch on doomed episodes that shaped nothing, catch alone by
    one order statistic per target. Dependent ones: by the group promise on one episode per group, or by a
    betting bound on one value per group.
    """
    free: Sample | None = None
    single = problem
    if problem.dependent:
        found = certified_dependent(problem)
    else:
        if problem.sample.dependent:
            single, free = one_per_group(problem)
        if not 0 < single.sample.data.doomed < len(single.sample.group):
            found = refused(single, "one episode of each group, drawn at random, gives one class only")
        else:
            found = _keep(single, free) if problem.targets.keep else _catch_alone(single)
    if any(certificate.certified for certificate in found.certificates):
        return found
    return replace(found, thresholds=empirical(problem).thresholds)


def one_per_group(problem: Problem) -> tuple[Problem, Sample | None]:
    """The problem on one random episode of every group, and what else may be read freely.

    Where only keep is asked, that is every other episode of a group whose chosen one failed: such groups certify
    nothing. A random choice makes each group count once, whatever its size.
    """
    sample = problem.sample
    shuffled = problem.rng("draw").permutation(len(sample.group))
    chosen = np.sort(shuffled[np.unique(sample.group[shuffled], return_index=True)[1]])
    single = replace(problem, sample=sample.take(chosen))
    if problem.targets.catch:
        return single, None
    failed = np.zeros(int(sample.group.max()) + 1, dtype=np.bool_)
    failed[sample.group[chosen]] = sample.data.failed[chosen]
    rest = np.ones(len(sample.group), dtype=np.bool_)
    rest[chosen] = False
    return single, sample.take(rest & failed[sample.group])


def roles(problem: Problem) -> tuple[BoolArray, BoolArray]:
    """(n_episodes,) masks: successes open from the start, and doomed episodes held back for the catch tests."""
    failed, rng = problem.sample.data.failed, problem.rng("roles")
    none = np.zeros(len(failed), dtype=np.bool_)
    if problem.teachers is not None:
        return none, failed if problem.targets.catch else none
    if not problem.targets.catch:
        return none, none
    opened = pick(rng, ~failed, _OPEN)
    return opened, pick(rng, failed, _HELD)


def _keep(problem: Problem, free: Sample | None) -> Found:
    """Keep, and whatever catch targets stand beside it."""
    keep, data = problem.targets.keep, problem.sample.data
    assert keep is not None
    teachers = [part for part in (problem.teachers, free) if part is not None]
    opened, held = roles(problem)
    certifying = ~data.failed & ~opened
    m = int(certifying.sum())
    allowed = allowed_misses(m, 1 - keep, delta=problem.delta)
    if allowed < 0:
        found, delta = refused(problem), problem.delta
        more = more_needed(data.successes, _OPEN if opened.any() else 0.0, 1 - keep, delta)
        first = replace(found.certificates[0], among=m, missing=more, tested=True)
        apart = 0.0 if problem.teachers else 1 - _HELD
        rest = [
            replace(c, missing=more_needed(data.doomed, apart, 1 - c.target, delta)) for c in found.certificates[1:]
        ]
        return replace(found, certificates=(first, *rest))
    table = stacked([problem.sample.take(~held).data, *(part.data for part in teachers)])
    certify = np.zeros(len(table.failed), dtype=np.bool_)
    certify[: int((~held).sum())] = certifying[~held]
    open_ = ~table.failed & ~certify
    learner = ShapeLearner(table, table.failed | open_)
    steer = None
    if problem.targets.catch:
        steer = Balance(problem.targets.catch, loss=(allowed + 0.5) / m, tests=int(held.sum()), delta=problem.delta)
    region = shrink(learner, certify, open_, allowed, steer=steer)
    first = Certificate("keep", None, keep, True, m, allowed, region.inside, 0, problem.unit)
    catches = _catch_certificates(data.scores[held], region.thresholds, problem)
    return Found(region.thresholds, (first, *catches))


def _catch_certificates(doomed: FloatArray, thresholds: FloatArray, problem: Problem) -> list[Certificate]:
    """The catch targets, in order, on doomed episodes (n, n_gates) that did not shape the thresholds.

    The thresholds being fixed, the targets are tested in a fixed sequence, each at delta, up to the first that fails:
    a false one is given only if the first false one passes, so no correction is needed (Maurer et al. 1995).
    """
    n = len(doomed)
    standing = True
    certificates = []
    for gate, target in problem.targets.catch:
        fired = np.greater_equal(doomed[:, : gate + 1], thresholds[: gate + 1]).any(axis=1)
        missed = n - int(fired.sum())
        found = _certificate(gate, target, n, missed, problem.delta, standing, problem.unit)
        standing = found.certified
        certificates.append(found)
    return certificates


def _certificate(
    gate: int, target: Fraction, n: int, missed: int, delta: float, standing: bool, unit: Unit
) -> Certificate:
    """A catch target that `missed` of `n` certifying doomed episodes missed; not tested where none is left standing."""
    allowed = allowed_misses(n, 1 - target, delta=delta)
    certified = standing and missed <= allowed
    missing: int | None = 0
    if not certified:
        enough = smallest_sample(1 - target, delta=delta, misses=missed / n if n and allowed >= 0 else 0.0)
        missing = None if enough is None or missed <= allowed else max(1, enough - n)
    return Certificate("catch", gate, target, certified, n, max(allowed, 0), missed, missing, unit, standing)


def _catch_alone(problem: Problem) -> Found:
    """Catch without keep: one order statistic of the doomed for each target, each at its part of delta."""
    sample, targets = problem.sample, problem.targets.catch
    data = sample.data
    ends = [gate for gate, _ in targets]
    blocks = [list(range(start, end + 1)) for start, end in zip([0, *(e + 1 for e in ends)], ends, strict=False)]
    certifying, shape = data.failed, None
    if any(len(block) > 1 for block in blocks):  # else there is nothing to share out, and no shape to learn
        certifying, shape = _open_shape(problem)
    doomed = data.scores[certifying]
    n, delta = len(doomed), problem.delta / len(targets)
    thresholds = np.full(data.scores.shape[1], OFF)
    uncaught = np.ones(n, dtype=np.bool_)
    standing = True
    certificates = []
    for block, (gate, target) in zip(blocks, targets, strict=True):
        allowed = allowed_misses(n, 1 - target, delta=delta)
        thresholds[block] = _block(doomed[uncaught][:, block], max(allowed, 0), shape, block)
        uncaught &= ~np.greater_equal(doomed[:, block], thresholds[block]).any(axis=1)
        # After a target that is out of reach the thresholds before it are no longer those that the proof measures.
        found = _certificate(gate, target, n, int(uncaught.sum()), delta, standing, problem.unit)
        standing = found.certified
        certificates.append(found)
    return Found(thresholds, tuple(certificates))


def _open_shape(problem: Problem) -> tuple[BoolArray, IndexShape]:
    """The certifying doomed, and a shape learnt from all the rest."""
    data = problem.sample.data
    if problem.teachers is not None:
        return data.failed, learn_shape(problem.teachers.data, loss=_CATCH_LOSS)
    opened = pick(problem.rng("roles"), data.failed, _OPEN)
    rest = problem.sample.take(opened | ~data.failed).data
    return data.failed & ~opened, learn_shape(rest, loss=_CATCH_LOSS)


def _block(scores: FloatArray, allowed: int, shape: IndexShape | None, columns: list[int]) -> FloatArray:
    """Thresholds of one block of gates that leave at most `allowed` of these doomed episodes uncaught, if any do."""
    off = np.full(len(columns), OFF)
    if len(scores) <= allowed:
        return off
    own = shape.columns(columns) if shape is not None and len(columns) > 1 else None
    index = np.where(np.isnan(scores), -np.inf, scores) if own is None else own.index(scores)
    reach = np.sort(index.max(axis=1))[::-1]
    reach = reach[np.isfinite(reach)]
    if not reach.size:
        return off
    last = float(reach[min(len(scores) - allowed, reach.size) - 1])
    return np.array([last]) if own is None else own.cut(float(np.nextafter(last, -np.inf)))
