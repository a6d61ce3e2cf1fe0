"""`probecascade fit`: probes and thresholds from a stored run. Needs neither torch nor the model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probecascade.cli.fit_extras import Extras
from probecascade.cli.fit_probe import ProbeOptions
from probecascade.cli.fit_text import HeldOut, fit_record, tell_fit
from probecascade.cli.options import parse_layers, parse_shares, split_names
from probecascade.cli.recipes import CalibrateRecipe, read_calibrate
from probecascade.errors import CascadeError, DataError, NothingToDoError, UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from probecascade.policies import Cascade, FitResult, GateTable, ProbeSettings
    from probecascade.probes import Interval
    from probecascade.store import Run

NOT_REACHED = 3  # exit code of --strict


def fit(
    run: Annotated[Path, typer.Argument(help="A run that `probecascade extract` made.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the cascade.")],
    recall: Annotated[
        str | None,
        typer.Option(help="Shares of the doomed episodes to catch up to each gate, rising: 0.9,0.95,0.99."),
    ] = None,
    keep: Annotated[
        str | None, typer.Option(help="Share of the would-be successes that no gate may abort: 0.95.")
    ] = None,
    gates: Annotated[
        str | None, typer.Option(help="Checkpoints to gate at, in order: observation:1,action:2,part:1; or auto.")
    ] = None,
    max_gates: Annotated[
        int | None, typer.Option(help="With --gates auto and --keep: how many at most; default 3.")
    ] = None,
    gate_answers: Annotated[
        bool, typer.Option("--gate-answers", help="Also gate the turn that finishes an episode.")
    ] = False,
    layers: Annotated[
        str | None, typer.Option(help="Layers to choose from by cross-validation; default: all stored ones.")
    ] = None,
    uses: Annotated[
        str, typer.Option(help="What the probes read: states, or signals (the surface baseline).")
    ] = "states",
    probe: Annotated[
        str | None,
        typer.Option(
            help="Kind of probe: logistic (default), elastic-net, mass-mean, mass-mean-whitened, lda, mlp, "
            "sequence-mean or sequence-attention (which look back over earlier checkpoints of the gate's kind)."
        ),
    ] = None,
    calibrated: Annotated[
        str | None, typer.Option(help="Calibrate the probes' scores on held-out groups: platt or isotonic.")
    ] = None,
    class_weight: Annotated[
        str | None, typer.Option(help="balanced: failures and successes weigh the same, however many there are.")
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option(help="What is done to states first, in order: standardise, centre, layernorm, pca:64, ..."),
    ] = None,
    last_layers: Annotated[
        str | None, typer.Option(help="Read the last so many layers instead of one: 3 (side by side), or 3:average.")
    ] = None,
    fuse: Annotated[
        str | None, typer.Option(help="What the probes read besides: signals,text,checks, or some of them.")
    ] = None,
    fusion: Annotated[
        str | None,
        typer.Option(help="How: early (default), all in one regression; or late, one probe for each and one on top."),
    ] = None,
    survivors: Annotated[
        bool, typer.Option("--survivors", help="Fit each gate's probe on the episodes that earlier gates let through.")
    ] = False,
    method: Annotated[
        str | None,
        typer.Option(help="How thresholds are set: certified (default), empirical, paper, uniform, single, maxrank."),
    ] = None,
    confidence: Annotated[float | None, typer.Option(help="Confidence of each promise; default 0.95.")] = None,
    unit: Annotated[
        str | None, typer.Option(help="What the promise counts: episode (default), or group, each once.")
    ] = None,
    largest_group: Annotated[
        int | None,
        typer.Option(help="Most episodes that a group can hold, known beforehand: for promises per episode of groups."),
    ] = None,
    billing: Annotated[
        str | None, typer.Option(help="What gates are weighed by: tokens (default), or api: the prompt at every call.")
    ] = None,
    trigger: Annotated[
        str | None,
        typer.Option(help="Look only at this share of each gate's moments: entropy_mean:0.5, logprob_min:0.5."),
    ] = None,
    modes: Annotated[
        str | None,
        typer.Option(help="Aborts say how the episode likely fails: rules, or a file (see `probecascade modes`)."),
    ] = None,
    allow_new: Annotated[
        bool, typer.Option("--allow-new", help="Let the file of --modes bring modes of its own names.")
    ] = False,
    recipe: Annotated[
        Path | None, typer.Option(help="A recipe of calibrate/; options given here go before its values.")
    ] = None,
    split_seed: Annotated[int | None, typer.Option(help="Seed of the split of groups; default: the run's.")] = None,
    shares: Annotated[
        str | None, typer.Option(help="Per cent of groups to fit, calibrate and test; default 50,25,25.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the cross-validation's folds.")] = 0,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Exit with 3 unless all targets are certified (reached, if nothing is promised)."
        ),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a cascade in that folder.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int | None:
    """Fit a probe per gate and set the thresholds, by --recall, by --keep or by both.

    Groups are split into fit (probes), calibrate (thresholds) and test (the held-out numbers). The certified
    method promises the targets of new episodes, or says how many more episodes that would take. Without --gates
    the run's recipe names them; --keep alone takes every action:r and part:p that enough episodes reach. High
    recalls cost successes, often most of them: see "kept so far".

    Examples:

      probecascade fit runs/atlas --keep 0.95 -o cascades/atlas-keep

      probecascade fit runs/atlas --recall 0.9,0.95,0.99 -o cascades/atlas

      probecascade fit runs/atlas --recall 0.5,0.7 --keep 0.9 --gates auto -o cascades/both

      probecascade fit runs/atlas --keep 0.95 --uses signals -o cascades/surface

      probecascade fit runs/atlas --keep 0.95 --fuse signals,text --survivors -o cascades/fused

      probecascade fit runs/atlas --keep 0.95 --probe sequence-mean --steps pca:64 -o cascades/looking-back

      probecascade fit runs/atlas --keep 0.95 --trigger entropy_mean:0.5 --modes rules -o cascades/in-doubt
    """
    from probecascade.store import Run

    given = read_calibrate(recipe) if recipe else None
    kinds = ProbeOptions(probe, calibrated, class_weight, steps, last_layers, fuse, fusion)
    settings = _settings(given, recall, keep, gates, gate_answers, layers, uses, kinds, survivors)
    if given:
        own = _set(method=given.targets.method, confidence=given.targets.confidence, unit=given.targets.unit)
        settings = replace(settings, **own, max_gates=given.gates.max_gates)
    settings = replace(
        settings,
        **_set(
            method=method,
            confidence=confidence,
            unit=unit,
            largest_group=largest_group,
            max_gates=max_gates,
            billing=billing,
        ),
    )
    if output.exists() and not overwrite:
        raise CascadeError(f"{str(output)!r} exists already: choose another folder, or add --overwrite.")
    stored = Run.open(run)
    extras = Extras.of(stored, trigger, modes, allow_new, given)
    result = extras.add_to(_fit(stored, settings, split_seed, parse_shares(shares), seed), stored, seed)
    held_out, notes = judge_held_out(result.cascade, stored, result.scored)
    cascade = result.cascade.with_held_out(held_out.record if held_out else {})
    cascade.save(output, overwrite=overwrite)
    record = fit_record(output, stored, result, cascade, notes) | {"choice": _choice(stored, settings, result)}
    if as_json:
        from probecascade.cli.tables import print_json

        print_json(record)
    else:
        tell_fit(record, result, held_out, run)
    calibration = result.calibration
    fulfilled = calibration.certified if calibration.certificates else result.reached
    if not strict or fulfilled:
        return None
    typer.echo(f"probecascade: --strict: {_unfulfilled(result)}; the cascade is in {output}.", err=True)
    return NOT_REACHED


def _choice(run: Run, settings: _Settings, result: FitResult) -> str | None:
    """How the gates were chosen, in words; None where they were named."""
    from probecascade.policies.gates import choice_of_gates

    names = [row.gate.checkpoint for row in result.table]
    if settings.gates == ("auto",):
        return f"gates: {', '.join(names)} (by --gates auto: those that serve the targets at least loss)"
    if settings.gates is not None:
        return None
    return choice_of_gates(run, names, targets=len(result.calibration.targets.catch))


def _unfulfilled(result: FitResult) -> str:
    """Which targets --strict misses."""
    from probecascade.thresholds.promise import missed_targets

    calibration = result.calibration
    if calibration.certificates:
        return f"not certified: {missed_targets(calibration)}"
    return "targets were not reached on the calibration episodes"


def _set(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class _Settings:
    recalls: tuple[Any, ...] | str | None
    keep: Any
    gates: tuple[str, ...] | None
    gate_answers: bool
    layers: tuple[int, ...] | None
    probe: ProbeSettings
    survivors: bool
    recipe: CalibrateRecipe | None
    method: str = "certified"
    confidence: float = 0.95
    unit: Any = "episode"
    largest_group: int | None = None
    max_gates: int = 3
    billing: str = "tokens"


def _settings(
    recipe: CalibrateRecipe | None,
    recall: str | None,
    keep: str | None,
    gates: str | None,
    gate_answers: bool,
    layers: str | None,
    uses: str,
    kinds: ProbeOptions,
    survivors: bool,
) -> _Settings:
    """Options before the recipe: a target given here replaces those of the recipe altogether."""
    if uses not in ("states", "signals"):
        raise UsageError(f"--uses is {uses!r}: give states or signals.")
    recalls: tuple[Any, ...] | str | None = recall
    chosen_keep: Any = keep
    if recipe and recall is None and keep is None:
        recalls, chosen_keep = recipe.targets.recall, recipe.targets.keep
    if recalls is None and chosen_keep is None:
        raise UsageError("no target was given: add --recall 0.9,0.95, --keep 0.95, or a --recipe.")
    return _Settings(
        recalls=recalls,
        keep=chosen_keep,
        gates=split_names(gates) if gates is not None or not recipe else recipe.gates.names,
        gate_answers=gate_answers or bool(recipe and recipe.gates.answers),
        layers=parse_layers(layers) if layers is not None or not recipe else recipe.probe.layers,
        probe=kinds.settings(recipe, uses),
        survivors=survivors or bool(recipe and recipe.probe.survivors),
        recipe=recipe,
    )


def _fit(
    run: Run, settings: _Settings, split_seed: int | None, shares: tuple[int, int, int] | None, seed: int
) -> FitResult:
    from probecascade.policies import fit_cascade

    recipe, default = settings.recipe, run.header.get("split", {})
    if recipe:
        default = {"seed": recipe.split.seed, "shares": recipe.split.shares}
    return fit_cascade(
        run,
        recalls=settings.recalls,
        keep=settings.keep,
        gates="auto" if settings.gates == ("auto",) else settings.gates,
        max_gates=settings.max_gates,
        method=settings.method,
        confidence=settings.confidence,
        unit=settings.unit,
        largest_group=settings.largest_group,
        billing=settings.billing,
        layers=settings.layers,
        gate_answers=settings.gate_answers,
        probe=settings.probe,
        survivors=settings.survivors,
        split_seed=default.get("seed", 0) if split_seed is None else split_seed,
        shares=shares or tuple(default.get("shares", (50, 25, 25))),
        seed=seed,
    )


def judge_held_out(cascade: Cascade, run: Run, scored: GateTable | None = None) -> tuple[HeldOut | None, list[str]]:
    """A new cascade on the test split, which shaped nothing, and notes on what could not be judged there.

    `scored`: what `score_run` gives for this cascade and run, where that is known already.
    """
    from probecascade.cli.tables import backtest_record, interval_record
    from probecascade.evaluation import backtest_run
    from probecascade.policies import score_run

    scored = scored or score_run(run, cascade.gates, gate_answers=cascade.gate_answers)
    try:
        result = backtest_run(cascade, run, "test", scored=scored)
    except NothingToDoError:
        return None, ["no labelled episode is in the test split: there are no held-out numbers."]
    auroc = held_out_auroc(cascade, run, scored.scores)
    record = backtest_record(result, cascade) | {
        "split": "test",
        "auroc": {name: None if found is None else interval_record(found) for name, found in auroc.items()},
    }
    return HeldOut(result, auroc, record), []


def held_out_auroc(cascade: Cascade, run: Run, scores: NDArray[np.float64]) -> dict[str, Interval | None]:
    """AUROC of each gate's scores on the run's test episodes, by checkpoint; None where a class is missing.

    scores: (n_episodes, n_gates) of the whole run, NaN where a gate was not reached.
    """
    import numpy as np

    from probecascade.probes import auroc_interval

    episodes = run.episodes
    test = episodes.labelled & (cascade.split_of(episodes.group.tolist()) == "test")
    found: dict[str, Interval | None] = {}
    for column, gate in enumerate(cascade.gates):
        use = test & ~np.isnan(scores[:, column])
        try:
            found[gate.checkpoint] = auroc_interval(scores[use, column], episodes.failed[use], episodes.group[use])
        except DataError:
            found[gate.checkpoint] = None
    return found
