"""`probecascade transfer`: does a probe travel to other wordings, temperatures, worlds? Needs no model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probecascade.errors import DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from probecascade.evaluation import PooledRuns, TransferMatrix
    from probecascade.evaluation.transfer import Cell

_VARIED = {
    "wording": "`wordings` under [agent]",
    "temperature": "a list for `temperature` under [agent]",
    "world": "one run for each `seed` under [tasks]",
}
"""Attributes that a recipe makes vary, and where."""
_CONDITION = re.compile(
    r"""\s*(?P<name>[^=,"]*[^=,"\s])\s*=\s*(?P<value>"(?:[^"\\]|\\.)*"|[^",\s](?:[^,]*[^,\s])?)\s*(?:,(?=.)|\Z)"""
)
_LONGEST = 40  # characters of a kind in a table
_MOST_COLUMNS = 4  # kinds whose intervals still fit into 120 columns


def transfer(
    runs: Annotated[list[Path], typer.Argument(help="One or more runs of one model with the same layers.")],
    by: Annotated[
        str | None,
        typer.Option(help="An attribute of the episodes: wording, temperature, world, run, or any that tasks carry."),
    ] = None,
    train_on: Annotated[
        str | None,
        typer.Option(
            help='Instead of --by: train on these, such as wording=plain,temperature=0.3; a value may stand in "".'
        ),
    ] = None,
    test_on: Annotated[str | None, typer.Option(help="... and test on these, such as wording=terse.")] = None,
    checkpoints: Annotated[
        str | None, typer.Option(help="Checkpoints, such as action:2,part:1 (the gates that the run's recipe names).")
    ] = None,
    layers: Annotated[str | None, typer.Option(help="Layers to choose from, such as 10,20,-1 (all stored).")] = None,
    keep: Annotated[str, typer.Option(help="Share of successes that a threshold keeps where it is set.")] = "0.95",
    folds: Annotated[int, typer.Option(help="Folds of whole groups.")] = 5,
    seed: Annotated[int, typer.Option(help="Seed of the folds, the training sets and the resampling.")] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, as `report --transfer` reads.")
    ] = False,
) -> None:
    """Fit probes on episodes of one kind, test them on those of every other, and show what is lost.

    Kinds are the values of an attribute, which `extract` records: the wording of the prompt, the temperature, the
    seed of the generated world; and `run`, the folder's name, for runs that differ in something else. All kinds share
    folds of whole groups, so that no question is on both sides, and training sets are of one size. The diagonal of the
    matrix is a probe at home, on groups that it has not seen. Beside it stand the surface baseline, probes trained on
    a mixture of kinds, and what a threshold that keeps its share at home keeps and catches abroad.

    Examples:

      probecascade transfer runs/wordings --by wording

      probecascade transfer runs/cold runs/warm --by run --checkpoints part:1 --json > transfer.json

      probecascade transfer runs/wordings --train-on wording=plain,temperature=0.1 --test-on wording=terse
    """
    from probecascade.cli.options import parse_layers, split_names
    from probecascade.cli.progress import progress
    from probecascade.cli.tables import print_json, say
    from probecascade.evaluation import PooledRuns
    from probecascade.intervals import Resampling
    from probecascade.store import Run

    asked = _asked(by, train_on, test_on)
    resampling = Resampling(seed=seed)
    pool = PooledRuns([Run.open(run) for run in runs])
    kinds = _by_value(pool, by) if by is not None else {_said(c): pool.matching(c) for c in asked}
    named = split_names(checkpoints)
    options = {"layers": parse_layers(layers), "keep": keep, "folds": folds, "seed": seed, "resampling": resampling}
    places = named or _usual(pool)
    notes: list[str] = []
    found = _matrices(pool, kinds, places, {**options, "mixtures": by is not None}, notes, strict=named is not None)
    matrices = list(progress(found, len(places), "transfer", unit="checkpoint"))
    if not matrices:
        raise DataError(notes[0])
    left_out = sum(value is None for value in pool.attributes(by)) if by is not None else 0
    if as_json:
        return print_json(
            {
                "runs": [str(run) for run in runs],
                "by": by,
                "asked": [_said(condition) for condition in asked],
                "episodes": len(pool),
                "without_the_attribute": left_out,
                "matrices": [matrix.record() for matrix in matrices],
                "verdicts": [matrix.verdict(*map(_said, asked)) for matrix in matrices],
                "notes": notes,
            }
        )
    typer.echo(_text(matrices, by, [_said(condition) for condition in asked]))
    if left_out:
        say(f"note: {left_out} of {len(pool)} episodes have no {by} and are left out")
    for note in notes:
        say(f"note: {note}", indent="  ")
    return None


def _asked(by: str | None, train_on: str | None, test_on: str | None) -> list[dict[str, str]]:
    """The conditions of the one cell that is asked for; none with --by."""
    if (by is None) == (train_on is None) or (train_on is None) != (test_on is None):
        raise UsageError("give --by ATTRIBUTE, or both --train-on and --test-on, such as --by wording.")
    if train_on is None or test_on is None:
        return []
    asked = [_conditions(train_on, "--train-on"), _conditions(test_on, "--test-on")]
    if asked[0] == asked[1]:
        raise UsageError(f"--train-on and --test-on are one kind and the same ({train_on}): give two.")
    return asked


def _by_value(pool: PooledRuns, by: str) -> dict[str, NDArray[np.bool_]]:
    """The kinds that an attribute tells apart. UsageError unless there are two, which says how they come about."""
    how = _VARIED.get(by)
    advice = f"let it vary by {how} in the recipe of `extract`" if how else "take one that varies"
    try:
        kinds = pool.by_value(by)
    except UsageError as error:
        if how is None:
            raise
        raise UsageError(f"no episode records a {by}: {advice}, or give --by another attribute.") from error
    if len(kinds) < 2:
        value = ", ".join(kinds) or "none"
        raise UsageError(
            f"--by {by} needs two kinds, but every episode has the {by} {value}: {advice}, or give several runs."
        )
    return kinds


def _conditions(text: str, option: str) -> dict[str, str]:
    """`wording=plain,site="Paris, Texas"` as a mapping; quotes are kept, since they say that a value is text."""
    pairs = [(match["name"], match["value"]) for match in _CONDITION.finditer(text)]
    found = dict(pairs)
    if "".join(match[0] for match in _CONDITION.finditer(text)) != text or len(found) < len(pairs) or not found:
        raise UsageError(
            f"{option} is {text!r}: give attributes and values, such as wording=plain,temperature=0.3, and a value "
            "that holds a comma in double quotes."
        )
    return found


def _said(conditions: Mapping[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in conditions.items())


def _usual(pool: PooledRuns) -> tuple[str, ...]:
    """The gates that the first run's recipe names, else its action and part checkpoints, as far as they are stored."""
    stored = pool.checkpoint_names
    named = tuple(name for name in pool.runs[0].header.get("gates", ()) if name in stored)
    return named or tuple(name for name in stored if name.split(":")[0] in ("action", "part"))


def _matrices(
    pool: PooledRuns,
    kinds: Mapping[str, NDArray[np.bool_]],
    places: tuple[str, ...],
    options: Mapping[str, Any],
    notes: list[str],
    *,
    strict: bool,
) -> Iterator[TransferMatrix]:
    """One matrix per checkpoint; unless `strict`, one that too few episodes reach becomes a note."""
    from probecascade.evaluation import transfer_matrix

    for name in places:
        try:
            yield transfer_matrix(pool, kinds, name, **options)
        except DataError as error:
            if strict:
                raise
            notes.append(str(error))


def _text(matrices: list[TransferMatrix], by: str | None, asked: list[str]) -> str:
    from probecascade.cli.tables import wrapped

    blocks = []
    for matrix in matrices:
        if by is None:
            blocks.append(_cell_text(matrix, *asked))
        else:
            blocks.append(_matrix_text(matrix, by))
        blocks += [wrapped(f"note: {note}", indent="  ") for note in matrix.notes]
    if by is not None:
        blocks.insert(0, "\n".join(wrapped(matrix.verdict(), indent="  ") for matrix in matrices))
    end = (
        "intervals (95 %) resample groups, those of losses widened for cross-fitting;\n"
        "they say nothing of how a probe varies when it is fitted anew"
    )
    return "\n\n".join([*blocks, end])


def _matrix_text(matrix: TransferMatrix, by: str) -> str:
    from probecascade.cli.tables import folded, wrapped

    wide = len(matrix.kinds) > _MOST_COLUMNS

    def share(record: Mapping[str, Any]) -> str:
        return "–" if record["value"] is None else f"{100 * record['value']:.0f} %"

    def rank(record: Mapping[str, Any]) -> str:
        return _number(record) if wide else _ranked(record)

    shown: dict[str, Callable[[Cell], str]] = {
        "AUROC of the probe on hidden states": lambda cell: rank(cell.auroc),
        "AUROC of the surface baseline": lambda cell: rank(cell.surface),
        f"successes kept / failures caught at the threshold that keeps {matrix.keep} where it was trained": (
            lambda cell: f"{share(cell.kept)} / {share(cell.caught)}"
        ),
    }
    sizes = sorted(set(matrix.train_size))
    size = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    counts = ", ".join(f"{_short(cell.test)} {cell.n} ({cell.failed} failed)" for cell in _first_row(matrix))
    head = f"{matrix.checkpoint}: rows are what a probe was trained on ({size} episodes each), columns the {by} it was "
    parts = ["\n".join([wrapped(f"{head}tested on"), wrapped(f"episodes: {counts}", indent="  ")])]
    for title, show in shown.items():
        rows = [[_short(row), *(show(matrix.cell(row, kind)) for kind in matrix.kinds)] for row in matrix.rows]
        parts.append(f"{title}\n{folded([by, *map(_short, matrix.kinds)], rows)}")
    return "\n\n".join(parts)


def _first_row(matrix: TransferMatrix) -> list[Cell]:
    return [matrix.cell(matrix.rows[0], kind) for kind in matrix.kinds]


def _cell_text(matrix: TransferMatrix, train: str, test: str) -> str:
    from probecascade.cli.tables import folded, wrapped

    rows = []
    for source, target in ((train, train), (test, test), (train, test)):
        cell = matrix.cell(source, target)
        shares = [_percent(cell.kept), _percent(cell.caught)]
        both = f"{_short(source)} – {_short(target)}"
        rows.append([both, str(cell.n), _ranked(cell.auroc), _ranked(cell.surface), *shares])
    titles = ["trained on – tested on", "n", "AUROC", "surface", f"kept (asked {matrix.keep})", "caught"]
    return f"{wrapped(matrix.verdict(train, test), indent='  ')}\n\n{folded(titles, rows)}"


def _short(kind: str) -> str:
    """Both ends of a long value."""
    return kind if len(kind) <= _LONGEST else f"{kind[: _LONGEST - 12]}…{kind[-11:]}"


def _number(record: Mapping[str, Any]) -> str:
    return "–" if record["value"] is None else f"{record['value']:.3f}"


def _ranked(record: Mapping[str, Any]) -> str:
    if record["value"] is None:
        return "–"
    return f"{record['value']:.3f} [{record['low']:.2f}, {record['high']:.2f}]"


def _percent(record: Mapping[str, Any]) -> str:
    if record["value"] is None:
        return "–"
    value, low, high = (100 * record[key] for key in ("value", "low", "high"))
    return f"{value:.0f} % [{low:.0f}, {high:.0f}]"
