"""What `fit` can give its gates besides a probe: a trigger, and a probe of the failure mode."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probecascade.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from probecascade.policies import Cascade, FitResult, TriggerShare
    from probecascade.store import Run

BY_RULES = "rules"


@dataclass(frozen=True, slots=True)
class Extras:
    """What was asked for, read and checked before anything is fitted; None for what was not."""

    trigger: TriggerShare | None
    modes: NDArray[np.object_] | None

    @classmethod
    def of(cls, run: Run, trigger: str | None, modes: str | None, allow_new: bool) -> Extras:
        """From the options of `fit`. UsageError or DataError for what cannot be right."""
        from probecascade.cli.modes import modes_of
        from probecascade.policies import TriggerShare

        by_file = modes not in (None, BY_RULES)
        if allow_new and not by_file:
            raise UsageError("--allow-new is about the modes in a file: add --modes FILE, or leave it out.")
        if by_file and not Path(str(modes)).is_file():
            raise UsageError(f"--modes is {modes!r}, which is no file: give rules, or a file with episode_id and mode.")
        return cls(
            trigger=None if trigger is None else TriggerShare.parse(trigger),
            modes=None if modes is None else modes_of(run, Path(modes) if by_file else None, allow_new=allow_new),
        )

    def add_to(self, result: FitResult, run: Run, seed: int) -> FitResult:
        """The fitted cascade with triggers, for which its thresholds are set anew, and with mode probes."""
        from probecascade.policies import fit_modes, look_less
        from probecascade.probes import ModeFitter

        if self.trigger is not None:
            result = look_less(result, run, self.trigger, seed=seed)
        if self.modes is None:
            return result
        found = fit_modes(result.cascade, run, self.modes, ModeFitter(seed=seed))
        table = tuple(replace(row, gate=gate) for row, gate in zip(result.table, found.cascade.gates, strict=True))
        return replace(result, cascade=found.cascade, table=table, warnings=(*result.warnings, *found.notes))


def extras_lines(cascade: Cascade) -> Iterator[str]:
    """Triggers and mode probes in words, nothing for a cascade without."""
    triggers = [f"{gate.checkpoint} {gate.trigger}" for gate in cascade.gates if gate.trigger is not None]
    if triggers:
        yield f"a gate looks, and can fire, only where: {', '.join(triggers)}"
    found = cascade.provenance.get("modes")
    if found:
        yield ""
        yield "which failure mode, given that the episode fails (cross-validated on the fit episodes' failures):"
        yield _mode_table(found)


def _mode_table(found: dict[str, Any]) -> str:
    from probecascade.cli.tables import table

    rows = []
    for checkpoint, fitted in found.items():
        names = list(fitted["modes"])
        for place, (name, counted) in enumerate(zip(names, fitted["confusion"], strict=True)):
            ranked = fitted["auroc"][name]
            taken = ", ".join(f"{other} {n}" for other, n in zip(names, counted, strict=True) if n)
            auroc = f"{ranked['value']:.3f} [{ranked['low']:.3f}, {ranked['high']:.3f}]"
            rows.append(["" if place else checkpoint, name, str(fitted["modes"][name]), auroc, taken])
    return table(["gate", "mode", "failures", "AUROC against the rest", "taken for"], rows)
