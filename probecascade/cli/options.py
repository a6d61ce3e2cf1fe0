"""Values of options that need more than a type: lists, and a recipe changed by the command line."""

from __future__ import annotations

import dataclasses
from typing import Any

from probecascade.cli.recipes import ExtractRecipe
from probecascade.errors import UsageError


def split_names(text: str | None) -> tuple[str, ...] | None:
    """`a,b` as ("a", "b"); None stays None."""
    return None if text is None else tuple(part.strip() for part in text.split(",") if part.strip())


def split_integers(text: str | None, option: str, example: str) -> tuple[int, ...] | None:
    """`0,10,-1` as (0, 10, -1). UsageError names the option."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{option} is {text!r}: give whole numbers separated by commas, such as {example}.") from None


def parse_layers(text: str | None) -> tuple[int, ...] | None:
    """Layers as numbers, still counted from either end. UsageError for one that is named twice."""
    layers = split_integers(text, "--layers", "0,10,-1")
    if layers is not None and len(set(layers)) < len(layers):
        raise UsageError(f"--layers {text} names a layer twice: name each layer once.")
    return layers


def parse_shares(text: str | None) -> tuple[int, int, int] | None:
    """`50,25,25` as three numbers; whether they add up is the split's business."""
    shares = split_integers(text, "--shares", "50,25,25")
    if shares is None:
        return None
    if len(shares) != 3:
        raise UsageError(f"--shares {text} names {len(shares)} shares: give fit, calibrate and test, such as 50,25,25.")
    return shares[0], shares[1], shares[2]


def changed(recipe: ExtractRecipe, section: str, **values: Any) -> ExtractRecipe:
    """The recipe with the values of a section that are not None put in. UsageError if the section refuses them."""
    given = {key: value for key, value in values.items() if value is not None}
    if not given:
        return recipe
    try:
        replaced = dataclasses.replace(getattr(recipe, section), **given)
    except ValueError as error:
        raise UsageError(f"{error}.") from error
    return dataclasses.replace(recipe, **{section: replaced})
