"""The figures and the table of `docs/workbench.md`: what a sweep of a run and a cascade on it come to.

    probecascade sweep runs/atlas -o sweeps/atlas
    python benchmarks/workbench.py runs/atlas cascades/atlas --sweep sweeps/atlas

The folder is made anew as a whole: figures as SVG, their numbers as CSV, and README.md with the answer in words and
the table of checkpoints. `--transfer FILE` (`probecascade transfer ... --json`) adds the transfer matrix.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from probecascade.errors import ProbecascadeError
from probecascade.evaluation import SweepResult, failure_modes
from probecascade.policies import Cascade
from probecascade.report import Judged, Material, Table
from probecascade.store import Run

OUTPUT = Path(__file__).resolve().parents[1] / "docs" / "figures"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the folder; 2 on bad input."""
    parser = argparse.ArgumentParser(description="Make the figures and the table of the workbench's page.")
    parser.add_argument("run", type=Path)
    parser.add_argument("cascade", type=Path)
    parser.add_argument("--sweep", type=Path, required=True, help="what `probecascade sweep RUN -o FOLDER` wrote")
    parser.add_argument("--transfer", type=Path, help="what `probecascade transfer ... --json` printed")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="the folder that is replaced")
    given = parser.parse_args(argv)
    try:
        material = read(given.run, given.cascade, given.sweep, given.transfer)
        write(material, given.output)
    except (ProbecascadeError, OSError, ValueError) as error:
        print(f"workbench: {error}", file=sys.stderr)
        return 2
    print(f"{len(material.pictures)} figures in {given.output}")
    return 0


def read(run: Path, cascade: Path, sweep: Path, transfer: Path | None) -> Material:
    """What the page would be made of."""
    stored, loaded, swept = Run.open(run), Cascade.load(cascade), SweepResult.load(sweep)
    return Material(
        run=stored,
        sweep=swept.record(),
        scores=swept.scores,
        modes=failure_modes(stored),
        cascade=loaded,
        judged=Judged.of(loaded, stored),
        transfer=None if transfer is None else json.loads(transfer.read_text(encoding="utf-8")),
    )


def write(material: Material, folder: Path) -> None:
    """Replace a folder that this script made; ValueError for one that holds anything else."""
    if folder.exists() and {path.suffix for path in folder.iterdir()} - {".svg", ".csv", ".md"}:
        raise ValueError(f"{str(folder)!r} holds other files than figures: give another folder.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        for picture in material.pictures:
            (draft / f"{picture.name}.svg").write_bytes(picture.drawn("svg"))
            (draft / f"{picture.name}.csv").write_text(picture.csv(), encoding="utf-8")
        (draft / "README.md").write_text(summary(material), encoding="utf-8")
        draft.chmod(folder.parent.stat().st_mode & 0o777)
        if folder.exists():
            shutil.rmtree(folder)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def summary(material: Material) -> str:
    """The answer in words, the tables, and the figures with what they show, as Markdown."""
    page = material.page(limit=1)
    lines = ["# What the states of a run know", "", "Made by `benchmarks/workbench.py`.", ""]
    lines += [f"- {name}: {value}" for name, value in page.facts]
    lines += ["", "## The answer", "", *(f"- {sentence}" for sentence in (*page.verdicts, *page.cascade)), ""]
    for chapter in page.chapters:
        lines += [f"## {chapter.title}", ""]
        for picture in chapter.pictures:
            lines += [f"![{picture.alt}]({picture.name}.svg)", "", f"{picture.caption} [CSV]({picture.name}.csv)", ""]
        for table in chapter.tables:
            lines += [f"### {table.title}", "", *rows(table), "", table.note, ""]
    return "\n".join(lines)


def rows(table: Table) -> list[str]:
    """A table as Markdown."""
    return [
        f"| {' | '.join(table.titles)} |",
        f"|{'|'.join('---' for _ in table.titles)}|",
        *(f"| {' | '.join(row)} |" for row in table.rows),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
