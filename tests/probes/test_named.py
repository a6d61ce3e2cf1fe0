from __future__ import annotations

from typing import Any

import pytest

from probecascade.errors import UsageError
from probecascade.probes import (
    PCA,
    PROBES,
    SEQUENCES,
    STEPS,
    Average,
    Calibrated,
    LayerNorm,
    LDAFitter,
    LogisticFitter,
    MassMeanFitter,
    SequenceFitter,
    Standardise,
    fitter_named,
)


def test_every_name_makes_a_fitter_with_its_seed() -> None:
    assert len(set(PROBES)) == 8
    for name in PROBES:
        fitter = fitter_named(name, seed=7, folds=3)
        assert (fitter.seed, fitter.folds) == (7, 3)
        wrapped = fitter_named(name, seed=7, calibrated="isotonic")
        assert isinstance(wrapped, Calibrated)
        assert (wrapped.seed, wrapped.folds) == (7, 5)
    assert fitter_named("logistic") == LogisticFitter()
    assert fitter_named("mass-mean-whitened") == MassMeanFitter(whiten=True)
    assert fitter_named("lda", class_weight="balanced") == LDAFitter(class_weight="balanced")


def test_steps_know_the_taps_they_see() -> None:
    fitter = fitter_named("logistic", steps=("layernorm", "average", "layernorm", "pca:4"), blocks=3)
    assert fitter == LogisticFitter(steps=(LayerNorm(3), Average(3), LayerNorm(1), PCA(4)))
    assert fitter_named("logistic", steps=("pca:4",), blocks=3) == LogisticFitter(steps=(PCA(4),))
    pooled = fitter_named("sequence-mean", steps=["standardise", "pca:4"], blocks=3)
    assert pooled == SequenceFitter(3, steps=(Standardise(), PCA(4, blocks=3)))
    assert set(PROBES) >= SEQUENCES
    for step in STEPS:
        fitter_named("lda", steps=(step if step != "pca" else "pca:2",))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "logistics"}, "no probe 'logistics'; did you mean 'logistic'?"),
        ({"name": "sequence-atention"}, "did you mean 'sequence-attention'?"),
        ({"name": "qqq"}, "give one of logistic, elastic-net"),
        ({"calibrated": "plat"}, "did you mean 'platt'?"),
        ({"class_weight": "balance"}, "did you mean 'balanced'?"),
        ({"steps": ("layer-norm",)}, "no step 'layer-norm'; did you mean 'layernorm'?"),
        ({"steps": ("pca",)}, "number of components"),
        ({"steps": ("pca:0",)}, "number of components"),
        ({"steps": ("pca:-3",)}, "number of components"),
        ({"steps": ("centre:3",)}, "number of components"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"name": "logistic"} | change
    with pytest.raises(UsageError) as refused:
        fitter_named(given.pop("name"), **given)
    assert message in str(refused.value)
