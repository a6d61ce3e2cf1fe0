from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from doubtful_runs import make_doubtful_run

from probecascade.errors import UsageError
from probecascade.evaluation import backtest_run, compare_triggers
from probecascade.policies import TriggerShare, fit_cascade, look_less
from probecascade.probes import LogisticFitter
from probecascade.store import Run

FITTER = LogisticFitter(strengths=(0.1,), folds=3)
OPTIONS = {"keep": "0.8", "gates": ("action:1", "part:1", "action:3"), "layers": (4,), "fitter": FITTER}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_doubtful_run(tmp_path_factory.mktemp("doubtful") / "run")


def test_shares_beside_gates_that_always_look(run: Run) -> None:
    always, half, quarter = compare_triggers(run, shares=(Fraction(1, 4), Fraction(1, 2)), **OPTIONS)
    assert [float(row.share) for row in (always, half, quarter)] == [1, 0.5, 0.25]
    assert always.looked.value == 1
    assert always.triggers == {}
    assert set(half.triggers) == {"action:1", "part:1", "action:3"}
    assert 0.35 < half.looked.value < 0.65
    assert 0.1 < quarter.looked.value < 0.4
    assert quarter.looks.value < half.looks.value < always.looks.value
    for gain in (always.caught_gain, always.kept_gain, always.saved_gain, always.looks_gain):
        assert (gain.value, gain.low, gain.high) == (0, 0, 0)
    for row in (half, quarter):
        assert row.caught.value == pytest.approx(always.caught.value + row.caught_gain.value)
        assert row.kept.value == pytest.approx(always.kept.value + row.kept_gain.value)
        assert row.saved.value == pytest.approx(always.saved.value + row.saved_gain.value)
        assert row.looks.value == pytest.approx(always.looks.value + row.looks_gain.value)
        assert row.certified
    assert half.record()["share"] == 0.5


def test_the_numbers_are_those_of_the_cascade_that_fit_would_store(run: Run) -> None:
    _, half = compare_triggers(run, shares=(Fraction(1, 2),), **OPTIONS)
    less = look_less(fit_cascade(run, **OPTIONS), run, TriggerShare.parse("entropy_mean:0.5"))
    outcome = backtest_run(less.cascade, run, "test")
    assert (half.caught, half.kept) == (outcome.caught, outcome.kept)
    assert half.saved == outcome.saved["tokens"].share
    assert half.promise == less.cascade.promise


def test_a_visit_after_the_abort_is_no_visit(run: Run) -> None:
    """A cascade that aborts nearly everything at its first gate hardly looks at the others."""
    (row,) = compare_triggers(run, **OPTIONS | {"keep": "0.02", "method": "empirical"}, shares=(Fraction(1),))
    assert row.looks.value < 1.6


@pytest.mark.parametrize("shares", [(), (Fraction(0),), (Fraction(3, 2),), (Fraction(1), Fraction(-1, 2))])
def test_shares_that_cannot_be_are_refused(run: Run, shares: tuple[Fraction, ...]) -> None:
    with pytest.raises(UsageError, match=r"the shares .* were given: give one or more above 0 and at most 1"):
        compare_triggers(run, keep="0.9", shares=shares)


def test_a_signal_that_does_not_exist_is_refused_before_anything_is_fitted(tmp_path: Path) -> None:
    empty = make_doubtful_run(tmp_path / "run", groups=1)
    with pytest.raises(UsageError, match="cannot read 'entropy'"):
        compare_triggers(empty, keep="0.9", signal="entropy")
