"""No text that tells how a run ended stays in it; the same text untreated tells it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from probecascade.agents.recorded import RecordedRun, RecordedStep, read_counted, read_recorded, verdicts
from probecascade.agents.recorded.closing import closed, told_failed, without_reflections, without_verdicts

from .recorded_samples import MESSAGES, REACT_TEXT, REFLEXION_LOG, ROUNDS, write_lines

VERDICTS = {  # as the environments write them: the words, and whether they say that the run failed
    "Episode finished, reward = 0": True,
    "Observation 3: Episode finished, reward = False": True,
    "Episode finished, reward = 1": False,
    "Answer is CORRECT": False,
    "Answer is INCORRECT": True,
    "Your score (min 0.0, max 1.0): 0.5": True,
    "Your score (min 0.0, max 1.0)\n1.0": False,
    "*** You have won ***": False,
    "*** You lost! ***": True,
    "You won!": False,
    "STATUS: FAIL": True,
    "STATUS: OK": False,
    "{'steps': 3, 'answer': 'x', 'gt_answer': 'REFUTES', 'em': 0, 'reward': 0, 'f1': 0}": True,
    '{"reward": 1.0, "r_actions": true}': False,
    "Correct answer: Brosk": None,
    "episode finished: reward=1": False,
    "Episode finished, reward: 0": True,
    "ANSWER IS INCORRECT": True,
    "Answer\u00a0is  CORRECT": False,
    "{'reward': False, 'em': False}": True,
    "You lost!": True,
    "Correct Answer: Brosk": None,
    "ground truth: SUPPORTS": None,
    "Ground truth: SUPPORTS": None,
    "You scored 3 out of a possible 5": None,
}
BELIEFS = (
    "The answer is correct. No further actions are needed.",
    "My task is completed. I won!",
    "He was rewarded for the correct answer and scored 5 points.",
    "This film won a reward = prize of 1 million.",
    "My score is good: *** five stars ***",
)


def _text(run: RecordedRun) -> str:
    return "\n".join([run.question, *(f"{s.text}\n{s.thought}\n{s.argument}\n{s.observation}" for s in run.steps)])


def _step(action: str = "search", observation: str = "seen", thought: str = "I think.") -> RecordedStep:
    return RecordedStep(f"{thought}\nAction: {action}[x]", thought, action, "x", observation, "content")


@pytest.mark.parametrize("words", VERDICTS)
def test_a_verdict_is_found_told_and_cut_out(words: str) -> None:
    text = f"A page of text.\n{words}\nThe next page."
    assert len(verdicts(text)) == 1
    assert told_failed(text) is VERDICTS[words]
    assert without_verdicts(text) == "A page of text.\n\nThe next page."


@pytest.mark.parametrize("words", BELIEFS)
def test_what_an_agent_believes_is_no_verdict(words: str) -> None:
    assert without_verdicts(words) == words
    assert told_failed(words) is None


def test_the_last_verdict_counts() -> None:
    assert told_failed("Answer is INCORRECT\nNext trial\nAnswer is CORRECT") is False
    assert told_failed("Answer is CORRECT\nNext trial\nAnswer is INCORRECT") is True


def test_a_run_ends_with_its_first_finish_and_without_an_observation() -> None:
    end = closed([_step(), _step("finish", "Answer is CORRECT"), _step(), _step("finish", "")])
    assert [(s.action, s.observation, s.observation_kind) for s in end.steps] == [
        ("search", "seen", "content"),
        ("finish", "", "finish"),
    ]
    assert (end.after_finish, end.observation, end.verdicts) == (2, True, ())
    assert closed([]).steps == ()


def test_a_run_that_was_cut_off_ends_like_one_that_was_won() -> None:
    won = closed([_step(), _step("put", "You put the mug on the desk.")])
    lost = closed([_step(), _step("put", "Nothing happens.")])
    assert won == lost


def test_a_verdict_inside_a_run_is_cut_out_of_every_field() -> None:
    end = closed([_step(thought="I think.\nObservation: Episode finished, reward = False"), _step("finish")])
    assert end.verdicts == ("Observation: Episode finished, reward = False",)
    assert end.steps[0].thought == "I think."
    assert end.steps[0].text == "I think.\n\nAction: search[x]"


def test_untreated_records_tell_and_treated_ones_do_not(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(REFLEXION_LOG)
    assert len(verdicts(REFLEXION_LOG)) >= 6
    read = read_recorded(path)
    for run in read.runs:
        assert not verdicts(_text(run))
        assert "CORRECT" not in _text(run)
        assert "Reflection" not in _text(run)
        assert "previous trial" not in _text(run)
    # The two runs on one question differ in their answer alone.
    right, wrong = (_text(run) for run in read.runs[:2])
    assert right.replace("[Brosk]", "[Eda]").replace("\nBrosk\n", "\nEda\n") == wrong


def test_a_label_that_only_the_text_tells_is_kept_as_a_label(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [
        {"text": f"{REACT_TEXT}Answer is CORRECT\n"},
        {"text": f"{REACT_TEXT}Episode finished, reward = 0\n"},
        {"text": REACT_TEXT},
    ]
    runs = read_recorded(write_lines(tmp_path / "a.jsonl", records)).runs
    assert [run.failed for run in runs] == [False, True, None]
    assert len({_text(run) for run in runs}) == 1


def test_what_was_dropped_is_counted(tmp_path: Path) -> None:
    told = {"thought": "Observation: Episode finished, reward = 1", "action": "search", "argument": "a"}
    closing = {"thought": "", "action": "finish", "argument": "b", "observation": "Answer is CORRECT"}
    record = ROUNDS | {"steps": [ROUNDS["steps"][0], told | {"observation": "x"}, closing, told]}
    reading = read_counted(write_lines(tmp_path / "a.jsonl", [record, MESSAGES | {"steps": [closing]}]))
    assert reading.dropped == {"closing observations": 2, "rounds after finish": 1, "verdicts": 1}
    assert [(fault.line, fault.problem[:40]) for fault in reading.file.faults] == [
        (1, "a round follows the first action 'finish"),
        (1, "the text tells the outcome ('Observation"),
        (2, "the record has no question: kept with an"),
    ]


def test_reflections_leave_the_question(tmp_path: Path) -> None:
    asked = (
        "You have attempted to answer following question before and failed. The following reflection(s) give a plan.\n"
        "Reflections:\n- I failed since I searched Ada.\n\nWho is Ada?"
    )
    assert without_reflections(asked) == "Who is Ada?"
    assert without_reflections("Who failed before?") == "Who failed before?"
    record = {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": "Ada."}]}
    assert read_recorded(write_lines(tmp_path / "a.jsonl", [record])).runs[0].question == "Who is Ada?"


def test_the_gold_answer_is_kept_nowhere(tmp_path: Path) -> None:
    record = ROUNDS | {"gold": "GOLDEN", "prediction": "PREDICTED", "f1": 0.123}
    (run,) = read_recorded(write_lines(tmp_path / "a.jsonl", [record])).runs
    assert not any(word in repr(run) for word in ("GOLDEN", "PREDICTED", "0.123"))


@pytest.mark.parametrize(
    "written", ["Finish(x)", "**Finish[x]**", "`finish[x]`", "Finish: x", "Finish[x", "Finish[x].", "FINISH"]
)
@pytest.mark.parametrize("kind", ["fields", "text"])
def test_a_run_ends_with_its_finish_however_it_is_written(written: str, kind: str, tmp_path: Path) -> None:
    after = "You were told that it is wrong."
    if kind == "fields":
        steps = [
            {"thought": "I know.", "action": written, "observation": after},
            {"thought": after, "action": "Search[b]", "observation": "b"},
        ]
        path = write_lines(tmp_path / "a.jsonl", [{"question": "Where?", "success": False, "steps": steps}])
    else:
        path = tmp_path / "a.txt"
        path.write_text(
            f"Question: Where?\nThought: I know.\nAction: {written}\nObservation: {after}\n"
            f"Thought: {after}\nAction: Search[b]\nObservation: b\n"
        )
    reading = read_counted(path)
    assert after not in _text(reading.runs[0])
    assert reading.dropped["rounds after finish"] == 1


@pytest.mark.parametrize("action", ["finishing[x]", "finish_line[x]", "search[finish]", "refinish[x]"])
def test_other_actions_end_no_run(action: str, tmp_path: Path) -> None:
    steps = [{"thought": "I go on.", "action": action, "observation": "a"}, ROUNDS["steps"][-1]]
    (run,) = read_recorded(write_lines(tmp_path / "a.jsonl", [ROUNDS | {"steps": steps}])).runs
    assert len(run.steps) == 2


@pytest.mark.parametrize("field", ["question", "initial_observation"])
def test_what_is_told_of_earlier_trials_leaves_the_question_of_rounds_too(field: str, tmp_path: Path) -> None:
    told = "You are in a room.\n\nYour memory for the task below:\nTrial 0: I failed."
    (run,) = read_recorded(write_lines(tmp_path / "a.jsonl", [ROUNDS | {field: told}])).runs
    assert "You are in a room." in run.question
    assert "failed" not in run.question
