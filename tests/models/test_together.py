"""Conversations held as one on a real engine, beside themselves alone."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from tiny_models import LAYERS, make_model, make_tokenizer, random_ids

from probecascade.models.engine import Engine
from probecascade.models.requests import Conversation, Fed, Feed, Rewind, Sample, Turn
from probecascade.models.together import together

Told = tuple[list[int], list[NDArray[np.float32]]]


def talk(seed: int, ask: bool, parts: int, temperature: float) -> Conversation[Told]:
    """Five rounds after a shared head; some ask aside, some part from the others at a round."""
    rng = np.random.default_rng(seed)
    ids = random_ids(12, seed=seed)
    fed: Fed = yield Feed(ids, keep=(11,), shared=8)
    states = [fed.states]
    for number in range(5):
        if ask:
            yield Feed(random_ids(4, seed=90), aside=True)
            yield Sample(lambda drawn: None, 3)
            yield Rewind(len(ids))
            yield Rewind(len(ids) - 1)
            yield Feed(ids[-1:])
        turn: Turn = yield Sample(lambda drawn: 3 if len(drawn) == 4 else None, 9, temperature, rng=rng)
        ids += turn.ids
        coming = random_ids(3 + (number >= parts), seed=number)
        fed = yield Feed(coming, keep=(len(coming) - 1,))
        ids += coming
        states += [turn.states, fed.states]
    return ids, states


WAYS = [(False, 9), (True, 9), (False, 2), (True, 2), (True, 4)]


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_each_is_what_it_would_have_been_alone_at_less_cost(kind: str, temperature: float) -> None:
    engine = Engine(make_model(kind), make_tokenizer(), layers=(LAYERS,), slots=2, capacity=96)

    def ways(seed: int) -> list[Conversation[Told]]:
        return [talk(seed, ask, parts, temperature) for ask, parts in WAYS]

    alone = {seed: [told for way in ways(seed) for told in engine.run([way])] for seed in range(3)}
    cost = engine.tokens_computed
    held = list(engine.run(together(ways(seed)) for seed in range(3)))
    assert engine.tokens_computed - cost < 0.6 * cost
    for told in held:
        (single,) = [alone[seed] for seed in alone if alone[seed][0][0][:12] == told[0][0][:12]]
        for (ids, states), (own_ids, own_states) in zip(told, single, strict=True):
            assert ids == own_ids
            for state, own in zip(states, own_states, strict=True):
                np.testing.assert_allclose(state, own, rtol=1e-3, atol=1e-4)
