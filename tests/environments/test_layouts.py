"""Task files of public sets and of users: told apart by their records, read as tasks, described with their faults."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probecascade.environments import describe_tasks, dump_tasks, load_tasks, open_tasks, played_as, reading, tasks_of
from probecascade.environments.pages import split_sentences
from probecascade.episode import Paragraph, Part, Task
from probecascade.errors import DataError

Shared = Callable[[str], Path]

HOTPOT: dict[str, Any] = {
    "_id": "h1",
    "question": "Where does Ada live?",
    "answer": "Brosk",
    "type": "bridge",
    "level": "easy",
    "supporting_facts": [["Ada &amp; Bo", 1], ["Brosk", 0]],
    "context": [
        ["Ada &amp; Bo", ["Ada is a poet.", " She lives in Brosk &quot;Old&quot;.", ""]],
        ["Brosk", ["A town."]],
    ],
}
COLUMNS = {
    **{key: value for key, value in HOTPOT.items() if key != "_id"},
    "id": "h1",
    "supporting_facts": {"title": ["Ada &amp; Bo", "Brosk"], "sent_id": [1, 0]},
    "context": {"title": ["Ada &amp; Bo", "Brosk"], "sentences": [page[1] for page in HOTPOT["context"]]},
}
MUSIQUE: dict[str, Any] = {
    "id": "2hop__1_2",
    "question": "Where does Ada live?",
    "answer": "Brosk",
    "answer_aliases": ["Old Brosk"],
    "answerable": True,
    "question_decomposition": [{"question": "Who?"}, {"question": "Where?"}],
    "paragraphs": [
        {"idx": 0, "title": "Ada", "paragraph_text": "Ada is a poet. She sings.", "is_supporting": False},
        {"idx": 1, "title": "Ada", "paragraph_text": "Ada lives in Brosk. It rains.", "is_supporting": True},
    ],
}
STRATEGY: dict[str, Any] = {
    "qid": "s1",
    "question": "Can Ada swim?",
    "answer": True,
    "term": "Ada",
    "description": "a poet",
    "facts": ["Ada won a swimming race."],
    "decomposition": ["Did Ada swim?"],
}
FEVER: dict[str, Any] = {
    "id": 7,
    "verifiable": "VERIFIABLE",
    "label": "SUPPORTS",
    "claim": "Ada is a poet.",
    "evidence": [[[1, 2, "Ada_-LRB-poet-RRB-", 1]]],
}
OPEN_CLAIM = {"id": 8, "label": "NOT ENOUGH INFO", "claim": "Ada owns a boat.", "evidence": [[[1, None, None, None]]]}
BAMBOOGLE = {"Question": "Where does Ada live?", "Answer": "Brosk"}
OWN = {"question": "Where does Ada live?", "answer": "Brosk", "paragraphs": [{"title": "Ada", "text": "A poet. Old."}]}

LAYOUTS: dict[str, dict[str, Any]] = {
    "hotpotqa": HOTPOT,
    "hotpotqa-columns": COLUMNS,
    "2wikimultihopqa": {**HOTPOT, "evidences": []},
    "musique": MUSIQUE,
    "strategyqa": STRATEGY,
    "fever": FEVER,
    "bamboogle": BAMBOOGLE,
    "questions": OWN,
    "probecascade": {"task_id": "t", "group": "g", "parts": [{"question": "Where?", "answers": ["A"]}]},
}


def written(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def problems(path: Path, pages: Path | None = None) -> list[tuple[int, str]]:
    return [(fault.line, fault.problem) for fault in describe_tasks(path, pages).faults]


# --- telling layouts apart ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "record"), LAYOUTS.items())
@pytest.mark.parametrize("form", ["lines", "array", "gzip", "bom"])
def test_the_records_tell_the_layout_whatever_the_file_is_called(
    tmp_path: Path, name: str, record: dict[str, Any], form: str
) -> None:
    other = {**record, "_id": "x2", "id": "x2", "qid": "x2"} if name != "probecascade" else {**record, "task_id": "u"}
    question = "claim" if name == "fever" else "Question" if name == "bamboogle" else "question"
    if question in other:
        other[question] = "Another one?"
    if name == "probecascade":
        pass
    if name == "bamboogle":
        other = {"Question": "Another one?", "Answer": 5}
    if name == "questions":
        other.pop("_id")
        other.pop("qid")
    lines = "".join(json.dumps(each) + "\r\n" for each in (record, other)).encode()
    file = tmp_path / "data.txt"
    file.write_bytes(
        {
            "lines": lines,
            "array": json.dumps([record, other], indent=1).encode(),
            "gzip": gzip.compress(lines),
            "bom": b"\xef\xbb\xbf" + lines,
        }[form]
    )
    report = describe_tasks(file)
    assert (report.format, report.records, report.tasks) == (name, 2, 2)
    assert load_tasks(file) == load_tasks(written(tmp_path / "plain.jsonl", record, other))


def test_bamboogle_as_its_official_table(tmp_path: Path) -> None:
    file = tmp_path / "test.csv"
    file.write_bytes(
        b'\xef\xbb\xbfQuestion,Answer\r\n"Where, then?",Brosk\r\n"Who\r\nis it?","Ada ""A"""\r\nbroken\r\n'
    )
    first, second = [entry.task for entry in open_tasks(file).entries][:2]
    assert first is not None
    assert second is not None
    assert (first.parts[0], second.parts[0].answers) == (Part("Where, then?", ("Brosk",)), ('Ada "A"',))
    assert problems(file) == [(5, "1 columns; give 2 as in the first line, in quotes where they hold commas")]


@pytest.mark.parametrize(
    ("record", "nearest"),
    [
        ({"question": "Where?", "steps": []}, "nearest is questions, but it has no 'answer'"),
        ({"_id": "a", "sources": []}, "nearest is questions, but it has no 'question'"),
        ({"claim": "Ada sings."}, "nearest is fever, but it has no 'label'"),
        ({"question": "Where?", "context": "Ada"}, "nearest is hotpotqa, but its 'context' is a text, not a list"),
        ("Ada", "but it is a text"),
    ],
)
def test_an_unknown_file_says_what_was_tried_and_the_first_difference(
    tmp_path: Path, record: object, nearest: str
) -> None:
    with pytest.raises(DataError) as caught:
        open_tasks(written(tmp_path / "x.jsonl", record))
    said = str(caught.value)
    assert said.startswith("x.jsonl, line 1: the record has none of the layouts that are read (probecascade, fever,")
    assert nearest in said
    assert "\n" not in said


def test_a_first_record_without_an_answer_does_not_hide_the_layout(tmp_path: Path) -> None:
    lacking = {key: value for key, value in OWN.items() if key != "answer"}
    file = written(tmp_path / "x.jsonl", lacking, {**OWN, "question": "Who?"})
    report = describe_tasks(file)
    assert (report.format, report.records, report.tasks) == ("questions", 2, 1)
    assert problems(file)[0][0] == 1
    assert "has no answer" in problems(file)[0][1]
    with pytest.raises(DataError, match=r"x\.jsonl, line 1: the record has no answer"):
        load_tasks(file)


# --- what a record becomes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("record", [HOTPOT, COLUMNS, {**HOTPOT, "evidences": [["Ada", "home", "Brosk"]]}])
def test_a_hotpotqa_record_becomes_a_task(tmp_path: Path, record: dict[str, Any]) -> None:
    (task,) = load_tasks(written(tmp_path / "x.jsonl", record))
    assert (task.task_id, task.group, task.parts) == ("h1", "h1", (Part("Where does Ada live?", ("Brosk",)),))
    assert task.paragraphs == (
        Paragraph("Ada & Bo", ("Ada is a poet.", 'She lives in Brosk "Old".', "")),
        Paragraph("Brosk", ("A town.",)),
    )
    assert task.attributes["supporting_facts"] == [["Ada & Bo", 1], ["Brosk", 0]]
    assert task.attributes["gold_titles"] == ["Ada & Bo", "Brosk"]
    assert (task.attributes["type"], task.attributes["level"]) == ("bridge", "easy")
    report = describe_tasks(tmp_path / "x.jsonl").record()
    assert (report["empty_sentences"], report["entities"], report["faults"]) == (1, 3, [])
    assert report["gold_pages"] == {"all": 1}


def test_only_whole_entities_are_read_as_characters(tmp_path: Path) -> None:
    (task,) = load_tasks(written(tmp_path / "x.jsonl", {**OWN, "question": "R&D at AT&T, ?a=1&copy=2, &eacute;&#33;"}))
    assert task.parts[0].question == "R&D at AT&T, ?a=1&copy=2, é!"


def test_passages_of_one_article_become_one_page_and_stay_supporting(tmp_path: Path) -> None:
    (task,) = load_tasks(written(tmp_path / "x.jsonl", MUSIQUE))
    assert task.paragraphs == (Paragraph("Ada", ("Ada is a poet.", "She sings.", "Ada lives in Brosk.", "It rains.")),)
    assert task.attributes["supporting_facts"] == [["Ada", 2], ["Ada", 3]]
    assert task.attributes["type"] == "2hop"
    assert task.parts[0].answers == ("Brosk", "Old Brosk")
    assert problems(tmp_path / "x.jsonl") == []


def test_a_strategyqa_record_is_answered_with_yes_or_no(tmp_path: Path) -> None:
    (task,) = load_tasks(written(tmp_path / "x.jsonl", STRATEGY))
    assert task.parts[0].answers == ("yes",)
    assert task.paragraphs == (Paragraph("Ada", ("Ada: a poet.", "Ada won a swimming race.")),)
    assert task.attributes["supporting_facts"] == [["Ada", 1]]
    assert "'answer' is 'maybe'" in problems(written(tmp_path / "x.jsonl", {**STRATEGY, "answer": "maybe"}))[0][1]


def test_a_claim_finds_its_pages_in_a_file_and_every_claim_has_as_many(tmp_path: Path) -> None:
    numbered = [{"title": f"Boat {n}", "sentences": [f"Boat {n} is a boat.", "It floats."]} for n in range(12)]
    dump = {"id": "Ada_-LRB-poet-RRB-", "text": "", "lines": "0\tAda is known.\tAda\n1\tAda is a poet.\n2\t"}
    pages = written(tmp_path / "pages.jsonl", {"id": "", "lines": ""}, dump, *numbered)
    true, unknown = load_tasks(written(tmp_path / "x.jsonl", FEVER, OPEN_CLAIM), pages)
    assert true.parts[0].answers == ("SUPPORTS",)
    assert true.parts[0].question.startswith("Claim: Ada is a poet.")
    assert true.group == "Ada (poet)"
    assert true.attributes["supporting_facts"] == [["Ada (poet)", 1]]
    by_title = {page.title: page.sentences for page in true.paragraphs}
    assert by_title["Ada (poet)"] == ("Ada is known.", "Ada is a poet.", "")
    assert len(unknown.paragraphs) == 10
    assert {page.title for page in unknown.paragraphs} > {"Boat 0", "Boat 3"}
    assert [page.title for page in unknown.paragraphs] == sorted(page.title for page in unknown.paragraphs)


def test_a_claim_with_distractors_of_its_own_takes_them(tmp_path: Path) -> None:
    own = {"title": "Ada (poet)", "sentences": ["Ada is known.", "Ada is a poet."]}
    pages = written(
        tmp_path / "pages.jsonl", {"title": "Bo", "text": "Bo is a cook."}, {"title": "Cy", "text": "A cat."}
    )
    record = {**FEVER, "evidence_pages": [own], "distractor_titles": ["Cy", "Dee"], "group": "Ada"}
    (task,) = load_tasks(written(tmp_path / "x.jsonl", record), pages)
    assert [page.title for page in task.paragraphs] == ["Ada (poet)", "Cy"]
    assert task.group == "Ada"
    assert problems(tmp_path / "x.jsonl", pages) == [(1, "the pages file has no distractor 'Dee'")]
    assert problems(written(tmp_path / "y.jsonl", FEVER), pages) == [
        (1, "the page 'Ada (poet)' of the claim's evidence is not at hand")
    ]


@pytest.mark.parametrize(
    "paragraph",
    [
        {"title": "Ada", "sentences": ["A poet.", "Old."]},
        {"title": "Ada", "text": "A poet. Old."},
        ["Ada", ["A poet.", "Old."]],
        ["Ada", "A poet. Old."],
    ],
)
def test_a_users_own_questions(tmp_path: Path, paragraph: object) -> None:
    record = {"question": "Where?", "answer": ["Brosk", 5, True], "paragraphs": [paragraph]}
    (task,) = load_tasks(written(tmp_path / "x.jsonl", record))
    assert task.parts[0].answers == ("Brosk", "5", "yes")
    assert task.paragraphs == (Paragraph("Ada", ("A poet.", "Old.")),)
    again = {**record, "question": " where? ", "id": "mine"}
    (second,) = load_tasks(written(tmp_path / "y.jsonl", again))
    assert (second.task_id, second.group) == ("mine", task.group)  # equal questions never straddle a split


def test_a_misspelt_key_is_not_lost(tmp_path: Path) -> None:
    file = written(tmp_path / "x.jsonl", {"question": "Where?", "answer": "Brosk", "paragraph": [], "note": 1})
    assert problems(file) == [(1, "the key 'paragraph' is not read; did you mean 'paragraphs'?")]


def test_recorded_runs_are_sent_to_the_verb_that_reads_them(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="recorded runs are described by `probecascade transcripts`"):
        open_tasks(written(tmp_path / "x.jsonl", {"question": "Where?", "steps": []}))


def test_an_id_made_from_the_question_does_not_depend_on_the_order(tmp_path: Path) -> None:
    one, two = {**OWN, "question": "One?"}, {**OWN, "question": "Two?"}
    forth = load_tasks(written(tmp_path / "x.jsonl", one, two))
    assert load_tasks(written(tmp_path / "y.jsonl", two, one)) == forth[::-1]


def test_pages_beside_the_file_are_those_of_questions_without_any(tmp_path: Path) -> None:
    pages = written(tmp_path / "pages.jsonl", {"title": "Ada", "text": "A poet."}, {"title": "Ada", "text": "Twice."})
    file = written(tmp_path / "x.jsonl", BAMBOOGLE)
    assert load_tasks(file)[0].paragraphs == ()
    assert load_tasks(file, pages)[0].paragraphs == (Paragraph("Ada", ("A poet.",)),)


@given(st.lists(st.sampled_from(["Ada sang.", "It rains!", "Is it J. R. Ward?", "Dr. No (1962) won."]), min_size=1))
def test_sentences_are_cut_where_they_end(sentences: list[str]) -> None:
    assert split_sentences(" ".join(sentences)) == sentences


# --- faults ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said", "playable"),
    [
        ({"answer": None}, "the record has no answer", False),
        ({"answer": " "}, "'answer' is blank", False),
        ({"answer": []}, "'answer' is an empty list", False),
        ({"question": 3}, "'question' is a number", False),
        ({"context": [["Ada"]]}, "a page is a list", False),
        ({"context": [["Ada", [1]]]}, "holds a sentence that is no text", False),
        ({"context": [["Ada", None]]}, "a page has no text", False),
        ({"_id": "first"}, "'first' is on line 1 already", False),
        ({"context": [["Brosk", ["A."]], ["Brosk", ["A."]]]}, "'Brosk' is given twice and read once", True),
        ({"context": [["Brosk", ["A."]], ["Brosk", ["B."]]]}, "'Brosk' has two texts", True),
        ({"supporting_facts": [["Brosk", 1]]}, "fact 1 of the page 'Brosk' is not one of its 1 sentences", True),
        ({"supporting_facts": [["Brosk", "0"]]}, "fact '0' of the page 'Brosk'", True),
        ({"supporting_facts": ["Brosk"]}, "a supporting fact is a text", True),
        ({"supporting_facts": [["Mars", 0]]}, "the gold page 'Mars' is not among its 2 pages", True),
    ],
)
def test_a_fault_is_named_with_its_line(tmp_path: Path, change: dict[str, Any], said: str, playable: bool) -> None:
    sound = [{**HOTPOT, "_id": name} for name in ("first", "second", "third", "fourth")]
    file = written(tmp_path / "x.jsonl", *sound, {**HOTPOT, **change})
    report = describe_tasks(file)
    assert any(fault.line == 5 and said in fault.problem for fault in report.faults), report.faults
    assert (report.records, report.tasks) == (5, 4 + playable)
    if playable:
        assert len(load_tasks(file)) == 5
    else:
        with pytest.raises(DataError, match=r"x\.jsonl, line 5: "):
            load_tasks(file)


def test_a_record_of_another_layout_is_a_fault(tmp_path: Path) -> None:
    file = written(tmp_path / "x.jsonl", HOTPOT, {"question": "Where?", "answer": "A"}, 7)
    assert [line for line, _ in problems(file)] == [2, 3]
    assert problems(file)[0][1] == "the record has no 'context', which hotpotqa records have"


def test_missing_gold_pages_are_how_fullwiki_is_made_and_faults_elsewhere(tmp_path: Path) -> None:
    records = [{**HOTPOT, "_id": str(n)} for n in range(8)]
    for n in (1, 5):
        records[n] = {**records[n], "context": HOTPOT["context"][:1]}
    assert problems(written(tmp_path / "x.jsonl", *records)) == [
        (2, "the gold page 'Brosk' is not among its 1 pages"),
        (6, "the gold page 'Brosk' is not among its 1 pages"),
    ]
    records[3] = records[5] | {"_id": "3"}
    report = describe_tasks(written(tmp_path / "x.jsonl", *records))
    assert (report.setting, report.faults, report.gold_pages) == ("fullwiki", [], {"all": 5, "some": 3})


@pytest.mark.parametrize(
    ("content", "line", "said"),
    [
        (b'{"_id": \n', 2, "not JSON"),
        (b'{"question": "\xff"}\n', 2, "not UTF-8 text"),
        (b"[" * 50_000 + b"\n", 2, "not JSON"),
    ],
)
def test_a_line_that_cannot_be_read(tmp_path: Path, content: bytes, line: int, said: str) -> None:
    file = tmp_path / "x.jsonl"
    file.write_bytes(json.dumps(HOTPOT).encode() + b"\n" + content + json.dumps({**HOTPOT, "_id": "h3"}).encode())
    report = describe_tasks(file)
    assert (report.records, report.tasks) == (3, 2)
    assert report.faults[0].line == line
    assert said in report.faults[0].problem


@pytest.mark.parametrize("chunk", [1 << 20, 5])
@pytest.mark.parametrize(
    ("text", "values", "problem"),
    [
        (' [\n{"a": "é"},\n\n 2 ] \n', [(2, {"a": "é"}), (4, 2)], ""),
        ("[]", [], ""),
        ("[1,2", [(1, 1), (1, 2)], "ends before record 3"),
        ('[1,"cut', [(1, 1)], "ends inside this record"),
        ("[1\n2]", [(1, 1)], "a comma is missing before record 2"),
        ("[1] x", [(1, 1)], "something after the array's end"),
        ('[1,{"a": tru}' + " " * 200 + "]", [(1, 1)], "not JSON"),
    ],
)
def test_an_array_is_read_one_record_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, text: str, values: list[Any], problem: str
) -> None:
    monkeypatch.setattr(reading, "_CHUNK", chunk)
    (tmp_path / "x.json").write_text(text, encoding="utf-8")
    records = list(reading.read_records(tmp_path / "x.json"))
    assert [(r.line, r.value) for r in records if not r.problem] == values
    bad = [r.problem for r in records if r.problem]
    assert len(bad) == bool(problem)
    assert all(problem in said for said in bad)


def test_a_large_array_is_not_read_ahead(tmp_path: Path) -> None:
    one = json.dumps({**HOTPOT, "filler": "x" * 1000})
    (tmp_path / "x.json").write_text("[" + ",".join([one] * 4000) + "]", encoding="utf-8")
    records = reading.read_records(tmp_path / "x.json")
    assert next(records).value["_id"] == "h1"
    frame = records.gi_frame  # type: ignore[attr-defined]
    assert frame is not None
    assert frame.f_locals["stream"].tell() <= 2 << 20


def test_a_gzip_file_that_is_cut_off(tmp_path: Path) -> None:
    packed = gzip.compress("".join(json.dumps({**HOTPOT, "_id": str(n)}) for n in range(3000)).encode(), 1)
    (tmp_path / "x.json.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(DataError, match=r"x\.json\.gz is not a whole gzip file"):
        describe_tasks(tmp_path / "x.json.gz")


@settings(max_examples=60, deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner)))
def test_no_value_in_a_record_is_a_crash(tmp_path_factory: pytest.TempPathFactory, value: object) -> None:
    file = tmp_path_factory.getbasetemp() / "any.jsonl"
    for name, record in LAYOUTS.items():
        if name == "probecascade":
            continue
        broken = [{**record, key: value} for key in record]
        report = describe_tasks(written(file, record, *broken))
        assert report.records == len(broken) + 1


# --- a file made from another ------------------------------------------------------------------------------------


def test_tasks_that_were_written_down_are_played_as_the_set_they_come_from(tmp_path: Path) -> None:
    tasks = load_tasks(written(tmp_path / "x.jsonl", HOTPOT))
    dump_tasks(tasks, tmp_path / "own.jsonl.gz")
    file = open_tasks(tmp_path / "own.jsonl.gz")
    assert tasks_of(file) == tasks
    assert (file.layout.name, played_as(file.layout, tasks).name) == ("probecascade", "hotpotqa")
    mixed = [*tasks, Task("t", "g", tasks[0].parts)]
    assert played_as(file.layout, mixed).name == "probecascade"


# --- the real files ----------------------------------------------------------------------------------------------

REAL = [
    ("fever_official_sample.jsonl", None, "fever", 600),
    ("fever_shared.jsonl.gz", "fever_pages.jsonl.gz", "fever", 1109),
    ("fever_pages.jsonl.gz", None, "pages", 3735),
    ("hotpotqa_fullwiki_shared.jsonl.gz", None, "hotpotqa", 559),
    ("hotpotqa_hf_layout_sample.jsonl", None, "hotpotqa-columns", 12),
    ("hotpotqa_irregular.jsonl", None, "hotpotqa", 15),
    ("hotpotqa_official_layout_sample.json", None, "hotpotqa", 12),
    ("hotpotqa_shared.jsonl.gz", None, "hotpotqa", 922),
    ("multihop_2wiki_shared.jsonl.gz", None, "2wikimultihopqa", 429),
    ("multihop_bamboogle.jsonl", None, "bamboogle", 125),
    ("multihop_musique_shared.jsonl.gz", None, "musique", 198),
    ("multihop_strategyqa_shared.jsonl.gz", None, "strategyqa", 149),
]


@pytest.mark.parametrize(("name", "pages", "layout", "records"), REAL, ids=[row[0] for row in REAL])
def test_every_real_file_is_read_and_described(
    shared: Shared, name: str, pages: str | None, layout: str, records: int
) -> None:
    report = describe_tasks(shared(name), shared(pages) if pages else None)
    assert (report.format, report.records) == (layout, records)
    assert report.tasks == (0 if layout == "pages" else records)
    known = {"multihop_2wiki_shared.jsonl.gz": 20}  # repeated paragraphs, facts beyond a page: so in the official file
    assert len(report.faults) == known.get(name, 0)
    assert (report.setting == "fullwiki") == ("fullwiki" in name)


def test_the_real_files_hold_no_two_questions_in_one_id(shared: Shared) -> None:
    official = load_tasks(shared("hotpotqa_official_layout_sample.json"))
    columns = load_tasks(shared("hotpotqa_hf_layout_sample.jsonl"))
    assert [task.task_id for task in official] == [task.task_id for task in columns]
    assert [task.paragraphs for task in official] == [task.paragraphs for task in columns]
    assert [task.attributes for task in official] == [task.attributes for task in columns]


def test_every_supporting_fact_of_hotpotqa_is_a_sentence_of_its_task(shared: Shared) -> None:
    for task in load_tasks(shared("hotpotqa_shared.jsonl.gz")):
        pages = {page.title: page.sentences for page in task.paragraphs}
        assert set(task.attributes["gold_titles"]) <= pages.keys()
        assert len(pages) == 10
        assert all(number < len(pages[title]) for title, number in task.attributes["supporting_facts"])


def test_a_file_beside_the_tasks_that_holds_none_is_refused(shared: Shared) -> None:
    with pytest.raises(DataError, match=r"provenance\.jsonl\.gz, line 1: the record has none of the layouts"):
        describe_tasks(shared("hotpotqa_shared.provenance.jsonl.gz"))
