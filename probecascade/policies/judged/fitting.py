"""A probe on hidden states that says whether the evidence just read is useless, fitted on injected failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from probecascade.episode import Step
from probecascade.errors import DataError
from probecascade.policies.judged.judges import ProbeJudge
from probecascade.policies.judged.log import best_cut
from probecascade.probes import Fitter, FrozenProbe, LogisticFitter, auroc
from probecascade.store import Run


@dataclass(frozen=True, eq=False)
class FittedEvidence:
    """A fitted probe and how well it tells observations, all out of fold: each scored by a fit without its group.

    threshold: that of the best balanced accuracy on the out-of-fold scores, so that accuracy is slightly
    optimistic; both and auroc are about what tools said, failures against the rest. rate: share of all judged
    observations that reach the threshold. observations: what tools said, of which injected are failures; refusals:
    answers to invalid actions; groups: of the tasks.
    """

    probe: FrozenProbe
    layer: int
    threshold: float
    auroc: float
    balanced_accuracy: float
    rate: float
    observations: int
    injected: int
    refusals: int
    groups: int

    def judge(self, name: str = "probe") -> ProbeJudge:
        """The judge that cuts this probe's score at its threshold."""
        return ProbeJudge(self.probe, self.layer, self.threshold, name)


def fit_evidence_probe(run: Run, layer: int, fitter: Fitter | None = None) -> FittedEvidence:
    """Fit on the states of one layer at all `observation` checkpoints of a run; see `ProbeJudge`.

    Useless are failures injected in the place of what a tool found, and refusals of invalid actions, in which no tool
    said anything; the next question of a task is left out. The groups are those of the tasks, so regimes of a task stay
    together. The usual fitter balances the classes. DataError for a run whose tools did not say both, StoreError for a
    layer that is not stored.
    """
    names = [name for name in run.checkpoint_names if name.startswith("observation:")]
    if not names:
        raise DataError("the run keeps no states at observations: record the checkpoints observation too.")
    told = [_told(run.episode(index).steps) for index in range(len(run))]
    states, labels, groups = [], [], []
    for name in names:
        rows = run.rows(name)
        found = [told[e].get(int(r)) for e, r in zip(rows.episode, rows.round, strict=True)]
        use = np.array([label is not None for label in found], np.bool_)
        states.append(run.states(name, layer)[use])
        labels += [label for label in found if label is not None]
        groups += run.episodes.group[rows.episode[use]].tolist()
    refused = np.array([label == "refused" for label in labels], np.bool_)
    useless = np.array([label != "intact" for label in labels], np.bool_)
    truth = useless[~refused]
    if not truth.any() or truth.all():
        raise DataError(
            f"of the run's {len(truth)} observations {int(truth.sum())} are injected failures: record regimes that "
            "hold failures and true results."
        )
    fitted = (fitter or LogisticFitter(class_weight="balanced")).fit(np.concatenate(states), useless, groups)
    threshold, accuracy = best_cut(fitted.out_of_fold[~refused], truth)
    return FittedEvidence(
        probe=fitted.probe,
        layer=layer,
        threshold=threshold,
        auroc=auroc(fitted.out_of_fold[~refused], truth),
        balanced_accuracy=accuracy,
        rate=float((fitted.out_of_fold >= threshold).mean()),
        observations=len(truth),
        injected=int(truth.sum()),
        refusals=int(refused.sum()),
        groups=len(set(groups)),
    )


_Told = Literal["injected", "intact", "refused"]


def _told(steps: Sequence[Step]) -> dict[int, _Told]:
    """What a round's observation was: a failure, what a tool found, or the refusal of an invalid action."""
    kinds: dict[int, _Told] = {}
    for step in steps:
        if step.observation_kind != "next_part":
            said: _Told = "injected" if step.injected else "intact"
            kinds[step.round] = "refused" if step.observation_kind == "invalid" else said
    return kinds
