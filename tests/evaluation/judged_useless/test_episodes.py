"""Files of episodes: what is read, what is left out with its line, and what is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from probecascade.errors import DataError, UsageError
from probecascade.evaluation.judged_useless import StudyEpisode, judged_by, read_study

GOOD: dict[str, Any] = {
    "question_id": "a",
    "regime": "persistent",
    "verdicts": ["USELESS", "useful ", None],
    "actions": ["Search", "lookup", "search", "finish"],
    "success": True,
}
RELEASED = {
    "model": "qwen3-8b",
    "condition": "enforced_rule",
    "split": "test300",
    "question_id": "5ab8",
    "regime": "recover_after_1",
    "actions": ["search", "search", "search", "invalid"],
    "judgments": ["USELESS", "UNPARSED", "USELESS", None],
    "success": False,
}


def _file(folder: Path, *records: Any, name: str = "episodes.jsonl") -> Path:
    path = folder / name
    text = "".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in records)
    data = text.encode("utf-8")
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def test_an_episode_is_read(tmp_path: Path) -> None:
    more = {"condition": "none", "model": "m", "injected": [True, 0, False], "judges": {"words": ["USELESS", "", None]}}
    found = read_study(_file(tmp_path, GOOD | more))
    assert found.faults == ()
    assert found.episodes == (
        StudyEpisode(
            "a",
            "persistent",
            ("USELESS", "USEFUL", ""),
            ("search", "lookup", "search", "finish"),
            True,
            "none",
            (True, False, False),
            "m",
            "",
            {"words": ("USELESS", "", "")},
        ),
    )
    assert (found.episodes[0].calls, found.episodes[0].answered) == (3, True)


def test_all_conditions_by_one_judge(tmp_path: Path) -> None:
    driven = GOOD | {"condition": "enforced", "judges": {"words": ["USELESS", "USEFUL", ""], "x": ["", "", ""]}}
    own = GOOD | {"condition": "words", "judge": "words", "judges": {"x": ["", "", ""]}}
    one, other = judged_by(read_study(_file(tmp_path, driven, own)), "words").episodes
    assert one.verdicts == ("USELESS", "USEFUL", "")
    assert (one.judge, set(one.judges)) == ("words", {"x"})
    assert other.verdicts == ("USELESS", "USEFUL", "")
    without = GOOD | {"condition": "none", "judges": {"x": ["", "", ""]}}
    said = "1 of 2 episodes have no verdicts of a judge 'words' .question 'a', condition 'none'.; the file names wo"
    with pytest.raises(UsageError, match=said):
        judged_by(read_study(_file(tmp_path, driven, without)), "words")


def test_what_is_not_known_of_an_observation_is_null(tmp_path: Path) -> None:
    stated = {"continuing": [0.5, None, 1], "answering": [0, 0.25, None]}
    (found,) = read_study(_file(tmp_path, GOOD | {"injected": [True, None, False], "beliefs": stated})).episodes
    assert found.truth == (True, None, False)
    assert found.beliefs == {"continuing": (0.5, None, 1), "answering": (0, 0.25, None)}


@pytest.mark.parametrize("name", ["episodes.jsonl", "episodes.jsonl.gz"])
def test_the_layout_of_the_public_release(tmp_path: Path, name: str) -> None:
    (found,) = read_study(_file(tmp_path, RELEASED, name=name)).episodes
    assert found.verdicts == ("USELESS", "UNPARSED", "USELESS", "")
    assert found.key == ("qwen3-8b", "enforced_rule", "test300", "5ab8", "recover_after_1")
    assert (found.calls, found.answered) == (3, False)


def test_gzip_files_may_be_joined(tmp_path: Path) -> None:
    parts = [
        _file(tmp_path, RELEASED | {"condition": name}, name=f"{name}.jsonl.gz").read_bytes() for name in ("a", "b")
    ]
    (tmp_path / "all.jsonl.gz").write_bytes(b"".join(parts))
    assert list(read_study(tmp_path / "all.jsonl.gz").groups()) == [
        ("qwen3-8b", "test300", each) for each in ("a", "b")
    ]


def test_a_json_array_is_read(tmp_path: Path) -> None:
    path = tmp_path / "episodes.json"
    path.write_text(json.dumps([GOOD, RELEASED]))
    assert len(read_study(path).episodes) == 2


def test_numbers_are_names_of_questions_too(tmp_path: Path) -> None:
    assert read_study(_file(tmp_path, GOOD | {"question_id": 7})).episodes[0].question_id == "7"


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"question_id": ""}, "question_id is '', not a name"),
        ({"question_id": None}, "question_id is None, not a name"),
        ({"question_id": True}, "question_id is True, not a name"),
        ({"regime": 1.5}, "regime is 1.5, not a name"),
        ({"condition": ["none"]}, "condition is ['none'], not a name"),
        ({"success": "yes"}, "success is 'yes', neither true nor false"),
        ({"success": float("nan")}, "success is nan, neither true nor false"),
        ({"success": 0.6}, "success is 0.6, neither true nor false"),
        ({"success": None}, "success is None, neither true nor false"),
        ({"actions": "search"}, "actions is 'search', not a list"),
        ({"actions": [None]}, "actions holds None, not the name of an action"),
        ({"actions": ["finish", "search"], "verdicts": []}, "action 1 of 2 is finish, not the last"),
        ({"verdicts": ["USELESS"] * 4}, "4 verdicts on at most 3 observations"),
        ({"verdicts": [float("nan")]}, "verdicts holds nan, neither a word nor null"),
        ({"verdicts": None}, "verdicts is None, not a list"),
        ({"injected": [True] * 4}, "4 marks of injected failures on at most 3 observations"),
        ({"injected": [float("nan")]}, "injected is nan, neither true nor false"),
        ({"beliefs": [0.5]}, "beliefs is [0.5], not an object of names with numbers"),
        ({"beliefs": {"answering": [0.5, 2, None]}}, "beliefs.answering holds 2, neither a probability nor null"),
        (
            {"beliefs": {"hoping": [0.5] * 3}},
            "3 beliefs in 'hoping' beside 3 verdicts, not one each in 'continuing' and 'answering'",
        ),
        (
            {"beliefs": {"answering": [0.5]}},
            "1 beliefs in 'answering' beside 3 verdicts, not one each in 'continuing' and 'answering'",
        ),
        ({"judges": ["USEFUL"]}, "judges is ['USEFUL'], not an object of names with verdicts"),
        ({"judges": {"own": ["USEFUL"] * 3}}, "a further judge is named 'own', as the first one is"),
        ({"judge": "a", "judges": {"a": ["USEFUL"] * 3}}, "a further judge is named 'a', as the first one is"),
        ({"judges": {"words": ["USEFUL"]}}, "1 verdicts of the judge 'words' beside 3 others"),
    ],
)
def test_a_record_that_does_not_fit_is_left_out_with_its_line(
    tmp_path: Path, changed: dict[str, Any], problem: str
) -> None:
    found = read_study(_file(tmp_path, GOOD, GOOD | {"question_id": "b"} | changed))
    assert len(found.episodes) == 1
    assert [(fault.line, fault.problem) for fault in found.faults] == [(2, f"{problem}: left out")]


@pytest.mark.parametrize("key", sorted(GOOD))
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    (fault,) = read_study(_file(tmp_path, GOOD, {name: value for name, value in GOOD.items() if name != key})).faults
    assert (fault.line, fault.problem) == (2, f"no {key}: left out")


def test_faults_come_in_the_order_of_their_lines(tmp_path: Path) -> None:
    found = read_study(_file(tmp_path, GOOD, GOOD, "{broken", [1], {"regime": "x"}, ""))
    assert len(found.episodes) == 1
    assert [fault.line for fault in found.faults] == [2, 3, 4, 5]
    assert found.faults[0].problem == ("the same question, regime and condition as in line 1 (a, persistent): left out")
    assert found.faults[2].problem == "no JSON object: left out"
    assert found.faults[3].problem == "no question_id and no verdicts and no actions and no success: left out"


def test_the_same_question_in_another_condition_or_model_is_no_fault(tmp_path: Path) -> None:
    found = read_study(_file(tmp_path, GOOD, GOOD | {"condition": "none"}, GOOD | {"model": "m"}))
    assert (len(found.episodes), found.faults) == (3, ())
    assert list(found.groups()) == [("", "", ""), ("", "", "none"), ("m", "", "")]


def test_unknown_regimes_are_kept_and_counted(tmp_path: Path) -> None:
    names = ["broken", "broken", "plausible", "recover_after_5", "answerless", "recover_after_0"]
    records = [GOOD | {"question_id": str(i), "regime": name} for i, name in enumerate(names)]
    found = read_study(_file(tmp_path, *records))
    assert len(found.episodes) == 6
    assert found.unknown == {"broken": 2, "recover_after_0": 1}


def test_a_file_without_a_usable_episode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"episodes.jsonl holds no usable episode, line 1: no success: left out \(and 1"
    ):
        read_study(_file(tmp_path, {name: GOOD[name] for name in GOOD if name != "success"}, 5))
    for empty in ("", "\n \n"):
        with pytest.raises(DataError, match=r"e.jsonl holds no record"):
            read_study(_file(tmp_path, *[empty] * bool(empty), name="e.jsonl"))
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(DataError, match=r"list.json holds no usable episode, it has no records"):
        read_study(tmp_path / "list.json")
    with pytest.raises(DataError, match=r"words.jsonl is no JSON; give one JSON object a line"):
        read_study(_file(tmp_path, "Thought: none", name="words.jsonl"))
    with pytest.raises(UsageError, match="cannot be read"):
        read_study(tmp_path / "missing.jsonl")


def test_what_can_be_read_of_a_file_that_was_cut_off_is_read(tmp_path: Path) -> None:
    records = [GOOD | {"question_id": f"{i:08x}" * 8} for i in range(3000)]
    path = _file(tmp_path, *records, name="cut.jsonl.gz")
    path.write_bytes(path.read_bytes()[:-2000])
    found = read_study(path)
    assert 0 < len(found.episodes) < 3000
    assert "cut off" in found.faults[-1].problem
