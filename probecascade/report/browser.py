"""The episode browser's data: transcripts with the score at every checkpoint, as compact JSON that no HTML can break.

A score is shown only where it is held out. Those of a sweep are out of fold for every episode. A cascade's own are
left out for episodes whose group fitted its probes, and so is what it would have done with them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probecascade.episode import Episode
from probecascade.report.held_out import Judged
from probecascade.store import Run

Scores = Mapping[str, NDArray[np.float64]]

_DIGITS = 4  # of a score that is shown
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def browser_record(
    run: Run, modes: NDArray[Any], scores: Scores, judged: Judged | None, *, limit: int | None = None
) -> dict[str, Any]:
    """What the page's script reads.

    modes: (n_episodes,) text; scores: by checkpoint, (n_episodes,) out-of-fold P(failure), NaN where there is none.
    limit: at most so many episodes, evenly spaced over the run.
    """
    shown = np.arange(len(run))
    if limit is not None and limit < len(run):
        shown = np.linspace(0, len(run) - 1, limit).round().astype(int)
    texts: dict[str, int] = {}  # observations, which many episodes share
    names = {name: place for place, name in enumerate(run.checkpoint_names)}
    return {
        "of": len(run),
        "base": _number(float(run.episodes.failed[run.episodes.labelled].mean())),
        "checkpoints": list(names),
        "gates": [] if judged is None else _gates(judged),
        "episodes": [
            _episode(run.episode(index), index, modes[index], scores, judged, names, texts) for index in shown.tolist()
        ],
        "texts": list(texts),
    }


def as_script(record: Any) -> str:
    """JSON that may stand inside a script element, whatever its texts hold."""
    text = json.dumps(record, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for sign, escape in _ESCAPES.items():
        text = text.replace(sign, escape)
    return text.encode("utf-8", "replace").decode("utf-8")  # half a surrogate pair is no text


def _gates(judged: Judged) -> list[dict[str, Any]]:
    return [
        {"name": name, "threshold": _number(threshold)}
        for name, threshold in zip(judged.gates, judged.thresholds.tolist(), strict=True)
    ]


def _episode(
    episode: Episode,
    index: int,
    mode: str,
    scores: Scores,
    judged: Judged | None,
    names: Mapping[str, int],
    texts: dict[str, int],
) -> dict[str, Any]:
    gates: Mapping[str, int] = {}
    abort = None
    if judged is not None and judged.part[index] != "fit":
        gates = {name: g for g, name in enumerate(judged.gates)}
        abort = int(judged.first[index])
    points = []
    for point in episode.checkpoints:
        held_out = float(scores[point.name][index]) if point.name in scores else float("nan")
        own = float("nan")
        if judged is not None and point.name in gates:
            own = float(judged.table.scores[index, gates[point.name]])
        points.append([names[point.name], point.round, point.tokens, _number(held_out), _number(own)])
    saved = None
    if judged is not None and abort is not None and abort >= 0:
        table = judged.table
        saved = [int(table.tokens_after[index, abort]), int(table.calls_after[index, abort])]
    return {
        "id": episode.episode_id,
        "group": episode.group,
        "outcome": episode.outcome,
        "reason": episode.reason,
        "mode": mode,
        "part": "" if judged is None else str(judged.part[index]),
        "tokens": episode.tokens,
        "rounds": len(episode.steps),
        "lost": None if episode.doomed_tokens is None else [episode.doomed_round, episode.doomed_tokens],
        "abort": abort,
        "saved": saved,
        "live": episode.decision.reason if episode.decision is not None else "",
        "about": {str(key): _plain(value) for key, value in episode.attributes.items()},
        "points": points,
        "steps": [
            [step.round, step.part, step.text.strip(), texts.setdefault(step.observation.strip(), len(texts)),
             step.observation_kind]
            for step in episode.steps
        ],
    }  # fmt: skip


def _number(value: float) -> float | None:
    return round(value, _DIGITS) if np.isfinite(value) else None


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
