"""What the tests of the page share: texts that try to escape from it, and a run with its cascade and sweep."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from probecascade.evaluation import SweepResult, failure_modes
from probecascade.intervals import Resampling
from probecascade.policies import Cascade
from probecascade.report import Judged, Material
from probecascade.store import Run

HOSTILE = '</script><script>document.title = "owned"</script><img src=x onerror="document.title=\'owned\'">&amp;\u2028'
CHECKPOINTS = ("prompt", "action:1", "part:1", "observation:2", "action:3")
FEW = Resampling(resamples=100)


@dataclass(frozen=True)
class World:
    path: Path
    run: Run
    cascade: Cascade
    sweep: SweepResult

    def material(self, *, judged: bool = True) -> Material:
        return Material(
            run=self.run,
            sweep=self.sweep.record(),
            scores=self.sweep.scores,
            modes=failure_modes(self.run),
            cascade=self.cascade if judged else None,
            judged=Judged.of(self.cascade, self.run, resampling=FEW) if judged else None,
            resampling=FEW,
        )
