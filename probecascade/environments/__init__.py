"""What an agent acts in, and the tasks it is given."""

from probecascade.environments.atlas import (
    AtlasSettings,
    atlas_environment,
    atlas_examples,
    atlas_task,
    atlas_tasks,
)
from probecascade.environments.examples import Example, ExamplePart, ExampleTurn
from probecascade.environments.flaky import FlakyEnvironment
from probecascade.environments.scoring import exact_match, normalise, token_f1
from probecascade.environments.tasks import dump_tasks, load_tasks
from probecascade.environments.wiki import WikiEnvironment

__all__ = [
    "AtlasSettings",
    "Example",
    "ExamplePart",
    "ExampleTurn",
    "FlakyEnvironment",
    "WikiEnvironment",
    "atlas_environment",
    "atlas_examples",
    "atlas_task",
    "atlas_tasks",
    "dump_tasks",
    "exact_match",
    "load_tasks",
    "normalise",
    "token_f1",
]
