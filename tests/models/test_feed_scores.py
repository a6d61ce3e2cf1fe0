"""Log-probabilities of ids that are fed: against one clean forward, however the feed is cut and batched."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from tiny_models import LAYERS, make_model, make_tokenizer, random_ids

from probecascade.errors import ModelError
from probecascade.models.engine import Engine
from probecascade.models.requests import Conversation, Fed, Feed, Sample


def oracle(model: object, ids: Sequence[int], score: Sequence[int]) -> np.ndarray:
    with torch.no_grad():
        logprobs = torch.log_softmax(model(torch.tensor([list(ids)])).logits[0].float(), -1)  # type: ignore[operator]
    entropies = -(logprobs.exp() * logprobs).sum(-1)
    return np.array([(logprobs[o - 1, ids[o]].item(), entropies[o - 1].item()) for o in score])


def read(name: int, ids: Sequence[int], score: tuple[int, ...], shared: int = 0) -> Conversation[tuple[int, Fed]]:
    fed = yield Feed(ids, keep=(len(ids) - 1,), shared=shared, score=score)
    return name, fed


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("batch", [7, 2048])
def test_scores_are_those_of_one_clean_forward(kind: str, batch: int) -> None:
    model = make_model(kind)
    engine = Engine(model, make_tokenizer(), layers=range(LAYERS + 1), slots=3, capacity=64, max_batch_tokens=batch)
    texts = [random_ids(n, seed=n) for n in (5, 31, 17, 40)]
    wanted = [tuple(range(1, len(ids), 1 + number)) for number, ids in enumerate(texts)]
    conversations = (read(n, ids, score) for n, (ids, score) in enumerate(zip(texts, wanted, strict=True)))
    for number, fed in engine.run(conversations):
        found = np.stack([fed.logprobs, fed.entropies], axis=1)
        expected = oracle(model, texts[number], wanted[number])
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        assert not np.allclose(found[:-1], expected[1:], rtol=1e-2)  # one place off would be seen


def test_a_feed_scores_an_id_as_sampling_it_does() -> None:
    model, prompt = make_model("llama"), random_ids(9, seed=1)
    engine = Engine(model, make_tokenizer(), layers=(0,), slots=1, capacity=64)

    def sample() -> Conversation[object]:
        yield Feed(prompt)
        return (yield Sample(stop=lambda ids: None, max_tokens=6))

    (turn,) = engine.run([sample()])
    everything = [*prompt, *turn.ids]  # type: ignore[attr-defined]
    ((_, fed),) = engine.run([read(0, everything, tuple(range(len(prompt), len(everything))))])
    np.testing.assert_allclose(fed.logprobs, turn.logprobs, rtol=1e-4)  # type: ignore[attr-defined]
    np.testing.assert_allclose(fed.entropies, turn.entropies, rtol=1e-4)  # type: ignore[attr-defined]


def test_a_shared_head_is_shared_only_where_its_ids_are_not_scored() -> None:
    model, head = make_model("llama"), random_ids(8, seed=2)
    engine = Engine(model, make_tokenizer(), layers=(1,), slots=2, capacity=64)
    texts = [[*head, *random_ids(6, seed=n)] for n in (3, 4)]
    list(engine.run(read(n, ids, (), shared=8) for n, ids in enumerate(texts)))
    before = engine.tokens_computed
    for number, fed in engine.run(read(n, ids, (9, 10), shared=8) for n, ids in enumerate(texts)):
        np.testing.assert_allclose(fed.logprobs, oracle(model, texts[number], (9, 10))[:, 0], rtol=1e-4)
    assert engine.tokens_computed - before == 12
    for number, fed in engine.run(read(n, ids, (8,), shared=8) for n, ids in enumerate(texts)):
        np.testing.assert_allclose(fed.logprobs, oracle(model, texts[number], (8,))[:, 0], rtol=1e-4)
    assert engine.tokens_computed - before == 12 + 28


@pytest.mark.parametrize("score", [(0,), (3, 2), (2, 2), (5,)])
def test_what_has_no_probability_is_not_scored(score: tuple[int, ...]) -> None:
    engine = Engine(make_model("llama"), make_tokenizer(), layers=(0,), slots=1, capacity=64)
    with pytest.raises(ModelError, match="rising offsets from 1 on"):
        list(engine.run([read(0, [1, 2, 3, 4, 5], score)]))
