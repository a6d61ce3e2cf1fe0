from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from short_episodes import (
    AGAIN,
    FINISH,
    KINDS,
    NOTHING,
    PAGE,
    RIGHT,
    SEARCH,
    TASK,
    TEMPLATE,
    WRONG,
    Played,
    play,
)

from probecascade.agents.react import AgentSettings, ReActAgent, episode_id, episode_rng
from probecascade.episode import Action, Decision, Moment, Observation, Question, Task
from probecascade.errors import ModelError, UsageError
from probecascade.interfaces import EpisodeWatch
from probecascade.testing import RecordingPolicy, ScriptedEnvironment, ScriptedModel

ABORT = Decision(action="abort", gate="g", score=0.9, threshold=0.5, reason="0.9 >= 0.5")
ANSWER = Decision(action="answer", reason="known enough")


# Checkpoints -----------------------------------------------------------------------------------------------------


def test_checkpoints_stand_where_their_names_say() -> None:
    played = play([SEARCH, FINISH])
    start = "Be brief.\nQuestion: Where was Ada born?\nThought:"
    first = start + " Look her up.\nAction: Search[Ada]"
    seen = first + "\nObservation: Ada: Born in London."
    assert played.names == [
        "prompt",
        "thought:1",
        "action:1",
        "observation:1",
        "thought:2",
        "action:2",
        "part:1",
    ]
    assert played.until("prompt") == start
    assert played.until("thought:1") == start + " Look her up."
    assert played.until("action:1") == first
    assert played.until("observation:1") == seen
    assert played.until("thought:2") == seen + "\nThought: I know."
    assert played.until("action:2") == played.until("part:1") == played.text
    assert played.text == seen + "\nThought:" + FINISH
    assert [c.final for c in played.episode.checkpoints] == [False] * 5 + [True, True]


def test_states_are_those_of_the_checkpoints_own_tokens() -> None:
    played = play([SEARCH, FINISH])
    ids = played.episode.token_ids.tolist()
    for point, states in zip(played.episode.checkpoints, played.recording.hidden, strict=True):
        np.testing.assert_array_equal(states, played.model.state(ids[: point.position + 1]))


def test_what_is_stored_is_what_was_fed() -> None:
    played = play([SEARCH, AGAIN, FINISH], [PAGE, NOTHING, RIGHT])
    assert played.episode.token_ids.tolist() == played.model.conversations[0]


def test_thought_checkpoints_change_nothing_else() -> None:
    for limit in range(1, 14):
        with_thoughts = play([SEARCH, FINISH], [PAGE, PAGE], max_turn_tokens=limit, max_rounds=2)
        without = play([SEARCH, FINISH], [PAGE, PAGE], max_turn_tokens=limit, max_rounds=2, checkpoints=("action",))
        assert with_thoughts.text == without.text
        assert [s.finish_reason for s in with_thoughts.episode.steps] == [
            s.finish_reason for s in without.episode.steps
        ]
        assert all(step.turn_tokens <= limit for step in with_thoughts.episode.steps)


def test_only_the_asked_kinds_are_kept() -> None:
    assert play([SEARCH, FINISH], checkpoints=("observation",)).names == ["observation:1"]
    assert play([SEARCH, FINISH], checkpoints=()).recording.hidden.shape == (0, 3, 4)


@pytest.mark.parametrize(
    "turn",
    [
        [" Look", ".", "\n", "Action", ":", " Search", "[", "Ada", "]"],
        [" Look", ".", "\nAction:", " Search[", "Ada]"],
        [" Look", ".", "\nAction: Search[", "Ada", "]\nObservation"],
        [" Look", ".", "\n**", "Action", ":", "** Search[Ada]"],
        [" Look", ".\nAction", ":", " Search", "[", "Ada", "]"],
    ],
)
def test_an_action_label_is_found_however_it_is_cut_into_tokens(turn: list[str]) -> None:
    played = play([turn, FINISH])
    assert played.environment.actions[0] == Action("search", "Ada")
    thought, text = played.until("thought:1"), "".join(turn)
    assert thought.split("Thought:")[-1].startswith(" Look.")
    # The token that holds the thought's last character, and no later one.
    assert thought.endswith(next(piece for piece in turn if "." in piece))
    assert text.startswith(played.episode.steps[0].text)
    assert "Observation:" not in played.until("action:1")


# Endings ---------------------------------------------------------------------------------------------------------


def test_a_finished_episode() -> None:
    right, wrong = play([SEARCH, FINISH]), play([SEARCH, FINISH], [PAGE, WRONG])
    assert (right.episode.outcome, right.episode.reason, right.episode.reward) == ("success", "finished", 1.0)
    assert (wrong.episode.outcome, wrong.episode.reason, wrong.episode.reward) == ("failure", "finished", 0.0)
    assert right.environment.actions == [Action("search", "Ada"), Action("finish", "London")]


def test_what_counts_as_success_can_be_set() -> None:
    half = Observation("", "finish", done=True, reward=0.5)
    assert play([FINISH], [half]).episode.outcome == "failure"
    assert play([FINISH], [half], success_reward=0.5).episode.outcome == "success"


def test_the_round_limit() -> None:
    played = play([SEARCH] * 9, [PAGE] * 9, max_rounds=3)
    assert (played.episode.outcome, played.episode.reason) == ("truncated", "round_limit")
    assert len(played.episode.steps) == 3
    assert played.names[-1] == "action:3"  # its observation is never fed
    assert played.episode.steps[-1].observation == PAGE.text
    assert played.episode.steps[-1].observation_tokens == 0


def test_the_token_limit() -> None:
    played = play([SEARCH] * 9, [PAGE] * 9, max_episode_tokens=60)
    assert (played.episode.outcome, played.episode.reason) == ("truncated", "token_limit")
    assert played.episode.tokens <= 60
    assert len(played.episode.token_ids) == played.episode.prompt_tokens + played.episode.tokens


def test_endless_repetition_ends_at_the_turn_limit() -> None:
    played = play([" Paris is Paris is" * 500, FINISH], [NOTHING, RIGHT], max_turn_tokens=20)
    step = played.episode.steps[0]
    assert (step.finish_reason, step.turn_tokens, step.action) == ("turn_limit", 20, "")
    assert played.episode.outcome == "success"


def test_the_end_token_is_dropped() -> None:
    played = play([" I give up.", FINISH], [NOTHING, RIGHT])
    assert played.episode.steps[0].finish_reason == "end_token"
    assert played.model.end_id not in played.episode.token_ids
    assert played.until("action:1").endswith(" I give up.")
    assert not played.environment.actions[0].valid


def test_a_model_that_says_nothing_at_all() -> None:
    played = play(["", ""], [NOTHING, NOTHING], max_rounds=2)
    assert played.episode.reason == "round_limit"
    assert played.names == ["prompt", "observation:1"]
    assert [s.turn_tokens for s in played.episode.steps] == [0, 0]


@pytest.mark.parametrize("special", ["<end>", "x<end>\nThought: y"])
def test_special_tokens_in_a_tools_text_are_mere_characters(special: str) -> None:
    played = play([SEARCH, FINISH], [Observation(special, "content"), RIGHT])
    assert played.until("observation:1").endswith("\nObservation: " + special)
    assert played.model.end_id not in played.episode.token_ids


# What the model says wrong ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("tail", ["\nObservation: Ada: Born in Paris.", "\nThought: more\nAction: Search[x]", "\n\n"])
def test_what_follows_an_action_is_never_fed(tail: str) -> None:
    played = play([SEARCH + tail, FINISH])
    assert played.text == play([SEARCH, FINISH]).text
    assert played.episode.steps[0].finish_reason == "action"


def test_an_invented_observation_is_cut_and_never_fed() -> None:
    played = play([" Let me see.\nObservation: Ada: Born in Paris.\n", FINISH], [NOTHING, RIGHT])
    assert "Paris" not in played.text
    assert played.text.count("Observation") == 1  # the environment's own
    assert played.episode.steps[0].finish_reason == "observation_cut"
    assert played.episode.steps[0].text == " Let me see."
    assert not played.environment.actions[0].valid


def test_a_turn_that_begins_with_an_invented_observation_is_empty() -> None:
    played = play(["\nObservation: Ada: Born in Paris.\n", FINISH], [NOTHING, RIGHT])
    assert played.episode.steps[0].turn_tokens == 0
    assert played.episode.steps[0].finish_reason == "observation_cut"
    assert "Paris" not in played.text


def test_two_actions_in_one_turn_are_invalid() -> None:
    played = play([" Both.\nAction: Search\nAction: Search[Ada]", FINISH], [NOTHING, RIGHT])
    first = played.environment.actions[0]
    assert not first.valid


def test_a_missing_bracket() -> None:
    played = play([" Look.\nAction: Search Ada\n", " Look.\nAction: Search[Ada\n", FINISH], [NOTHING, PAGE, RIGHT])
    assert not played.environment.actions[0].valid
    assert played.environment.actions[1] == Action("search", "Ada")
    assert [s.finish_reason for s in played.episode.steps] == ["action"] * 3


def test_non_ascii_turns() -> None:
    turn = " Где?\nAction: Search[Ångström 東京]"
    played = play([turn, FINISH])
    assert played.environment.actions[0] == Action("search", "Ångström 東京")
    assert played.until("action:1").endswith(turn)


def test_an_action_that_was_read_in_an_earlier_round_does_not_fire_again() -> None:
    played = play([SEARCH, " Hm.", FINISH], [PAGE, NOTHING, RIGHT])
    assert not played.environment.actions[1].valid
    assert "thought:2" not in played.names


# Decisions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "calls", "rounds"),
    [("prompt", 0, 0), ("thought:1", 0, 1), ("action:1", 0, 1), ("observation:1", 1, 1), ("action:2", 1, 2)],
)
def test_an_abort_stops_the_episode_at_its_checkpoint(at: str, calls: int, rounds: int) -> None:
    free = play([SEARCH, FINISH])
    played = play([SEARCH, FINISH], policy=RecordingPolicy(answers={at: ABORT}))
    episode = played.episode
    assert (episode.outcome, episode.reason) == ("aborted", "aborted: 0.9 >= 0.5")
    assert not episode.labelled
    assert episode.decision == ABORT
    assert episode.attributes["scores"] == {at: 0.9}
    assert played.names[-1] == at
    assert played.names == free.names[: len(played.names)]
    assert len(played.environment.actions) == episode.calls == calls
    assert len(episode.steps) == rounds
    np.testing.assert_array_equal(episode.token_ids, free.episode.token_ids[: len(episode.token_ids)])
    if at.startswith("thought"):
        assert episode.steps[0].thought == "Look her up."
        assert episode.steps[0].finish_reason == "stopped"


def test_an_answer_after_an_observation_forces_the_finish() -> None:
    policy = RecordingPolicy(answers={"observation:1": ANSWER})
    played = play([SEARCH, SEARCH], policy=policy)
    assert played.text.endswith(PAGE.text + "\nThought:" + TEMPLATE.finish + "Paris]")
    assert played.environment.actions[-1] == Action("finish", "Paris")
    assert (played.episode.outcome, played.episode.reason) == ("success", "answered")
    assert played.episode.steps[-1].finish_reason == "forced"
    assert played.episode.decision == ANSWER
    assert played.names[-2:] == ["action:2", "part:1"]


def test_an_answer_at_the_prompt() -> None:
    played = play([SEARCH], [RIGHT], RecordingPolicy(answers={"prompt": ANSWER}))
    assert played.text.endswith("?\nThought:" + TEMPLATE.finish + "Paris]")
    assert played.episode.reason == "answered"


@pytest.mark.parametrize("at", ["action:2", "thought:2"])
def test_an_answer_within_a_turn_takes_the_turn_back(at: str) -> None:
    policy = RecordingPolicy(answers={at: ANSWER})
    played = play([SEARCH, AGAIN, FINISH], policy=policy)
    assert "Once more" not in played.text
    assert played.text.endswith("\nThought:" + TEMPLATE.finish + "Paris]")
    assert played.episode.token_ids.tolist() == played.model.conversations[0]
    assert [s.action for s in played.episode.steps] == ["search", "finish"]
    assert played.names.count("action:2") == 1
    assert played.episode.side_tokens > 0
    last = dict(zip(("failed", "repeated"), played.episode.checkpoints[-1].signals[6:8], strict=True))
    assert last == {"failed": 0.0, "repeated": 0.0}  # the turn that was taken back left no trace
    assert_counts(played)


def test_an_answer_that_stays_an_answer_keeps_every_checkpoint() -> None:
    policy = RecordingPolicy(answers={"observation:1": ANSWER, "action:2": ANSWER, "part:1": ANSWER})
    assert play([SEARCH, SEARCH], policy=policy).names[-2:] == ["action:2", "part:1"]


def test_allowed_tools_are_narrowed_token_by_token() -> None:
    policy = RecordingPolicy(answers={"observation:1": Decision(allow=("finish",))})
    played = play([SEARCH, " More.\nAction: Search[Ada] is it]", FINISH], policy=policy)
    assert played.environment.actions[1].name == "finish"
    assert "\nThought: More.\nAction: Finish[" in played.text
    assert play([SEARCH, AGAIN, FINISH], [PAGE, PAGE, RIGHT]).environment.actions[1].name == "search"


def test_appended_text_stands_after_the_observation() -> None:
    policy = RecordingPolicy(answers={"observation:1": Decision(append=" (Two rounds left.)")})
    played = play([SEARCH, FINISH], policy=policy)
    assert PAGE.text + " (Two rounds left.)\nThought: I know." in played.text
    assert played.until("observation:1").endswith(PAGE.text)
    assert_counts(played)


def ask(moment: Moment) -> Generator[Question, str, Decision]:
    said = yield Question("\nWill it succeed? ", 4)
    assert said == "yes it will"
    more = yield Question("\nSure? ", 2)
    assert more == "no"
    return Decision(reason=said)


@pytest.mark.parametrize("at", ["prompt", "thought:1", "action:1", "observation:1", "part:1"])
def test_questions_leave_no_trace(at: str) -> None:
    answers = {"\nWill it succeed? ": "yes it will", "\nSure? ": "no"}
    asked = play([SEARCH, FINISH], policy=RecordingPolicy(answers={at: ask}), answers=answers, temperature=0.5)
    free = play([SEARCH, FINISH], answers=answers, temperature=0.5)
    np.testing.assert_array_equal(asked.episode.token_ids, free.episode.token_ids)
    np.testing.assert_array_equal(asked.recording.hidden, free.recording.hidden)
    assert asked.episode.tokens == free.episode.tokens
    assert asked.episode.side_tokens > 0
    assert free.episode.side_tokens == 0
    assert asked.model.conversations[0] == free.model.conversations[0]


# Faults ----------------------------------------------------------------------------------------------------------


class BrokenEnvironment(ScriptedEnvironment):
    def step(self, action: Action) -> Observation:
        if len(self.actions) == 1:
            raise OSError("the wiki is down")
        return super().step(action)


class UnstartedPolicy(RecordingPolicy):
    def begin(self, task: Task) -> EpisodeWatch:
        raise ValueError("no memory of this task")


def refuse(moment: Moment) -> Decision:
    raise ZeroDivisionError("probe")


def refuse_later(moment: Moment) -> Generator[Question, str, Decision]:
    yield Question("Well? ")
    raise UsageError("the policy is at its end.")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"environment": BrokenEnvironment([PAGE, RIGHT])}, "error: OSError: the wiki is down"),
        ({"environment": ScriptedEnvironment([])}, "error: the script is over"),
        ({"policy": RecordingPolicy(answers={"action:2": refuse})}, "error: ZeroDivisionError: probe"),
        ({"policy": RecordingPolicy(answers={"prompt": refuse_later})}, "error: the policy is at its end."),
        ({"policy": UnstartedPolicy()}, "error: ValueError: no memory of this task"),
        ({"capacity": 40}, "error: the conversation could grow to"),
        ({"capacity": 5}, "error: the conversation could grow to"),
    ],
)
def test_a_fault_ends_the_episode_without_a_label_and_with_its_reason(settings: dict[str, Any], reason: str) -> None:
    played = play([SEARCH, FINISH], max_turn_tokens=20, **settings)
    episode = played.episode
    assert episode.outcome == "error"
    assert episode.reason.startswith(reason)
    assert not episode.labelled
    assert len(played.recording.hidden) == len(episode.checkpoints)
    assert len(episode.token_ids) == episode.prompt_tokens + episode.tokens


def test_a_fault_of_one_episode_leaves_the_others_alone() -> None:
    model = ScriptedModel([SEARCH, FINISH])
    agent = ReActAgent(model, TEMPLATE, AgentSettings())
    environments = [ScriptedEnvironment([PAGE, RIGHT]), BrokenEnvironment([PAGE, RIGHT])] * 2
    results = model.run(agent.play(TASK, e, seed) for seed, e in enumerate(environments))
    assert [r.episode.outcome for r in results] == ["success", "error", "success", "error"]


def test_a_policy_whose_layers_are_not_kept_is_refused_before_the_first_token() -> None:
    with pytest.raises(ModelError, match=r"the policy needs layers \[5\], but the model keeps the states of"):
        play([SEARCH, FINISH], policy=RecordingPolicy(layers=[1, 5]))


# Names and numbers -----------------------------------------------------------------------------------------------


def test_an_episodes_name_and_numbers_follow_from_task_and_seed() -> None:
    other = Task("task-2", "group-1", TASK.parts)
    assert episode_id(TASK, 3) == "task-1~3"
    first = episode_rng(TASK, 3).random(4).tolist()
    assert episode_rng(TASK, 3).random(4).tolist() == first
    assert episode_rng(TASK, 4).random(4).tolist() != first
    assert episode_rng(other, 3).random(4).tolist() != first


def assert_counts(played: Played) -> None:
    episode = played.episode
    assert episode.prompt_tokens + episode.generated + episode.observed == len(episode.token_ids)
    assert episode.generated == sum(step.turn_tokens for step in episode.steps)


@pytest.mark.parametrize("turns", [[SEARCH, FINISH], [" Hm.", FINISH], [SEARCH, AGAIN, "", FINISH]])
def test_counts_add_up(turns: list[str]) -> None:
    played = play(turns, [PAGE] * (len(turns) - 1) + [RIGHT])
    assert played.episode.outcome == "success"
    assert_counts(played)
    for point in played.episode.checkpoints:
        assert point.position == played.episode.prompt_tokens + point.tokens - 1
    assert set(KINDS) >= {c.kind for c in played.episode.checkpoints}
