from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from made_runs import LAYERS, WIDTH, make_episode

from probecascade.episode import CONTINUE, Decision, Moment, Question, Recording, Task
from probecascade.errors import DataError, UsageError
from probecascade.evaluation import replay_policy
from probecascade.interfaces import Verdict
from probecascade.policies import FirstRepeatedFailedSearch, Never, Shadow, TokenLimit


class Scripted:
    """Answers `decisions[name of the checkpoint]`, and remembers every moment."""

    def __init__(self, decisions: dict[str, Decision] | None = None, layers: Sequence[int] = (4, 0)) -> None:
        self.layers: Sequence[int] = layers
        self.decisions = decisions or {}
        self.moments: list[Moment] = []
        self.tasks: list[Task] = []

    def begin(self, task: Task) -> Scripted:
        self.tasks.append(task)
        return self

    def decide(self, moment: Moment) -> Verdict:
        self.moments.append(moment)
        return self.decisions.get(moment.checkpoint.name, CONTINUE)


@pytest.fixture
def recording() -> Recording:
    episode = make_episode("t", "g", failed=True, rounds=3)
    shape = (len(episode.checkpoints), len(LAYERS), WIDTH)
    return Recording(episode, np.arange(np.prod(shape), dtype=np.float32).reshape(shape))


def test_every_checkpoint_is_shown_once_in_order_as_the_loop_showed_it(recording: Recording) -> None:
    policy = Scripted()
    assert replay_policy(policy, recording, layers=LAYERS, max_rounds=6, max_tokens=100) is None
    assert [m.checkpoint for m in policy.moments] == list(recording.episode.checkpoints)
    by_name = {m.checkpoint.name: m for m in policy.moments}
    prompt = by_name["prompt"]
    assert (prompt.transcript, prompt.thought, prompt.action, prompt.observation) == ((), "", None, "")
    second = by_name["action:2"]
    assert [step.round for step in second.transcript] == [1]
    assert (second.thought, second.observation) == ("think 2", "text")
    assert second.action is not None
    assert (second.action.name, second.action.argument, second.action.valid) == ("search", "page 2", True)
    assert (second.rounds_left, second.tokens_left) == (4, 75)
    assert [step.round for step in by_name["observation:2"].transcript] == [1, 2]
    assert by_name["part:1"].action == second.action
    for index, moment in enumerate(policy.moments):
        assert set(moment.hidden) == {0, 4}
        np.testing.assert_array_equal(moment.hidden[0], recording.hidden[index, 0])
        np.testing.assert_array_equal(moment.hidden[4], recording.hidden[index, 2])


@pytest.mark.parametrize(
    ("action", "kind", "valid"),
    [("search", "content", True), ("search", "invalid", False), ("", "invalid", False), ("", "", False)],
)
def test_an_action_is_valid_if_it_has_a_name_and_was_not_refused(
    recording: Recording, action: str, kind: str, valid: bool
) -> None:
    first, *others = recording.episode.steps
    changed = replace(first, action=action, observation_kind=kind)
    policy = Scripted()
    episode = replace(recording.episode, steps=(changed, *others))
    replay_policy(policy, Recording(episode, recording.hidden), layers=LAYERS)
    seen = next(m.action for m in policy.moments if m.checkpoint.name == "action:1")
    assert seen is not None
    assert (seen.name, seen.valid) == (action, valid)


def test_the_first_abort_or_answer_ends_the_replay(recording: Recording) -> None:
    wanted = Decision("abort", gate="action:2")
    policy = Scripted({"action:1": Decision(gate="action:1", score=0.1), "action:2": wanted})
    assert replay_policy(policy, recording, layers=LAYERS) is wanted
    assert policy.moments[-1].checkpoint.name == "action:2"
    answer = Decision("answer", gate="observation:1")
    assert replay_policy(Scripted({"observation:1": answer}), recording, layers=LAYERS) is answer


def test_rules_and_shadows_replay_too(recording: Recording) -> None:
    decision = replay_policy(TokenLimit(20), recording, layers=LAYERS)
    assert decision is not None
    assert decision.gate == "action:2"
    for policy in (Never(), FirstRepeatedFailedSearch(), Shadow(TokenLimit(20))):
        assert replay_policy(policy, recording, layers=LAYERS) is None


def test_the_task_reaches_the_policy(recording: Recording) -> None:
    policy = Scripted()
    replay_policy(policy, recording, layers=LAYERS)
    assert policy.tasks[0].task_id == "t"
    assert policy.tasks[0].group == "g"
    task = Task("t", "g", (), attributes={"level": 2})
    replay_policy(policy, recording, task, layers=LAYERS)
    assert policy.tasks[1] is task


def test_what_a_record_cannot_tell_is_refused(recording: Recording) -> None:
    class Asking(Scripted):
        def decide(self, moment: Moment) -> Verdict:
            def ask() -> Generator[Question, str, Decision]:
                yield Question("Is it going well?")
                return CONTINUE

            return ask()

    with pytest.raises(UsageError, match="asks the model"):
        replay_policy(Asking(), recording, layers=LAYERS)
    for steer in (Decision(append="hurry"), Decision(allow=("finish",))):
        with pytest.raises(UsageError, match="steers the episode at action:1"):
            replay_policy(Scripted({"action:1": steer}), recording, layers=LAYERS)
    with pytest.raises(DataError, match=r"needs layers \[3\], but the recording holds \[0, 2, 4\]"):
        replay_policy(Scripted(layers=(3,)), recording, layers=LAYERS)
    short = Recording(recording.episode, recording.hidden[:-1])
    with pytest.raises(DataError, match="one per checkpoint"):
        replay_policy(Never(), short, layers=LAYERS)
