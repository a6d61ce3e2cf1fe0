"""Episodes of one task under several policies, held as one conversation: each is what it would have been alone."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np
import pytest
from short_episodes import AGAIN, FINISH, KINDS, NOTHING, PAGE, RIGHT, SEARCH, TASK, TEMPLATE

from probecascade.agents.react import AgentSettings, ReActAgent
from probecascade.episode import Answer, Decision, Moment, Question, Recording
from probecascade.errors import ModelError
from probecascade.interfaces import Verdict
from probecascade.models.requests import Conversation, Fed, Feed, Rewind, Sample, Turn
from probecascade.models.together import together
from probecascade.testing import RecordingPolicy, ScriptedEnvironment, ScriptedModel

TURNS = [SEARCH, AGAIN, FINISH]
SEEN = (NOTHING, PAGE, RIGHT)


def asks(then: Callable[[str], Decision], **question: Any) -> Callable[[Moment], Verdict]:
    def verdict(moment: Moment) -> Generator[Question, Answer, Decision]:
        return then((yield Question("\nWas it of use?", **question)))

    return verdict


def stops(said: str) -> Decision:
    return Decision("answer" if "USELESS" in said else "continue", gate="judge", notes={"said": said})


POLICIES: dict[str, dict[str, Any]] = {
    "none": {},
    "judge": {f"observation:{n}": asks(stops) for n in (1, 2)},
    "weighing judge": {f"observation:{n}": asks(stops, choices=("USEFUL", "USELESS")) for n in (1, 2)},
    "asks at the prompt": {"prompt": asks(lambda said: Decision(notes={"said": said}))},
    "asks within a turn": {"thought:1": asks(lambda said: Decision()), "action:2": asks(lambda said: Decision())},
    "aborts": {"action:2": Decision("abort", gate="action:2")},
    "answers instead of acting": {"action:2": Decision("answer", gate="action:2")},
    "budget": {f"observation:{n}": Decision(append=f"\n[Actions left: {3 - n}]") for n in (1, 2)},
    "restates": {"prompt": Decision(append="\nBe quick.")},
    "narrows": {"observation:1": Decision(allow=("finish",))},
    "fails": {"observation:2": asks(lambda said: 1 / 0)},  # type: ignore[arg-type, return-value]
}


class Counting(ScriptedModel):
    """Counts the ids that it is fed or draws."""

    spent = 0

    def _feed(self, ids: list[int], request: Feed) -> Fed:
        self.spent += len(request.ids)
        return super()._feed(ids, request)

    def _sample(self, ids: list[int], request: Sample, base: int) -> Turn:
        turn = super()._sample(ids, request, base)
        self.spent += turn.sampled
        return turn


def model(capacity: int = 10_000) -> Counting:
    return Counting(TURNS, otherwise="Paris]", answers={"Was it of use?": " USELESS"}, capacity=capacity)


def conversations(of: Counting, names: Sequence[str], temperature: float) -> list[Conversation[Recording]]:
    settings = AgentSettings(temperature=temperature, checkpoints=KINDS, store_dtype="float32")
    agent = ReActAgent(of, TEMPLATE, settings, end_ids=[of.end_id])
    policies = [RecordingPolicy(answers=POLICIES[name]) for name in names]
    return [agent.play(TASK, ScriptedEnvironment(SEEN), 7, policy) for policy in policies]


def same(one: Recording, other: Recording) -> None:
    assert one.episode.reason == other.episode.reason
    np.testing.assert_array_equal(one.episode.token_ids, other.episode.token_ids)
    np.testing.assert_array_equal(one.hidden, other.hidden)
    for name in ("outcome", "steps", "side_tokens", "generated", "observed", "calls", "decision", "attributes"):
        assert getattr(one.episode, name) == getattr(other.episode, name), name
    points = [[(c.name, c.position, c.signals) for c in r.episode.checkpoints] for r in (one, other)]
    assert points[0] == points[1]


def played(names: Sequence[str], temperature: float = 0.0, capacity: int = 10_000) -> tuple[list[Recording], int]:
    of = model(capacity)
    (recordings,) = of.run([together(conversations(of, names, temperature))])
    return recordings, of.spent


def alone(name: str, temperature: float = 0.0, capacity: int = 10_000) -> tuple[Recording, int]:
    of = model(capacity)
    (recording,) = of.run(conversations(of, [name], temperature))
    return recording, of.spent


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("order", [1, -1])
def test_each_is_what_it_would_have_been_alone(temperature: float, order: int) -> None:
    names = list(POLICIES)[::order]
    recordings, spent = played(names, temperature)
    costs = 0
    for name, recording in zip(names, recordings, strict=True):
        single, cost = alone(name, temperature)
        same(recording, single)
        costs += cost
    assert spent < 0.5 * costs
    assert {recording.episode.outcome for recording in recordings} == {"success", "aborted", "error"}


@pytest.mark.parametrize("name", ["asks at the prompt", "asks within a turn"])
def test_who_only_asks_costs_no_more_than_the_questions(name: str) -> None:
    (free, asking), spent = played(["none", name])
    last_ids = {"asks at the prompt": 1, "asks within a turn": 1}[name]  # fed again before sampling goes on
    assert spent == alone("none")[1] + asking.episode.side_tokens + last_ids
    assert free.episode.side_tokens == 0


def test_a_question_of_several_is_put_once() -> None:
    assert played(["judge", "judge", "none"])[1] == played(["judge", "none"])[1]


def test_what_the_model_refuses_ends_those_who_asked_for_it() -> None:
    room = len(alone("none")[0].episode.token_ids) + 30
    recordings, _ = played(["none", "restates", "judge"], capacity=room)
    for name, recording in zip(["none", "restates", "judge"], recordings, strict=True):
        same(recording, alone(name, capacity=room)[0])


def test_random_numbers_are_drawn_as_if_alone() -> None:
    of = model()
    ids = of.encode("a b")

    def draw(seed: int, more: bool, left: list[float]) -> Conversation[None]:
        rng = np.random.default_rng(seed)
        yield Feed(ids)
        yield Sample(lambda ids: 3 if len(ids) == 3 else None, 9, temperature=1.0, rng=rng)
        if more:
            yield Rewind(2)
        left.append(rng.random())

    left: list[float] = []
    list(of.run([together([draw(5, more, left) for more in (False, True, False)])]))
    assert left == [np.random.default_rng(5).random(4)[3]] * 3


def test_equal_requests_must_end_alike() -> None:
    of = model()
    ids = of.encode("a")

    def until(count: int) -> Conversation[None]:
        yield Feed(ids)
        yield Sample(lambda ids: count if len(ids) >= count else None, 9)

    with pytest.raises(ModelError, match="hold them apart"):
        list(of.run([together([until(1), until(2)])]))
