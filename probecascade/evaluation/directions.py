"""The direction in the residual stream that a probe reads, and how alike the directions of several probes are."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve

from probecascade.errors import DataError
from probecascade.interfaces import Probe
from probecascade.policies.gates import MIN_CLASS
from probecascade.policies.taps import Tap
from probecascade.probes import CalibratedProbe, FittedProbe, LinearProbe, LogisticFitter, reads, signals_read
from probecascade.store import Run

Array = NDArray[np.float64]
GRADIENT_ROWS = 64
"""Episodes over which the input gradient of a probe that is not linear is averaged."""

_STEP = 1e-3  # of a column's standard deviation, by which it is moved to either side
_AT_EVEN_ODDS = 0.25  # p (1 - p), the curvature of the logistic loss
_NULL_DRAWS = 200
_NULL_SHARE = 0.95


@dataclass(frozen=True, eq=False)
class Direction:
    """Where P(failure) rises fastest.

    vector: (width,), of unit length. linear: it is the gradient of the log-odds, the same at every state; otherwise
    the mean input gradient of P(failure) over `episodes` states, and `agreement` is the mean cosine of the single
    gradients with it: near 1 the probe is as good as linear, near 0 one direction does not sum it up. slope: log-odds
    (linear) or P(failure) gained per unit of length along it.
    """

    vector: Array
    linear: bool
    slope: float
    agreement: float = 1.0
    episodes: int = 0


def probe_direction(probe: Probe, states: NDArray[Any] | None = None) -> Direction:
    """The direction that a probe on states reads.

    That of `single_direction` where there is one. Any other probe is differentiated numerically at up to
    `GRADIENT_ROWS` of `states` (n, width); rows with NaN are left out. DataError for a probe that reads more than
    states, that is not linear where there are no states to differentiate at, or that is flat.
    """
    found = single_direction(probe)
    if found is not None:
        return found
    probe = uncalibrated(probe)
    if states is None:
        raise DataError(
            f"a {type(probe).__name__} is not linear and has no direction of its own: "
            "give a run, over whose states its gradient is averaged."
        )
    rows = np.asarray(states, dtype=np.float64)
    rows = rows[np.isfinite(rows).all(axis=1)]
    if len(rows) < 2:
        raise DataError(f"the gradient of a probe is averaged over states, and {len(rows)} were given: give two.")
    chosen = rows[np.linspace(0, len(rows) - 1, min(len(rows), GRADIENT_ROWS)).astype(int)]
    gradients = _gradients(probe, chosen, _STEP * rows.std(axis=0))
    direction = _unit(gradients.mean(axis=0), linear=False)
    lengths = np.linalg.norm(gradients, axis=1)
    cosines = (gradients @ direction.vector)[lengths > 0] / lengths[lengths > 0]
    return dataclasses.replace(direction, agreement=float(cosines.mean()), episodes=len(chosen))


def single_direction(probe: Probe) -> Direction | None:
    """The direction that a probe on states has at every state alike; None where it has none, as of an MLP.

    A `LinearProbe` has weight / scale, and a probe with a `direction()` of its own (width,) that; a calibration keeps
    the order of scores and with it the direction. DataError for a probe that reads more than states.
    """
    more = reads_beyond_states(probe)
    if more:
        raise DataError(
            f"the probe reads {' and '.join(more)}, and a direction is one of states alone: "
            "choose a gate whose probe reads nothing else."
        )
    probe = uncalibrated(probe)
    own: Any = getattr(probe, "direction", None)
    if isinstance(probe, LinearProbe):
        return _unit(probe.weight / probe.scale, linear=True)
    if callable(own) and (found := own()) is not None:
        return _unit(np.asarray(found, dtype=np.float64), linear=True)
    return None


def reads_beyond_states(probe: Probe) -> list[str]:
    """What else this probe reads, out of checks, signals and text."""
    return sorted(reads(probe) & {"text", "checks"}) + (["signals"] if signals_read(probe, 0) else [])


def uncalibrated(probe: Probe) -> Probe:
    """The probe without the maps that calibrate its scores."""
    while isinstance(probe, CalibratedProbe):
        probe = probe.probe
    return probe


def random_directions(
    width: int, count: int, seed: int, states: NDArray[Any] | None = None, strength: float = 1.0
) -> Array:
    """`count` random directions of unit length, (count, width).

    With `states` (n, width) they are those of logistic probes on labels that say nothing, at this `strength` (C) of
    the standardised L2 penalty: one Newton step from zero on random labels. They have the shape that the covariance of
    the states and the penalty give to any probe. Without states they point anywhere.
    """
    rng = np.random.default_rng(seed)
    drawn = rng.normal(size=(count, width)) if states is None else _meaningless(_centred(states), count, strength, rng)
    return np.asarray(drawn / np.linalg.norm(drawn, axis=1, keepdims=True))


@dataclass(frozen=True, slots=True)
class Cosine:
    """How alike the directions of two probes are.

    raw: cosine in the residual stream. whitened: cosine after the states' covariance is made the identity, which is
    the correlation of the two probes' log-odds over states of that covariance (the mean of the covariances at the two
    taps). `*_null`: what 95 of 100 pairs of `random_directions`, one of each tap, stay below in absolute value.
    `n` counts states at both taps.
    """

    first: Tap
    second: Tap
    raw: float
    whitened: float
    raw_null: float
    whitened_null: float
    n: int


def neighbours(run: Run, tap: Tap) -> list[tuple[Tap, Tap]]:
    """Pairs of adjacent stored layers at the tap's checkpoint, then of adjacent checkpoints of its kind at its layer.

    A checkpoint with fewer than `MIN_CLASS` labelled episodes of a class is passed over.
    """
    name, layer = tap
    kind = name.partition(":")[0]
    layers = sorted(run.layers)
    names = [n for n in run.checkpoint_names if n.partition(":")[0] == kind and _populated(run, n)]
    pairs: list[tuple[Tap, Tap]] = []
    if _populated(run, name):
        pairs += [((name, a), (name, b)) for a, b in itertools.pairwise(layers)]
    return pairs + [((a, layer), (b, layer)) for a, b in itertools.pairwise(names)]


def choose_strength(run: Run, tap: Tap) -> float:
    """The strength (C) that cross-validation picks for a logistic probe at this tap."""
    return _fit(run, tap, LogisticFitter()).strength


def cosines(run: Run, pairs: Sequence[tuple[Tap, Tap]], strength: float, *, seed: int = 0) -> Iterator[Cosine]:
    """Fit a logistic probe at every tap of these pairs, on all labelled episodes, and compare the directions.

    All are fitted at one `strength` (C), since regularisation turns a direction too. Raises DataError and StoreError
    as fitting and reading do.
    """
    fitter = LogisticFitter(strengths=(strength,), folds=2)
    found: dict[Tap, Array] = {}
    for pair in pairs:
        for tap in pair:
            if tap not in found:
                found[tap] = probe_direction(_fit(run, tap, fitter).probe).vector
        yield _compare(run, pair, found, strength, seed)


def labelled_rows(run: Run, name: str) -> NDArray[np.bool_]:
    """Which rows of a checkpoint are of episodes with a label, (n,)."""
    return np.asarray(run.episodes.labelled[run.rows(name).episode])


def _fit(run: Run, tap: Tap, fitter: LogisticFitter) -> FittedProbe:
    use = labelled_rows(run, tap[0])
    episode = run.rows(tap[0]).episode[use]
    return fitter.fit(run.states(*tap)[use], run.episodes.failed[episode], run.episodes.group[episode])


def _populated(run: Run, name: str) -> bool:
    failed = run.episodes.failed[run.rows(name).episode[labelled_rows(run, name)]]
    return bool(min(failed.sum(), (~failed).sum()) >= MIN_CLASS)


def _compare(run: Run, pair: tuple[Tap, Tap], found: Mapping[Tap, Array], strength: float, seed: int) -> Cosine:
    a, b = found[pair[0]], found[pair[1]]
    clouds = [_centred(run.states(*tap)[labelled_rows(run, tap[0])]) for tap in pair]
    rng = np.random.default_rng(seed)
    random = [_meaningless(cloud, _NULL_DRAWS, strength, rng).T for cloud in clouds]
    raw_null = _columns(*random) / np.sqrt(_columns(random[0], random[0]) * _columns(random[1], random[1]))
    return Cosine(
        first=pair[0],
        second=pair[1],
        raw=float(a @ b),
        whitened=float(_whitened(clouds, a[:, None], b[:, None])[0]),
        raw_null=float(np.quantile(np.abs(raw_null), _NULL_SHARE)),
        whitened_null=float(np.quantile(np.abs(_whitened(clouds, *random)), _NULL_SHARE)),
        n=sum(len(cloud) for cloud in clouds),
    )


def _whitened(clouds: Sequence[Array], a: Array, b: Array) -> Array:
    """Cosines of the columns of a and b (d, m) in the mean of the covariances of these clouds of states, (m,)."""
    ab, aa, bb = (np.zeros(a.shape[1]) for _ in range(3))
    for cloud in clouds:
        on_a, on_b = cloud @ a, cloud @ b
        for total, (left, right) in zip((ab, aa, bb), ((on_a, on_b), (on_a, on_a), (on_b, on_b)), strict=True):
            total += _columns(left, right) / len(cloud)
    return np.asarray(ab / np.sqrt(aa * bb))


def _columns(left: Array, right: Array) -> Array:
    return np.asarray(np.einsum("ij,ij->j", left, right))


def _meaningless(cloud: Array, count: int, strength: float, rng: np.random.Generator) -> Array:
    """See `random_directions`; cloud: centred states (n, width)."""
    scale = cloud.std(axis=0)
    scale[scale == 0] = 1.0
    rows = cloud / scale
    hessian = np.eye(rows.shape[1]) + strength * _AT_EVEN_ODDS * (rows.T @ rows)
    weights = solve(hessian, rows.T @ rng.normal(size=(len(rows), count)), assume_a="pos")
    return np.asarray(weights.T / scale)


def _centred(states: NDArray[Any]) -> Array:
    rows = np.asarray(states, dtype=np.float64)
    return np.asarray(rows - rows.mean(axis=0))


def _gradients(probe: Probe, rows: Array, steps: Array) -> Array:
    """Central differences of P(failure) at each row, (n, width); 0 along columns that do not vary."""
    moving = np.flatnonzero(steps)
    gradients = np.zeros_like(rows)
    for i, row in enumerate(rows):
        both = np.repeat(row[None], 2 * len(moving), axis=0)
        both[np.arange(len(moving)), moving] += steps[moving]
        both[len(moving) + np.arange(len(moving)), moving] -= steps[moving]
        up, down = np.split(probe.score(both), 2)
        gradients[i, moving] = (up - down) / (2 * steps[moving])
    return gradients


def _unit(gradient: Array, *, linear: bool) -> Direction:
    length = float(np.linalg.norm(gradient))
    if not np.isfinite(length) or length == 0:
        raise DataError("the probe's score does not change with the state, so it has no direction: refit it.")
    return Direction(gradient / length, linear, length)
