"""What side questions cost: the time that they add beside the tokens that they add, with every episode left as it was.

Every side plays the same episodes greedily with one engine, in one process. `benchmarks/README.md` says what each side
asks and how its figures are defined.

    python benchmarks/side_questions.py --json
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from machine import positive

from extract import greedy_recipe, playing_options, ran_on
from probecascade.cli.session import Session, open_session, play
from probecascade.episode import Episode, Task
from probecascade.errors import ProbecascadeError
from probecascade.interfaces import StoppingPolicy
from probecascade.policies.judged import ASKED_WORD, Judged, OddsJudge, SideQuestionJudge, rule_named

RECIPE = Path(__file__).parents[1] / "extract" / "judged-useless-atlas.toml"


@dataclasses.dataclass
class Side:
    """One way of playing the episodes: what each run of it took, and the last run's episodes by id."""

    name: str
    policy: StoppingPolicy | None
    wall: list[float] = dataclasses.field(default_factory=list)
    cpu: list[float] = dataclasses.field(default_factory=list)
    computed: int = 0  # ids that went through the model in the last run
    episodes: dict[str, Episode] = dataclasses.field(default_factory=dict)

    def time(self, session: Session, episodes: Sequence[tuple[Task, int]]) -> None:
        """Play all episodes on a clock of the wall and on one of this process's CPU time."""
        before, wall, cpu = session.engine.tokens_computed, time.perf_counter(), time.process_time()
        played = [recording.episode for recording in play(session, episodes, self.policy)]
        self.wall.append(time.perf_counter() - wall)
        self.cpu.append(time.process_time() - cpu)
        self.computed = session.engine.tokens_computed - before
        self.episodes = {episode.episode_id: episode for episode in played}
        print(
            f"{self.name}: {len(played)} episodes in {self.wall[-1]:.1f} s, {self.cpu[-1]:.1f} s of CPU",
            file=sys.stderr,
        )

    def equal_to(self, other: Side) -> int:
        """How many episodes have the very ids that they have on the other side."""
        ours = self.episodes.items()
        return sum(np.array_equal(episode.token_ids, other.episodes[name].token_ids) for name, episode in ours)

    def record(self) -> dict[str, Any]:
        episodes = self.episodes.values()
        return {
            "wall_seconds": [round(s, 3) for s in self.wall],
            "cpu_seconds": [round(s, 3) for s in self.cpu],
            "tokens_computed": self.computed,
            "main_tokens": sum(episode.tokens for episode in episodes),
            "side_tokens": sum(episode.side_tokens for episode in episodes),
            "errors": sum(episode.outcome == "error" for episode in episodes),
        }

    def beside(self, plain: Side) -> dict[str, Any]:
        """What this side adds to the plain one, as shares of it; of the times, the median over the repeats."""
        share = self.computed / plain.computed - 1
        wall, cpu = _added(self.wall, plain.wall), _added(self.cpu, plain.cpu)
        return {
            "token_equal": {"equal": self.equal_to(plain), "of": len(self.episodes)},
            "token_share": share,
            "added_time": wall,
            "ratio": wall / share,
            "added_cpu_time": cpu,
            "cpu_ratio": cpu / share,
        }


def _added(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of what a run adds to the plain one of the same turn: both met the same load of the machine."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True)) - 1


def all_sides() -> list[Side]:
    """No policy at all, and policies that ask after every observation and do nothing about the answers."""
    side, odds, rule = SideQuestionJudge(), OddsJudge(), rule_named("none")
    return [
        Side("plain", None),
        Side("side", Judged(rule, also=[side])),
        Side("odds", Judged(rule, also=[odds])),
        Side("both", Judged(rule, also=[side, odds])),
    ]


def one_regime_each(session: Session) -> Iterator[tuple[Task, int]]:
    """Every task of the session once, under the failures of the recipe in turn."""
    for place, task in enumerate(session.tasks.tasks):
        variants = session.tasks.variants(task)
        yield variants[place % len(variants)], session.recipe.agent.seed


def measure(session: Session, sides: Sequence[Side], repeats: int) -> dict[str, Any]:
    """Play all sides in turns, after one episode with all questions; every second time in the opposite order."""
    episodes = list(one_regime_each(session))
    list(play(session, episodes[:1], sides[-1].policy))
    for turn in range(repeats):
        for side in sides[:: -1 if turn % 2 else 1]:
            side.time(session, episodes)
    plain, *asking = sides
    records = {plain.name: plain.record()}
    return {"sides": records | {side.name: {**side.record(), **side.beside(plain)} for side in asking}}


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = playing_options(__doc__, RECIPE, 24)
    parser.add_argument("--repeats", type=positive, default=3, help="runs of every side (default: 3)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. 1 if questions changed a float32 transcript, 2 on bad input."""
    options = read_options(arguments)
    try:
        session = open_session(greedy_recipe(options), layers=(), adds=(ASKED_WORD,), episodes=options.episodes)
        report = {"ran_on": ran_on(session), **measure(session, all_sides(), options.repeats)}
    except ProbecascadeError as error:
        print(f"benchmarks/side_questions.py: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps(report, indent=None if options.json else 2))
    changed = any(s["token_equal"]["equal"] < s["token_equal"]["of"] for s in report["sides"].values() if "ratio" in s)
    return int(session.recipe.model.dtype == "float32" and changed)


if __name__ == "__main__":
    raise SystemExit(main())
