"""What a stored run says about the task set: is doom early, silent and costly, and do simple rules see it?

python data/atlas/measure.py RUN

Prints Markdown. Rules are replayed over all labelled episodes; cascades are fitted and judged on the test groups of
four different splits, of which the mean is shown.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable

import numpy as np

from probecascade.episode import Episode, Recording
from probecascade.evaluation import backtest_run, replay_policy
from probecascade.interfaces import StoppingPolicy
from probecascade.policies import FailedSearches, FirstRepeatedFailedSearch, RepeatedActions, TokenLimit, fit_cascade
from probecascade.store import Run

KEEP = "0.95"
SPLITS = range(4)
FAILED = ("not_found", "tool_error", "invalid")


def main(path: str) -> None:
    """Read the run at `path` and print its tables."""
    run = Run.open(path)
    labelled = np.flatnonzero(run.episodes.labelled)
    recordings = [Recording(run.episode(int(i)), run.hidden(int(i))) for i in labelled]
    print(_facts([r.episode for r in recordings]))
    print("| stopping rule | tokens saved | failures caught | successes kept |\n|---|---|---|---|")
    limit = int(np.quantile([r.episode.tokens for r in recordings if not r.episode.failed], float(KEEP)))
    rules: list[tuple[str, StoppingPolicy]] = [("first repeated failed search", FirstRepeatedFailedSearch())]
    rules += [(f"{k} failed searches", FailedSearches(k)) for k in (1, 2, 3)]
    rules += [(f"{k} repeated actions", RepeatedActions(k)) for k in (1, 2, 3)]
    rules.append((f"longer than {limit} tokens", TokenLimit(limit)))
    for name, rule in rules:
        print(_row(name, *_replayed(rule, recordings, run)))
    for uses in ("signals", "states"):
        print(_row(f"{'probe' if uses == 'states' else 'surface'} cascade, keep {KEEP}", *_fitted(run, uses)))


def _facts(episodes: list[Episode]) -> str:
    failed = [e for e in episodes if e.failed]
    won = [e for e in episodes if not e.failed]
    doomed = Counter(_doomed_part(e) for e in failed)
    wasted = sum(e.tokens - e.doomed_tokens for e in failed if e.doomed_tokens is not None)
    lines = [
        ("episodes", f"{len(episodes)}"),
        ("success share", _share(len(won), len(episodes))),
        ("tokens of a success / a failure, mean", f"{_mean(won):.0f} / {_mean(failed):.0f}"),
        ("tokens spent by doomed episodes after their doom", _share(wasted, sum(e.tokens for e in episodes))),
        ("successes that follow a failed search", _share(sum(map(_met_failure, won)), len(won))),
        ("failures without any failed search", _share(sum(not _met_failure(e) for e in failed), len(failed))),
        ("doomed in part", ", ".join(f"{part}: {count}" for part, count in sorted(doomed.items(), key=str))),
    ]
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in lines), ""])


def _doomed_part(episode: Episode) -> int | str:
    return next((s.part for s in episode.steps if s.round == episode.doomed_round), "ran out")


def _met_failure(episode: Episode) -> bool:
    return any(step.observation_kind in FAILED for step in episode.steps)


def _mean(episodes: list[Episode]) -> float:
    return float(np.mean([e.tokens for e in episodes])) if episodes else float("nan")


def _share(count: float, total: float) -> str:
    return f"{100 * count / total:.1f} %" if total else "-"


def _replayed(rule: StoppingPolicy, recordings: list[Recording], run: Run) -> tuple[float, float, float]:
    saved = caught = kept = 0
    for recording in recordings:
        episode = recording.episode
        decision = replay_policy(rule, recording, layers=run.layers)
        if decision is None:
            kept += not episode.failed
        else:
            at = next(c for c in episode.checkpoints if c.name == decision.gate)
            saved += episode.tokens - at.tokens
            caught += episode.failed
    failed = sum(r.episode.failed for r in recordings)
    total = sum(r.episode.tokens for r in recordings)
    return saved / total, caught / failed, kept / (len(recordings) - failed)


def _fitted(run: Run, uses: str) -> tuple[float, float, float]:
    results = []
    for split in SPLITS:
        gates = run.header["gates"]
        fitted = fit_cascade(run, keep=KEEP, gates=gates, uses=uses, split_seed=split)  # type: ignore[arg-type]
        found = backtest_run(fitted.cascade, run, "test")
        results.append((found.saved["tokens"].share.value, found.caught.value, found.kept.value))
    saved, caught, kept = (float(np.mean(column)) for column in zip(*results, strict=True))
    return saved, caught, kept


_percent: Callable[[float], str] = "{:.1%}".format


def _row(name: str, saved: float, caught: float, kept: float) -> str:
    return f"| {name} | {_percent(saved)} | {_percent(caught)} | {_percent(kept)} |"


if __name__ == "__main__":
    main(sys.argv[1])
