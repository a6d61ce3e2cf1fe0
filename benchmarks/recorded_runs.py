"""What the states of an observing model know of runs that other agents recorded: the tables of `docs/recorded-runs.md`.

    python benchmarks/recorded_runs.py FOLDER_OF_RUNS -o recorded
    python benchmarks/recorded_runs.py FOLDER_OF_RUNS -o recorded --page docs/recorded-runs.md

The model reads every file once (as `probecascade extract --replay` does) and the run is kept in the output folder, so
that an interrupted reading goes on where it stopped and a second call measures only. One Markdown file per data set.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from machine import machine, positive
from recorded_measures import by_round, length_alone, saved, transfer
from recorded_tables import legend, page, section

from probecascade.cli.recipes import CaptureSection, ExtractRecipe, ModelSection, ReplaySection
from probecascade.cli.replay import Chosen, choose, read_runs, replay_summary
from probecascade.cli.tables import jsonable
from probecascade.errors import ProbecascadeError, UsageError
from probecascade.store import Run, described_file
from probecascade.thresholds.promise import counted

KNOWN = (
    "hotpotqa_knowagent",
    "hotpotqa_fireact",
    "hotpotqa_reflexion",
    "fever",
    "webshop",
    "alfworld",
    "taubench",
)
"""What the names of files begin with, after `trajectories_`, that are read where none is named."""

LAYERS = "10,15,20,25,30"
MARKS = ("<!-- tables: begin -->", "<!-- tables: end -->")

_ENDINGS = (".gz", ".jsonl", ".json", ".txt")
_CHARACTERS = 3.1  # of a token of such files, roughly
_END_TOLD = (
    "The number of rounds of a whole run ranks failures with an AUROC of {auroc}. It is known only when the run has "
    "ended, and a signal that is lined up at the end holds it. A checkpoint of round r compares only the runs that are "
    "still going on after round r, at the same round, so that it does not."
)
_CUT = (
    "{n} runs were longer than what is read of a run and lost their first rounds. That happens only to runs that "
    "become long, so at their later checkpoints a state knows something of the future: read more of a run to be sure."
)


# Reading --------------------------------------------------------------------------------------------------------------


def found_files(folder: Path, named: Sequence[Path]) -> dict[str, Path]:
    """Files by the name of their data set. UsageError where there is none, or two have one name."""
    paths = [path for key in KNOWN for path in sorted(folder.glob(f"trajectories_{key}*"))] + list(named)
    if not paths:
        raise UsageError(f"{str(folder)!r} holds no file trajectories_*: give the folder of the recorded runs.")
    files: dict[str, Path] = {}
    for path in paths:
        name = path.name
        for ending in _ENDINGS:
            name = name.removesuffix(ending)
        name = name.removeprefix("trajectories_").removesuffix("_shared")
        if name in files:
            raise UsageError(f"{str(path)!r} and {str(files[name])!r} have the same name: give one of them another.")
        files[name] = path
    return files


def first_groups(chosen: Chosen, limit: int | None) -> Chosen:
    """All runs of `limit` groups, chosen by a hash, so that more of them only add to fewer."""
    groups = sorted({run.group for run in chosen.runs}, key=lambda group: sha256(group.encode()).digest())
    kept = set(groups[:limit])
    return dataclasses.replace(chosen, runs=tuple(run for run in chosen.runs if run.group in kept))


def guessed_tokens(chosen: Chosen, most: int | None) -> int:
    """About how many tokens will be read, by the number of characters."""
    each = (
        len(run.question) + sum(len(step.text) + len(step.observation) for step in run.steps) for run in chosen.runs
    )
    tokens = [characters / _CHARACTERS for characters in each]
    return round(sum(tokens if most is None else [min(count, most) for count in tokens]))


def recipe_of(options: argparse.Namespace) -> ExtractRecipe:
    """What `extract --replay` would be given."""
    return ExtractRecipe(
        model=ModelSection(name=options.model, dtype=options.dtype, device=options.device),
        capture=CaptureSection(
            layers=options.layers, checkpoints=("prompt", "action", "observation"), store_dtype="float16"
        ),
        replay=ReplaySection(max_tokens=options.max_tokens),
    )


def read(chosen: Chosen, recipe: ExtractRecipe, folder: Path) -> Run:
    """The run of these recorded runs: what is stored there already is not read again.

    StoreError where what is stored was read from another file or otherwise.
    """
    if folder.exists():
        run, most = Run.open(folder), recipe.replay.max_tokens
        same = run.header["files"]["replay"] == described_file(chosen.path)
        same = same and most in (None, run.header["replay"]["max_tokens"]) and run.layers == recipe.capture.layers
        same = same and run.header["model"]["dtype"] == recipe.model.dtype
        if same and not {each.run_id for each in chosen.runs} - set(run.episodes.episode_id.tolist()):
            return run
    read_runs(recipe, chosen, folder, resume=folder.exists())
    return Run.open(folder)


# Measuring ------------------------------------------------------------------------------------------------------------


def measured(name: str, chosen: Chosen, run: Run, options: argparse.Namespace) -> dict[str, Any]:
    """All that is said of one data set."""
    summary = replay_summary(run, chosen)
    episodes = run.episodes
    use = episodes.labelled
    swept = f"{name}-{len(run)}-of-{summary['max_tokens']}-seed-{options.seed}"
    rounds, verdicts = by_round(run, options.output / "sweeps" / swept, options.seed)
    length = length_alone(run, options.seed)
    notes = []
    if length is not None:
        value = f"{length['value']:.2f} [{length['low']:.2f}, {length['high']:.2f}]"
        notes.append(_END_TOLD.format(auroc=value))
    if summary["truncated"]:
        notes.append(_CUT.format(n=summary["truncated"]))
    limited = "all groups of the file" if options.limit is None else f"at most {options.limit} groups of the file"
    return {
        "name": name,
        **{key: summary[key] for key in ("layout", "observer", "max_tokens", "truncated", "truncated_share", "sha256")},
        "dtype": run.header["model"]["dtype"],
        "limited": limited,
        "labelled": int(use.sum()),
        "unlabelled": int((~use).sum()),
        "groups": len(set(episodes.group[use].tolist())),
        "base_rate": float(episodes.failed[use].mean()) if use.any() else 0.0,
        "tokens": int(np.minimum(episodes.tokens + episodes.prompt_tokens, summary["max_tokens"]).sum()),
        "seconds": float(episodes.seconds.sum()),
        "rounds": rounds,
        "verdicts": verdicts,
        "notes": notes,
        "saved": [saved(run, "states", options.seed), saved(run, "signals", options.seed)],
        "transfer": list(transfer([run], "model", options.seed)),
    }


def between_files(runs: dict[str, Run], seed: int) -> list[dict[str, Any]]:
    """Transfer between the files of one kind of task (the name's first word), file by file."""
    kinds: dict[str, list[Run]] = {}
    for name, run in runs.items():
        kinds.setdefault(name.split("_")[0], []).append(run)
    return [row for of in kinds.values() if len(of) > 1 for row in transfer(of, "run", seed)]


# The command ----------------------------------------------------------------------------------------------------------


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    add = parser.add_argument
    add("data", type=Path, help="folder with files trajectories_*")
    add("-o", "--output", type=Path, required=True, help="folder of the runs, sweeps and tables")
    add("--file", type=Path, action="append", default=[], help="a further file of recorded runs; may be repeated")
    add("--only", help="data sets whose names begin so, separated by commas")
    add("--limit", type=positive, help="groups of each file (default: all)")
    add("--max-tokens", type=positive, help="tokens read of a run at most (default: the model's context)")
    add("--model", default="smollm2", help="the observer (default: the embedded model)")
    add("--dtype", choices=("float32", "bfloat16", "float16"), default="float32", help="what the observer computes in")
    add("--device", default="auto")
    add("--layers", type=_layers, default=LAYERS, help=f"layers that are kept (default: {LAYERS})")
    add("--page", type=Path, help="a page between whose marks the tables are put")
    add("--seed", type=int, default=0, help="of folds and resamples")
    add("--json", action="store_true", help="print all of it as one JSON object on one line")
    return parser.parse_args(arguments)


def _layers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(layer) for layer in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} are no layers: give whole numbers, such as {LAYERS}") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Read, measure and write; 2 on bad input, 130 where it was stopped."""
    options = read_options(arguments)
    try:
        report = measure(options)
        write(report, options.output, options.page)
    except ProbecascadeError as error:
        print(f"benchmarks/recorded_runs.py: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("stopped; what was read is kept: give the same command to go on", file=sys.stderr)
        return 130
    if options.json:
        print(json.dumps(report, allow_nan=False))
    else:
        print(f"tables in {options.output}" + (f" and in {options.page}" if options.page else ""))
    return 0


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Read every file, then measure every run."""
    files = found_files(options.data, options.file)
    wanted = tuple(options.only.split(",")) if options.only else ("",)
    files = {name: path for name, path in files.items() if name.startswith(wanted)}
    if not files:
        raise UsageError(f"no data set is called {options.only}: leave --only out to read all.")
    check_page(options.page)
    chosen = {name: first_groups(choose(path, None, (), None), options.limit) for name, path in files.items()}
    for name, of in chosen.items():
        print(f"{name}: {len(of.runs)} runs, about {guessed_tokens(of, options.max_tokens):,} tokens", file=sys.stderr)
    recipe = recipe_of(options)
    runs = {name: read(of, recipe, options.output / "runs" / name) for name, of in chosen.items()}
    records = []
    for name, run in runs.items():
        print(f"measuring {name}", file=sys.stderr)
        records.append(measured(name, chosen[name], run, options))
    between = between_files(runs, options.seed)
    whole: dict[str, Any] = jsonable({"data_sets": records, "transfer": between, "ran_on": machine()})
    return whole


def check_page(path: Path | None) -> None:
    """UsageError for a page without the marks, before hours go by."""
    if path is not None:
        _split(path)


def _split(path: Path) -> tuple[str, str]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"the page {str(path)!r} cannot be read ({error.strerror}): give one that exists.") from error
    begin, end = MARKS
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise UsageError(f"the page {str(path)!r} lacks the marks {begin} and {end}, once each and in this order.")
    return text[: text.index(begin) + len(begin)], text[text.index(end) :]


def write(report: dict[str, Any], folder: Path, target: Path | None) -> None:
    """One file per data set, all of it in tables.md and results.json, and the page between its marks."""
    folder.mkdir(parents=True, exist_ok=True)
    for record in report["data_sets"]:
        _put(folder / f"{record['name']}.md", f"{legend()}\n\n{section(record)}\n")
    tables = page(report)
    _put(folder / "tables.md", f"{legend()}\n\n{tables}")
    _put(folder / "results.json", json.dumps(report, indent=2, allow_nan=False) + "\n")
    if target is not None:
        before, after = _split(target)
        ran = report["ran_on"]
        versions = ", ".join(f"{name} {ran[name]}" for name in ("torch", "transformers"))
        on = f"On {ran['cpu']}, {counted(ran['threads'], 'thread')}, {versions}."
        _put(target, f"{before}\n\n{legend()} {on}\n\n{tables}\n{after}")


def _put(path: Path, text: str) -> None:
    """Write whole or not at all."""
    draft = path.with_name(f".{path.name}.new")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)


if __name__ == "__main__":
    raise SystemExit(main())
