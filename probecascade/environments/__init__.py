"""What an agent acts in, and the tasks it is given."""

from probecascade.environments.atlas import (
    AtlasSettings,
    atlas_environment,
    atlas_examples,
    atlas_task,
    atlas_tasks,
)
from probecascade.environments.described import Fault, TaskReport, describe_tasks
from probecascade.environments.examples import Example, ExamplePart, ExampleTurn
from probecascade.environments.failures import FailingEnvironment, Failure, PagePool, Regime, shown_by
from probecascade.environments.flaky import FlakyEnvironment
from probecascade.environments.game_files import game_tasks, unpack_games
from probecascade.environments.games import TextGameEnvironment
from probecascade.environments.layouts import played_as
from probecascade.environments.preparing import prepare, prepare_fever
from probecascade.environments.scoring import (
    F1_SUCCESS,
    SCORES,
    Score,
    exact_match,
    hotpot_f1,
    normalise,
    token_f1,
    token_set_f1,
    verdict,
    verdict_match,
)
from probecascade.environments.searching import Search
from probecascade.environments.sources import BACKUP, TwoSources
from probecascade.environments.tasks import TaskFile, dump_tasks, load_tasks, open_tasks, tasks_of
from probecascade.environments.wiki import WikiEnvironment, WikiSettings
from probecascade.environments.worked import worked_examples
from probecascade.environments.worked_games import worked_games

__all__ = [
    "BACKUP",
    "F1_SUCCESS",
    "SCORES",
    "AtlasSettings",
    "Example",
    "ExamplePart",
    "ExampleTurn",
    "FailingEnvironment",
    "Failure",
    "Fault",
    "FlakyEnvironment",
    "PagePool",
    "Regime",
    "Score",
    "Search",
    "TaskFile",
    "TaskReport",
    "TextGameEnvironment",
    "TwoSources",
    "WikiEnvironment",
    "WikiSettings",
    "atlas_environment",
    "atlas_examples",
    "atlas_task",
    "atlas_tasks",
    "describe_tasks",
    "dump_tasks",
    "exact_match",
    "game_tasks",
    "hotpot_f1",
    "load_tasks",
    "normalise",
    "open_tasks",
    "played_as",
    "prepare",
    "prepare_fever",
    "shown_by",
    "tasks_of",
    "token_f1",
    "token_set_f1",
    "unpack_games",
    "verdict",
    "verdict_match",
    "worked_examples",
    "worked_games",
]
