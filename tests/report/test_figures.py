"""Figures and shares by gate: what they draw is what was counted, and nothing is overwritten unasked."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from probecascade.bounds import clopper_pearson
from probecascade.errors import UsageError
from probecascade.intervals import Resampling, share_interval
from probecascade.report import (
    Picture,
    caught_by_gate,
    save_figures,
    saved_against_kept,
    score_histograms,
    shares_by_gate,
)
from probecascade.thresholds import Backtest, Calibration, GateScores, calibrate
from probecascade.thresholds.calibration import judge
from probecascade.thresholds.operating import frontier

FEW = Resampling(resamples=100)
GATES = ("action:1", "part:1", "action:2")


@pytest.fixture(scope="module")
def data() -> GateScores:
    rng = np.random.default_rng(0)
    failed = np.arange(300) % 2 == 0
    scores = rng.normal(size=(300, 3)) + 1.5 * failed[:, None]
    after = np.tile([300.0, 200.0, 100.0], (300, 1))
    scores[::5, 2] = after[::5, 2] = np.nan
    return GateScores.check(scores, failed, after)


@pytest.fixture(scope="module")
def both(data: GateScores) -> Calibration:
    return calibrate(data.scores, data.failed, None, data.cost_after, catch={1: 0.2, 2: 0.3}, keep=0.9, gates=GATES)


@pytest.fixture(scope="module")
def result(data: GateScores, both: Calibration) -> Backtest:
    return both.evaluate(data.scores, data.failed, None, data.cost_after, resampling=FEW)


def labels(axes: Axes | Figure) -> list[str]:
    """The texts of the legend."""
    legend = axes.get_legend() if isinstance(axes, Axes) else axes.legends[0]
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def line(axes: Axes, label: str) -> tuple[np.ndarray, np.ndarray]:
    """What is drawn under the label that starts so."""
    handles, names = axes.get_legend_handles_labels()
    (handle,) = [h for h, name in zip(handles, names, strict=True) if name.startswith(label)]
    drawn = handle[0] if isinstance(handle, tuple) else handle
    return np.asarray(drawn.get_xdata(), dtype=float), np.asarray(drawn.get_ydata(), dtype=float)


def test_shares_are_those_of_the_back_test_with_exact_intervals(data: GateScores, result: Backtest) -> None:
    shares = shares_by_gate(data, result, resampling=FEW)
    for seen, share in zip(result.gates, shares, strict=True):
        assert share.caught.value == pytest.approx(seen.caught / data.doomed)
        assert share.kept.value == pytest.approx(seen.kept / data.successes)
        assert (share.caught.low, share.caught.high) == clopper_pearson(seen.caught, data.doomed)
        assert share.alive.value == pytest.approx((seen.alive_doomed + seen.alive_successes) / 300)
        alive = seen.alive_doomed + seen.alive_successes
        assert share.fired.n == alive
        assert share.fired.value == pytest.approx((seen.fired_doomed + seen.fired_successes) / alive)
    assert shares[-1].saved.value == pytest.approx(result.saved["tokens"].share.value)
    assert [s.saved.value for s in shares] == sorted(s.saved.value for s in shares)


def test_shares_of_groups_resample_whole_groups(data: GateScores, result: Backtest) -> None:
    groups = np.arange(300) // 30
    (share, *_) = shares_by_gate(data, result, groups, resampling=FEW)
    first = np.array(result.first)
    assert share.caught == share_interval(first == 0, data.failed, groups, FEW)
    assert share.caught.groups == 10


def test_gates_that_interleave_are_counted_in_the_order_they_come() -> None:
    """The second gate comes first, with more left to spend: what it aborts never comes to the first one."""
    scores, after = [[0.9, 0.9], [0.9, 0.1]], [[1.0, 2.0], [1.0, 2.0]]
    outcome = judge(np.array([0.5, 0.5]), GateScores.check(scores, np.array([True, False]), after))
    first, second = shares_by_gate(GateScores.check(scores, np.array([True, False]), after), outcome)
    assert (first.alive.value, second.alive.value) == (0.5, 1.0)
    assert (first.caught.value, second.caught.value) == (0.0, 1.0)
    assert (first.kept.value, second.kept.value) == (0.0, 0.0)
    assert (first.saved.value, second.saved.value) == (0.25, 0.75)
    for share, seen in zip((first, second), outcome.gates, strict=True):
        assert share.alive.value * 2 == seen.alive_doomed + seen.alive_successes


def test_caught_is_drawn_against_its_targets(data: GateScores, both: Calibration, result: Backtest) -> None:
    figure = caught_by_gate(both, data, result, resampling=FEW)
    (axes,) = figure.axes
    shares = shares_by_gate(data, result, resampling=FEW)
    np.testing.assert_allclose(line(axes, "doomed caught")[1], [100 * s.caught.value for s in shares])
    np.testing.assert_allclose(line(axes, "successes kept")[1], [100 * s.kept.value for s in shares])
    places, targets = line(axes, "target: doomed")
    np.testing.assert_allclose(places, [1, 2])
    np.testing.assert_allclose(targets, [20, 30])
    assert set(line(axes, "target: successes")[1]) == {90.0}
    assert f"doomed caught (n = {data.doomed})" in labels(figure)
    assert "(%)" in axes.get_ylabel()
    assert [tick.get_text() for tick in axes.get_xticklabels()] == [
        name if np.isfinite(t) else f"{name}\n(off)" for name, t in zip(GATES, both.thresholds, strict=True)
    ]
    drawn = [h for h, name in zip(*axes.get_legend_handles_labels(), strict=True) if name.startswith("doomed")]
    bars = drawn[0].lines[2][0].get_segments()
    np.testing.assert_allclose(bars[1][:, 1], [100 * shares[1].caught.low, 100 * shares[1].caught.high])


def test_the_frontier_passes_through_never_aborting_and_marks_the_choice(
    data: GateScores, both: Calibration, result: Backtest
) -> None:
    path = frontier(data)
    figure = saved_against_kept(path, data, result, resampling=FEW)
    (axes,) = figure.axes
    kept, saved = line(axes, "path shaped on other groups")
    assert (kept[-1], saved[-1]) == (100.0, 0.0)
    assert len(kept) == len(path.keeps) + 1
    at = next(i for i, keep in enumerate(path.keeps) if float(keep) == 0.9)
    fired = path.first[at] >= 0
    spent = data.cost_after[fired, path.first[at][fired]].sum()
    assert saved[at] == pytest.approx(100 * spent / (300 * 300))
    assert kept[at] == pytest.approx(100 * (~fired[~data.failed]).mean())
    x, y = line(axes, "chosen thresholds")
    assert (x[0], y[0]) == pytest.approx((100 * result.kept.value, 100 * result.saved["tokens"].share.value))
    assert any("doomed caught" in text for text in labels(figure))
    assert "%" in axes.get_xlabel()
    assert "%" in axes.get_ylabel()


def test_histograms_hold_every_score_and_the_threshold(data: GateScores, both: Calibration) -> None:
    figure = score_histograms(both, data)
    assert [axes.get_title() for axes in figure.axes] == list(GATES)
    for gate, axes in enumerate(figure.axes):
        here = ~np.isnan(data.scores[:, gate])
        assert labels(axes)[0] == f"doomed (n = {(here & data.failed).sum()})"
        assert labels(axes)[1] == f"successes (n = {(here & ~data.failed).sum()})"
        for steps in axes.patches:
            assert steps.get_data().values.sum() == pytest.approx(100)
        threshold = both.thresholds[gate]
        if np.isfinite(threshold):
            assert set(line(axes, "fires from")[0]) == {threshold}


def test_odd_gates_are_drawn_too() -> None:
    """Off, equal scores alone, heavy tails, reached by nobody."""
    rng = np.random.default_rng(1)
    failed = np.arange(200) % 2 == 0
    scores = np.stack([-1.0 * failed, np.zeros(200), rng.standard_cauchy(200) + failed, np.full(200, np.nan)], axis=1)
    made = calibrate(scores, failed, keep=0.8, method="empirical")
    figure = score_histograms(made, GateScores.check(scores, failed))
    assert labels(figure.axes[0])[-1] == "off: never fires"
    assert figure.axes[3].texts[0].get_text() == "no episode reached this gate"
    low, high = figure.axes[2].get_xlim()
    assert high - low < np.ptp(scores[:, 2])


def test_series_differ_by_more_than_colour(data: GateScores, both: Calibration, result: Backtest) -> None:
    (axes,) = caught_by_gate(both, data, result, resampling=FEW).axes
    styles = {(h[0].get_marker(), h[0].get_linestyle()) for h in axes.containers}
    assert len(styles) == len(axes.containers) == 2
    panel = score_histograms(both, data).axes[0]
    assert len({steps.get_linestyle() for steps in panel.patches}) == 2


@pytest.mark.parametrize("form", ["png", "svg"])
def test_figures_are_saved_and_never_overwritten_unasked(
    data: GateScores, both: Calibration, tmp_path: Path, form: str
) -> None:
    arrays = (both, data.scores, data.failed, None, data.cost_after)
    paths = save_figures(*arrays, directory=tmp_path / "new" / "folder", form=form, resampling=FEW)
    assert sorted(path.name for path in paths) == [
        f"{name}.{form}" for name in ("caught-by-gate", "saved-against-kept", "scores")
    ]
    start = b"\x89PNG" if form == "png" else b"<?xml"
    assert all(path.read_bytes().startswith(start) for path in paths)
    paths[0].write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        save_figures(*arrays, directory=tmp_path / "new" / "folder", form=form, resampling=FEW)
    assert paths[0].read_text() == "mine"
    save_figures(*arrays, directory=tmp_path / "new" / "folder", form=form, overwrite=True, resampling=FEW)
    assert paths[0].read_bytes().startswith(start)


def test_a_gate_whose_name_looks_like_a_formula_is_drawn(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    failed = np.arange(200) % 2 == 0
    scores = rng.normal(size=(200, 1)) + failed[:, None]
    made = calibrate(scores, failed, keep=0.8, method="empirical", gates=["$\\frac{a$"])
    assert len(save_figures(made, scores, failed, directory=tmp_path, resampling=FEW)) == 3


def test_too_few_groups_for_a_frontier_leave_it_out(data: GateScores, both: Calibration, tmp_path: Path) -> None:
    paths = save_figures(
        both, data.scores, data.failed, np.zeros(300), data.cost_after, directory=tmp_path, resampling=FEW
    )
    assert sorted(path.name for path in paths) == ["caught-by-gate.png", "scores.png"]


def test_what_cannot_be_written_is_refused(data: GateScores, both: Calibration, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the format is 'bmp': give one of png, svg, pdf"):
        save_figures(both, data.scores, data.failed, directory=tmp_path, form="bmp")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written to"):
        save_figures(both, data.scores, data.failed, directory=tmp_path / "file", resampling=FEW)


def test_without_matplotlib_the_extra_is_named(
    data: GateScores, both: Calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UsageError, match=r'pip install "probecascade\[plot\]"'):
        save_figures(both, data.scores, data.failed, directory=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("error")
def test_names_in_signs_that_the_font_lacks_are_drawn_without_a_warning(data: GateScores, tmp_path: Path) -> None:
    names = ("行动:1", "部分:1", "🙂")
    found = calibrate(data.scores, data.failed, None, data.cost_after, keep=0.9, gates=names)
    arrays = (found, data.scores, data.failed, None, data.cost_after)
    for form in ("png", "svg", "pdf"):
        for path in save_figures(*arrays, directory=tmp_path / form, form=form, resampling=FEW):
            assert path.stat().st_size > 1000
    figure = caught_by_gate(found, data, found.seen, resampling=FEW)
    picture = Picture("p", "t", "a", "c", figure, [{"gate": name} for name in names])
    assert len(picture.drawn("png")) > 1000
    assert "行动:1" in picture.csv()
