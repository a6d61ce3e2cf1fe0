"""Several kinds of evidence in one probe: side by side, and stacked."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save
from scipy.special import expit, logit

from probecascade.episode import SIGNALS
from probecascade.errors import DataError, UsageError
from probecascade.probes import (
    FusionFitter,
    LogisticFitter,
    MassMeanFitter,
    Shown,
    StackingFitter,
    auroc,
    grouped_folds,
    load_probe,
    reads,
)
from probecascade.probes.words import MIN_GROUPS, Rarity, term_roots, terms_of, vocabulary
from probecascade.testing import check_probe

N, WIDTH = 240, 12
WORDS = ("so", "the", "page", "says", "nothing", "of", "it")
QUICK: dict[str, Any] = {"strengths": (1e-2, 1e-1), "folds": 3}
STATES = LogisticFitter((1e-2, 1e-1), folds=3)


def invented(seed: int = 0, loud: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)) -> tuple[Shown, np.ndarray, np.ndarray]:
    """Four kinds of evidence, each of which tells a part of the label with the given loudness."""
    rng = np.random.default_rng(seed)
    failed = rng.random(N) < 0.5
    sign = np.where(failed, 1.0, -1.0)
    states = rng.normal(size=(N, WIDTH))
    states[:, 0] += loud[0] * sign * 0.6
    signals = rng.normal(size=(N, len(SIGNALS)))
    signals[:, SIGNALS.index("entropy_mean")] += loud[1] * sign * 0.6
    checks = np.where(rng.random(N) < 0.2, np.nan, rng.random(N) < 0.5 - loud[2] * sign * 0.25)
    texts = []
    for hint in rng.random(N) < 0.5 + loud[3] * sign * 0.25:
        words = rng.choice(WORDS, size=12).tolist() + (["could not find"] if hint else ["found it"])
        texts.append(" ".join(words))
    shown = Shown(states.astype(np.float32), signals.astype(np.float32), texts, {"tool_exists": checks.astype(float)})
    return shown, failed, np.array([f"group-{k // 2}" for k in range(N)])


@pytest.mark.parametrize("fitter", [FusionFitter(**QUICK), StackingFitter(STATES, folds=3)])
def test_evidence_adds_up(fitter: Any) -> None:
    shown, failed, groups = invented()
    fresh, truth, _ = invented(1)
    alone = {}
    for block in ("states", "signals", "checks", "text"):
        alone[block] = auroc(fresh.score(FusionFitter((block,), **QUICK).fit(shown, failed, groups).probe), truth)
        assert alone[block] > 0.58, block
    fused = fitter.fit(shown, failed, groups)
    together = auroc(fresh.score(fused.probe), truth)
    assert together > max(alone.values()) + 0.05
    assert abs(fused.auroc - together) < 0.08  # the held-out scores promise what fresh episodes keep
    assert reads(fused.probe) == {"states", "signals", "checks", "text"}


@pytest.mark.parametrize(
    "fitter",
    [
        FusionFitter(**QUICK),
        FusionFitter(("text",), **QUICK),
        FusionFitter(("checks",), **QUICK),
        FusionFitter(("states", "signals"), **QUICK),
        StackingFitter(STATES, folds=3),
        StackingFitter(MassMeanFitter(folds=3), ("states", "text"), folds=3),
    ],
)
def test_a_probe_keeps_the_contract_and_comes_back_bit_for_bit(fitter: Any) -> None:
    shown, failed, groups = invented()
    probe = fitter.fit(shown, failed, groups).probe
    check_probe(probe, WIDTH, checks=["tool_exists"])
    stored = load(save({name: np.ascontiguousarray(values) for name, values in probe.arrays().items()}))
    again = load_probe(json.loads(json.dumps(probe.spec())), stored)
    assert type(again) is type(probe)
    assert reads(again) == reads(probe)
    np.testing.assert_array_equal(shown.score(again), shown.score(probe))


def test_held_out_scores_know_nothing_where_there_is_nothing_to_know() -> None:
    """The members can fit noise exactly, so scores that are not nested would look perfect."""
    rng = np.random.default_rng(5)
    found = []
    for seed in range(3):
        shown, failed, groups = invented(seed, loud=(0.0, 0.0, 0.0, 0.0))
        shown = replace(shown, states=rng.normal(size=(N, 250)).astype(np.float32))
        loose = LogisticFitter((10.0,), folds=3)
        fitted = StackingFitter(loose, ("states", "text"), folds=3).fit(shown, failed, groups)
        early = FusionFitter(("states", "text"), strengths=(10.0,), folds=3).fit(shown, failed, groups)
        assert auroc(shown.score(early.probe), failed) > 0.95
        found.append((fitted.auroc, early.auroc))
    assert np.abs(np.mean(found, axis=0) - 0.5).max() < 0.08


def test_a_held_out_score_is_of_a_probe_whose_choices_were_made_without_it() -> None:
    shown, failed, groups = invented(4)
    fitter = FusionFitter(("states", "signals"), **QUICK)
    found = fitter.fit(shown, failed, groups).out_of_fold
    for train, test in grouped_folds(failed, groups, 3, 0):
        probe = fitter.fit(shown.take(train), failed[train], groups[train]).probe
        shift = logit(failed.mean()) - logit(failed[train].mean())
        np.testing.assert_allclose(found[test], expit(logit(shown.take(test).score(probe)) + shift), rtol=1e-9)


@pytest.mark.slow
def test_choosing_among_weights_of_the_blocks_does_not_flatter_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    fitter = FusionFitter(("states", "signals", "text"), strengths=(1e-4, 1e-2, 1.0), folds=3)

    def mean_auroc() -> float:
        found = []
        for seed in range(16):
            shown, failed, _ = invented(seed, loud=(0.0, 0.0, 0.0, 0.0))
            rows = np.arange(60)
            found.append(fitter.fit(shown.take(rows), failed[rows], rows).auroc)
        return float(np.mean(found))

    nested = mean_auroc()
    monkeypatch.setattr(FusionFitter, "_nested", lambda *given: given[3].fitted.out_of_fold)
    assert nested < 0.5 + 3 * 0.1 / 4  # 0.1 is the spread of one
    assert mean_auroc() > nested + 0.03  # the search's own scores are flattered


def test_a_row_of_the_same_group_is_never_scored_by_a_probe_that_saw_it() -> None:
    """Each group twice, word for word: a held-out score that had seen the twin would know the label."""
    rng = np.random.default_rng(2)
    failed = np.repeat(rng.random(N // 2) < 0.5, 2)
    states = np.repeat(rng.normal(size=(N // 2, 200)), 2, axis=0).astype(np.float32)
    texts = [f"say {words}" for words in np.repeat([" ".join(rng.choice(WORDS, 6)) for _ in range(N // 2)], 2)]
    shown = Shown(states, np.zeros((N, len(SIGNALS)), dtype=np.float32), texts)
    groups = np.repeat(np.arange(N // 2), 2)
    for fitter in (
        StackingFitter(LogisticFitter((10.0,), folds=3), ("states", "text"), folds=3),
        FusionFitter(("states", "text"), strengths=(10.0,), folds=3),
    ):
        assert 0.35 < fitter.fit(shown, failed, groups).auroc < 0.65


def test_a_block_that_says_nothing_weighs_little() -> None:
    shown, failed, groups = invented(3, loud=(1.5, 0.0, 0.0, 0.0))
    probe: Any = FusionFitter(**QUICK).fit(shown, failed, groups).probe
    weight = np.abs(probe.head.weight)
    assert weight[0] == weight.max()
    assert weight[WIDTH:].max() < weight[0] / 2


def test_names_of_a_few_groups_are_no_words_and_rarity_is_learnt_in_the_folds() -> None:
    texts = [f"Find page_{k % 30} of Ada {k}" for k in range(60)]
    codes = np.arange(60) // 2
    terms = vocabulary(texts, codes)
    assert {"find", "page", "of", "ada", "find page", "of ada"} <= set(terms)
    assert "59" not in terms  # said in one group alone
    assert all(sum(term in terms_of(t) for t in texts) >= MIN_GROUPS for term in terms)
    rows = term_roots(texts, terms)
    with_ada = rows.copy()
    with_ada[:30, terms.index("ada")] = 0.0
    assert Rarity(0).fit(with_ada[:30]).weights[terms.index("ada")] > Rarity(0).fit(rows).weights[terms.index("ada")]
    with pytest.raises(DataError, match="no word of the transcripts"):
        vocabulary(["", ""], np.array([0, 1]))


def test_a_check_that_was_not_supplied_differs_from_one_that_is_zero() -> None:
    shown, failed, groups = invented()
    probe = FusionFitter(("checks",), **QUICK).fit(shown, failed, groups).probe
    some = shown.take(np.arange(3))
    scores = replace(some, checks={"tool_exists": np.array([0.0, 1.0, np.nan])}).score(probe)
    assert len(set(scores.tolist())) == 3
    np.testing.assert_array_equal(replace(some, checks={}).score(probe), np.full(3, scores[2]))


@pytest.mark.parametrize(
    ("fitter", "changes", "error", "message"),
    [
        (FusionFitter(("smell",)), {}, UsageError, "'smell' is unknown: choose among"),
        (FusionFitter(("text", "text")), {}, UsageError, "name each kind once"),
        (FusionFitter(()), {}, UsageError, "name each kind once"),
        (FusionFitter(("checks",)), {"checks": {}}, DataError, "no check is recorded"),
        (FusionFitter(("text",)), {"texts": None}, DataError, "reads text and was given none"),
        (StackingFitter(STATES, ("states",)), {}, UsageError, "two kinds of evidence or more"),
        (StackingFitter(STATES, ("states", "text")), {"states": None}, DataError, "reads states and was given none"),
    ],
)
def test_bad_evidence_is_refused(fitter: Any, changes: dict[str, Any], error: type[Exception], message: str) -> None:
    shown, failed, groups = invented()
    with pytest.raises(error, match=message):
        fitter.fit(replace(shown, **changes), failed, groups)


def test_a_probe_is_not_shown_less_or_wider_than_it_reads() -> None:
    shown, failed, groups = invented()
    probe: Any = FusionFitter(("states", "text"), **QUICK).fit(shown, failed, groups).probe
    with pytest.raises(DataError, match="reads text and was given none"):
        probe.score(shown.states)
    with pytest.raises(DataError, match="score states of the model and layer"):
        probe.score(np.zeros((N, WIDTH + 1)), texts=shown.texts)
