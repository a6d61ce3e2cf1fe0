"""From a recipe to a model that plays: what `extract`, `run` and `quickstart` share.

Both sides of a comparison are opened here, so a live run describes its model by the very header that the
extraction wrote.
"""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probecascade import __version__
from probecascade.agents.react import AgentSettings, ReActAgent
from probecascade.agents.templates import Template, chat_template, plain_template
from probecascade.cli.recipes import ExtractRecipe, plain
from probecascade.cli.tasks import TaskSet, repeated, task_set
from probecascade.episode import Recording, Task
from probecascade.errors import CascadeError, UsageError
from probecascade.interfaces import StoppingPolicy
from probecascade.models import LoadedModel, load
from probecascade.store import LAYER_CONVENTION

if TYPE_CHECKING:
    from probecascade.models.engine import Engine

SPLIT: Mapping[str, Any] = {"seed": 0, "shares": [50, 25, 25]}
"""How the groups of a run are split unless `fit` is told otherwise."""

_MARGIN = 128  # ids for a longer question, a forced answer, a side question


@dataclass(frozen=True, slots=True)
class Session:
    """A model at work on a recipe. `header` is the `run.json` of a run of it, without the store's own facts."""

    recipe: ExtractRecipe
    tasks: TaskSet
    engine: Engine
    agent: ReActAgent
    template: Template
    header: Mapping[str, Any]

    def episodes(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, int]]:
        """The episodes of these tasks, each a task and its seed, in order."""
        return repeated(tasks, self.recipe)


def open_session(
    recipe: ExtractRecipe, *, layers: Sequence[int] | None = None, tasks: TaskSet | None = None
) -> Session:
    """Load the model of a recipe and make it ready to play.

    `layers` are kept instead of the recipe's (an empty sequence: none). `tasks` saves reading them again.
    Raises ModelError for a model that cannot be loaded or layers that it lacks, UsageError where its context
    is too short for the recipe's limits or its chat template cannot be used.
    """
    from probecascade.models.engine import Engine

    tasks = tasks or task_set(recipe)
    section = recipe.model
    loaded = load(section.name, revision=section.revision, dtype=section.dtype, device=section.device)
    template = _template(recipe, tasks, loaded)
    if layers is None:
        kept = recipe.capture.layers
        layers = range(_text_config(loaded).num_hidden_layers + 1) if kept == "all" else kept
    engine = Engine(
        loaded.model,
        loaded.tokenizer,
        layers=tuple(layers),
        slots=recipe.agent.slots,
        capacity=_capacity(recipe, tasks, template, loaded),
    )
    agent = ReActAgent(engine, template, _settings(recipe), _end_ids(loaded))
    header = {
        "model": dict(loaded.identity),
        "n_layers": engine.n_layers,
        "d_model": engine.d_model,
        "layer_convention": LAYER_CONVENTION,
        "final_norm": False,
        **_described(recipe, template),
    }
    return Session(recipe, tasks, engine, agent, template, header)


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
    return session.engine.run(
        session.agent.play(task, session.tasks.environment(task, seed), seed, policy) for task, seed in episodes
    )


def _settings(recipe: ExtractRecipe) -> AgentSettings:
    section = recipe.agent
    return AgentSettings(
        temperature=section.temperature,
        top_p=section.top_p,
        max_rounds=section.max_rounds,
        max_turn_tokens=section.max_turn_tokens,
        max_episode_tokens=section.max_episode_tokens,
        checkpoints=recipe.capture.checkpoints,
        store_dtype=recipe.capture.store_dtype,
    )


def _template(recipe: ExtractRecipe, tasks: TaskSet, loaded: LoadedModel) -> Template:
    tokenizer: Any = loaded.tokenizer
    if recipe.agent.template == "chat":
        if tokenizer.chat_template is None:
            raise UsageError(
                f'the model {loaded.source.name!r} has no chat template: set template = "plain" in [agent].'
            )
        return chat_template(
            tasks.examples(),
            lambda messages: tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True),
        )
    template = plain_template(tasks.examples())
    # Some models fall apart without the mark that their tokenizer puts before every text.
    opening = tokenizer.decode(tokenizer("").input_ids, skip_special_tokens=False)
    return dataclasses.replace(template, head=opening + template.head) if opening else template


def _capacity(recipe: ExtractRecipe, tasks: TaskSet, template: Template, loaded: LoadedModel) -> int:
    """Ids that a slot must hold. UsageError if the model cannot read so many."""
    longest = max((part.question for task in tasks.tasks for part in task.parts), key=len)
    tokenizer: Any = loaded.tokenizer
    prompt = tokenizer(template.head + template.first + longest + template.cue, add_special_tokens=False)
    agent = recipe.agent
    wanted = len(prompt.input_ids) + agent.max_episode_tokens + agent.max_turn_tokens + _MARGIN
    limit = getattr(_text_config(loaded), "max_position_embeddings", None)
    if limit and wanted > limit:
        raise UsageError(
            f"an episode could take {wanted} tokens, but the model {loaded.source.name!r} reads {limit}: "
            "lower max_episode_tokens in [agent]."
        )
    return wanted


def _text_config(loaded: LoadedModel) -> Any:
    return loaded.model.config.get_text_config()


def _end_ids(loaded: LoadedModel) -> tuple[int, ...]:
    """Ids that close a message: the tokenizer's own, and those at which the model's makers stop generating."""
    ids: set[int] = set()
    configured = getattr(loaded.model.generation_config, "eos_token_id", None)
    for found in (loaded.tokenizer.eos_token_id, configured):
        ids.update([] if found is None else found if isinstance(found, list) else [found])
    return tuple(sorted(ids))


def _described(recipe: ExtractRecipe, template: Template) -> dict[str, Any]:
    """What the recipe adds to a header. `recipe_identity` is all that may not change when a run is resumed."""
    record = plain(recipe)
    tasks = {key: value for key, value in record["tasks"].items() if key not in ("groups", "repeats")}
    agent = {key: value for key, value in record["agent"].items() if key != "slots"}
    return {
        "template": template.identity,
        "dtype": recipe.capture.store_dtype,
        "checkpoints": list(recipe.capture.checkpoints),
        "gates": list(recipe.capture.gates),
        "split": dict(SPLIT),
        "recipe": record,
        "recipe_identity": {
            "tasks": tasks | {"set": Path(tasks["set"]).name},
            "environment": record["environment"],
            "agent": agent,
        },
        "versions": {
            "probecascade": __version__,
            "python": platform.python_version(),
            "torch": version("torch"),
            "transformers": version("transformers"),
        },
    }
