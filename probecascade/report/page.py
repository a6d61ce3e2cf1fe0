"""One self-contained page: the answer in words, the figures with their numbers, and an episode browser."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from probecascade.report.browser import as_script
from probecascade.report.pictures import Picture

NOTHING = "–"
"""What a table shows where there is no number."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under titles; the first column names the row."""

    title: str
    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    @classmethod
    def of(cls, title: str, titles: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> Table:
        """Without the columns in which no row has anything."""
        kept = [i for i in range(len(titles)) if not i or any(row[i] != NOTHING for row in rows)]
        return cls(title, [titles[i] for i in kept], [[row[i] for i in kept] for row in rows], note)


@dataclass(frozen=True, slots=True)
class Chapter:
    """A heading with pictures and tables, in this order."""

    title: str
    pictures: Sequence[Picture] = ()
    tables: Sequence[Table] = ()
    text: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class BrowserWords:
    """What the episode browser says: how it is used, what can be searched, and what an episode's mode and part are."""

    hint: str = (
        "Choose an episode to read its transcript with the score at every checkpoint. Scores are P(failure) of probes "
        "that have not seen the episode's group."
    )
    find: str = "id or group"
    mode: str = "Failure mode"
    part: str = "Part in the cascade"


@dataclass(frozen=True, slots=True)
class Page:
    """All that the page says.

    verdicts: the answer, most important first; against: what is folded away below it; cascade: what a cascade comes
    to, if there is one. facts: name and value of what was looked at. episodes: of `browser.browser_record`. method:
    how the numbers were made. browser: its words.
    """

    title: str
    facts: Sequence[tuple[str, str]]
    verdicts: Sequence[str]
    chapters: Sequence[Chapter]
    episodes: Mapping[str, Any]
    method: Sequence[str]
    cascade: Sequence[str] = ()
    against: Sequence[str] = ()
    notes: Sequence[str] = ()
    browser: BrowserWords = BrowserWords()

    def html(self) -> str:
        """The page. It asks nothing of the network; what stands in a transcript is shown and never run."""
        import jinja2

        assets = files("probecascade.report").joinpath("assets")
        style, script, layout = (assets.joinpath(f"page.{kind}").read_text("utf-8") for kind in ("css", "js", "html"))
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
                                         lstrip_blocks=True)  # fmt: skip
        environment.filters |= {"unbroken": _unbroken, "cell": _cell}
        text = environment.from_string(layout).render(
            page=self,
            style=style,
            script=script,
            script_hash=f"'sha256-{digest}'",
            episodes=as_script(self.episodes),
            image=_image,
            download=_download,
        )
        return text.encode("utf-8", "backslashreplace").decode("utf-8")  # half of a character has no UTF-8


def _unbroken(sentence: str) -> str:
    """A sentence that no line breaks between a number and its sign."""
    return sentence.replace(" %", "\u00a0%")


def _cell(text: str) -> str:
    """A cell that may break before its interval, and nowhere inside it."""
    value, bracket, interval = text.partition(" [")
    return _unbroken(value) + bracket + interval.replace(" ", "\u00a0")


def _image(picture: Picture) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(picture.drawn("svg")).decode()


def _download(picture: Picture) -> str:
    return "data:text/csv;charset=utf-8," + quote(picture.csv())
