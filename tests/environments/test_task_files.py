from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probecascade.environments import describe_tasks, dump_tasks, load_tasks
from probecascade.environments.tasks import _record, _task
from probecascade.episode import Paragraph, Part, Task
from probecascade.errors import DataError, ProbecascadeError, UsageError

TASKS = [
    Task(
        f"t{i}",
        f"g{i}",
        (Part("Où?", ("Ødegård", "x")), Part("Why?", ("y",))),
        (Paragraph("Title\u2028with a line separator", ("One.", "")),),
        {"hops": 2, "path": [["a"], []]},
    )
    for i in range(3)
]
RECORD: dict[str, Any] = {"task_id": "t", "group": "g", "parts": [{"question": "Where?", "answers": ["A"]}]}


@pytest.mark.parametrize("name", ["tasks.jsonl", "tasks.jsonl.gz"])
def test_round_trip(tmp_path: Path, name: str) -> None:
    assert dump_tasks(iter(TASKS), tmp_path / name) == 3
    assert load_tasks(tmp_path / name) == TASKS
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_the_same_tasks_give_the_same_bytes_under_any_name(tmp_path: Path) -> None:
    dump_tasks(TASKS, tmp_path / "a.jsonl.gz")
    dump_tasks(TASKS, tmp_path / "b.jsonl.gz")
    packed = (tmp_path / "a.jsonl.gz").read_bytes()
    assert packed == (tmp_path / "b.jsonl.gz").read_bytes()
    assert packed[3:10] == b"\0\0\0\0\0\x02\xff"  # no name, no time, highest compression, no system named


@settings(max_examples=30, deadline=None)
@given(
    st.text(min_size=1).filter(str.strip),
    st.lists(st.text(min_size=1).filter(str.strip), min_size=1, max_size=3),
    st.dictionaries(st.text(max_size=5), st.integers() | st.text() | st.none(), max_size=3),
)
def test_any_text_survives(text: str, answers: list[str], attributes: dict[str, Any]) -> None:
    task = Task(text, text, (Part(text, tuple(answers)),), (Paragraph(text, tuple(answers)),), attributes)
    assert _task(json.loads(json.dumps(_record(task)))) == task


def test_optional_keys_blank_lines_and_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps(RECORD).encode() + b"\r\n\r\n")
    assert load_tasks(file) == [Task("t", "g", (Part("Where?", ("A",)),))]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "a task is a list"),
        (json.dumps({**RECORD, "task_id": 7}), "'task_id' is a number"),
        (json.dumps({**RECORD, "group": " "}), "'group' is blank"),
        (json.dumps({"task_id": "t", "group": "g"}), "no 'parts'"),
        (json.dumps({**RECORD, "parts": []}), "'parts' is empty"),
        (json.dumps({**RECORD, "parts": ["Where?"]}), "a part is a text"),
        (json.dumps({**RECORD, "parts": [{"question": "Where?"}]}), "no 'answers'"),
        (json.dumps({**RECORD, "parts": [{"question": "Where?", "answers": []}]}), "'answers' is empty"),
        (json.dumps({**RECORD, "parts": [{"question": "Where?", "answers": "A"}]}), "'answers' is a text"),
        (json.dumps({**RECORD, "parts": [{"question": "Where?", "answers": [None]}]}), "an answer is null"),
        (json.dumps({**RECORD, "paragraphs": [{"title": "A", "sentences": [1]}]}), "'sentences' holds"),
        (json.dumps({**RECORD, "paragraphs": [{"title": "A", "sentences": []}] * 2}), "titled 'A'"),
        (json.dumps({**RECORD, "attributes": []}), "'attributes' is a list"),
        (json.dumps({**RECORD, "pargraphs": []}), "unknown key 'pargraphs'"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, words: str) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text(json.dumps({**RECORD, "task_id": "good"}) + "\n\n" + line + "\n")
    with pytest.raises(DataError, match=words) as caught:
        load_tasks(file)
    assert str(caught.value).startswith("tasks.jsonl, line 3: ")
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_bytes(b'{"task_id": "\xff"}\n')
    with pytest.raises(DataError, match="line 1: not UTF-8"):
        load_tasks(file)


def test_a_repeated_task_id_is_refused_both_ways(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text((json.dumps(RECORD) + "\n") * 2)
    with pytest.raises(DataError, match="line 2: task_id 't' is on line 1 already"):
        load_tasks(file)
    with pytest.raises(DataError, match="'t0' is given twice"):
        dump_tasks([TASKS[0], TASKS[0]], tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    cases: list[tuple[str, bytes, type[ProbecascadeError]]] = [
        ("empty.jsonl", b"\n", DataError),
        ("cut.jsonl.gz", gzip.compress(b"x" * 1000)[:-9], DataError),
        ("plain.jsonl.gz", b"{}", DataError),
    ]
    for name, content, error in cases:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(error, match=name):
            load_tasks(tmp_path / name)
    with pytest.raises(UsageError, match="nowhere"):
        load_tasks(tmp_path / "nowhere.jsonl")
    with pytest.raises(UsageError, match="cannot be read"):
        load_tasks(tmp_path)


def test_a_number_too_long_to_be_read_ends_an_array(tmp_path: Path) -> None:
    path = tmp_path / "tasks.json"
    path.write_text('[{"question": "Where?", "answer": "Brosk"},\n{"question": "Who?", "answer": ' + "9" * 5000 + "}]")
    report = describe_tasks(path)
    assert report.tasks == 1
    assert [(fault.line, "nothing after it can be read" in fault.problem) for fault in report.faults] == [(2, True)]


@pytest.mark.parametrize("field", ["question", "answer", "paragraphs"])
def test_half_a_character_makes_no_task(field: str, tmp_path: Path) -> None:
    record = {"question": "Where?", "answer": "Brosk", "paragraphs": [["Ada", ["She lives in Brosk."]]]}
    half = [["Ada", ["She lives \ud83d."]]] if field == "paragraphs" else "Brosk \ud83d"
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps(record | {field: half}))
    with pytest.raises(DataError, match=r"line 1: a text holds '\\ud83d', half of a character"):
        load_tasks(path)
