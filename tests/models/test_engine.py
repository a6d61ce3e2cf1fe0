from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tiny_models import (
    LAYERS,
    SUPPORTED,
    clean_states,
    generated,
    make_model,
    make_tokenizer,
    random_ids,
    relative_error,
)

from probecascade.errors import ModelError
from probecascade.models.engine import Engine
from probecascade.models.requests import Conversation, Feed, Rewind, Sample, Turn

ALL_LAYERS = range(LAYERS + 1)


@dataclass
class Played:
    """All ids of a conversation, the positions whose states were kept, and those states."""

    name: Any
    ids: list[int]
    positions: list[int]
    states: NDArray[np.float32]
    turns: list[Turn]

    def error(self, model: Any) -> float:
        return relative_error(self.states, clean_states(model, self.ids)[self.positions])


def never(ids: list[int]) -> int | None:
    return None


def talk(
    name: Any,
    feeds: Sequence[Sequence[int]],
    n: int,
    *,
    shared: int = 0,
    temperature: float = 0.0,
    top_p: float = 1.0,
    rng: np.random.Generator | None = None,
    stop: Callable[[list[int]], int | None] = never,
    aside: Sequence[int] = (),
) -> Conversation[Played]:
    """Feeds and turns in turn, states kept at every position after the shared head; `aside`: a side question."""
    ids: list[int] = []
    positions: list[int] = []
    states, turns = [], []
    for number, chunk in enumerate(feeds):
        first = shared if number == 0 else 0
        fed = yield Feed(chunk, keep=tuple(range(first, len(chunk))), shared=first)
        positions += range(len(ids) + first, len(ids) + len(chunk))
        ids += chunk
        states.append(fed.states)
        if aside:
            yield Feed(aside)
            yield Sample(stop=never, max_tokens=3)
            yield Rewind(len(ids) - 1)
            yield Feed(ids[-1:])
        turn = yield Sample(stop=stop, max_tokens=n, temperature=temperature, top_p=top_p, rng=rng)
        positions += range(len(ids), len(ids) + len(turn.ids))
        ids += turn.ids
        states.append(turn.states)
        turns.append(turn)
    return Played(name, ids, positions, np.concatenate(states), turns)


def make_engine(model: Any, **settings: Any) -> Engine:
    return Engine(model, make_tokenizer(), **{"layers": ALL_LAYERS, "slots": 4, "capacity": 600} | settings)


def play(engine: Engine, conversations: Sequence[Conversation[Played]]) -> dict[Any, Played]:
    return {played.name: played for played in engine.run(conversations)}


def rngs(n: int) -> list[np.random.Generator]:
    return [np.random.default_rng(100 + i) for i in range(n)]


# The same ids and states as the model by itself ------------------------------------------------------------------


@pytest.mark.parametrize("kind", SUPPORTED)
def test_greedy_turns_are_those_of_generate_and_states_those_of_one_clean_forward(kind: str) -> None:
    model = make_model(kind)
    prompts = {n: random_ids(n, seed=n) for n in (1, 2, 7, 20, 33, 61)}
    played = play(make_engine(model), [talk(n, [prompt], 12) for n, prompt in prompts.items()])
    assert sorted(played) == sorted(prompts)
    for n, one in played.items():
        assert one.turns[0].ids == generated(model, prompts[n], 12)
        assert one.turns[0].hit_limit
        assert one.turns[0].sampled == 12
        assert one.states.shape == (n + 12, LAYERS + 1, 32)
        assert one.error(model) < 1e-5


def test_a_prompt_of_500_tokens() -> None:
    model = make_model("llama")
    prompt = random_ids(500)
    played = play(make_engine(model), [talk("long", [prompt], 8), talk("short", [prompt[:1]], 8)])
    assert played["long"].turns[0].ids == generated(model, prompt, 8)
    assert all(one.error(model) < 1e-5 for one in played.values())


CROWD = {i: [random_ids(1 + 5 * i % 11, seed=i), random_ids(1 + i % 3, seed=50 + i)] for i in range(5)}


@cache
def expected(kind: str, shared: int) -> dict[int, list[int]]:
    """The ids of each conversation of the crowd, as the model by itself would have continued them."""
    model, played = make_model(kind), {}
    for i, (first, second) in CROWD.items():
        ids = random_ids(shared, seed=9) + first
        ids += generated(model, ids, 3 + i % 4)
        ids += second
        played[i] = ids + generated(model, ids, 3 + i % 4)
    return played


@pytest.mark.parametrize("shared", [0, 17])
@pytest.mark.parametrize(
    ("kind", "order", "settings"),
    [
        ("llama", 1, {"slots": 1}),
        ("llama", -1, {"slots": 2}),
        ("llama", 1, {"slots": 5, "max_batch_tokens": 3}),
        ("llama", -1, {"slots": 16}),
        ("gpt2", -1, {"slots": 3, "max_batch_tokens": 1}),
        ("gpt2", 1, {"slots": 16}),
        ("mistral", -1, {"slots": 3}),
        ("mistral", 1, {"slots": 5, "max_batch_tokens": 4}),
    ],
)
def test_states_hold_in_any_batch_order_and_chunking(
    kind: str, order: int, settings: dict[str, int], shared: int
) -> None:
    model, head = make_model(kind), random_ids(shared, seed=9)
    talks = [talk(i, [head + CROWD[i][0], CROWD[i][1]], 3 + i % 4, shared=shared) for i in list(CROWD)[::order]]
    played = play(make_engine(model, **settings), talks)
    assert {i: one.ids for i, one in played.items()} == expected(kind, shared)
    assert all(one.error(model) < 1e-5 for one in played.values())


def test_conversations_with_different_heads_share_the_slots() -> None:
    model = make_model("llama")
    heads = [random_ids(12, seed=70), random_ids(30, seed=71), []]
    talks = [talk(i, [heads[i % 3] + random_ids(3, seed=i)], 6 + i, shared=len(heads[i % 3])) for i in range(9)]
    for one in play(make_engine(model), talks).values():
        assert one.error(model) < 1e-5


def test_a_head_is_encoded_once() -> None:
    engine = make_engine(make_model("llama"))
    head = random_ids(40)
    play(engine, [talk(i, [[*head, i + 1]], 2, shared=40) for i in range(6)])
    assert engine.tokens_computed == 40 + 6 * (1 + 2)


def test_the_heads_that_were_not_used_for_longest_are_forgotten() -> None:
    model = make_model("llama")
    engine = make_engine(model, slots=2)
    heads = [random_ids(10, seed=i) for i in range(7)]
    for _ in range(2):
        for one in play(engine, [talk(i, [[*h, 3]], 3, shared=10) for i, h in enumerate(heads)]).values():
            assert one.error(model) < 1e-5
    assert len(engine._heads) == 4


@pytest.mark.parametrize("kind", ["llama", "neox"])
def test_half_precision_states_stay_near_one_clean_forward(kind: str) -> None:
    model = make_model(kind, dtype=torch.bfloat16)
    head = random_ids(20)
    talks = [talk(i, [head + random_ids(3 + i, seed=i)], 8, shared=20 * (i % 2)) for i in range(6)]
    for one in play(make_engine(model), talks).values():
        assert one.states.dtype == np.float32
        assert one.error(model) < 5e-2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equal_batches_give_equal_bits(dtype: torch.dtype) -> None:
    engine = make_engine(make_model("llama", dtype=dtype))

    def once() -> dict[Any, Played]:
        return play(engine, [talk(i, [random_ids(4 + i, seed=i)], 5) for i in range(4)])

    first, second = once(), once()
    for i in first:
        assert first[i].ids == second[i].ids
        np.testing.assert_array_equal(first[i].states, second[i].states)


def test_layers_come_in_the_order_asked() -> None:
    model = make_model("llama")
    engine = make_engine(model, layers=[-1, 0, 2])
    assert engine.layers == (3, 0, 2)
    (one,) = engine.run([talk(0, [random_ids(5)], 3)])
    clean = clean_states(model, one.ids)
    assert relative_error(one.states, clean[:, [3, 0, 2]]) < 1e-5


def test_an_engine_without_layers_keeps_no_states() -> None:
    engine = make_engine(make_model("llama"), layers=())
    (one,) = engine.run([talk(0, [random_ids(5)], 3)])
    assert one.turns[0].states.shape == (0, 0, 32) or one.turns[0].states.shape == (3, 0, 32)
    assert len(one.turns[0].ids) == 3


def test_log_probabilities_are_the_models_own() -> None:
    model = make_model("llama")
    (one,) = make_engine(model).run(
        [talk(0, [random_ids(6)], 8, temperature=1.3, top_p=0.9, rng=np.random.default_rng(0))]
    )
    with torch.no_grad():
        logprobs = torch.log_softmax(model(input_ids=torch.tensor([one.ids])).logits[0], -1)
    turn = one.turns[0]
    for k, (token, logprob, entropy) in enumerate(zip(turn.ids, turn.logprobs, turn.entropies, strict=True)):
        row = logprobs[5 + k].double()
        assert logprob == pytest.approx(float(row[token]), abs=1e-4)
        assert entropy == pytest.approx(-float((row.exp() * row).sum()), abs=1e-4)


# Turns -----------------------------------------------------------------------------------------------------------


def test_samples_do_not_depend_on_neighbours() -> None:
    model = make_model("llama")

    def one(i: int, rng: np.random.Generator) -> Conversation[Played]:
        feeds = [random_ids(3 + i % 5, seed=i), random_ids(2, seed=i)]
        return talk(i, feeds, 4 + i % 3, temperature=0.8, top_p=0.95, rng=rng)

    crowd = play(make_engine(model), [one(i, rng) for i, rng in enumerate(rngs(11))])
    alone = {}
    for i, rng in enumerate(rngs(11)):
        alone |= play(make_engine(model, slots=1), [one(i, rng)])
    assert {i: p.ids for i, p in crowd.items()} == {i: p.ids for i, p in alone.items()}


class Counting(np.random.Generator):
    """Counts the numbers that are drawn from it."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64(0))
        self.drawn = 0

    def random(self, *args: Any, **kwargs: Any) -> Any:
        assert not args
        self.drawn += 1
        return super().random()


def test_one_number_per_sampled_token_and_none_for_feeding_the_last() -> None:
    model = make_model("llama")
    rng = Counting()
    (one,) = make_engine(model).run([talk(0, [random_ids(4), random_ids(2)], 5, temperature=1.0, rng=rng)])
    assert rng.drawn == 10 == sum(t.sampled for t in one.turns)
    assert len(one.turns[0].states) == 5  # the last one's state is there
    assert one.error(model) < 1e-5


def test_a_greedy_turn_draws_no_number() -> None:
    rng = Counting()
    list(make_engine(make_model("llama")).run([talk(0, [random_ids(4)], 5, rng=rng)]))
    assert rng.drawn == 0


@pytest.mark.parametrize("keep", [0, 1, 3, 4])
def test_surplus_of_a_turn_is_dropped_and_never_fed(keep: int) -> None:
    model = make_model("llama")
    prompt, after = random_ids(6), random_ids(3, seed=1)
    whole = generated(model, prompt, 4)

    def stop(ids: list[int]) -> int | None:
        return keep if len(ids) == 4 else None

    (one,) = make_engine(model).run([talk(0, [prompt, after], 9, stop=stop)])
    assert one.turns[0].ids == whole[:keep]
    assert one.turns[0].sampled == 4
    assert not one.turns[0].hit_limit
    assert len(one.turns[0].logprobs) == len(one.turns[0].entropies) == len(one.turns[0].states) == keep
    assert one.ids[6 + keep : 9 + keep] == after
    assert one.turns[1].ids == generated(model, one.ids[: 9 + keep], 4)[:keep]
    assert one.error(model) < 1e-5


def test_allowed_ids_narrow_a_turn() -> None:
    model = make_model("llama")

    def conversation() -> Conversation[Turn]:
        yield Feed(random_ids(5))
        turn: Turn = yield Sample(stop=never, max_tokens=6, allowed=lambda ids: [7, 9] if len(ids) % 2 else None)
        return turn

    (turn,) = make_engine(model).run([conversation()])
    assert all(i in (7, 9) for i in turn.ids[1::2])
    assert turn.ids[0] == generated(model, random_ids(5), 1)[0]


def test_a_resumed_turn_is_the_turn_that_was_never_interrupted() -> None:
    model = make_model("llama")
    prompt = random_ids(5)

    def conversation() -> Conversation[tuple[Turn, Turn]]:
        yield Feed(prompt)
        first = yield Sample(stop=lambda ids: 3 if len(ids) == 3 else None, max_tokens=8, resume=True)
        second = yield Sample(stop=never, max_tokens=5)
        return first, second

    ((first, second),) = make_engine(model).run([conversation()])
    assert first.ids + second.ids == generated(model, prompt, 8)
    ids = prompt + first.ids + second.ids
    states = np.concatenate([first.states, second.states])
    assert relative_error(states, clean_states(model, ids)[5:]) < 1e-5


@pytest.mark.parametrize("shared", [0, 8])
def test_side_questions_leave_no_trace(shared: int) -> None:
    model = make_model("llama")
    head = random_ids(shared, seed=3)

    def talks(aside: list[int]) -> list[Conversation[Played]]:
        return [
            talk(
                i,
                [head + random_ids(4 + i, seed=i), random_ids(2, seed=i)],
                5,
                shared=shared,
                temperature=0.7,
                rng=rng,
                aside=aside if i % 2 else (),
            )
            for i, rng in enumerate(rngs(6))
        ]

    without = play(make_engine(model), talks([]))
    asked = play(make_engine(model), talks(random_ids(9, seed=8)))
    for i in without:
        assert asked[i].ids == without[i].ids
        assert asked[i].error(model) < 1e-5
        np.testing.assert_allclose(asked[i].states, without[i].states, rtol=1e-4, atol=1e-5)


def test_rewinding_into_the_shared_head() -> None:
    model = make_model("llama")
    head = random_ids(10)

    def conversation(i: int) -> Conversation[tuple[list[int], NDArray[np.float32]]]:
        yield Feed([*head, 5], shared=10)
        yield Rewind(4)
        ids = head[:4] + random_ids(12, seed=i)
        fed = yield Feed(ids[4:], keep=(11,))
        turn = yield Sample(stop=never, max_tokens=4)
        return ids + turn.ids, np.concatenate([fed.states, turn.states])

    for ids, states in make_engine(model).run([conversation(i) for i in range(5)]):
        assert relative_error(states, clean_states(model, ids)[15:]) < 1e-5


# The run ---------------------------------------------------------------------------------------------------------


def test_slots_are_refilled_and_every_result_comes_once() -> None:
    started: list[int] = []

    def source() -> Any:
        for i in range(23):
            started.append(i)
            yield talk(i, [random_ids(2 + i % 4, seed=i)], 1 + i % 7)

    seen = []
    for one in make_engine(make_model("gpt2"), slots=3).run(source()):
        seen.append(one.name)
        assert len(started) <= len(seen) + 3  # conversations start when a slot is free, not before
    assert sorted(seen) == list(range(23))
    assert seen != sorted(seen)  # in the order in which they finish


def test_an_overflow_in_one_conversation_does_not_reach_the_next_one_in_its_slot() -> None:
    engine = make_engine(make_model(), slots=2, layers=(LAYERS,))

    def overflowing() -> Conversation[Played]:
        yield Feed(random_ids(40, seed=3))
        with torch.inference_mode():
            for stored in (*engine._cache.keys.values(), *engine._cache.values.values()):
                stored[1, :, 30:40] = float("nan")  # as the keys of half-precision models do now and then
        return Played("overflowing", [], [], np.zeros(0, np.float32), [])

    def talks() -> list[Conversation[Played]]:
        # the longer neighbour makes the forward look at positions that the short one has not reached
        return [talk("long", [random_ids(60, seed=1)], 20), talk("short", [random_ids(5, seed=2)], 8)]

    clean = play(make_engine(engine.model, slots=2, layers=(LAYERS,)), talks())
    long, short = talks()
    played = play(engine, [long, overflowing(), short])
    assert set(played) == {"long", "overflowing", "short"}
    for name in ("long", "short"):
        assert played[name].turns[0].ids == clean[name].turns[0].ids
        assert np.isfinite(played[name].states).all()


def test_a_conversation_may_ask_for_nothing() -> None:
    def silent() -> Conversation[str]:
        return "done"
        yield

    assert list(make_engine(make_model("llama"), slots=2).run([silent() for _ in range(5)])) == ["done"] * 5


def test_no_conversation_no_result() -> None:
    assert list(make_engine(make_model("llama")).run([])) == []


def test_no_graph_is_kept_and_callers_run_in_their_own_mode() -> None:
    model = make_model("llama").requires_grad_(True)
    inside: list[bool] = []

    def conversation() -> Conversation[NDArray[np.float32]]:
        for _ in range(2):
            fed = yield Feed(random_ids(4), keep=(3,))
            inside.append(torch.is_inference_mode_enabled())
            weight = torch.ones(3, requires_grad=True)
            (weight * 2).sum().backward()
            inside.append(weight.grad is None)
        turn = yield Sample(stop=never, max_tokens=2)
        inside.append(torch.is_inference_mode_enabled())
        assert isinstance(turn.states, np.ndarray)
        return fed.states

    engine = make_engine(model)
    for states in engine.run([conversation(), conversation()]):
        assert isinstance(states, np.ndarray)
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
    assert inside
    assert not any(inside)
    assert all(k.grad_fn is None and not k.requires_grad for k in engine._cache.keys.values())
    assert all(p.grad is None for p in model.parameters())


def test_the_caller_may_use_the_model_between_results() -> None:
    model = make_model("llama")
    prompt = random_ids(30)
    wanted = generated(model, prompt, 4)
    for one in make_engine(model).run([talk(i, [random_ids(9 + i, seed=i)], 3 + i) for i in range(6)]):
        assert generated(model, prompt, 4) == wanted
        assert generated(model, prompt[:2], 1) == generated(model, prompt[:2], 1)
        assert one.error(model) < 1e-5


def n_hooks(model: Any) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_the_users_attention_and_hooks_are_put_back(attention: str) -> None:
    model = make_model("llama")
    model.set_attn_implementation(attention)
    seen = []
    for _ in make_engine(model).run([talk(i, [random_ids(4)], 2 + i) for i in range(3)]):
        seen.append(model.config._attn_implementation)
    assert seen == [attention] * 3
    assert model.config._attn_implementation == attention
    assert n_hooks(model) == 0


class Closed:
    """Counts the conversations that were closed before their end."""

    def __init__(self) -> None:
        self.count = 0

    def conversation(self, n: int) -> Conversation[int]:
        try:
            yield Feed(random_ids(4))
            yield Sample(stop=never, max_tokens=n)
        except GeneratorExit:
            self.count += 1
            raise
        return n


def test_leaving_early_closes_the_live_conversations() -> None:
    model = make_model("llama")
    closed = Closed()
    run = make_engine(model).run([closed.conversation(n) for n in (2, 30, 40, 50, 60)])
    assert next(run) == 2
    assert n_hooks(model) == LAYERS + 1
    run.close()
    assert closed.count == 3  # the fifth was never started
    assert n_hooks(model) == 0


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_in_a_conversation_comes_out_and_everything_is_put_back(error: type[BaseException]) -> None:
    model = make_model("llama")
    engine = make_engine(model)
    closed = Closed()

    def faulty() -> Conversation[int]:
        yield Feed(random_ids(4))
        raise error("tool")

    before = model.config._attn_implementation
    with pytest.raises(error, match="tool"):
        list(engine.run([closed.conversation(9), faulty(), closed.conversation(9)]))
    assert closed.count == 2
    assert n_hooks(model) == 0
    assert model.config._attn_implementation == before
    assert torch.is_grad_enabled()
    (one,) = engine.run([talk(0, [random_ids(4)], 3)])  # and the engine can be used again
    assert one.error(model) < 1e-5


def test_one_engine_runs_once_at_a_time() -> None:
    engine = make_engine(make_model("llama"))
    run = engine.run([talk(i, [random_ids(4)], 2 + i) for i in range(3)])
    next(run)
    with pytest.raises(ModelError, match="running already"):
        next(engine.run([talk(0, [random_ids(4)], 2)]))
    assert len(list(run)) == 2
    assert len(list(engine.run([talk(0, [random_ids(4)], 2)]))) == 1


# Requests that cannot be served ----------------------------------------------------------------------------------


def attempt(*requests: Any) -> Conversation[str]:
    """What the last of the requests is refused with; empty where it is not."""
    for request in requests[:-1]:  # noqa: UP028 - a tuple cannot be sent the replies
        yield request
    try:
        yield requests[-1]
    except ModelError as error:
        return str(error)
    return ""


FED = Feed([1, 2, 3])


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([Feed(list(range(1, 32)))], "could grow to 31 ids, but a slot holds 30"),
        ([Feed([1] * 20), Feed([1] * 11)], "could grow to 31 ids"),
        ([FED, Sample(stop=never, max_tokens=28)], "could grow to 31 ids"),
        ([Sample(stop=never, max_tokens=2)], "feed the prompt or observation first"),
        ([FED, Sample(stop=never, max_tokens=2), Sample(stop=never, max_tokens=2)], "feed the prompt"),
        ([FED, Rewind(2), Sample(stop=never, max_tokens=2)], "feed the prompt or observation first"),
        ([FED, Sample(stop=never, max_tokens=2, temperature=0.5)], "needs its own rng"),
        ([FED, Sample(stop=never, max_tokens=0)], "at least 1 token"),
        ([FED, Sample(stop=never, max_tokens=2, temperature=-1.0)], "temperature >= 0"),
        ([FED, Sample(stop=never, max_tokens=2, top_p=0.0)], "0 < top_p <= 1"),
        ([FED, Sample(stop=never, max_tokens=2, top_p=1.5)], "0 < top_p <= 1"),
        ([Feed([])], "give ids"),
        ([Feed([1, 2], keep=(2,))], "rising offsets within them"),
        ([Feed([1, 2], keep=(1, 0))], "rising offsets"),
        ([Feed([1, 2], keep=(-1,))], "rising offsets"),
        ([FED, Rewind(4)], "a Rewind to 4 ids was asked for, but the conversation has 3"),
        ([FED, Rewind(-1)], "a Rewind to -1"),
    ],
)
def test_a_request_that_cannot_be_served_is_thrown_into_its_conversation_alone(
    requests: list[Any], message: str
) -> None:
    model = make_model("llama")
    engine = make_engine(model, capacity=30)
    results = list(engine.run([attempt(*requests), talk("neighbour", [random_ids(4)], 8)]))
    (refusal,) = [r for r in results if isinstance(r, str)]
    (neighbour,) = [r for r in results if isinstance(r, Played)]
    assert message in refusal
    assert neighbour.ids[4:] == generated(model, random_ids(4), 8)


def test_a_conversation_goes_on_after_a_refusal() -> None:
    model = make_model("llama")

    def stubborn() -> Conversation[list[int]]:
        yield Feed([4, 5, 6])
        with pytest.raises(ModelError):
            yield Rewind(9)
        turn = yield Sample(stop=never, max_tokens=3)
        return turn.ids

    (ids,) = make_engine(model).run([stubborn()])
    assert ids == generated(model, [4, 5, 6], 3)


def test_exactly_the_capacity_fits() -> None:
    model = make_model("llama")
    (one,) = make_engine(model, capacity=16).run([talk(0, [random_ids(10)], 6)])
    assert one.error(model) < 1e-5


def test_the_models_own_limit_bounds_the_capacity() -> None:
    assert make_engine(make_model("llama"), capacity=9999).capacity == 1024


def test_layers_out_of_range_are_refused() -> None:
    with pytest.raises(ModelError, match="layer 4 does not exist"):
        make_engine(make_model("llama"), layers=[4])


def test_attention_that_slots_do_not_reach_is_noticed_where_it_hardly_counts() -> None:
    model = make_model("bloom", dtype=torch.bfloat16)
    for block in model.transformer.h:
        block.self_attention.dense.weight.mul_(1e-3)
    engine = make_engine(model)  # in half precision, logits without the past are within rounding of the right ones
    assert not engine.batched
    (one,) = engine.run([talk(0, [random_ids(9)], 4)])
    assert one.error(model) < 5e-2


def test_a_model_that_does_not_keep_its_past_is_refused() -> None:
    model = make_model("bloom")
    inner = model.forward

    def forward(input_ids: Any, cache: Any = None, use_cache: bool = False, **kwargs: Any) -> Any:
        return inner(input_ids=input_ids, use_cache=False)

    model.forward = forward
    with pytest.raises(ModelError, match=r"cannot be driven with a cache .*its cache holds fewer"):
        make_engine(model)


def test_a_model_that_reads_its_past_wrongly_is_refused() -> None:
    model = make_model("bloom")
    inner = model.forward

    def forward(input_ids: Any, cache: Any = None, **kwargs: Any) -> Any:
        output = inner(input_ids=input_ids, cache=cache, **kwargs)
        for layer in getattr(cache, "layers", ()):
            layer.values = layer.values.roll(1, dims=2)
        return output

    model.forward = forward
    with pytest.raises(ModelError, match=r"cannot be driven with a cache .*relative error of its logits"):
        make_engine(model)


def test_compiled_models_are_refused() -> None:
    model = make_model("llama")
    wrapped = torch.compile(model, backend="eager")
    with pytest.raises(ModelError, match="compiled, which hides its blocks from hooks"):
        make_engine(wrapped)
    model.compile(backend="eager")
    with pytest.raises(ModelError, match="compiled, which hides its blocks from hooks"):
        make_engine(model)


def test_the_tokenizers_padding_side_has_no_effect_and_is_left_alone() -> None:
    model = make_model("llama")
    played = []
    for side in ("left", "right"):
        tokenizer = make_tokenizer(side)
        engine = Engine(model, tokenizer, layers=ALL_LAYERS, slots=3, capacity=64)
        texts = ["Ada", "Who wrote it?", "x"]
        played.append(play(engine, [talk(t, [engine.encode(t)], 5) for t in texts]))
        assert tokenizer.padding_side == side
    for text, one in played[0].items():
        assert played[1][text].ids == one.ids
        np.testing.assert_array_equal(played[1][text].states, one.states)


def test_text_is_encoded_as_it_is() -> None:
    engine = make_engine(make_model("llama"))
    for text in ("Thought: x\n", " Ångström [é]", "a<end>b"):
        assert engine.decode(engine.encode(text)) == text
    assert len(engine.encode("<end>")) == 1
    assert len(engine.encode("<end>", plain=True)) == 5
    assert engine.decode(engine.encode("<end>", plain=True)) == "<end>"


# Memory ----------------------------------------------------------------------------------------------------------


def test_finished_conversations_leave_no_object_behind() -> None:
    engine = make_engine(make_model("llama"))

    def tensors() -> int:
        gc.collect()
        return sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())

    play(engine, [talk(i, [random_ids(6, seed=i)], 3) for i in range(8)])
    before = tensors()
    play(engine, [talk(i, [random_ids(6, seed=i)], 3) for i in range(120)])
    assert tensors() <= before


@pytest.mark.slow
def test_memory_stays_flat_over_hundreds_of_episodes() -> None:
    script = """
        import sys
        sys.path[:0] = [{folder!r}]
        import psutil
        from test_engine import make_engine, talk
        from tiny_models import make_model, random_ids
        engine = make_engine(make_model("llama"), slots=8)
        head, sizes = random_ids(40), []
        def talks():
            for i in range(400):
                yield talk(i, [head + random_ids(9 + i % 5, seed=i), random_ids(7, seed=i)], 6, shared=40)
        for n, _ in enumerate(engine.run(talks()), 1):
            if n in (50, 400):
                sizes.append(psutil.Process().memory_info().rss)
        print(sizes[1] / sizes[0])
    """
    folder = Path(__file__).parent
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script).format(folder=str(folder))],
        cwd=folder.parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(ran.stdout) < 1.05


@pytest.mark.slow
def test_the_embedded_model_is_driven_as_it_drives_itself() -> None:
    from probecascade.models import load

    loaded = load("smollm2")
    engine = Engine(loaded.model, loaded.tokenizer, layers=[0, 15, -1], slots=3, capacity=160)
    head = engine.encode("Answer the questions.\nQuestion: What is the capital of France?\nAnswer: Paris\n")
    texts = ["Question: What is the capital of Italy?\nAnswer:", "Question: 2 + 2?\nAnswer:", "Hello"]
    talks = {t: head + engine.encode(t) for t in texts}
    played = play(engine, [talk(t, [ids], 8, shared=len(head)) for t, ids in talks.items()])
    for text, one in played.items():
        assert one.turns[0].ids == generated(loaded.model, talks[text], 8)
        clean = clean_states(loaded.model, one.ids)[one.positions][:, [0, 15, 30]]
        assert relative_error(one.states, clean) < 1e-5
