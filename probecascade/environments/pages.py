"""Pages of a wiki in a file of their own, beside the tasks: one page a line.

    {"title": "Ada", "sentences": ["Ada lives in Brosk."]}      or, whole,  {"title": "Ada", "text": "..."}

FEVER's own dump (`id`, `lines`) is read too. All pages are kept in memory.
"""

from __future__ import annotations

import html
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from probecascade.environments.fields import kind_of, list_of, text_of
from probecascade.environments.reading import read_records
from probecascade.environments.searching import Pages
from probecascade.episode import Paragraph
from probecascade.errors import DataError

# With the semicolon only: without it "R&D" and "?a=1&copy=2" would change.
_ENTITY = re.compile(r"&(?:#\d+|#[xX][0-9a-fA-F]+|[A-Za-z][A-Za-z0-9]*);")
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]*[A-Z0-9])")
_INITIAL = re.compile(r"(?:^|\s)(?:[A-Z]|Mr|Mrs|Ms|Dr|St|Jr|Sr|No|vs|Mt|Lt|Col|Gen)\.[\"')\]]*$")
_ESCAPES = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}", "-COLON-": ":"}


@dataclass(slots=True)
class Notes:
    """What reading one record brought to light.

    `faults` are sentences; `absent` are titles that the record's supporting facts name and its pages lack; `empty`
    counts sentences without text, `entities` texts whose HTML entities were read as characters.
    """

    faults: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    empty: int = 0
    entities: int = 0

    def clean(self, text: str) -> str:
        """The text without outer blanks and with its HTML entities as characters."""
        plain = _ENTITY.sub(lambda found: html.unescape(found[0]), text)
        self.entities += plain != text
        return plain.strip()


class PageFile:
    """Pages by title, and those near a text."""

    def __init__(self, pages: Mapping[str, Paragraph]) -> None:
        self.pages = pages

    @cached_property
    def paragraphs(self) -> tuple[Paragraph, ...]:
        """All of them, in the order of the file."""
        return tuple(self.pages.values())

    @cached_property
    def index(self) -> Pages:
        """All of them, ready to be searched."""
        return Pages(self.paragraphs)


def read_pages(path: str | os.PathLike[str]) -> PageFile:
    """Read a file of pages; of a title that is given twice the first page counts.

    Raises UsageError if it cannot be opened, DataError, naming the line, if a record is no page.
    """
    name = Path(path).name
    pages: dict[str, Paragraph] = {}
    for record in read_records(path):
        try:
            page = page_of(record.value, Notes()) if not record.problem else None
        except DataError as error:
            raise DataError(f"{name}, line {record.line}: {error}") from error
        if page is None:
            raise DataError(f"{name}, line {record.line}: {record.problem}")
        if page.title:
            pages.setdefault(page.title, page)
    if not pages:
        raise DataError(f"{name} holds no page; write one object with title and sentences a line")
    return PageFile(pages)


def page_of(record: object, notes: Notes) -> Paragraph:
    """A page in any of the forms that are read; FEVER's dump has one without a title. DataError for anything else."""
    if isinstance(record, dict) and "lines" in record and "title" not in record:
        numbered = [line.split("\t") for line in str(record["lines"]).split("\n")]
        sentences = [cells[1] if len(cells) > 1 else "" for cells in numbered]
        return paragraph_of(fever_title(str(record.get("id", ""))), sentences, notes)
    if isinstance(record, list | tuple) and len(record) == 2:
        title, body = record
    elif isinstance(record, dict):
        title = record.get("title")
        body = next((record[key] for key in _BODIES if key in record), None)
    else:
        raise DataError(f"a page is {kind_of(record)}; give an object with title and sentences")
    if isinstance(body, str):
        return paragraph_of(text_of(title, "'title'"), split_sentences(body), notes)
    if body is None:
        raise DataError("a page has no text; give it 'sentences' (a list) or 'text'")
    return paragraph_of(text_of(title, "'title'"), list_of(body, "'sentences'"), notes)


_BODIES = ("sentences", "text", "paragraph_text", "content")


def paragraph_of(title: str, sentences: Sequence[Any], notes: Notes) -> Paragraph:
    """A page with clean texts. The number of sentences stays as it is, so that an index still means the same one."""
    if not all(isinstance(sentence, str) for sentence in sentences):
        raise DataError(f"the page {title!r} holds a sentence that is no text; give a list of texts")
    cleaned = tuple(notes.clean(sentence) for sentence in sentences)
    notes.empty += sum(not sentence for sentence in cleaned)
    return Paragraph(notes.clean(title), cleaned)


def distinct(pages: Iterable[Paragraph], notes: Notes, *, passages: bool = False) -> tuple[Paragraph, ...]:
    """Pages with titles of their own: those of one title become one page, in order, and the notes say so.

    With `passages` that is how the set is made (several passages of one article) and no fault.
    """
    merged: dict[str, Paragraph] = {}
    for page in pages:
        before = merged.get(page.title)
        if before is None:
            merged[page.title] = page
            continue
        same = before.sentences[-len(page.sentences) :] == page.sentences
        if not same:
            merged[page.title] = Paragraph(page.title, before.sentences + page.sentences)
        if not passages:
            how = "is given twice and read once" if same else "has two texts, which are read as one page"
            notes.faults.append(f"the page {page.title!r} {how}")
    return tuple(merged.values())


def split_sentences(text: str) -> list[str]:
    """A text in sentences, by end marks before a capital or a digit; initials and the usual titles end none."""
    sentences: list[str] = []
    begin = 0
    for found in _SENTENCE_END.finditer(text):
        piece = text[begin : found.end()].strip()
        if piece and not _INITIAL.search(piece):
            sentences.append(piece)
            begin = found.end()
    return [*sentences, text[begin:].strip()]


def fever_title(written: str) -> str:
    """A page title as FEVER writes it ("Ada_-LRB-poet-RRB-") in plain characters."""
    for escape, sign in _ESCAPES.items():
        written = written.replace(escape, sign)
    return written.replace("_", " ").strip()
