"""How fast `extract --replay` reads recorded runs, beside one transcript at a time through the plain model.

Both sides read the very same ids and keep the states of the same positions and layers. `benchmarks/README.md` says what
each side does.

    python benchmarks/replay.py FILE --runs 64 --json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import machine, positive
from numpy.typing import NDArray

from probecascade.agents.layout import lay_out
from probecascade.agents.recorded import RecordedRun
from probecascade.agents.replay import Plan
from probecascade.cli.options import changed, parse_layers
from probecascade.cli.recipes import ExtractRecipe, read_extract
from probecascade.cli.replay import Chosen, Reader, choose, default_recipe, open_reader
from probecascade.errors import ProbecascadeError
from probecascade.store import RunWriter

States = dict[str, NDArray[np.float32]]


def read_together(reader: Reader, runs: Sequence[tuple[RecordedRun, int]], dtype: str) -> States:
    """What `extract --replay` does: states and signals of all runs, stored in a run folder (which is removed)."""
    engine = reader.engine
    header = {"n_layers": engine.n_layers}
    found = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        RunWriter(Path(folder) / "run", header, layers=engine.layers, d_model=engine.d_model, dtype=dtype) as writer,
    ):
        for recording in reader.read(runs):
            writer.add(recording)
            found[recording.episode.episode_id] = recording.hidden
    return found


@torch.inference_mode()
def read_one_by_one(reader: Reader, runs: Sequence[tuple[RecordedRun, int]]) -> States:
    """Each transcript by itself through `model(..., output_hidden_states=True)`; no log-probability, nothing stored."""
    model = reader.loaded.model
    device = next(model.parameters()).device
    kinds = set(reader.settings.checkpoints)
    found = {}
    for run, _ in runs:
        plan = Plan(lay_out(reader.engine, reader.template, run, reader.limit), kinds)
        output = model(torch.tensor([plan.ids], device=device), output_hidden_states=True, use_cache=False)
        rows = torch.tensor(plan.keep, device=device)
        kept = [output.hidden_states[layer][0, rows].float() for layer in reader.engine.layers]
        found[run.run_id] = torch.stack(kept, dim=1).cpu().numpy()
    return found


def measure(reader: Reader, runs: Sequence[tuple[RecordedRun, int]], dtype: str, repeats: int) -> dict[str, Any]:
    """Seconds of both sides in turns, after one short run each; tokens per second and their ratio."""
    tokens = sum(length for _, length in runs)
    shortest = [min(runs, key=lambda pair: pair[1])]
    read_together(reader, shortest, dtype)
    read_one_by_one(reader, shortest)
    seconds: dict[str, list[float]] = {"replay": [], "one_by_one": []}
    for _ in range(repeats):
        for name in seconds:
            started = time.perf_counter()
            if name == "replay":
                read_together(reader, runs, dtype)
            else:
                read_one_by_one(reader, runs)
            seconds[name].append(time.perf_counter() - started)
            print(f"{name}: {tokens} tokens in {seconds[name][-1]:.1f} s", file=sys.stderr)
    pace = {name: tokens / statistics.median(times) for name, times in seconds.items()}
    return {
        "runs": len(runs),
        "tokens": tokens,
        "shortest": shortest[0][1],
        "longest": max(length for _, length in runs),
        "seconds": {name: [round(each, 3) for each in times] for name, times in seconds.items()},
        "tokens_per_second": pace,
        "speedup": pace["replay"] / pace["one_by_one"],
        "furthest_apart": apart(reader, runs[:4], dtype),
    }


def apart(reader: Reader, runs: Sequence[tuple[RecordedRun, int]], dtype: str) -> float:
    """The largest relative L2 between what both sides keep of these runs; the last block apart, which the plain model
    hands over normed."""
    layers = [column for column, layer in enumerate(reader.engine.layers) if layer < reader.engine.n_layers]
    ours, theirs = read_together(reader, runs, dtype), read_one_by_one(reader, runs)
    gaps = []
    for run, _ in runs:
        plan = Plan(lay_out(reader.engine, reader.template, run, reader.limit), set(reader.settings.checkpoints))
        ends = sorted(_positions(reader, run))
        place = {position: row for row, position in enumerate(plan.keep)}
        other = theirs[run.run_id][[place[p] for p in ends]][:, layers]
        own = ours[run.run_id][:, layers]
        gaps.append(float((np.linalg.norm(own - other, axis=2) / np.linalg.norm(other, axis=2)).max(initial=0.0)))
    return max(gaps)


def _positions(reader: Reader, run: RecordedRun) -> list[int]:
    (recording,) = reader.read([(run, reader.lengths([run])[0][0])])
    return [point.position for point in recording.episode.checkpoints]


def the_recipe(options: argparse.Namespace) -> ExtractRecipe:
    """The recipe with what the command line changes of it."""
    recipe = default_recipe() if options.recipe is None else read_extract(options.recipe)
    recipe = changed(recipe, "model", name=options.model, dtype=options.dtype, device=options.device)
    recipe = changed(recipe, "agent", slots=options.slots)
    recipe = changed(recipe, "capture", layers=parse_layers(options.layers))
    return changed(recipe, "replay", max_tokens=options.max_tokens)


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("file", type=Path, help="a file of recorded runs")
    add("--json", action="store_true", help="print one line of JSON")
    add("--recipe", type=Path, help="a recipe, as for extract --replay")
    add("--model", help="model instead of the recipe's: a name, folder, .gguf file or hub id")
    add("--dtype", choices=("float32", "bfloat16", "float16"), help="what the model computes in")
    add("--device", help="auto, cpu, cuda, ...")
    add("--layers", help="layers to keep, such as 10,20")
    add("--slots", type=positive, help="runs that are read at once")
    add("--max-tokens", type=positive, help="tokens read of a run at most")
    add("--runs", type=positive, default=64, help="take the first so many runs of the file (default: 64)")
    add("--repeats", type=positive, default=3, help="how often each side is timed (default: 3)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 2 on bad input."""
    options = read_options(arguments)
    try:
        recipe = the_recipe(options)
        chosen: Chosen = choose(options.file, None, (), options.runs)
        reader = open_reader(recipe, chosen)
        lengths = reader.lengths(chosen.runs)
        runs = [(run, length) for run, (length, _) in zip(chosen.runs, lengths, strict=True)]
        report = {
            "ran_on": machine() | {"device": reader.device, "model": reader.loaded.source.name},
            "dtype": recipe.model.dtype,
            "layers": list(reader.engine.layers),
            **measure(reader, runs, recipe.capture.store_dtype, options.repeats),
        }
    except ProbecascadeError as error:
        print(f"benchmarks/replay.py: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps(report, indent=None if options.json else 2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
