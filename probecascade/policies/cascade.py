"""The cascade: probes at checkpoints, each with a threshold; the first that fires aborts the episode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from probecascade.episode import CONTINUE, Decision, Moment, Task
from probecascade.errors import CascadeError, DataError
from probecascade.interfaces import Probe
from probecascade.policies.folder import damaged, read_folder, write_folder
from probecascade.policies.provenance import check_header, overlap
from probecascade.probes import load_probe
from probecascade.thresholds import OFF


@runtime_checkable
class StorableProbe(Protocol):
    """A probe that can be written: named arrays, and a JSON-able description of everything else."""

    def arrays(self) -> Mapping[str, NDArray[Any]]: ...

    def spec(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True, eq=False)
class Gate:
    """A checkpoint, its probe and its threshold; it fires when score >= threshold (`OFF`: never).

    `layer` counts from 0 (the embedding output) and is None for a probe on surface signals. `target` and
    `reached` say what was asked of the gate and whether the calibration episodes allowed it; `counts` holds
    what the gate did on them.
    """

    checkpoint: str
    layer: int | None
    probe: Probe
    threshold: float
    target: str = ""
    reached: bool = True
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def off(self) -> bool:
        return self.threshold == OFF

    def score(self, states: NDArray[Any] | None, signals: NDArray[Any]) -> NDArray[np.float64]:
        """P(failure), (n,), of states (n, d_model), or of signals (n, n_signals) when `layer` is None.

        Fitting, back-tests and live runs all score here, so a stored row and the live moment that it was
        stored from give the same bits. Raises DataError as the probe does, or on a score that is no number.
        """
        if self.layer is None or states is None:
            states = np.empty((len(signals), 0))
        scores = self.probe.score(states, signals)
        if not np.isfinite(scores).all():
            raise DataError(f"the probe at {self.checkpoint} gave a score that is no number: refit the cascade.")
        return scores

    def record(self) -> dict[str, Any]:
        """All of the gate but the probe's arrays, as JSON values. CascadeError if it cannot be stored."""
        return {
            "checkpoint": self.checkpoint,
            "layer": self.layer,
            "threshold": None if self.off else self.threshold,
            "target": self.target,
            "reached": self.reached,
            "counts": dict(self.counts),
            "probe": dict(self._storable().spec()),
        }

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """The probe's arrays by name. CascadeError if it cannot be stored."""
        return self._storable().arrays()

    def _storable(self) -> StorableProbe:
        if not isinstance(self.probe, StorableProbe):
            raise CascadeError(
                f"the probe at {self.checkpoint} ({type(self.probe).__name__}) cannot be stored: "
                "give it `spec()` and `arrays()`."
            )
        return self.probe


class Cascade:
    """Gates in order, as a stopping policy. It keeps no memory of episodes, so one serves many at once.

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
        self.layers: Sequence[int] = tuple(
            sorted({gate.layer for gate in self._live.values() if gate.layer is not None})
        )

    @property
    def thresholds(self) -> NDArray[np.float64]:
        """(n_gates,), inf where a gate is off."""
        return np.array([gate.threshold for gate in self.gates], dtype=np.float64)

    def begin(self, task: Task) -> Self:
        """The watch of one episode: the cascade itself, since every decision looks at one moment alone."""
        return self

    def decide(self, moment: Moment) -> Decision:
        """Abort if a gate stands at this checkpoint and its probe scores at least the threshold."""
        gate = self._live.get(moment.checkpoint.name)
        if gate is None or (moment.checkpoint.final and not self.gate_answers):
            return CONTINUE
        score = self.score(moment)
        fires = score >= gate.threshold
        sign = ">=" if fires else "<"
        return Decision(
            action="abort" if fires else "continue",
            gate=gate.checkpoint,
            score=score,
            threshold=gate.threshold,
            reason=f"P(failure) {score:.2f} {sign} {gate.threshold:.2f} at {gate.checkpoint}",
        )

    def score(self, moment: Moment) -> float:
        """P(failure) at this moment; NaN where no gate stands, or one that is off.

        Raises CascadeError when the moment lacks the layer that the gate reads.
        """
        gate = self._live.get(moment.checkpoint.name)
        if gate is None:
            return float("nan")
        states = None
        if gate.layer is not None:
            if gate.layer not in moment.hidden:
                raise CascadeError(
                    f"the gate at {gate.checkpoint} reads layer {gate.layer}, but the moment holds layers "
                    f"{sorted(moment.hidden)}: capture the layers in `cascade.layers`."
                )
            states = moment.hidden[gate.layer][None, :]
        signals = np.asarray(moment.checkpoint.signals, dtype=np.float32)[None, :]
        return float(gate.score(states, signals)[0])

    def check_fits(self, header: Mapping[str, Any], *, force: bool = False) -> None:
        """CascadeError naming the first key in which a run or model differs from the fitted one.

        `header` is the header of a run, or of the model about to be driven. With `force` nothing is checked.
        """
        if not force:
            check_header(self.provenance.get("run", {}), header)

    def overlap(self, groups: Iterable[str]) -> tuple[str, ...]:
        """Those of `groups` that fitted the probes or set the thresholds, sorted."""
        return overlap(self.provenance, groups)

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
            return cls(
                [_restore(entry, f"{index}.", arrays) for index, entry in enumerate(record["gates"])],
                gate_answers=record["gate_answers"],
                promise=record["promise"],
                calibration=record.get("calibration"),  # absent from the first cascades
                provenance=record["provenance"],
                held_out=record["held_out"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise damaged(Path(path) / "cascade.json", error) from error

    def attach(self, model: Any, tokenizer: Any, **options: Any) -> Any:
        """Hook a generation loop that is not ours; see `probecascade.models.attach.attach`."""
        # Imported here because it needs torch, which fitting and evaluating never load.
        from probecascade.models.attach import attach

        return attach(self, model, tokenizer, **options)


def _restore(entry: Mapping[str, Any], prefix: str, arrays: Mapping[str, NDArray[Any]]) -> Gate:
    threshold, counts = entry["threshold"], entry["counts"]
    if threshold is not None and (isinstance(threshold, bool) or not isinstance(threshold, int | float)):
        raise TypeError(f"the threshold at {entry['checkpoint']} is {threshold!r}, not a number")
    if not isinstance(entry["probe"], dict) or not isinstance(counts, dict):
        raise TypeError(f"the gate at {entry['checkpoint']} has no probe or no counts")
    own = {name.removeprefix(prefix): values for name, values in arrays.items() if name.startswith(prefix)}
    return Gate(
        checkpoint=entry["checkpoint"],
        layer=entry["layer"],
        probe=load_probe(entry["probe"], own),
        threshold=OFF if entry["threshold"] is None else float(entry["threshold"]),
        target=entry["target"],
        reached=entry["reached"],
        counts=entry["counts"],
    )
