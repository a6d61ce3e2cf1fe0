"""`probecascade steer`: does a probe's direction cause failure? The agent plays with it added, or held still."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from probecascade.cli.options import changed
from probecascade.cli.recipes import ExtractRecipe, read_extract
from probecascade.errors import DataError, UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from probecascade.cli.session import Session
    from probecascade.cli.tasks import TaskSet
    from probecascade.episode import Episode, Task
    from probecascade.evaluation.steering import Condition, SteeringEffect
    from probecascade.models.steer import SteeredEngine, Trials
    from probecascade.policies import Cascade, Gate

_MODES = ("add", "remove")
_TASKS = ("test", "calibrate", "fit", "fresh", "all")
NONE = "no change"
_FEW = 20  # groups below which a bootstrap over groups is too narrow


def steer(
    recipe: Annotated[Path, typer.Argument(help="The recipe of the agent and its tasks.")],
    cascade: Annotated[Path, typer.Option(help="The cascade whose probe's direction is tried.")],
    gate: Annotated[str | None, typer.Option(help="The gate whose probe it is; default: the first on states.")] = None,
    mode: Annotated[
        str, typer.Option(help="add: push along the direction; remove: hold the coordinate along it.")
    ] = "add",
    strength: Annotated[
        str | None,
        typer.Option(
            help="With add: how far to push, in standard deviations of the states; each is tried both ways. Default 10."
        ),
    ] = None,
    controls: Annotated[int, typer.Option(min=0, help="Random directions of equal norm to try beside it.")] = 3,
    tasks: Annotated[
        str,
        typer.Option(help="test, calibrate, fit: by the cascade's split; fresh: groups beyond the recipe's; all."),
    ] = "test",
    limit: Annotated[int | None, typer.Option(help="Take the first so many of these tasks.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Accept a cascade of another model.")] = False,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1 ...")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of sampling and random directions instead of the recipe's.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Change the hidden states along a probe's direction while the agent plays, and see whether success changes.

    Every task is played unchanged, then with each change, with the same seed. `add` pushes the states of the gate's
    layer towards failure (+) and away from it (−); `remove` holds their coordinate along the direction at its mean.
    Only what the agent generates and observes is changed, never the prompt. Random directions of equal norm show what
    any change of that size does, and the share of turns that hold no action shows whether the text broke.

    One condition costs as much as `run --no-twins` does; there are 1 + strengths x (2 + controls) of them with `add`,
    and 2 + controls with `remove`.

    Examples:

      probecascade steer extract/quickstart.toml --cascade cascades/atlas --gate action:2 --strength 10,30

      probecascade steer extract/quickstart.toml --cascade cascades/atlas --mode remove --tasks fresh --limit 100
    """
    from probecascade.cli.explain import WITH_DIRECTION, pick_gate, without_direction
    from probecascade.cli.run import pick_tasks
    from probecascade.cli.tasks import task_set
    from probecascade.evaluation.directions import single_direction
    from probecascade.policies import Cascade

    if seed is not None and seed < 0:
        raise UsageError(f"--seed is {seed}: give a whole number, 0 or more.")
    if mode not in _MODES:
        raise UsageError(f"--mode is {mode!r}: give add or remove.")
    if tasks not in _TASKS:
        raise UsageError(f"--tasks is {tasks!r}: give one of {', '.join(_TASKS)}.")
    if strength is not None and mode == "remove":
        raise UsageError("--strength says how far `add` pushes, and --mode is 'remove': leave one of them out.")
    strengths = _strengths(strength or "10") if mode == "add" else ()
    chosen = changed(read_extract(recipe), "agent", seed=seed)
    chosen = changed(chosen, "model", device=device)
    loaded, every = Cascade.load(cascade), task_set(chosen)
    picked = pick_gate(loaded, gate)
    _check_gate(picked)
    direction = single_direction(picked.probe)
    if direction is None:
        raise UsageError(
            f"{without_direction(picked)}, so that there is nothing to steer along: give a gate or a cascade "
            f"with a probe that has one ({WITH_DIRECTION})."
        )
    plan = _Plan(loaded, picked, direction.vector, strengths, controls, force)
    played = _play(chosen, every, pick_tasks(loaded, every, tasks, limit), plan)
    _report(plan, mode, tasks, played, as_json)


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """`direction`: (d_model,), of unit length. `strengths`: none to hold the coordinate instead of pushing."""

    cascade: Cascade
    gate: Gate
    direction: NDArray[np.float64]
    strengths: tuple[float, ...]
    controls: int
    force: bool

    @property
    def layer(self) -> int:
        assert self.gate.layer is not None
        return self.gate.layer


def _strengths(text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(0 < x < float("inf") for x in found) or len(set(found)) < len(found):
        raise UsageError(f"--strength is {text!r}: give distinct numbers above 0 separated by commas, such as 2,8.")
    return found


def _check_gate(gate: Gate) -> None:
    if gate.layer is None:
        raise UsageError(f"the probe at {gate.checkpoint} reads no states: choose a gate that reads one layer.")
    if len(gate.taps) > 1:
        raise UsageError(
            f"the probe at {gate.checkpoint} reads {len(gate.taps)} taps, and a direction can be added at one layer "
            "only: choose a gate that reads one."
        )


@dataclass(eq=False)
class _Played:
    """Episodes by condition, the unchanged states that the gate's probe reads, and the trials they led to."""

    episodes: dict[str, list[Episode]]
    states: list[NDArray[np.float32]]
    trials: Trials | None = None


def _play(recipe: ExtractRecipe, every: TaskSet, tasks: Sequence[Task], plan: _Plan) -> _Played:
    """All conditions one after the other."""
    from probecascade.cli.progress import progress

    session, engine = _session(recipe, every, plan.layer)
    plan.cascade.check_fits(session.header, force=plan.force)
    played = _Played({}, [])
    total = len(list(session.episodes(tasks))) * count_conditions(plan.strengths, plan.controls)
    for _ in progress(_everything(session, engine, tasks, plan, played), total, "steer"):
        pass
    return played


def count_conditions(strengths: Sequence[float], controls: int) -> int:
    """Runs of all tasks, the unchanged one included; without strengths the coordinate is held."""
    return 1 + (len(strengths) * (2 + controls) if strengths else 1 + controls)


def _everything(
    session: Session, engine: SteeredEngine, tasks: Sequence[Task], plan: _Plan, played: _Played
) -> Iterator[None]:
    """Play and note every episode. The unchanged twins come first, since they say how far the states spread."""
    from probecascade.cli.session import play
    from probecascade.models.steer import make_trials

    for recording in play(session, session.episodes(tasks)):
        played.episodes.setdefault(NONE, []).append(recording.episode)
        places = [i for i, point in enumerate(recording.episode.checkpoints) if point.name == plan.gate.checkpoint]
        played.states += [recording.hidden[i, 0] for i in places]
        yield
    if len(played.states) < 2:
        raise DataError(
            f"{len(played.states)} of the unchanged episodes come to {plan.gate.checkpoint}, and the spread of their "
            "states sets the size of a push: take more tasks or another gate."
        )
    played.trials = make_trials(
        plan.direction,
        played.states,
        plan.strengths,
        controls=plan.controls,
        seed=session.recipe.agent.seed,
        dtype=engine.model.dtype,
    )
    for name, change in played.trials.changes.items():
        with engine.steer(plan.layer, change):
            for recording in play(session, session.episodes(tasks)):
                played.episodes.setdefault(name, []).append(recording.episode)
                yield


def _session(recipe: ExtractRecipe, every: TaskSet, layer: int) -> tuple[Session, SteeredEngine]:
    """A session whose engine can be steered and keeps this layer."""
    from probecascade.agents.react import ReActAgent
    from probecascade.cli.session import open_session
    from probecascade.models.steer import SteeredEngine

    # Its own engine only lends the model, so one slot of memory is enough for it.
    lender = open_session(changed(recipe, "agent", slots=1), layers=(layer,), tasks=every)
    engine = SteeredEngine(
        lender.engine.model,
        lender.engine.tokenizer,
        layers=(layer,),
        slots=recipe.agent.slots,
        capacity=lender.engine.capacity,
    )
    agents = {
        key: ReActAgent(engine, agent.template, agent.settings, tuple(agent.end_ids))
        for key, agent in lender.agents.items()
    }
    return dataclasses.replace(lender, recipe=recipe, engine=engine, agents=agents), engine


def _report(plan: _Plan, mode: str, which: str, played: _Played, as_json: bool) -> None:
    from probecascade.cli.tables import interval_record, print_json
    from probecascade.evaluation.steering import condition, effect_record, steering_effect

    trials = played.trials
    assert trials is not None
    conditions = [condition(name, episodes) for name, episodes in played.episodes.items()]
    effects = [
        steering_effect(name, played.episodes[NONE], played.episodes[name], [played.episodes[c] for c in controls])
        for name, controls in trials.controls.items()
    ]
    if not as_json:
        typer.echo(_text(plan, trials, conditions, effects))
        return
    print_json(
        {
            "gate": plan.gate.checkpoint,
            "layer": plan.layer,
            "mode": mode,
            "tasks": which,
            "episodes": len(played.episodes[NONE]),
            "sigma": trials.spread,
            "state_norm": trials.norm,
            "conditions": [
                {"name": c.name, "errors": c.errors}
                | {key: interval_record(getattr(c, key)) for key in ("success", "tokens", "unparsable")}
                for c in conditions
            ],
            "effects": [effect_record(effect) for effect in effects],
        }
    )


def _text(plan: _Plan, trials: Trials, conditions: Sequence[Condition], effects: Sequence[SteeringEffect]) -> str:
    from probecascade.cli.tables import folded, share_text, wrapped

    rows = [[c.name, share_text(c.success), f"{c.tokens.value:.1f}", share_text(c.unparsable)] for c in conditions]
    lines = [
        f"the direction of the probe at {plan.gate.checkpoint}, at layer {plan.layer}: σ = {trials.spread:.3g} along "
        f"it, where a state is {trials.norm:.3g} long",
        folded(["condition", "success", "tokens per episode", "turns without an action"], rows),
        "",
        *(effect.verdict for effect in effects),
        "changes are paired with the unchanged twin of the same task and seed; 95 % intervals over groups",
    ]
    for effect in effects:
        if effect.controls:
            single = ", ".join(f"{100 * change:+.1f}" for change in effect.each_control)
            lines.append(f"{effect.name}: success under each random direction {single} points")
    still = ", ".join(f"{100 * effect.untouched:.0f} % under {effect.name}" for effect in effects)
    lines.append(f"episodes that stayed as they were, token for token: {still}")
    if min(effect.direction["success"].groups for effect in effects) < _FEW:
        lines.append(f"fewer than {_FEW} groups were played: these intervals are too narrow")
    errors = sum(c.errors for c in conditions)
    if errors:
        lines.append(f"left out: {errors} episodes that ended as errors")
    # All but the table, which has its own width.
    return "\n".join(line if "\n" in line else wrapped(line, indent="  ") for line in lines)
