"""What thresholds promise, in words, with the conditions and with both numbers."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from probecascade.thresholds.targets import percent

if TYPE_CHECKING:
    from probecascade.thresholds.calibration import Calibration


def counted(n: int, one: str) -> str:
    """`1 success`, `2 successes`, `0 episodes`."""
    return f"{n} {one if n == 1 else one + ('es' if one.endswith('s') else 's')}"


def promise(result: Calibration) -> str:
    """The promise of a calibration; where there is none, that, and what it would take."""
    seen = result.seen
    on_these = (
        f"On the calibration episodes ({counted(seen.doomed, 'failure')}, {counted(seen.successes, 'success')}) "
        "these thresholds catch "
        f"{_share(seen.caught_count, seen.doomed)} of the failures and keep "
        f"{_share(seen.kept_count, seen.successes)} of the successes"
    )
    given = [certificate for certificate in result.certificates if certificate.certified]
    if not given:
        return f"{on_these}; nothing is promised for new episodes{_why(result)}."
    level = percent(Fraction(str(result.confidence)))
    clauses = []
    if any(certificate.kind == "keep" for certificate in given):
        assert result.targets.keep is not None
        clauses.append(f"at least {percent(result.targets.keep)} of the episodes that would succeed are never aborted")
    catches = [certificate for certificate in given if certificate.kind == "catch" and certificate.gate is not None]
    if catches:
        shares = [f"{percent(c.target)} are aborted by {result.gates[c.gate or 0]}" for c in catches]
        clauses.append(f"of those that would fail at least {_listed(shares)}")
    together = ""
    if len(clauses) == 2:
        together = f" Keep and catch hold at {level} each"
        both = 2 * Fraction(str(result.confidence)) - 1
        together += f", and together at {percent(both)} or more." if both > 0 else "; nothing is said of both together."
    refused = _why(result) if len(given) < len(result.certificates) else ""
    return (
        f"With {level} confidence over the calibration {_unit(result)}, {_listed(clauses)}, provided new episodes are "
        f"like these.{together}{_assumed(result)}{' Not promised' + refused + '.' if refused else ''} {on_these}."
    )


def missed_targets(result: Calibration) -> str:
    """The targets that are not certified, and why not."""
    return _why(result).removeprefix(" (").removesuffix(")")


def _assumed(result: Calibration) -> str:
    return "".join(f" {note[0].upper()}{note[1:]}" for note in result.notes)


def _unit(result: Calibration) -> str:
    if result.unit == "group":
        return "groups, counting one run of each group drawn at random"
    dependent = any(certificate.counts == "group" for certificate in result.certificates)
    return "groups, counting all their episodes" if dependent else "episodes"


def _why(result: Calibration) -> str:
    """What stands in the way of the promises that are not given."""
    reasons = []
    for certificate in result.certificates:
        if certificate.certified:
            continue
        if certificate.kind == "keep":
            what, who = f"keep {percent(certificate.target)}", "successful"
        else:
            what, who = f"catch {percent(certificate.target)} by {result.gates[certificate.gate or 0]}", "doomed"
        if not certificate.tested:
            reasons.append(f"{what}: not tested, because an earlier target failed")
        elif certificate.missing is None:
            reasons.append(f"{what}: no number of episodes would do as things are")
        else:
            plural = "" if certificate.missing == 1 else "s"
            more = f"group{plural} with a {who} episode" if certificate.counts == "group" else f"{who} episode{plural}"
            reasons.append(f"{what}: {certificate.missing} more {more} needed")
    return f" ({'; '.join(reasons)})" if reasons else ""


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _share(count: int, n: int) -> str:
    return f"{count}/{n}" + (f" ({100 * count / n:.1f} %)" if n else "")
