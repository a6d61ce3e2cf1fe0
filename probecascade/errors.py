"""The errors that probecascade raises on purpose.

    ProbecascadeError                 exit 2: bad input, said in one sentence
    ├── UsageError                    an option or argument that cannot be right
    │   └── RecipeError               an unreadable recipe or an unknown key, with its line
    ├── ModelError                    a model that cannot be found, loaded, read or hooked
    ├── StoreError                    a run folder or shard that cannot be read or written
    │   └── DuplicateEpisodeError     an episode id that is stored already
    ├── DataError                     labels, scores or splits that admit no answer
    ├── CascadeError                  a cascade that does not fit the model or run
    │   └── StaleCheckpointError      a state read at a position that is not the asked token's
    ├── NothingToDoError              exit 1: the selection holds no episode
    └── EpisodeAborted                raised for a caller who prefers an exception to a flag

Every message names what was given, what was expected and what to do.
"""

from __future__ import annotations


class ProbecascadeError(Exception):
    """Base of all deliberate errors; `exit_code` is what the command line returns."""

    exit_code = 2


class UsageError(ProbecascadeError):
    """An option or argument that cannot be right."""


class RecipeError(UsageError):
    """A recipe (TOML) that cannot be read or holds an unknown key or a value of the wrong kind."""


class ModelError(ProbecascadeError):
    """A model that cannot be found, loaded, hooked or driven."""


class StoreError(ProbecascadeError):
    """A run folder or shard that cannot be read or written."""


class DuplicateEpisodeError(StoreError):
    """An episode id that the run already holds."""


class DataError(ProbecascadeError):
    """Labels, scores, groups or splits from which no answer can be computed."""


class CascadeError(ProbecascadeError):
    """A cascade folder that is damaged or was made for another model, layer set or template."""


class StaleCheckpointError(CascadeError):
    """The newest hidden state does not belong to the token whose state was asked for."""


class NothingToDoError(ProbecascadeError):
    """The selection (tasks, split, limit) leaves no episode to work on."""

    exit_code = 1


class EpisodeAborted(ProbecascadeError):
    """An episode was aborted and the caller asked for an exception (`raise_on_abort=True`)."""
