"""Late fusion: one probe per kind of evidence, and a logistic regression on their logits (Wolpert 1992)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, logit

from probecascade.errors import DataError, UsageError
from probecascade.probes.crossfit import FittedProbe, Fitter, Groups
from probecascade.probes.crossval import grouped_folds
from probecascade.probes.fit import LogisticFitter
from probecascade.probes.fusion import BLOCKS, FusionFitter, evidence, known_blocks
from probecascade.probes.inputs import as_group_codes, as_labels, both_classes
from probecascade.probes.kinds import Arrays, FrozenProbe, Spec, load_probe, loads, under, within
from probecascade.probes.linear import LinearProbe
from probecascade.probes.metrics import auroc
from probecascade.probes.shown import Shown, reads, signals_read
from probecascade.probes.solver import log_odds

Array = NDArray[np.float64]

STRENGTHS: tuple[float, ...] = (1e-3, 1e-2, 1e-1, 1.0)
"""Values of C for the few logits of the members."""

_SURE = 1e-12  # scores nearer to 0 or 1 have no digits left, and would have no finite logit


@dataclass(frozen=True, eq=False)
class StackedProbe:
    """P(failure) = sigmoid of a weighted sum of the members' logits; each member reads what it reads."""

    members: tuple[FrozenProbe, ...]
    head: LinearProbe

    @property
    def reads(self) -> frozenset[str]:
        """What any of the members looks at."""
        return frozenset().union(*map(_reads, self.members))

    @property
    def columns(self) -> tuple[str, ...]:
        """The surface signals that the members read."""
        return tuple(dict.fromkeys(name for member in self.members for name in signals_read(member, layer=0)))

    def score(
        self,
        states: NDArray[Any],
        signals: NDArray[Any] | None = None,
        *,
        texts: Sequence[str] | None = None,
        checks: Mapping[str, NDArray[np.float64]] | None = None,
    ) -> Array:
        """P(failure), (n,). Raises DataError as the members do."""
        found = []
        for member in self.members:
            more = {"texts": texts, "checks": checks} if reads(member) & {"text", "checks"} else {}
            found.append(_logits(member.score(states, signals, **more)))
        return self.head.score(np.stack(found, axis=1))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Those of each member under its place, those of the head under `head`."""
        parts = [under("head", self.head.arrays())]
        parts += [under(str(place), member.arrays()) for place, member in enumerate(self.members)]
        return {name: values for part in parts for name, values in part.items()}

    def spec(self) -> dict[str, Any]:
        """kind, and the specs of members and head."""
        members = [member.spec() for member in self.members]
        return {"kind": "stacked", "members": members, "head": self.head.spec()}


@loads("stacked")
def load_stacked(spec: Spec, arrays: Arrays) -> StackedProbe:
    """The stacked probe of spec and arrays."""
    head = load_probe(spec["head"], within(arrays, "head"))
    if not isinstance(head, LinearProbe):
        raise DataError(f"its head is a {type(head).__name__}, not a linear probe.")
    members = [load_probe(part, within(arrays, str(place))) for place, part in enumerate(spec["members"])]
    return StackedProbe(tuple(members), head)


@dataclass(frozen=True)
class StackingFitter:
    """One probe per block of evidence, and a logistic regression on their held-out logits.

    blocks: two or more of `fusion.BLOCKS`; that on states is fitted by `states`, the others as a `FusionFitter` of
    one block. The second level sees only scores of members that had not seen the episode's group; the held-out
    scores that come back are nested once more, by members and second level that had not.
    """

    states: Fitter
    blocks: tuple[str, ...] = BLOCKS
    folds: int = 5
    seed: int = 0

    def fit(self, shown: Shown, failed: ArrayLike, groups: Groups) -> FittedProbe:
        """Fit on what is shown of n episodes, failed (n,) booleans and groups (n,), never split between folds.

        Raises UsageError for unknown or fewer than two blocks, DataError as the members' fitters do.
        """
        blocks = known_blocks(self.blocks)
        if len(blocks) < 2:
            raise UsageError(f"late fusion was asked for {blocks[0]} alone: give two kinds of evidence or more.")
        evidence(shown, blocks)
        labels = as_labels(failed, len(shown))
        both_classes(labels)
        codes = as_group_codes(groups, len(shown))
        folds = grouped_folds(labels, groups, self.folds, self.seed)
        scores = np.empty(len(shown))
        for train, test in folds:
            probe = self._stack(blocks, shown.take(train), labels[train], codes[train]).probe
            # As in `crossfit`: a fold that holds more failures leaves fewer to train on.
            shift = log_odds(labels) - log_odds(labels[train])
            scores[test] = expit(_logits(shown.take(test).score(probe)) + shift)
        whole = self._stack(blocks, shown, labels, codes)
        return FittedProbe(whole.probe, whole.strength, scores, auroc(scores, labels), len(folds))

    def _stack(self, blocks: Sequence[str], shown: Shown, failed: NDArray[np.bool_], codes: Groups) -> FittedProbe:
        """Members on these episodes, and a head on their held-out logits; its own held-out scores are not nested."""
        fits = [self._member(block, shown, failed, codes) for block in blocks]
        rows = np.stack([_logits(fit.out_of_fold) for fit in fits], axis=1)
        found = LogisticFitter(STRENGTHS, self.folds, self.seed).fit(rows, failed, codes)
        assert isinstance(found.probe, LinearProbe)
        probe = StackedProbe(tuple(fit.probe for fit in fits), found.probe)
        return FittedProbe(probe, found.strength, found.out_of_fold, found.auroc, found.folds)

    def _member(self, block: str, shown: Shown, failed: NDArray[np.bool_], codes: Groups) -> FittedProbe:
        if block == "states":
            assert shown.states is not None
            return self.states.fit(shown.states, failed, codes)
        return FusionFitter((block,), folds=self.folds, seed=self.seed).fit(shown, failed, codes)


def _logits(scores: Array) -> Array:
    logits: Array = logit(np.clip(scores, _SURE, 1 - _SURE))
    return logits


def _reads(member: FrozenProbe) -> frozenset[str]:
    """What a member looks at; one that does not say is fitted on states alone."""
    named: frozenset[str] = getattr(member, "reads", frozenset({"states"}))
    return named
