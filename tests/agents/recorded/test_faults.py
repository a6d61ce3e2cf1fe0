"""Files that are damaged or strange: what can be read is read, and every fault has its line."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probecascade.agents.recorded import read_recorded
from probecascade.errors import DataError, UsageError

from .recorded_samples import AGENTSTOP, MESSAGES, OPENHANDS, REACT_TEXT, ROUNDS, SWE_AGENT, write_lines

_JUNK: tuple[Any, ...] = (None, 7, -0.5, True, "", "x", [], {}, ["x"], {"x": 1}, [[]], [None])


def _faults(path: Path) -> list[tuple[int, str]]:
    return [(fault.line, fault.problem) for fault in read_recorded(path).faults]


def _runs(number: int) -> list[dict[str, Any]]:
    return [ROUNDS | {"traj_id": f"r{i}"} for i in range(number)]


def test_a_gzip_file_that_is_cut_off(tmp_path: Path) -> None:
    lines = "".join(
        json.dumps(run | {"noise": str(i**9 * 2654435761 % 2**64)}) + "\n" for i, run in enumerate(_runs(400))
    )
    whole = gzip.compress(lines.encode())
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(whole[: len(whole) // 2])
    read = read_recorded(path)
    assert 50 < len(read.runs) < 400
    ((line, problem),) = [(fault.line, fault.problem) for fault in read.faults]
    assert line == len(read.runs) + 1
    assert "gzip data are cut off" in problem
    path.write_bytes(whole[:12])
    with pytest.raises(DataError, match=r"a\.jsonl\.gz is no whole gzip file; fetch it again"):
        read_recorded(path)


def test_gzip_is_told_by_the_data_and_not_by_the_name(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(gzip.compress(json.dumps(ROUNDS).encode()))
    assert len(read_recorded(path).runs) == 1


def test_lines_that_are_no_records(tmp_path: Path) -> None:
    deep = '{"steps": ' + "[" * 200_000
    path = write_lines(tmp_path / "a.jsonl", ['{"traj_id": ', ROUNDS, "", "[1]", deep, {"question": "?"}, "null"])
    read = read_recorded(path)
    assert [run.run_id for run in read.runs] == ["r1"]
    found = _faults(path)
    assert [line for line, _ in found] == [1, 4, 5, 6, 7]
    assert found[0][1].startswith("not JSON (Expecting value): left out")
    assert "it is a list" in found[1][1]
    assert found[2][1].startswith("not JSON")
    assert found[3][1] == "no record of the layout 'steps' ('steps' is missing or null, not a list): left out"


def test_an_array_that_breaks_off(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(_runs(3), indent=1)[:-200])
    assert len(read_recorded(path).runs) == 2
    ((line, problem),) = _faults(path)
    lines = json.dumps(_runs(2), indent=1).count("\n")
    assert line == lines + 1
    assert "the JSON array breaks off here" in problem


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(json.dumps(ROUNDS).encode() + b"\n" + json.dumps(ROUNDS).replace("r1", "r2").encode() + b"\xff\n")
    assert [run.run_id for run in read_recorded(path).runs] == ["r1"]
    assert [line for line, _ in _faults(path)] == [2, 2]
    assert "not UTF-8" in _faults(path)[0][1]


def test_half_a_surrogate_pair_can_be_written_again(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [json.dumps(ROUNDS).replace("Where was", "Where \\ud83d was")])
    (run,) = read_recorded(path).runs
    assert run.question.encode().decode() == "Where � was Ada born?"


def test_runs_without_an_outcome_are_kept(tmp_path: Path) -> None:
    unlabelled = {key: value for key, value in ROUNDS.items() if key not in ("success", "score")}
    odd = unlabelled | {"traj_id": "r2", "success": "perhaps", "score": float("nan")}
    path = write_lines(tmp_path / "a.jsonl", [unlabelled, odd, ROUNDS | {"traj_id": "r3", "success": "false"}])
    assert [(run.failed, run.reward) for run in read_recorded(path).runs] == [(None, None), (None, None), (True, 1.0)]
    assert _faults(path) == [(i, "the record tells no outcome: kept without a label") for i in (1, 2)]


def test_an_id_that_repeats(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [ROUNDS, ROUNDS, ROUNDS])
    assert [run.run_id for run in read_recorded(path).runs] == ["r1", "r1@2", "r1@3"]
    assert _faults(path)[1] == (3, "the id 'r1' is that of line 1 already: kept as 'r1@3'")


def test_steps_that_are_empty(tmp_path: Path) -> None:
    steps = [{"thought": " ", "action": "", "observation": ""}, 7, ROUNDS["steps"][0], ROUNDS["steps"][1]]
    path = write_lines(tmp_path / "a.jsonl", [ROUNDS | {"steps": []}, ROUNDS | {"steps": steps}])
    (run,) = read_recorded(path).runs
    assert len(run.steps) == 2
    assert _faults(path) == [
        (1, "the record has no steps: left out"),
        (2, "step 1 is empty: left out"),
        (2, "step 2 is a number, not an object: left out"),
    ]


def test_a_last_round_without_a_turn(tmp_path: Path) -> None:
    blank = {"thought": "", "action": "", "argument": "", "observation": "Invalid action."}
    records = [ROUNDS | {"steps": [blank, ROUNDS["steps"][0], blank, blank]}, ROUNDS | {"steps": [blank]}]
    path = write_lines(tmp_path / "a.jsonl", records)
    (run,) = read_recorded(path).runs
    assert [(step.action, step.observation) for step in run.steps] == [("", "Invalid action."), ("search", "")]
    without = "the last round holds no turn of the agent: left out"
    assert _faults(path) == [(1, without), (1, without), (2, without), (2, "the record has no steps: left out")]


def test_tool_calls_without_a_result_and_results_without_a_call(tmp_path: Path) -> None:
    without = [message for message in MESSAGES["traj"] if message.get("tool_call_id") != "b"]
    stray = [*MESSAGES["traj"][:4], {"role": "tool", "tool_call_id": "z", "content": "7"}, *MESSAGES["traj"][4:]]
    path = write_lines(tmp_path / "a.jsonl", [MESSAGES | {"traj": without}, MESSAGES | {"traj": stray, "trial": 2}])
    assert [len(run.steps) for run in read_recorded(path).runs] == [4, 4]
    assert _faults(path) == [
        (1, "the call of 'transfer' in round 3 has no result: left empty"),
        (2, "message 5 is the result of a tool call that is not there: kept as an observation"),
    ]
    assert read_recorded(path).runs[1].steps[0].observation == "omar_7\n7"


def test_a_last_call_that_needs_no_answer_is_no_fault(tmp_path: Path) -> None:
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "finish", "arguments": {"answer": "x"}}}]}
    path = write_lines(tmp_path / "a.jsonl", [{"messages": [MESSAGES["traj"][1], call], "success": True}])
    assert _faults(path) == []
    assert read_recorded(path).runs[0].steps[0].text == 'Action: finish[{"answer": "x"}]'


def test_strange_items_in_lists(tmp_path: Path) -> None:
    swe = SWE_AGENT | {"trajectory": [*SWE_AGENT["trajectory"], None, {"action": "", "observation": ""}]}
    path = write_lines(tmp_path / "a.jsonl", [swe])
    assert [problem for _, problem in _faults(path)] == [
        "turn 4 is missing or null, not an object: left out",
        "turn 5 is empty: left out",
    ]
    events = OPENHANDS | {"history": ["?", {"observation": "run", "content": "early"}, *OPENHANDS["history"]]}
    assert _faults(write_lines(tmp_path / "c.jsonl", [MESSAGES | {"traj": [*MESSAGES["traj"], "?"]}])) == [
        (1, "message 12 has no role: left out")
    ]
    path = write_lines(tmp_path / "b.jsonl", [events])
    assert [problem for _, problem in _faults(path)] == [
        "event 1 is neither an action nor an observation: left out",
        "an observation (run) comes before any action: left out",
    ]
    assert len(read_recorded(path).runs[0].steps) == 3


def test_a_transcript_of_a_hundred_thousand_tokens(tmp_path: Path) -> None:
    words = "Observation of the [very {long page: " * 12_000
    long = ROUNDS | {"steps": [ROUNDS["steps"][0] | {"observation": words}, ROUNDS["steps"][1]]}
    text = {"text": REACT_TEXT.replace("Eda was born in Brosk.", words), "success": True}
    for name, record in (("a.jsonl", long), ("b.jsonl", text)):
        path = write_lines(tmp_path / name, [record])
        before = time.process_time()
        ((line, problem),) = _faults(path)
        assert time.process_time() - before < 5
        assert line == 1
        assert problem.startswith("a long transcript of 4")
        assert "some 11" in problem


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", r"holds no record"),
        ("\n \n", r"holds no record"),
        ("a,b\n1,2\n", r"neither JSON \(steps, .*react\) nor ReAct text \(no line begins with 'Question:'\)"),
        ("Question: Who?\nBob.\n", r"no line begins with 'Thought:' or 'Action:'"),
        ('{"_id": 1, "question": "?"}\n', r"tried steps, agentstop, .*nearest is 'steps', but on line 1 \(with _id, "),
        (
            '{"messages": [{"text": "x"}]}',
            r"nearest is 'messages', but on line 1 .* item 1 of 'messages' and most others have no 'role'",
        ),
        ('{"steps": [{"text": "x"}]}', r"nearest is 'agentstop', .* a step has no 'completion_tokens'"),
        ("[1, 2]", r"holds no JSON object"),
        ("[", r"holds no JSON object"),
    ],
)
def test_a_file_of_no_known_layout(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text(content)
    with pytest.raises(DataError, match=words) as refused:
        read_recorded(path)
    assert str(refused.value).startswith("a.txt ")
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot be read \(No such file or directory\); give a \.jsonl"):
        read_recorded(tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match="cannot be read"):
        read_recorded(tmp_path)


def _spoilt(value: Any, chance: np.random.Generator) -> Any:
    """The value with some of what it holds replaced, taken out or repeated."""

    def junk_or(item: Any) -> Any:
        return _JUNK[chance.integers(len(_JUNK))] if chance.random() < 0.03 else _spoilt(item, chance)

    if isinstance(value, dict):
        return {key: junk_or(item) for key, item in value.items() if chance.random() > 0.04}
    if isinstance(value, list):
        return [junk_or(item) for item in value for _ in range(1 + (chance.random() < 0.05))]
    return value


@pytest.mark.parametrize("sample", [ROUNDS, AGENTSTOP, SWE_AGENT, OPENHANDS, MESSAGES, {"text": REACT_TEXT}])
def test_spoilt_records_never_crash(tmp_path: Path, sample: dict[str, Any]) -> None:
    chance = np.random.default_rng(5)
    spoilt = [_spoilt(sample, chance) for _ in range(300)]
    read = read_recorded(write_lines(tmp_path / "a.jsonl", [*[sample] * 11, *spoilt]))
    left_out = {fault.line for fault in read.faults if fault.problem.startswith(("no record", "the record has no ste"))}
    assert len(read.runs) + len(left_out) == 311
    assert len(read.runs) > 100
    for run in read.runs:
        texts = [run.run_id, run.group, run.question]
        texts += [each for s in run.steps for each in (s.text, s.thought, s.action, s.argument, s.observation)]
        assert all(isinstance(text, str) for text in texts)
        assert (run.steps[-1].observation, run.steps[-1].observation_kind) == ("", "finish")
        assert run.group


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"outcome": "FAILURE"}, (True, None)),
        ({"outcome": "Failed"}, (True, None)),
        ({"outcome": "error"}, (None, None)),
        ({"outcome": "max_steps", "success": False}, (True, None)),
        ({"score": 55}, (None, 55.0)),  # of a hundred, or of ten: nothing tells
        ({"score": 1}, (False, 1.0)),
        ({"score": 10**400}, (None, None)),
    ],
)
def test_labels_in_odd_spellings_and_scales(told: dict[str, Any], expected: tuple[Any, Any], tmp_path: Path) -> None:
    bare = {key: value for key, value in ROUNDS.items() if key not in ("success", "score")}
    (run,) = read_recorded(write_lines(tmp_path / "a.jsonl", [bare | told])).runs
    assert (run.failed, run.reward) == expected


def test_a_label_that_its_reward_denies_is_a_fault(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [ROUNDS | {"success": True, "reward": 0.0}])
    assert _faults(path) == [(1, "the label is success, but the reward 0: kept so")]


def test_numbers_that_no_store_holds_are_left_out(tmp_path: Path) -> None:
    first = ROUNDS | {"temperature": float("nan"), "seed": 3}
    (run,) = read_recorded(write_lines(tmp_path / "a.jsonl", [first])).runs
    assert "temperature" not in run.attributes
    assert run.attributes["seed"] == 3
    step = {"text": "Thought: I look.", "completion_tokens": 3, "logprob_mean": float("nan"), "logprob_min": -1e400}
    (run,) = read_recorded(write_lines(tmp_path / "b.jsonl", [{"question": "Where?", "steps": [step]}])).runs
    assert run.attributes["step_numbers"] == [{"completion_tokens": 3}]


def test_utf_16_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(json.dumps(ROUNDS).encode("utf-16"))
    with pytest.raises(DataError, match=r"a.jsonl is UTF-16 text; save it as UTF-8"):
        read_recorded(path)


def test_what_follows_an_array_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(f"[{json.dumps(ROUNDS)}]\n[{json.dumps(ROUNDS)}]\n")
    assert len(read_recorded(path).runs) == 1
    assert _faults(path) == [(1, "something follows the end of the JSON array: left out")]
