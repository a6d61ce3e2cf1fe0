"""How a search finds a page: by title, by the closest title, or by BM25.

`closest` is the rule of arXiv 2610.06191: the exact title, else the title most like what was asked (difflib's ratio,
if above 0.3), else the page whose text shares most words with it. `bm25` takes the exact title, else the page of the
highest BM25 score over title and text (library `bm25s`).
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any, Literal

from probecascade.episode import Paragraph
from probecascade.errors import DataError

Search = Literal["title", "closest", "bm25"]

MATCHED_CHARACTERS = 200
"""Longest piece of a search that is compared with titles and texts."""

_ALIKE = 0.3  # ratio above which a title counts as meant
_WORD = re.compile(r"\w+")


def fold(text: str) -> str:
    """Without differences of case, blanks and Unicode form."""
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


class Pages:
    """The pages of one task, ready to be searched. Raises DataError if two have the same title."""

    def __init__(self, paragraphs: tuple[Paragraph, ...]) -> None:
        self.paragraphs = paragraphs
        self.exact: dict[str, Paragraph] = {}
        self.folded: dict[str, Paragraph] = {}
        for page in paragraphs:
            if page.title in self.exact:
                raise DataError(f"two pages are titled {page.title!r}; give each page of a task its own title")
            self.exact[page.title] = page
            self.folded.setdefault(fold(page.title), page)

    def titled(self, asked: str) -> Paragraph | None:
        """The page of that title; one in the very spelling wins over one in another case."""
        return self.exact.get(asked.strip()) or self.folded.get(fold(asked))

    def find(self, asked: str, search: Search) -> Paragraph | None:
        """The page that a search shows, None if there is none."""
        page = self.titled(asked)
        if page is not None or search == "title":
            return page
        query = fold(asked)[:MATCHED_CHARACTERS]
        return self._closest(query) if search == "closest" else self._ranked(query)

    def similar(self, asked: str, n: int) -> list[str]:
        """At most n titles that are much like what was asked, best first."""
        close = difflib.get_close_matches(fold(asked), list(self.folded), n=n)
        return [self.folded[key].title for key in close]

    def near(self, text: str, n: int) -> list[Paragraph]:
        """At most n pages of the highest BM25 scores above 0, best first."""
        words = sorted(set(_words(text)) & self._vocabulary)
        if not words:
            return []
        scores = self._bm25.get_scores(words)
        best = sorted(range(len(self.paragraphs)), key=lambda i: (-scores[i], i))[:n]
        return [self.paragraphs[i] for i in best if scores[i] > 0]

    def _closest(self, query: str) -> Paragraph | None:
        ratios = {key: difflib.SequenceMatcher(None, query, key).ratio() for key in self.folded}
        best = max(ratios, key=lambda key: ratios[key], default=None)
        if best is not None and ratios[best] > _ALIKE:
            return self.folded[best]
        asked = set(_words(query))
        shared = [len(asked & words) for words in self._words_of]
        most = max(shared, default=0)
        return self.paragraphs[shared.index(most)] if most else None

    def _ranked(self, query: str) -> Paragraph | None:
        found = self.near(query, 1)
        return found[0] if found else None

    @cached_property
    def _words_of(self) -> list[set[str]]:
        return [set(_words(f"{page.title} {page.text}")) for page in self.paragraphs]

    @cached_property
    def _vocabulary(self) -> set[str]:
        return set().union(*self._words_of)

    @cached_property
    def _bm25(self) -> Any:
        from bm25s import BM25

        index = BM25()
        index.index([_words(f"{page.title} {page.text}") for page in self.paragraphs], show_progress=False)
        return index


@lru_cache(maxsize=512)
def pages_of(paragraphs: tuple[Paragraph, ...]) -> Pages:
    """The pages, indexed once for all episodes of a task."""
    return Pages(paragraphs)


def _words(text: str) -> Sequence[str]:
    return _WORD.findall(text.casefold())
