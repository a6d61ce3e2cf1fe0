"""One probe out of several kinds of evidence: all features side by side in one logistic regression.

Source: early fusion with a penalty of its own for each block of features, as in multi-kernel learning with the
weights found by cross-validation. `stacking` has the late kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, logit

from probecascade.errors import DataError, UsageError
from probecascade.probes.crossfit import (
    ClassWeight,
    CrossFit,
    FittedProbe,
    Groups,
    Plan,
    Sample,
    Train,
    cross_fit,
    sample_weights,
)
from probecascade.probes.fit import LinearPath, rising
from probecascade.probes.inputs import as_group_codes, as_matrix
from probecascade.probes.kinds import Arrays, Spec, load_probe, loads, pick, under, within
from probecascade.probes.linear import LinearProbe, signal_features
from probecascade.probes.metrics import auroc
from probecascade.probes.piped import PipedProbe
from probecascade.probes.shown import Shown
from probecascade.probes.solver import log_odds, logistic_path
from probecascade.probes.steps import column_moments
from probecascade.probes.surface import SURFACE
from probecascade.probes.words import Rare, Rarity, decode_terms, encode_terms, load_rare, term_roots, vocabulary

Array = NDArray[np.float64]

BLOCKS: tuple[str, ...] = ("states", "signals", "checks", "text")
"""Kinds of evidence, in the order in which their features stand."""

STRENGTHS: tuple[float, ...] = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Values of C to choose from: whole decades, since each is tried with several weights of the blocks."""

EMPHASES: tuple[float, ...] = (0.0, 0.25, 4.0)
"""How a block's features may be scaled against the first block's, besides 1: left out, or a penalty 16 times larger
or smaller."""

NESTED = 3
"""Folds inside a fold; fewer than outside, since the search is long and only has to choose there."""

_SURE = 1e-12  # scores nearer to 0 or 1 have no digits left, and would have no finite logit


@dataclass(frozen=True, eq=False)
class FusedProbe:
    """P(failure) = sigmoid of a weighted sum over the features of several kinds of evidence.

    blocks: those of `BLOCKS` that it reads, in that order. head: the weighted sum over all features. checks: names
    of the checks it knows. terms, rare: the vocabulary of its text and how rare each term is. Needs no
    scikit-learn to score, and a row has the same bits alone and in any batch.
    """

    blocks: tuple[str, ...]
    head: LinearProbe
    checks: tuple[str, ...] = ()
    terms: tuple[str, ...] = ()
    rare: Rare | None = None

    @property
    def reads(self) -> frozenset[str]:
        """What it looks at."""
        return frozenset(self.blocks)

    @property
    def columns(self) -> tuple[str, ...]:
        """The surface signals that it reads."""
        return SURFACE if "signals" in self.blocks else ()

    def score(
        self,
        states: NDArray[Any],
        signals: NDArray[Any] | None = None,
        *,
        texts: Sequence[str] | None = None,
        checks: Mapping[str, NDArray[np.float64]] | None = None,
    ) -> Array:
        """P(failure), (n,). Raises DataError where what it reads is absent, of another width, or not finite."""
        given = {"states": states, "signals": signals, "text": texts, "checks": checks}
        absent = [block for block in self.blocks if given[block] is None]
        if absent:
            raise DataError(f"This probe reads {absent[0]} and was given none; pass {absent[0]}.")
        own = {block: given[block] for block in self.blocks}
        rows = features(own, self.checks, self.terms, len(states))
        if rows.shape[1] != len(self.head.mean):
            raise DataError(
                f"The evidence holds {rows.shape[1]} features and the probe was fitted on {len(self.head.mean)}; "
                "score states of the model and layer it was fitted on."
            )
        return self.head.score(rows if self.rare is None else self.rare.apply(rows))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Those of the head under `head`; of a probe on text its `terms` as bytes, and `text.weights`."""
        text = {} if self.rare is None else {"terms": encode_terms(self.terms)} | under("text", self.rare.arrays())
        return under("head", self.head.arrays()) | text

    def spec(self) -> dict[str, Any]:
        """kind, blocks, the names of the checks, and where the features of the text begin."""
        return {
            "kind": "fused",
            "blocks": list(self.blocks),
            "checks": list(self.checks),
            "text": None if self.rare is None else self.rare.start,
            "head": self.head.spec(),
        }


@loads("fused")
def load_fused(spec: Spec, arrays: Arrays) -> FusedProbe:
    """The fused probe of spec and arrays."""
    head = load_probe(spec["head"], within(arrays, "head"))
    if not isinstance(head, LinearProbe):
        raise DataError(f"its head is a {type(head).__name__}, not a linear probe.")
    text = spec["text"] is not None
    return FusedProbe(
        blocks=tuple(spec["blocks"]),
        head=head,
        checks=tuple(spec["checks"]),
        terms=decode_terms(pick(arrays, ("terms",))["terms"]) if text else (),
        rare=load_rare(int(spec["text"]), within(arrays, "text")) if text else None,
    )


@dataclass(frozen=True)
class FusionFitter:
    """Logistic regression on all evidence at once, its features standardised, each block with a penalty of its own.

    blocks: some of `BLOCKS`. The weight of every block beside the first, and the strength C, are those with the
    least mean log-loss on held-out groups: blocks are gone through in order, each tried at all of `EMPHASES`
    with the others as they then stand. folds, seed, class_weight: as in `LogisticFitter`. What is learnt of the text
    (how rare a term is) is learnt inside the folds; its vocabulary goes by frequency alone.

    So many choices on the same folds would flatter the held-out scores: on noise their AUROC comes to about .57. Those
    of several blocks are therefore nested: each group is scored by a probe whose weights and strength were chosen, in
    `NESTED` folds of their own, without it. With only two groups of a class there are no such folds, and the scores
    are those of the search itself.
    """

    blocks: tuple[str, ...] = BLOCKS
    strengths: tuple[float, ...] = STRENGTHS
    folds: int = 5
    seed: int = 0
    class_weight: ClassWeight = None

    def fit(self, shown: Shown, failed: ArrayLike, groups: Groups) -> FittedProbe:
        """Fit on what is shown of n episodes, failed (n,) booleans and groups (n,), never split between folds.

        Raises UsageError for unknown blocks; DataError where a block is absent, not finite or empty, and as
        `LogisticFitter.fit` does.
        """
        blocks = known_blocks(self.blocks)
        own = evidence(shown, blocks)
        checks = supplied_checks(shown) if "checks" in blocks else ()
        terms = vocabulary(own["text"], as_group_codes(groups, len(shown))) if "text" in blocks else ()
        rows = features(own, checks, terms, len(shown))
        widths = _widths(own, checks, terms)
        steps = (Rarity(rows.shape[1] - len(terms)),) if terms else ()
        plan = Plan(self.folds, self.seed, steps, self.class_weight)
        searched = self._search(rows, widths, failed, groups, plan)
        found = searched.fitted
        if len(widths) > 1 and len(searched.folds) > 2:
            scores = self._nested(rows, widths, searched, plan)
            found = replace(found, out_of_fold=scores, auroc=auroc(scores, searched.sample.failed))
        head, rare = found.probe, None
        if isinstance(head, PipedProbe):
            (rare,), head = head.steps, head.head
        assert isinstance(head, LinearProbe)
        assert rare is None or isinstance(rare, Rare)
        return replace(found, probe=FusedProbe(blocks, head, checks, terms, rare))

    def _nested(self, rows: Array, widths: Sequence[int], searched: CrossFit, plan: Plan) -> Array:
        """P(failure), (n,), each row by the probe that a search without its fold comes to."""
        sample, scores, plan = searched.sample, np.empty(len(rows)), replace(plan, folds=min(plan.folds, NESTED))
        for train, test in searched.folds:
            part = sample.take(train)
            probe = self._search(part.rows, widths, part.failed, part.codes, plan).fitted.probe
            # As in `crossfit`: a fold that holds more failures leaves fewer to train on.
            shift = 0.0 if self.class_weight else log_odds(sample.failed) - log_odds(part.failed)
            scores[test] = expit(logit(np.clip(probe.score(rows[test]), _SURE, 1 - _SURE)) + shift)
        return scores

    def _search(self, rows: Array, widths: Sequence[int], failed: ArrayLike, groups: Groups, plan: Plan) -> CrossFit:
        strengths = rising(self.strengths)

        def tried(emphasis: Sequence[float]) -> tuple[float, CrossFit]:
            found = cross_fit(weighted_train(np.repeat(emphasis, widths)), strengths, rows, failed, groups, plan)
            return _log_loss(found, self.class_weight), found

        chosen = [1.0] * len(widths)
        best, kept = tried(chosen)
        for block in range(1, len(widths)):
            for emphasis in EMPHASES:
                other = [*chosen[:block], emphasis, *chosen[block + 1 :]]
                loss, found = tried(other)
                if loss < best:
                    best, kept, chosen = loss, found, other
        return kept


def weighted_train(emphasis: Array) -> Train:
    """A head for `cross_fit`: ridge logistic regression on standardised features times `emphasis` (d,).

    A feature twice as emphasised has a quarter of the penalty; one at 0 takes no part.
    """

    def train(sample: Sample, values: tuple[float, ...]) -> LinearPath:
        mean, scale = column_moments(sample.rows)
        weights, biases = logistic_path((sample.rows - mean) / scale * emphasis, sample.failed, values, sample.weights)
        weights[emphasis == 0] = 0.0
        return LinearPath(mean, scale / np.where(emphasis == 0, 1.0, emphasis), weights, biases)

    return train


def known_blocks(blocks: Sequence[str]) -> tuple[str, ...]:
    """Blocks in the order of `BLOCKS`. UsageError for an unknown one, one given twice, or none."""
    for block in blocks:
        if block not in BLOCKS:
            raise UsageError(f"the evidence {block!r} is unknown: choose among {', '.join(BLOCKS)}.")
    if not blocks or len(set(blocks)) < len(blocks):
        raise UsageError(f"the evidence {', '.join(blocks) or '(none)'} was given: name each kind once.")
    return tuple(block for block in BLOCKS if block in blocks)


def supplied_checks(shown: Shown) -> tuple[str, ...]:
    """Sorted names of the checks that were supplied for any of the episodes. DataError if there is none."""
    names = tuple(sorted(k for k, values in (shown.checks or {}).items() if not np.isnan(values).all()))
    if not names:
        raise DataError(
            "no check is recorded at this checkpoint: leave the checks out, or extract the run anew with an "
            "environment that supplies them."
        )
    return names


def evidence(shown: Shown, blocks: Sequence[str]) -> dict[str, Any]:
    """What is shown of these blocks, in their order. DataError if one is absent."""
    given = {"states": shown.states, "signals": shown.signals, "text": shown.texts, "checks": shown.checks}
    for block in blocks:
        if given[block] is None:
            raise DataError(f"the probe reads {block} and was given none: show it {block}.")
    return {block: given[block] for block in blocks}


def features(given: Mapping[str, Any], checks: Sequence[str], terms: Sequence[str], n: int) -> Array:
    """All features of n episodes side by side, (n, width), the text last. Raises DataError where one is not finite."""
    parts = []
    for block in BLOCKS:
        if block not in given:
            continue
        if block == "states":
            parts.append(as_matrix(given[block], "states"))
        elif block == "signals":
            parts.append(signal_features(given[block], SURFACE, roots=True))
        elif block == "checks":
            parts.append(check_features(given[block], checks, n))
        else:
            parts.append(term_roots(given[block], terms))
    return np.hstack(parts)


def check_features(checks: Mapping[str, NDArray[np.float64]], names: Sequence[str], n: int) -> Array:
    """Each check's value, 0 where it was not supplied, then for each whether it was not: (n, 2 * len(names))."""
    values = np.stack([np.asarray(checks.get(name, np.full(n, np.nan)), dtype=np.float64) for name in names], axis=1)
    absent = np.isnan(values)
    return np.hstack([np.where(absent, 0.0, values), absent.astype(np.float64)])


def _widths(given: Mapping[str, Any], checks: Sequence[str], terms: Sequence[str]) -> list[int]:
    """Number of features of each block, in the order of `BLOCKS`."""
    width = {"signals": 2 * len(SURFACE), "checks": 2 * len(checks), "text": len(terms)}
    return [given[b].shape[1] if b == "states" else width[b] for b in BLOCKS if b in given]


def _log_loss(found: CrossFit, class_weight: ClassWeight) -> float:
    """Mean log-loss of the held-out scores, each class weighing as it was told to."""
    failed = found.sample.failed
    right = np.where(failed, found.fitted.out_of_fold, 1 - found.fitted.out_of_fold)
    return float(np.mean(sample_weights(failed, class_weight) * -np.log(np.maximum(right, 1e-15))))
