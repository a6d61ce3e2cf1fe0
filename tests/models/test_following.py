"""Log-probabilities of ids that might come next: against one clean forward, however the feed is cut and batched."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_models import LAYERS, make_model, make_tokenizer, random_ids

from probecascade.models.engine import Engine
from probecascade.models.requests import Conversation, Fed, Feed, Rewind

ASKED = (3, 11, 7)


def ask(number: int, shared: int) -> Conversation[tuple[int, Fed, Fed]]:
    ids = [*random_ids(8, seed=0), *random_ids(5 + number, seed=number + 1)]
    yield Feed(ids, shared=shared)
    fed = yield Feed([5, 9, 2], following=ASKED)
    yield Rewind(len(ids))
    again = yield Feed([5, 9, 2], keep=(2,), following=ASKED[:1])
    return number, fed, again


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("batch", [2, 2048])
@pytest.mark.parametrize("shared", [0, 8])
def test_they_are_those_of_one_clean_forward(kind: str, batch: int, shared: int) -> None:
    model = make_model(kind)
    engine = Engine(model, make_tokenizer(), layers=(LAYERS,), slots=3, capacity=64, max_batch_tokens=batch)
    for number, fed, again in engine.run(ask(number, shared) for number in range(4)):
        ids = [*random_ids(8, seed=0), *random_ids(5 + number, seed=number + 1), 5, 9, 2]
        with torch.no_grad():
            clean = torch.log_softmax(model(torch.tensor([ids])).logits[0, -1].float(), -1)
        np.testing.assert_allclose(fed.following, clean[list(ASKED)].numpy(), rtol=1e-4)
        np.testing.assert_allclose(again.following, fed.following[:1], rtol=1e-4)
        assert again.states.shape[0] == 1


def test_nothing_is_told_that_was_not_asked() -> None:
    engine = Engine(make_model("llama"), make_tokenizer(), slots=1, capacity=64)

    def plain() -> Conversation[Fed]:
        return (yield Feed([1, 2, 3]))

    (fed,) = engine.run([plain()])
    assert fed.following.shape == (0,)
