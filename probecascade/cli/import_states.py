"""`probecascade import`: an ordinary run from hidden states that another program dumped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probecascade.cli.options import parse_layers
from probecascade.errors import DataError, StoreError, UsageError

if TYPE_CHECKING:
    from probecascade.episode import Recording
    from probecascade.store import Run
    from probecascade.store.dumps import Dump
    from probecascade.store.importing import Entry


def import_states(
    index: Annotated[Path, typer.Argument(help="JSON Lines: one episode a line, with the file that holds its states.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the run; it must not exist yet.")],
    model: Annotated[str, typer.Option(help="The model whose states they are, such as Qwen/Qwen3-8B.")],
    layers: Annotated[
        str | None, typer.Option(help="The layers in the files, in their order, such as 9,18,27; .npz may name them.")
    ] = None,
    blocks: Annotated[
        int | None, typer.Option(help="Blocks of the model; layers may then count from the last.")
    ] = None,
    backend: Annotated[
        str, typer.Option(help="What computed the states; probes of two backends are not mixed.")
    ] = "vllm",
    dtype: Annotated[
        str | None, typer.Option(help="Store float16, bfloat16 or float32 instead of the files' own.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in that folder.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")] = False,
) -> None:
    """Make a run of hidden states that vLLM or another program dumped.

    A file is a .safetensors as vLLM's hidden-state connectors and speculators write it (hidden_states of shape tokens,
    layers, width, and token_ids), or a .npz with the same two arrays. No model is loaded. The index says whose the
    files are and where the checkpoints stand, positions counted from 0 in the file's ids:

      {"file": "hs_0.safetensors", "episode_id": "e0", "group": "question-17", "failed": true,
      "checkpoints": {"prompt": 211, "action:1": 240, "observation:1": 302, "action:2": 331}}

    failed is null or left out where nobody knows. task_id, reward, attributes and token_ids (to check the file
    against) may be added. Each id needs its own state: dump without prefix caching and chunked prefill.

    Example:

      probecascade import dumps/index.jsonl --model Qwen/Qwen3-8B --layers 9,18,27 -o runs/qwen
    """
    from probecascade.store import Run, RunWriter
    from probecascade.store.importing import imported, read_index

    asked = parse_layers(layers)
    if output.exists() and not resume:
        raise StoreError(
            f"{str(output)!r} exists already: add --resume to continue that run, or choose another folder."
        )
    entries = read_index(index)
    for entry in entries:
        if not entry.file.is_file():
            raise DataError(
                f"{index.name}, line {entry.line}: there is no dump {str(entry.file)!r}; name files as seen from the "
                "folder of the index."
            )
    first = _dump(entries[0])
    kept = first.layers if asked is None else asked
    if kept is None:
        raise UsageError(f"{str(first.path)!r} does not say which layers it holds: add --layers, such as 9,18,27.")
    header = _header(index, entries, model, backend, blocks)
    imported(entries[0], _checked(first, kept))  # what is wrong from the start is told before anything is written
    writer = RunWriter(output, header, layers=kept, d_model=first.d_model, dtype=dtype or first.dtype, resume=resume)
    try:
        with writer:
            for recording in _recordings([e for e in entries if e.episode_id not in writer.stored], first, kept):
                writer.add(recording)
    except DataError as error:
        raise DataError(
            f"{str(error).removesuffix('.')}; {len(writer.stored)} of {len(entries)} episodes are stored in "
            f"{str(output)!r} and stay: give the same command with --resume once the dump is mended, or another folder "
            "where the index has to change."
        ) from error
    _tell(Run.open(output), as_json)


def _dump(entry: Entry) -> Dump:
    from probecascade.store.dumps import read_dump

    return read_dump(entry.file)


def _recordings(entries: list[Entry], first: Dump, layers: tuple[int, ...]) -> Iterator[Recording]:
    """The episodes in the order of the index, one file in memory at a time."""
    from probecascade.cli.progress import progress
    from probecascade.store.importing import imported

    for entry in progress(entries, len(entries), "import"):
        dump = _dump(entry)
        if (dump.d_model, dump.dtype) != (first.d_model, first.dtype):
            raise DataError(
                f"{str(dump.path)!r} has states of {dump.d_model} numbers in {dump.dtype}, and {str(first.path)!r} of "
                f"{first.d_model} in {first.dtype}: import the dumps of one model at a time."
            )
        yield imported(entry, _checked(dump, layers))


def _checked(dump: Dump, layers: tuple[int, ...]) -> Dump:
    """The dump, which must hold these layers in number and, where it names its own, in name."""
    if len(layers) != dump.n_layers:
        raise DataError(f"{str(dump.path)!r} holds {dump.n_layers} layers, and {len(layers)} are named: name each.")
    if dump.layers is not None and dump.layers != layers:
        raise DataError(
            f"{str(dump.path)!r} says that its layers are {', '.join(map(str, dump.layers))}, and not "
            f"{', '.join(map(str, layers))}: name those."
        )
    return dump


def _header(index: Path, entries: list[Entry], model: str, backend: str, blocks: int | None) -> dict[str, Any]:
    from probecascade.cli.session import SPLIT
    from probecascade.store import described_file

    if blocks is not None and blocks < 1:
        raise UsageError(f"--blocks is {blocks}: give the number of the model's blocks, 1 or more.")
    kinds = {kind for entry in entries for kind in entry.kinds}
    return {
        "model": {"model": model, "backend": backend},
        **({} if blocks is None else {"n_layers": blocks}),
        "checkpoints": [kind for kind in ("prompt", "thought", "action", "observation") if kind in kinds],
        "gates": [],
        "split": dict(SPLIT),
        "files": {"import": described_file(index)},
        "import": {"index": index.name, "episodes": len(entries)},
    }


def _tell(run: Run, as_json: bool) -> None:
    from probecascade.cli.extract import size_text
    from probecascade.cli.sweep_text import next_sweep, tell_next
    from probecascade.cli.tables import print_json
    from probecascade.thresholds.promise import counted

    described = run.describe()
    record: dict[str, Any] = {
        "run": str(run.path),
        "episodes": len(run),
        "outcomes": described["outcomes"],
        "layers": list(run.layers),
        "dtype": run.dtype,
        "checkpoints": sum(described["checkpoints"].values()),
        "rejected": described["rejected"],
        "bytes": described["bytes"],
        **next_sweep(run),
    }
    if as_json:
        return print_json(record)
    outcomes = ", ".join(f"{count} {name}" for name, count in described["outcomes"].items())
    typer.echo(
        f"{counted(len(run), 'episode')} ({outcomes}), {counted(record['checkpoints'], 'checkpoint')}, layers "
        f"{', '.join(map(str, run.layers))}, {size_text(described['bytes'])} in {run.path}"
    )
    if record["rejected"]:
        typer.echo(f"{counted(record['rejected'], 'checkpoint')} refused: not finite, or too large for {run.dtype}")
    tell_next(record)
