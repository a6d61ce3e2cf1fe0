"""`probecascade sweep`: which layer knows, how early, and is it more than the surface? Needs no model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def sweep(
    run: Annotated[Path, typer.Argument(help="A run that `probecascade extract` made.")],
    checkpoints: Annotated[
        str | None, typer.Option(help="Checkpoints, such as prompt,action:1,part:1 (all that are stored).")
    ] = None,
    layers: Annotated[str | None, typer.Option(help="Layers, such as 0,10,-1 (all that are stored).")] = None,
    probe: Annotated[
        str, typer.Option(help="Kinds of probes: logistic, elastic-net, mass-mean, mass-mean-whitened, lda, mlp.")
    ] = "logistic",
    folds: Annotated[int, typer.Option(help="Folds of whole groups.")] = 5,
    baselines: Annotated[
        str | None,
        typer.Option(help="Some of majority,prompt,surface,tfidf,embedding,random,shuffled (all); none for none."),
    ] = None,
    keep: Annotated[float, typer.Option(help="Share of successes kept where the failures caught are counted.")] = 0.95,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="New folder for the result and all out-of-fold scores.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="New file for the tables as comma-separated values.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the folds and of the intervals' resampling.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Fit probes at every layer and checkpoint of a run and say which of them predict failure, beside baselines.

    Every score comes from a probe that has not seen the scored group; layer, kind and strength are chosen inside the
    folds as well, so that the best layer is not the luckiest. The baselines are fitted on the same episodes in the
    same folds: the state at `prompt` (how hard the question looks), surface signals (length, log-probabilities,
    repeated and failed actions), the text so far (TF-IDF), the embedding layer, random directions, and the same probe
    on shuffled labels. Intervals (95 %) resample groups. Needs neither torch nor the model.

    Examples:

      probecascade sweep runs/atlas

      probecascade sweep runs/atlas --checkpoints prompt,part:1,part:2 --probe logistic,mass-mean -o sweeps/atlas

      probecascade sweep runs/atlas --layers 10,20,-1 --baselines prompt,surface --csv sweep.csv --json
    """
    from probecascade.cli.escapes import tell
    from probecascade.cli.options import parse_layers, split_names
    from probecascade.cli.progress import progress
    from probecascade.cli.sweep_text import report, write_csv
    from probecascade.cli.tables import print_json
    from probecascade.evaluation import Sweep
    from probecascade.evaluation.baselines import BASELINES
    from probecascade.evaluation.sweep_result import check_new
    from probecascade.store import Run

    for place in (output, csv):
        if place is not None:
            check_new(place)
    names = split_names(baselines)
    planned = Sweep.of(
        Run.open(run),
        checkpoints=split_names(checkpoints),
        layers=parse_layers(layers),
        probes=split_names(probe) or (),
        baselines=BASELINES if names is None else () if names == ("none",) else names,
        folds=folds,
        keep=keep,
        seed=seed,
    )
    measured = list(progress(planned.measure(), len(planned.checkpoints), "sweep", unit="checkpoint"))
    result = planned.conclude(measured)
    if output is not None:
        result.save(output)
    if csv is not None:
        write_csv(result, csv)
    if as_json:
        return print_json(result.record())
    typer.echo(report(result))
    for place in (output, csv):
        if place is not None:
            tell(f"written to {place}")
    return None
