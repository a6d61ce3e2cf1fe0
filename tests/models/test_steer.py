"""A change of the residual stream: only where it is asked for, gone afterwards, and able to cause what it should."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tiny_models import LAYERS, SUPPORTED, clean_states, make_model, make_tokenizer, random_ids

from probecascade.episode import Episode
from probecascade.errors import ModelError, UsageError
from probecascade.evaluation.steering import steering_effect
from probecascade.models.engine import Engine
from probecascade.models.hooks import decoder_blocks
from probecascade.models.requests import Conversation, Feed, Sample
from probecascade.models.steer import Hold, Push, SteeredEngine, make_trials

WIDTH = 32
HEAD = random_ids(12, seed=100)
Spoken = tuple[list[int], NDArray[np.float32], NDArray[np.float32]]


def talk(prompt: Sequence[int], *, shared: int = 0, turns: int = 2, n: int = 4) -> Conversation[Spoken]:
    """All ids, the states of the prompt after its shared head, and those of every later id."""
    fed = yield Feed(prompt, keep=tuple(range(shared, len(prompt))), shared=shared)
    ids, before, after = list(prompt), fed.states, []
    for turn in range(turns):
        said = yield Sample(stop=lambda _: None, max_tokens=n)
        observed = random_ids(3, seed=turn)
        fed = yield Feed(observed, keep=(0, 1, 2))
        ids += [*said.ids, *observed]
        after += [said.states, fed.states]
    return ids, before, np.concatenate(after)


def engine(model: Any, **settings: Any) -> SteeredEngine:
    return SteeredEngine(model, make_tokenizer(), layers=range(LAYERS + 1), slots=3, capacity=200, **settings)


def prompts() -> list[list[int]]:
    return [HEAD + random_ids(n, seed=n) for n in (3, 9, 5, 7)]


def speak(own: Engine) -> list[Spoken]:
    return sorted(own.run(talk(p, shared=len(HEAD)) for p in prompts()))


def same(one: list[Spoken], other: list[Spoken]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(a[0] == b[0] and np.array_equal(a[1], b[1]) and np.array_equal(a[2], b[2]) for a, b in pairs)


def hooks(model: Any) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.fixture
def step() -> NDArray[np.float64]:
    return np.random.default_rng(0).normal(size=WIDTH) * 20


@pytest.mark.parametrize("layer", range(LAYERS + 1))
def test_a_push_of_zero_is_no_push_bit_for_bit(layer: int) -> None:
    own = engine(make_model())
    plain = speak(own)
    with own.steer(layer, Push(np.zeros(WIDTH))):
        assert same(speak(own), plain)


@pytest.mark.parametrize("layer", range(LAYERS + 1))
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_recorded_states_are_the_pushed_ones_and_the_prompt_is_left_alone(
    kind: str, layer: int, step: NDArray[np.float64]
) -> None:
    own = engine(make_model(kind))
    (plain,) = own.run([talk(prompts()[0], turns=1, n=1)])
    with own.steer(layer, Push(step)):
        (pushed,) = own.run([talk(prompts()[0], turns=1, n=1)])
    assert np.array_equal(plain[1], pushed[1])
    assert plain[0][: len(prompts()[0]) + 1] == pushed[0][: len(prompts()[0]) + 1]  # the first id is drawn unchanged
    # The state of the first id after the prompt differs by the step and by nothing else.
    np.testing.assert_allclose(pushed[2][0, layer], plain[2][0, layer] + step, rtol=1e-4, atol=1e-3)
    assert np.array_equal(pushed[2][0, :layer], plain[2][0, :layer])


@pytest.mark.parametrize("kind", SUPPORTED)
def test_holding_takes_the_coordinate_and_undoes_a_push_along_it(kind: str, step: NDArray[np.float64]) -> None:
    axis = step / np.linalg.norm(step)
    own = engine(make_model(kind))
    with own.steer(-1, Hold(step, 2.5)):
        held = speak(own)
    with own.steer(-1, Push(step)), own.steer(-1, Hold(axis, 2.5)):
        both = speak(own)
    for (ids, _, states), (again, _, others) in zip(held, both, strict=True):
        np.testing.assert_allclose(states[:, -1] @ axis, 2.5, atol=1e-3)
        assert ids == again
        np.testing.assert_allclose(states, others, rtol=1e-3, atol=1e-2)


def test_the_later_blocks_see_the_change(step: NDArray[np.float64]) -> None:
    model = make_model()
    own = engine(model)
    prompt = prompts()[0]
    with own.steer(1, Push(step)):
        ((ids, _, states),) = own.run([talk(prompt)])

    def push(module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
        moved = output.clone()
        moved[:, len(prompt) :] += torch.tensor(step, dtype=output.dtype)
        return moved

    handle = decoder_blocks(model)[0].register_forward_hook(push)
    clean = clean_states(model, ids)
    handle.remove()
    np.testing.assert_allclose(states[:, 2:], clean[len(prompt) :, 2:], rtol=1e-3, atol=1e-2)


def test_kept_heads_and_other_engines_are_not_touched(step: NDArray[np.float64]) -> None:
    model = make_model()
    own, other = engine(model), engine(model)
    plain = speak(engine(model))
    with own.steer(1, Push(step)):  # the head is encoded for the first time here, and kept
        assert not same(speak(own), plain)
        assert same(speak(other), plain)
    assert same(speak(own), plain)
    assert same(speak(engine(model)), plain)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("layer", [0, 2])
def test_hooks_are_gone_after_an_exception(layer: int, error: type[BaseException]) -> None:
    model = make_model()
    own = engine(model)
    before, plain = hooks(model), speak(own)

    def breaking(states: torch.Tensor) -> torch.Tensor:
        raise error

    with pytest.raises(error), own.steer(layer, breaking):
        speak(own)
    assert hooks(model) == before
    assert same(speak(own), plain)


def test_a_running_engine_and_an_unknown_layer_are_refused(step: NDArray[np.float64]) -> None:
    model = make_model()
    own = engine(model)
    running = own.run(talk(p) for p in prompts())
    next(running)
    with pytest.raises(ModelError, match="running already"), own.steer(1, Push(step)):
        pass
    running.close()
    with pytest.raises(ModelError, match="layer 9 does not exist"), own.steer(9, Push(step)):
        pass
    assert hooks(model) == hooks(make_model())


def test_half_precision_keeps_its_dtype() -> None:
    own = engine(make_model(dtype=torch.bfloat16))
    plain = speak(own)
    with own.steer(1, Push(np.zeros(WIDTH))):
        assert same(speak(own), plain)


def test_trials_are_as_long_as_they_say_and_share_their_controls() -> None:
    rng = np.random.default_rng(1)
    direction = np.eye(WIDTH)[3]
    states = list(rng.normal(5.0, 2.0, size=(500, WIDTH)).astype(np.float32))
    trials = make_trials(direction, states, (2, 8), controls=3, seed=0)
    assert trials.spread == pytest.approx(2.0, rel=0.1)
    assert set(trials.controls) == {"+2σ", "−2σ", "+8σ", "−8σ"}
    assert trials.controls["+2σ"] == trials.controls["−2σ"]
    assert len(set(trials.controls["+2σ"]) & set(trials.controls["+8σ"])) == 0
    for name, change in trials.changes.items():
        assert isinstance(change, Push)
        wanted = (2 if "2σ" in name else 8) * trials.spread
        assert np.linalg.norm(change.step) == pytest.approx(wanted)
    held = make_trials(direction, states, (), controls=2, seed=0)
    own = held.changes["direction held"]
    assert isinstance(own, Hold)
    assert own.value == pytest.approx(5.0, abs=0.3)
    assert list(held.controls) == ["direction held"]
    assert len(held.controls["direction held"]) == 2


# A toy agent: it succeeds if it ever says the one word that the planted direction is the unembedding of ----------


def play(own: SteeredEngine, word: int, n: int) -> list[Episode]:
    def episode(number: int) -> Conversation[Episode]:
        ids, _, _ = yield from talk(random_ids(6, seed=number), turns=1, n=4)
        said = word in ids[6:10]
        return Episode(
            episode_id=str(number),
            task_id=str(number),
            group=str(number),
            seed=0,
            outcome="success" if said else "failure",
            reward=float(said),
            reason="finished",
            steps=(),
            checkpoints=(),
            token_ids=np.array(ids, np.int32),
            prompt_tokens=6,
            generated=4,
            observed=3,
            calls=0,
            seconds=0.0,
        )

    return list(own.run(episode(number) for number in range(n)))


def test_a_planted_direction_changes_success_and_random_ones_do_not() -> None:
    model = make_model()
    own = engine(model)
    word = 77
    head = model.get_output_embeddings().weight[word].numpy().astype(np.float64)
    states = [states[-1, -1] for _, _, states in speak(own)]
    trials = make_trials(head / np.linalg.norm(head), states, (40,), controls=3, seed=0)
    twins = play(own, word, 40)

    def steered() -> Iterator[tuple[str, list[Episode]]]:
        for name, change in trials.changes.items():
            with own.steer(-1, change):
                yield name, play(own, word, 40)

    played = dict(steered())
    effects = {
        name: steering_effect(name, twins, played[name], [played[c] for c in controls])
        for name, controls in trials.controls.items()
    }
    up = effects["+40σ"]
    assert up.direction["success"].low > 0.8
    assert up.beyond["success"].low > 0.5
    assert up.verdict.endswith("the direction has an effect.")
    assert max(abs(change) for change in up.each_control) < 0.3
    assert effects["−40σ"].direction["success"].value <= 0


@pytest.mark.parametrize(
    ("dtype", "held", "beyond"),
    [(torch.float16, 1e4, 1e5), (torch.bfloat16, 1e38, 1e39), (torch.float32, 1e38, 1e39), (torch.float64, 1e38, 1e39)],
)
def test_a_push_stays_within_what_the_model_can_hold(dtype: torch.dtype, held: float, beyond: float) -> None:
    direction = np.eye(WIDTH)[0]
    states = [direction, -direction]  # one standard deviation is 1
    trials = make_trials(direction, states, (held,), controls=1, seed=0, dtype=dtype)
    for change in trials.changes.values():
        assert torch.isfinite(change(torch.ones(1, WIDTH)).to(dtype)).all()
    with pytest.raises(UsageError, match="give a smaller strength"):
        make_trials(direction, states, (1.0, beyond), controls=1, seed=0, dtype=dtype)
