"""A probe on hidden states that says whether the evidence just read is useless, fitted on injected failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from probecascade.episode import Step
from probecascade.errors import DataError
from probecascade.policies.judged.judges import ProbeJudge
from probecascade.policies.judged.log import best_cut
from probecascade.probes import Fitter, FrozenProbe, LogisticFitter
from probecascade.store import Run


@dataclass(frozen=True, eq=False)
class FittedEvidence:
    """A fitted probe and how well it tells observations, all out of fold: each scored by a fit without its group.

    threshold: that of the best balanced accuracy on the out-of-fold scores, so that accuracy is slightly
    optimistic. rate: share of the observations that reach it. observations, injected, groups: what it was fitted on.
    """

    probe: FrozenProbe
    layer: int
    threshold: float
    auroc: float
    balanced_accuracy: float
    rate: float
    observations: int
    injected: int
    groups: int

    def judge(self, name: str = "probe") -> ProbeJudge:
        """The judge that cuts this probe's score at its threshold."""
        return ProbeJudge(self.probe, self.layer, self.threshold, name)


def fit_evidence_probe(run: Run, layer: int, fitter: Fitter | None = None) -> FittedEvidence:
    """Fit on the states of one layer at all `observation` checkpoints of a run; see `ProbeJudge`.

    The label is whether the observation was a failure injected in the place of what the tool found; the groups are
    those of the tasks, so regimes of a task stay together. Left out is what no tool said: the refusal of an invalid
    action and the next question of a task. The usual fitter balances the classes. DataError for a run without
    observations of both kinds, StoreError for a layer that is not stored.
    """
    names = [name for name in run.checkpoint_names if name.startswith("observation:")]
    if not names:
        raise DataError("the run keeps no states at observations: record the checkpoints observation too.")
    injected = [_told(run.episode(index).steps) for index in range(len(run))]
    states, labels, groups = [], [], []
    for name in names:
        rows = run.rows(name)
        found = [injected[e].get(int(r)) for e, r in zip(rows.episode, rows.round, strict=True)]
        use = np.array([label is not None for label in found], np.bool_)
        states.append(run.states(name, layer)[use])
        labels += [label for label in found if label is not None]
        groups += run.episodes.group[rows.episode[use]].tolist()
    truth = np.array(labels, np.bool_)
    if not truth.any() or truth.all():
        raise DataError(
            f"of the run's {len(truth)} observations {int(truth.sum())} are injected failures: record regimes that "
            "hold failures and true results."
        )
    fitted = (fitter or LogisticFitter(class_weight="balanced")).fit(np.concatenate(states), truth, groups)
    threshold, accuracy = best_cut(fitted.out_of_fold, truth)
    return FittedEvidence(
        probe=fitted.probe,
        layer=layer,
        threshold=threshold,
        auroc=fitted.auroc,
        balanced_accuracy=accuracy,
        rate=float((fitted.out_of_fold >= threshold).mean()),
        observations=len(truth),
        injected=int(truth.sum()),
        groups=len(set(groups)),
    )


def _told(steps: Sequence[Step]) -> dict[int, bool]:
    """Whether what a tool said in a round was an injected failure, by round."""
    return {s.round: bool(s.injected) for s in steps if s.observation_kind not in ("invalid", "next_part")}
