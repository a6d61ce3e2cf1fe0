"""What `fit` can give its gates besides a probe: a trigger, and a probe of the failure mode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probecascade.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from probecascade.cli.recipes import CalibrateRecipe
    from probecascade.policies import Cascade, FitResult, TriggerShare
    from probecascade.store import Run

BY_RULES = "rules"
_TAKEN = 3  # modes that a row names


@dataclass(frozen=True, slots=True)
class Extras:
    """What was asked for, read and checked before anything is fitted; None for what was not."""

    trigger: TriggerShare | None
    modes: NDArray[np.object_] | None

    @classmethod
    def of(
        cls, run: Run, trigger: str | None, modes: str | None, allow_new: bool, recipe: CalibrateRecipe | None = None
    ) -> Extras:
        """From the options of `fit`, else from the recipe; an empty option takes back what the recipe asks for.

        UsageError or DataError for what cannot be right.
        """
        from probecascade.cli.modes import modes_of
        from probecascade.policies import TriggerShare

        if recipe is not None:
            trigger = (recipe.probe.trigger if trigger is None else trigger) or None
            modes = (recipe.probe.modes if modes is None else modes) or None
        by_file = modes not in (None, BY_RULES)
        if allow_new and not by_file:
            raise UsageError("--allow-new is about the modes in a file: add --modes FILE, or leave it out.")
        if by_file and not Path(str(modes)).is_file():
            what = f"--modes is {modes!r}" if recipe is None or modes != recipe.probe.modes else f"modes is {modes!r}"
            raise UsageError(f"{what}, which is no file: give rules, or a file with episode_id and mode.")
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
    from probecascade.cli.tables import wrapped

    triggers = [f"{gate.checkpoint} {gate.trigger}" for gate in cascade.gates if gate.trigger is not None]
    if triggers:
        yield wrapped(f"a gate looks, and can fire, only where: {', '.join(triggers)}", indent="  ")
    found = cascade.provenance.get("modes")
    if found:
        yield ""
        yield "which failure mode, given that the episode fails (cross-validated on the fit episodes' failures):"
        yield _mode_table(found)


def _mode_table(found: dict[str, Any]) -> str:
    from probecascade.cli.tables import folded

    rows = []
    for checkpoint, fitted in found.items():
        names = list(fitted["modes"])
        for name, counted in zip(names, fitted["confusion"], strict=True):
            ranked = fitted["auroc"][name]
            auroc = f"{ranked['value']:.3f} [{ranked['low']:.3f}, {ranked['high']:.3f}]"
            rows.append([f"{checkpoint} {name}", str(fitted["modes"][name]), auroc, _taken(names, counted)])
    return folded(["gate and mode", "failures", "AUROC against the rest", "taken for"], rows)


def _taken(names: Sequence[str], counted: Sequence[int]) -> str:
    """What a mode is taken for, the most frequent first; further ones as one number."""
    order = sorted((-n, name) for name, n in zip(names, counted, strict=True) if n)
    rest = -sum(n for n, _ in order[_TAKEN:])
    return ", ".join([*(f"{name} {-n}" for n, name in order[:_TAKEN]), *([f"others {rest}"] if rest else [])])
