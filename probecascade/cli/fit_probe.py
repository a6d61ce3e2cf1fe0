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
        self._check_idle(section, given)
        settings = ProbeSettings(**given)
        settings.check()
        return settings

    def _check_idle(self, section: ProbeSection, given: dict[str, Any]) -> None:
        """UsageError for what would change nothing.

        Where an option takes back what a recipe fuses, how it was to be fused goes too.
        """
        from probecascade.probes import SEQUENCES

        if given["fusion"] == "late" and not given["fuse"]:
            if self.fusion is not None or not section.fuse:
                raise UsageError("late fusion is about what is fused, and nothing is: add --fuse, such as --fuse text.")
            given["fusion"] = "early"
        elif self.fusion is not None and not given["fuse"]:
            raise UsageError("--fusion is about what --fuse adds, and nothing is fused: add --fuse, or leave it out.")
        if given["uses"] in given["fuse"]:
            raise UsageError(
                f"the probe reads {given['uses']} already: leave {given['uses']} out of what is fused, or --uses out."
            )
        pools = given["kind"] in SEQUENCES or given["last_layers"] > 1
        if "average" in given["steps"] and (not pools or given["pooled"] == "average"):
            raise UsageError(
                "the step average makes one of several layers or checkpoints, and the probe reads one: add "
                "--last-layers, such as 3, or leave the step out."
            )
        if given["pooled"] == "average" and given["last_layers"] == 1:
            raise UsageError("one layer has nothing to average: ask for more, such as --last-layers 3:average.")

    def _layers(self, section: ProbeSection) -> tuple[int, str]:
        if self.last_layers is None:
            return section.last_layers, section.pooled
        count, _, pooled = self.last_layers.partition(":")
        if not count.isdecimal() or pooled not in ("", "concat", "average"):
            raise UsageError(
                f"--last-layers is {self.last_layers!r}: give how many, such as 3 (side by side) or 3:average."
            )
        return int(count), pooled or "concat"
