"""Small made-up runs in the layouts in which agents' runs are published, and the places of the shared ones."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

SHARED = Path(__file__).parents[4] / "shared" / "data"
SHARED_FILES = tuple(sorted(SHARED.glob("trajectories_*.jsonl.gz")))

ROUNDS: dict[str, Any] = {
    "traj_id": "r1",
    "dataset": "hotpotqa",
    "model": "some-model",
    "task_key": "5a7",
    "question": "Where was Ada born?",
    "gold": "Brosk",
    "prediction": "Brosk",
    "success": True,
    "score": 1.0,
    "steps": [
        {
            "thought": "I search Ada.",
            "action": "search",
            "argument": "Ada",
            "observation": "Ada was born in Brosk.",
            "observation_kind": "content",
        },
        {
            "thought": "Known.",
            "action": "finish",
            "argument": "Brosk",
            "observation": None,
            "observation_kind": "finish",
        },
    ],
}

REACT_TEXT = """Question: Where was Ada born?
Thought 1: I need to search Ada.
Action 1: Search[Ada]
Observation 1: Could not find [Ada]. Similar: ['Eda'].
Thought 2: Perhaps Eda.
It may be spelt so.
Action 2: Search[Eda]
Observation 2: Eda was born in Brosk.
Action: this line is part of the page.
Thought 3: So the answer is Brosk. The answer is correct.
Action 3: Finish[Brosk]
Observation 3: """

REFLEXION_LOG = f"""
########################################
BEGIN TRIAL 2
Trial summary: Correct: 1, Incorrect: 1, Halted: 1
#######################################

------------- BEGIN CORRECT AGENTS -------------

{REACT_TEXT}Answer is CORRECT

Correct answer: Brosk

------------- BEGIN INCORRECT AGENTS -----------

You have attempted to answer following question before and failed. The following reflection(s) give a plan:
Reflections:
- In the previous trial I failed since I searched Ada.

{REACT_TEXT.replace("[Brosk]", "[Eda]")}Answer is INCORRECT

Correct answer: Brosk

------------- BEGIN HALTED AGENTS --------------

Question: How old is Bob?
Thought 1: I search Bob.
Action 1: Search[Bob]
Observation 1: Bob is a name.

Correct answer: 7
"""


def _call(identity: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


MESSAGES: dict[str, Any] = {
    "task_id": 7,
    "trial": 1,
    "reward": 0.0,
    "info": {"reward_info": {"reward": 0.0}, "task": {"instruction": "You are Omar and you are angry."}},
    "traj": [
        {"role": "system", "content": "You are an airline agent."},
        {"role": "user", "content": "Please cancel my flight."},
        {"role": "assistant", "content": "Your user id?"},
        {"role": "user", "content": "omar_7"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [_call("a", "get_user", user="omar_7")]},
        {"role": "tool", "tool_call_id": "a", "name": "get_user", "content": "Error: user not found"},
        {"role": "assistant", "tool_calls": [_call("b", "transfer"), _call("c", "note", text="angry")]},
        {"role": "tool", "tool_call_id": "c", "name": "note", "content": "noted"},
        {"role": "tool", "tool_call_id": "b", "name": "transfer", "content": "Transfer successful"},
        {"role": "assistant", "content": "A colleague takes over."},
        {"role": "user", "content": "###STOP###"},
    ],
}

SWE_AGENT: dict[str, Any] = {
    "environment": "swe_main",
    "instance_id": "org__repo-12",
    "trajectory": [
        {
            "action": "ls -F",
            "observation": "src/\n",
            "response": "Look around.\n```\nls -F\n```",
            "thought": "Look around.",
        },
        {"action": "python t.py", "observation": "Traceback (most recent call last):\n  x", "thought": "Run it."},
        {"action": "submit", "observation": "diff --git a/x b/x", "thought": "Done."},
    ],
    "history": [
        {"role": "system", "content": "SETTING"},
        {"role": "user", "content": "A demonstration", "is_demo": True},
        {"role": "user", "content": "Solve this issue: x is broken."},
    ],
    "info": {"exit_status": "submitted", "submission": "diff", "resolved": False},
}

OPENHANDS: dict[str, Any] = {
    "instance_id": "org__repo-13",
    "history": [
        {"id": 0, "source": "agent", "action": "system", "args": {"content": "You are OpenHands."}},
        {"id": 1, "source": "user", "action": "message", "args": {"content": "Fix the bug."}},
        {"id": 2, "source": "agent", "action": "run", "args": {"command": "ls", "thought": "Look.", "blocking": False}},
        {"id": 3, "source": "agent", "observation": "run", "content": "src", "extras": {"exit_code": 0}},
        {"id": 4, "source": "agent", "action": "edit", "args": {"path": "x.py", "content": "pass", "thought": ""}},
        {"id": 5, "source": "agent", "observation": "error", "content": "no such file"},
        {"id": 6, "source": "environment", "observation": "agent_state_changed", "content": ""},
        {"id": 7, "source": "agent", "action": "finish", "args": {"final_thought": "Done.", "task_completed": "true"}},
    ],
    "test_result": {"git_patch": "diff", "report": {"resolved": True}},
}

AGENTSTOP: dict[str, Any] = {
    "traj_id": "f1",
    "question": "Which club?",
    "success": False,
    "energy_total_mWh": 9.5,
    "steps": [
        {
            "kind": "LLM",
            "completion_tokens": 20,
            "logprob_mean": -0.1,
            "text": "<think>\n\n</think>\n\nThought: I search.\n<code>\nprint(web_search(query='club'))\n</code>",
        },
        {"kind": "LLM", "completion_tokens": 9, "text": "Thought: Done.\n<code>\nfinal_answer('A')\n"},
    ],
}


def write_lines(path: Path, records: Sequence[Any]) -> Path:
    """JSON Lines, gzipped where the name ends so; a record that is a text is written as it is."""
    lines = "".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in records).encode()
    path.write_bytes(gzip.compress(lines) if path.suffix == ".gz" else lines)
    return path


@cache
def read_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a gzipped JSON Lines file."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
