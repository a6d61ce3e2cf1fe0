"""A figure with everything that goes with it: words for those who cannot see it, and its numbers as CSV."""

from __future__ import annotations

import csv
import io
import math
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probecascade.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, Any]

# Okabe and Ito, "Color Universal Design" (2008).
DOOMED, SUCCESS, TARGET = "#D55E00", "#0072B2", "#000000"
GREEN, ORANGE, PURPLE, SKY = "#009E73", "#E69F00", "#CC79A7", "#56B4E9"
HEAT = "viridis"

EXPORTS = ("png", "pdf", "csv")


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """One figure. `name`: stem of its files; `alt`: what it shows, with numbers; `caption`: how to read it.

    rows: the numbers that are drawn, one mapping per line of the CSV file, all with the same keys.
    """

    name: str
    title: str
    alt: str
    caption: str
    figure: Figure
    rows: Sequence[Row]

    def drawn(self, form: str) -> bytes:
        """The figure as a file of this form (svg, png, pdf), the same bytes every time."""
        from matplotlib import rc_context

        buffer = io.BytesIO()
        undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form)
        with literally(self.figure), rc_context({"svg.hashsalt": self.name}):
            if self.figure.get_layout_engine() is not None:  # once for all forms: it takes longest
                self.figure.draw_without_rendering()
                self.figure.set_layout_engine("none")
            self.figure.savefig(buffer, format=form, metadata=undated, dpi=200 if form == "png" else 120)
        return buffer.getvalue()

    def csv(self) -> str:
        """The numbers as comma-separated values; empty where there is none. Half of a character is its escape."""
        buffer = io.StringIO(newline="")
        lines = csv.DictWriter(buffer, fieldnames=list(self.rows[0]) if self.rows else [], lineterminator="\n")
        lines.writeheader()
        lines.writerows({key: _cell(value) for key, value in row.items()} for row in self.rows)
        return buffer.getvalue().encode("utf-8", "backslashreplace").decode("utf-8")


@contextmanager
def literally(figure: Figure) -> Iterator[None]:
    """Draw names (of gates, modes, kinds of episodes) as they are written, whatever the user's matplotlibrc says.

    `$` begins no formula, and a sign that the font lacks is drawn as a box, without a warning.
    """
    from matplotlib import rc_context
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)
        text.set_usetex(False)
    with warnings.catch_warnings(), rc_context({"text.parse_math": False, "text.usetex": False}):
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from")
        yield


def drawable(text: str) -> str:
    """The text with a replacement sign for what no picture can hold: controls, and halves of characters."""
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in text)


def _cell(value: Any) -> Any:
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else value


def check_exports(folder: str | Path) -> None:
    """UsageError where something is there already."""
    if Path(folder).exists():
        raise UsageError(f"{str(folder)!r} exists already: choose another folder for the figures.")


def export(pictures: Sequence[Picture], folder: str | Path) -> tuple[Path, ...]:
    """Write every figure as PNG, PDF and CSV into a new folder, all or none; their paths. UsageError if it exists."""
    check_exports(folder)
    files = {
        f"{picture.name}.{form}": picture.csv().encode() if form == "csv" else picture.drawn(form)
        for picture in pictures
        for form in EXPORTS
    }
    place = Path(folder)
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    try:
        for name, content in files.items():
            (draft / name).write_bytes(content)
        draft.chmod(place.parent.stat().st_mode & 0o777)
        draft.rename(place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return tuple(place / name for name in files)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of this size in inches. UsageError where matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError(
            'figures need matplotlib, which is not installed: pip install "probecascade[plot]".'
        ) from error
    return Figure(figsize=(width, height), dpi=120, layout="constrained")
