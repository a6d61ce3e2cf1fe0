from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_runs import HEADER, LAYERS, WIDTH, make_episode

from probecascade.episode import Episode, Outcome, Recording, Step
from probecascade.errors import DataError, NothingToDoError, UsageError
from probecascade.evaluation import failure_mode, failure_modes, losing_stretch, mode_table, override_modes
from probecascade.policies import FAILURE_MODES
from probecascade.store import Run, RunWriter

Turn = tuple[str, str, str]  # action, argument, kind of observation

READ: Turn = ("search", "Rome", "content")
MISSED: Turn = ("search", "Rom", "not_found")
BROKEN: Turn = ("search", "Rome", "tool_error")
MUTE: Turn = ("", "", "invalid")
END: Turn = ("finish", "Roma", "finish")
NEXT: Turn = ("finish", "Roma", "next_part")


def lost(*turns: Turn, outcome: Outcome = "failure", doomed: int | None = None, cut: bool = False) -> Episode:
    """A failed episode of these turns; a part ends where the next question is asked."""
    steps: list[Step] = []
    part = 1
    for number, (action, argument, kind) in enumerate(turns, 1):
        last = number == len(turns)
        reason = "turn_limit" if cut and last else "action" if action else "observation_cut"
        steps.append(Step(number, part, "", "", action, argument, "text", kind, 5, 5, reason))
        part += kind == "next_part"
    episode = make_episode("t", "g", failed=True, rounds=3, outcome=outcome)
    return replace(episode, steps=tuple(steps), doomed_round=doomed)


@pytest.mark.parametrize(
    ("episode", "mode"),
    [
        (lost(READ, END), "wrong_answer"),
        (lost(), "wrong_answer"),
        (lost(READ, READ, END), "wrong_answer"),  # a page looked up twice is no loop
        (lost(READ, READ, READ, END), "loop"),  # three in a row are
        (lost(READ, ("search", " rOmE ", "content"), READ, END), "loop"),  # however they are spelt
        (lost(READ, MISSED, READ, MISSED, READ, END), "loop"),  # so is going back and forth: 3 of 6
        (lost(READ, MISSED, READ, ("search", "Oslo", "content"), END), "wrong_answer"),  # 1 of 5 is not
        (lost(BROKEN, READ, END), "wrong_answer"),  # it tried again, as it was told, and found the page
        (lost(BROKEN, BROKEN, BROKEN, BROKEN, END), "tool_error"),  # trying again after an error is no repeat
        (lost(BROKEN, END), "tool_error"),
        (lost(READ, MISSED, END), "tool_error"),
        (lost(MISSED, MISSED, MUTE, END), "tool_error"),
        (lost(MISSED, READ, END), "wrong_answer"),  # what it missed at first it found at last
        (lost(MISSED, MISSED, MUTE, MUTE, MUTE, outcome="truncated"), "invalid_action"),
        (lost(READ, MUTE, END, MUTE), "invalid_action"),  # half of them are enough
        (lost(READ, READ, READ, MUTE, MUTE, MUTE, outcome="truncated"), "invalid_action"),  # goes before a loop
        (lost(("look", "Rome", "invalid"), ("look", "Rome", "invalid"), outcome="truncated"), "invalid_action"),
        (lost(READ, MISSED, ("finish", "I don’t know.", "finish")), "gave_up"),
        (lost(READ, ("finish", "UNKNOWN", "finish")), "gave_up"),
        (lost(READ, ("finish", "Unknownia", "finish")), "wrong_answer"),
        (lost(READ, MISSED, ("finish", "...", "finish")), "tool_error"),  # it copied the format, and admits nothing
        (lost(READ, ("search", "Oslo", "content"), outcome="truncated"), "out_of_budget"),
        (lost(READ, MUTE, outcome="truncated", cut=True), "out_of_budget"),  # the budget cut its last turn short
        (lost(MISSED, outcome="truncated"), "tool_error"),
        # lost in its first part, whatever it did in the others
        (lost(READ, NEXT, MISSED, MISSED, MISSED, END, doomed=2), "wrong_answer"),
        (lost(MISSED, NEXT, READ, END, doomed=2), "tool_error"),
        (lost(READ, NEXT, MUTE, MUTE, outcome="truncated", doomed=2), "wrong_answer"),
        # not known where it was lost: its last part says
        (lost(MISSED, NEXT, READ, END), "wrong_answer"),
        (lost(READ, NEXT, MISSED, END), "tool_error"),
    ],
)
def test_the_rules(episode: Episode, mode: str) -> None:
    assert failure_mode(episode) == mode
    assert mode in FAILURE_MODES


def test_the_losing_stretch_ends_where_it_was_doomed() -> None:
    episode = lost(READ, NEXT, READ, MISSED, NEXT, READ, END, doomed=5)
    assert [step.round for step in losing_stretch(episode)] == [3, 4, 5]


@pytest.mark.parametrize("outcome", ["success", "aborted", "error"])
def test_only_failures_fail_in_some_way(outcome: Outcome) -> None:
    with pytest.raises(DataError, match=f"ended as {outcome}: only failures"):
        failure_mode(lost(READ, END, outcome=outcome))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Three failures (two wrong answers, one truncated), a success and an error."""
    episodes = [
        replace(lost(READ, END, doomed=2), task_id="a", group="a", episode_id="a"),
        replace(lost(READ, READ, END, doomed=3), task_id="b", group="b", episode_id="b"),
        replace(lost(READ, outcome="truncated"), task_id="c", group="c", episode_id="c"),
        replace(lost(READ, END, outcome="success"), task_id="d", group="d", episode_id="d"),
        replace(lost(READ, outcome="error"), task_id="e", group="e", episode_id="e"),
    ]
    with RunWriter(tmp_path / "run", HEADER, layers=LAYERS, d_model=WIDTH, dtype="float32") as writer:
        for episode in episodes:
            writer.add(Recording(episode, np.zeros((len(episode.checkpoints), len(LAYERS), WIDTH), np.float32)))
    return Run.open(tmp_path / "run")


def test_every_failure_gets_one_mode_and_nothing_else_does(run: Run) -> None:
    assert failure_modes(run).tolist() == ["wrong_answer", "wrong_answer", "out_of_budget", "", ""]


def test_the_table(run: Run) -> None:
    wrong, budget = mode_table(run, failure_modes(run))
    assert (wrong.mode, wrong.count, wrong.share.value, wrong.share.n) == ("wrong_answer", 2, 2 / 3, 3)
    assert (wrong.doomed_round, wrong.doomed_known, wrong.examples) == (2.5, 2, ("a", "b"))
    assert wrong.tokens == run.episodes.tokens[:2].mean()
    assert (budget.mode, budget.count, budget.doomed_known) == ("out_of_budget", 1, 0)
    assert np.isnan(budget.doomed_round)
    with pytest.raises(NothingToDoError, match="no labelled episode"):
        mode_table(run, np.full(5, "", dtype=object))
    with pytest.raises(UsageError, match="3 modes were given for 5"):
        mode_table(run, np.full(3, "loop", dtype=object))


def test_a_file_overrides_the_rules(run: Run, tmp_path: Path) -> None:
    rules = failure_modes(run)
    table = tmp_path / "modes.csv"
    table.write_text("note,mode,episode_id\nsaw it, loop ,b\n", encoding="utf-8")
    assert override_modes(run, rules, table).tolist() == ["wrong_answer", "loop", "out_of_budget", "", ""]
    assert rules[1] == "wrong_answer"
    lines = tmp_path / "modes.jsonl"
    lines.write_text('{"episode_id": "a", "mode": "misread"}\n\n{"episode_id": "c", "mode": "loop"}\n')
    changed = override_modes(run, rules, lines, allow_new=True)
    assert changed.tolist() == ["misread", "wrong_answer", "loop", "", ""]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("m.csv", "episode_id,mode\nz,loop\n", r"line 2 of .*names the episode 'z', which is not in the run"),
        ("m.csv", "episode_id,mode\nd,loop\n", r"'d', which ended as success: leave it out"),
        ("m.csv", "episode_id,mode\ne,loop\n", r"'e', which ended as error"),
        ("m.csv", "episode_id,mode\na,loop\na,loop\n", r"line 3 of .* names the episode 'a' again"),
        ("m.csv", "episode_id,mode\na,lop\n", r"the mode 'lop': did you mean loop\? .*--allow-new"),
        ("m.csv", "episode_id,mode\na,misread\n", r"'misread': the modes are loop, invalid_action"),
        ("m.csv", "episode_id,mode\na,\n", r"the mode ''"),
        ("m.csv", "id,mode\na,loop\n", r"first line names episode_id and mode, each once"),
        ("m.csv", "", r"first line names"),
        ("m.csv", "a,loop\n", r"first line names"),
        ("m.csv", "episode_id,mode,mode\na,loop,loop\n", r"first line names"),
        ("m.json", '[{"episode_id": "a", "mode": "loop"}]', r"first line names"),
        ("m.csv", "episode_id,mode\n", r"gives no failure mode"),
        ("m.jsonl", "\n\n", r"gives no failure mode"),
        ("m.csv", "episode_id,mode\na," + "x" * 200_000, r"is no CSV \(field larger"),
        ("m.jsonl", "[" * 100_000, r"line 1 of .* is no JSON"),
        ("m.jsonl", '{"episode_id": "a", "mode": "loop", "mode": "loop"}', r"line 1 .*a key is repeated"),
        ("m.csv", "episode_id,mode\na\n", r"line 2 of .* lacks episode_id or mode"),
        ("m.jsonl", '{"episode_id": "a"}\n', r"line 1 of .* lacks"),
        ("m.jsonl", "[1]\n", r"line 1 of .* lacks"),
        ("m.jsonl", "{\n", r"line 1 of .* is no JSON"),
        ("m.csv", b"\xff\xfe\x00", r"is no UTF-8 text"),
    ],
)
def test_a_file_that_cannot_be_right_is_refused(
    run: Run, tmp_path: Path, name: str, text: str | bytes, says: str
) -> None:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=says):
        override_modes(run, failure_modes(run), path)


def test_a_new_mode_needs_a_name(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text("episode_id,mode\na,\n", encoding="utf-8")
    with pytest.raises(DataError, match="the mode ''"):
        override_modes(run, failure_modes(run), path, allow_new=True)


@pytest.mark.parametrize("mode", ["success", "a\nb", "\x1b[2J", "\u200b", "\ud800"])
def test_a_new_mode_is_plain_text_and_no_success(run: Run, tmp_path: Path, mode: str) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(json.dumps({"episode_id": "a", "mode": mode}), encoding="utf-8")
    with pytest.raises(DataError, match="give a failure mode, as plain text"):
        override_modes(run, failure_modes(run), path, allow_new=True)


def test_json_lines_end_at_line_feeds_alone(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes('{"episode_id": "a", "mode": "loop", "note": "one\u2028two\x85three"}\r\n'.encode())
    assert override_modes(run, failure_modes(run), path).tolist()[0] == "loop"


def test_a_failure_without_a_transcript_has_no_mode(tmp_path: Path) -> None:
    """Imported states come without rounds: nothing says how such an episode failed."""
    bare = replace(lost(READ, END), episode_id="bare", steps=())
    told = replace(lost(READ, END), episode_id="told")
    for name, episodes, modes in (("mixed", (bare, told), ["", "wrong_answer"]), ("bare", (bare,), [""])):
        with RunWriter(tmp_path / name, HEADER, layers=LAYERS, d_model=WIDTH) as writer:
            for episode in episodes:
                writer.add(Recording(episode, np.zeros((len(episode.checkpoints), len(LAYERS), WIDTH), np.float32)))
        run = Run.open(tmp_path / name)
        assert failure_modes(run).tolist() == modes
    with pytest.raises(NothingToDoError, match="has a transcript to read it from"):
        mode_table(run, failure_modes(run))
