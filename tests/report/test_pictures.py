"""What the figures draw is what was counted, and the same numbers stand in their CSV files."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.patches import Rectangle
from page_samples import FEW, World

from probecascade.errors import DataError, UsageError
from probecascade.policies import Cascade
from probecascade.report import Judged, Material, Picture, export
from probecascade.report.layers import heat_map, reliability, trajectories
from probecascade.report.outcomes import lead_sentence, lead_time, leads, transfer_matrices


@pytest.fixture(scope="module")
def material(world: World) -> Material:
    return world.material()


def picture(material: Material, name: str) -> Picture:
    (found,) = [picture for picture in material.pictures if picture.name == name]
    return found


def test_the_figures_come_in_the_order_of_the_questions(material: Material, world: World) -> None:
    plain = ["auroc-by-layer", "auroc-by-round", "trajectories", "reliability"]
    judged = ["scores", "caught-by-gate", "saved-against-kept", "lead-time"]
    assert [p.name for p in material.pictures] == [*plain, *judged, "failure-modes"]
    assert [p.name for p in world.material(judged=False).pictures] == [*plain, "failure-modes"]


def test_the_heat_map_holds_every_cell(material: Material, world: World) -> None:
    found = picture(material, "auroc-by-layer")
    image = found.figure.axes[0].images[0].get_array()
    assert image is not None
    for row in world.sweep.cells:
        at = world.sweep.layers.index(row["layer"]), world.sweep.checkpoints.index(row["checkpoint"])
        assert image[at] == row["auroc"]["value"]
    assert [row["auroc"] for row in found.rows] == [row["auroc"]["value"] for row in world.sweep.cells]


def test_only_the_panel_of_the_chosen_probe_has_a_frame(world: World) -> None:
    record = world.sweep.record()
    other = [{**row, "probe": "lda"} for row in record["cells"]]
    found = heat_map({**record, "probes": ["logistic", "lda"], "cells": [*record["cells"], *other]})
    frames = [[p for p in axes.patches if isinstance(p, Rectangle)] for axes in found.figure.axes[:2]]
    assert [len(of) for of in frames] == [len(record["selected"]), 0]
    assert "the layer and the probe chosen most often" in found.caption


def test_gates_that_cannot_fire_are_drawn_as_off(world: World) -> None:
    gates = [replace(gate, threshold=1.25) for gate in world.cascade.gates[:1]]
    cascade = Cascade([*gates, *world.cascade.gates[1:]], provenance=world.cascade.provenance)
    judged = Judged.of(cascade, world.run, resampling=FEW)
    assert judged.thresholds.tolist() == [float("inf"), *world.cascade.thresholds.tolist()[1:]]


def test_rounds_show_probe_and_baselines_with_intervals(material: Material, world: World) -> None:
    rows = {(row["series"], row["checkpoint"]): row for row in picture(material, "auroc-by-round").rows}
    for row in world.sweep.baselines:
        drawn = rows[row["name"], row["checkpoint"]]
        assert (drawn["auroc"], drawn["auroc_low"]) == (row["auroc"]["value"], row["auroc"]["low"])
    labels = [text.get_text() for text in picture(material, "auroc-by-round").figure.legends[0].get_texts()]
    assert labels == ["probe on hidden states", "prompt only", "surface signals"]


def test_a_sweep_without_baselines_is_drawn_and_told_without_them(world: World) -> None:
    record = world.sweep.record()
    bare = {**record, "baselines": [], "selected": [{**row, "gains": {}} for row in record["selected"]]}
    material = Material(run=world.run, sweep=bare, scores=world.sweep.scores, modes=np.full(len(world.run), ""))
    legend = picture(material, "auroc-by-round").figure.legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["probe on hidden states"]
    assert not any("over the prompt" in sentence for sentence in material.page(limit=1).verdicts)
    assert [p.name for p in material.pictures][-1] == "reliability"  # no failure mode is known, so none is drawn


def test_trajectories_are_quartiles_of_either_class() -> None:
    failed = np.arange(20) < 10
    scores = {"prompt": np.full(20, np.nan), "action:1": np.arange(20) / 20, "action:2": np.full(20, np.nan)}
    scores["action:2"][:3] = 0.9
    rows = {(row["checkpoint"], row["class"]): row for row in trajectories(scores, failed).rows}
    assert rows["action:1", "failures"]["median"] == pytest.approx(0.225)
    assert rows["action:1", "successes"]["upper_quartile"] == pytest.approx(np.quantile(np.arange(10, 20) / 20, 0.75))
    assert rows["action:2", "failures"]["n"] == 3
    assert np.isnan(rows["action:2", "failures"]["median"])


def test_reliability_counts_failures_in_bins_of_equal_size() -> None:
    scores = np.repeat([0.2, 0.8], 40)
    failed = np.concatenate([np.arange(40) < 8, np.arange(40) < 32])
    found = reliability({"action:1": scores}, failed, np.arange(80), {"action:1": 0.0}, FEW)
    assert [row["n"] for row in found.rows] == [20] * 4
    assert np.mean([row["failed"] for row in found.rows[:2]]) == pytest.approx(0.2)
    assert np.mean([row["failed"] for row in found.rows[2:]]) == pytest.approx(0.8)


def test_lead_times_are_counted_from_the_gate_to_both_ends(world: World) -> None:
    judged = Judged.of(world.cascade, world.run, resampling=FEW)
    rows, episodes = leads(world.run, judged), world.run.episodes
    assert len(rows) == int((judged.first[judged.use] >= 0).sum())
    spent = {"action:1": 10, "part:1": 25, "action:3": 40}  # of every made-up episode, up to that token
    for row in rows:
        index = episodes.episode_id.tolist().index(row["episode"])
        assert row["tokens_to_end"] == episodes.tokens[index] - spent[row["gate"]]
        assert row["rounds_to_end"] == episodes.rounds[index] - {"action:1": 1, "part:1": 2, "action:3": 3}[row["gate"]]
        assert row["tokens_after_doomed"] == (spent[row["gate"]] - 25 if row["failed"] else None)
    failures = [row for row in rows if row["failed"]]
    before = sum(row["gate"] == "action:1" for row in failures)
    at = sum(row["gate"] == "part:1" for row in failures)
    assert f"{before} were aborted before that token, {at} at it and {len(failures) - before - at} after it" in (
        lead_sentence(rows)
    )
    assert len(lead_time(rows).figure.axes) == 4
    unknown = [{**row, "tokens_after_doomed": None, "rounds_after_doomed": None} for row in rows]
    assert len(lead_time(unknown).figure.axes) == 2


def test_modes_are_counted_and_their_catches_too(material: Material, world: World) -> None:
    assert material.judged is not None
    rows = picture(material, "failure-modes").rows
    assert sum(row["failed"] for row in rows) == int(world.run.episodes.failed[world.run.episodes.labelled].sum())
    caught = sum(row["caught"] * row["judged"] for row in rows if row["judged"])
    assert material.judged.result is not None
    assert round(caught) == material.judged.result.caught_count


def test_a_transfer_matrix_is_drawn_cell_by_cell() -> None:
    none = {"value": None, "low": None, "high": None}
    cells = [
        {"train": a, "test": b, "n": 9, "failed": 4, "auroc": {"value": v, "low": v, "high": v}, "surface": none,
         "kept": none, "caught": none}
        for a, b, v in (("x", "x", 0.9), ("x", "y", 0.6), ("y", "x", 0.7), ("y", "y", 0.8))
    ]  # fmt: skip
    matrix = {"checkpoint": "part:1", "kinds": ["x", "y"], "rows": ["x", "y"], "cells": cells}
    found = transfer_matrices({"matrices": [matrix], "verdicts": ["Travels."]})
    assert np.asarray(found.figure.axes[0].images[0].get_array()).tolist() == [[0.9, 0.6], [0.7, 0.8]]
    assert found.alt == "Travels."
    assert [row["auroc"] for row in found.rows] == [0.9, 0.6, 0.7, 0.8]


def test_names_are_drawn_as_they_are_written() -> None:
    none = {"value": None, "low": None, "high": None}
    kinds = ["$\\frac{a$", "half \ud800 \x1b[31m"]
    cells = [
        {"train": a, "test": b, "n": 9, "failed": 4, "auroc": none, "surface": none, "kept": none, "caught": none}
        for a in kinds
        for b in kinds
    ]
    matrix = {"checkpoint": "$\\bad{$", "kinds": kinds, "rows": kinds, "cells": cells}
    found = transfer_matrices({"matrices": [matrix], "verdicts": ["Travels."]})
    drawing = ElementTree.fromstring(found.drawn("svg"))  # a control would make it no XML
    assert drawing.tag.endswith("svg")
    assert found.drawn("png")
    assert "half \\ud800" in found.csv()


def test_files_hold_the_numbers_and_are_the_same_every_time(material: Material, tmp_path: Path) -> None:
    one = picture(material, "failure-modes")
    paths = export([one], tmp_path / "figures")
    assert [path.name for path in paths] == [f"failure-modes.{form}" for form in ("png", "pdf", "csv")]
    assert paths[0].read_bytes().startswith(b"\x89PNG")
    assert paths[1].read_bytes().startswith(b"%PDF")
    read = list(csv.DictReader(io.StringIO(paths[2].read_text())))
    assert [row["mode"] for row in read] == [row["mode"] for row in one.rows]
    assert [float(row["failed"]) for row in read] == [row["failed"] for row in one.rows]
    assert one.drawn("svg") == one.drawn("svg")
    with pytest.raises(UsageError, match="exists already"):
        export([one], tmp_path / "figures")


def test_every_figure_says_what_it_shows_and_has_numbers(material: Material) -> None:
    for found in material.pictures:
        assert len(found.alt) > 40, found.name
        assert found.caption.endswith("."), found.name
        lines = found.csv().splitlines()
        assert len(lines) == 1 + len(found.rows) > 1, found.name


def test_the_sweep_of_another_run_is_refused(world: World) -> None:
    scores = {name: values.copy() for name, values in world.sweep.scores.items()}
    scores["action:1"] = np.roll(scores["action:1"], 1)  # the episode without a label now has a score
    with pytest.raises(DataError, match="its scores at action:1 are of other episodes"):
        Material(run=world.run, sweep=world.sweep.record(), scores=scores, modes=np.full(len(world.run), ""))


def test_the_sweep_of_a_run_with_as_many_episodes_is_refused_too(world: World) -> None:
    scores = {name: values.copy() for name, values in world.sweep.scores.items()}
    here = ~np.isnan(scores["part:1"])
    scores["part:1"][here] = np.roll(scores["part:1"][here], 1)
    with pytest.raises(DataError, match="its scores at part:1 are of other episodes"):
        Material(run=world.run, sweep=world.sweep.record(), scores=scores, modes=np.full(len(world.run), ""))
