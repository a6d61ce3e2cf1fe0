"""Changing the residual stream while an agent plays, to see whether a direction causes what it predicts.

Only ids after a conversation's prompt are changed: those it generates and those it observes. The prompt and the head
that many conversations share are encoded untouched, so a kept head serves changed and unchanged runs alike and the
first sampled token is drawn from the same distribution as without a change. A changed state enters the later blocks
and, through them, the keys of its own slot, as a state that the model had reached by itself would; a slot is cleared
before the next conversation takes it. States that the engine hands out at the changed layer or later ones are the
changed ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probecascade.errors import ModelError, UsageError
from probecascade.models.engine import Engine, _Slot
from probecascade.models.hooks import decoder_blocks, resolve_layers
from probecascade.models.slots import Segment

Change = Callable[[Tensor], Tensor]
"""What becomes of states (n, d_model), float32: a new tensor of that shape."""


@dataclass(frozen=True, eq=False)
class Push:
    """Add `step` (d_model,) to every state."""

    step: NDArray[np.floating[Any]]

    def __call__(self, states: Tensor) -> Tensor:
        return states + torch.as_tensor(self.step, dtype=states.dtype, device=states.device)


@dataclass(frozen=True, eq=False)
class Hold:
    """Project a `direction` (d_model,) out of every state, and put the coordinate `value` along it instead.

    With the mean coordinate as `value` only what varies is removed; 0 would also move all states by that mean.
    """

    direction: NDArray[np.floating[Any]]
    value: float = 0.0

    def __call__(self, states: Tensor) -> Tensor:
        axis = torch.as_tensor(self.direction, dtype=states.dtype, device=states.device)
        axis = axis / axis.norm()
        held: Tensor = states + (self.value - states @ axis)[:, None] * axis
        return held


@dataclass(frozen=True, eq=False)
class Trials:
    """Changes to try, by name, and for each that uses the direction the names of its controls.

    spread: standard deviation of the states along the direction. norm: mean length of the states.
    """

    changes: Mapping[str, Change]
    controls: Mapping[str, tuple[str, ...]]
    spread: float
    norm: float


def make_trials(
    direction: NDArray[np.floating[Any]],
    states: Sequence[NDArray[np.floating[Any]]],
    strengths: Sequence[float],
    *,
    controls: int,
    seed: int,
    dtype: torch.dtype = torch.float32,
) -> Trials:
    """Both ways of pushing along a unit direction (d_model,) at each strength; without strengths, its `Hold`.

    states: n of (d_model,), two or more; a push of strength 1 is as long as their standard deviation along the
    direction, and a coordinate is held at its mean over them. Each strength has `controls` random directions, drawn
    from all directions alike: pushes as long as its own, or holds. Both ways of a strength share them.
    UsageError for a strength that would push these states out of what `dtype`, the model's, can hold.
    """
    rows = np.stack([np.asarray(state, dtype=np.float64) for state in states])
    spread = float((rows @ direction).std())
    drawn = np.random.default_rng(seed).normal(size=(controls, len(direction)))
    random = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    changes: dict[str, Change] = {}
    controlled: dict[str, tuple[str, ...]] = {}
    for strength in strengths:
        length = strength * spread
        # States are changed in float32, then rounded to the model's dtype.
        if not np.abs(rows).max() + length < min(torch.finfo(dtype).max, torch.finfo(torch.float32).max):
            name = str(dtype).removeprefix("torch.")
            raise UsageError(f"a push of {strength:g}σ is beyond what {name} can hold: give a smaller strength.")
        others = {f"random {k + 1}, {strength:g}σ": Push(length * axis) for k, axis in enumerate(random)}
        own = {f"{sign}{strength:g}σ": Push(by * length * direction) for sign, by in (("+", 1), ("−", -1))}
        changes |= own | others
        controlled |= dict.fromkeys(own, tuple(others))
    if not strengths:
        held = {f"random {k + 1} held": Hold(axis, float((rows @ axis).mean())) for k, axis in enumerate(random)}
        changes = {"direction held": Hold(direction, float((rows @ direction).mean())), **held}
        controlled = {"direction held": tuple(held)}
    return Trials(changes, controlled, spread, float(np.linalg.norm(rows, axis=1).mean()))


@dataclass
class _Rows:
    """Flat indices of the running forward whose states may be changed; None outside one of this engine's own."""

    index: list[int] | None = field(default=None)

    def change(self, hidden: Tensor, change: Change) -> Tensor:
        """The same states (1, n, d_model) with these rows changed; the very tensor where there are none."""
        if not self.index:
            return hidden
        rows = torch.tensor(self.index, device=hidden.device)
        changed = hidden.clone()
        changed[0, rows] = change(hidden[0, rows].float()).to(hidden.dtype)
        return changed


class SteeredEngine(Engine):
    """An engine whose conversations can be changed at a layer, by `steer`. Without it, an `Engine` like any other.

    Other engines on the same model are never changed, not even inside `steer`.
    """

    def __init__(self, model: Any, tokenizer: Any, **settings: Any) -> None:
        self._rows = _Rows()
        self._prompt_ends: dict[int, int] = {}  # by slot; none while its head is being encoded
        super().__init__(model, tokenizer, **settings)

    @contextlib.contextmanager
    def steer(self, layer: int, change: Change) -> Iterator[None]:
        """Within it, states of this layer are changed at all ids after the first Feed of their conversation.

        Layers are counted as everywhere (0: the embedding output, k: the output of block k, negatives from the
        last). Blocks of `steer` may be nested: the outer change is made first. The hook is removed on every way out.
        Raises ModelError for a layer out of range, or while conversations of this engine are running.
        """
        if self._running:
            raise ModelError("this engine is running already: read its run to the end before it is steered.")
        (index,) = resolve_layers([layer], self.n_layers)
        blocks = decoder_blocks(self.model)
        rows = self._rows

        def before(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            if args:
                return (rows.change(args[0], change), *args[1:]), kwargs
            return args, kwargs | {"hidden_states": rows.change(kwargs["hidden_states"], change)}

        def after(module: Any, args: Any, output: Any) -> Any:
            if isinstance(output, tuple):
                return rows.change(output[0], change), *output[1:]
            return rows.change(output, change)

        if index == 0:
            handle = blocks[0].register_forward_pre_hook(before, with_kwargs=True)
        else:
            handle = blocks[index - 1].register_forward_hook(after)
        try:
            yield
        finally:
            handle.remove()

    def _admit(self, slot: _Slot) -> None:
        self._prompt_ends.pop(slot.index, None)
        super()._admit(slot)
        self._prompt_ends[slot.index] = slot.length + len(slot.pending)

    def _forward(
        self, ids: list[int], segments: list[Segment], keep: list[int], ends: list[int], shared: int
    ) -> Tensor:
        self._rows.index = []
        for segment in segments:
            prompt = self._prompt_ends.get(segment.slot, segment.end)
            first = min(max(prompt - segment.start, 0), segment.count)
            self._rows.index += range(segment.offset + first, segment.offset + segment.count)
        try:
            return super()._forward(ids, segments, keep, ends, shared)
        finally:
            self._rows.index = None
