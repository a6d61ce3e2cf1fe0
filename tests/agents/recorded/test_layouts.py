"""Every layout: what is read of a run, and how the layout is found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from probecascade.agents.recorded import LAYOUTS, RecordedRun, RecordedStep, read_recorded
from probecascade.errors import DataError, UsageError

from .recorded_samples import (
    AGENTSTOP,
    MESSAGES,
    OPENHANDS,
    REACT_TEXT,
    REFLEXION_LOG,
    ROUNDS,
    SWE_AGENT,
    write_lines,
)


def _only(path: Path, layout: str) -> RecordedRun:
    read = read_recorded(path)
    assert (read.layout, read.faults) == (layout, ())
    (run,) = read.runs
    return run


def test_rounds(tmp_path: Path) -> None:
    run = _only(write_lines(tmp_path / "a.jsonl.gz", [ROUNDS]), "steps")
    assert (run.run_id, run.task_id, run.group) == ("r1", "5a7", "5a7")
    assert (run.question, run.failed, run.reward) == ("Where was Ada born?", False, 1.0)
    assert run.steps == (
        RecordedStep(
            text="I search Ada.\nAction: Search[Ada]",
            thought="I search Ada.",
            action="search",
            argument="Ada",
            observation="Ada was born in Brosk.",
            observation_kind="content",
        ),
        RecordedStep("Known.\nAction: Finish[Brosk]", "Known.", "finish", "Brosk", "", "finish"),
    )
    assert dict(run.attributes) == {"dataset": "hotpotqa", "model": "some-model"}


def test_an_action_without_a_tool_keeps_its_words(tmp_path: Path) -> None:
    step = {"thought": "Hm.", "action": "", "argument": "Ada]\nsearch[Bob", "observation": "Invalid action."}
    run = _only(write_lines(tmp_path / "a.jsonl", [ROUNDS | {"steps": [step, *ROUNDS["steps"]]}]), "steps")
    assert (run.steps[0].text, run.steps[0].action) == ("Hm.\nAction: Ada]\nsearch[Bob", "")
    assert run.steps[0].observation_kind == "invalid"


def test_commands_of_a_game(tmp_path: Path) -> None:
    record = {
        "question": "put a mug on the desk.",
        "initial_observation": "You are in a room.\nYour task is to: put a mug on the desk.",
        "success": False,
        "steps": [
            {
                "thought": "Go.",
                "action": "go to shelf 1",
                "observation": "Nothing happens.",
                "observation_kind": "content",
            },
            {"thought": "", "action": "Search[the mug]", "observation": "You see a mug."},
            {"thought": "", "action": "look", "observation": "No results found."},
            {"thought": "", "action": "look", "observation": "a"},
        ],
    }
    run = _only(write_lines(tmp_path / "a.jsonl", [record]), "steps")
    assert run.question == record["initial_observation"]
    assert [(step.action, step.argument) for step in run.steps[:3]] == [
        ("go", "to shelf 1"),
        ("search", "the mug"),
        ("look", ""),
    ]
    assert run.steps[0].text == "Go.\nAction: go to shelf 1"
    assert [step.observation_kind for step in run.steps] == ["invalid", "content", "not_found", "finish"]


def test_episodes_of_the_project_itself(tmp_path: Path) -> None:
    step = {"text": " I know.\nAction: Finish[x]", "thought": "I know.", "action": "finish", "argument": "x"}
    records = [
        {"episode_id": outcome, "group": "g", "question": "Why?", "outcome": outcome, "reward": 0.0, "steps": [step]}
        for outcome in ("success", "failure", "truncated", "aborted", "error")
    ]
    runs = read_recorded(write_lines(tmp_path / "a.jsonl", records)).runs
    assert [run.failed for run in runs] == [False, True, True, None, None]
    assert {(run.group, run.steps[0].text) for run in runs} == {("g", step["text"])}


def test_numbers_of_agentstop_are_kept(tmp_path: Path) -> None:
    run = _only(write_lines(tmp_path / "a.jsonl", [AGENTSTOP]), "agentstop")
    assert [step.action for step in run.steps] == ["web_search", "final_answer"]
    assert (run.steps[0].thought, run.steps[0].text) == ("I search.", AGENTSTOP["steps"][0]["text"])
    assert run.attributes["step_numbers"] == [{"completion_tokens": 20, "logprob_mean": -0.1}, {"completion_tokens": 9}]


@pytest.mark.parametrize("name", ["text", "trajectory", "prompt"])
def test_react_text_in_a_field(tmp_path: Path, name: str) -> None:
    examples = "Question: How far?\nThought 1: Far.\nAction 1: Finish[far]\n\n"
    record = {"id": 3, name: f"{examples}{REACT_TEXT}Answer is CORRECT\n"}
    run = _only(write_lines(tmp_path / "a.jsonl", [record]), "react")
    assert (run.run_id, run.question, run.failed) == ("3", "Where was Ada born?", False)
    assert [(step.action, step.argument, step.observation_kind) for step in run.steps] == [
        ("search", "Ada", "not_found"),
        ("search", "Eda", "content"),
        ("finish", "Brosk", "finish"),
    ]
    assert run.steps[1].text == "Perhaps Eda.\nIt may be spelt so.\nAction 2: Search[Eda]"
    assert run.steps[1].thought == "Perhaps Eda.\nIt may be spelt so."
    assert run.steps[1].observation.endswith("Action: this line is part of the page.")
    assert run.steps[2].thought.endswith("The answer is correct.")  # what the agent believes stays


def test_the_question_of_a_record_chooses_among_those_of_its_text(tmp_path: Path) -> None:
    record = {
        "question": "Where was Ada born?",
        "success": True,
        "text": f"{REACT_TEXT}\n\nQuestion: What else?\nThought 1: An invented question.\nAction 1: Finish[x]",
    }
    read = read_recorded(write_lines(tmp_path / "a.jsonl", [record]))
    assert [fault.problem for fault in read.faults] == ["another question follows the run's own: left out"]
    (run,) = read.runs
    assert run.question == "Where was Ada born?"
    assert run.steps[0].argument == "Ada"
    assert run.steps[-1].argument == "Brosk"


def test_a_log_of_reflexion_trials(tmp_path: Path) -> None:
    path = tmp_path / "2_trials.txt"
    path.write_text(REFLEXION_LOG)
    read = read_recorded(path)
    assert read.layout == "react"
    assert [(run.failed, run.attributes["trial"], run.question) for run in read.runs] == [
        (False, 2, "Where was Ada born?"),
        (True, 2, "Where was Ada born?"),
        (True, 2, "How old is Bob?"),
    ]
    assert [run.group for run in read.runs] == ["where was ada born"] * 2 + ["how old is bob"]
    assert len({run.run_id for run in read.runs}) == 3
    assert [len(run.steps) for run in read.runs] == [3, 3, 1]


def test_what_a_log_repeats_in_every_trial_is_one_run(tmp_path: Path) -> None:
    solved = f"{REACT_TEXT}Answer is CORRECT\nCorrect answer: Brosk\n\n"
    failed = "Question: How old is Bob?\nThought 1: Easy.\nAction 1: Finish[7]\nObservation 1: Answer is INCORRECT\n"
    trial = (
        "BEGIN TRIAL {}\n####################\n--- BEGIN CORRECT AGENTS ---\n\n{}--- BEGIN INCORRECT AGENTS ---\n{}\n"
    )
    path = tmp_path / "log.txt"
    path.write_text(trial.format(1, solved, failed) + trial.format(2, solved, failed.replace("[7]", "[8]")))
    read = read_recorded(path)
    assert [(run.attributes["trial"], run.failed) for run in read.runs] == [(1, False), (1, True), (2, True)]
    assert [fault.problem for fault in read.faults] == ["the same run as on line 5: left out"]


def test_what_reflexion_puts_between_question_and_rounds(tmp_path: Path) -> None:
    failed = "You have attempted to answer following question before and failed."
    reflected = f"Question: Who is Bob ?{failed} Use this plan.\nReflections:\n- I should have searched Eve.\n"
    quoted = (
        f"Question: Who is Bob ?{failed} Below is the last trial you attempted to answer the question.\n"
        "Question: Who is Bob ?\nThought 1: Hm.\nAction 1: Finish[Eve]\nObservation 1: Answer is INCORRECT\n"
        "(END PREVIOUS TRIAL)\n"
    )
    rounds = "Thought 1: Easy.\nAction 1: Finish[Bob]\nObservation 1: "
    path = tmp_path / "log.txt"
    path.write_text(f"{reflected}{rounds}Answer is CORRECT\n\n{quoted}{rounds}Answer is CORRECT\n")
    runs = read_recorded(path).runs
    assert [(run.question, run.failed, run.steps[0].argument) for run in runs] == [("Who is Bob ?", False, "Bob")] * 2
    assert [len(run.steps) for run in runs] == [1, 1]


def test_a_prompt_of_knowagent(tmp_path: Path) -> None:
    record = {
        "question": "Where was Ada born?",
        "answer": "Brosk",
        "correct": True,
        "reward": 1.0,
        "prompt": "The graph.\nQuestion: Which? (END OF EXAMPLES)\nQuestion: Where was Ada born?\nActionPath 1: Start\n"
        "Thought 1: From Start.\nAction 1: Retrieve[Ada]\nObservation 1: A page.\nActionPath 2: Start->Retrieve[Ada]\n"
        "Thought 2: Known.\nAction 2: Finish[Brosk]\nObservation 2: Answer is CORRECT",
    }
    run = _only(write_lines(tmp_path / "a.jsonl", [record]), "react")
    assert (run.question, run.failed, run.reward) == ("Where was Ada born?", False, 1.0)
    assert [(step.action, step.argument, step.observation) for step in run.steps] == [
        ("retrieve", "Ada", "A page."),
        ("finish", "Brosk", ""),
    ]
    assert run.steps[0].text == "ActionPath 1: Start\nThought 1: From Start.\nAction 1: Retrieve[Ada]"


def test_messages_with_tool_calls(tmp_path: Path) -> None:
    run = _only(write_lines(tmp_path / "a.jsonl", [MESSAGES]), "messages")
    assert (run.run_id, run.group, run.failed, run.reward) == ("7-1", "7", True, 0.0)
    assert run.question == "Please cancel my flight."  # not the script of the simulated user
    assert [(step.action, step.observation, step.observation_kind) for step in run.steps] == [
        ("respond", "omar_7", "content"),
        ("get_user", "Error: user not found", "tool_error"),
        ("transfer", "noted\nTransfer successful", "content"),
        ("respond", "", "finish"),
    ]
    assert (run.steps[0].text, run.steps[0].thought, run.steps[0].argument) == ("Your user id?", "", "Your user id?")
    assert run.steps[1].thought == "Let me see."
    assert run.steps[1].text == 'Let me see.\nAction: get_user[{"user": "omar_7"}]'
    assert run.steps[2].text == 'Action: transfer[{}]\nAction: note[{"text": "angry"}]'


@pytest.mark.parametrize("form", ["array", "object", "messages alone"])
def test_json_that_is_no_json_lines(tmp_path: Path, form: str) -> None:
    record = {"array": [MESSAGES], "object": MESSAGES, "messages alone": MESSAGES["traj"]}[form]
    path = tmp_path / "gpt-4o-airline.json"
    path.write_text(json.dumps(record, indent=2))
    read = read_recorded(path)
    assert read.layout == "messages"
    assert len(read.runs[0].steps) == 4


def test_a_greeting_is_no_turn(tmp_path: Path) -> None:
    messages = [
        {"role": "assistant", "content": "Hi! How can I help?"},
        {"role": "user", "content": [{"type": "text", "text": "Add 1 and 2."}]},
        {"role": "assistant", "function_call": {"name": "add", "arguments": "no json"}},
        {"role": "function", "name": "add", "content": "3"},
        {"role": "assistant", "content": "3"},
    ]
    read = read_recorded(write_lines(tmp_path / "a.jsonl", [{"messages": messages, "success": 1}]))
    (run,) = read.runs
    assert (run.question, run.failed) == ("Add 1 and 2.", False)
    assert [step.text for step in run.steps] == ["Action: add[no json]", "3"]
    assert [fault.problem for fault in read.faults] == ["message 1 greets before the agent is asked anything: left out"]


def test_turns_of_swe_agent(tmp_path: Path) -> None:
    path = tmp_path / "org__repo-12.traj"
    path.write_text(json.dumps(SWE_AGENT, indent=1))
    run = _only(path, "swe-agent")
    assert (run.task_id, run.group, run.failed) == ("org__repo-12", "org__repo-12", True)
    assert run.question == "Solve this issue: x is broken."
    assert [(step.action, step.argument, step.observation_kind) for step in run.steps] == [
        ("ls", "-F", "content"),
        ("python", "t.py", "tool_error"),
        ("submit", "", "finish"),
    ]
    assert [step.text for step in run.steps] == [
        "Look around.\n```\nls -F\n```",
        "Run it.\nAction: python t.py",
        "Done.\nAction: submit",
    ]


def test_a_message_of_openhands_is_a_reply(tmp_path: Path) -> None:
    said = {"source": "agent", "action": "message", "args": {"content": "Which bug?"}}
    answered = {"source": "user", "action": "message", "args": {"content": "The red one."}}
    events = OPENHANDS["history"]
    record = OPENHANDS | {"history": [*events[:2], said, answered, *events[2:]]}
    run = _only(write_lines(tmp_path / "a.jsonl", [record]), "openhands")
    assert run.steps[0] == RecordedStep("Which bug?", "", "respond", "Which bug?", "The red one.", "content")


@pytest.mark.parametrize("form", ["record", "events alone", "pairs"])
def test_events_of_openhands(tmp_path: Path, form: str) -> None:
    events = OPENHANDS["history"]
    record = {
        "record": OPENHANDS,
        "events alone": events,
        "pairs": OPENHANDS | {"history": [events[:1], *([events[i], events[i + 1]] for i in (1, 3, 5)), events[7:]]},
    }[form]
    path = tmp_path / "output.json"
    path.write_text(json.dumps(record))
    read = read_recorded(path)
    (run,) = read.runs
    assert (read.layout, run.question) == ("openhands", "Fix the bug.")
    assert run.failed is (None if form == "events alone" else False)
    assert [(step.text, step.action, step.observation, step.observation_kind) for step in run.steps] == [
        ("Look.\nAction: Run[ls]", "run", "src", "content"),
        (
            'Action: Edit[{"path": "x.py", "content": "pass"}]',
            "edit",
            "no such file",
            "tool_error",
        ),
        ('Action: Finish[{"final_thought": "Done.", "task_completed": "true"}]', "finish", "", "finish"),
    ]


def test_two_agents_on_one_question_share_a_group(tmp_path: Path) -> None:
    wordings = ["Where was  Ada born?", "where was ada born", "WHERE WAS ADA BORN ? "]
    keyed = [ROUNDS | {"traj_id": str(i), "task_key": text, "question": text} for i, text in enumerate(wordings)]
    plain = [{key: each[key] for key in ("question", "success", "steps")} for each in keyed]
    other = ROUNDS | {"traj_id": "9", "task_key": "", "question": "Where was Bob born?"}
    runs = read_recorded(write_lines(tmp_path / "a.jsonl", [*keyed, *plain, other])).runs
    assert [run.group for run in runs] == ["where was ada born"] * 6 + ["where was bob born"]


def test_a_layout_can_be_named(tmp_path: Path) -> None:
    both = MESSAGES | {"text": REACT_TEXT}
    path = write_lines(tmp_path / "a.jsonl", [both])
    assert read_recorded(path).layout == "messages"
    assert read_recorded(path, "react").runs[0].steps[0].argument == "Ada"
    with pytest.raises(UsageError, match=r"no layout 'csv'.*steps, agentstop, swe-agent, openhands, messages, react"):
        read_recorded(path, "csv")
    with pytest.raises(DataError, match=r"holds no run of the layout 'steps' \(line 1: .*'steps' is missing or null"):
        read_recorded(path, "steps")
    assert len(LAYOUTS) == 6
