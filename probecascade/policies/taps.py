"""What a gate shows its probe: states at its taps, signals, text and checks; the same from a run and live.

A tap is a checkpoint's name and a layer. The taps of a gate are read side by side; one at an earlier checkpoint
lets a probe see what the model's state was before, and is NaN where the episode never came by there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from probecascade.episode import Moment
from probecascade.errors import CascadeError
from probecascade.probes import Shown
from probecascade.store import Run

Tap = tuple[str, int]
States = NDArray[np.float32]


def stored(run: Run, checkpoint: str, taps: Sequence[Tap], wanted: frozenset[str]) -> Shown:
    """What a probe that looks at `wanted` is shown of all episodes of a run that come to this checkpoint.

    Rows are those of `run.rows(checkpoint)`. StoreError if a layer, or the checkpoint itself, is not stored.
    """
    rows = run.rows(checkpoint)
    return Shown(
        states=stored_states(run, checkpoint, taps) if taps else None,
        signals=rows.signals,
        texts=run.texts(checkpoint) if "text" in wanted else None,
        checks=rows.checks if "checks" in wanted else None,
    )


def stored_states(run: Run, checkpoint: str, taps: Sequence[Tap]) -> States:
    """(n, len(taps) * d_model) float32, one tap's states after the other, NaN where an episode has none before."""
    rows = run.rows(checkpoint)
    width = run.d_model
    states = np.full((len(rows), len(taps) * width), np.nan, dtype=np.float32)
    for place, (name, layer) in enumerate(taps):
        block = states[:, place * width : (place + 1) * width]
        if name == checkpoint:
            block[:] = run.states(name, layer)
        elif name in run.checkpoint_names:
            earlier = run.rows(name)
            row_of = np.full(len(run), -1)
            row_of[earlier.episode] = np.arange(len(earlier))
            found = row_of[rows.episode]
            # What comes later in the episode cannot have been seen live.
            found[(found >= 0) & (earlier.ordinal[found] > rows.ordinal)] = -1
            block[found >= 0] = run.states(name, layer)[found[found >= 0]]
    return states


def live(moment: Moment, taps: Sequence[Tap], seen: Mapping[Tap, States], wanted: frozenset[str]) -> Shown:
    """What a probe is shown of one live episode: one row.

    `seen`: states at the taps of earlier checkpoints, as an `EarlierStates` keeps them. CascadeError if the moment
    lacks a layer that is tapped here.
    """
    return Shown(
        states=_live_states(moment, taps, seen) if taps else None,
        signals=np.asarray(moment.checkpoint.signals, dtype=np.float32)[None, :],
        texts=[moment.text] if "text" in wanted else None,
        checks={k: np.array([v], dtype=np.float64) for k, v in moment.checkpoint.checks.items()}
        if "checks" in wanted
        else None,
    )


def _live_states(moment: Moment, taps: Sequence[Tap], seen: Mapping[Tap, States]) -> States:
    here = moment.checkpoint.name
    own = [layer for name, layer in taps if name == here]
    missing = [layer for layer in own if layer not in moment.hidden]
    if missing:
        raise CascadeError(
            f"the gate at {here} reads layer {missing[0]}, but the moment holds layers {sorted(moment.hidden)}: "
            "capture the layers in `cascade.layers`."
        )
    absent = np.full(len(moment.hidden[own[0]]), np.nan, dtype=np.float32)
    blocks = [moment.hidden[tap[1]] if tap[0] == here else seen.get(tap, absent) for tap in taps]
    return np.concatenate(blocks).astype(np.float32, copy=False)[None, :]


def own_states(shown: Shown, checkpoint: str, taps: Sequence[Tap]) -> States | None:
    """(n, own taps * d_model): of what was shown, the states at the gate's own checkpoint; None where it reads none."""
    if shown.states is None:
        return None
    width = shown.states.shape[1] // len(taps)
    return np.hstack(
        [shown.states[:, i * width : (i + 1) * width] for i, tap in enumerate(taps) if tap[0] == checkpoint]
    )


class EarlierStates:
    """Remembers one live episode's states at taps, for gates that stand after them."""

    def __init__(self, taps: Iterable[Tap]) -> None:
        self._layers: dict[str, set[int]] = {}
        for name, layer in taps:
            self._layers.setdefault(name, set()).add(layer)
        self.seen: dict[Tap, States] = {}

    def note(self, moment: Moment) -> None:
        """Keep what is tapped here. A state that is not finite is passed over, as the store leaves it out."""
        name = moment.checkpoint.name
        for layer in self._layers.get(name, ()):
            state = moment.hidden.get(layer)
            if state is not None and np.isfinite(state).all():
                self.seen[name, layer] = np.array(state, dtype=np.float32)


def earlier_taps(checkpoint: str, taps: Sequence[Tap]) -> tuple[Tap, ...]:
    """Those of a gate's taps that stand at other checkpoints than its own."""
    return tuple(tap for tap in taps if tap[0] != checkpoint)


def check_taps(checkpoint: str, layer: int | None, taps: Sequence[Tap]) -> tuple[tuple[Tap, ...], int | None]:
    """A gate's taps and layer, each from the other where it was left out. CascadeError where they disagree."""
    if not taps:
        return (() if layer is None else ((checkpoint, layer),)), layer
    own = [k for name, k in taps if name == checkpoint]
    if not own or len(set(taps)) != len(taps) or (layer is not None and layer not in own):
        raise CascadeError(
            f"the gate at {checkpoint} (layer {layer}) was given the taps {list(taps)}: give distinct ones, with its "
            "own checkpoint and layer among them."
        )
    return tuple(taps), own[-1] if layer is None else layer
