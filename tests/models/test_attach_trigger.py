"""A gate in a wrapped loop that looks only in doubt, and says how what it aborts was likely to fail."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import make_model, make_tokenizer, random_ids

from probecascade.policies import Cascade, Gate, Trigger
from probecascade.probes import LinearProbe, ModeProbe

TOKENIZER = make_tokenizer()
WIDTH = 32


@pytest.fixture(scope="module")
def model() -> Any:
    return make_model("llama")


def gated(trigger: Trigger | None) -> Cascade:
    """Aborts whatever it looks at, and calls it a loop."""
    probe = LinearProbe(np.zeros(WIDTH), np.ones(WIDTH), np.zeros(WIDTH), 5.0)
    bias = np.array([3.0, 0.0])
    modes = ModeProbe(("loop", "gave_up"), np.zeros(WIDTH), np.ones(WIDTH), np.zeros((2, WIDTH)), bias)
    return Cascade([Gate("action:1", 1, probe, 0.5, trigger=trigger, modes=modes)])


def act(model: Any, cascade: Cascade, **counters: int) -> Any:
    """One turn of the model, and the checkpoint after it."""
    ids = torch.tensor([random_ids(5)])
    with cascade.attach(model, TOKENIZER, on_error="raise") as hook, hook.episode("t") as episode:
        out = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=6,
            do_sample=False,
            pad_token_id=TOKENIZER.pad_token_id,
            return_dict_in_generate=True,
            stopping_criteria=hook.stopping_criteria(),
        )
        episode.checkpoint("action", out, **counters)
        return episode


def entropy(model: Any) -> float:
    """Mean entropy of the distributions that the six new ids were drawn from."""
    ids = torch.tensor([random_ids(5)])
    with torch.no_grad():
        whole = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False, pad_token_id=0
        )
        logs = torch.log_softmax(model(input_ids=whole).logits[0, 4:-1].double(), -1)
    return float(-(logs.exp() * logs).sum(-1).mean())


def test_it_looks_where_the_turn_was_in_doubt(model: Any) -> None:
    doubt = entropy(model)
    looked = act(model, gated(Trigger("entropy_mean", "above", doubt - 0.01)))
    assert looked.aborted
    assert "; likely loop (0.95): repeats an action already tried; let it see" in looked.decision.reason
    passed = act(model, gated(Trigger("entropy_mean", "above", doubt + 0.01)))
    assert not passed.aborted
    assert passed.scores == {}
    assert act(model, gated(None)).aborted


def test_a_counter_that_a_trigger_reads_must_be_given(model: Any) -> None:
    cascade = gated(Trigger("not_found", "above", 2))
    with pytest.raises(Exception, match="reads the signals not_found, which are not known here"):
        act(model, cascade)
    assert not act(model, cascade, not_found=1).aborted
    assert act(model, cascade, not_found=2).aborted
