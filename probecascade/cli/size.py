"""How big a run will be, from a shard of invented episodes that is built in memory and thrown away."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from probecascade.episode import SIGNALS, Checkpoint, Episode, Step
from probecascade.store.building import build_shard, make_entry
from probecascade.store.schema import DTYPES

_EPISODES = 32  # of a full shard
_ROUNDS, _TURN, _OBSERVATION = 7, 24, 24
_THOUGHT = "Some Name lives in Some Town. I need to search Some Town."
_PAGE = "Some Town: Some Town is a city in Some Land. Some Town was once part of Another Land."
_MOST = 64 * 1024 * 1024  # bytes of states that are built at most


def bytes_per_checkpoint(kinds: Sequence[str], n_layers: int, d_model: int, dtype: str, prompt_tokens: int) -> float:
    """Bytes that a run grows by for every checkpoint: states, facts, and its share of the transcript.

    kinds: those that are kept. n_layers: how many layers are. Measured on a full shard of episodes of an
    ordinary length, so that padding counts too.
    """
    per_episode = len(_checkpoints(kinds))
    vector = n_layers * d_model * np.dtype(DTYPES[dtype]).itemsize
    episodes = max(1, min(_EPISODES, _MOST // (vector * per_episode)))
    entries = []
    for number in range(episodes):
        hidden = np.zeros((per_episode, n_layers, d_model), DTYPES[dtype])
        entries.append(make_entry(_episode(f"some-set-s0-p3-{number:05d}", kinds, prompt_tokens), hidden, 0, 0))
    return len(build_shard(entries, range(n_layers), dtype)) / (episodes * per_episode)


def most_checkpoints(kinds: Sequence[str], rounds: int, parts: int) -> int:
    """Checkpoints of an episode that goes on to the last round and closes all its parts."""
    each_round = sum(kind in kinds for kind in ("thought", "action", "turn_mean", "observation"))
    return ("prompt" in kinds) + rounds * each_round + ("part" in kinds) * min(parts, rounds)


def _checkpoints(kinds: Sequence[str]) -> list[Checkpoint]:
    found = [Checkpoint("prompt", 0, 0, 0, 0, 0, 0, 0.0, False, (0.0,) * len(SIGNALS))]
    for r in range(1, _ROUNDS + 1):
        names = [("thought", r), ("action", r), ("turn_mean", r), ("observation", r)]
        names += [("part", r // 3)] if r % 3 == 0 else []
        found += [Checkpoint(kind, index, r, r, r, r, r, 0.1, False, (0.0,) * len(SIGNALS)) for kind, index in names]
    return [checkpoint for checkpoint in found if checkpoint.kind in kinds]


def _episode(name: str, kinds: Sequence[str], prompt_tokens: int) -> Episode:
    text = f" {_THOUGHT}\nAction: Search[Some Town]"
    steps = tuple(
        Step(r, 1, text, _THOUGHT, "search", "Some Town", _PAGE, "content", _TURN, _OBSERVATION, "action")
        for r in range(1, _ROUNDS + 1)
    )
    tokens = _ROUNDS * (_TURN + _OBSERVATION)
    return Episode(
        episode_id=f"{name}~0",
        task_id=name,
        group=name,
        seed=0,
        outcome="failure",
        reward=0.0,
        reason="finished",
        steps=steps,
        checkpoints=tuple(_checkpoints(kinds)),
        token_ids=np.zeros(prompt_tokens + tokens, np.int32),
        prompt_tokens=prompt_tokens,
        generated=_ROUNDS * _TURN,
        observed=_ROUNDS * _OBSERVATION,
        calls=_ROUNDS,
        seconds=1.0,
        attributes={"set": "atlas", "question": "country", "path": [["Some Name", "Some Town"]] * 3},
    )
