"""Fitted steps and a probe as one frozen probe; where all is linear, as one linear probe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from probecascade.errors import DataError
from probecascade.probes.inputs import as_blocks, as_matrix
from probecascade.probes.kinds import Arrays, FrozenProbe, Spec, load_probe, loads, under, within
from probecascade.probes.linear import LinearProbe
from probecascade.probes.steps import FrozenStep, load_step


@dataclass(frozen=True, eq=False)
class PipedProbe:
    """`head` after `steps`, on states (n, blocks * d); with more than one block, earlier ones may be missing (NaN)."""

    steps: tuple[FrozenStep, ...]
    head: FrozenProbe
    blocks: int = 1

    def score(self, states: ArrayLike | None, signals: ArrayLike | None = None) -> NDArray[np.float64]:
        """P(failure), (n,). Raises DataError as its parts do."""
        if states is None:
            raise DataError("This probe reads states and was given none; pass states.")
        rows = as_matrix(states, "states") if self.blocks == 1 else as_blocks(states, "states", self.blocks)
        for step in self.steps:
            rows = step.apply(rows)
        return self.head.score(rows)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Those of each step under its place, those of the head under `head`."""
        named = [under(str(place), step.arrays()) for place, step in enumerate(self.steps)]
        return {name: values for part in [*named, under("head", self.head.arrays())] for name, values in part.items()}

    def spec(self) -> dict[str, Any]:
        """kind, blocks, and the specs of the parts."""
        steps = [step.spec() for step in self.steps]
        return {"kind": "piped", "blocks": self.blocks, "steps": steps, "head": self.head.spec()}


@loads("piped")
def load_piped(spec: Spec, arrays: Arrays) -> PipedProbe:
    """The piped probe of spec and arrays."""
    steps: Sequence[Mapping[str, Any]] = spec["steps"]
    fitted = tuple(load_step(step, within(arrays, str(place))) for place, step in enumerate(steps))
    return PipedProbe(fitted, load_probe(spec["head"], within(arrays, "head")), int(spec["blocks"]))


def compose(steps: Sequence[FrozenStep], head: FrozenProbe, blocks: int = 1) -> FrozenProbe:
    """`head` after `steps`, with linear steps that stand right before a linear head taken into it.

    Taking in rounds anew: scores move by some 1e-12 against the steps done one by one, never between two
    loads, machines or batches of what comes out here.
    """
    left = list(steps)
    while left and isinstance(head, LinearProbe):
        merged = left[-1].before(head)
        if merged is None:
            break
        head = merged
        left.pop()
    return PipedProbe(tuple(left), head, blocks) if left else head
