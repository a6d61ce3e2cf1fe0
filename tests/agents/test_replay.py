"""Recorded runs read by an observer: against the live loop on the same text, and by hand where live has nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from short_episodes import AGAIN, FINISH, KINDS, NOTHING, PAGE, RIGHT, SEARCH, TEMPLATE, WRONG, play

from probecascade.agents.layout import LaidRun, lay_out, opening_of, thought_place, tokens_for
from probecascade.agents.react import AgentSettings
from probecascade.agents.recorded import RecordedRun, RecordedStep
from probecascade.agents.replay import replay
from probecascade.agents.templates import recorded_chat_template, recorded_template
from probecascade.episode import SIGNALS, Checkpoint, Episode, Observation, Recording
from probecascade.testing import ScriptedModel

LIMIT = 10_000
KNOWN = tuple(kind for kind in KINDS if kind != "part")


def recorded(episode: Episode, question: str = "Where was Ada born?", **changes: Any) -> RecordedRun:
    """What another agent's log would hold of this episode."""
    steps = tuple(
        RecordedStep(s.text, s.thought, s.action, s.argument, s.observation, s.observation_kind) for s in episode.steps
    )
    made = RecordedRun(
        episode.episode_id, episode.task_id, episode.group, question, steps, episode.failed, episode.reward, {"hops": 1}
    )
    return dataclasses.replace(made, **changes)


def read(run: RecordedRun, limit: int = LIMIT, kinds: tuple[str, ...] = KNOWN, template: Any = TEMPLATE) -> Recording:
    model = ScriptedModel([])
    settings = AgentSettings(checkpoints=kinds, store_dtype="float32")
    (found,) = model.run([replay(model, run, template, settings, limit)])
    return found


def timeless(points: tuple[Checkpoint, ...], **changes: Any) -> list[Checkpoint]:
    return [dataclasses.replace(point, seconds=0.0, checks={}, **changes) for point in points]


@pytest.mark.parametrize(
    ("turns", "observations"),
    [
        ([SEARCH, FINISH], [PAGE, RIGHT]),
        ([SEARCH, AGAIN, FINISH], [NOTHING, PAGE, WRONG]),
        ([SEARCH, " Eh.\nAction: Search[Bo]", FINISH], [Observation("Down.", "tool_error"), NOTHING, RIGHT]),
    ],
)
def test_a_run_read_again_is_the_run_that_was_played(turns: list[str], observations: list[Observation]) -> None:
    live = play(turns, observations, checkpoints=KNOWN)
    found = read(recorded(live.episode))
    ours, theirs = found.episode, live.episode
    assert ours.token_ids.tolist() == theirs.token_ids.tolist()
    assert timeless(ours.checkpoints) == timeless(theirs.checkpoints)
    np.testing.assert_array_equal(found.hidden, live.recording.hidden)
    for field in (
        "episode_id",
        "task_id",
        "group",
        "outcome",
        "reward",
        "prompt_tokens",
        "generated",
        "observed",
        "calls",
    ):
        assert getattr(ours, field) == getattr(theirs, field), field
    told = [dataclasses.replace(step, finish_reason="recorded") for step in theirs.steps]
    assert list(ours.steps) == told
    assert ours.reason == "recorded"


def test_seconds_are_shared_out_over_the_ids() -> None:
    found = read(recorded(play([SEARCH, FINISH]).episode)).episode
    pace = found.seconds / len(found.token_ids)
    assert pace > 0
    assert [c.seconds for c in found.checkpoints[1:]] == pytest.approx(
        [pace * (end + 1) for end in _ends_of_pieces(found)]
    )


def _ends_of_pieces(episode: Episode) -> list[int]:
    """The last position of the piece (turn or observation) that each checkpoint after the prompt stands in."""
    by_round = {c.round: c.position for c in episode.checkpoints if c.kind == "action"}
    return [c.position if c.kind == "observation" else by_round[c.round] for c in episode.checkpoints[1:]]


@pytest.mark.parametrize(("failed", "reward", "outcome", "kept"), [
    (None, None, "unlabelled", 0.0), (True, None, "failure", 0.0), (False, None, "success", 1.0),
    (True, 0.4, "failure", 0.4), (None, 0.7, "unlabelled", 0.7),
])  # fmt: skip
def test_outcomes(failed: bool | None, reward: float | None, outcome: str, kept: float) -> None:
    run = recorded(play([SEARCH, FINISH]).episode, failed=failed, reward=reward)
    found = read(run).episode
    assert (found.outcome, found.reward, found.labelled) == (outcome, kept, failed is not None)
    assert dict(found.attributes) == {"hops": 1}


def test_the_last_turn_is_final_whatever_ends_it() -> None:
    live = play([SEARCH, AGAIN, FINISH], [PAGE, PAGE, RIGHT]).episode
    run = recorded(live)
    cut = dataclasses.replace(run, steps=run.steps[:2])
    assert [c.name for c in read(cut).episode.checkpoints if c.final] == ["action:2"]


def test_a_round_without_an_observation_has_no_such_checkpoint() -> None:
    run = recorded(play([SEARCH, FINISH]).episode)
    silent = dataclasses.replace(run, steps=(dataclasses.replace(run.steps[0], observation=""), run.steps[1]))
    found = read(silent).episode
    assert [c.name for c in found.checkpoints] == ["prompt", "thought:1", "action:1", "thought:2", "action:2"]
    text = ScriptedModel([])
    read_ids = text.encode(TEMPLATE.head + TEMPLATE.first) + text.encode(run.question) + text.encode(TEMPLATE.cue)
    read_ids += text.encode(SEARCH) + text.encode(TEMPLATE.cue) + text.encode(FINISH)
    assert found.token_ids.tolist() == read_ids


def test_turns_without_an_action_count_as_failed_and_have_no_thought_checkpoint() -> None:
    step = RecordedStep(" Let me think.", "Let me think.", "", "", "", "invalid")
    found = read(RecordedRun("r", "t", "g", "Q?", (step, step), True)).episode
    assert [c.name for c in found.checkpoints] == ["prompt", "action:1", "action:2"]
    signals = [dict(zip(SIGNALS, c.signals, strict=True)) for c in found.checkpoints]
    assert [s["failed_actions"] for s in signals] == [0, 1, 2]
    assert [s["repeated_actions"] for s in signals] == [0, 0, 1]
    assert found.calls == 0


def test_a_refused_action_counts_as_failed_once_it_was_refused() -> None:
    step = RecordedStep(" Go.\nAction: Fly[Rome]", "Go.", "fly", "Rome", "No such tool.", "invalid")
    found = read(RecordedRun("r", "t", "g", "Q?", (step, step), True)).episode
    failed = {c.name: dict(zip(SIGNALS, c.signals, strict=True))["failed_actions"] for c in found.checkpoints}
    assert (failed["action:1"], failed["observation:1"], failed["action:2"]) == (0, 1, 1)


def test_the_mean_of_a_turn_is_that_of_its_ids_states() -> None:
    live = play([SEARCH, FINISH], checkpoints=("action", "turn_mean"))
    found = read(recorded(live.episode), kinds=("action", "turn_mean"))
    assert [c.name for c in found.episode.checkpoints] == ["action:1", "turn_mean:1", "action:2", "turn_mean:2"]
    np.testing.assert_allclose(found.hidden, live.recording.hidden, rtol=1e-6)
    ids = found.episode.token_ids.tolist()
    end = found.episode.checkpoints[0].position + 1
    start = found.episode.prompt_tokens
    expected = np.mean([ScriptedModel([]).state(ids[: p + 1]) for p in range(start, end)], axis=0)
    np.testing.assert_allclose(found.hidden[1], expected, rtol=1e-5, atol=1e-7)


# What does not fit ---------------------------------------------------------------------------------------------------


def three_rounds() -> RecordedRun:
    return recorded(play([SEARCH, AGAIN, FINISH], [NOTHING, PAGE, RIGHT]).episode)


def laid(run: RecordedRun, limit: int = LIMIT) -> LaidRun:
    return lay_out(ScriptedModel([]), TEMPLATE, run, limit)


def test_the_latest_rounds_that_fit_are_read_and_the_counts_stay() -> None:
    run = three_rounds()
    whole = laid(run)
    limit = whole.length - 1
    whole_read, found = read(run), read(run, limit)
    cut = laid(run, limit)
    assert (cut.dropped, cut.length) == (1, whole.length - whole.rounds[0].length)
    assert dict(found.episode.attributes) == {"hops": 1, "rounds_dropped": 1}
    kept = [c for c in whole_read.episode.checkpoints if c.round != 1]
    ours = found.episode.checkpoints
    assert [c.name for c in ours] == [c.name for c in kept]
    shift = whole.rounds[0].length
    for before, now in zip(kept[1:], ours[1:], strict=True):
        assert now.position == before.position - shift
        assert (now.tokens, now.generated, now.calls, now.final) == (
            before.tokens, before.generated, before.calls, before.final
        )  # fmt: skip
        assert now.signals == before.signals
    ids = found.episode.token_ids.tolist()
    assert ids == whole.prompt + [i for r in whole.rounds[1:] for i in r.turn + r.observation + r.cue]
    assert found.episode.tokens == whole_read.episode.tokens
    assert [s.text for s in found.episode.steps] == [s.text for s in run.steps]
    states = [ScriptedModel([]).state(ids[: c.position + 1]) for c in ours]
    np.testing.assert_array_equal(found.hidden, np.stack(states))


@pytest.mark.parametrize("spare", [0, 3])
def test_a_run_may_be_as_long_as_the_limit(spare: int) -> None:
    run = three_rounds()
    whole = laid(run)
    assert laid(run, whole.length + spare).dropped == 0
    tail = len(whole.prompt) + whole.rounds[2].length + whole.rounds[1].length
    assert laid(run, tail + spare).dropped == 1


def test_a_last_round_that_does_not_fit_leaves_the_prompt() -> None:
    run = three_rounds()
    found = read(run, len(laid(run).prompt) + 2).episode
    assert [c.name for c in found.checkpoints] == ["prompt"]
    assert found.token_ids.tolist() == laid(run).prompt
    assert found.attributes["rounds_dropped"] == 3
    assert found.outcome == "success"


def test_a_prompt_that_does_not_fit_is_an_error_without_a_label() -> None:
    run = three_rounds()
    found = read(run, len(laid(run).prompt) - 1)
    assert found.episode.outcome == "error"
    assert "the prompt takes" in found.episode.reason
    assert found.hidden.shape[0] == len(found.episode.checkpoints) == 0


# The text around it --------------------------------------------------------------------------------------------------


def test_turns_that_bring_their_labels_need_no_opening() -> None:
    bare = recorded(play([SEARCH, FINISH]).episode)
    labelled = [
        dataclasses.replace(bare, steps=(dataclasses.replace(bare.steps[0], text=text),))
        for text in ("Thought 1: Hm.\nAction 1: Search[Ada]", "Action: Search[Ada]", "\n**Thought:** Hm.")
    ]
    assert opening_of([bare]) == "Thought:"
    assert [opening_of([bare, run]) for run in labelled] == ["", "", ""]
    model = ScriptedModel([])
    found = lay_out(model, recorded_template(""), labelled[0], LIMIT)
    assert model.decode(found.prompt).endswith(".\n\nQuestion: Where was Ada born?\n")
    assert model.decode(found.rounds[0].turn) == labelled[0].steps[0].text


def test_a_thought_without_a_label_of_its_action_ends_where_its_text_does() -> None:
    model = ScriptedModel([])
    ids = model.encode("I look. search(Ada)")
    place = thought_place(model, ids, "I look.")
    assert place is not None
    assert model.decode(ids[: place + 1]) == "I look."
    assert thought_place(model, ids) is None
    assert thought_place(model, model.encode("Action: Search[Ada]")) is None
    assert thought_place(model, []) is None


@pytest.mark.parametrize("pieces", [["a", "bc", "", "def", "g"], ["x"] * 40, [], ["long"] * 3 + [""] * 9])
def test_the_fewest_ids_that_cover_so_many_characters(pieces: list[str]) -> None:
    class Spelling(ScriptedModel):
        def decode(self, ids: Sequence[int]) -> str:
            return "".join(pieces[i] for i in ids)

    model, ids = Spelling([]), list(range(len(pieces)))
    text = "".join(pieces)
    for end in range(1, len(text) + 1):
        fewest = next(k for k in range(len(ids) + 1) if len("".join(pieces[:k])) >= end)
        assert tokens_for(model, ids, end) == fewest
    assert tokens_for(model, ids, 0) == 0
    assert tokens_for(model, ids, len(text) + 1) == len(ids)


def test_special_tokens_in_recorded_text_are_mere_characters() -> None:
    step = RecordedStep("<end> Hm.\nAction: Search[<end>]", "<end> Hm.", "search", "<end>", "<end>", "content")
    found = read(RecordedRun("r", "t", "g", "<end>?", (step, step), False)).episode
    assert ScriptedModel([]).end_id not in found.token_ids.tolist()


def test_the_models_chat_format() -> None:
    def render(messages: list[dict[str, str]]) -> str:
        return "".join(f"[{m['role']}]{m['content']}[/]" for m in messages) + "[assistant]"

    template = recorded_chat_template("", render, "Watch.")
    run = recorded(play([SEARCH, FINISH]).episode)
    model = ScriptedModel([])
    ids = [i for text in (template.head, template.first, run.question, template.cue) for i in model.encode(text)]
    found = lay_out(model, template, run, LIMIT)
    assert found.prompt == ids
    assert model.decode(ids) == "[system]Watch.[/][user]Question: Where was Ada born?[/][assistant]"
    assert model.decode(found.rounds[0].observation) == f"[/][user]Observation: {PAGE.text}"
    assert model.decode(found.rounds[0].cue) == "[/][assistant]"
