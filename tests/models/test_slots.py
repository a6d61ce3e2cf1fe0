from __future__ import annotations

import pytest
import torch
from tiny_models import make_model

from probecascade.models.slots import Plan, Segment, SlotCache, slot_attention

CPU = torch.device("cpu")


def test_every_token_knows_its_slot_and_position() -> None:
    plan = Plan([Segment(2, 5, 3, 0), Segment(0, 9, 1, 3)])
    slots, positions = plan.indices(CPU)
    assert slots.tolist() == [2, 2, 2, 0]
    assert positions.tolist() == [5, 6, 7, 9]
    assert plan.positions(CPU).tolist() == [[5, 6, 7, 9]]
    assert plan.n_tokens == 4
    assert [s.slot for s in plan.singles] == [0]
    assert [s.slot for s in plan.runs] == [2]


@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("start", [0, 2])
def test_a_token_sees_itself_what_precedes_it_and_no_more_than_the_window(start: int, window: int | None) -> None:
    run = Segment(0, start, 4, 0)
    mask = Plan([run]).causal(run, window, CPU)
    assert mask.shape == (4, start + 4)
    for row in range(4):
        for column in range(start + 4):
            back = start + row - column
            assert bool(mask[row, column]) == (0 <= back < (window or 99))


@pytest.mark.parametrize("slots", [(0, 1, 2), (0, 2), (1, 6), (5,)])
def test_single_tokens_see_their_own_slot_alone(slots: tuple[int, ...]) -> None:
    ends = [3 + 2 * i for i in range(len(slots))]
    plan = Plan([Segment(s, end - 1, 1, i) for i, (s, end) in enumerate(zip(slots, ends, strict=True))])
    decode = plan.decode(CPU)
    stored = torch.arange(7.0)[:, None, None, None].expand(7, 2, 10, 4)
    picked = decode.gather(decode.pick(stored, 0))
    assert picked[:, 0, 0, 0].tolist() == list(slots)
    assert picked.shape[2] == max(ends)
    assert decode.gather(decode.mask).sum(-1).tolist() == ends
    assert decode.gather(decode.windowed(2)).sum(-1).tolist() == [2] * len(slots)
    query = torch.randn(len(slots), 2, 4)
    torch.testing.assert_close(decode.gather(decode.spread(query)), query, rtol=0, atol=0)


def test_a_copied_head_is_the_same_in_its_new_slot() -> None:
    cache = SlotCache(3, 8)
    cache.begin(Plan([Segment(1, 0, 5, 0)]))
    keys, values = torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4)
    cache.update(keys, values, 0)
    saved = cache.copy_out(1, 5)
    cache.keys[0][1] = 0.0  # the copy is its own
    cache.copy_in(2, saved)
    torch.testing.assert_close(cache.keys[0][2, :, :5], keys[0], rtol=0, atol=0)
    torch.testing.assert_close(cache.values[0][2, :, :5], values[0], rtol=0, atol=0)
    assert not cache.keys[0][0].any()
    assert not cache.keys[0][2, :, 5:].any()


def test_a_cleared_slot_holds_nothing_and_its_neighbours_everything() -> None:
    cache = SlotCache(2, 8)
    for start in (0, 3):
        cache.begin(Plan([Segment(0, start, 3, 0), Segment(1, start, 3, 3)]))
        cache.update(torch.full((1, 2, 6, 4), float("nan")), torch.ones(1, 2, 6, 4), 0)
    cache.begin(None)
    cache.clear(0)
    for stored in (cache.keys[0], cache.values[0]):
        assert stored[0].abs().sum() == 0
    assert cache.keys[0][1, :, :6].isnan().all()
    assert (cache.values[0][1, :, :6] == 1).all()


def test_the_models_attention_is_put_back_after_an_error() -> None:
    model = make_model("llama")
    before = model.config._attn_implementation
    seen = []

    def fail() -> None:
        with slot_attention(model, SlotCache(1, 4), Plan([Segment(0, 0, 2, 0)])):
            seen.append(model.config._attn_implementation)
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        fail()
    assert seen != [before]
    assert model.config._attn_implementation == before
