"""Opening the episodes of a hook: a context manager that says so to those who forget the `with`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from probecascade.errors import UsageError
from probecascade.models.attached import EpisodeHandle

if TYPE_CHECKING:
    from probecascade.models.attach import Hook

Opened = TypeVar("Opened")


class Opening(Generic[Opened]):
    """Episodes about to be opened. `with` opens them and gives `shape` of their handles.

    Leaving them warns, once per hook, if a kind of checkpoint at which live gates stand was never asked for.
    """

    def __init__(
        self, hook: Hook, start: Callable[[], list[EpisodeHandle]], shape: Callable[[list[EpisodeHandle]], Opened]
    ) -> None:
        self._hook = hook
        self._start = start
        self._shape = shape
        self._handles: Sequence[EpisodeHandle] = ()

    def __enter__(self) -> Opened:
        handles = self._start()
        self._handles = handles
        return self._shape(handles)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hook.close_episodes()
        if kind is None:
            unasked = self._hook.newly_unasked(self._handles)
            if unasked:
                # A message alone, for the loop's `with` may lie any number of frames away.
                warnings.warn(_advice(unasked), RuntimeWarning, stacklevel=2)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # what copy, inspect and the like ask of anything
            raise AttributeError(name)
        raise self._unopened()

    def __getitem__(self, index: int) -> Any:
        raise self._unopened()

    def _unopened(self) -> UsageError:
        return UsageError("the episode is not open yet: write `with hook.episode(...) as episode:` and use it inside.")


def _advice(gates: Sequence[str]) -> str:
    kinds = list(dict.fromkeys(name.partition(":")[0] for name in gates))
    calls = " and ".join(_call(kind) for kind in kinds)
    return (
        f"no checkpoint of the gates at {', '.join(gates)} was asked for, so that these could not decide: where the "
        f"loop comes to them, call {calls}."
    )


def _call(kind: str) -> str:
    if kind == "observation":
        return 'checkpoint("observation", tokens=...)'
    if kind in ("prompt", "action"):
        return f'checkpoint("{kind}", out)'
    if kind == "thought":
        return "generate with hook.stopping_criteria()"
    return f'checkpoint("{kind}", out, index=...)'
