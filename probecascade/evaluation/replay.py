"""Replaying a policy over a recorded episode: what it would have decided, from what was stored."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from probecascade.episode import CONTINUE, Decision, Recording, Task
from probecascade.errors import DataError, UsageError
from probecascade.interfaces import StoppingPolicy
from probecascade.policies.moments import stored_moment


def replay_policy(
    policy: StoppingPolicy,
    recording: Recording,
    task: Task | None = None,
    *,
    layers: Sequence[int],
    max_rounds: int | None = None,
    max_tokens: int | None = None,
) -> Decision | None:
    """The first decision to abort or answer that `policy` takes on this episode; None if it takes none.

    `layers` names the columns of `recording.hidden`, (n_checkpoints, n_layers, d_model). The limits give
    the moments their rounds and tokens left; None means without limit. DataError if a layer that the policy
    needs is not recorded; UsageError for a policy that asks the model or steers the episode, since the
    record cannot tell what would have followed.
    """
    episode = recording.episode
    missing = sorted(set(policy.layers) - set(layers))
    if missing:
        raise DataError(f"the policy needs layers {missing}, but the recording holds {sorted(layers)}.")
    if len(recording.hidden) != len(episode.checkpoints):
        raise DataError(
            f"the recording of {episode.episode_id} holds {len(recording.hidden)} states for "
            f"{len(episode.checkpoints)} checkpoints: give one per checkpoint."
        )
    watch = policy.begin(task or Task(episode.task_id, episode.group, ()))
    columns = {layer: layers.index(layer) for layer in policy.layers}
    for point, states in zip(episode.checkpoints, recording.hidden, strict=True):
        hidden = {layer: states[column] for layer, column in columns.items()}
        verdict = watch.decide(stored_moment(episode, point, hidden, max_rounds, max_tokens))
        if isinstance(verdict, Generator):
            raise UsageError("the policy asks the model at its checkpoints: run it live instead of replaying it.")
        if verdict.action != CONTINUE.action:
            return verdict
        if verdict.append or verdict.allow is not None:
            raise UsageError(f"the policy steers the episode at {point.name}: run it live instead of replaying it.")
    return None
