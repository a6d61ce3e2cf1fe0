"""`probecascade explain`: what a probe looks at, as tokens, beside its neighbours, and along a transcript."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probecascade.errors import CascadeError, UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from probecascade.evaluation.directions import Direction
    from probecascade.models import LoadedModel
    from probecascade.policies import Cascade, Gate
    from probecascade.policies.taps import Tap
    from probecascade.store import Run

WITH_DIRECTION = "logistic, elastic-net, mass-mean, mass-mean-whitened or lda, without the step layernorm"
"""Kinds of probes that have a single direction, in words for an error."""
_RANDOM = 200
_TOP = 12
_STATES = 2000  # of the run that directions and norms are averaged over


def explain(
    cascade: Annotated[Path, typer.Argument(help="A cascade that `probecascade fit` made.")],
    gate: Annotated[
        str | None, typer.Option(help="The gate whose probe is read; default: the first on states.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="The run that it was fitted on, or another of the same model.")
    ] = None,
    episode: Annotated[
        str | None, typer.Option(help="Score this episode of the run token by token: its id, or its number from 0.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model, where run and cascade do not name it.")] = None,
    top: Annotated[int | None, typer.Option(min=1, help="Tokens to show at either end; default 12.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 ...")] = "auto",
    force: Annotated[
        bool, typer.Option("--force", help="Accept a run or model that the cascade was not made for.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random directions.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what the probe of a gate looks at.

    The direction that it reads is put through the model's own final norm and unembedding: which tokens does a step
    towards "this will fail" promote, and which does it suppress? Random directions of the same length say whether
    that means anything. With a run, the direction is also compared with those of probes fitted at neighbouring layers
    and checkpoints. With a run and an episode, the probe is put on every token of the transcript instead.

    Examples:

      probecascade explain cascades/atlas --gate action:2 --run runs/atlas

      probecascade explain cascades/atlas --gate action:2 --run runs/atlas --episode 17

      probecascade explain cascades/atlas --json
    """
    from probecascade.policies import Cascade
    from probecascade.store import Run

    if episode is not None and run is None:
        raise UsageError("--episode names an episode of a run: add --run.")
    if episode is not None and top is not None:
        raise UsageError("--top is about the tokens of a direction, and --episode shows a transcript: leave one out.")
    loaded = Cascade.load(cascade)
    chosen = pick_gate(loaded, gate)
    stored = None if run is None else Run.open(run)
    if stored is not None:
        loaded.check_fits(stored.header, force=force)
    if stored is not None and episode is not None:
        from probecascade.cli.explain_episode import explain_episode

        return explain_episode(loaded, chosen, stored, episode, model, device=device, force=force, as_json=as_json)
    _explain(loaded, chosen, stored, model, device=device, force=force, top=top or _TOP, seed=seed, as_json=as_json)


def pick_gate(cascade: Cascade, wanted: str | None) -> Gate:
    """The gate of that name, or the first that reads states. UsageError names those that there are."""
    reading = [gate for gate in cascade.gates if gate.layer is not None]
    if wanted is None:
        if not reading:
            raise UsageError("no gate of this cascade reads hidden states, so there is no direction to look at.")
        return reading[0]
    for gate in cascade.gates:
        if gate.checkpoint == wanted:
            return gate
    names = ", ".join(gate.checkpoint for gate in cascade.gates)
    raise UsageError(f"--gate is {wanted!r}, but the cascade has the gates {names}: give one of these.")


def without_direction(gate: Gate) -> str:
    """That the gate's probe is no linear one: the beginning of an error."""
    from probecascade.evaluation.directions import uncalibrated

    return f"the probe at {gate.checkpoint}, of kind {type(uncalibrated(gate.probe)).__name__}, has no single direction"


def load_model(cascade: Cascade, run: Run | None, name: str | None, *, device: str, force: bool) -> LoadedModel:
    """The model of the run's recipe, or the one that the cascade names. CascadeError where it is another.

    Where the states were imported from a program that is none of our backends, `force` reads with transformers.
    """
    from probecascade.models import load
    from probecascade.models.catalogue import BACKENDS, TRANSFORMERS

    fitted: Any = cascade.provenance.get("run", {}).get("model", {})
    fitted = {"model": fitted} if isinstance(fitted, str) else fitted
    section: Any = {} if run is None else run.header.get("recipe", {}).get("model", {})
    revision = None
    if name is None:
        name, revision = section.get("name", fitted.get("model")), section.get("revision", fitted.get("revision"))
    backend = fitted.get("backend", TRANSFORMERS)
    if backend not in BACKENDS:
        if not force:
            raise CascadeError(
                f"the states that this cascade was fitted on were imported from {backend!r}, which does not run here, "
                "and with them came token ids, but neither the model nor a transcript: to look at them through the "
                "same weights in transformers, give --model and --force."
            )
        backend = TRANSFORMERS
    if name is None:
        raise UsageError("neither the run nor the cascade names its model: give --model.")
    found = load(
        name,
        revision=revision,
        dtype=fitted.get("dtype", "float32"),
        device=device,
        backend=backend,
    )
    for key, value in fitted.items():
        if not force and found.identity.get(key) != value:
            raise CascadeError(
                f"the cascade was fitted with model.{key} {value!r}, but {name!r} has {found.identity.get(key)!r}: "
                "give --model, or --force if the weights are truly the same."
            )
    return found


def _explain(
    cascade: Cascade,
    gate: Gate,
    run: Run | None,
    model: str | None,
    *,
    device: str,
    force: bool,
    top: int,
    seed: int,
    as_json: bool,
) -> None:
    from probecascade.cli.tables import print_json
    from probecascade.evaluation.directions import probe_direction, single_direction

    if run is None and single_direction(gate.probe) is None:
        raise UsageError(
            f"{without_direction(gate)}: give --run, over whose states its gradient is averaged instead, or a gate "
            f"or a cascade with a probe that has one ({WITH_DIRECTION})."
        )
    states = None if run is None else _states(run, gate)
    direction = probe_direction(gate.probe, states)
    loaded = load_model(cascade, run, model, device=device, force=force)
    strength = None if run is None else _strength(run, gate)
    record: dict[str, Any] = {
        "gate": gate.checkpoint,
        "layer": gate.layer,
        "probe": gate.record()["probe"],
        "direction": {
            "linear": direction.linear,
            "slope": direction.slope,
            "agreement": direction.agreement,
            "episodes": direction.episodes,
        },
        "strength": strength,
        "lens": _lenses(gate, direction, states, strength, loaded, top, seed),
        "cosines": [] if run is None or strength is None else _cosines(run, gate, strength, seed),
    }
    if as_json:
        return print_json(record)
    from probecascade.cli.explain_text import explain_text

    typer.echo(explain_text(record))


def _states(run: Run, gate: Gate) -> NDArray[np.float32]:
    """What the gate's probe reads of labelled episodes, (n, width); at most `_STATES`, spread over the run."""
    import numpy as np

    from probecascade.evaluation.directions import labelled_rows
    from probecascade.policies.taps import stored_states

    states = stored_states(run, gate.checkpoint, gate.taps)
    use = np.flatnonzero(labelled_rows(run, gate.checkpoint) & np.isfinite(states).all(axis=1))
    chosen = use[np.linspace(0, len(use) - 1, min(len(use), _STATES)).astype(int)]
    return np.asarray(states[chosen])


def _lenses(
    gate: Gate,
    direction: Direction,
    states: NDArray[np.float32] | None,
    strength: float | None,
    loaded: LoadedModel,
    top: int,
    seed: int,
) -> list[dict[str, Any]]:
    """One reading for each tap of the gate: a step of one standard deviation, or of one unit of log-odds."""
    import dataclasses

    import numpy as np

    from probecascade.evaluation.directions import random_directions, uncalibrated
    from probecascade.models.hooks import text_config
    from probecascade.models.unembed import lens_layers, read_direction

    n_layers = int(text_config(loaded.model).num_hidden_layers)
    width = len(direction.vector) // len(gate.taps)
    fitted: Any = uncalibrated(gate.probe)
    if states is None and not hasattr(fitted, "mean"):
        raise UsageError(f"the probe at {gate.checkpoint} holds no mean state to read the norm at: give --run.")
    found = []
    for i, (name, layer) in enumerate(gate.taps):
        block = slice(i * width, (i + 1) * width)
        vector = direction.vector[block]
        own = None if states is None else states[:, block]
        references = fitted.mean[None, block] if own is None else own
        spread = 1 / direction.slope if own is None else float((own @ vector).std())
        length = spread * float(np.linalg.norm(vector))
        if own is None or strength is None:
            kind, random = "in any direction", random_directions(width, _RANDOM, seed)
        else:
            kind = "such as a logistic probe has whose labels say nothing"
            random = random_directions(width, _RANDOM, seed, own, strength)
        lens = read_direction(
            loaded.model,
            loaded.tokenizer,
            spread * vector,
            references,
            length * random,
            top=top,
        )
        unit = "one unit of log-odds" if own is None else "one standard deviation of the states along it"
        found.append(
            {"checkpoint": name, "layer": layer, "reading": lens_layers(layer, n_layers), "step": unit}
            | {"step_length": length, "random_directions": kind, **dataclasses.asdict(lens)}
        )
    return found


def _own_tap(gate: Gate) -> Tap:
    return next(tap for tap in gate.taps if tap == (gate.checkpoint, gate.layer))


def _strength(run: Run, gate: Gate) -> float | None:
    """The C at which probes are compared; None where the run holds too few of a class at the gate for a fit."""
    from probecascade.evaluation.directions import choose_strength, neighbours

    own = _own_tap(gate)
    return choose_strength(run, own) if neighbours(run, own) else None


def _cosines(run: Run, gate: Gate, strength: float, seed: int) -> list[dict[str, Any]]:
    """Logistic probes at the gate's own tap and its neighbours, compared."""
    import dataclasses

    from probecascade.cli.progress import progress
    from probecascade.evaluation.directions import cosines, neighbours

    pairs = neighbours(run, _own_tap(gate))
    compared = progress(cosines(run, pairs, strength, seed=seed), len(pairs), "pairs")
    return [dataclasses.asdict(cosine) for cosine in compared]
