"""`study judged-useless --episodes`: measures of a file of episodes, for programs and for people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from probecascade import cli
from probecascade.evaluation.judged_useless import SIX_REGIMES
from probecascade.evaluation.judged_useless.published import FIGURES

from .conftest import refused

KEYS = ("delta", "delta_interval", "delta_as_worded", "integration_index", "mean6", "answer_rate_after_k")


def _episode(
    question: str, regime: str, verdicts: str, then: str, success: bool = False, **more: Any
) -> dict[str, Any]:
    words = {"u": "USELESS", "+": "USEFUL"}
    return {
        "question_id": question,
        "regime": regime,
        "verdicts": [words[letter] for letter in verdicts],
        "actions": ["search"] * len(verdicts) + [then],
        "success": success,
        **more,
    }


def _question(name: str, **more: Any) -> list[dict[str, Any]]:
    """Answers after five useless results, is right on the clean tool, and goes on after one useful result."""
    return [
        _episode(name, "clean", "+", "finish", True, **more),
        _episode(name, "persistent", "uuuuu", "finish", **more),
        *(_episode(name, f"recover_after_{n}", "u+uuuu", "search", **more) for n in (1, 2, 3)),
        _episode(name, "late_onset_from_3", "++uuuu", "search", **more),
    ]


def _file(folder: Path, *records: dict[str, Any] | str) -> str:
    path = folder / "episodes.jsonl"
    path.write_text("".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in records))
    return str(path)


def _measured(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert cli.main(["study", "judged-useless", "--json", "--episodes", *arguments]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.fixture
def ten(tmp_path: Path) -> str:
    return _file(tmp_path, *(each for number in range(10) for each in _question(f"q{number}")))


def test_json(ten: str, capsys: pytest.CaptureFixture[str]) -> None:
    record = _measured(capsys, ten)
    # t = 3, 4, 5 weigh alike, with 10 decisions in arm a, answers at 5 only, and 40 in arm b, none of them an answer
    assert record["delta"] == pytest.approx(1 / 3)
    assert record["delta_interval"] == [pytest.approx(record["delta"])] * 2
    assert record["delta_as_worded"] != record["delta"]
    assert record["integration_index"] == pytest.approx(10 / 60)
    assert record["mean6"] == pytest.approx(1 / 6)
    assert record["answer_rate_after_k"] == 1
    assert record["utility"] == pytest.approx(1 / 6 - 0.05 * (1 + 5 + 4 * 7) / 6)
    assert record["faults"] == []
    assert record["groups"] == [
        {"model": "", "split": "", "condition": ""} | {k: record[k] for k in record if k in record["groups"][0]}
    ]
    strata = {row["t"]: row for row in record["details"]["delta"]["strata"]}
    assert strata[3] == {"t": 3, "answered_a": 0, "n_a": 10, "answered_b": 0, "n_b": 40}
    assert strata[5] == {"t": 5, "answered_a": 10, "n_a": 10, "answered_b": 0, "n_b": 40}
    assert [row["condition"] for row in record["published"]["figures"]] == [row.condition for row in FIGURES]


def test_options_change_what_is_counted(ten: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _measured(capsys, ten, "--k", "6")["answer_rate_after_k"] is None
    assert _measured(capsys, ten, "--cost", "0")["utility"] == pytest.approx(1 / 6)
    strata = _measured(capsys, ten, "--budget", "6")["details"]["delta"]["strata"]
    assert [row["t"] for row in strata] == [3, 4]


def test_empty_arms_are_null_and_said_to_be_undefined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _file(tmp_path, _episode("a", "persistent", "+++", "finish"))
    record = _measured(capsys, path)
    assert [record[key] for key in KEYS] == [None] * 6
    assert record["details"]["mean6"]["n"] == 0
    assert cli.main(["study", "judged-useless", "--episodes", path]) == 0
    out = capsys.readouterr().out
    assert "– n=0" in out
    assert "all episodes, delta: undefined, no t in 3..6 has decisions of both arms (all useless: n=0" in out
    assert "mean6: undefined, no question has an episode in each of the six regimes (of 1 questions)" in out


def test_conditions_stand_side_by_side_and_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        each
        for condition in ("enforced", "none")
        for number in range(10)
        for each in _question(f"q{number}", condition=condition, model="m", judges=None)
    ]
    lines[0]["success"] = False
    path = _file(tmp_path, *lines)
    record = _measured(capsys, path, "--margin", "0.1")
    assert not set(KEYS) & set(record)
    assert [(row["model"], row["condition"]) for row in record["groups"]] == [("m", "enforced"), ("m", "none")]
    assert all(set(KEYS) <= set(row) for row in record["groups"])
    rows = record["comparisons"]
    assert [(row["condition"], row["against"], row["measure"]) for row in rows] == [
        ("enforced", "none", each) for each in ("mean6", "delta", "utility")
    ]
    assert rows[0]["difference"]["value"] == pytest.approx(-1 / 60)
    assert rows[0]["noninferior"] is True
    assert _measured(capsys, path, "--against", "enforced")["comparisons"][0]["condition"] == "none"

    assert cli.main(["study", "judged-useless", "--episodes", path, "--margin", "0.1"]) == 0
    out = capsys.readouterr().out
    assert "groups    m enforced (60), m none (60)" in out
    assert "difference from none (m), paired by question" in out
    assert "yes (margin 0.1)" in out
    assert "PUBLISHED, for comparison, not measured here: arXiv 2610.06191" in out
    assert "enforced_rule  +0.335 [+0.251, +0.413]  0.2367" in out
    assert "call_cost" not in out
    assert max(len(line) for line in out.splitlines()) <= 120


def test_released_files_meet_their_own_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = {"model": "qwen3-8b", "condition": "decide", "split": "test300"}
    path = _file(tmp_path, *_question("a", **named))
    assert cli.main(["study", "judged-useless", "--episodes", path]) == 0
    published = capsys.readouterr().out.split("PUBLISHED")[1]
    assert "qwen3-8b   test300     decide  -0.146 [-0.293, -0.012]  0.4256" in published
    assert "llama" not in published


def test_faults_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = _question("a", condition="\x1b[31m")
    odd = _episode("z", "new\x1bregime", "u", "finish")
    path = _file(tmp_path, *good, odd, *[good[0]] * 12, "no json")
    assert cli.main(["study", "judged-useless", "--episodes", path]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "episodes  7 on 2 questions, 13 faults" in out
    assert "unknown regimes, in no measure but the success by regime: new\\x1bregime (1)" in out
    assert "  line 8: the same question, regime and condition as in line 1 (a, clean): left out" in out
    assert "and 3 more: --json prints all" in out
    record = _measured(capsys, path)
    assert len(record["faults"]) == 13
    assert record["unknown_regimes"] == {"new\x1bregime": 1}


def test_judges_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    judges = {"lexical": ["USELESS", "USEFUL"]}
    path = _file(tmp_path, _episode("a", "recover_after_1", "uu", "finish", judges=judges))
    record = _measured(capsys, path)
    assert record["details"]["agreement"] == [
        {"first": "own", "second": "lexical", "kappa": 0.0, "agreed": 0.5, "n": 2, "note": ""}
    ]
    assert record["details"]["judge"]["judged_useless"]["value"] == 1
    assert cli.main(["study", "judged-useless", "--episodes", path]) == 0
    assert ["own", "lexical", "+0.000", "0.500", "2"] in [line.split() for line in capsys.readouterr().out.splitlines()]
    named = _file(tmp_path, _episode("a", "recover_after_1", "uu", "finish", judges=judges, judge="probe"))
    assert _measured(capsys, named)["details"]["agreement"][0]["first"] == "probe"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["other", "--episodes", "FILE"], "there is no study 'other': choose judged-useless."),
        (["judged-useless"], "give a recipe, or recorded episodes with --episodes FILE"),
        (["judged-useless", "--episodes", "missing.jsonl"], "cannot be read"),
        (["judged-useless", "--episodes", "FILE", "--k", "0"], "a run of k = 0 useless verdicts was given"),
        (["judged-useless", "--episodes", "FILE", "--budget", "4"], "a budget of 4 actions was given"),
        (["judged-useless", "--episodes", "FILE", "--cost", "-1"], "a cost of -1.0 per call was given"),
        (["judged-useless", "--episodes", "FILE", "--seed", "-1"], "a seed of -1 was given"),
        (["judged-useless", "--episodes", "FILE", "--margin", "0.1"], "the file's conditions are (none named)"),
        (["judged-useless", "--episodes", "FILE", "--against", "none"], "nothing can be compared against none"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(
    ten: str, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert sentence in refused(["study", *(ten if each == "FILE" else each for each in arguments)], capsys)


def test_an_empty_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "holds no record" in refused(["study", "judged-useless", "--episodes", _file(tmp_path)], capsys)


def test_regimes_are_those_of_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["study", "--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for name in ("clean", "persistent", "late_onset_from_3"):
        assert name in SIX_REGIMES
        assert name in out


def test_a_page_is_written_and_never_over_another(ten: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "study.html"
    told = _measured(capsys, ten, "--report", str(page))
    assert told["report"] == str(page)
    text = page.read_text()
    assert "Too little varies between questions for an interval of Delta" in text
    assert "The file holds no transcripts" in text
    assert "exists already" in refused(["study", "judged-useless", "--episodes", ten, "--report", str(page)], capsys)
    assert page.read_text() == text


def test_records_that_are_left_out_are_not_in_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = _episode("q0", "persistent", "u", "finish", transcript="an old apple")
    again = {**first, "transcript": "a young pear"}
    page = tmp_path / "study.html"
    told = _measured(capsys, _file(tmp_path, first, again, {"transcript": "no episode"}), "--report", str(page))
    assert len(told["faults"]) == 2
    text = page.read_text()
    assert "an old apple" in text
    assert "a young pear" not in text
    assert 'no episode"' not in text
    assert "2 records of the file could not be used" in text
