from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.decomposition import PCA as SklearnPCA

from probecascade.errors import DataError, UsageError
from probecascade.probes import (
    PCA,
    Average,
    Centre,
    LayerNorm,
    LinearProbe,
    LogisticFitter,
    PipedProbe,
    Standardise,
    grouped_folds,
)
from probecascade.probes.piped import compose
from probecascade.probes.scoring import row_products
from probecascade.probes.steps import Step, column_moments


def rows(n: int = 40, d: int = 6, seed: int = 0) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) * rng.uniform(0.2, 9, size=d) + 10 * rng.normal(size=d)


def test_what_each_step_does() -> None:
    x = rows()
    np.testing.assert_allclose(Centre().fit(x).apply(x), x - x.mean(axis=0))
    np.testing.assert_allclose(Standardise().fit(x).apply(x), (x - x.mean(axis=0)) / x.std(axis=0))
    halves = x.reshape(-1, 3)
    normed = (halves - halves.mean(axis=1, keepdims=True)) / halves.std(axis=1, keepdims=True)
    np.testing.assert_allclose(LayerNorm(2).fit(x).apply(x), normed.reshape(x.shape), rtol=1e-9)
    np.testing.assert_allclose(Average(3).fit(x).apply(x), (x[:, :2] + x[:, 2:4] + x[:, 4:]) / 3)
    reference = SklearnPCA(4).fit(x)
    found = PCA(4).fit(x).apply(x)
    np.testing.assert_allclose(np.abs(found), np.abs(reference.transform(x)), atol=1e-7)


def test_a_constant_row_has_a_layer_norm_of_zero() -> None:
    assert LayerNorm().fit(rows()).apply(np.full((2, 6), 3.0)).tolist() == np.zeros((2, 6)).tolist()


def test_pca_of_several_taps_shares_its_axes_and_leaves_missing_blocks_missing() -> None:
    x = np.hstack([rows(seed=1), rows(seed=2)])
    x[::3, :6] = np.nan
    step = PCA(2, blocks=2).fit(x)
    found = step.apply(x)
    assert found.shape == (40, 4)
    assert np.isnan(found[::3, :2]).all()
    assert np.isfinite(found[:, 2:]).all()
    swapped = step.apply(np.hstack([x[:, 6:], x[:, :6]]))
    np.testing.assert_array_equal(swapped, np.hstack([found[:, 2:], found[:, :2]]))


def test_moments_of_columns_with_missing_values() -> None:
    x = rows()
    x[::3, :3] = np.nan
    x[:, 5] = np.nan
    x[:, 4] = 0.1
    mean, scale = column_moments(x)
    np.testing.assert_allclose(mean[:4], np.nanmean(x[:, :4], axis=0))
    np.testing.assert_allclose(scale[:4], np.nanstd(x[:, :4], axis=0))
    assert (mean[4], scale[4], mean[5], scale[5]) == (0.1, 1.0, 0.0, 1.0)


STEPS: list[tuple[Step, ...]] = [
    (Centre(),),
    (Standardise(),),
    (PCA(3),),
    (Average(2),),
    (Standardise(), PCA(4)),
    (Average(2), Standardise(), PCA(2), Centre()),
    (PCA(2, blocks=2),),
    (PCA(2, blocks=2), Average(2)),
]


@pytest.mark.parametrize("steps", STEPS)
def test_linear_steps_become_one_linear_probe_of_the_same_scores(steps: tuple[Step, ...]) -> None:
    x = rows()
    fitted, through = [], x
    for step in steps:
        fitted.append(step.fit(through))
        through = fitted[-1].apply(through)
    rng = np.random.default_rng(1)
    width = through.shape[1]
    head = LinearProbe(rng.normal(size=width), rng.uniform(0.5, 2, size=width), rng.normal(size=width), 0.3)
    found = compose(fitted, head)
    assert isinstance(found, LinearProbe)
    np.testing.assert_allclose(found.score(x), head.score(through), rtol=1e-9)
    np.testing.assert_allclose(PipedProbe(tuple(fitted), head).score(x), head.score(through), rtol=0, atol=0)


def test_only_the_linear_steps_behind_a_layer_norm_are_taken_into_the_head() -> None:
    x = rows()
    failed = np.arange(40) % 3 == 0
    fitter = LogisticFitter(strengths=(0.1,), folds=3, steps=(Standardise(), LayerNorm(), PCA(4)))
    probe = fitter.fit(x, failed, np.arange(40)).probe
    assert isinstance(probe, PipedProbe)
    assert [step["kind"] for step in probe.spec()["steps"]] == ["affine", "layernorm"]


def test_steps_are_fitted_on_the_training_rows_of_each_fold_alone() -> None:
    """A huge direction of one group's own: axes fitted on all rows find it, axes fitted without the group cannot."""
    rng = np.random.default_rng(0)
    n, d = 120, 30
    groups = np.arange(n) // 4
    failed = np.tile([True, False], n // 2)
    x = rng.normal(size=(n, d))
    own = rng.normal(size=(n // 4, d))
    own /= np.linalg.norm(own, axis=1, keepdims=True)
    x += np.where(failed, 50, -50)[:, None] * own[groups]
    folds = grouped_folds(failed, groups, 5, 0)
    fitter = LogisticFitter(strengths=(0.1,), steps=(PCA(8),))
    found = fitter.fit(x, failed, groups).out_of_fold
    for train, test in folds:
        step = PCA(8).fit(x[train])
        head = LogisticFitter(strengths=(0.1,)).fit(step.apply(x[train]), failed[train], groups[train]).probe
        np.testing.assert_allclose(found[test], head.score(step.apply(x[test])), rtol=1e-6, atol=1e-9)
    leaked = PCA(8).fit(x).apply(x)
    outside = LogisticFitter(strengths=(0.1,)).fit(leaked, failed, groups).out_of_fold
    assert np.abs(outside - found).max() > 0.05


def test_a_row_of_products_has_its_own_bits() -> None:
    rng = np.random.default_rng(0)
    x, matrix = rng.normal(size=(300, 70)), rng.normal(size=(900, 70))
    whole = row_products(x, matrix)
    np.testing.assert_allclose(whole, x @ matrix.T, atol=1e-12)
    for i in (0, 1, 150, 299):
        assert row_products(x[i : i + 1], matrix).tobytes() == whole[i].tobytes()
    assert row_products(np.asfortranarray(x), matrix).tobytes() == whole.tobytes()
    assert row_products(x[:0], matrix).shape == (0, 900)


def test_steps_that_do_not_fit_the_rows_are_refused() -> None:
    x = rows()
    with pytest.raises(UsageError, match="0 components"):
        PCA(0).fit(x)
    for step in (LayerNorm(4), Average(4), PCA(2, blocks=4)):
        with pytest.raises(DataError, match="no multiple of 4 blocks"):
            step.fit(x)
    with pytest.raises(DataError, match="no axis"):
        PCA(2).fit(np.ones((5, 3)))
    with pytest.raises(DataError, match=r"width 5 .* fitted on width 6"):
        PCA(2).fit(x).apply(x[:, :5])
    with pytest.raises(UsageError, match="only states have them"):
        LogisticFitter(steps=(Centre(),)).fit(np.ones((20, 12)), np.arange(20) % 2, np.arange(20), columns=("round",))
    assert PCA(100).fit(x).apply(x).shape == (40, 6)
