"""What a recipe may say: sections and keys of files in `extract/` and `calibrate/`, with their defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal

from probecascade.cli.toml import Between, plain, read_toml
from probecascade.environments.failures import Failure, Regime
from probecascade.errors import UsageError

__all__ = ["CalibrateRecipe", "ExtractRecipe", "plain", "read_calibrate", "read_extract"]

CheckpointKind = Literal["prompt", "thought", "action", "observation", "part", "turn_mean"]
Share = Annotated[float, Between(0, 1)]
Target = Annotated[Decimal, Between(0, 1, above=True)]
Count = Annotated[int, Between(1)]
Temperature = Annotated[float, Between(0)]
WordingName = Literal["plain", "terse", "polite", "formal"]


@dataclass(frozen=True, slots=True)
class ModelSection:
    """`[model]`: see `probecascade.models.load`."""

    name: str = "smollm2"
    revision: str | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: str = "auto"
    backend: Literal["transformers", "transformer-lens"] = "transformers"


@dataclass(frozen=True, slots=True)
class TasksSection:
    """`[tasks]`: what the agent is asked to do. A path is seen from the current folder.

    `set` is `atlas`, a file of tasks, or a folder of text games (ALFWorld's, TextWorld's; extra `games`), which are
    taken in an order that mixes their kinds. `groups` takes the first so many groups (None: all), `repeats` is the
    number of episodes per task, `pages` is a file of pages for tasks that name them or have none. The keys from `seed`
    on shape the generated set `atlas` and are refused beside a file; None leaves the set's default.
    """

    set: str = "atlas"
    pages: str | None = None
    groups: Count | None = None
    repeats: Count = 1
    seed: int | None = None
    parts: Count | None = None
    question: str | None = None
    distractors: tuple[str, ...] | None = None
    distracted: Share | None = None

    def __post_init__(self) -> None:
        if self.set == "atlas":
            if self.pages is not None:
                raise ValueError("pages belong to tasks from a file and were given for the generated set 'atlas'")
            return
        for key in ("seed", "parts", "question", "distractors", "distracted"):
            if getattr(self, key) is not None:
                raise ValueError(f"{key} shapes the generated set 'atlas' and was given for {self.set!r}: drop it")


@dataclass(frozen=True, slots=True)
class EnvironmentSection:
    """`[environment]`: `flakiness` is the share of first searches that fail and work on a second try.

    Text games are not searched: they take `failures` of a kind that needs no pages, and refuse the other keys.

    The other keys are those of `environments.WikiSettings`: how a page is found, whether there is a lookup, how an
    answer is scored and from which reward on it counts as right, and how many sentences of a page a search shows. None
    leaves what suits the layout of the tasks. `backup` adds a tool `backup_search`, which asks the same pages and never
    fails. `failures` says which results of an episode's calls are replaced (a
    regime of `environments.failures`, or several, under each of which every task is played), `failure_kind` by what
    (None: unrelated pages).
    """

    flakiness: Share = 0.0
    search: Literal["title", "closest", "bm25"] | None = None
    lookup: bool | None = None
    score: Literal["exact", "f1", "set-f1", "verdict"] | None = None
    success_reward: Annotated[float, Between(0, 1, above=True)] | None = None
    sentences: Count | None = None
    failures: str | tuple[str, ...] | None = None
    failure_kind: Failure | None = None
    backup: bool = False

    def __post_init__(self) -> None:
        if self.failures is None and self.failure_kind is not None:
            raise ValueError(
                "failure_kind is of no use without failures: give a regime such as failures = 'persistent'"
            )
        if self.failures is not None and not self.regimes:
            raise ValueError("failures is an empty list: name at least one")
        if len(set(self.regimes)) < len(self.regimes):
            raise ValueError("failures names something twice")
        for regime in self.regimes:
            try:
                Regime.named(regime)
            except UsageError as error:
                raise ValueError(str(error)) from error

    @property
    def regimes(self) -> tuple[str, ...]:
        """Every regime that a task is played under; none where nothing fails."""
        return (self.failures,) if isinstance(self.failures, str) else self.failures or ()


@dataclass(frozen=True, slots=True)
class AgentSection:
    """`[agent]`: how the model is asked and how far it may go.

    `actions` are words of the model ("Action: Search[Ada]"), or its native tool calls, which need its chat template.
    `max_rounds` is 20 unless said, 8 for tasks of public sets, 50 for text games, which end after as many commands.
    Token limits count generated tokens of a turn, and generated and observed tokens of an episode. `slots` is the
    number of episodes that are live at once. `seed` is that of the sampling. Of several `wordings` of the prompt
    (None: the plain one) and several temperatures each episode gets one of each, by a hash of its task and seed.
    """

    template: Literal["plain", "chat"] = "plain"
    actions: Literal["react", "tool_call"] = "react"
    wordings: tuple[WordingName, ...] | None = None
    temperature: Temperature | tuple[Temperature, ...] = 0.0
    top_p: Annotated[float, Between(0, 1, above=True)] = 1.0
    max_rounds: Count | None = None
    max_turn_tokens: Count = 64
    max_episode_tokens: Count = 1024
    slots: Count = 16
    seed: int = 0

    def __post_init__(self) -> None:
        if self.actions == "tool_call" and self.template != "chat":
            raise ValueError('actions = "tool_call" is written in the model\'s own format: add template = "chat"')
        for key, values in (("wordings", self.wording_names), ("temperature", self.temperatures)):
            if not values:
                raise ValueError(f"{key} is an empty list: name at least one")
            if len(set(values)) < len(values):
                raise ValueError(f"{key} names something twice")

    @property
    def wording_names(self) -> tuple[str, ...]:
        return ("plain",) if self.wordings is None else self.wordings

    @property
    def temperatures(self) -> tuple[float, ...]:
        return self.temperature if isinstance(self.temperature, tuple) else (self.temperature,)


@dataclass(frozen=True, slots=True)
class CaptureSection:
    """`[capture]`: which hidden states are kept, and where a cascade gates by default.

    Layer 0 is the embedding output, layer k the output of block k, negatives count from the last block.
    """

    layers: tuple[int, ...] | Literal["all"] = "all"
    checkpoints: tuple[CheckpointKind, ...] = ("prompt", "action", "observation", "part")
    store_dtype: Literal["float16", "float32", "bfloat16"] = "float16"
    gates: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for key in ("layers", "checkpoints", "gates"):
            values = getattr(self, key)
            if values != "all" and len(set(values)) < len(values):
                raise ValueError(f"{key} names something twice")
        for key in ("layers", "checkpoints"):
            if not getattr(self, key):
                raise ValueError(f"{key} is empty, so nothing would be kept")


@dataclass(frozen=True, slots=True)
class ReplaySection:
    """`[replay]`: how `extract --replay` lays out runs that other agents recorded.

    `template` is plain text or the model's chat format, `instruction` what stands first (None: a neutral sentence).
    `max_tokens` limits what is read of a run (None: the model's context).
    """

    template: Literal["plain", "chat"] = "plain"
    instruction: str | None = None
    max_tokens: Count | None = None


@dataclass(frozen=True, slots=True)
class StudySection:
    """`[study]`: which conditions of `study judged-useless` are played, and what drives their rules.

    A condition is a name of `policies.judged.CONDITIONS`, whose rule acts on the verdicts of `judge`; or the name of
    a judge (`side`, `odds`, `thought`, `lexical`, `probe`, and `random`, at the rate of `judge`), whose verdicts then
    drive the enforced rule. `_k3` at the end of a name sets its k; `tuned` is `enforced` at the k that does best on the
    development episodes, at `cost` per call. `development` is the number of tasks, beyond those of the recipe, on
    which probe, cut and rate are learnt; `learn` takes those of another study instead, by its folder.

    `cascade` is the folder of a cascade for the condition of that name, in which its aborts become answers. With
    `beliefs` the model is asked after every observation how likely success is.
    """

    conditions: tuple[str, ...] = ("none", "budget", "enforced", "combo", "lexical", "random")
    judge: Literal["side", "odds", "thought", "lexical", "probe"] = "probe"
    k: Count = 5
    cost: Annotated[float, Between(0)] = 0.05
    development: Annotated[int, Between(2)] = 30
    learn: str | None = None
    cascade: str | None = None
    beliefs: bool = False

    def __post_init__(self) -> None:
        if not self.conditions:
            raise ValueError("conditions is an empty list: name at least one")
        if len(set(self.conditions)) < len(self.conditions):
            raise ValueError("conditions names something twice")


@dataclass(frozen=True, slots=True)
class ExtractRecipe:
    """A file of `extract/`: which model does what, and what is kept of it."""

    model: ModelSection = field(default_factory=ModelSection)
    tasks: TasksSection = field(default_factory=TasksSection)
    environment: EnvironmentSection = field(default_factory=EnvironmentSection)
    agent: AgentSection = field(default_factory=AgentSection)
    capture: CaptureSection = field(default_factory=CaptureSection)
    replay: ReplaySection = field(default_factory=ReplaySection)
    study: StudySection = field(default_factory=StudySection)


@dataclass(frozen=True, slots=True)
class TargetsSection:
    """`[targets]`: what is promised, in numbers that are kept exactly as written.

    Either `recall`, rising shares of doomed episodes caught up to each gate, or `keep`, the share of would-be
    successes that no gate aborts.
    """

    recall: tuple[Target, ...] | None = None
    keep: Target | None = None
    method: str = "certified"
    confidence: Annotated[float, Between(0, 1, above=True)] = 0.95
    unit: str = "episode"

    def __post_init__(self) -> None:
        if self.recall is None and self.keep is None:
            raise ValueError("recall, keep or both must be given")
        if self.recall is not None and (not self.recall or list(self.recall) != sorted(set(self.recall))):
            raise ValueError(f"recall must rise, but is {', '.join(map(str, self.recall)) or 'empty'}")


@dataclass(frozen=True, slots=True)
class GatesSection:
    """`[gates]`: checkpoints such as `part:1` or `action:2`, or `auto`; None leaves the choice to run and targets.

    `max_gates` bounds `auto`; `answers` makes gates of turns that finish the episode too.
    """

    names: tuple[str, ...] | None = None
    max_gates: Count = 3
    answers: bool = False


@dataclass(frozen=True, slots=True)
class SplitSection:
    """`[split]`: shares of groups, in per cent, for fitting probes, calibrating thresholds and testing."""

    shares: tuple[Count, Count, Count] = (50, 25, 25)
    seed: int = 0

    def __post_init__(self) -> None:
        if sum(self.shares) != 100:
            raise ValueError(f"shares must add up to 100, but add up to {sum(self.shares)}")


@dataclass(frozen=True, slots=True)
class ProbeSection:
    """`[probe]`: layers to choose from (None: all of the run), strengths C to try (None: the usual ones).

    `kind` to `fusion` are those of `policies.ProbeSettings`; with `survivors` each gate's probe is fitted on the
    episodes that earlier gates let through. `trigger` lets a gate look only at a share of its moments, as
    `entropy_mean:0.5`; with `modes` aborts say how the episode likely fails, by `rules` or by a file.
    """

    layers: tuple[int, ...] | None = None
    strengths: tuple[Annotated[float, Between(0, above=True)], ...] | None = None
    kind: str = "logistic"
    calibrated: Literal["platt", "isotonic"] | None = None
    class_weight: Literal["balanced"] | None = None
    steps: tuple[str, ...] = ()
    last_layers: Count = 1
    pooled: Literal["concat", "average"] = "concat"
    fuse: tuple[Literal["signals", "text", "checks"], ...] = ()
    fusion: Literal["early", "late"] = "early"
    survivors: bool = False
    trigger: str | None = None
    modes: str | None = None


@dataclass(frozen=True, slots=True)
class CalibrateRecipe:
    """A file of `calibrate/`: what a cascade must catch or keep, where, and on which split."""

    targets: TargetsSection
    gates: GatesSection = field(default_factory=GatesSection)
    split: SplitSection = field(default_factory=SplitSection)
    probe: ProbeSection = field(default_factory=ProbeSection)


def read_extract(path: str | Path) -> ExtractRecipe:
    """Read an extraction recipe. Raises RecipeError with path and line."""
    return read_toml(path, ExtractRecipe)


def read_calibrate(path: str | Path) -> CalibrateRecipe:
    """Read a calibration recipe. Raises RecipeError with path and line."""
    return read_toml(path, CalibrateRecipe)
