"""Where a cascade comes from, and whether another run or model is the same kind of thing."""

from __future__ import annotations

import hashlib
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any

from probecascade.errors import CascadeError
from probecascade.store.schema import stated_backend

IDENTITY: tuple[str, ...] = (
    "model",
    "revision",
    "tokenizer",
    "chat_template",
    "template",
    "weights",
    "n_layers",
    "d_model",
    "layer_convention",
    "final_norm",
    "dtype",
)
"""Keys of a run header that decide what a state means; a cascade fits only where all of them agree."""


_TABLES = ("run", "split", "groups", "episodes", "modes")
_LISTS = ("adapted", "recalibrated")


def check_record(record: Mapping[str, Any]) -> None:
    """CascadeError naming the first part of a stored cascade, its gates apart, that later readers could not take."""
    for key, kind, wanted in (("promise", str, "a text"), ("gate_answers", bool, "true or false")):
        if not isinstance(record[key], kind):
            raise _misshapen(key, record[key], wanted, "record")
    if not isinstance(record["held_out"], Mapping):
        raise _misshapen("held_out", record["held_out"], "an object", "record")
    _check_calibration(record.get("calibration") or {})  # absent from the first cascades
    check_shape(record["provenance"])


def _check_calibration(calibration: Any) -> None:
    if not isinstance(calibration, Mapping):
        raise _misshapen("calibration", calibration, "an object", "record")
    targets = calibration.get("targets") or {}
    catch = targets.get("catch") if isinstance(targets, Mapping) else None
    if targets and not (isinstance(catch, Mapping) and all(map(_share, catch.values())) and _share(targets["keep"])):
        raise _misshapen("calibration.targets", targets, "shares to catch by gate and one to keep", "record")
    certificates = calibration.get("certificates") or []
    known = {"kind", "gate", "certified"}
    if not isinstance(certificates, list) or not all(isinstance(c, Mapping) and known <= set(c) for c in certificates):
        raise _misshapen("calibration.certificates", certificates, "a list of certificates", "record")


def _share(stored: Any) -> bool:
    """Whether this is a share as it is stored, such as 19/20, or none."""
    if stored is None:
        return True
    try:
        return isinstance(stored, str) and 0 <= Fraction(stored) <= 1
    except (ValueError, ZeroDivisionError):
        return False


def check_shape(provenance: Any) -> None:
    """CascadeError naming the first part of a stored provenance that is not of the shape that later readers rely on."""
    if not isinstance(provenance, Mapping):
        raise _misshapen("provenance", provenance, "an object")
    for key in _TABLES:
        if not isinstance(provenance.get(key, {}), Mapping):
            raise _misshapen(key, provenance[key], "an object")
    model = provenance.get("run", {}).get("model", {})
    if not isinstance(model, Mapping | str):
        raise _misshapen("run.model", model, "an object or a name")
    for key in _LISTS:
        if not isinstance(provenance.get(key, []), list):
            raise _misshapen(key, provenance[key], "a list")
    for key, names in provenance.get("groups", {}).items():
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise _misshapen(f"groups.{key}", names, "a list of texts")
    split = provenance.get("split", {})
    if split and not (type(split.get("seed")) is int and _shares(split.get("shares"))):
        raise _misshapen("split", split, "a seed and three percentages as shares")


def _shares(shares: Any) -> bool:
    return isinstance(shares, list) and len(shares) == 3 and all(map(_count, shares)) and sum(shares) == 100


def _count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _misshapen(what: str, given: Any, wanted: str, part: str = "provenance") -> CascadeError:
    return CascadeError(
        f"the cascade's {part} is damaged: {what} is {reprlib.repr(given)}, not {wanted}; restore cascade.json "
        "from a copy, or fit the cascade again."
    )


def identity_of(header: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a run header that a cascade has to match."""
    return {key: header[key] for key in IDENTITY if key in header}


def check_header(fitted: Mapping[str, Any], header: Mapping[str, Any]) -> None:
    """CascadeError naming the first key in which `header` differs from what a cascade was fitted on.

    A cascade that was fitted on several templates (a list of them) fits each, and any number of them.
    """
    given = dict(_leaves(stated_backend(header)))
    for key, value in _leaves(stated_backend(fitted)):
        found = given.get(key)
        if found != value and not (key == "template" and _several(found) <= _several(value)):
            raise CascadeError(
                f"the cascade was fitted with {key} {value!r}, but this is {given.get(key)!r}: "
                "fit one for this model, or force it if the states are truly the same."
            )


def _several(templates: Any) -> set[Any]:
    return set(templates) if isinstance(templates, list | tuple) else {templates}


def _leaves(header: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in header.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def group_hash(group: str) -> str:
    """Sixteen hex digits that stand for a group, so that a cascade carries no task text."""
    return hashlib.sha256(group.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def group_hashes(groups: Iterable[str]) -> list[str]:
    """Sorted distinct hashes of these groups."""
    return sorted({group_hash(group) for group in groups})


def overlap(provenance: Mapping[str, Any], groups: Iterable[str]) -> tuple[str, ...]:
    """Those of `groups` that the provenance lists as used, sorted."""
    used = {name for names in provenance.get("groups", {}).values() for name in names}
    return tuple(sorted(group for group in set(groups) if group_hash(group) in used))
