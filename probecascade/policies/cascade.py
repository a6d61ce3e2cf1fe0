"""The cascade: probes at checkpoints, each with a threshold; the first that fires aborts the episode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from probecascade.episode import CONTINUE, SIGNALS, Decision, Moment, Task
from probecascade.errors import CascadeError, DataError
from probecascade.interfaces import EpisodeWatch, Probe
from probecascade.policies.advice import likely
from probecascade.policies.folder import damaged, read_folder, write_folder
from probecascade.policies.provenance import check_header, check_record, overlap
from probecascade.policies.taps import EarlierStates, States, Tap, check_taps, earlier_taps, live, own_states
from probecascade.policies.trigger import Trigger
from probecascade.probes import ModeProbe, Shown, load_mode_probe, load_probe, reads, signals_read
from probecascade.probes.kinds import under, within
from probecascade.store import assign_split
from probecascade.thresholds import OFF


@runtime_checkable
class StorableProbe(Protocol):
    """A probe that can be written: named arrays, and a JSON-able description of everything else."""

    def arrays(self) -> Mapping[str, NDArray[Any]]: ...

    def spec(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True, eq=False)
class Gate:
    """A checkpoint, its probe and its threshold; it fires when score >= threshold (`OFF`: never).

    `layer` counts from 0 (the embedding output) and is None for a probe that reads no states. `taps` are the
    checkpoints and layers whose states the probe reads side by side: without them (`checkpoint`, `layer`) alone;
    those of other checkpoints are seen if the episode came by there before. `target` and `reached` say what was
    asked of the gate and whether the calibration episodes allowed it; `counts` holds what the gate did on them.
    `trigger`: the gate looks only where it says so (None: always), and cannot fire elsewhere. `modes` says how an
    episode that it aborts was likely to fail.
    CascadeError if the gate's own checkpoint is not tapped, or not at `layer`.
    """

    checkpoint: str
    layer: int | None
    probe: Probe
    threshold: float
    target: str = ""
    reached: bool = True
    counts: Mapping[str, int] = field(default_factory=dict)
    taps: tuple[Tap, ...] = ()
    trigger: Trigger | None = None
    modes: ModeProbe | None = None

    def __post_init__(self) -> None:
        taps, layer = check_taps(self.checkpoint, self.layer, self.taps)
        object.__setattr__(self, "taps", taps)
        object.__setattr__(self, "layer", layer)

    @property
    def off(self) -> bool:
        return self.threshold == OFF

    @property
    def never(self) -> bool:
        """Whether no score, a probability, can reach the threshold."""
        return self.threshold > 1

    @property
    def reads(self) -> frozenset[str]:
        """What its probe looks at, out of states, signals, text and checks."""
        return reads(self.probe)

    @property
    def columns(self) -> tuple[str, ...]:
        """The surface signals that the gate needs: those that its probe reads, and its trigger's."""
        own = signals_read(self.probe, self.layer)
        if self.layer is None and self.modes is not None:
            own = SIGNALS
        return own if self.trigger is None or self.trigger.signal in own else (*own, self.trigger.signal)

    def looks(self, signals: ArrayLike) -> NDArray[np.bool_]:
        """(n,): where the gate scores at all, given signals (n, len(SIGNALS)). DataError as the trigger's."""
        if self.trigger is None:
            return np.ones(len(np.asarray(signals)), dtype=np.bool_)
        return self.trigger.looks(signals)

    def mode_probabilities(self, shown: Shown) -> NDArray[np.float64]:
        """P(mode | failure), (n, n_modes), in the order of `modes.names`: from the states at the gate's own checkpoint.

        Where the gate reads none, from the signals. CascadeError for a gate without a mode probe.
        """
        if self.modes is None:
            raise CascadeError(f"the gate at {self.checkpoint} tells no failure modes apart: fit it with --modes.")
        return self.modes.probabilities(own_states(shown, self.checkpoint, self.taps), shown.signals)

    def score(self, shown: Shown) -> NDArray[np.float64]:
        """P(failure), (n,), of what the probe is shown of n episodes; see `taps.stored` and `taps.live`.

        Fitting, back-tests and live runs all score here, so a stored row and the live moment that it was
        stored from give the same bits. Raises DataError as the probe does, or on a score that is no number.
        """
        scores = shown.score(self.probe)
        if not np.isfinite(scores).all():
            raise DataError(f"the probe at {self.checkpoint} gave a score that is no number: refit the cascade.")
        return scores

    def record(self) -> dict[str, Any]:
        """All of the gate but the probe's arrays, as JSON values. CascadeError if it cannot be stored."""
        return {
            "checkpoint": self.checkpoint,
            "layer": self.layer,
            "taps": [list(tap) for tap in self.taps],
            "threshold": None if self.off else self.threshold,
            "target": self.target,
            "reached": self.reached,
            "counts": dict(self.counts),
            "probe": dict(self._storable().spec()),
            **({} if self.trigger is None else {"trigger": self.trigger.record()}),
            **({} if self.modes is None else {"modes": self.modes.spec()}),
        }

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """The arrays of its probe and, under `modes.`, of its mode probe. CascadeError if it cannot be stored."""
        own = dict(self._storable().arrays())
        return own if self.modes is None else own | under("modes", self.modes.arrays())

    def _storable(self) -> StorableProbe:
        if not isinstance(self.probe, StorableProbe):
            raise CascadeError(
                f"the probe at {self.checkpoint} ({type(self.probe).__name__}) cannot be stored: "
                "give it `spec()` and `arrays()`."
            )
        return self.probe


class Cascade:
    """Gates in order, as a stopping policy. One serves many episodes at once, each with a watch of its own.

    `gate_answers`: also gate the turn that finishes the episode, which withholds its answer. `promise`: what
    the thresholds promise, in words; `calibration`: the method, targets and certificates behind it.
    `provenance`: the model, run and split that it was fitted on. `held_out`: numbers from episodes that shaped
    nothing. Raises CascadeError without gates or where two gates share a checkpoint.
    """

    def __init__(
        self,
        gates: Iterable[Gate],
        *,
        gate_answers: bool = False,
        promise: str = "",
        calibration: Mapping[str, Any] | None = None,
        provenance: Mapping[str, Any] | None = None,
        held_out: Mapping[str, Any] | None = None,
    ) -> None:
        self.gates = tuple(gates)
        self.gate_answers = gate_answers
        self.promise = promise
        self.calibration: Mapping[str, Any] = dict(calibration or {})
        self.provenance: Mapping[str, Any] = dict(provenance or {})
        self.held_out: Mapping[str, Any] = dict(held_out or {})
        names = [gate.checkpoint for gate in self.gates]
        if not names or len(set(names)) != len(names):
            raise CascadeError(
                f"the gates {', '.join(names) or '(none)'} make no cascade: give one or more distinct checkpoints."
            )
        self._live = {gate.checkpoint: gate for gate in self.gates if not gate.off}
        taps = [tap for gate in self._live.values() for tap in gate.taps]
        self.layers: Sequence[int] = tuple(sorted({layer for _, layer in taps}))
        self._earlier = [tap for gate in self._live.values() for tap in earlier_taps(gate.checkpoint, gate.taps)]

    @property
    def thresholds(self) -> NDArray[np.float64]:
        """(n_gates,), inf where a gate is off."""
        return np.array([gate.threshold for gate in self.gates], dtype=np.float64)

    def begin(self, task: Task) -> EpisodeWatch:
        """The watch of one episode: the cascade itself if every gate looks at its own moment alone."""
        return _Watch(self, EarlierStates(self._earlier)) if self._earlier else self

    def decide(self, moment: Moment) -> Decision:
        """Abort if a gate stands at this checkpoint and its probe scores at least the threshold.

        Asked of the cascade itself, taps of earlier checkpoints have not been seen.
        """
        return self._decide(moment, {})

    def _decide(self, moment: Moment, seen: Mapping[Tap, States]) -> Decision:
        gate = self._live.get(moment.checkpoint.name)
        if gate is None or (moment.checkpoint.final and not self.gate_answers):
            return CONTINUE
        if not gate.looks([moment.checkpoint.signals])[0]:
            return CONTINUE
        shown = live(moment, gate.taps, seen, reads(gate.probe))
        score = float(gate.score(shown)[0])
        fires = score >= gate.threshold
        sign = ">=" if fires else "<"
        reason = f"P(failure) {score:.2f} {sign} {gate.threshold:.2f} at {gate.checkpoint}"
        if fires and gate.modes is not None:
            shares = gate.mode_probabilities(shown)[0]
            best = int(shares.argmax())
            reason = f"{reason}; {likely(gate.modes.names[best], float(shares[best]))}"
        return Decision(
            action="abort" if fires else "continue",
            gate=gate.checkpoint,
            score=score,
            threshold=gate.threshold,
            reason=reason,
        )

    def score(self, moment: Moment, seen: Mapping[Tap, States] | None = None) -> float:
        """P(failure) at this moment; NaN where no gate stands, or one that is off or does not look.

        `seen`: states of this episode at taps of earlier checkpoints (`taps.EarlierStates`). Raises CascadeError
        when the moment lacks a layer that the gate reads.
        """
        gate = self._live.get(moment.checkpoint.name)
        if gate is None or not gate.looks([moment.checkpoint.signals])[0]:
            return float("nan")
        return float(gate.score(live(moment, gate.taps, seen or {}, reads(gate.probe)))[0])

    def check_fits(self, header: Mapping[str, Any], *, force: bool = False) -> None:
        """CascadeError naming the first key in which a run or model differs from the fitted one.

        `header` is the header of a run, or of the model about to be driven. With `force` nothing is checked.
        """
        if not force:
            check_header(self.provenance.get("run", {}), header)

    def overlap(self, groups: Iterable[str]) -> tuple[str, ...]:
        """Those of `groups` that fitted the probes or set the thresholds, sorted."""
        return overlap(self.provenance, groups)

    def split_of(self, groups: Sequence[str]) -> NDArray[np.str_]:
        """`fit`, `calibrate` or `test` for each group, by the split of its own fit. KeyError if it records none."""
        split = self.provenance["split"]
        return assign_split(groups, seed=split["seed"], shares=tuple(split["shares"]))

    def with_held_out(self, held_out: Mapping[str, Any]) -> Cascade:
        """The same cascade with other held-out numbers."""
        return Cascade(
            self.gates,
            gate_answers=self.gate_answers,
            promise=self.promise,
            calibration=self.calibration,
            provenance=self.provenance,
            held_out=held_out,
        )

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the folder: cascade.json and probes.safetensors, whole or not at all.

        CascadeError if the folder exists and `overwrite` is not set, or a probe cannot be stored.
        """
        record = {
            "promise": self.promise,
            "calibration": self.calibration,
            "gate_answers": self.gate_answers,
            "gates": [gate.record() for gate in self.gates],
            "held_out": self.held_out,
            "provenance": self.provenance,
        }
        arrays = {
            f"{index}.{name}": values for index, gate in enumerate(self.gates) for name, values in gate.arrays().items()
        }
        write_folder(Path(path), record, arrays, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | Path) -> Cascade:
        """Read a cascade folder; scores are those of the saved one, bit for bit. CascadeError if damaged."""
        record, arrays = read_folder(Path(path))
        try:
            check_record(record)
            return cls(
                [_restore(entry, f"{index}.", arrays) for index, entry in enumerate(record["gates"])],
                gate_answers=record["gate_answers"],
                promise=record["promise"],
                calibration=record.get("calibration"),  # absent from the first cascades
                provenance=record["provenance"],
                held_out=record["held_out"],
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise damaged(Path(path) / "cascade.json", error) from error

    def attach(self, model: Any, tokenizer: Any, **options: Any) -> Any:
        """Hook a generation loop that is not ours; see `probecascade.models.attach.attach`."""
        # Imported here because it needs torch, which fitting and evaluating never load.
        from probecascade.models.attach import attach

        return attach(self, model, tokenizer, **options)


class _Watch:
    """One episode under a cascade that looks back."""

    def __init__(self, cascade: Cascade, earlier: EarlierStates) -> None:
        self._cascade = cascade
        self._earlier = earlier

    def decide(self, moment: Moment) -> Decision:
        decision = self._cascade._decide(moment, self._earlier.seen)
        self._earlier.note(moment)
        return decision


def _restore(entry: Mapping[str, Any], prefix: str, arrays: Mapping[str, NDArray[Any]]) -> Gate:
    threshold, counts = entry["threshold"], entry["counts"]
    if threshold is not None and (isinstance(threshold, bool) or not isinstance(threshold, int | float)):
        raise TypeError(f"the threshold at {entry['checkpoint']} is {threshold!r}, not a number")
    if not isinstance(entry["target"], str) or not isinstance(entry["reached"], bool):
        raise TypeError(f"the gate at {entry['checkpoint']} has no target in words, or none that is reached or not")
    if not isinstance(entry["probe"], dict) or not isinstance(counts, dict):
        raise TypeError(f"the gate at {entry['checkpoint']} has no probe or no counts")
    taps = tuple((str(name), int(layer)) for name, layer in entry.get("taps", ()))  # format 1 has none
    own = {name.removeprefix(prefix): values for name, values in arrays.items() if name.startswith(prefix)}
    return Gate(
        checkpoint=entry["checkpoint"],
        layer=entry["layer"],
        probe=load_probe(entry["probe"], own),
        threshold=OFF if entry["threshold"] is None else float(entry["threshold"]),
        target=entry["target"],
        reached=entry["reached"],
        counts=entry["counts"],
        taps=taps,
        trigger=Trigger.of(entry["trigger"]) if "trigger" in entry else None,
        modes=load_mode_probe(entry["modes"], within(own, "modes")) if "modes" in entry else None,
    )
