"""`probecascade reread`: other layers and checkpoints of a stored run, from the token ids that it holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probecascade.cli.options import parse_layers, split_names
from probecascade.cli.replay import CACHE_TOKENS
from probecascade.errors import CascadeError, NothingToDoError, StoreError, UsageError

if TYPE_CHECKING:
    from probecascade.episode import Recording
    from probecascade.models.engine import Engine
    from probecascade.models.requests import Conversation
    from probecascade.store import Run


def reread(
    run: Annotated[Path, typer.Argument(help="A run that `probecascade extract` made.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the new run; it must not exist yet.")],
    layers: Annotated[
        str | None,
        typer.Option(
            help="Layers to keep: all, or a list such as 0,10,-1. By default all; with --add those of the run."
        ),
    ] = None,
    add: Annotated[
        str | None,
        typer.Option(help="Kinds of checkpoints that the run lacks: thought, action, observation, prompt, turn_mean."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in that folder: only what it lacks is read.")
    ] = False,
    limit: Annotated[int | None, typer.Option(help="Take the first so many episodes only.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 ...")] = "auto",
    slots: Annotated[int, typer.Option(min=1, help="Episodes that are read at once.")] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")] = False,
) -> None:
    """Read a run's episodes again and keep other layers or more checkpoints, without playing them anew.

    The model reads the stored token ids and samples nothing. Transcripts, outcomes and checkpoints stay as they
    are; the run itself is left alone. What was stored must come out again, or nothing more is written. --add puts
    checkpoints of other kinds beside those of the run; turn_mean is the mean of the states of a turn's tokens.

    Examples:

      probecascade reread runs/atlas --layers all -o runs/atlas-all-layers

      probecascade reread runs/atlas --add thought,turn_mean -o runs/atlas-more
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
    kinds = _kinds(stored, add)
    chosen = None if layers == "all" or (layers is None and not kinds) else parse_layers(layers) or stored.layers
    unfit = _read(stored, output, chosen, kinds, resume=resume, limit=limit, device=device, slots=slots)
    _tell(Run.open(output), kinds, unfit, as_json)


def _kinds(run: Run, add: str | None) -> tuple[str, ...]:
    """The kinds to add. UsageError for one that cannot be added or is there already."""
    from probecascade.agents.reread import ADDABLE

    kinds = split_names(add) or ()
    if add is not None and not kinds:
        raise UsageError(f"--add is {add!r}: name kinds of checkpoints, such as --add thought,turn_mean.")
    stored = {name.partition(":")[0] for name in run.checkpoint_names}
    for kind in kinds:
        if kind not in ADDABLE or kinds.count(kind) > 1:
            raise UsageError(f"--add names {kind!r}: give some of {', '.join(ADDABLE)}, each once.")
        if kind in stored:
            raise UsageError(f"--add names {kind!r}, and the run {str(run.path)!r} has such checkpoints: leave it out.")
    return kinds


def _read(
    run: Run,
    output: Path,
    layers: tuple[int, ...] | None,
    kinds: tuple[str, ...],
    *,
    resume: bool,
    limit: int | None,
    device: str,
    slots: int,
) -> int:
    """Read the episodes and store them. Returns to how many of them no checkpoint could be added."""
    from probecascade.agents.parser import REACT
    from probecascade.agents.reread import Reread, common_head, form_of, laid_again, tolerance
    from probecascade.agents.reread import reread as read_again
    from probecascade.cli.progress import progress
    from probecascade.store import RunWriter

    every = [run.episode(index) for index in range(len(run))][:limit]
    engine, kept = _engine(run, layers, device, slots, max(len(episode.token_ids) for episode in every))
    header = {key: value for key, value in run.header.items() if key not in ("format", "layers", "d_model", "dtype")}
    allowed = tolerance(run.header["model"]["dtype"], run.dtype)
    header["reread"] = {"run": run.path.name, "layers": list(run.layers), "tolerance": allowed}
    if kinds:
        header["checkpoints"] = [*run.header.get("checkpoints", ()), *kinds]
        header["reread"]["added"] = list(kinds)
    agent = run.header["recipe"].get("agent")  # none where the run was recorded by another
    first = next((index for index, episode in enumerate(every) if episode.checkpoints), 0)
    form = form_of(engine, every[first], agent.get("actions", "react")) if agent else REACT
    wanted = Reread(kept, run.layers, run.dtype, common_head(every), allowed, kinds, form)

    def conversation(index: int) -> Conversation[Recording]:
        return read_again(engine, every[index], run.hidden(index), wanted)

    list(engine.run([conversation(first)]))  # a run that does not come out again is refused before anything is written
    with RunWriter(output, header, layers=kept, d_model=engine.d_model, dtype=run.dtype, resume=resume) as writer:
        left = [index for index, episode in enumerate(every) if episode.episode_id not in writer.stored]
        for recording in progress(engine.run(map(conversation, left)), len(left), "reread"):
            writer.add(recording)
    return sum(laid_again(engine, episode, form) is None for episode in every) if kinds else 0


def _engine(
    run: Run, layers: tuple[int, ...] | None, device: str, slots: int, longest: int
) -> tuple[Engine, tuple[int, ...]]:
    """The model that made the run, keeping its layers and the asked ones (None: all), and the latter resolved."""
    from probecascade.models import load
    from probecascade.models.engine import Engine
    from probecascade.models.hooks import text_config
    from probecascade.store.schema import resolve_layers, stated_backend

    recipe: Any = run.header.get("recipe")
    section = recipe.get("model") if isinstance(recipe, dict) else None
    if not isinstance(section, dict) or not all(isinstance(section.get(key), str) for key in ("name", "dtype")):
        raise StoreError(
            f"the run {str(run.path)!r} does not say in a recipe which model made it: only a run that "
            "`probecascade extract` made can be read again."
        )
    backend = section.get("backend", "transformers")
    loaded = load(
        section["name"], revision=section.get("revision"), dtype=section["dtype"], device=device, backend=backend
    )
    if dict(loaded.identity) != stated_backend(run.header).get("model"):
        raise CascadeError(
            f"the run {str(run.path)!r} was made with another model than {section['name']!r} is now: "
            "its states can be read again by the very same one only."
        )
    n_layers = text_config(loaded.model).num_hidden_layers
    kept = resolve_layers(range(n_layers + 1) if layers is None else layers, n_layers)
    both = tuple(sorted({*kept, *run.layers}))
    fitting = max(1, min(slots, CACHE_TOKENS // (longest + 1)))
    return Engine(loaded.model, loaded.tokenizer, layers=both, slots=fitting, capacity=longest + 1), kept


def _tell(run: Run, kinds: tuple[str, ...], unfit: int, as_json: bool) -> None:
    from probecascade.cli.extract import size_text
    from probecascade.cli.sweep_text import next_sweep, tell_next
    from probecascade.cli.tables import print_json

    described = run.describe()
    record: dict[str, Any] = {
        "run": str(run.path),
        "episodes": len(run),
        "layers": list(run.layers),
        "checkpoints": sum(described["checkpoints"].values()),
        "bytes": described["bytes"],
        "added": list(kinds),
        "nothing_added": unfit,
        **next_sweep(run),
    }
    if as_json:
        return print_json(record)
    typer.echo(
        f"{record['episodes']} episodes, {record['checkpoints']} checkpoints, {len(run.layers)} layers, "
        f"{size_text(described['bytes'])} in {run.path}"
    )
    if unfit:
        typer.echo(f"to {unfit} of them nothing was added: their ids and steps do not say where the checkpoints stand")
    tell_next(record)
