"""Writes the page of a study, from the file of episodes and what was measured on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from probecascade.errors import UsageError

PAGE = "report.html"

_EPISODES = 2000  # in the page's browser at most

Group = tuple[str, str, str]  # model, split, condition


def check_page(path: Path, output: Path | None) -> None:
    """UsageError where no figure can be drawn, or the page is to stand where the study `output` or its files will;
    StoreError where something stands at that place already."""
    from probecascade.cli.study_folder import ABOUT, DEVELOPMENT, EPISODES
    from probecascade.evaluation.sweep_result import check_new
    from probecascade.report import new_figure

    new_figure(1, 1)
    check_new(path)
    made = () if output is None else (output, *(output / name for name in (EPISODES, ABOUT, DEVELOPMENT)))
    if path.resolve() in [each.resolve() for each in made]:
        raise UsageError(f"the page was to be {str(path)!r}, which the study itself makes: choose another place.")


def write_page(
    path: Path | None, episodes: Path, measured: Mapping[str, Any], groups: Sequence[Group], k: int, cost: float
) -> Path | None:
    """The page as a new file at `path`, and where it stands.

    Without a path it goes beside the episodes, in the place of an earlier page of the same study, which they can make
    again; None where the figures' library is missing, for the study itself is whole without them.
    """
    from dataclasses import asdict

    from probecascade.agents.recorded.source import read_source
    from probecascade.cli.report import write_new
    from probecascade.cli.study_text import published_beside
    from probecascade.environments.tasks import write_whole
    from probecascade.evaluation.judged_useless.published import SOURCE
    from probecascade.report import StudyMaterial, new_figure

    if path is None:
        try:
            new_figure(1, 1)
        except UsageError:
            return None
    left_out = {fault["line"] for fault in measured["faults"]}
    read = [value for line, value in read_source(episodes).records if line not in left_out]
    published = [asdict(row) for row in published_beside(groups)]
    text = StudyMaterial(measured, published, SOURCE, read, k, cost).page(limit=_EPISODES).html()
    if path is None:
        path = episodes.parent / PAGE
        write_whole(path, text.encode())
    else:
        write_new(path, text)
    return path
