"""`probecascade explain --episode`: a probe put on every token of a stored episode."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import typer

from probecascade.cli.inspect import _index as episode_index
from probecascade.cli.tables import print_json

if TYPE_CHECKING:
    from probecascade.episode import Episode
    from probecascade.evaluation.tokens import TokenScore
    from probecascade.policies import Cascade, Gate
    from probecascade.store import Run


def explain_episode(
    cascade: Cascade,
    gate: Gate,
    run: Run,
    wanted: str,
    model: str | None,
    *,
    device: str,
    force: bool,
    as_json: bool,
) -> None:
    """Read the episode's ids once more through the model, score every token, and print."""
    from probecascade.evaluation.tokens import FITTED_ELSEWHERE, check_reads

    check_reads(gate)
    episode = run.episode(episode_index(run, wanted))
    tokens = read_tokens(cascade, gate, run, episode, model, device=device, force=force)
    note = FITTED_ELSEWHERE.format(checkpoint=gate.checkpoint)
    if as_json:
        return print_json(_record(gate, episode, tokens, note))
    from probecascade.cli.explain_text import coloured, listed, wants_colour
    from probecascade.cli.tables import say, threshold_text

    say(f"{episode.episode_id}: {episode.outcome} ({episode.reason})")
    say(f"P(failure) by the probe of {gate.checkpoint} (threshold {threshold_text(gate.threshold)}) at each token")
    say(f"{note}; the prompt's first {episode.prompt_tokens - 1} tokens are left out")
    typer.echo("")
    typer.echo(coloured(tokens) if wants_colour() else listed(tokens))


def read_tokens(
    cascade: Cascade, gate: Gate, run: Run, episode: Episode, model: str | None, *, device: str, force: bool
) -> list[TokenScore]:
    """Scores of an episode's tokens by the model that made the run."""
    from probecascade.cli.explain import load_model
    from probecascade.evaluation.tokens import token_scores
    from probecascade.models.engine import Engine

    loaded = load_model(cascade, run, model, device=device, force=force)
    layers = tuple(dict.fromkeys(layer for _, layer in gate.taps))
    ids = len(episode.token_ids)
    engine = Engine(loaded.model, loaded.tokenizer, layers=layers, slots=1, capacity=ids + 1)
    return token_scores(engine, gate, episode, dtype=run.dtype)


def _record(gate: Gate, episode: Episode, tokens: list[TokenScore], note: str) -> dict[str, Any]:
    return {
        "gate": gate.checkpoint,
        "layer": gate.layer,
        "threshold": gate.threshold,
        "episode_id": episode.episode_id,
        "outcome": episode.outcome,
        "note": note,
        "tokens": [dataclasses.asdict(token) for token in tokens],
    }
