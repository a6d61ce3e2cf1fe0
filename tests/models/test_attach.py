"""Hooks on a generation loop that is not ours.

Real device maps, CUDA graphs and serving engines cannot be made here: a second device is stood in for by a tensor
that refuses to meet other layers' tensors, a compiled model by the attribute that compiling leaves.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import LAYERS, clean_states, make_model, make_tokenizer, random_ids, relative_error

import probecascade
from probecascade.agents.layout import tokens_for
from probecascade.agents.parser import parse_turn
from probecascade.episode import CONTINUE, SIGNALS, Decision, Moment, Question, Task
from probecascade.errors import (
    CascadeError,
    EpisodeAborted,
    ModelError,
    StaleCheckpointError,
    StoreError,
    UsageError,
)
from probecascade.models.attach import attach
from probecascade.models.attached import thought_place
from probecascade.models.engine import Engine
from probecascade.models.identity import template_checksum, tokenizer_checksum
from probecascade.models.recorder import Chunk, Recorder
from probecascade.models.requests import Feed
from probecascade.policies import Cascade, Gate, Shadow
from probecascade.probes import LinearProbe
from probecascade.store.schema import cast
from probecascade.thresholds import OFF

ALL = tuple(range(LAYERS + 1))
TOKENIZER = make_tokenizer()
END = TOKENIZER.eos_token_id


@dataclass
class Watcher:
    """A policy that keeps what it is shown and aborts the named tasks at the named checkpoints."""

    layers: Sequence[int] = ALL
    aborts: tuple[tuple[str, str], ...] = ()
    gates: tuple[Any, ...] = ()
    seen: list[tuple[str, Moment]] = field(default_factory=list)

    def begin(self, task: Task) -> Any:
        def decide(moment: Moment) -> Decision:
            self.seen.append((task.task_id, moment))
            name = moment.checkpoint.name
            if (task.task_id, name) in self.aborts:
                return Decision("abort", name, 0.9, 0.5, "doomed")
            return Decision("continue", name, 0.1, 0.5)

        return SimpleNamespace(decide=decide)

    def states(self, at: int = -1) -> np.ndarray:
        hidden = self.seen[at][1].hidden
        return np.stack([hidden[layer] for layer in ALL])

    @property
    def names(self) -> list[str]:
        return [moment.checkpoint.name for _, moment in self.seen]


THOUGHT = (Gate("thought:1", 1, LinearProbe(np.zeros(32), np.ones(32), np.ones(32), 0.0), OFF),)


@pytest.fixture(scope="module")
def model() -> Any:
    return make_model("llama")


def probe(weight: float = 1.0, bias: float = 0.0) -> LinearProbe:
    return LinearProbe(np.zeros(32), np.ones(32), np.full(32, weight), bias)


def generate(model: Any, ids: Sequence[Sequence[int]], hook: Any = None, side: str = "left", **options: Any) -> Any:
    width = max(len(row) for row in ids)
    pad = [[0] * (width - len(row)) for row in ids]
    order = (lambda a, b: a + b) if side == "left" else (lambda a, b: b + a)
    settings: dict[str, Any] = {
        "max_new_tokens": 6,
        "do_sample": False,
        "pad_token_id": TOKENIZER.pad_token_id,
        "return_dict_in_generate": True,
    }
    if hook is not None:
        settings["stopping_criteria"] = hook.stopping_criteria()
    return model.generate(
        input_ids=torch.tensor([order(p, list(r)) for p, r in zip(pad, ids, strict=True)]),
        attention_mask=torch.tensor([order(p, [1] * len(r)) for p, r in zip(pad, ids, strict=True)]),
        **(settings | options),
    )


def new_ids(out: Any, row: int, prompt_columns: int) -> list[int]:
    return out.sequences[row, prompt_columns:].tolist()


def assert_clean(states: np.ndarray, model: Any, ids: Sequence[int]) -> None:
    assert relative_error(states, clean_states(model, ids)[-1]) <= 1e-5


def count_hooks(model: Any) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


# --- the state is that of the asked token (faults 22, 23, 29, 30, 31, 33) ------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "gpt2", "neox", "mistral"])
@pytest.mark.parametrize("length", [1, 2, 500])
def test_prompt_and_action_states_are_those_of_a_clean_forward(kind: str, length: int) -> None:
    model, ids, policy = make_model(kind), random_ids(length), Watcher()
    with attach(policy, model, TOKENIZER) as hook, hook.episode("t") as episode:
        out = generate(model, [ids], hook)
        episode.checkpoint("prompt", out)
        episode.checkpoint("action", out)
    whole = out.sequences[0].tolist()
    assert policy.names == ["prompt", "action:1"]
    assert [m.checkpoint.position for _, m in policy.seen] == [length - 1, length + 5]
    assert_clean(policy.states(0), model, ids)
    assert_clean(policy.states(1), model, whole)
    # Untreated, the newest state that the hooks saw is the token's before: the wrong one.
    assert relative_error(policy.states(1), clean_states(model, whole[:-1])[-1]) > 1e-3


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("cached", [True, False])
def test_a_padded_batch_gives_each_row_its_own_state(kind: str, side: str, cached: bool) -> None:
    model, policy = make_model(kind), Watcher()
    rows = [random_ids(n, seed=n) for n in (3, 9, 1, 6)]
    with attach(policy, model, TOKENIZER) as hook, hook.episodes("abcd") as episodes:
        out = generate(model, rows, hook, side, use_cache=cached)
        for episode in episodes:
            episode.checkpoint("action", out)
            episode.checkpoint("part", out, index=7)
    assert policy.names == ["action:1", "part:7"] * 4
    for i, row in enumerate(rows):
        whole = row + new_ids(out, i, 9)
        assert policy.seen[2 * i][1].checkpoint.position == len(whole) - 1
        assert_clean(policy.states(2 * i), model, whole)


def test_the_hook_sees_what_the_engine_stores(model: Any) -> None:
    ids, policy = random_ids(20), Watcher()
    with attach(policy, model, TOKENIZER, store_dtype="float16") as hook, hook.episode("t") as episode:
        out = generate(model, [ids], hook)
        episode.checkpoint("action", out)
    whole = out.sequences[0].tolist()

    def conversation() -> Iterator[Any]:
        fed = yield Feed(whole, keep=(len(whole) - 1,))
        return fed.states[0]

    engine = Engine(model, TOKENIZER, layers=ALL, slots=1, capacity=64)
    (stored,) = engine.run([conversation()])
    live = policy.states()
    np.testing.assert_array_equal(live, cast(live, "float16"))
    assert relative_error(live, cast(stored, "float16")) <= 1e-3
    scores = probe(0.05).score(np.stack([live[2], cast(stored, "float16")[2]]))
    assert abs(scores[0] - scores[1]) <= 1e-4


@pytest.mark.parametrize("continued", [False, True])
def test_a_second_turn_with_the_conversation_encoded_again_or_continued(model: Any, continued: bool) -> None:
    ids, policy = random_ids(5), Watcher()
    with attach(policy, model, TOKENIZER) as hook, hook.episode("t") as episode:
        out = generate(model, [ids], hook)
        episode.checkpoint("action", out)
        cached = out.cache.get_seq_length()
        assert cached == out.sequences.shape[1] - 1  # left as generate returned it
        ids = out.sequences[0].tolist() + random_ids(4, seed=9)
        episode.checkpoint("observation", tokens=ids)
        assert out.cache.get_seq_length() == cached
        out = generate(model, [ids], hook, **({"cache": out.cache} if continued else {}))
        episode.checkpoint("action", out)
        assert episode.round == 2
    assert policy.names == ["action:1", "observation:1", "action:2"]
    assert_clean(policy.states(1), model, ids)
    assert_clean(policy.states(2), model, out.sequences[0].tolist())
    shown = [m.checkpoint for _, m in policy.seen]
    assert [(c.tokens, c.generated) for c in shown] == [(6, 6), (10, 6), (16, 12)]


def test_a_checkpoint_leaves_generation_as_it_was(model: Any) -> None:
    ids = random_ids(8)
    alone = generate(model, [ids])
    with attach(Watcher(), model, TOKENIZER) as hook, hook.episode("t") as episode:
        out = generate(model, [ids], hook)
        episode.checkpoint("action", out)
        more = generate(model, [[*out.sequences[0].tolist(), 7]], hook, cache=out.cache)
    assert torch.equal(out.sequences, alone.sequences)
    again = generate(model, [[*alone.sequences[0].tolist(), 7]])
    assert torch.equal(more.sequences, again.sequences)


def test_end_markers_and_padding_are_no_part_of_a_turn(model: Any) -> None:
    rows, policy = [random_ids(4, seed=1), random_ids(4, seed=2)], Watcher()
    free = generate(model, rows)
    end = new_ids(free, 0, 4)[2]  # the third id of row 0 becomes the end marker
    cut = new_ids(free, 0, 4).index(end)
    with attach(policy, model, TOKENIZER) as hook, hook.episodes("ab") as episodes:
        hook.end_ids |= {end}
        out = generate(model, rows, hook, eos_token_id=end)
        for episode in episodes:
            episode.checkpoint("action", out)
    assert policy.seen[0][1].checkpoint.position == 4 + cut - 1
    assert_clean(policy.states(0), model, rows[0] + new_ids(free, 0, 4)[:cut])


def test_an_empty_turn_has_no_checkpoint(model: Any) -> None:
    ids, policy = random_ids(4), Watcher()
    first = new_ids(generate(model, [ids]), 0, 4)[0]
    with attach(policy, model, TOKENIZER) as hook, hook.episode("t") as episode:
        hook.end_ids |= {first}
        out = generate(model, [ids], hook, eos_token_id=first)
        assert episode.checkpoint("action", out) == CONTINUE
    assert policy.seen == []


def test_a_turn_that_the_caller_cut_is_read_at_its_last_kept_token(model: Any) -> None:
    ids, policy = random_ids(4), Watcher()
    with attach(policy, model, TOKENIZER) as hook, hook.episode("t") as episode:
        out = generate(model, [ids], hook)
        kept = out.sequences[0, :7].tolist()
        with pytest.raises(UsageError, match="do not begin this output's row 0"):
            episode.checkpoint("action", out, tokens=[*kept, 3])
        episode.checkpoint("action", out, tokens=kept)
    assert_clean(policy.states(), model, kept)
    assert dict(zip(SIGNALS, policy.seen[0][1].checkpoint.signals, strict=True))["turn_tokens"] == 3


def test_without_a_cache_the_conversation_is_encoded_anew(model: Any) -> None:
    ids, policy = random_ids(4), Watcher()
    with attach(policy, model, TOKENIZER) as hook, hook.episode("t") as episode:
        sequences = generate(model, [ids], hook, return_dict_in_generate=False)
        calls: list[int] = []
        handle = model.register_forward_pre_hook(
            lambda _, a, kw: calls.append(kw["input_ids"].shape[1]), with_kwargs=True
        )
        episode.checkpoint("action", sequences)
        handle.remove()
    assert calls == [10]
    assert_clean(policy.states(), model, sequences[0].tolist())


# --- stale positions ------------------------------------------------------------------------------------------------


def test_a_stale_position_raises_and_is_never_scored(model: Any) -> None:
    ids, policy = random_ids(5), Watcher()
    with attach(policy, model, TOKENIZER) as hook, hook.episode("t") as episode:
        with pytest.raises(StaleCheckpointError, match="has not just sampled"):
            episode.checkpoint("action", generate(make_model("llama", seed=1), [ids]))
        first = generate(model, [ids], hook)
        with pytest.raises(StaleCheckpointError, match="the token before the last"):
            episode.checkpoint("action")
        episode.checkpoint("action", first)
        with pytest.raises(StaleCheckpointError, match="decided on at this token already"):
            episode.checkpoint("action", first)
        with pytest.raises(StaleCheckpointError, match="before a checkpoint"):
            episode.checkpoint("prompt", first)
        generate(model, [[*first.sequences[0].tolist(), 3, 4]], hook)
        with pytest.raises(StaleCheckpointError, match="has not just sampled"):
            episode.checkpoint("part", first, index=1)
        model(input_ids=torch.tensor([[1, 2, 3]]))
        episode.checkpoint("action", tokens=[*first.sequences[0].tolist(), 3, 4, 9])
    assert policy.names == ["action:1", "action:2"]
    assert_clean(policy.states(), model, [*first.sequences[0].tolist(), 3, 4, 9])


def test_a_state_of_equal_length_but_other_ids_is_not_taken(model: Any) -> None:
    recorder = Recorder(model, ALL)
    with recorder, torch.no_grad():
        model(input_ids=torch.tensor([[5, 6, 7]]))
        assert recorder.track.find(0, [5, 6]) is not None
        assert recorder.track.find(0, [5, 8]) is None
        assert recorder.track.find(0, [9, 6, 7]) is None
        assert recorder.track.find(0, [5, 6, 7, 8]) is None
        assert recorder.track.find(1, [5, 6]) is None


def test_a_batch_padded_without_positions_is_not_trusted() -> None:
    """Fault 22: the caller's own forward shifted the shorter row, so its state is encoded anew."""
    model, policy = make_model("gpt2"), Watcher()
    with attach(policy, model, TOKENIZER) as hook, hook.episodes("ab") as episodes, torch.no_grad():
        model(
            input_ids=torch.tensor([[0, 0, 5, 6], [1, 2, 3, 4]]),
            attention_mask=torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]]),
        )
        assert hook.recorder.track.shifted
        episodes[0].checkpoint("prompt", tokens=[5, 6])
    assert_clean(policy.states(), model, [5, 6])


# --- stopping (faults 25, 78, 79, 81, 82) ---------------------------------------------------------------------------


def say(text: str) -> list[int]:
    return TOKENIZER(text, add_special_tokens=False).input_ids


class Script:
    """Logits processor that makes each row write its text."""

    def __init__(self, texts: Sequence[str], prompt_columns: int) -> None:
        self.ids = [say(text) for text in texts]
        self.start = prompt_columns

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        place = input_ids.shape[1] - self.start
        forced = torch.full_like(scores, float("-inf"))
        for row, ids in enumerate(self.ids):
            forced[row, ids[place] if place < len(ids) else END] = 0.0
        return forced


TURN = " I know.\nAction: Search[Ada]\n"


@pytest.mark.parametrize("side", ["left", "right"])
def test_one_row_is_aborted_and_the_others_equal_their_solo_outputs(model: Any, side: str) -> None:
    rows = [random_ids(n, seed=n) for n in (4, 6, 5, 3)]
    solo = [generate(model, [row], max_new_tokens=12) for row in rows]
    policy = Watcher(aborts=(("c", "prompt"),))
    with attach(policy, model, TOKENIZER) as hook, hook.episodes("abcd") as episodes:
        episodes[2].checkpoint("prompt", tokens=rows[2])
        out = generate(model, rows, hook, side, max_new_tokens=12, eos_token_id=END)
        criterion = hook.stopping_criteria()
        ended = criterion(out.sequences, None)
    assert ended.dtype == torch.bool
    assert ended.tolist() == [False, False, True, False]
    assert [e.aborted for e in episodes] == [False, False, True, False]
    assert set(new_ids(out, 2, 6)[1:]) == {TOKENIZER.pad_token_id}
    if side == "left":  # to the right of padding, generate itself starts from the wrong token
        for i in (0, 1, 3):
            assert new_ids(out, i, 6) == new_ids(solo[i], 0, len(rows[i]))


def test_a_thought_gate_stops_its_row_while_generate_runs(model: Any) -> None:
    rows = [say("Q\nAction: old\nThought:")] * 3
    width = len(rows[0])
    texts = [TURN, " Action is far.\nAction: Search[x]\n", " no label at all, only words"]
    policy = Watcher(aborts=(("b", "thought:1"),), gates=THOUGHT)
    with attach(policy, model, TOKENIZER) as hook, hook.episodes("abc") as episodes:
        out = generate(model, rows, hook, max_new_tokens=40, logits_processor=[Script(texts, width)], eos_token_id=END)
        assert [e.aborted for e in episodes] == [False, True, False]
        for episode in episodes:
            episode.checkpoint("action", out)
    assert [(t, m.checkpoint.name) for t, m in policy.seen] == [
        ("a", "thought:1"),
        ("b", "thought:1"),
        ("a", "action:1"),
        ("c", "action:1"),
    ]
    for at, thought in ((0, " I know."), (1, " Action is far.")):
        assert policy.seen[at][1].thought == thought.strip()
        assert_clean(policy.states(at), model, rows[0] + say(thought))
    text = TOKENIZER.decode(new_ids(out, 1, width), skip_special_tokens=True)
    assert text == " Action is far.\nAction:"
    assert TOKENIZER.decode(new_ids(out, 0, width), skip_special_tokens=True) == TURN


def test_a_new_turn_has_its_own_thought_and_an_old_label_never_fires_again(model: Any) -> None:
    policy, ids = Watcher(gates=THOUGHT), say("Thought:")
    with attach(policy, model, TOKENIZER) as hook, hook.episode("t") as episode:
        for text in (TURN, " words without a label", TURN):
            script = Script([text], len(ids))
            out = generate(model, [ids], hook, max_new_tokens=40, logits_processor=[script], eos_token_id=END)
            episode.checkpoint("action", out)
            ids = out.sequences[0, :-1].tolist() + say("Observation: x\nThought:")
    assert policy.names == ["thought:1", "action:1", "action:2", "thought:3", "action:3"]


WORDS = st.sampled_from(
    ["Action", ":", " ", "\n", "action 2:", "Search", "[", "]", "Observation:", "**", "I think.", "é", "```", "x"]
)


@settings(max_examples=100, deadline=None)
@given(st.lists(WORDS, max_size=14).map("".join))
def test_the_thought_is_where_the_agents_own_parser_sees_it(text: str) -> None:
    ids = say(text)
    parsed = parse_turn(text, ("search", "finish"))
    place = thought_place(lambda i: TOKENIZER.decode(list(i)), ids)
    if parsed.label is None or not ids:
        assert place is None
    else:
        model: Any = SimpleNamespace(decode=lambda i: TOKENIZER.decode(list(i)))
        assert place == max(tokens_for(model, ids, parsed.thought_end), 1) - 1


def test_a_label_over_split_or_merged_tokens_is_seen() -> None:
    """Fault 74."""
    pieces = {1: " ok", 2: "\n", 3: "Action", 4: ":", 5: "\nAction:", 6: ".\nAction: S", 7: "```\nAction: S["}

    def decode(ids: Sequence[int]) -> str:
        return "".join(pieces[i] for i in ids)

    assert thought_place(decode, [1, 2, 3]) is None
    assert thought_place(decode, [1, 2, 3, 4]) == 0
    assert thought_place(decode, [1, 5]) == 0
    assert thought_place(decode, [1, 6]) == 1
    assert thought_place(decode, [1, 2, 7]) == 2


@pytest.mark.parametrize("ends_there", [True, False])
@pytest.mark.parametrize("criterion", [True, False])
def test_a_thought_that_shares_its_last_token_with_the_label_is_read_once_that_was_fed(
    model: Any, ends_there: bool, criterion: bool
) -> None:
    pieces = {1: " ok", 6: ".\nAction: S", 3: "earch[x]"}
    tokenizer = SimpleNamespace(decode=lambda ids, **_: "".join(pieces.get(i, "?") for i in ids))
    script = Script(["", ""], 2)
    script.ids = [[1, 6] if ends_there else [1, 6, 3]]
    policy = Watcher(gates=THOUGHT)
    with attach(policy, model, tokenizer) as hook, hook.episode("t") as episode:
        options = {"logits_processor": [script], "max_new_tokens": len(script.ids[0])}
        out = generate(model, [[8, 9]], hook if criterion else None, **options)
        assert policy.names == (["thought:1"] if criterion and not ends_there else [])
        episode.checkpoint("action", out)
    assert policy.names == ["thought:1", "action:1"]
    assert_clean(policy.states(0), model, [8, 9, 1, 6])
    assert_clean(policy.states(1), model, out.sequences[0].tolist())


def test_an_aborted_episode_says_why_and_is_no_error(model: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    cascade = Cascade([Gate("action:1", 2, probe(), 0.0)])
    with cascade.attach(model, TOKENIZER) as hook, hook.episode("t") as episode:
        out = generate(model, [random_ids(4)], hook)
        decision = episode.checkpoint("action", out)
        assert episode.checkpoint("action", out) is decision
    assert episode.aborted
    assert episode.decision is decision
    assert (decision.action, decision.gate, decision.threshold) == ("abort", "action:1", 0.0)
    assert episode.scores == {"action:1": decision.score}
    assert "P(failure)" in decision.reason
    assert [r.levelname for r in caplog.records if r.name.startswith("probecascade")] == ["INFO"]


def test_an_abort_may_raise_and_a_finishing_turn_is_no_gate(model: Any) -> None:
    cascade = Cascade([Gate("action:1", 2, probe(), 0.0), Gate("part:1", 2, probe(), 0.0)])
    with cascade.attach(model, TOKENIZER, raise_on_abort=True) as hook:
        out = None
        with hook.episode("t") as episode:
            out = generate(model, [random_ids(4)], hook)
            assert episode.checkpoint("action", out, final=True) == CONTINUE
            with pytest.raises(EpisodeAborted, match="the episode 't' was aborted"):
                episode.checkpoint("part", out, index=1)


def test_shadow_scores_and_never_aborts(model: Any) -> None:
    cascade = Cascade([Gate("action:1", 2, probe(), 0.0)])
    with cascade.attach(model, TOKENIZER, shadow=True) as hook, hook.episode("t") as episode:
        out = generate(model, [random_ids(4)], hook)
        decision = episode.checkpoint("action", out)
    assert not episode.aborted
    assert decision.action == "continue"
    assert decision.reason.startswith("shadow, would abort: P(failure)")
    assert episode.decision is decision
    assert set(episode.scores) == {"action:1"}


def test_rows_that_finished_may_be_left_out_of_the_batch(model: Any) -> None:
    policy, rows = Watcher(), [random_ids(4, seed=1), random_ids(4, seed=2)]
    with attach(policy, model, TOKENIZER) as hook, hook.episodes("ab") as (first, second):
        criteria = hook.stopping_criteria(second)
        out = generate(model, rows[1:], stopping_criteria=criteria)
        second.checkpoint("action", out)
        with pytest.raises(UsageError, match="not in this batch"):
            first.checkpoint("action", out)
    assert policy.seen[0][0] == "b"
    assert_clean(policy.states(), model, out.sequences[0].tolist())


# --- faults of the policy, the probe, the loop (fault 83) -----------------------------------------------------------


class Broken:
    layers = (1,)

    def __init__(self, decide: Any) -> None:
        self.decide = decide

    def begin(self, task: Task) -> Any:
        return self


def _raise(moment: Moment) -> Decision:
    raise ZeroDivisionError("broken probe")


def _nan(moment: Moment) -> Decision:
    return Decision("continue", "action:1", float("nan"), 0.5)


def _ask(moment: Moment) -> Iterator[Question]:
    yield Question("sure?")


@pytest.mark.parametrize(
    ("decide", "message", "error"),
    [
        (_raise, "broken probe", ZeroDivisionError),
        (_nan, "is no number", probecascade.errors.DataError),
        (_ask, "side questions", CascadeError),
    ],
)
def test_a_faulty_policy_is_warned_of_once_and_the_episode_goes_on(
    model: Any, decide: Any, message: str, error: type[Exception]
) -> None:
    with attach(Broken(decide), model, TOKENIZER) as hook, hook.episode("t") as episode:
        out = generate(model, [random_ids(4)], hook)
        with pytest.warns(RuntimeWarning, match=message):
            assert episode.checkpoint("action", out) == CONTINUE
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            episode.checkpoint("part", out, index=1)
        assert hook.faults == 2
    with attach(Broken(decide), model, TOKENIZER, on_error="raise") as hook, hook.episode("t") as episode:
        out = generate(model, [random_ids(4)], hook)
        with pytest.raises(error, match=message):
            episode.checkpoint("action", out)


def test_a_policy_that_cannot_begin_is_passed_over(model: Any) -> None:
    class Never(Watcher):
        def begin(self, task: Task) -> Any:
            raise ZeroDivisionError

    warned = pytest.warns(RuntimeWarning, match="the start of t")
    with attach(Never(), model, TOKENIZER) as hook, warned, hook.episode("t") as episode:
        assert episode.checkpoint("action", generate(model, [random_ids(4)], hook)) == CONTINUE


def test_a_fault_at_a_thought_does_not_stop_generate(model: Any) -> None:
    policy = Broken(_raise)
    policy.gates = THOUGHT  # type: ignore[attr-defined]
    ids = say("Thought:")
    with attach(policy, model, TOKENIZER) as hook, hook.episode("t"):
        options = {"logits_processor": [Script([TURN], len(ids))], "eos_token_id": END, "max_new_tokens": 40}
        with pytest.warns(RuntimeWarning, match="broken probe"):
            out = generate(model, [ids], hook, **options)
    assert TOKENIZER.decode(new_ids(out, 0, len(ids)), skip_special_tokens=True) == TURN


def test_a_missing_layer_is_a_fault_not_silence(model: Any) -> None:
    with attach(Watcher(), model, TOKENIZER) as hook, hook.episode("t") as episode:
        hook.recorder._blocks._handles[1].remove()
        out = generate(model, [random_ids(4)], hook)
        with pytest.warns(RuntimeWarning, match=r"the hooks on layers \[1\] gave nothing"):
            assert episode.checkpoint("action", out) == CONTINUE
        with attach_raising(model) as other, other.episode("t") as strict:
            other.recorder._blocks._handles[1].remove()
            with pytest.raises(ModelError, match="gave nothing"):
                strict.checkpoint("prompt", tokens=[1, 2])


def attach_raising(model: Any) -> Any:
    return attach(Watcher(), model, TOKENIZER, on_error="raise")


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_a_static_cache_is_a_fault_with_its_reason(model: Any) -> None:
    with attach(Watcher(), model, TOKENIZER, on_error="raise") as hook, hook.episode("t") as episode:
        out = generate(model, [random_ids(4)], hook, cache_implementation="static", disable_compile=True)
        with pytest.raises(ModelError, match="static cache"):
            episode.checkpoint("action", out)


# --- models that cannot be hooked, hooks that go away (faults 14, 15, 18, 21, 27, 46) -------------------------------


class Compiled(torch.nn.Module):
    def __init__(self, inner: Any) -> None:
        super().__init__()
        self._orig_mod = inner
        self.config = inner.config


def test_models_whose_hooks_would_be_silent_are_refused() -> None:
    model = make_model("llama")
    with pytest.raises(ModelError, match="compiled"):
        attach(Watcher(), Compiled(model), TOKENIZER)
    block = model.model.layers[1]
    block.__class__ = type("Hidden", (block.__class__,), {"__call__": lambda s, *a, **k: s.forward(*a, **k)})
    with pytest.raises(ModelError, match="fired 0 times"):
        attach(Watcher(), model, TOKENIZER)
    with pytest.raises(ModelError, match=r"model\.eval"):
        attach(Watcher(), make_model("llama").train(), TOKENIZER)
    with pytest.raises(ModelError, match="decoder-only"):
        attach(Watcher(), "gpt2", TOKENIZER)
    with pytest.raises(ModelError, match="layer 9 does not exist"):
        attach(Watcher(layers=(9,)), make_model("llama"), TOKENIZER)


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_hooks_are_always_removed(model: Any, error: type[BaseException] | None) -> None:
    before, config = count_hooks(model), model.generation_config.to_dict()
    padding, vocabulary = TOKENIZER.padding_side, TOKENIZER.get_vocab()

    def work() -> None:
        with attach(Watcher(), model, TOKENIZER) as hook, hook.episode("t") as episode:
            assert count_hooks(model) == before + len(ALL) + 2
            episode.checkpoint("action", generate(model, [random_ids(4)], hook))
            if error is not None:
                raise error

    if error is None:
        work()
    else:
        with pytest.raises(error):
            work()
    assert count_hooks(model) == before
    assert model.generation_config.to_dict() == config
    assert (TOKENIZER.padding_side, TOKENIZER.get_vocab()) == (padding, vocabulary)


def test_layers_on_several_devices_are_moved_one_by_one() -> None:
    """Fault 21: each layer's tensor refuses to meet the other's."""

    class Elsewhere(torch.Tensor):
        home: str

        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function in (torch.stack, torch.cat):
                raise RuntimeError("tensors on different devices")
            result = super().__torch_function__(function, types, args, kwargs or {})
            return result.as_subclass(torch.Tensor) if function is torch.Tensor.cpu else result

    one, two = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    chunk = Chunk(5, 3, {1: one.as_subclass(Elsewhere), 2: two.as_subclass(Elsewhere)})
    with pytest.raises(RuntimeError, match="different devices"):
        torch.stack(list(chunk.states.values()))
    read = chunk.read(1, 6)
    np.testing.assert_array_equal(read[1], one[1, 1].numpy())
    np.testing.assert_array_equal(read[2], two[1, 1].numpy())


def test_no_graph_is_kept_and_memory_stays_bounded(model: Any) -> None:
    trainable = make_model("llama").requires_grad_(True)
    recorder = Recorder(trainable, ALL)
    with recorder:
        cache = trainable(input_ids=torch.tensor([[1, 2, 3]]), use_cache=True).cache
        for i in range(1500):
            recorder.track.append(Chunk(3 + i, 1, {}))
        assert sum(c.count for c in recorder.track.chunks) <= 1025
        chunk = Chunk(0, 0, {})
        trainable(input_ids=torch.tensor([[4]]), cache=cache)
        chunk = recorder.track.chunks[-1]
        assert all(not h.requires_grad and h.grad_fn is None for h in chunk.states.values())
        assert len(chunk.states) == len(ALL)


# --- bad input ------------------------------------------------------------------------------------------------------


def test_misuse_is_refused_in_a_sentence(model: Any) -> None:
    with pytest.raises(UsageError, match="on_error 'stop' is unknown"):
        attach(Watcher(), model, TOKENIZER, on_error="stop")  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="'int8'"):
        attach(Watcher(), model, TOKENIZER, store_dtype="int8")
    hook = attach(Watcher(), model, TOKENIZER)
    with pytest.raises(UsageError, match="not attached"), hook.episode("t"):
        pass
    with hook:
        with pytest.raises(UsageError, match="attached already"), hook:
            pass
        with pytest.raises(UsageError, match="distinct names"), hook.episodes(["a", "a"]):
            pass
        with pytest.raises(UsageError, match="open episodes"):
            hook.stopping_criteria()
        with hook.episode("t") as episode:
            with pytest.raises(UsageError, match="open already"), hook.episode("u"):
                pass
            with pytest.raises(UsageError, match="an event with its index"):
                episode.checkpoint("part", tokens=[1])
            with pytest.raises(UsageError, match="as tokens="):
                episode.checkpoint("observation", generate(model, [[1, 2]], hook))
            with pytest.raises(UsageError, match="tokens is empty"):
                episode.checkpoint("action", tokens=[])
            with pytest.raises(UsageError, match="what generate returned"):
                episode.checkpoint("action", "text")
        with pytest.raises(UsageError, match="closed"):
            episode.checkpoint("action", tokens=[1])


def test_beams_and_several_returned_sequences_are_refused(model: Any) -> None:
    with attach(Watcher(), model, TOKENIZER) as hook, hook.episode("t") as episode:
        with pytest.raises(UsageError, match="4 rows for 1 episodes"):
            generate(model, [[1, 2]], hook, num_beams=2)
        out = generate(model, [[1, 2]], num_beams=2)
        with pytest.raises(UsageError, match="without beams"):
            episode.checkpoint("action", out)
        out = generate(model, [[1, 2]], do_sample=True, num_return_sequences=2)
        with pytest.raises(UsageError, match="2 sequences for 1 episodes"):
            episode.checkpoint("action", out)


# --- surface signals ------------------------------------------------------------------------------------------------


def surface(*columns: str) -> Cascade:
    n = len(columns)
    gate = LinearProbe(np.zeros(n), np.ones(n), np.ones(n), 0.0, uses="signals", columns=columns)
    return Cascade([Gate("action:1", None, gate, 2.0)])


@pytest.mark.parametrize("logits", [True, False])
def test_log_probabilities_are_the_models_own_whatever_the_sampling(model: Any, logits: bool) -> None:
    cascade, ids = surface("logprob_mean", "logprob_min", "entropy_mean"), random_ids(5)
    torch.manual_seed(0)
    with cascade.attach(model, TOKENIZER) as hook, hook.episode("t") as episode:
        out = generate(model, [ids], hook, do_sample=True, temperature=0.3, top_k=4, output_logits=logits)
        episode.checkpoint("action", out)
    with torch.no_grad():
        clean = torch.log_softmax(model(input_ids=out.sequences).logits[0, 4:-1].double(), -1)
    chosen = clean.gather(1, out.sequences[0, 5:, None])
    entropy = -(clean.exp() * clean).sum(-1).mean()
    expected = float(torch.sigmoid(chosen.mean() + chosen.min() + entropy))
    assert episode.scores["action:1"] == pytest.approx(expected, abs=1e-5)


def test_a_counter_that_a_gate_reads_must_be_given(model: Any) -> None:
    cascade = surface("failed_actions", "turn_tokens")
    with cascade.attach(model, TOKENIZER) as hook, hook.episode("t") as episode:
        out = generate(model, [random_ids(4)], hook)
        with pytest.warns(RuntimeWarning, match="reads the signals failed_actions, which are not known here"):
            episode.checkpoint("action", out)
    with cascade.attach(model, TOKENIZER, on_error="raise") as hook, hook.episode("t") as episode:
        episode.checkpoint("action", generate(model, [random_ids(4)], hook), failed_actions=-6)
    assert episode.scores == {"action:1": 0.5}


def test_signals_that_nobody_gave_are_no_number(model: Any) -> None:
    policy = Watcher()
    with attach(policy, model, TOKENIZER) as hook, hook.episode("t") as episode:
        episode.checkpoint("action", generate(model, [random_ids(4)], hook), not_found=2)
    values = dict(zip(SIGNALS, policy.seen[0][1].checkpoint.signals, strict=True))
    assert (values["tokens_so_far"], values["round"], values["turn_tokens"], values["not_found"]) == (6, 1, 6, 2)
    assert all(np.isnan(values[n]) for n in ("logprob_mean", "entropy_mean", "failed_actions"))


# --- what a cascade was fitted on -----------------------------------------------------------------------------------


def header(model: Any, **changes: Any) -> dict[str, Any]:
    inner = {
        "model": "tiny",
        "tokenizer": tokenizer_checksum(TOKENIZER),
        "chat_template": template_checksum(TOKENIZER.chat_template),
        "weights": "sha256:1",
        "dtype": "float32",
    }
    outer = {"n_layers": LAYERS, "d_model": 32, "dtype": "float16", "template": "t"}
    return {
        "model": inner | {k: v for k, v in changes.items() if k in inner},
        **(outer | {k: v for k, v in changes.items() if k not in inner}),
    }


@pytest.mark.parametrize(
    "change", [{"tokenizer": "sha256:2"}, {"chat_template": "sha256:2"}, {"n_layers": 9}, {"d_model": 9}]
)
def test_a_cascade_for_another_model_is_refused_unless_forced(model: Any, change: dict[str, Any]) -> None:
    gates = [Gate("action:1", 2, probe(), 0.5)]
    other = Cascade(gates, provenance={"run": header(model, **change)})
    for policy in (other, Shadow(other)):
        with pytest.raises(CascadeError, match=f"fitted with .*{next(iter(change))}"):
            attach(policy, model, TOKENIZER)
    other.attach(model, TOKENIZER, force=True)
    half = make_model("llama", dtype=torch.bfloat16)
    with pytest.raises(CascadeError, match=r"model\.dtype 'float32', but this is 'bfloat16'"):
        Cascade(gates, provenance={"run": header(model)}).attach(half, TOKENIZER)


def test_states_are_rounded_as_the_store_rounded_them(model: Any) -> None:
    cascade = Cascade([Gate("action:1", 2, probe(), 2.0)], provenance={"run": header(model)})
    with cascade.attach(model, TOKENIZER) as hook, hook.episode("t") as episode:
        out = generate(model, [random_ids(4)], hook)
        episode.checkpoint("action", out)
        plain = hook.recorder.track.find(0, out.sequences[0].tolist())
    assert plain is not None
    assert episode.scores["action:1"] == probe().score(cast(plain[2], "float16")[None])[0]
    assert not np.array_equal(cast(plain[2], "float16"), plain[2])


def test_a_gate_that_is_off_reads_no_layer(model: Any) -> None:
    cascade = Cascade([Gate("action:1", 2, probe(), OFF)])
    with cascade.attach(model, TOKENIZER) as hook, hook.episode("t") as episode:
        assert episode.checkpoint("action", generate(model, [random_ids(4)], hook)) == CONTINUE
    assert episode.scores == {}


# --- the guide's example, and the embedded model --------------------------------------------------------------------


def forced(model: Any, text: str) -> Any:
    """`generate` of the model, which writes this text at every turn."""

    def generate(prompt: torch.Tensor, **options: Any) -> Any:
        return type(model).generate(model, prompt, **options, logits_processor=[Script([text], prompt.shape[1])])

    return generate


@pytest.mark.parametrize("threshold", [0.0, 1.0])
def test_the_guides_example_runs(
    threshold: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guide.md").read_text(encoding="utf-8")
    section = guide.split("## Wrap your own loop")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert "range(200, 205)" in code
    assert "cascades/atlas-keep" in code
    model = make_model("llama")
    model.config.max_position_embeddings = 8192  # a letter is a token here
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(model, "generate", forced(model, " I know.\nAction: Finish[Nowhere]"))
    monkeypatch.setattr(
        probecascade, "load_model", lambda name, dtype: SimpleNamespace(model=model, tokenizer=TOKENIZER), raising=False
    )
    gates = [Gate("action:2", 2, probe(0.01), 1.0), Gate("part:2", 2, probe(0.01), threshold)]
    Cascade(gates).save("cascades/atlas-keep")
    names: dict[str, Any] = {}
    exec(code.replace("range(200, 205)", "range(200, 202)"), names)
    episode = names["episode"]
    assert episode.aborted == (threshold == 0.0)
    assert episode.round == (2 if threshold == 0.0 else 3)  # the last of three questions finishes the task
    assert set(episode.scores) == {"action:2", "part:2"}
    said = capsys.readouterr().out.splitlines()
    assert [line.split("-residence ")[0] for line in said] == ["atlas-s0-p3-00200", "atlas-s0-p3-00201"]
    assert all(("at part:2" in line) == (threshold == 0.0) for line in said)


@pytest.mark.slow
def test_the_embedded_models_scores_are_those_of_its_stored_states() -> None:
    from probecascade.models import load

    loaded = load("smollm2", device="cpu")
    model, tokenizer = loaded.model, loaded.tokenizer
    layers = (0, 10, 20, 30)
    policy = Watcher(layers=layers)
    ids = tokenizer("Question: Where was Ada Lovelace born?\nThought:").input_ids
    with attach(policy, model, tokenizer) as hook, hook.episode("t") as episode:
        out = model.generate(
            torch.tensor([ids]),
            max_new_tokens=24,
            do_sample=False,
            stopping_criteria=hook.stopping_criteria(),
            return_dict_in_generate=True,
        )
        episode.checkpoint("action", out)
    whole = out.sequences[0].tolist()[: policy.seen[0][1].checkpoint.position + 1]

    def conversation() -> Iterator[Any]:
        fed = yield Feed(whole, keep=(len(whole) - 1,))
        return fed.states[0]

    engine = Engine(model, tokenizer, layers=layers, slots=1, capacity=256)
    (stored,) = engine.run([conversation()])
    live = np.stack([policy.seen[0][1].hidden[layer] for layer in layers])
    assert relative_error(live, stored) <= 1e-5
    width = stored.shape[1]
    scorer = LinearProbe(np.zeros(width), np.full(width, 10.0), np.linspace(-0.1, 0.1, width), 0.0)
    assert np.abs(scorer.score(live) - scorer.score(stored)).max() <= 1e-5
