"""How fast `extract` is, beside two loops on `model.generate`; what keeping states, a live hook and long runs cost.

Every side plays the same episodes with the same model, template, parser and environment, greedily, in one process.
`benchmarks/README.md` says what each side does.

    python benchmarks/extract.py --json
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import psutil  # type: ignore[import-untyped]
from loops_on_generate import attached_seconds, encode_head, limited_agent, play_by_generate
from machine import machine, positive

from probecascade.agents.react import ReActAgent
from probecascade.agents.record import EpisodeRecord
from probecascade.cli.options import changed
from probecascade.cli.recipes import ExtractRecipe, read_extract
from probecascade.cli.session import Session, open_session
from probecascade.episode import Decision, Episode, Moment, Recording, Task
from probecascade.errors import ProbecascadeError
from probecascade.interfaces import StoppingPolicy
from probecascade.models.requests import Request
from probecascade.policies import Cascade, Gate
from probecascade.probes import LinearProbe
from probecascade.store import RunWriter

PARTS = ("generate", "batched", "capture", "hook", "memory")
RECIPE = Path(__file__).parents[1] / "extract" / "quickstart.toml"

# The engine ----------------------------------------------------------------------------------------------------------


class TimedAgent(ReActAgent):
    """The session's agent, which notes the seconds of every look that a policy takes."""

    def __init__(self, session: Session) -> None:
        own = session.agent
        super().__init__(own.model, own.template, own.settings, sorted(own.end_ids))
        self.looks: list[float] = []

    def _look(self, record: EpisodeRecord, moment: Moment) -> Generator[Request, Any, Decision]:
        started = time.perf_counter()
        decision = yield from super()._look(record, moment)
        self.looks.append(time.perf_counter() - started)
        return decision


def play_by_engine(
    session: Session, agent: ReActAgent, episodes: Iterable[tuple[Task, int]], policy: StoppingPolicy | None = None
) -> Iterator[Recording]:
    """The episodes over the slots of the session's engine, each yielded as it ends."""
    environment = session.tasks.environment
    return session.engine.run(agent.play(task, environment(task, seed), seed, policy) for task, seed in episodes)


def extract(session: Session, episodes: Iterable[tuple[Task, int]], **limits: int) -> Iterator[Recording]:
    """What `probecascade extract` does: play, keep the states, store them in a run folder (which is removed)."""
    engine, dtype = session.engine, session.recipe.capture.store_dtype
    with (
        tempfile.TemporaryDirectory() as folder,
        RunWriter(
            Path(folder) / "run", session.header, layers=engine.layers, d_model=engine.d_model, dtype=dtype
        ) as writer,
    ):
        for recording in play_by_engine(session, limited_agent(session, session.agent.model, **limits), episodes):
            writer.add(recording)
            yield recording


def full_cascade(session: Session) -> Cascade:
    """A cascade with a probe at every checkpoint of the recipe, whose gates no score reaches."""
    rng = np.random.default_rng(0)
    d = session.engine.d_model
    probe = LinearProbe(mean=np.zeros(d), scale=np.ones(d), weight=rng.normal(size=d) / d, bias=0.0)
    rounds = range(1, session.agent.settings.max_rounds + 1)
    kinds = [kind for kind in session.agent.settings.checkpoints if kind != "prompt"]
    names = ["prompt", *(f"{kind}:{number}" for kind in kinds for number in rounds)]
    return Cascade([Gate(name, session.engine.layers[-1], probe, threshold=1.5) for name in names], gate_answers=True)


# What is measured ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Side:
    """One way of playing the episodes: the seconds of each run, and the last run's episodes by id."""

    name: str
    seconds: list[float] = dataclasses.field(default_factory=list)
    episodes: dict[str, Episode] = dataclasses.field(default_factory=dict)

    def steps(self, recordings: Iterable[Recording]) -> Iterator[None]:
        """Play one episode at each step, on a clock that stands still between the steps."""
        self.episodes, left = {}, iter(recordings)
        self.seconds.append(0.0)
        while True:
            started = time.perf_counter()
            recording = next(left, None)
            self.seconds[-1] += time.perf_counter() - started
            if recording is None:
                break
            self.episodes[recording.episode.episode_id] = recording.episode
            yield
        print(f"{self.name}: {len(self.episodes)} episodes in {self.seconds[-1]:.1f} s", file=sys.stderr)

    def time(self, recordings: Iterable[Recording]) -> None:
        for _ in self.steps(recordings):
            pass

    @property
    def tokens(self) -> int:
        return sum(episode.tokens for episode in self.episodes.values())

    @property
    def pace(self) -> float:
        """Seconds per token (generated and observed): per episode too, where the same ones were played."""
        return statistics.median(self.seconds) / self.tokens

    def equal_to(self, other: Side) -> int:
        """How many episodes have the very ids that they have on the other side."""
        ours = self.episodes.items()
        return sum(np.array_equal(episode.token_ids, other.episodes[name].token_ids) for name, episode in ours)

    def record(self) -> dict[str, Any]:
        outcomes = [episode.outcome for episode in self.episodes.values()]
        return {
            "episodes": len(outcomes),
            "successes": outcomes.count("success"),
            "errors": outcomes.count("error"),
            "tokens": self.tokens,
            "seconds": [round(s, 3) for s in self.seconds],
            "episodes_per_second": len(outcomes) / statistics.median(self.seconds),
        }


def measure_speed(session: Session, only: Sequence[str], repeats: int, serial: int) -> dict[str, Any]:
    """Extraction beside the loops on `generate`; one warm-up round each first."""
    episodes = list(session.episodes(session.tasks.tasks))
    engine = Side("extract")
    list(extract(session, episodes, max_rounds=1))
    found: dict[str, Any] = {"token_equal": {}, "sides": {}}
    if "capture" in only:
        found["capture_overhead"] = measure_capture(session, episodes, engine, found["sides"], repeats)
    else:
        for _ in range(repeats):
            engine.time(extract(session, episodes))
    found["sides"][engine.name] = engine.record()
    for part, name, width in (("batched", "batched_generate", session.engine.slots), ("generate", "generate", 1)):
        if part in only:
            chosen = episodes if width > 1 else episodes[:serial]
            prefix = encode_head(session) if width > 1 else None
            side = Side(name)
            list(play_by_generate(session, chosen[:width], width, prefix, max_rounds=1))
            side.time(play_by_generate(session, chosen, width, prefix))
            found[f"speedup_vs_{name}"] = side.pace / engine.pace
            found["token_equal"][name] = {"equal": side.equal_to(engine), "of": len(chosen)}
            found["sides"][name] = side.record()
    return found


def measure_capture(
    session: Session, episodes: list[tuple[Task, int]], engine: Side, sides: dict[str, Any], repeats: int
) -> float:
    """Seconds of extraction over those of an engine that keeps no state and stores nothing, minus 1.

    The two play in turns of one episode, each on a model and cache of its own. Both do the same steps of decoding
    with the same batches, so each step counts with the least of its times over the repeats: the cost is far smaller
    than what a machine's other work adds to some steps of one run.
    """
    bare, keeping_none = Side("keep_nothing"), open_session(session.recipe, layers=(), tasks=session.tasks)
    list(play_by_engine(keeping_none, limited_agent(keeping_none, keeping_none.agent.model, max_rounds=1), episodes))
    clocks = StepClock(session), StepClock(keeping_none)
    for _ in range(repeats):
        both = [
            engine.steps(extract(session, episodes)),
            bare.steps(play_by_engine(keeping_none, keeping_none.agent, episodes)),
        ]
        for _ in itertools.zip_longest(*both):
            pass
        for side, clock in zip((engine, bare), clocks, strict=True):
            clock.end_run(side.seconds[-1])
    sides[bare.name] = bare.record()
    return clocks[0].least() / clocks[1].least() - 1


class StepClock:
    """The seconds of every step of an engine's decoding, run by run, and those spent between the steps."""

    def __init__(self, session: Session) -> None:
        self.runs: list[list[float]] = []
        self.between: list[float] = []
        self._now: list[float] = []
        engine = cast(Any, session.engine)
        step = engine._tick

        def timed(live: Any) -> None:
            started = time.perf_counter()
            step(live)
            self._now.append(time.perf_counter() - started)

        engine._tick = timed

    def end_run(self, seconds: float) -> None:
        """Close a run that took so many seconds in all."""
        self.runs.append(self._now)
        self.between.append(seconds - sum(self._now))
        self._now = []

    def least(self) -> float:
        """Seconds of a run in which every step takes the least of its times, and so does what lies between them."""
        return float(np.min(np.array(self.runs), axis=0).sum()) + min(self.between)


def measure_hook(session: Session) -> dict[str, float]:
    """What a cascade costs at each checkpoint, and its share of the time of the run; and in a loop of one's own."""
    cascade, agent, side = full_cascade(session), TimedAgent(session), Side("live_hook")
    side.time(play_by_engine(session, agent, session.episodes(session.tasks.tasks), cascade))
    return {
        "hook_ms": 1e3 * statistics.median(agent.looks),
        "hook_share": sum(agent.looks) / side.seconds[0],
        "attached_hook_ms": 1e3 * statistics.median(attached_seconds(session, cascade)),
    }


def measure_memory(session: Session, early: int, late: int) -> dict[str, Any]:
    """Resident bytes after `late` short episodes over those after `early`, in one extraction."""
    tasks = session.tasks.tasks
    episodes = ((tasks[i % len(tasks)], i // len(tasks)) for i in range(late))
    process, resident = psutil.Process(), {}
    for count, _ in enumerate(extract(session, episodes, max_rounds=2, max_turn_tokens=8), 1):
        if count in (early, late):
            gc.collect()
            resident[count] = process.memory_info().rss
    return {"memory_growth": resident[late] / resident[early] - 1, "resident_bytes": resident}


def ran_on(session: Session) -> dict[str, Any]:
    """The machine, and what was run on it."""
    recipe = session.recipe
    return {
        **machine(),
        "device": str(session.engine.device),
        "model": recipe.model.name,
        "dtype": recipe.model.dtype,
        "episodes": len(session.tasks.tasks),
        "slots": session.engine.slots,
        "layers": list(session.engine.layers),
        "checkpoints": list(recipe.capture.checkpoints),
    }


def greedy_recipe(options: argparse.Namespace) -> ExtractRecipe:
    """The recipe of these options, without chance: every side must play the same episodes."""
    recipe = changed(read_extract(options.recipe), "model", name=options.model, dtype=options.dtype)
    recipe = changed(recipe, "tasks", groups=options.episodes, repeats=1)
    return changed(recipe, "agent", temperature=0.0, top_p=1.0, slots=options.slots)


def playing_options(description: str | None, recipe: Path, episodes: int) -> argparse.ArgumentParser:
    """The command line of a benchmark that plays a recipe, whose first line of documentation describes it."""
    parser = argparse.ArgumentParser(description=(description or "").split("\n", 1)[0])
    add = parser.add_argument
    add("--json", action="store_true", help="print one JSON object and nothing else on the standard output")
    add("--recipe", type=Path, default=recipe, help=f"what is played (default: extract/{recipe.name})")
    add("--model", help="model instead of the recipe's: a name, folder, .gguf file or hub id")
    add("--dtype", choices=("float32", "bfloat16", "float16"), help="what the model computes in")
    add("--episodes", type=positive, default=episodes, help=f"episodes that every side plays (default: {episodes})")
    add("--slots", type=positive, help="episodes that are live at once")
    return parser


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = playing_options(__doc__, RECIPE, 16)
    add = parser.add_argument
    add("--serial-episodes", type=positive, help="play only the first so many one at a time and compare by token")
    add("--repeats", type=positive, default=3, help="runs of the engine with and without states (default: 3)")
    add("--memory-episodes", type=positive, nargs=2, default=(50, 400), metavar=("EARLY", "LATE"))
    add("--only", nargs="+", choices=PARTS, default=PARTS, help="measure these parts only")
    options = parser.parse_args(arguments)
    if options.memory_episodes[0] > options.memory_episodes[1]:
        parser.error("--memory-episodes must rise: give the smaller number first, such as 50 400")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. 1 if a float32 transcript differs from that of `generate` one at a time, 2 on bad input."""
    options = read_options(arguments)
    try:
        session = open_session(greedy_recipe(options))
        report: dict[str, Any] = {"ran_on": ran_on(session)}
        if set(options.only) & {"generate", "batched", "capture"}:
            report |= measure_speed(session, options.only, options.repeats, options.serial_episodes or options.episodes)
        if "hook" in options.only:
            report |= measure_hook(session)
        if "memory" in options.only:
            report |= measure_memory(session, *options.memory_episodes)
    except ProbecascadeError as error:
        print(f"benchmarks/extract.py: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps(report, indent=None if options.json else 2))
    exact = report.get("token_equal", {}).get("generate", {"equal": 0, "of": 0})
    return int(session.recipe.model.dtype == "float32" and exact["equal"] < exact["of"])


if __name__ == "__main__":
    raise SystemExit(main())
