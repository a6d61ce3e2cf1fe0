"""The page of a study: the answer follows the intervals, every number can be taken away, transcripts tell verdicts."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chromium import Browser
from page_samples import HOSTILE

from probecascade.report import StudyMaterial
from probecascade.report.judged_useless import follow_sentences, gain_sentences, judged_transcript

REGIMES = ("clean", "persistent")
PUBLISHED = [{"model": "qwen3-8b", "split": "test300", "condition": "enforced_rule", "delta": 0.329, "low": 0.286,
              "high": 0.373, "mean6": 0.4739}]  # fmt: skip


def found(value: float | None, low: float | None = None, high: float | None = None, n: int = 40) -> dict[str, Any]:
    note = "nothing to measure" if value is None else ""
    return {"value": value, "low": low, "high": high, "n": n, "questions": 10, "skipped": 0, "note": note}


def details(delta: dict[str, Any], n_b: int = 25) -> dict[str, Any]:
    strata = [{"t": 3, "answered_a": 1, "n_a": 15, "answered_b": 1, "n_b": n_b}]
    rate = found(0.5, 0.4, 0.6)
    contrast = {"delta": delta, "strata": strata}
    pair = {"first": "own", "second": "lexical", "kappa": 0.25, "agreed": 0.75, "n": 8, "note": ""}
    judge = dict.fromkeys(("accuracy", "judged_useless", "judged_intact", "balanced"), rate)
    same = ("integration_index", "answer_rate_after_k", "answer_rate_failing", "mean6", "utility", "tool_calls")
    return {
        **dict.fromkeys((*same, "utility_with_verdicts"), rate),
        "episodes": 20,
        "questions": 10,
        "regimes": dict.fromkeys(REGIMES, 10),
        "delta": contrast,
        "delta_as_worded": contrast,
        "hazard": {0: rate, 1: found(0.7, 0.6, 0.8), 2: found(None, n=0)},
        "success": dict.fromkeys(REGIMES, rate),
        "answer_steps": {2: 3, 4: 5},
        "never_answered": 2,
        "verdicts": {"USELESS": 5, "USEFUL": 3, "other": 0, "none": 0},
        "judge": judge,
        "agreement": [pair],
        "beliefs": {},
    }


def group(condition: str, *given: Any) -> dict[str, Any]:
    return {"model": "m", "split": "", "condition": condition, "details": details(*given)}


def episode(condition: str, **more: Any) -> dict[str, Any]:
    return {
        "question_id": "q-1",
        "regime": "persistent",
        "condition": condition,
        "model": "m",
        "verdicts": ["USELESS", None],
        "actions": ["search", "search", "finish"],
        "injected": [True, False],
        "success": False,
        "outcome": "failure",
        "reason": "finished",
        "tokens": 10,
        "side_tokens": 4,
        "transcript": f"a\nObservation: {HOSTILE}\nb\nObservation: two\nc\nObservation: Finished.",
        **more,
    }


def compared(difference: dict[str, Any], measure: str = "mean6") -> dict[str, Any]:
    names = {"model": "m", "split": "", "condition": "enforced", "against": "none"}
    return {**names, "measure": measure, "difference": difference, "p_value": 0.01, "p_holm": 0.02}


@pytest.fixture(scope="module")
def material() -> StudyMaterial:
    groups = [
        group("enforced", found(0.3, 0.2, 0.4)),
        group("none", found(0.0, -0.1, 0.1)),
        group("budget", found(None, n=15), 0),
    ]
    record = {"groups": groups, "comparisons": [compared(found(0.1, 0.02, 0.2))], "faults": []}
    played = [episode("enforced"), episode("enforced", tokens=20), episode("none", success=True, outcome="success")]
    return StudyMaterial(record, PUBLISHED, "a source", played, 5, 0.05)


@pytest.fixture(scope="module")
def text(material: StudyMaterial) -> str:
    return material.page().html()


def test_the_answer_goes_by_the_interval_of_delta(material: StudyMaterial) -> None:
    told = follow_sentences(material.groups)
    assert told[0] == "Stopping follows the verdicts (Delta above 0) under enforced (+0.300 [+0.200, +0.400] n=40)."
    assert "not shown" in told[1]
    assert "none (+0.000" in told[1]
    assert "undefined" in told[2]
    assert "budget (n=15 and n=0)" in told[2]
    below = {"x": details(found(-0.3, -0.4, -0.1)), "y": details(found(0.5, 0.5, 0.5))}
    assert [sentence.split()[:3] for sentence in follow_sentences(below)] == [
        ["Stopping", "goes", "against"],
        ["Too", "little", "varies"],
    ]


@pytest.mark.parametrize(
    ("difference", "said"),
    [
        (found(0.1, 0.02, 0.2), "enforced gains success"),
        (found(-0.1, -0.2, -0.02), "enforced loses success"),
        (found(0.1, 0.0, 0.2), "enforced is not shown to change success"),
        (found(0.1, 0.1, 0.1), "too little variation"),
        (found(None, n=0), "undefined n=0 (nothing to measure)"),
    ],
)
def test_what_the_rule_gains_goes_by_the_interval(difference: dict[str, Any], said: str) -> None:
    (told,) = gain_sentences([compared(difference), compared(found(0.9, 0.8, 1.0), "delta")])
    assert said in told


def test_published_figures_are_marked_as_such(material: StudyMaterial) -> None:
    rows = list(csv.DictReader(io.StringIO(material.pictures[0].csv())))
    assert [(row["source"], row["name"]) for row in rows] == [
        ("measured", "enforced"),
        ("measured", "none"),
        ("measured", "budget"),
        ("published", "qwen3-8b test300 enforced_rule"),
    ]
    assert (rows[2]["value"], rows[2]["n"], rows[3]["value"]) == ("", "15", "0.329")


def test_every_figure_has_words_and_its_numbers(material: StudyMaterial, text: str) -> None:
    names = [picture.name for picture in material.pictures]
    assert names == ["delta", "hazard", "success", "answer-steps", "judges"]
    for picture in material.pictures:
        assert len(picture.alt) > 40
        assert picture.rows
        assert f'download="{picture.name}.csv"' in text
    hazard = material.pictures[1].rows
    assert [(row["run"], row["value"]) for row in hazard if row["name"] == "none"] == [(0, 0.5), (1, 0.7), (2, None)]
    steps = material.pictures[3].rows
    assert [(row["action"], row["episodes"], row["of"]) for row in steps[:3]] == [
        (2, 3, 10),
        (4, 5, 10),
        ("never", 2, 10),
    ]


def test_costs_are_means_of_what_the_records_hold(material: StudyMaterial) -> None:
    (table,) = material.chapters[-1].tables
    assert table.titles == ["condition", "episodes", "tokens", "tokens of side questions"]
    assert table.rows == [["m enforced", "2", "15.0", "4.0"], ["m none", "1", "10.0", "4.0"]]


def test_beliefs_are_shown_where_there_are_any(material: StudyMaterial) -> None:
    titles = [table.title for chapter in material.chapters for table in chapter.tables]
    assert "Beliefs" not in titles
    groups = [{**each, "details": dict(each["details"])} for each in material.record["groups"]]
    groups[1]["details"]["beliefs"] = {2: {"continuing": 0.5, "answering": 0.25, "n": 7}}
    stated = replace(material, record={**material.record, "groups": groups})
    (table,) = (table for chapter in stated.chapters for table in chapter.tables if table.title == "Beliefs")
    assert table.rows == [["none", "2", "0.500", "0.250", "7"]]


def test_verdicts_stand_beside_their_observations() -> None:
    told = judged_transcript(
        episode("none", transcript="a\nObservation: one\nb\nObservation: two\nc\nObservation: end")
    )
    assert told == (
        "a\nObservation [judged USELESS, an injected failure]: one\n"
        "b\nObservation [judged by nobody]: two\nc\nObservation: end"
    )
    unclear = judged_transcript(episode("none", transcript="a\nObservation: one\nObservation: said the page"))
    assert unclear.startswith("a\nObservation: one\n")
    assert unclear.endswith("in order: judged USELESS, an injected failure; judged by nobody.")


def test_a_limit_and_missing_transcripts_are_told(material: StudyMaterial) -> None:
    assert material.page(limit=1).notes == ["The episode browser holds 1 of 3 episodes, evenly spaced over the file."]
    bare = StudyMaterial(material.record, PUBLISHED, "a source", [{"question_id": "q"}], 5, 0.05)
    assert bare.page().notes == ["The file holds no transcripts, so no episode can be read here."]


def test_the_page_works_in_a_browser(browser: Browser, text: str, tmp_path: Path) -> None:
    path = tmp_path / "study.html"
    path.write_text(text, encoding="utf-8")
    browser.errors.clear()
    browser.open(path)
    assert browser.run("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
    browser.click("#episodes li:nth-child(1)")
    read = browser.run("document.getElementById('transcript').innerText")
    assert "Observation [judged USELESS, an injected failure]: " + HOSTILE.partition("&amp;")[0] in read
    assert "held out" not in read
    assert browser.run("document.getElementById('by-part').parentElement.innerText").startswith("Condition")
    assert browser.run("document.title") != "owned"
    assert browser.errors == []
