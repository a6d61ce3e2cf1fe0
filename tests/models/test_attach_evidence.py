"""Gates that look back, or read text and checks, in a loop that is not ours: they see what a run would hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import LAYERS, make_model, make_tokenizer, random_ids

from probecascade.episode import Episode, Moment, Recording, Step, Task
from probecascade.errors import CascadeError
from probecascade.models.attach import attach
from probecascade.policies import Cascade, Gate, score_run
from probecascade.store import Run, RunWriter
from probecascade.testing import EvidenceProbe

TOKENIZER = make_tokenizer()
PAGES = ("Ada lives in Brosk.", "Could not find Brosk.")
TAPS = (("prompt", 1), ("action:1", 2), ("observation:1", 1), ("action:2", 2))


class Keeping:
    """Passes all to a cascade and keeps the moments."""

    def __init__(self, cascade: Cascade) -> None:
        self.policy = cascade
        self.layers = cascade.layers
        self.moments: list[Moment] = []

    def begin(self, task: Task) -> Any:
        watch, keep = self.policy.begin(task), self.moments

        class Watch:
            def decide(self, moment: Moment) -> Any:
                keep.append(moment)
                return watch.decide(moment)

        return Watch()


@pytest.fixture(scope="module")
def model() -> Any:
    return make_model("llama")


def cascade() -> Cascade:
    return Cascade(
        [Gate(name, None, EvidenceProbe(), 1.0, taps=TAPS[:k]) for name, k in (("action:1", 2), ("action:2", 4))]
    )


def generate(model: Any, ids: Sequence[int], hook: Any) -> Any:
    row = torch.tensor([list(ids)])
    options: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": TOKENIZER.pad_token_id}
    return model.generate(
        input_ids=row,
        attention_mask=torch.ones_like(row),
        stopping_criteria=hook.stopping_criteria(),
        return_dict_in_generate=True,
        **options,
    )


def say(text: str) -> list[int]:
    found: list[int] = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    return found


def test_scores_in_a_wrapped_loop_are_those_of_the_run_that_holds_it(model: Any, tmp_path: Path) -> None:
    policy, steps, ids = Keeping(cascade()), [], random_ids(6)
    with attach(policy, model, TOKENIZER, on_error="raise") as hook, hook.episode("t") as episode:
        for r, page in enumerate(PAGES, 1):
            out = generate(model, ids, hook)
            if r == 1:
                episode.checkpoint("prompt", out)
            turn = out.sequences[0, len(ids) :].tolist()
            episode.checkpoint("action", out, checks={"depth": 0.1 * r})
            ids = out.sequences[0].tolist() + say("\nObservation: " + page)
            episode.checkpoint("observation", tokens=ids, observation=page)
            text = TOKENIZER.decode(turn, skip_special_tokens=False, clean_up_tokenization_spaces=False)
            steps.append(Step(r, 1, text, "", "", "", page, "content", 5, 9, "action"))
    assert [m.checkpoint.name for m in policy.moments] == [
        "prompt",
        "action:1",
        "observation:1",
        "action:2",
        "observation:2",
    ]
    assert set(episode.scores) == {"action:1", "action:2"}
    points = tuple(moment.checkpoint for moment in policy.moments)
    for point in points:
        object.__setattr__(point, "signals", tuple(np.nan_to_num(point.signals).tolist()))
    kept = Episode(
        "t~0", "t", "g", 0, "success", 1.0, "finished", tuple(steps), points, np.array(ids, np.int32), 6, 10, 18, 2, 1.0
    )
    hidden = np.stack([[moment.hidden[layer] for layer in policy.layers] for moment in policy.moments])
    d_model = hidden.shape[2]
    with RunWriter(
        tmp_path / "run", {"n_layers": LAYERS}, layers=policy.layers, d_model=d_model, dtype="float32"
    ) as run:
        run.add(Recording(kept, hidden))
    stored = score_run(Run.open(tmp_path / "run"), policy.policy.gates)
    assert stored.scores[0].tolist() == [episode.scores["action:1"], episode.scores["action:2"]]


@pytest.mark.parametrize(
    ("left_out", "message"),
    [
        ("observation", "observation of round 1 was not given"),
        ("action", "looks back at action:1, which it was not shown|turn of round 1 was not given"),
        ("prompt", "looks back at prompt, which it was not shown"),
        ("checks", "reads checks: give checks= to checkpoint"),
        ("text", "observation of round 1 was not given"),
    ],
)
def test_what_a_gate_reads_must_be_shown(model: Any, left_out: str, message: str) -> None:
    gates = [Gate("action:2", None, EvidenceProbe(), 1.0, taps=TAPS)]
    ids = random_ids(6)
    with attach(Cascade(gates), model, TOKENIZER, on_error="raise") as hook, hook.episode("t") as episode:
        out = generate(model, ids, hook)
        if left_out != "prompt":
            episode.checkpoint("prompt", out)
        if left_out != "action":
            episode.checkpoint("action", out, checks={})
        ids = out.sequences[0].tolist() + say("\nObservation: x")
        if left_out != "observation":
            episode.checkpoint("observation", tokens=ids, observation="" if left_out == "text" else "x")
        out = generate(model, ids, hook)
        with pytest.raises(CascadeError, match=message):
            episode.checkpoint("action", out, checks=None if left_out == "checks" else {}, index=2)


def test_an_observation_may_be_given_at_the_action_after_it(model: Any) -> None:
    gates = [Gate("action:2", 2, EvidenceProbe(), 1.0)]
    ids = random_ids(6)
    with attach(Cascade(gates), model, TOKENIZER, on_error="raise") as hook, hook.episode("t") as episode:
        out = generate(model, ids, hook)
        episode.checkpoint("action", out, checks={})
        out = generate(model, out.sequences[0].tolist() + say("\nObservation: x"), hook)
        episode.checkpoint("action", out, checks={}, observation="x")
    assert "action:2" in episode.scores
