"""A probe's score at every token of an episode, read again from the ids that were stored."""

from __future__ import annotations

import html
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logit

from probecascade.episode import Episode
from probecascade.errors import UsageError
from probecascade.evaluation.directions import reads_beyond_states
from probecascade.interfaces import LanguageModel, Probe
from probecascade.models.requests import Fed, Feed, Request
from probecascade.policies import Gate
from probecascade.probes import LinearProbe
from probecascade.probes.scoring import row_logits
from probecascade.store.schema import cast

FITTED_ELSEWHERE = (
    "the probe was fitted at {checkpoint} only: at other tokens its score shows a tendency, no probability"
)


@dataclass(frozen=True, slots=True)
class TokenScore:
    """One token of an episode.

    text: what it adds to the transcript; empty where a character is spread over several tokens and ends later.
    score: P(failure) when this token is the input, NaN where the probe cannot score yet because it also reads
    checkpoints that come later. log_odds: of that score, which tells tokens apart where P(failure) is next to 1.
    checkpoints: names of those that stand here.
    """

    position: int
    text: str
    score: float
    log_odds: float
    checkpoints: tuple[str, ...] = ()


def token_scores(model: LanguageModel, gate: Gate, episode: Episode, *, dtype: str) -> list[TokenScore]:
    """Score the last token of the prompt and every later one in one clean reading of the stored ids.

    `model` must keep the layers that the gate reads; states are rounded to the store's `dtype`, so that a score at
    the gate's own checkpoint is the stored one, up to what another shape of batch does to the last bits. Of a gate
    that also reads earlier checkpoints, their blocks are those of the episode, NaN where it has no such checkpoint.
    UsageError for a probe that reads more than states, whose other inputs exist at checkpoints only.
    """
    check_reads(gate)
    first = episode.prompt_tokens - 1
    (states,) = model.run([_read(model, episode, first, dtype)])
    rows, begin = _rows(gate, episode, states, list(model.layers), first)
    scores = np.full(len(states), np.nan)
    odds = scores.copy()
    scores[begin:] = gate.probe.score(rows[begin:])
    odds[begin:] = _log_odds(gate.probe, rows[begin:], scores[begin:])
    names: dict[int, list[str]] = {}
    for point in episode.checkpoints:
        names.setdefault(point.position, []).append(point.name)
    return [
        TokenScore(first + i, text, float(scores[i]), float(odds[i]), tuple(names.get(first + i, ())))
        for i, text in enumerate(_texts(model, episode.token_ids[first:].tolist()))
    ]


def check_reads(gate: Gate) -> None:
    """UsageError unless the gate's probe scores states alone."""
    more = reads_beyond_states(gate.probe)
    if more:
        raise UsageError(
            f"the probe at {gate.checkpoint} reads {' and '.join(more)}, which exist at checkpoints only: "
            "choose a gate whose probe reads hidden states alone."
        )


def token_html(tokens: Sequence[TokenScore]) -> str:
    """The tokens as an HTML fragment, coloured by their `shades` from blue (low) over white to orange (high).

    Each token carries its score as a title; checkpoints follow their token by name. Everything is escaped, and
    nothing outside the fragment is needed.
    """
    parts = ['<div class="tokens" style="white-space:pre-wrap;overflow-wrap:anywhere;font-family:monospace">']
    for token, shade in zip(tokens, shades(tokens), strict=True):
        text = html.escape(token.text)
        if np.isfinite(token.score):
            style = f"background:{_colour(shade)};color:#000"
            title = f"P(failure) {token.score:.3f}, log-odds {token.log_odds:+.2f}"
            text = f'<span style="{style}" title="{title}">{text}</span>'
        names = html.escape(", ".join(token.checkpoints))
        parts.append(text + (f"<sup>{names} {token.score:.2f}</sup>" if names else ""))
    return "".join([*parts, "</div>"])


def shades(tokens: Sequence[TokenScore]) -> NDArray[np.float64]:
    """For colouring: the rank of each token's log-odds among these tokens, 0 (lowest) to 1; NaN without a score.

    A rank, because away from its checkpoint a probe's scores crowd at 0 or 1.
    """
    odds = np.array([token.log_odds for token in tokens])
    ranks = np.full(len(odds), np.nan)
    scored = np.isfinite(odds)
    _, place, counts = np.unique(odds[scored], return_inverse=True, return_counts=True)
    ranks[scored] = ((np.cumsum(counts) - counts / 2) / max(int(scored.sum()), 1))[place]
    return ranks


def _log_odds(probe: Probe, rows: NDArray[np.float32], scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of a linear probe before its sigmoid rounds them off; of any other probe from its scores, cut off at ±36."""
    if isinstance(probe, LinearProbe):
        return row_logits(rows.astype(np.float64), probe.mean, probe.scale, probe.weight, probe.bias)
    return np.asarray(logit(np.clip(scores, _TINY, 1 - _TINY)))


def _read(
    model: LanguageModel, episode: Episode, first: int, dtype: str
) -> Generator[Request, Any, NDArray[np.float32]]:
    """States of the ids from `first` on, (n, n_layers, d_model), rounded as in the store."""
    ids = episode.token_ids.tolist()
    fed: Fed = yield Feed(ids, keep=tuple(range(first, len(ids))))
    return cast(fed.states, dtype)


def _rows(
    gate: Gate, episode: Episode, states: NDArray[np.float32], layers: list[int], first: int
) -> tuple[NDArray[np.float32], int]:
    """What the gate's probe reads at each token, (n, width), and the first row at which all of that is known."""
    places = {point.name: point.position - first for point in episode.checkpoints}
    blocks, begin = [], 0
    for name, layer in gate.taps:
        of_layer = states[:, layers.index(layer)]
        if name != gate.checkpoint:
            place = places.get(name)
            begin = max(begin, 0 if place is None else place)
            fixed = np.full(of_layer.shape[1], np.nan, np.float32) if place is None else of_layer[place]
            of_layer = np.broadcast_to(fixed, of_layer.shape)
        blocks.append(of_layer)
    return np.concatenate(blocks, axis=1), begin


def _texts(model: LanguageModel, ids: Sequence[int]) -> list[str]:
    """The text of each id; one that ends in the middle of a character is held back and given to the id that ends it."""
    texts: list[str] = []
    held: list[int] = []
    for token in ids:
        held.append(token)
        text = model.decode(held)
        if text.endswith("\ufffd") and len(held) < _LONGEST_CHARACTER:
            texts.append("")
        else:
            texts.append(text)
            held = []
    if held:
        texts[-1] = model.decode(held)
    return texts


_TINY = 2.0**-52
_LONGEST_CHARACTER = 4  # bytes, hence ids, in UTF-8


def _colour(shade: float) -> str:
    """From blue (0) over white (0.5) to orange (1), as a colour that black text can be read on."""
    end = (240, 140, 40) if shade > 0.5 else (90, 150, 220)
    depth = abs(shade - 0.5) * 2
    red, green, blue = (round(255 + (channel - 255) * depth) for channel in end)
    return f"rgb({red},{green},{blue})"
