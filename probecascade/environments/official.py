"""Records of public question sets, as their official files have them, read as tasks.

Sources: https://hotpotqa.github.io, https://github.com/Alab-NII/2wikimultihop, https://github.com/stonybrooknlp/musique,
https://allenai.org/data/strategyqa, https://fever.ai and Press et al. 2022 (Bamboogle). Every task has the attributes
`set` and, where the record tells them, `type`, `level`, `gold_titles` (pages that hold the answer) and
`supporting_facts` ([title, index of the sentence] pairs whose sentence is in the task's pages).
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from probecascade.environments.fields import kind_of, list_of, text_of
from probecascade.environments.pages import Notes, PageFile, distinct, fever_title, page_of, paragraph_of
from probecascade.environments.scoring import verdict
from probecascade.episode import Paragraph, Part, Task
from probecascade.errors import DataError

Fields = Mapping[str, Any]

FEVER_PAGES = 10
"""Pages of a FEVER claim whose record names no distractors: evidence first, then those most like the claim."""

_QUESTION_KEYS = (
    *("id", "_id", "qid", "task_id", "group", "question", "answer", "answers", "answer_aliases", "aliases"),
    *("paragraphs", "context", "pages", "supporting_facts", "type", "level"),
)

CLAIM = "Claim: {claim} Finish with SUPPORTS, REFUTES or NOT ENOUGH INFO."
"""How a claim is put to the agent."""


def hotpotqa(record: Fields, notes: Notes, pages: PageFile | None) -> Task:
    """A record of the official HotpotQA layout, distractor or fullwiki, with any number of paragraphs."""
    return _with_context(record, notes, "hotpotqa")


def hotpotqa_columns(record: Fields, notes: Notes, pages: PageFile | None) -> Task:
    """A HotpotQA record as Hugging Face keeps it: columns inside `context` and `supporting_facts`."""
    context = _columns(record["context"], ("title", "sentences"), "'context'")
    facts = _columns(record.get("supporting_facts") or {}, ("title", "sent_id"), "'supporting_facts'")
    return _with_context({**record, "context": context, "supporting_facts": facts}, notes, "hotpotqa")


def two_wiki(record: Fields, notes: Notes, pages: PageFile | None) -> Task:
    """A 2WikiMultiHopQA record: the HotpotQA layout with `evidences`."""
    return _with_context(record, notes, "2wikimultihopqa")


def musique(record: Fields, notes: Notes, pages: PageFile | None) -> Task:
    """A MuSiQue record. Paragraphs of one title are passages of one article and become one page.

    All sentences of a supporting paragraph count as supporting, since the set marks no sentences.
    """
    passages, facts = [], []
    before: dict[str, int] = {}
    for item in list_of(record["paragraphs"], "'paragraphs'"):
        page = page_of(item, notes)
        start = before.get(page.title, 0)
        if isinstance(item, dict) and item.get("is_supporting"):
            facts += [[page.title, start + n] for n in range(len(page.sentences))]
        before[page.title] = start + len(page.sentences)
        passages.append(page)
    hops = record.get("question_decomposition")
    kind = {"type": f"{len(hops)}hop"} if isinstance(hops, list) and hops else {}
    if record.get("answerable") is False:
        notes.faults.append("the question is marked as not answerable from its paragraphs")
    answers = (*_answers(record, notes), *_aliases(record, notes))
    return _task(record, notes, answers, distinct(passages, notes, passages=True), facts, {"set": "musique", **kind})


def strategyqa(record: Fields, notes: Notes, pages: PageFile | None) -> Task:
    """A StrategyQA record; its answer is yes or no.

    The set names no paragraphs in the question file, so its one page is about the record's term: the description
    and the facts that lead to the answer, which are the supporting sentences.
    """
    facts = record.get("facts") or []
    about = record.get("description")
    told = [f"{record['term']}: {about}."] if isinstance(about, str) and about.strip() else []
    page = paragraph_of(text_of(record["term"], "'term'"), [*told, *list_of(facts, "'facts'")], notes)
    supporting = [[page.title, n] for n in range(len(told), len(page.sentences))]
    shared = pages.paragraphs if pages else ()
    answers = _answers(record, notes)
    if answers[0].lower() not in ("yes", "no"):
        raise DataError(f"'answer' is {answers[0]!r}; a StrategyQA answer is true or false, yes or no")
    return _task(record, notes, answers, distinct((page, *shared), notes), supporting, {"set": "strategyqa"})


def bamboogle(record: Fields, notes: Notes, pages: PageFile | None) -> Task:
    """A Bamboogle record: a question and an answer. Its pages are those of the pages file."""
    renamed = {"question": record["Question"], "answer": record.get("Answer")}
    return _task(renamed, notes, _answers(renamed, notes), pages.paragraphs if pages else (), [], {"set": "bamboogle"})


def fever(record: Fields, notes: Notes, pages: PageFile | None) -> Task:
    """A FEVER claim. Its pages are those in the record or the pages file that it names, and distractors.

    Distractors are the titles that the record lists or, failing that, pages of the file most like the claim, up to
    `FEVER_PAGES` in all, so that a claim without evidence has as many pages as one with it.
    """
    claim = notes.clean(text_of(record["claim"], "'claim'"))
    label = verdict(record["label"]) if isinstance(record.get("label"), str) else ""
    if not label:
        given = f"is {record['label']!r}" if record.get("label") else "is missing"
        raise DataError(f"'label' {given}; give SUPPORTS, REFUTES or NOT ENOUGH INFO")
    sets = fever_evidence(record)
    named = list(dict.fromkeys(title for group in sets for title, _ in group))
    found = {page.title: page for page in (page_of(item, notes) for item in _listed(record, "evidence_pages"))}
    if pages:
        for title in named:
            if title in pages.pages:
                found.setdefault(title, pages.pages[title])
    facts = _listed(record, "evidence_used") or [list(pair) for pair in _covered(sets, found)]
    lacking = [fact[0] for fact in facts if isinstance(fact, list) and fact and fact[0] not in list(found)]
    if lacking and (found or pages):
        notes.faults.append(f"the page {lacking[0]!r} of the claim's evidence is not at hand")
    found.update((page.title, page) for page in _distractors(record, claim, found, pages, notes))
    group = record.get("group") or (named[0] if named else str(record.get("id", claim)))
    facts_of: dict[str, Any] = {"set": "fever", "label": label}
    if record.get("page_vintage"):
        facts_of["page_vintage"] = record["page_vintage"]
    # in order of title, so that the place of a page says nothing
    ordered = tuple(sorted(found.values(), key=lambda page: page.title))
    asked = {"id": record.get("id"), "question": CLAIM.format(claim=claim), "group": group}
    return _task(asked, notes, (label,), ordered, facts, facts_of)


def questions(record: Fields, notes: Notes, pages: PageFile | None) -> Task:
    """A record of a user's own: `question`, `answer` (or `answers`) and, if they like, `paragraphs`.

    A paragraph is `{"title", "sentences" or "text"}` or `[title, sentences or text]`. `id`, `group`, `type`, `level`
    and `supporting_facts` are read where they are given; without a group, equal questions are one group.
    """
    for key in record:
        meant = difflib.get_close_matches(key, _QUESTION_KEYS, n=1, cutoff=0.85)
        if meant and key not in _QUESTION_KEYS:
            notes.faults.append(f"the key {key!r} is not read; did you mean {meant[0]!r}?")
    given: Any = next((record[key] for key in ("paragraphs", "context", "pages") if record.get(key)), [])
    own = distinct([page_of(item, notes) for item in list_of(given, "'paragraphs'")], notes)
    facts = list_of(record.get("supporting_facts") or [], "'supporting_facts'")
    question = text_of(record["question"], "'question'")
    grouped = {"group": _hashed(question), **record}
    answers = (*_answers(record, notes), *_aliases(record, notes))
    return _task(grouped, notes, answers, own or (pages.paragraphs if pages else ()), facts, {"set": "questions"})


def _with_context(record: Fields, notes: Notes, name: str) -> Task:
    pages = [page_of(item, notes) for item in list_of(record["context"], "'context'")]
    facts = list_of(record.get("supporting_facts") or [], "'supporting_facts'")
    answers = (*_answers(record, notes), *_aliases(record, notes))
    return _task(record, notes, answers, distinct(pages, notes), facts, {"set": name})


def _task(
    record: Fields,
    notes: Notes,
    answers: tuple[str, ...],
    pages: tuple[Paragraph, ...],
    facts: Iterable[Any],
    attributes: dict[str, Any],
) -> Task:
    question = notes.clean(text_of(record.get("question"), "'question'"))
    identity = next((record[key] for key in ("_id", "id", "qid", "task_id") if record.get(key) is not None), None)
    task_id = _hashed(question) if identity is None else text_of(str(identity), "the id")
    for key in ("type", "level"):
        if isinstance(record.get(key), str) and record[key].strip():
            attributes[key] = record[key].strip()
    gold, supporting = _supporting(facts, pages, notes)
    if gold:
        attributes |= {"gold_titles": gold, "supporting_facts": supporting}
    group = record.get("group")
    return Task(task_id, str(group) if group else task_id, (Part(question, answers),), pages, attributes)


def _supporting(facts: Iterable[Any], pages: tuple[Paragraph, ...], notes: Notes) -> tuple[list[str], list[list[Any]]]:
    """Titles that the facts name, and the facts whose sentence is there; the others are noted."""
    sizes = {page.title: len(page.sentences) for page in pages}
    gold: dict[str, None] = {}
    there: list[list[Any]] = []
    for fact in facts:
        if not isinstance(fact, list | tuple) or len(fact) != 2 or not isinstance(fact[0], str):
            notes.faults.append(f"a supporting fact is {kind_of(fact)}, not a title and the number of a sentence")
            continue
        title, number = notes.clean(fact[0]), fact[1]
        gold[title] = None
        if title not in sizes:
            continue
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < sizes[title]:
            notes.faults.append(
                f"the supporting fact {number!r} of the page {title!r} is not one of its {sizes[title]} sentences"
            )
        elif [title, number] not in there:
            there.append([title, number])
    notes.absent += [title for title in gold if title not in sizes]
    return list(gold), there


def _answers(record: Fields, notes: Notes) -> tuple[str, ...]:
    given = record.get("answer", record.get("answers"))
    if given is None:
        raise DataError("the record has no answer; give 'answer', a text or a list of texts that count as right")
    listed = given if isinstance(given, list) else [given]
    answers = tuple(_answer(item, notes) for item in listed)
    if not answers:
        raise DataError("'answer' is an empty list; give at least one answer that counts as right")
    return answers


def _answer(given: object, notes: Notes) -> str:
    if isinstance(given, bool):
        return "yes" if given else "no"
    if isinstance(given, int | float):
        return str(given)
    return notes.clean(text_of(given, "'answer'"))


def _aliases(record: Fields, notes: Notes) -> tuple[str, ...]:
    given = list_of(record.get("answer_aliases") or record.get("aliases") or [], "'answer_aliases'")
    return tuple(notes.clean(alias) for alias in given if isinstance(alias, str) and alias.strip())


def _listed(record: Fields, key: str) -> list[Any]:
    return list_of(record.get(key) or [], f"{key!r}")


def _columns(value: object, keys: tuple[str, str], what: str) -> list[list[Any]]:
    """A pair of columns as a list of rows."""
    if not isinstance(value, dict):
        raise DataError(f"{what} is {kind_of(value)}; give an object with the lists {' and '.join(keys)}")
    if not value:
        return []
    first, second = (list_of(value.get(key), f"{key!r} in {what}") for key in keys)
    if len(first) != len(second):
        raise DataError(
            f"{what} has {len(first)} of {keys[0]!r} and {len(second)} of {keys[1]!r}; give as many of both"
        )
    return [list(pair) for pair in zip(first, second, strict=True)]


def fever_evidence(record: Fields) -> list[list[tuple[str, int]]]:
    """The evidence sets of a claim as (title, sentence) pairs; empty for one without evidence."""
    sets = []
    for group in list_of(record.get("evidence") or [], "'evidence'"):
        rows = [row for row in list_of(group, "an evidence set") if isinstance(row, list) and len(row) == 4]
        pairs = [(fever_title(row[2]), row[3]) for row in rows if isinstance(row[2], str) and isinstance(row[3], int)]
        if pairs:
            sets.append(pairs)
    return sets


def _covered(sets: list[list[tuple[str, int]]], found: Mapping[str, Paragraph]) -> list[tuple[str, int]]:
    """The first evidence set of which all pages are there, else the first."""
    whole = (group for group in sets if all(title in found for title, _ in group))
    return next(whole, sets[0] if sets else [])


def _distractors(
    record: Fields, claim: str, found: Mapping[str, Paragraph], pages: PageFile | None, notes: Notes
) -> list[Paragraph]:
    if pages is None:
        return []
    if record.get("distractor_titles") is None:
        near = [page for page in pages.index.near(claim, FEVER_PAGES) if page.title not in found]
        return near[: max(0, FEVER_PAGES - len(found))]
    wanted = [notes.clean(str(title)) for title in _listed(record, "distractor_titles")]
    lacking = [title for title in wanted if title not in pages.pages]
    if lacking:
        notes.faults.append(f"the pages file has no distractor {lacking[0]!r}")
    return [pages.pages[title] for title in wanted if title in pages.pages]


def _hashed(question: str) -> str:
    """An id for a question that has none: the same wherever in a file it stands."""
    return (
        "q-" + hashlib.sha256(" ".join(question.split()).casefold().encode("utf-8", "surrogatepass")).hexdigest()[:16]
    )
