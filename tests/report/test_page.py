"""The page as text: nothing of a transcript is markup, nothing is asked of the network, all is named in words."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import pytest
from page_samples import HOSTILE, World

from probecascade.report import Chapter, Table
from probecascade.report.browser import as_script


class Elements(HTMLParser):
    """Every element with its attributes, and the text of headings and scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open and data.strip():
            self.texts.append((self._open[-1], data.strip()))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


@pytest.fixture(scope="module")
def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def elements(text: str) -> Elements:
    return Elements(text)


def test_it_opens_with_the_answer(elements: Elements, world: World) -> None:
    told = [text.replace("\u00a0", " ") for tag, text in elements.texts if tag in ("p", "li")]
    assert told[0] == world.sweep.verdicts[0]
    assert any(line.startswith("On ") and "the cascade catches" in line for line in told[:15])
    assert any("over the prompt alone" in line for line in told[:5])
    assert world.cascade.promise in told
    for sentence in world.sweep.verdicts:
        assert sentence in told


def test_hostile_texts_stay_texts(text: str, elements: Elements) -> None:
    assert len(elements.all("script")) == 2
    assert "onerror" not in re.sub(r'<script type="application/json".*?</script>', "", text, flags=re.DOTALL)
    data = next(content for tag, content in elements.texts if tag == "script" and content.startswith("{"))
    assert "<" not in data
    record = json.loads(data)
    assert HOSTILE.strip() in record["texts"]
    assert record["episodes"][0]["about"]["wording"] == HOSTILE


@pytest.mark.parametrize("value", [HOSTILE, "<!--<script>", "]]>", "a\u2029b", {"k<": [None, 1.5, "&lt;"]}])
def test_what_a_script_element_holds_comes_back(value: object) -> None:
    written = as_script(value)
    assert not set("<>&\u2028\u2029") & set(written)
    assert json.loads(written) == value


def test_half_a_character_does_no_harm() -> None:
    assert json.loads(as_script("\ud800")) == "?"


def test_nothing_is_asked_of_the_network(text: str, elements: Elements) -> None:
    for tag, attributes in elements.found:
        for name in ("src", "href", "srcset", "action", "poster"):
            value = attributes.get(name) or ""
            assert value.startswith(("#", "data:")) or not value, (tag, value)
    assert "@import" not in text
    assert "url(" not in text


def test_only_the_pages_own_script_may_run(text: str, elements: Elements) -> None:
    policy = next(e["content"] for e in elements.all("meta") if e.get("http-equiv") == "Content-Security-Policy")
    script = text.rpartition("<script>")[2].rpartition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy is not None
    assert f"script-src 'sha256-{digest}';" in policy
    assert "default-src 'none'" in policy


def test_headings_are_in_order_and_pictures_have_words(elements: Elements) -> None:
    levels = [int(tag[1]) for tag, _ in elements.found if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later - earlier <= 1 for earlier, later in pairwise(levels))
    images = elements.all("img")
    assert len(images) == 9
    assert all(len(image["alt"] or "") > 40 for image in images)
    ids = [attributes["id"] for _, attributes in elements.found if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_numbers_can_be_taken_from_the_page(elements: Elements, world: World) -> None:
    links = {link["download"]: link["href"] for link in elements.all("a") if "download" in link}
    for picture in world.material().pictures:
        href = links[f"{picture.name}.csv"]
        assert href is not None
        assert unquote(href.partition(",")[2]) == picture.csv()


@pytest.mark.slow
def test_it_is_the_same_page_every_time(text: str, world: World) -> None:
    assert world.material().page().html() == text


def test_a_limit_is_told(world: World) -> None:
    page = world.material(judged=False).page(limit=10)
    assert page.notes == ["The episode browser holds 10 of 161 episodes, evenly spaced over the run."]
    assert page.notes[0] in replace(page, chapters=()).html()
    assert page.cascade == []


def test_columns_without_anything_are_left_out_and_cells_break_before_their_interval(world: World) -> None:
    table = Table.of("t", ["row", "none", "some"], [["a", "–", "–"], ["b", "–", "0.8 [0.7, 0.9]"]])
    assert (table.titles, table.rows) == (["row", "some"], [["a", "–"], ["b", "0.8 [0.7, 0.9]"]])
    text = replace(world.material().page(), chapters=[Chapter("c", tables=[table])]).html()
    assert "<td>0.8 [0.7,\u00a00.9]</td>" in text


def test_what_counts_checkpoints_against_a_baseline_is_folded_away_with_it(world: World) -> None:
    low = "Of the prompt-only probe itself the AUROC lies below one half at 2 of these, as it may."
    record = {**world.sweep.record(), "verdicts": ["It is so.", "The probe beats the prompt-only probe at it.", low]}
    page = replace(world.material(), sweep=record).page()
    assert low not in page.verdicts
    assert page.against == record["verdicts"][1:]
