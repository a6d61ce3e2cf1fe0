"""Watching promises after deployment: sequential tests that may be looked at after every episode, forever.

Each test is a wager against "all is as promised": a fair or losing game while that is true, so that the capital
ever reaches 1 / `false_alarm` with probability at most `false_alarm`, over all time (Ville 1939). Nothing is
assumed about when one looks or stops.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from probecascade.errors import DataError, UsageError
from probecascade.thresholds.targets import TargetLike, parse_target

FloatArray = NDArray[np.float64]

PACES: FloatArray = np.array([0.0, 1e-4, 1e-3, 1e-2])
"""Shares of the capital that are spread anew over all bets before each episode; one portfolio plays each."""

ODDS: FloatArray = np.array([1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 8.0, 16.0])
"""By how much the odds of a miss exceed those allowed, in each bet of a rate's monitor; 1 bets nothing."""

_LINEAR: FloatArray = np.array([0.0, 0.3, -0.3, 0.9, -0.9, 0.0, 0.0])
_CURVED: FloatArray = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.9, -0.9])


def wager(capital: FloatArray, shares: FloatArray, pays: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Log capital and shares of the portfolios after one episode.

    capital: (..., n_paces), in logarithms; shares: (..., n_paces, n_bets), of each portfolio's capital in each bet,
    summing to 1; pays: (..., n_bets), what one unit in each bet becomes, at most 1 on average if the promise holds.
    Moving part of the stakes back costs little while nothing happens, and finds a change long after the start
    (Herbster and Warmuth 1998; the jumper of Vovk et al. 2021, "Retrain or not retrain").
    """
    pace = PACES[:, None]
    grown = ((1 - pace) * shares + pace / shares.shape[-1]) * pays[..., None, :]
    total = grown.sum(axis=-1)
    return capital + np.log(total), grown / total[..., None]


def log_wealth(capital: FloatArray) -> FloatArray:
    """Logarithm of the mean capital of the portfolios, (...,), from their logarithms (..., n_paces)."""
    top = capital.max(axis=-1)
    wealth: FloatArray = top + np.log(np.exp(capital - top[..., None]).mean(axis=-1))
    return wealth


def rate_pays(odds: float) -> FloatArray:
    """(2, n_bets): what each bet of a rate's monitor pays on an episode that is no miss, and on one that is.

    `odds` are the odds of a miss at the allowed rate q0; the bet on q1 > q0 pays the likelihood ratio, whose mean is
    at most 1 at every rate up to q0.
    """
    no_miss = (1 + odds) / (1 + ODDS * odds)
    return np.stack([no_miss, ODDS * no_miss])


def rank_pays(p: ArrayLike) -> FloatArray:
    """(..., n_bets): what each bet pays on rank p-values (...,), with mean 1 where they are uniform on [0, 1].

    Bets on a shift to either side, and on more or fewer values at both ends (the Legendre polynomials).
    """
    x = 2 * np.asarray(p, dtype=np.float64)[..., None] - 1
    pays: FloatArray = 1 + _LINEAR * x + _CURVED * (3 * x**2 - 1) / 2
    return pays


class _Monitor:
    """The capital of one wager, and its alarm, which stays once it was given."""

    kind: ClassVar[str]
    _counters: ClassVar[tuple[str, ...]]

    def __init__(self, false_alarm: float, n_bets: int) -> None:
        if not 0.0 < false_alarm < 1.0:
            raise UsageError(f"the false-alarm rate {false_alarm} is outside (0, 1): give a number such as 0.05.")
        self.false_alarm = false_alarm
        self._capital: FloatArray = np.zeros(len(PACES))
        self._shares: FloatArray = np.full((len(PACES), n_bets), 1 / n_bets)
        self._peak = 0.0

    @property
    def log_wealth(self) -> float:
        """Logarithm of the capital that one unit has become: the evidence against the promise so far."""
        return float(log_wealth(self._capital))

    @property
    def alarm(self) -> bool:
        """Whether the capital has ever reached 1 / `false_alarm`."""
        return self._peak >= -math.log(self.false_alarm)

    def _bet(self, pays: FloatArray) -> bool:
        self._capital, self._shares = wager(self._capital, self._shares, pays)
        self._peak = max(self._peak, self.log_wealth)
        return self.alarm

    def _settings(self) -> dict[str, Any]:
        return {"false_alarm": self.false_alarm}

    def state(self) -> dict[str, Any]:
        """Everything, as JSON values, for `resume`."""
        return {
            "kind": self.kind,
            "settings": self._settings(),
            "counters": {name: getattr(self, name) for name in self._counters},
            "capital": self._capital.tolist(),
            "shares": self._shares.tolist(),
            "peak": self._peak,
        }

    @classmethod
    def resume(cls, state: Mapping[str, Any]) -> Self:
        """The monitor whose `state()` this is, as if it had never stopped. DataError if it is no such state."""
        try:
            if state["kind"] != cls.kind:
                raise ValueError(f"it is that of the {state['kind']} monitor")
            monitor = cls(**state["settings"])
            capital, shares = np.asarray(state["capital"], np.float64), np.asarray(state["shares"], np.float64)
            if capital.shape != monitor._capital.shape or shares.shape != monitor._shares.shape:
                raise ValueError("its portfolios are not those of this version")
            for name in cls._counters:
                setattr(monitor, name, int(state["counters"][name]))
            monitor._capital, monitor._shares, monitor._peak = capital, shares, float(state["peak"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"the state cannot be resumed by the {cls.kind} monitor ({type(error).__name__}: {error}): "
                "give what its state() returned."
            ) from error
        return monitor


class _RateMonitor(_Monitor):
    """A share of episodes of one kind, watched through those of them with a known outcome."""

    _abort_is_miss: ClassVar[bool]
    _counters = ("passed", "aborted")

    def __init__(self, target: TargetLike, explore: float, false_alarm: float) -> None:
        super().__init__(false_alarm, len(ODDS))
        self.target: Fraction = parse_target(target, what=f"{self.kind} target")
        if self.target == 1:
            raise UsageError(f"a {self.kind} target of 1 is broken by the first miss: give a share below 1.")
        if not 0.0 < explore <= 1.0:
            raise UsageError(
                f"an exploration share of {explore} was given: without episodes that are let through at random, "
                "nothing is known of those that are aborted, so give the share in (0, 1] of `Explore`."
            )
        self.explore = explore
        self.passed = 0
        self.aborted = 0
        missed = float((1 - self.target) / self.target)
        self._pays = rate_pays(missed * explore if self._abort_is_miss else missed / explore)

    def update(self, would_abort: bool) -> bool:
        """Count one more episode of this kind whose outcome is known, and say whether the alarm is on.

        `would_abort`: whether a gate fired on it (it ran to its end because it was let through). DataError for
        anything but a boolean.
        """
        if not isinstance(would_abort, bool | np.bool_):
            raise DataError(f"{would_abort!r} is no boolean: say whether a gate fired on the episode.")
        self.aborted += int(would_abort)
        self.passed += int(not would_abort)
        return self._bet(self._pays[int(would_abort == self._abort_is_miss)])

    @property
    def _passed_share(self) -> float:
        """Estimated share of the episodes, aborted ones included, that no gate fires on; NaN before the first.

        Each one that was let through stands for 1 / `explore` of its kind (Horvitz and Thompson 1952).
        """
        counted = self.passed + self.aborted / self.explore
        return self.passed / counted if counted else math.nan

    def _settings(self) -> dict[str, Any]:
        return {self.kind: str(self.target), "explore": self.explore, **super()._settings()}


class KeepMonitor(_RateMonitor):
    """Tests, after every success, that at least `keep` of the episodes that would succeed meet no firing gate.

    Feed it every success: those that no gate fired on always have an outcome, and of the others the share
    `explore` that was let through at random. With a the share of would-be successes that a gate fires on, the odds
    of a firing one among those observed are explore * a / (1 - a). False alarms come with probability at most
    `false_alarm` over all time while every episode is kept with probability at least `keep` given those before it:
    feed one per group where episodes of a group depend on each other. UsageError on numbers outside (0, 1), or an
    exploration share outside (0, 1]. Sources: Ville 1939; Waudby-Smith and Ramdas 2024.
    """

    kind = "keep"
    _abort_is_miss = True

    def __init__(self, keep: TargetLike, explore: float, false_alarm: float = 0.05) -> None:
        super().__init__(keep, explore, false_alarm)

    @property
    def kept(self) -> float:
        """Estimated share of the would-be successes that no gate aborts; NaN before the first."""
        return self._passed_share


class CatchMonitor(_RateMonitor):
    """Tests, after every failure, that at least `catch` of the doomed episodes meet a firing gate.

    As `KeepMonitor`, of failures: the misses are those that no gate fired on, and they are always seen, while of
    those that would be aborted only the share `explore` is.
    """

    kind = "catch"
    _abort_is_miss = False

    def __init__(self, catch: TargetLike, explore: float, false_alarm: float = 0.05) -> None:
        super().__init__(catch, explore, false_alarm)

    @property
    def caught(self) -> float:
        """Estimated share of the doomed episodes that a gate fires on; NaN before the first."""
        return 1 - self._passed_share


class ExchangeabilityMonitor(_Monitor):
    """Tests, after every episode, that new episodes are like those of the calibration.

    Feed it one score of every episode, that of the first gate, which no abort hides; NaN (the gate was not reached)
    counts as lowest. `reference_scores` (n,) are the same gate's scores of the calibration episodes, never of those
    that fitted its probe. Each score's rank among reference and past, ties broken at random, is uniform and
    independent of the earlier ones while all are exchangeable; the wager is on ranks that are not. It says that
    something changed, in either direction, not that a promise is broken. Every score is kept, so the state
    grows with the stream.

    DataError on scores that are not one row of numbers, or infinite; UsageError on a negative seed or a false-alarm
    rate outside (0, 1). Source: the conformal test martingales of Vovk, Gammerman and Shafer,
    Algorithmic Learning in a Random World, second edition 2022.
    """

    kind = "exchangeability"
    _counters = ("seen",)

    def __init__(self, reference_scores: ArrayLike, seed: int = 0, false_alarm: float = 0.05) -> None:
        super().__init__(false_alarm, len(_LINEAR))
        if seed < 0:
            raise UsageError(f"seed is {seed}: give a whole number from 0.")
        reference = np.asarray(reference_scores, dtype=np.float64)
        if reference.ndim != 1:
            raise DataError(f"reference scores have shape {reference.shape}: give one score per episode.")
        self.seed = seed
        self.seen = 0
        self._sorted = sorted(_placed(score) for score in reference.tolist())

    def update(self, score: float) -> bool:
        """Count one more episode's score and say whether the alarm is on. DataError if it is infinite."""
        p = self.rank(score)
        insort(self._sorted, _placed(score))
        self.seen += 1
        return self._bet(rank_pays(p))

    def rank(self, score: float) -> float:
        """Share of reference, past and this score itself that lie above it, ties in part: the p-value of the next."""
        placed = _placed(score)
        low, high = bisect_left(self._sorted, placed), bisect_right(self._sorted, placed)
        above, ties = len(self._sorted) - high, high - low
        u = float(np.random.default_rng([self.seed, self.seen]).random())
        return (above + u * (ties + 1)) / (len(self._sorted) + 1)

    def _settings(self) -> dict[str, Any]:
        scores = [None if score == -math.inf else score for score in self._sorted]  # JSON has no infinity
        return {"reference_scores": scores, "seed": self.seed, **super()._settings()}


def _placed(score: float) -> float:
    """The score as it is sorted. DataError if it is infinite."""
    if math.isinf(score):
        raise DataError(f"a score is {score}: give finite scores, NaN where the gate was not reached.")
    return -math.inf if math.isnan(score) else float(score)
