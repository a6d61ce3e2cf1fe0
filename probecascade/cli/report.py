"""`probecascade report`: one page that says what a run's hidden states know, and what a cascade makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probecascade.errors import DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from probecascade.evaluation import SweepResult
    from probecascade.store import Run


def report(
    run: Annotated[Path, typer.Argument(help="A run that `probecascade extract` made.")],
    cascade: Annotated[
        Path | None, typer.Argument(help="A cascade of the same model, to be judged on the run.")
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="New file for the page.")] = Path("report.html"),
    sweep: Annotated[
        Path | None,
        typer.Option(help="What `probecascade sweep RUN -o FOLDER` wrote; without it the whole run is swept now."),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            help="A file of failure modes (CSV or JSON lines with episode_id and mode) that go before the rules."
        ),
    ] = None,
    allow_new: Annotated[
        bool, typer.Option("--allow-new", help="Let the file of --labels bring modes of its own names.")
    ] = False,
    transfer: Annotated[Path | None, typer.Option(help="What `probecascade transfer ... --json` printed.")] = None,
    figures: Annotated[Path | None, typer.Option(help="New folder for every figure as PNG, PDF and CSV.")] = None,
    limit_episodes: Annotated[int, typer.Option(help="Episodes in the page's browser at most.")] = 2000,
    force: Annotated[bool, typer.Option("--force", help="Accept another model, template or dtype.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the folds and of the intervals' resampling.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write one self-contained page about a run: open it in any browser, mail it, print it.

    It opens with the answer in words. Then: AUROC by layer and checkpoint, and by round beside the baselines; scores
    of failures and successes over the rounds; reliability; how episodes fail; and with a cascade what it catches, keeps
    and saves on the episodes that took no part in making it. At its end every transcript can be read with its scores,
    held out, and the place where it would have been aborted. The page asks nothing of the network. Needs the extra
    `plot`, and neither torch nor the model.

    Examples:

      probecascade report runs/atlas cascades/atlas -o atlas.html

      probecascade sweep runs/atlas -o sweeps/atlas

      probecascade report runs/atlas --sweep sweeps/atlas --figures figures --json

      probecascade report runs/atlas --sweep sweeps/atlas --labels modes.csv
    """
    from probecascade.cli.escapes import tell
    from probecascade.cli.modes import modes_of
    from probecascade.cli.tables import print_json, say
    from probecascade.evaluation import Resampling
    from probecascade.evaluation.sweep_result import check_new
    from probecascade.policies import Cascade
    from probecascade.report import Judged, Material, check_exports, export, new_figure, transfer_picture
    from probecascade.store import Run

    if limit_episodes < 1:
        raise UsageError(f"--limit-episodes is {limit_episodes}: give 1 or more.")
    if allow_new and labels is None:
        raise UsageError("--allow-new is about the modes in a file: add --labels, or leave it out.")
    resampling = Resampling(seed=seed)
    new_figure(1, 1)  # refuses before the work where matplotlib is missing
    check_new(output)
    if figures is not None:
        check_exports(figures)
        check_new(figures)
    stored = Run.open(run)
    travelled = None if transfer is None else _read_transfer(transfer)
    if travelled is not None:
        transfer_picture(travelled)  # refuses before the work
    modes = modes_of(stored, labels, allow_new=allow_new)
    loaded = None if cascade is None else Cascade.load(cascade)
    judged = None if loaded is None else Judged.of(loaded, stored, force=force, resampling=resampling)
    swept = _swept(stored, sweep, seed)
    material = Material(
        run=stored,
        sweep=swept.record(),
        scores=swept.scores,
        modes=modes,
        cascade=loaded,
        judged=judged,
        transfer=travelled,
        resampling=resampling,
    )
    page = material.page(limit=limit_episodes)
    text = page.html()
    files = () if figures is None else export(material.pictures, figures)
    write_new(output, text)
    if as_json:
        return print_json(
            {
                "page": str(output),
                "bytes": len(text.encode()),
                "run": str(run),
                "cascade": None if cascade is None else str(cascade),
                "labels": None if labels is None else str(labels),
                "verdicts": list(page.verdicts),
                "cascade_verdicts": list(page.cascade),
                "notes": list(page.notes),
                "episodes": {"shown": len(page.episodes["episodes"]), "of": len(stored)},
                "figures": [
                    {"name": picture.name, "title": picture.title, "alt": picture.alt} for picture in material.pictures
                ],
                "files": [str(path) for path in files],
            }
        )
    for sentence in (*page.verdicts[:1], *page.cascade[:1], *page.notes):
        say(sentence, indent="  ")
    if files:
        tell(f"{len(material.pictures)} figures as PNG, PDF and CSV in {figures}")
    tell(f"written to {output} ({len(text.encode()) / 1e6:.1f} MB): open it in a browser")
    return None


def _swept(run: Run, folder: Path | None, seed: int) -> SweepResult:
    """The stored sweep, or one made now."""
    from probecascade.cli.progress import progress
    from probecascade.evaluation import Sweep, SweepResult

    if folder is not None:
        return SweepResult.load(folder)
    planned = Sweep.of(run, seed=seed)
    measured = list(progress(planned.measure(), len(planned.checkpoints), "sweep", unit="checkpoint"))
    return planned.conclude(measured)


def _read_transfer(path: Path) -> Mapping[str, Any]:
    import json

    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{str(path)!r} is no JSON: give what `probecascade transfer --json` printed.") from error
    if not isinstance(record, dict) or not record.get("matrices"):
        raise DataError(f"{str(path)!r} holds no transfer matrices: give what `probecascade transfer --json` printed.")
    return record


def write_new(path: Path, text: str) -> None:
    """The whole file or none, and never over another."""
    import os
    import tempfile

    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(draft).chmod(path.parent.stat().st_mode & 0o666)
        os.link(draft, path)
    finally:
        Path(draft).unlink()
