"""Checks of a record's fields: each returns the value or says in one sentence what is wrong with it."""

from __future__ import annotations

from typing import Any

from probecascade.errors import DataError


def fields_of(record: object, what: str, keys: tuple[str, ...], required: int) -> dict[str, Any]:
    """The record as a dict with the first `required` of `keys` present and no key outside them."""
    if not isinstance(record, dict):
        raise DataError(f"{what} is {kind_of(record)}; give an object with {', '.join(keys)}")
    for key in keys[:required]:
        if key not in record:
            raise DataError(f"{what} has no {key!r}; give an object with {', '.join(keys)}")
    for key in record:
        if key not in keys:
            raise DataError(f"{what} has an unknown key {key!r}; give an object with {', '.join(keys)}")
    return record


def list_of(value: object, what: str) -> list[Any]:
    """The value, if it is a list."""
    if not isinstance(value, list):
        raise DataError(f"{what} is {kind_of(value)}; give a list")
    return value


def text_of(value: object, what: str) -> str:
    """The value, if it is a text that is not blank."""
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{what} is {kind_of(value)}; give a text that is not blank")
    return value


def kind_of(value: object) -> str:
    """What a JSON value is, in words."""
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "a truth value", type(None): "null"}
    if isinstance(value, str) and not value.strip():
        return "blank"
    return kinds.get(type(value), "a number")
