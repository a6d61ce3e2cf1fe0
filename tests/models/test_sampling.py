from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from probecascade.models.sampling import draw_tokens

LOGITS = torch.tensor([0.5, 2.0, -1.0, 1.0, 0.0, -float("inf")])


def draw_many(n: int, *, temperature: float = 1.0, top_p: float = 1.0, allowed: list[int] | None = None) -> np.ndarray:
    uniforms = np.random.default_rng(0).random(n).tolist()
    draws = draw_tokens(LOGITS.repeat(n, 1), [temperature] * n, [top_p] * n, uniforms, [allowed] * n)
    return np.bincount([d.id for d in draws], minlength=len(LOGITS))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_ids_follow_the_softmax_at_their_temperature(temperature: float) -> None:
    counts = draw_many(20_000, temperature=temperature)
    expected = torch.softmax(LOGITS.double() / temperature, -1).numpy() * 20_000
    assert counts[-1] == 0
    assert chisquare(counts[:-1], expected[:-1]).pvalue > 1e-3
    other = torch.softmax(LOGITS.double() / (temperature * 1.2), -1).numpy() * 20_000
    assert chisquare(counts[:-1], other[:-1]).pvalue < 1e-6


def test_top_p_keeps_the_fewest_likeliest_ids_that_reach_it() -> None:
    probabilities = torch.softmax(LOGITS, -1)
    two = float(probabilities[1] + probabilities[3])
    assert set(np.flatnonzero(draw_many(3000, top_p=two - 1e-3))) == {1, 3}
    assert set(np.flatnonzero(draw_many(3000, top_p=two + 1e-3))) == {0, 1, 3}
    counts = draw_many(20_000, top_p=two - 1e-3)[[1, 3]]
    kept = probabilities[[1, 3]].double().numpy()
    assert chisquare(counts, kept / kept.sum() * 20_000).pvalue > 1e-3


def test_the_smallest_top_p_is_greedy() -> None:
    assert set(np.flatnonzero(draw_many(500, top_p=1e-9))) == {1}


def test_equal_ids_stay_within_top_p_from_the_first_on() -> None:
    draws = draw_tokens(torch.zeros(9, 4), [1.0] * 9, [0.5] * 9, [k / 9 for k in range(9)], [None] * 9)
    assert {d.id for d in draws} == {0, 1}


def test_temperature_0_takes_the_largest_whatever_its_number() -> None:
    draws = draw_tokens(LOGITS.repeat(3, 1), [0.0] * 3, [0.1] * 3, [0.0, 0.5, math.nextafter(1, 0)], [None] * 3)
    assert [d.id for d in draws] == [1, 1, 1]


@pytest.mark.parametrize("temperature", [0.0, 0.01, 1.0])
def test_only_allowed_ids_are_drawn(temperature: float) -> None:
    counts = draw_many(2000, temperature=temperature, allowed=[2, 4])
    assert counts[[0, 1, 3, 5]].sum() == 0
    assert counts[4] > counts[2]


def test_a_limit_of_one_row_leaves_its_neighbours_alone() -> None:
    draws = draw_tokens(LOGITS.repeat(3, 1), [0.0] * 3, [1.0] * 3, [0.0] * 3, [None, [0, 2], None])
    assert [d.id for d in draws] == [1, 0, 1]


def test_logprob_and_entropy_are_the_models_own() -> None:
    wanted = torch.log_softmax(LOGITS.double(), -1)
    entropy = -float((wanted.exp() * wanted)[:-1].sum())
    for temperature, top_p, allowed in ((0.0, 1.0, None), (0.3, 0.2, None), (1.0, 1.0, [2])):
        (draw,) = draw_tokens(LOGITS[None], [temperature], [top_p], [0.3], [allowed])
        assert draw.logprob == pytest.approx(float(wanted[draw.id]), rel=1e-5)
        assert draw.entropy == pytest.approx(entropy, rel=1e-5)


@pytest.mark.parametrize("top_p", [1.0, 0.999999])
@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 1e-9, math.nextafter(1, 0)])
def test_no_number_lands_on_an_impossible_id(uniform: float, top_p: float) -> None:
    torch.manual_seed(0)
    logits = torch.randn(200, 977) * 3
    logits[:, :40] = -float("inf")
    logits[:, -40:] = -float("inf")
    draws = draw_tokens(logits, [1.0] * 200, [top_p] * 200, [uniform] * 200, [None] * 200)
    assert all(40 <= d.id < 937 and math.isfinite(d.logprob) for d in draws)


def test_a_row_depends_on_its_own_logits_and_number_alone() -> None:
    torch.manual_seed(1)
    logits = torch.randn(32, 264)
    uniforms = np.random.default_rng(1).random(32).tolist()
    heats = [0.0, 0.5, 1.0, 1.5] * 8
    tops = [1.0, 0.9] * 16
    crowd = draw_tokens(logits, heats, tops, uniforms, [None] * 32)
    for i in range(32):
        alone = draw_tokens(logits[i : i + 1], heats[i : i + 1], tops[i : i + 1], uniforms[i : i + 1], [None])
        assert alone[0].id == crowd[i].id


def test_half_precision_logits_are_drawn_from_in_float32() -> None:
    (draw,) = draw_tokens(LOGITS[None].bfloat16(), [1.0], [1.0], [0.2], [None])
    assert draw.logprob == pytest.approx(float(torch.log_softmax(LOGITS, -1)[draw.id]), rel=1e-5)
