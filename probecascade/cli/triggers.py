"""`probecascade triggers`: is it worth looking less often? Needs no model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probecascade.errors import UsageError

if TYPE_CHECKING:
    from probecascade.evaluation import TriggerRow

_MEASURES = ("caught", "kept", "saved", "looked", "looks", "caught_gain", "kept_gain", "saved_gain", "looks_gain")


def triggers(
    run: Annotated[Path, typer.Argument(help="A run that `probecascade extract` made.")],
    keep: Annotated[
        str | None, typer.Option(help="Share of the would-be successes that no gate may abort: 0.95.")
    ] = None,
    recall: Annotated[
        str | None, typer.Option(help="Shares of the doomed episodes to catch up to each gate, rising: 0.5,0.7.")
    ] = None,
    gates: Annotated[
        str | None, typer.Option(help="Checkpoints to gate at, in order: action:2,part:1; or auto.")
    ] = None,
    signal: Annotated[
        str, typer.Option(help="What decides whether a gate looks: entropy_mean, logprob_mean, logprob_min, …")
    ] = "entropy_mean",
    side: Annotated[
        str | None,
        typer.Option(help="Look where the signal is above or below; default: above, log-probabilities below."),
    ] = None,
    shares: Annotated[
        str, typer.Option(help="Shares of each gate's moments to look at; those of 1 are always added.")
    ] = "1,0.5,0.25",
    layers: Annotated[
        str | None, typer.Option(help="Layers to choose from by cross-validation; default: all stored ones.")
    ] = None,
    confidence: Annotated[float, typer.Option(help="Confidence of each promise.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Seed of folds, calibration and the intervals' resampling.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare gates that always look with gates that look only in doubt, at the same promise.

    Probes are fitted once. For each share the trigger's value is learnt on the fit episodes, the thresholds are set
    on the calibration episodes, where a gate that does not look has no score, and all is judged on the test
    episodes. Differences are paired by episode; intervals (95 %) resample groups. To keep such a cascade:
    probecascade fit RUN --keep 0.95 --trigger entropy_mean:0.5 -o FOLDER.

    Examples:

      probecascade triggers runs/atlas --keep 0.95

      probecascade triggers runs/atlas --keep 0.9 --signal logprob_min --shares 0.75,0.5 --json
    """
    from probecascade.cli.options import parse_layers, split_names
    from probecascade.cli.tables import print_json
    from probecascade.evaluation import Resampling, compare_triggers
    from probecascade.store import Run

    named = split_names(gates)
    wanted: Any = side
    rows = compare_triggers(
        Run.open(run),
        keep=keep,
        recalls=recall,
        signal=signal,
        side=wanted,
        shares=parse_fractions(shares),
        gates="auto" if named == ("auto",) else named,
        layers=parse_layers(layers),
        confidence=confidence,
        seed=seed,
        resampling=Resampling(seed=seed),
    )
    if as_json:
        return print_json({"run": str(run), "signal": signal, "rows": [_record(row) for row in rows]})
    typer.echo(_text(rows))
    return None


def parse_fractions(text: str) -> tuple[Any, ...]:
    """`1,0.5,1/4` as exact fractions. UsageError for anything else."""
    from probecascade.thresholds.targets import parse_target

    try:
        shares = tuple(parse_target(part) for part in text.split(","))
    except UsageError:
        raise UsageError(f"--shares is {text!r}: give shares separated by commas, such as 1,0.5,0.25.") from None
    if set(shares) == {1}:
        raise UsageError(f"--shares is {text!r}, which leaves nothing to compare: give a share below 1, such as 0.5.")
    return shares


def _record(row: TriggerRow) -> dict[str, Any]:
    from probecascade.cli.tables import interval_record

    return {
        "share": float(row.share),
        "triggers": dict(row.triggers),
        "certified": row.certified,
        "promise": row.promise,
        **{name: interval_record(getattr(row, name)) for name in _MEASURES},
    }


def _text(rows: tuple[TriggerRow, ...]) -> str:
    from probecascade.cli.tables import folded, share_text, wrapped

    titles = ["looks at", "certified", "failures caught", "successes kept", "tokens saved", "gates looked at", "looks"]
    lines = [
        [
            _share(row),
            "yes" if row.certified else "no",
            share_text(row.caught),
            share_text(row.kept),
            share_text(row.saved),
            share_text(row.looked),
            f"{row.looks.value:.2f} [{row.looks.low:.2f}, {row.looks.high:.2f}]",
        ]
        for row in rows
    ]
    said = [
        f"  {_share(row)}: failures caught {_gain(row.caught_gain)}, successes kept {_gain(row.kept_gain)}, "
        f"tokens saved {_gain(row.saved_gain)}"
        for row in rows[1:]
    ]
    triggered = [f"  {_share(row)}: {_triggers(row)}" for row in rows[1:]]
    return "\n".join(
        [
            folded(titles, lines),
            "on the test episodes; looks: how often an episode's states are read, on average",
            "",
            "difference from gates that always look, paired by episode, in points:",
            *(wrapped(sentence, indent="    ") for sentence in said),
            "a gate looks where:",
            *(wrapped(sentence, indent="    ") for sentence in triggered),
        ]
    )


def _share(row: TriggerRow) -> str:
    return f"{100 * float(row.share):g} %"


def _gain(found: Any) -> str:
    if not found.n:
        return "–"
    return f"{100 * found.value:+.1f} [{100 * found.low:+.1f}, {100 * found.high:+.1f}]"


def _triggers(row: TriggerRow) -> str:
    return ", ".join(f"{name} {trigger}" for name, trigger in row.triggers.items())
