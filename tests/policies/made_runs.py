"""Small invented runs, written through the real store: their states give failure away, the later the more."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from probecascade.episode import SIGNALS, Checkpoint, Episode, Recording, Step
from probecascade.store import Run, RunWriter

LAYERS = (0, 2, 4)
WIDTH = 6
HEADER = {
    "model": {"model": "tiny", "revision": None, "weights": "sha256:1", "dtype": "float32"},
    "n_layers": 4,
    "template": "sha256:2",
    "gates": ["part:1", "part:2"],
}


def checkpoint(kind: str, index: int, turn: int, position: int, tokens: int, calls: int, final: bool) -> Checkpoint:
    signals = dict.fromkeys(SIGNALS, 0.0) | {"tokens_so_far": float(tokens), "round": float(turn)}
    return Checkpoint(
        kind=kind,
        index=index,
        round=turn,
        position=position,
        tokens=tokens,
        generated=tokens,
        calls=calls,
        seconds=tokens / 10,
        final=final,
        signals=tuple(signals.values()),
    )


def make_episode(
    name: str,
    group: str,
    *,
    failed: bool,
    rounds: int,
    seed: int = 0,
    outcome: str | None = None,
    turn: int = 10,
    observation: int = 5,
) -> Episode:
    """`rounds` turns of `turn` tokens, each but the last followed by `observation` tokens and one tool call.

    Part 1 closes with the second turn; the last turn is final. The prompt is 4 tokens.
    """
    prompt = 4
    checkpoints = [checkpoint("prompt", 0, 0, prompt - 1, 0, 0, False)]
    steps = []
    spent = 0
    for r in range(1, rounds + 1):
        spent += turn
        final = r == rounds
        checkpoints.append(checkpoint("action", r, r, prompt + spent - 1, spent, r - 1, final))
        if r == 2:
            checkpoints.append(checkpoint("part", 1, r, prompt + spent - 1, spent, r - 1, final))
        if not final:
            spent += observation
            checkpoints.append(checkpoint("observation", r, r, prompt + spent - 1, spent, r, False))
        kind = "finish" if final else "next_part" if r == 2 else "content"
        text = f" think {r}\nAction: search[page {r}]"
        steps.append(
            Step(
                r,
                1 if r <= 2 else 2,
                text,
                f"think {r}",
                "search",
                f"page {r}",
                "text",
                kind,
                turn,
                observation,
                "action",
            )
        )
    return Episode(
        episode_id=f"{name}-{seed}",
        task_id=name,
        group=group,
        seed=seed,
        outcome=outcome or ("failure" if failed else "success"),  # type: ignore[arg-type]
        reward=0.0 if failed else 1.0,
        reason="finished",
        steps=tuple(steps),
        checkpoints=tuple(checkpoints),
        token_ids=np.arange(prompt + spent, dtype=np.int32),
        prompt_tokens=prompt,
        generated=turn * rounds,
        observed=observation * (rounds - 1),
        calls=rounds,
        seconds=spent / 10,
    )


def make_states(episode: Episode, rng: np.random.Generator, *, failed: bool) -> NDArray[np.float32]:
    """Layer 0 says nothing, layer 2 a little, layer 4 more; from the second round on it is louder."""
    states = rng.normal(size=(len(episode.checkpoints), len(LAYERS), WIDTH))
    for i, point in enumerate(episode.checkpoints):
        loudness = 0.0 if point.kind == "prompt" else 1.0 if point.round == 1 else 1.6
        states[i, 1, 0] += (1 if failed else -1) * loudness * 0.4
        states[i, 2, 1] += (1 if failed else -1) * loudness
    return states.astype(np.float32)


def make_run(
    path: Path,
    *,
    groups: int = 240,
    seed: int = 0,
    outcomes: tuple[str, ...] = (),
    failed: bool | None = None,
) -> Run:
    """A run of one episode per group, half of them failed, of 3 to 5 rounds; then one per extra outcome."""
    rng = np.random.default_rng(seed)
    with RunWriter(path, HEADER, layers=LAYERS, d_model=WIDTH, dtype="float32") as writer:
        for g in range(groups):
            fails = bool(rng.random() < 0.5) if failed is None else failed
            episode = make_episode(f"task-{g}", f"group-{seed}-{g}", failed=fails, rounds=int(rng.integers(3, 6)))
            writer.add(Recording(episode, make_states(episode, rng, failed=fails)))
        for k, outcome in enumerate(outcomes):
            episode = make_episode(f"extra-{k}", f"extra-{k}", failed=True, rounds=3, outcome=outcome)
            writer.add(Recording(episode, make_states(episode, rng, failed=True)))
    return Run.open(path)
