"""What thresholds promise, in one sentence that always gives both numbers."""

from __future__ import annotations

from collections.abc import Sequence

from probecascade.thresholds.keep import KeepResult
from probecascade.thresholds.sequential import SequentialResult
from probecascade.thresholds.targets import percent


def promise(result: SequentialResult | KeepResult, gates: Sequence[str]) -> str:
    """The promise of `result` for the named gates: failures caught and successes kept, both counted."""
    if isinstance(result, SequentialResult):
        verb = "catches at least" if result.reached else "aims to catch"
        steps = [
            f"{percent(gate.target)}{'' if i else ' of the failures'} by {name}"
            + ("" if gate.reached else " (not reached)")
            for i, (gate, name) in enumerate(zip(result.gates, gates, strict=True))
        ]
        subject = f"{verb} {', '.join(steps)}"
    else:
        subject = f"keeps at least {percent(result.target)} of the successes past {', '.join(gates)}"
    return (
        f"On the calibration episodes ({result.doomed} failures, {result.successes} successes), "
        f"the cascade {subject}: failures caught {_share(result.caught, result.doomed)}, successes kept "
        f"{_share(result.kept, result.successes)}; nothing is promised for new episodes."
    )


def _share(count: int, n: int) -> str:
    return f"{count}/{n}" + (f" ({100 * count / n:.1f} %)" if n else "")
