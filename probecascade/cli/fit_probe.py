"""Which probe `fit` gives each gate: options first, then the recipe, then the plain one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from probecascade.cli.options import split_names
from probecascade.cli.recipes import CalibrateRecipe, ProbeSection
from probecascade.errors import UsageError

if TYPE_CHECKING:
    from probecascade.policies import ProbeSettings


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """Options of `fit` about its probes, None where one was not given."""

    probe: str | None = None
    calibrated: str | None = None
    class_weight: str | None = None
    steps: str | None = None
    last_layers: str | None = None
    fuse: str | None = None
    fusion: str | None = None

    def settings(self, recipe: CalibrateRecipe | None, uses: str) -> ProbeSettings:
        """The settings, checked. UsageError for what does not exist or does not go together."""
        from probecascade.policies import ProbeSettings

        section = ProbeSection() if recipe is None else recipe.probe
        count, pooled = self._layers(section)
        given: dict[str, Any] = {
            "kind": self.probe or section.kind,
            "calibrated": self.calibrated or section.calibrated,
            "class_weight": self.class_weight or section.class_weight,
            "steps": section.steps if self.steps is None else split_names(self.steps),
            "strengths": section.strengths,
            "uses": uses,
            "last_layers": count,
            "pooled": pooled,
            "fuse": section.fuse if self.fuse is None else split_names(self.fuse),
            "fusion": self.fusion or section.fusion,
        }
        if given["fusion"] not in ("early", "late"):
            raise UsageError(f"--fusion is {given['fusion']!r}: give early or late.")
        settings = ProbeSettings(**given)
        settings.check()
        return settings

    def _layers(self, section: ProbeSection) -> tuple[int, str]:
        if self.last_layers is None:
            return section.last_layers, section.pooled
        count, _, pooled = self.last_layers.partition(":")
        if not count.isdecimal() or pooled not in ("", "concat", "average"):
            raise UsageError(
                f"--last-layers is {self.last_layers!r}: give how many, such as 3 (side by side) or 3:average."
            )
        return int(count), pooled or "concat"
