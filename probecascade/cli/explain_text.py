"""What `explain` found, for people."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from probecascade.cli.escapes import shown
from probecascade.cli.tables import table, wrapped

if TYPE_CHECKING:
    from probecascade.evaluation.tokens import TokenScore

_TELLING = 0.975  # share of random directions that either of two measures must exceed
_COMMON = 0.05  # of random directions that have a token at their own ends, from which on it says little
_LONGEST = 40  # characters of a token, of which two stand side by side

_BLUE_TO_ORANGE = (25, 67, 110, 153, 231, 223, 216, 208, 202)
"""Terminal colours (of 256) from the lowest score to the highest; told apart by the colour-blind."""


def explain_text(record: Mapping[str, Any]) -> str:
    """Tokens of each tap, then the neighbours."""
    parts = [_direction_text(record)]
    parts += [_lens_text(lens) for lens in record["lens"]]
    if record["cosines"]:
        parts.append(_cosines_text(record["cosines"], record["strength"]))
    return "\n\n".join(parts)


def _direction_text(record: Mapping[str, Any]) -> str:
    found = record["direction"]
    what = f"gate {record['gate']}: P(failure) rises fastest along "
    if found["linear"]:
        return wrapped(what + "the probe's own weights")
    return "\n".join(
        wrapped(sentence)
        for sentence in (
            f"{what}this probe's mean input gradient over {found['episodes']} episodes",
            f"the probe is not linear: single gradients have a mean cosine of {found['agreement']:.2f} with it",
        )
    )


def _lens_text(lens: Mapping[str, Any]) -> str:
    rows = []
    for up, down in zip(lens["promoted"], lens["suppressed"], strict=True):
        rows.append([_token(up), f"{up['shift']:+.3f}", _token(down), f"{down['shift']:+.3f}"])
    head = "tied to the embedding" if lens["tied"] else "its own weights"
    telling = max(lens["spread_rank"], lens["peak_rank"]) >= _TELLING
    verdict = (
        "few random directions move logits so: judge by eye whether these tokens have a theme"
        if telling
        else "random directions move logits just so: read nothing into these tokens"
    )
    every = lens["promoted"] + lens["suppressed"]
    common = any(token["random_share"] >= _COMMON for token in every)
    before = (
        f"tokens at {lens['checkpoint']}, layer {lens['layer']} ({lens['reading']})",
        f"change of the logit for a step of {lens['step']} (length {lens['step_length']:.3g}), mean over tokens off",
        f"the step passes the Jacobian of the final {lens['norm']} (its weight folded in, its rescaling and any "
        f"centring taken into account), then the head ({head})",
    )
    after = (
        *(("* at the ends of many random directions as well, whatever they mean",) if common else ()),
        f"beside {lens['random']} random directions of that length ({lens['random_directions']}): logits spread more "
        f"than for {100 * lens['spread_rank']:.0f} % of them and are more peaked than for "
        f"{100 * lens['peak_rank']:.0f} %",
        verdict,
    )
    tokens = table(["promoted (towards failure)", "", "suppressed", ""], rows)
    return "\n".join([*map(wrapped, before), tokens, *map(wrapped, after)])


def _token(token: Mapping[str, Any]) -> str:
    text = repr(token["text"])
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
    return text + ("*" if token["random_share"] >= _COMMON else "")


def _cosines_text(cosines: Sequence[Mapping[str, Any]], strength: float) -> str:
    rows = []
    for pair in cosines:
        first, second = (f"{name} layer {layer}" for name, layer in (pair["first"], pair["second"]))
        raw, white = (f"{pair[key]:+.2f} (±{pair[f'{key}_null']:.2f})" for key in ("raw", "whitened"))
        rows.append([f"{first} – {second}", raw, white])
    explained = (
        "whitened: correlation of the two probes' log-odds over such states; in brackets what 95 % of pairs of probes "
        "stay below whose labels say nothing"
    )
    title = f"cosines between logistic probes fitted at neighbouring taps (all at C = {strength:.3g})"
    return "\n".join([title, table(["probes", "in the stream", "whitened"], rows), wrapped(explained)])


def wants_colour() -> bool:
    """Whether stdout is a terminal whose user has not asked for no colour (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def coloured(tokens: Sequence[TokenScore]) -> str:
    """The transcript with a background from blue (its lowest log-odds) to orange (its highest), checkpoints marked."""
    from probecascade.evaluation.tokens import shades

    parts = []
    for token, shade in zip(tokens, shades(tokens), strict=True):
        text = shown(token.text)
        if token.score == token.score:
            place = min(int(shade * len(_BLUE_TO_ORANGE)), len(_BLUE_TO_ORANGE) - 1)
            paint = f"\x1b[38;5;{231 if place < 3 else 16};48;5;{_BLUE_TO_ORANGE[place]}m"
            # A colour that is left on at the end of a line fills the line.
            parts.append("\n".join(paint + line + "\x1b[0m" if line else "" for line in text.split("\n")))
        else:
            parts.append(text)
        if token.checkpoints:
            parts.append(f"\x1b[1m⟨{', '.join(token.checkpoints)} {token.score:.2f}⟩\x1b[0m")
    return "".join(parts)


def listed(tokens: Sequence[TokenScore]) -> str:
    """One token a line with its score, where there are no colours."""
    rows = [
        [
            repr(token.text),
            str(token.position),
            f"{token.score:.4f}",
            f"{token.log_odds:+.2f}",
            ", ".join(token.checkpoints),
        ]
        for token in tokens
    ]
    return table(["token", "position", "P(failure)", "log-odds", "checkpoint"], rows)
