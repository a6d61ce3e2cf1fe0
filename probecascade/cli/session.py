"""From a recipe to a model that plays: what `extract`, `run` and `quickstart` share.

Both sides of a comparison are opened here, so a live run describes its model by the very header that the
extraction wrote.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from probecascade import __version__
from probecascade.agents.chat import ChatFormat, Dialogue
from probecascade.agents.react import AgentSettings, ReActAgent, episode_id
from probecascade.agents.rewrites import rewrites
from probecascade.agents.templates import Template, chat_dialogue, chat_pieces, plain_template
from probecascade.cli.recipes import ExtractRecipe, plain
from probecascade.cli.tasks import TaskSet, task_set
from probecascade.environments.game_files import games_digest
from probecascade.episode import Recording, Task
from probecascade.errors import CascadeError, UsageError
from probecascade.interfaces import StoppingPolicy
from probecascade.models import LoadedModel, load
from probecascade.models.requests import Conversation
from probecascade.store import LAYER_CONVENTION, RunWriter, described_file

if TYPE_CHECKING:
    from probecascade.models.engine import Engine

SPLIT: Mapping[str, Any] = {"seed": 0, "shares": [50, 25, 25]}
"""How the groups of a run are split unless `fit` is told otherwise."""

T = TypeVar("T")

_MARGIN = 128  # ids for a longer question, a forced answer, a side question


@dataclass(frozen=True, slots=True)
class Session:
    """A model at work on a recipe, with an agent for each wording and temperature, (name, temperature), of it.

    `header` is the `run.json` of a run of it, without the store's own facts.
    """

    recipe: ExtractRecipe
    tasks: TaskSet
    engine: Engine
    agents: Mapping[tuple[str, float], ReActAgent]
    header: Mapping[str, Any]

    @property
    def agent(self) -> ReActAgent:
        """The agent of all episodes where the recipe varies nothing, else that of its first wording and temperature."""
        return next(iter(self.agents.values()))

    @property
    def template(self) -> Template:
        """The template of `agent`."""
        return self.agent.template

    def episodes(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, int]]:
        """The episodes of these tasks, each a task and its seed, task by task and in each of its variants."""
        for task in tasks:
            for repeat in range(self.recipe.tasks.repeats):
                for variant in self.tasks.variants(task):
                    yield variant, self.recipe.agent.seed + repeat

    def conversation(self, task: Task, seed: int, policy: StoppingPolicy | None = None) -> Conversation[Recording]:
        """One episode for the engine, in the wording and at the temperature that its task and seed are given.

        Both are recorded as attributes of the episode, with what the task set tells of it, over attributes of
        those names that the task may have.
        """
        agent = self.recipe.agent
        wording = _drawn("wording", agent.wording_names, task, seed)
        temperature = _drawn("temperature", agent.temperatures, task, seed)
        varied = {"wording": wording, "temperature": temperature, **self.tasks.told_of(task)}
        marked = dataclasses.replace(task, attributes={**task.attributes, **varied})
        return self.agents[wording, temperature].play(marked, self.tasks.environment(task, seed), seed, policy)


def _drawn(what: str, choices: Sequence[T], task: Task, seed: int) -> T:
    """The choice that falls to an episode: the same whatever other episodes are played, and in any order."""
    digest = hashlib.sha256(f"{what}\0{seed}\0{task.task_id}".encode("utf-8", "surrogatepass")).digest()
    return choices[int.from_bytes(digest[:8], "big") * len(choices) >> 64]


def open_session(
    recipe: ExtractRecipe,
    *,
    layers: Sequence[int] | None = None,
    tasks: TaskSet | None = None,
    adds: Sequence[str] = (),
    episodes: int | None = None,
) -> Session:
    """Load the model of a recipe and make it ready to play.

    `layers` are kept instead of the recipe's (an empty sequence: none). `tasks` saves reading them again.
    `adds` are texts for which an episode must have room beside its limits: what policies append or ask.
    With `episodes`, how many there will be, no more slots are made than these can fill.
    Raises ModelError for a model that cannot be loaded or layers that it lacks, UsageError where its context
    is too short for the recipe's limits or its chat template cannot be used.
    """
    from probecascade.models.engine import Engine
    from probecascade.models.hooks import text_config

    tasks = tasks or task_set(recipe)
    recipe = tasks.settled(recipe)
    section = recipe.model
    loaded = load(**dataclasses.asdict(section))
    chat: ChatFormat | None = None
    if recipe.agent.template == "chat":
        chat = renderer(loaded, "[agent]")
        dialogues = _dialogues(recipe, tasks, chat)
        templates = {wording: chat_pieces(dialogue, chat) for wording, dialogue in dialogues.items()}
    else:
        templates = _plain_templates(recipe, tasks, loaded)
    if layers is None:
        kept = recipe.capture.layers
        layers = range(text_config(loaded.model).num_hidden_layers + 1) if kept == "all" else kept
    engine = Engine(
        loaded.model,
        loaded.tokenizer,
        layers=tuple(layers),
        slots=min(recipe.agent.slots, max(1, episodes or recipe.agent.slots)),
        capacity=max(_capacity(recipe, tasks, template, loaded, adds) for template in templates.values()),
    )
    ends = _end_ids(loaded)
    agents = {
        (wording, temperature): ReActAgent(engine, template, _settings(recipe, temperature), ends)
        for (wording, template), temperature in itertools.product(templates.items(), recipe.agent.temperatures)
    }
    header = {
        "model": dict(loaded.identity),
        "n_layers": engine.n_layers,
        "d_model": engine.d_model,
        "layer_convention": LAYER_CONVENTION,
        "final_norm": False,
        **_described(recipe, templates),
    }
    if chat:
        wording, dialogue = next(iter(dialogues.items()))
        header["template_rewrites"] = _rewrites(dialogue, templates[wording], chat, engine)
    return Session(recipe, tasks, engine, agents, header)


def run_writer(session: Session, folder: Path, *, resume: bool = False, **header: Any) -> RunWriter:
    """A writer of the episodes that the session plays, with more for the run's header. Raises as `RunWriter` does."""
    engine, dtype = session.engine, session.recipe.capture.store_dtype
    described = {**session.header, **header}
    return RunWriter(folder, described, layers=engine.layers, d_model=engine.d_model, dtype=dtype, resume=resume)


def missing(episodes: Iterable[tuple[Task, int]], stored: Set[str]) -> list[tuple[Task, int]]:
    """Those of the episodes (task, seed) that are not stored."""
    return [(task, seed) for task, seed in episodes if episode_id(task, seed) not in stored]


def play(
    session: Session, episodes: Iterable[tuple[Task, int]], policy: StoppingPolicy | None = None
) -> Iterator[Recording]:
    """Play episodes (task, seed) and yield each as it ends, which is not the order in which they began.

    CascadeError if the session does not keep a layer that the policy reads.
    """
    missing = sorted(set(policy.layers if policy else ()) - set(session.engine.layers))
    if missing:
        raise CascadeError(
            f"the policy reads layers {missing}, but layers {list(session.engine.layers)} are kept: "
            "open the session with those of the policy."
        )
    return session.engine.run(session.conversation(task, seed, policy) for task, seed in episodes)


def _settings(recipe: ExtractRecipe, temperature: float) -> AgentSettings:
    section = recipe.agent
    assert section.max_rounds is not None  # settled by the tasks
    return AgentSettings(
        temperature=temperature,
        top_p=section.top_p,
        max_rounds=section.max_rounds,
        max_turn_tokens=section.max_turn_tokens,
        max_episode_tokens=section.max_episode_tokens,
        success_reward=recipe.environment.success_reward or 1.0,
        checkpoints=recipe.capture.checkpoints,
        store_dtype=recipe.capture.store_dtype,
    )


def _plain_templates(recipe: ExtractRecipe, tasks: TaskSet, loaded: LoadedModel) -> dict[str, Template]:
    return {
        wording: with_mark(plain_template(tasks.examples(), wording, tasks.usage), loaded.tokenizer)
        for wording in recipe.agent.wording_names
    }


def _dialogues(recipe: ExtractRecipe, tasks: TaskSet, chat: ChatFormat) -> dict[str, Dialogue]:
    return {
        wording: chat_dialogue(tasks.examples(), chat, wording, tasks.usage, recipe.agent.actions)
        for wording in recipe.agent.wording_names
    }


def _rewrites(dialogue: Dialogue, template: Template, chat: ChatFormat, engine: Engine) -> list[str]:
    """What the chat template does to history, said aloud once: the run keeps what the model read."""
    found = [*rewrites(dialogue, template, chat, engine), *(["states today's date"] if chat.dated else [])]
    if found:
        typer.echo(
            f"probecascade: rendered over a whole conversation, the model's chat template {', '.join(found)}; here the "
            "model reads what it wrote and was answered as it was, at the date of 1 January 2025 where one is asked "
            "for, and that is what is stored.",
            err=True,
        )
    return found


def renderer(loaded: LoadedModel, section: str) -> ChatFormat:
    """Renders messages in the model's chat format. UsageError, naming the recipe's section, where it has none."""
    tokenizer: Any = loaded.tokenizer
    if tokenizer.chat_template is None:
        raise UsageError(f'the model {loaded.source.name!r} has no chat template: set template = "plain" in {section}.')
    return ChatFormat(tokenizer)


def with_mark(template: Template, tokenizer: Any) -> Template:
    """A plain template that begins as the tokenizer begins every text: some models fall apart without that mark."""
    mark = tokenizer.decode(tokenizer("").input_ids, skip_special_tokens=False)
    return dataclasses.replace(template, head=mark + template.head) if mark else template


def _capacity(
    recipe: ExtractRecipe, tasks: TaskSet, template: Template, loaded: LoadedModel, adds: Sequence[str]
) -> int:
    """Ids that a slot must hold. UsageError if the model cannot read so many."""
    from probecascade.models.hooks import text_config

    longest = max((part.question for task in tasks.tasks for part in task.parts), key=len)
    tokenizer: Any = loaded.tokenizer
    prompt = tokenizer(template.head + template.first + longest + template.cue, add_special_tokens=False)
    agent = recipe.agent
    wanted = len(prompt.input_ids) + tasks.longest_opening + agent.max_episode_tokens + agent.max_turn_tokens + _MARGIN
    wanted += sum(len(tokenizer(text, add_special_tokens=False).input_ids) for text in adds)
    limit = getattr(text_config(loaded.model), "max_position_embeddings", None)
    if limit and wanted > limit:
        raise UsageError(
            f"an episode could take {wanted} tokens, but the model {loaded.source.name!r} reads {limit}: "
            "lower max_episode_tokens in [agent]."
        )
    return wanted


def _end_ids(loaded: LoadedModel) -> tuple[int, ...]:
    """Ids that close a message: the tokenizer's own, and those at which the model's makers stop generating."""
    ids: set[int] = set()
    configured = getattr(loaded.model.generation_config, "eos_token_id", None)
    for found in (loaded.tokenizer.eos_token_id, configured):
        ids.update([] if found is None else found if isinstance(found, list) else [found])
    return tuple(sorted(ids))


def _described(recipe: ExtractRecipe, templates: Mapping[str, Template]) -> dict[str, Any]:
    """What the recipe adds to a header. `recipe_identity` is all that may not change when a run is resumed.

    `template` is the identity of the one template, or a list of those of several.
    """
    identities = {wording: template.identity for wording, template in templates.items()}
    record = plain(recipe)
    del record["replay"], record["study"]
    tasks = {key: value for key, value in record["tasks"].items() if key not in ("groups", "repeats")}
    # Runs from before there were native calls and second sources say nothing of them and can still be resumed.
    agent = {k: v for k, v in record["agent"].items() if k != "slots" and (k, v) != ("actions", "react")}
    return {
        "template": sorted(identities.values()) if len(identities) > 1 else next(iter(identities.values())),
        "wordings": identities,
        "dtype": recipe.capture.store_dtype,
        "checkpoints": list(recipe.capture.checkpoints),
        "gates": list(recipe.capture.gates),
        "split": dict(SPLIT),
        "recipe": record,
        "recipe_identity": {
            "tasks": tasks | {key: Path(tasks[key]).name for key in ("set", "pages") if tasks[key]},
            "environment": {k: v for k, v in record["environment"].items() if (k, v) != ("backup", False)},
            "agent": agent,
        },
        **tasks_file(recipe),
        "versions": versions(),
    }


def tasks_file(recipe: ExtractRecipe) -> dict[str, Any]:
    """The header's `files` of a recipe whose tasks (and pages) are in files: a resumed run must find them unchanged.

    A folder of games counts as one file.
    """
    named = {"tasks": recipe.tasks.set, "pages": recipe.tasks.pages}
    files = {what: described_file(Path(path)) for what, path in named.items() if path and Path(path).is_file()}
    folder = Path(recipe.tasks.set)
    if folder.is_dir() and recipe.tasks.set != "atlas":
        files["tasks"] = {"name": folder.name, "sha256": games_digest(folder)}
    return {"files": files} if files else {}


def versions() -> dict[str, str]:
    """Of everything that has a say in the states."""
    return {
        "probecascade": __version__,
        "python": platform.python_version(),
        "torch": version("torch"),
        "transformers": version("transformers"),
    }
