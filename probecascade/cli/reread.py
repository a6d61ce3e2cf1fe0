"""`probecascade reread`: other layers of a stored run, from the token ids that it holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probecascade.cli.options import parse_layers
from probecascade.errors import CascadeError, NothingToDoError, StoreError, UsageError

if TYPE_CHECKING:
    from probecascade.episode import Recording
    from probecascade.models.engine import Engine
    from probecascade.store import Run


def reread(
    run: Annotated[Path, typer.Argument(help="A run that `probecascade extract` made.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the new run; it must not exist yet.")],
    layers: Annotated[str, typer.Option(help="Layers to keep: all, or a list such as 0,10,-1.")] = "all",
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in that folder: only what it lacks is read.")
    ] = False,
    limit: Annotated[int | None, typer.Option(help="Take the first so many episodes only.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 ...")] = "auto",
    slots: Annotated[int, typer.Option(min=1, help="Episodes that are read at once.")] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")] = False,
) -> None:
    """Read a run's episodes again and keep other layers, without playing them anew.

    The model reads the stored token ids and samples nothing. Transcripts, outcomes and checkpoints stay as they
    are; the run itself is left alone.

    Example:

      probecascade reread runs/atlas --layers all -o runs/atlas-all-layers
    """
    from probecascade.store import Run

    if limit is not None and limit < 1:
        raise UsageError(f"--limit is {limit}: give the number of episodes to take, 1 or more.")
    stored = Run.open(run)
    if output.resolve() == run.resolve():
        raise UsageError(f"{str(output)!r} is the run that is read: choose another folder for the new one.")
    if not len(stored):
        raise NothingToDoError(f"{str(run)!r} holds no episodes: extract some first.")
    if output.exists() and not resume:
        raise StoreError(
            f"{str(output)!r} exists already: add --resume to continue that run, or choose another folder."
        )
    chosen = parse_layers(None if layers == "all" else layers)
    _read(stored, output, chosen, resume=resume, limit=limit, device=device, slots=slots)
    _tell(Run.open(output), as_json)


def _read(run: Run, output: Path, layers: Any, *, resume: bool, limit: int | None, device: str, slots: int) -> None:
    from probecascade.agents.reread import common_head
    from probecascade.agents.reread import reread as read_again
    from probecascade.cli.progress import progress
    from probecascade.store import RunWriter

    every = [run.episode(index) for index in range(len(run))][:limit]
    engine = _engine(run, layers, device, slots, max(len(episode.token_ids) for episode in every))
    header = {key: value for key, value in run.header.items() if key not in ("format", "layers", "d_model", "dtype")}
    header["reread"] = {"run": run.path.name, "layers": list(run.layers)}
    shared = common_head(every)
    with RunWriter(
        output, header, layers=engine.layers, d_model=engine.d_model, dtype=run.dtype, resume=resume
    ) as writer:
        left = [episode for episode in every if episode.episode_id not in writer.stored]
        read: Any = engine.run(read_again(engine, e, shared=shared, dtype=run.dtype) for e in left)
        recording: Recording
        for recording in progress(read, len(left), "reread"):
            writer.add(recording)


def _engine(run: Run, layers: tuple[int, ...] | None, device: str, slots: int, longest: int) -> Engine:
    from probecascade.models import load
    from probecascade.models.engine import Engine

    recipe: Any = run.header.get("recipe")
    section = recipe.get("model") if isinstance(recipe, dict) else None
    if not isinstance(section, dict) or not all(isinstance(section.get(key), str) for key in ("name", "dtype")):
        raise StoreError(
            f"the run {str(run.path)!r} does not say in a recipe which model made it: only a run that "
            "`probecascade extract` made can be read again."
        )
    loaded = load(section["name"], revision=section.get("revision"), dtype=section["dtype"], device=device)
    if dict(loaded.identity) != run.header.get("model"):
        raise CascadeError(
            f"the run {str(run.path)!r} was made with another model than {section['name']!r} is now: "
            "its states can be read again by the very same one only."
        )
    every = range(loaded.model.config.get_text_config().num_hidden_layers + 1)
    kept = tuple(every) if layers is None else layers
    return Engine(loaded.model, loaded.tokenizer, layers=kept, slots=slots, capacity=longest + 1)


def _tell(run: Run, as_json: bool) -> None:
    from probecascade.cli.extract import size_text
    from probecascade.cli.tables import print_json

    described = run.describe()
    record = {
        "run": str(run.path),
        "episodes": len(run),
        "layers": list(run.layers),
        "checkpoints": sum(described["checkpoints"].values()),
        "bytes": described["bytes"],
        "next": f"probecascade sweep {run.path}",
    }
    if as_json:
        return print_json(record)
    typer.echo(
        f"{record['episodes']} episodes, {record['checkpoints']} checkpoints, {len(run.layers)} layers, "
        f"{size_text(described['bytes'])} in {run.path}"
    )
    typer.echo(f"next: {record['next']}")
