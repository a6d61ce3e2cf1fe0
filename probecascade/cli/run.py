"""`probecascade run`: the agent at work with a cascade attached, beside its twins without one."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probecascade.cli.options import changed
from probecascade.cli.recipes import ExtractRecipe, read_extract
from probecascade.errors import NothingToDoError, StoreError, UsageError

if TYPE_CHECKING:
    from probecascade.cli.session import Session
    from probecascade.cli.tasks import TaskSet
    from probecascade.episode import Decision, Episode, Task
    from probecascade.evaluation import PolicyOutcome
    from probecascade.interfaces import StoppingPolicy
    from probecascade.policies import Cascade, Coin, FailOpen
    from probecascade.store import RunWriter

_TASKS = ("test", "calibrate", "fit", "fresh", "all")
INTERRUPTED = 130


def run(
    recipe: Annotated[Path, typer.Argument(help="The recipe of the agent and its tasks.")],
    cascade: Annotated[Path, typer.Option(help="A cascade that `probecascade fit` made.")],
    tasks: Annotated[
        str,
        typer.Option(help="test, calibrate, fit: by the cascade's split; fresh: groups beyond the recipe's; all."),
    ] = "test",
    on_abort: Annotated[str, typer.Option(help="What an abort does: stop.")] = "stop",
    shadow: Annotated[bool, typer.Option("--shadow", help="Score every episode and abort none.")] = False,
    explore: Annotated[
        str | None,
        typer.Option(
            help="Let the aborts of this share of the tasks pass, at random, so that outcomes stay known: 0.05."
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Take the first so many of these tasks.")] = None,
    twins: Annotated[
        bool, typer.Option("--twins/--no-twins", help="Also run each task without aborts, to compare.")
    ] = True,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Store the live episodes as a run here.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Accept a cascade of another model.")] = False,
    fail_closed: Annotated[
        bool,
        typer.Option("--fail-closed", help="End an episode as an error when a probe fails; default: go on."),
    ] = False,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1 ...")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the sampling instead of the recipe's.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int | None:
    """Run the agent live with a cascade, and again without it, and compare.

    Both runs get the same tasks and seeds. A twin that diverges before an abort (bfloat16 may) is counted
    and left out. `fresh` without --limit takes as many tasks as the test split of the recipe's would hold.
    An aborted episode has no outcome: --explore keeps a random sample whole, for `recalibrate`.

    Examples:

      probecascade run extract/quickstart.toml --cascade cascades/atlas-keep --tasks test

      probecascade run extract/quickstart.toml --cascade cascades/atlas --tasks fresh --limit 50

      probecascade run extract/quickstart.toml --cascade cascades/atlas --shadow --json

      probecascade run extract/quickstart.toml --cascade cascades/atlas --tasks fresh --explore 0.05 -o runs/live
    """
    if tasks not in _TASKS:
        raise UsageError(f"--tasks is {tasks!r}: give one of {', '.join(_TASKS)}.")
    if on_abort != "stop":
        raise UsageError(f"--on-abort is {on_abort!r}: give stop.")
    if shadow and explore is not None:
        raise UsageError("--shadow lets every abort pass already: give --explore without it.")
    chosen = changed(read_extract(recipe), "agent", seed=seed)
    chosen = changed(chosen, "model", device=device)
    if output is not None and output.exists():
        raise StoreError(f"{str(output)!r} exists already: choose another folder.")

    from probecascade.cli.tasks import task_set
    from probecascade.policies import Cascade, Coin

    coin = None if explore is None else Coin.of(explore, chosen.agent.seed)
    loaded, every = Cascade.load(cascade), task_set(chosen)
    picked = pick_tasks(loaded, every, tasks, limit)
    plan = _Plan(loaded, cascade.name, picked, shadow, twins and not shadow, fail_closed, output, force, coin)
    try:
        live, others, faults = _run(chosen, every, plan)
    except KeyboardInterrupt:
        stored = f"; the episodes so far are in {output}" if output is not None and output.exists() else ""
        typer.echo(f"probecascade: stopped before the end{stored}.", err=True)
        return INTERRUPTED
    seen = len(loaded.overlap(task.group for task in picked))
    _report(plan, live, others, faults, seen, tasks, as_json)
    return None


@dataclass(frozen=True, slots=True)
class _Plan:
    cascade: Cascade
    name: str
    tasks: tuple[Task, ...]
    shadow: bool
    twins: bool
    fail_closed: bool
    output: Path | None
    force: bool
    coin: Coin | None


def pick_tasks(cascade: Cascade, every: TaskSet, which: str, limit: int | None) -> tuple[Task, ...]:
    """The tasks to run: a split of the recipe's by the cascade's own seed and shares, or fresh ones.

    Fresh tasks are of groups beyond the recipe's of which the cascade has seen none. UsageError for a
    cascade that records no split, NothingToDoError where no task is left.
    """
    from probecascade.cli.tasks import check_limit

    check_limit(limit)
    split = cascade.provenance.get("split")
    if which in ("test", "calibrate", "fit"):
        if not split:
            raise UsageError("the cascade records no split, so its test tasks are unknown: give --tasks fresh.")
        names = cascade.split_of([task.group for task in every.tasks])
        found = [task for task, name in zip(every.tasks, names, strict=True) if name == which]
    elif which == "fresh":
        share = split["shares"][2] if split else 25
        wanted = max(1, len(every.tasks) * share // 100) if limit is None else limit
        unseen = (task for task in every.fresh() if not cascade.overlap([task.group]))
        found = list(itertools.islice(unseen, wanted))
    else:
        found = list(every.tasks)
    if not found[:limit]:
        raise NothingToDoError(f"no episodes to run: there is no {which} task; choose other --tasks or --limit.")
    return tuple(found[:limit])


def _run(recipe: ExtractRecipe, every: TaskSet, plan: _Plan) -> tuple[list[Episode], list[Episode], int]:
    """Live episodes, their twins, and how often the policy failed."""
    from probecascade.cli.progress import progress
    from probecascade.cli.session import open_session, play
    from probecascade.policies import Explore, FailOpen, Shadow

    session = open_session(
        recipe, layers=_layers(recipe, plan), tasks=every, episodes=every.episodes(plan.tasks, recipe)
    )
    plan.cascade.check_fits(session.header, force=plan.force)
    guarded: FailOpen = FailOpen(plan.cascade, "raise" if plan.fail_closed else "continue")
    policy: StoppingPolicy = Shadow(guarded) if plan.shadow else guarded
    if plan.coin is not None:
        policy = Explore(policy, plan.coin.share, plan.coin.seed)
    episodes = list(session.episodes(plan.tasks))
    live: list[Episode] = []
    others: list[Episode] = []
    total = len(episodes) * (1 + plan.twins)

    def recordings() -> Iterator[None]:
        with _writer(session, plan) as writer:
            for recording in play(session, episodes, policy):
                live.append(recording.episode)
                if writer is not None:
                    writer.add(recording)
                yield
        if plan.twins:
            for recording in play(session, episodes):
                others.append(recording.episode)
                yield

    for _ in progress(recordings(), total, "run"):
        pass
    return live, others, guarded.faults


def _layers(recipe: ExtractRecipe, plan: _Plan) -> Sequence[int] | None:
    """Those that the cascade reads; where the episodes are stored, the recipe's too (None: all of them)."""
    from probecascade.store.schema import resolve_layers

    own = tuple(plan.cascade.layers)
    if plan.output is None:
        return own
    if recipe.capture.layers == "all":
        return None
    n_layers = plan.cascade.provenance.get("run", {}).get("n_layers")
    return tuple(sorted({*own, *resolve_layers(recipe.capture.layers, n_layers)}))


@contextlib.contextmanager
def _writer(session: Session, plan: _Plan) -> Iterator[RunWriter | None]:
    from probecascade.cli.session import run_writer

    if plan.output is None:
        yield None
        return
    coin = None if plan.coin is None else plan.coin.record()
    policy = {"cascade": plan.name, "shadow": plan.shadow, "explore": coin}
    with run_writer(session, plan.output, policy=policy) as writer:
        yield writer


def compare(plan_name: str, live: Sequence[Episode], twins: Sequence[Episode], shadow: bool) -> list[PolicyOutcome]:
    """Rows for no abort and for the cascade. In shadow the episodes are their own twins."""
    from probecascade.evaluation import compare_twins, read_off

    if shadow:
        wanted = [_would_abort(episode.decision) for episode in live]
        return [read_off("no abort", [None] * len(live), live), read_off(plan_name, wanted, live)]
    return [read_off("no abort", [None] * len(twins), twins), compare_twins(plan_name, live, twins)]


def _would_abort(decision: Decision | None) -> Decision | None:
    return None if decision is None else dataclasses.replace(decision, action="abort")


def explored(coin: Coin, live: Sequence[Episode]) -> dict[str, Any]:
    """Episodes that the coin chose, and how the would-be aborts among them ended."""
    chosen = [episode for episode in live if coin.explores(episode.task_id)]
    passed = [episode for episode in chosen if episode.decision is not None]
    return {
        **coin.record(),
        "episodes": len(chosen),
        "let_through": len(passed),
        "failed": sum(episode.failed for episode in passed),
        "succeeded": sum(episode.outcome == "success" for episode in passed),
        "unlabelled": sum(not episode.labelled for episode in passed),
    }


def watch(cascade: Cascade, coin: Coin, live: Sequence[Episode]) -> list[dict[str, Any]]:
    """What the monitors say of the cascade's targets after these episodes: keep, and catch by its last gate.

    Of a doomed episode that an earlier target missed and a later gate aborted only the explored ones are seen, so that
    targets at earlier gates cannot be watched like this.
    """
    from probecascade.thresholds import CatchMonitor, KeepMonitor

    targets, share = cascade.calibration.get("targets", {}), float(coin.share)
    last = cascade.gates[-1].checkpoint
    promised = {
        (c["kind"], c["gate"]) for c in cascade.calibration.get("certificates", ()) if c["certified"]
    }  # fmt: skip
    found: list[tuple[str, str | None, str, KeepMonitor | CatchMonitor, int, float]] = []
    if targets.get("keep"):
        keep = KeepMonitor(targets["keep"], share)
        successes = [episode for episode in live if episode.outcome == "success"]
        for episode in successes:
            keep.update(episode.decision is not None)
        found.append(("keep", None, targets["keep"], keep, len(successes), keep.kept))
    if last in targets.get("catch", {}):
        catch = CatchMonitor(targets["catch"][last], share)
        doomed = [episode for episode in live if episode.labelled and episode.failed]
        for episode in doomed:
            catch.update(episode.decision is not None)
        found.append(("catch", last, targets["catch"][last], catch, len(doomed), catch.caught))
    return [
        {
            "kind": kind,
            "gate": gate,
            "target": target,
            "promised": (kind, gate) in promised,
            "observed": n,
            "share": rate,
            "alarm": monitor.alarm,
        }
        for kind, gate, target, monitor, n, rate in found
    ]


def _watch_text(seen: Mapping[str, Any], coin: Coin) -> str:
    from probecascade.thresholds import parse_target, percent
    from probecascade.thresholds.promise import counted

    what = f"{seen['kind']} {percent(parse_target(seen['target']))}" + (f" by {seen['gate']}" if seen["gate"] else "")
    name = "promise" if seen["promised"] else "target"
    aim = "" if seen["promised"] else " (aimed at; nothing was promised)"
    whose, done = ("success", "kept") if seen["kind"] == "keep" else ("failure", "caught")
    verdict = "IN DOUBT, recalibrate" if seen["alarm"] else "not in doubt"
    share = (
        f"; an estimated {100 * seen['share']:.1f} % {done} so far (each one that exploration let through stands for "
        f"{float(1 / coin.share):.4g}, since the others like it were aborted unseen)"
        if seen["observed"]
        else ""
    )
    return (
        f"{name} of {what}{aim}: {verdict} after {counted(seen['observed'], whose)} seen to the end{share}. "
        f"Were the {name} always met, a false alarm would come with a chance of at most 5 %, however long one watches."
    )


def _report(
    plan: _Plan,
    live: list[Episode],
    twins: list[Episode],
    faults: int,
    seen: int,
    which: str,
    as_json: bool,
) -> None:
    from probecascade.cli.tables import outcome_record, outcome_table, print_json, say
    from probecascade.thresholds.promise import counted

    outcomes = dict(sorted(Counter(episode.outcome for episode in live).items()))
    stopped = (e for e in live if plan.shadow or e.outcome == "aborted")
    gates = Counter(e.decision.gate for e in stopped if e.decision is not None)
    compared = plan.twins or plan.shadow
    rows = compare(plan.name, live, twins, plan.shadow) if compared else []
    record: dict[str, Any] = {
        "cascade": plan.name,
        "tasks": which,
        "shadow": plan.shadow,
        "episodes": len(live),
        "outcomes": outcomes,
        "aborts_by_gate": {g.checkpoint: gates[g.checkpoint] for g in plan.cascade.gates},
        "explored": None if plan.coin is None else explored(plan.coin, live),
        "watch": [] if plan.coin is None else watch(plan.cascade, plan.coin, live),
        "faults": faults,
        "groups_seen_by_the_cascade": seen,
        "policies": [outcome_record(row) for row in rows],
    }
    if as_json:
        return print_json(record)
    ended = ", ".join(f"{count} {name}" for name, count in outcomes.items())
    typer.echo(f"{counted(len(live), f'{which} episode')}{' in shadow' if plan.shadow else ''}: {ended}")
    say(f"{'would have aborted' if plan.shadow else 'aborted'}: {_aborts_text(plan.cascade, gates)}")
    if plan.coin is not None:
        say(_explored_text(record["explored"]))
        for seen_so_far in record["watch"]:
            say(_watch_text(seen_so_far, plan.coin))
    if faults:
        typer.echo(f"the cascade failed {counted(faults, 'time')} and was passed over there")
    if seen:
        typer.echo(f"{counted(seen, 'group')} of these shaped the cascade, so its numbers on them flatter it")
    if rows:
        typer.echo("")
        typer.echo(outcome_table(rows))
        typer.echo("shares with 95 % intervals over groups; caught and kept are counted by the twins without aborts")
        if rows[-1].diverged or rows[-1].unlabelled:
            typer.echo(
                f"left out: {counted(rows[-1].diverged, 'pair')} that diverged before the decision, "
                f"{rows[-1].unlabelled} without a label"
            )
    if plan.output is not None:
        typer.echo(f"the live episodes are in {plan.output}")


def _aborts_text(cascade: Cascade, aborts: Mapping[str, int]) -> str:
    """How many each gate aborted, those that cannot fire apart."""
    never = [gate.checkpoint for gate in cascade.gates if gate.never]
    parts = [f"{aborts[gate.checkpoint]} at {gate.checkpoint}" for gate in cascade.gates if not gate.never]
    return ", ".join(parts or ["none"]) + (f" (never firing: {', '.join(never)})" if never else "")


def _explored_text(found: Mapping[str, Any]) -> str:
    from probecascade.thresholds.promise import counted

    unlabelled = f", {found['unlabelled']} have no label" if found["unlabelled"] else ""
    return (
        f"explored: {counted(found['episodes'], 'episode')}, chosen at random; "
        f"{counted(found['let_through'], 'would-be abort')} let through, "
        f"of which {found['failed']} failed and {found['succeeded']} succeeded{unlabelled}"
    )
