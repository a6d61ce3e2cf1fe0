"""The page in a real browser: nothing goes wrong, everything is seen, and the episodes can be read."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from chromium import Browser
from page_samples import HOSTILE, World

SELECTED = "document.querySelector('#episodes [aria-selected=true] b')?.textContent"
ROWS = "document.querySelectorAll('#episodes li').length"
TRANSCRIPT = "document.getElementById('transcript').innerText"


@pytest.fixture
def open_page(browser: Browser, page: Path) -> Browser:
    browser.open(page)
    return browser


def choose(browser: Browser, select: str, value: str) -> None:
    browser.run(
        f"(() => {{ const s = document.getElementById('{select}'); s.value = {json.dumps(value)}; "
        "s.dispatchEvent(new Event('change')); })()"
    )


def search(browser: Browser, text: str) -> None:
    browser.run("document.getElementById('find').select()")
    browser.ask("Input.insertText", text=text)


def test_no_error_and_every_figure_is_seen(open_page: Browser) -> None:
    sizes = open_page.run(
        "[...document.images].map(i => [i.complete && i.naturalWidth, i.getBoundingClientRect().width, "
        "i.getBoundingClientRect().height])"
    )
    assert len(sizes) == 9
    assert all(natural > 0 and width > 200 and height > 80 for natural, width, height in sizes)
    assert open_page.errors == []


def test_a_click_shows_the_transcript_with_its_scores(open_page: Browser) -> None:
    choose(open_page, "by-abort", "yes")
    open_page.click("#episodes li:nth-child(3)")
    text = open_page.run(TRANSCRIPT)
    assert open_page.run(SELECTED) in text
    assert re.search(r"held out 0\.\d\d", text)
    assert re.search(r"gate 0\.\d\d ≥ 0\.\d\d", text)
    assert re.search(r"The cascade aborts here, at \w+:\d: \d+ tokens", text)
    assert "Action: search[page 1]" in text
    assert open_page.run("document.querySelectorAll('#transcript svg circle').length") >= 2
    assert open_page.errors == []


def test_an_episode_that_fitted_the_probes_shows_no_score_of_theirs(open_page: Browser) -> None:
    choose(open_page, "by-part", "fit")
    open_page.click("#episodes li:nth-child(1)")
    text = open_page.run(TRANSCRIPT)
    assert "gate: not shown" in text
    assert "fitted the cascade's probes" in text
    assert "aborts here" not in text
    assert re.search(r"held out 0\.\d\d", text)


def test_hostile_transcripts_are_read_and_never_run(open_page: Browser) -> None:
    open_page.click("#episodes li:nth-child(1)")
    assert HOSTILE.partition("&amp;")[0] in open_page.run(TRANSCRIPT)
    assert open_page.run("document.querySelectorAll('#transcript img, #transcript script').length") == 0
    assert open_page.run("document.title") != "owned"
    assert open_page.errors == []


def test_filters_and_search_narrow_the_list(open_page: Browser) -> None:
    everyone = open_page.run(ROWS)
    assert everyone == 161
    choose(open_page, "by-outcome", "success")
    successes = open_page.run(ROWS)
    assert 0 < successes < everyone
    assert open_page.run("document.getElementById('count').textContent") == f"{successes} of 161 episodes"
    choose(open_page, "by-outcome", "")
    search(open_page, "TASK-7-")
    assert open_page.run(ROWS) == 1
    search(open_page, "no such")
    assert open_page.run(ROWS) == 0


def test_the_keyboard_is_enough(open_page: Browser) -> None:
    open_page.run("document.getElementById('episodes').focus()")
    open_page.key("ArrowDown")
    first = open_page.run(SELECTED)
    assert first == open_page.run("document.querySelector('#episodes li b').textContent")
    open_page.key("ArrowDown")
    assert open_page.run(SELECTED) not in (None, first)
    open_page.key("ArrowUp")
    assert open_page.run(SELECTED) == first
    open_page.key("End")
    last = open_page.run("document.querySelector('#episodes li:last-child b').textContent")
    assert open_page.run(SELECTED) == last
    assert last in open_page.run(TRANSCRIPT)
    visible = open_page.run(
        "(() => { const l = document.getElementById('episodes').getBoundingClientRect(), "
        "s = document.querySelector('#episodes [aria-selected=true]').getBoundingClientRect(); "
        "return s.top >= l.top - 1 && s.bottom <= l.bottom + 1; })()"
    )
    assert visible
    open_page.key("Enter")
    assert open_page.run("document.activeElement.id") == "transcript"


def test_a_phone_scrolls_one_way_only(browser: Browser, page: Path) -> None:
    browser.open(page, width=360, height=740)
    browser.click("#episodes li:nth-child(2)")
    widths = browser.run("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert widths[0] <= widths[1]
    clipped = browser.run(
        "[...document.querySelectorAll('p, li, h1, h2, h3, pre, .point')].filter(e => e.checkVisibility() && "
        "e.getBoundingClientRect().right > innerWidth + 1).map(e => e.textContent.slice(0, 40))"
    )
    assert clipped == []


def test_a_full_table_is_seen_whole_on_a_laptop(browser: Browser, world: World, tmp_path: Path) -> None:
    pairs = {"value": 0.812, "low": 0.756, "high": 0.871, "n": 99, "groups": 99, "n_pairs": 99}
    record = world.sweep.record()
    rows = [
        {**row, "pair_accuracy": pairs, "gains": {**row["gains"], "tfidf": row["gains"]["surface"]}}
        for row in record["selected"]
    ]
    path = tmp_path / "full.html"
    path.write_text(replace(world.material(), sweep={**record, "selected": rows}).page().html(), encoding="utf-8")
    browser.open(path, width=1200)
    assert browser.run("document.querySelector('.wide thead').rows[0].cells.length") == 9
    room = browser.run("[...document.querySelectorAll('.wide')].map(e => [e.scrollWidth, e.clientWidth])")
    assert all(wanted <= given for wanted, given in room), room


def test_on_paper_only_the_chosen_episode_is_left(open_page: Browser) -> None:
    open_page.ask("Emulation.setEmulatedMedia", media="print")
    try:
        seen = "['episodes', 'filters', 'browser'].map(id => document.getElementById(id).checkVisibility())"
        assert open_page.run(seen) == [False, False, False]
        open_page.run("document.querySelector('#episodes li').click()")
        assert open_page.run(seen) == [False, False, True]
        assert open_page.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    finally:
        open_page.ask("Emulation.setEmulatedMedia", media="")
    paper = open_page.pdf()
    assert paper.startswith(b"%PDF")
    assert len(re.findall(rb"/Type /Page\b", paper)) > 3


def test_dark_pages_keep_their_contrast(open_page: Browser) -> None:
    open_page.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    try:
        colours = open_page.run(
            "['color', 'backgroundColor'].map(k => getComputedStyle(document.body)[k].match(/\\d+/g).map(Number))"
        )
    finally:
        open_page.ask("Emulation.setEmulatedMedia", features=[])
    text, ground = (sum(colour) / 3 for colour in colours)
    assert text - ground > 150
