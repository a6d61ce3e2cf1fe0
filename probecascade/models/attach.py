"""Wrapping a generation loop that is not ours: the hook, its episodes, and a stopping criterion for `generate`."""

from __future__ import annotations

import logging
import math
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList

from probecascade.episode import CONTINUE, SIGNALS, Decision, Moment, Task
from probecascade.errors import CascadeError, DataError, UsageError
from probecascade.interfaces import EpisodeWatch, StoppingPolicy
from probecascade.models.attached import KINDS, LOGPROBS, EpisodeHandle
from probecascade.models.given import unwrap
from probecascade.models.hooks import decoder_blocks, text_config
from probecascade.models.identity import dtype_of, template_checksum, tokenizer_checksum, weights_checksum
from probecascade.models.opening import Opening
from probecascade.models.recorder import Recorder
from probecascade.store.schema import check_dtype

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """What `attach` was asked for; `store_dtype` None leaves states as they are."""

    shadow: bool
    on_error: Literal["continue", "raise"]
    raise_on_abort: bool
    store_dtype: str | None


def attach(
    policy: StoppingPolicy,
    model: Any,
    tokenizer: Any,
    *,
    force: bool = False,
    shadow: bool = False,
    on_error: Literal["continue", "raise"] = "continue",
    raise_on_abort: bool = False,
    store_dtype: str | None = None,
) -> Hook:
    """A context manager that hooks a transformers model, so that `policy` decides in a loop that is not ours.

    Neither model, tokenizer nor generation config is changed, and the hooks are removed on every way out. The
    decisions at `thought` checkpoints fall while `generate` runs, for a policy with such gates; all others fall in
    `EpisodeHandle.checkpoint`. Surface signals that the loop does not give are NaN. Policies that ask the model
    side questions need the agent of this package.

    Args:
        policy: a `Cascade`, or any other stopping policy.
        model: a decoder-only model of transformers, in eval mode, not compiled; also one inside a `TransformerBridge`
            or nnsight's `LanguageModel`.
        tokenizer: its tokenizer.
        force: attach a cascade to another model or tokenizer than it was fitted on.
        shadow: score and record, never abort.
        on_error: `continue` warns once of a policy or state that fails, and the episode goes on; `raise` raises.
        raise_on_abort: `checkpoint` raises EpisodeAborted; a running `generate` is always ended quietly.
        store_dtype: what states are rounded to before scoring; by default what the cascade was fitted on.

    Raises:
        CascadeError: the cascade was fitted on another model or tokenizer.
        ModelError: a model that cannot be hooked, or a layer that it does not have.
        UsageError, StoreError: an unknown `on_error` or `store_dtype`.
    """
    if on_error not in ("continue", "raise"):
        raise UsageError(f"on_error {on_error!r} is unknown: give 'continue' or 'raise'.")
    found = unwrap(model)
    model = found.model
    recorder = Recorder(model, policy.layers)
    inner: Any = policy
    while hasattr(inner, "policy"):  # wrappers such as a shadow
        inner = inner.policy
    fitted: Mapping[str, Any] = getattr(inner, "provenance", {}).get("run", {})
    if hasattr(inner, "check_fits"):
        inner.check_fits(_header(fitted, model, tokenizer, found.backend), force=force)
    dtype = store_dtype if store_dtype is not None else fitted.get("dtype")
    if dtype is not None:
        check_dtype(dtype)
    options = Options(shadow, on_error, raise_on_abort, dtype)
    return Hook(policy, recorder, tokenizer, options, getattr(inner, "gates", ()))


class Hook:
    """An attached policy; made by `attach`, used as a context manager. `faults` counts what was passed over."""

    def __init__(
        self,
        policy: StoppingPolicy,
        recorder: Recorder,
        tokenizer: Any,
        options: Options,
        gates: Sequence[Any],
    ) -> None:
        self.policy = policy
        self.recorder = recorder
        self.tokenizer = tokenizer
        self.options = options
        self.faults = 0
        self.end_ids = _end_ids(recorder.model, tokenizer)
        self._reads: dict[str, frozenset[str]] = {gate.checkpoint: gate.reads for gate in gates}
        self._taps = {gate.checkpoint: tuple(name for name, _ in gate.taps) for gate in gates}
        tapped = {name for gate in gates for name in (gate.checkpoint, *self._taps[gate.checkpoint])}
        self.reads_thoughts = any(name.startswith("thought:") for name in tapped)
        self._columns = {gate.checkpoint: gate.columns for gate in gates if gate.columns}
        self.reads_logprobs = any(name in LOGPROBS for names in self._columns.values() for name in names)
        self._live = [gate.checkpoint for gate in gates if not gate.off]
        self._kinds_asked: set[str] = set()
        self._told_unasked = False
        self._open = False
        self._episodes: list[EpisodeHandle] = []
        self._rows: list[EpisodeHandle] = []

    def __enter__(self) -> Hook:
        if self._open:
            raise UsageError("this hook is attached already: attach another one, or leave it first.")
        self.recorder.__enter__()
        self._open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        self.recorder.remove()

    # Episodes ----------------------------------------------------------------------------------------------------

    def episode(self, task: str | Task) -> Opening[EpisodeHandle]:
        """One episode, the only row of what `generate` runs, for a `with`. UsageError while another is open."""
        return Opening(self, lambda: self._open_episodes([task]), lambda handles: handles[0])

    def episodes(self, tasks: Iterable[str | Task]) -> Opening[list[EpisodeHandle]]:
        """A batch of episodes, for a `with`: row i of what `generate` runs is task i (or see `stopping_criteria`).

        Entering raises UsageError outside the hook, while episodes are open, without tasks, or for a name given twice.
        """
        return Opening(self, lambda: self._open_episodes(tasks), list)

    def _open_episodes(self, tasks: Iterable[str | Task]) -> list[EpisodeHandle]:
        if not self._open:
            raise UsageError("the hook is not attached: open episodes inside `with attach(...) as hook`.")
        if self._episodes:
            raise UsageError("episodes are open already: close them first, or open a batch with hook.episodes.")
        named = [t if isinstance(t, Task) else Task(t, t, ()) for t in tasks]
        names = [task.task_id for task in named]
        if not names or len(set(names)) != len(names):
            raise UsageError(f"the episodes {names} cannot be told apart: give one or more distinct names.")
        self._episodes = [EpisodeHandle(self, task) for task in named]
        self._rows = list(self._episodes)
        return list(self._episodes)

    def close_episodes(self) -> None:
        """Forget the open episodes; what they hold stays readable."""
        self._episodes, self._rows = [], []

    def newly_unasked(self, episodes: Sequence[EpisodeHandle]) -> tuple[str, ...]:
        """Live gates whose kind of checkpoint none of the hook's episodes has asked for so far, told of once.

        A gate counts once an episode that was not aborted has come to its round, or asked for nothing at all; gates at
        events, whose place in the episode is not known, count from the first such episode on.
        """
        self._kinds_asked.update(*(episode.asked for episode in episodes))
        ended = [episode for episode in episodes if not episode.aborted]
        if self._told_unasked or not ended:
            return ()
        last = sys.maxsize if any(not episode.asked for episode in ended) else max(e.round for e in ended)
        unasked = tuple(
            name for name in self._live if name.partition(":")[0] not in self._kinds_asked and _round_of(name) <= last
        )
        self._told_unasked = bool(unasked)
        return unasked

    def stopping_criteria(self, *episodes: EpisodeHandle) -> StoppingCriteriaList:
        """For `generate`: ends the rows of aborted episodes and decides at thoughts. Takes a new one each time.

        `episodes`: which episode each row is, where finished ones were left out of the batch; by default all that
        are open, in order. Raises UsageError for an episode that is not open.
        """
        rows = list(episodes) or list(self._episodes)
        if not rows or any(episode not in self._episodes for episode in rows):
            raise UsageError("a stopping criterion is for open episodes: make it inside `with hook.episode(...)`.")
        self._rows = rows
        return StoppingCriteriaList([_Criterion(self)])

    @property
    def n_rows(self) -> int:
        return len(self._rows)

    def row_of(self, episode: EpisodeHandle) -> int:
        """The row in the current batch. UsageError if the episode has none."""
        if episode not in self._rows:
            raise UsageError(f"the episode {episode.name!r} is closed or not in this batch: open it first.")
        return self._rows.index(episode)

    def watch_rows(self, input_ids: Tensor) -> Tensor:
        """(rows,) bool: rows to end, given all ids so far (rows, columns)."""
        if len(input_ids) != len(self._rows):
            raise UsageError(
                f"generate runs {len(input_ids)} rows for {len(self._rows)} episodes: open one episode per row, "
                "and use neither beams nor num_return_sequences."
            )
        if self.reads_thoughts:
            sequences = input_ids.detach().cpu()
            track = self.recorder.track
            try:
                self._see_turns(sequences)
            except Exception as error:
                self.fault(error, "a thought" if not track.problem else f"a thought ({track.problem})")
        ended = [episode.aborted for episode in self._rows]
        return torch.tensor(ended, dtype=torch.bool, device=input_ids.device)

    def _see_turns(self, sequences: Tensor) -> None:
        track = self.recorder.track
        if not track.holds(sequences):
            raise CascadeError(f"the states of this generation cannot be read: {track.problem or 'ids differ'}.")
        mask = track.full_mask(sequences.shape[1])
        for row, episode in enumerate(self._rows):
            start = int(mask[row, : track.prompt].sum())
            episode.see_turn(row, sequences[row][mask[row]].tolist(), start)

    # The policy, and its faults ----------------------------------------------------------------------------------

    def begin(self, task: Task) -> EpisodeWatch | None:
        """The policy's watch; None if it could not begin and faults are passed over."""
        try:
            return self.policy.begin(task)
        except Exception as error:
            self.fault(error, f"the start of {task.task_id}")
            return None

    def decide(self, watch: EpisodeWatch | None, moment: Moment) -> Decision:
        """The watch's decision; `continue` where it fails and faults are passed over."""
        if watch is None:
            return CONTINUE
        try:
            verdict = watch.decide(moment)
            if not isinstance(verdict, Decision):
                verdict.close()
                raise CascadeError(
                    f"the policy {type(self.policy).__name__} asks the model side questions, which a wrapped loop "
                    "cannot answer: run it with the agent of this package."
                )
            if math.isnan(verdict.score) and not math.isnan(verdict.threshold):
                raise DataError(f"the score at {moment.checkpoint.name} is no number.")
            return verdict
        except Exception as error:
            self.fault(error, moment.checkpoint.name)
            return CONTINUE

    def reads(self, name: str) -> frozenset[str]:
        """What a gate at this checkpoint looks at, out of states, signals, text and checks; nothing without one."""
        return self._reads.get(name, frozenset())

    def taps(self, name: str) -> tuple[str, ...]:
        """The checkpoints whose states a gate at this one looks at."""
        return self._taps.get(name, ())

    def shown_signals(self, name: str, values: Mapping[str, float]) -> tuple[float, ...]:
        """Signals in the order of SIGNALS. For a gate that needs some, those that it does not read are 0 if unknown.

        Raises CascadeError if such a gate stands at this checkpoint and the loop did not give what it reads.
        """
        read = self._columns.get(name)
        if read is None:
            return tuple(values[signal] for signal in SIGNALS)
        missing = [signal for signal in read if math.isnan(values[signal])]
        if missing:
            raise CascadeError(
                f"the gate at {name} reads the signals {', '.join(missing)}, which are not known here: "
                "give counters to checkpoint, and generate's output for those of the turn."
            )
        return tuple(values[signal] if signal in read else 0.0 for signal in SIGNALS)

    def fault(self, error: Exception, where: str) -> None:
        """Raise the error, or warn of the first one and go on, as `on_error` says."""
        self.faults += 1
        if self.options.on_error == "raise":
            raise error
        if self.faults == 1:
            text = f"the stopping policy failed at {where} and is passed over there: {type(error).__name__}: {error}"
            _log.warning(text, exc_info=error)
            warnings.warn(text, RuntimeWarning, stacklevel=3)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens included, spaces as they are."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text


class _Criterion(StoppingCriteria):  # type: ignore[misc]
    """Ends the rows of aborted episodes."""

    def __init__(self, hook: Hook) -> None:
        self.hook = hook

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        return self.hook.watch_rows(input_ids)


def _end_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Ids that end a message or pad a row; they are no part of a turn."""
    config = getattr(model, "generation_config", None)
    found: set[int] = set()
    for owner, name in (
        (config, "eos_token_id"),
        (config, "pad_token_id"),
        (tokenizer, "eos_token_id"),
        (tokenizer, "pad_token_id"),
    ):
        value = getattr(owner, name, None)
        if value is not None:
            found.update(value if isinstance(value, list | tuple) else [value])
    return frozenset(found)


def _round_of(checkpoint: str) -> int:
    """The round of a checkpoint; 0 for the prompt and for events, which may come in any."""
    kind, _, index = checkpoint.partition(":")
    return int(index or 0) if kind in KINDS else 0


def _header(fitted: Mapping[str, Any], model: Any, tokenizer: Any, backend: str) -> dict[str, Any]:
    """The fitted header with every fact replaced that this model and tokenizer can be asked for."""
    config = text_config(model)
    facts: dict[str, Any] = {
        "tokenizer": tokenizer_checksum(tokenizer),
        "chat_template": template_checksum(getattr(tokenizer, "chat_template", None)),
        "n_layers": len(decoder_blocks(model)),
        "d_model": int(config.hidden_size),
    }
    origin = getattr(model.config, "_name_or_path", "")
    folder = Path(origin)
    nested = fitted.get("model")
    stored = (nested if isinstance(nested, Mapping) else fitted).get("weights")
    if str(stored).startswith("sampled-sha256:") and origin and any(folder.glob("*.safetensors")):
        facts["weights"] = weights_checksum(folder)
    header = {**fitted, **{key: value for key, value in facts.items() if key in fitted}}
    if isinstance(nested, Mapping):
        facts["dtype"] = dtype_of(model)  # at the top, dtype is the store's
        known = {key: value for key, value in facts.items() if key in nested}
        header["model"] = {**nested, **known, "backend": backend}
    return header
