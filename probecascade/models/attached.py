"""One live episode of a loop that is not ours: where its checkpoints lie, what they showed, what was decided."""

from __future__ import annotations

import logging
import math
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probecascade.episode import CONTINUE, Action, Checkpoint, Decision, Moment, Task
from probecascade.errors import EpisodeAborted, ModelError, StaleCheckpointError, UsageError
from probecascade.models.account import Account, Told
from probecascade.models.recorder import NOTHING_RUN, States
from probecascade.store.schema import cast, checkpoint_name

if TYPE_CHECKING:
    from probecascade.models.attach import Hook

_log = logging.getLogger(__name__)

KINDS = ("prompt", "thought", "action", "observation")
COUNTERS = ("failed_actions", "repeated_actions", "not_found")
LOGPROBS = ("logprob_mean", "logprob_min", "entropy_mean")

# Where the agent's own parser sees a turn's first label; a test holds the two together.
_LABEL = re.compile(
    r"^[ \t]*(?P<lead>(?:[>*`#-][ \t>*`#-]*)?)(?i:(?P<line>Action|Observation))[ \t]{0,3}\d{0,4}[ \t]{0,3}\*{0,2}:"
    r"|(?<=\s)(?P<inline>Action)[ ]?\d{0,4}:(?=[ \t]{0,3}\w{1,30}[ \t]{0,3}\[)",
    re.MULTILINE,
)


def thought_place(decode: Callable[[Sequence[int]], str], turn: Sequence[int]) -> int | None:
    """Entry of a turn's ids that holds the last non-blank character before its action label; None without one."""
    end = _thought_end(decode(turn))
    if end is None:
        return None
    count = len(turn)
    while count > 1 and len(decode(turn[: count - 1])) >= end:
        count -= 1
    return count - 1


def _thought_end(text: str) -> int | None:
    """Where a turn's thought ends: after its last non-blank character before the action label."""
    found = _LABEL.search(text) if ":" in text else None
    if found is None or (found["line"] or "").lower() == "observation":
        return None
    return len(text[: found.start("inline") if found["inline"] else found.start("lead")].rstrip())


@dataclass(frozen=True)
class _Place:
    """A checkpoint's token: the last of `ids`. `start` counts the ids before its turn (None: unknown)."""

    ids: list[int]
    start: int | None
    sequences: Tensor | None = None  # (rows, columns) that hold the ids and extend what was fed, if any do


class EpisodeHandle:
    """One episode under a hook. `scores` maps checkpoint names to P(failure); `round` counts turns from 1.

    `decision` is the one that aborted the episode (in shadow: would have), with gate, score, threshold and reason;
    None where no gate fired, so print `scores` to see how near it came. `asked` holds the kinds of checkpoints that the
    loop came to. A policy's `answer`, `append` and `allow` are returned by `checkpoint`; following them is the caller's
    part.
    """

    def __init__(self, hook: Hook, task: Task) -> None:
        self.name = task.task_id
        self.aborted = False
        self.decision: Decision | None = None
        self.scores: dict[str, float] = {}
        self.round = 0
        self.asked: set[str] = set()
        self._hook = hook
        self._watch = hook.begin(task)
        self._started = time.perf_counter()
        self._prompt: int | None = None
        self._turn_start: int | None = None
        self._turn_lengths: dict[int, int] = {}
        self._turn_signals = (math.nan,) * (1 + len(LOGPROBS))
        self._thought: list[int] | None = None  # ids up to a thought's end whose state is yet to come
        self._thought_text = ""
        self._account = Account()
        self._thought_seen = False
        self._last: list[int] = []
        self._decided: set[tuple[str, int]] = set()

    def checkpoint(
        self,
        kind: str,
        out: Any = None,
        *,
        index: int | None = None,
        tokens: Sequence[int] | None = None,
        final: bool = False,
        action: Action | None = None,
        observation: str = "",
        calls: int = 0,
        checks: Mapping[str, float] | None = None,
        failed_actions: int | None = None,
        repeated_actions: int | None = None,
        not_found: int | None = None,
    ) -> Decision:
        """Read the states at a checkpoint and let the policy decide. On an aborted episode nothing is done.

        Args:
            kind: `prompt`, `action`, `observation`, `thought`, or an event such as `part`, which needs its `index`.
            out: what `generate` just returned, best with `return_dict_in_generate=True`: the last sampled token has
                no state yet, so it alone is fed with the output's cache, which is left as it was. End markers and
                padding after the turn are dropped first. Without a cache the conversation is encoded anew (slower).
            index: the round of an `action` or `observation` where it is not counted from 1, or the event's number.
            tokens: ids of the conversation, padding left out, up to and including the checkpoint's token: for an
                observation, and for a turn that the caller cut.
            final: this turn ends the episode, so that there is nothing left to save.
            action, observation, calls: what the policy is shown of the tool use so far; `observation` is the text of
                the latest one, without the words of a template around it. Gates on text need it at every
                `observation`, or else at the `action` after it.
            checks: what the environment tells of the turn's action (`episode.Foresight.checks`), for gates that read
                checks; an empty mapping if it tells nothing.
            failed_actions, repeated_actions, not_found: counters for gates on surface signals (`episode.SIGNALS`).

        Raises:
            StaleCheckpointError: the states at hand are not this token's: the model ran something else since, or
                this token or a later one was decided on already.
            UsageError: an unknown kind, beam search, or ids that the output does not hold.
            EpisodeAborted: the episode is aborted and the hook was made with `raise_on_abort=True`.
        """
        if not self.aborted:
            self.asked.add(kind)
            counters = (failed_actions, repeated_actions, not_found)
            place, index = self._locate(kind, index, out, tokens)
            if place is None:
                return CONTINUE
            self._check_order(place, kind, index)
            try:
                self._late_thought(kind, place)
                if not self.aborted:
                    states = self._states(place)
                    values = self._signals(kind, place, states, out, counters)
                    told = Told(final, action, observation, calls, checks)
                    decision = self._judge(kind, index, place, states, values, told)
            except Exception as error:  # whatever fails here must not break the caller's loop
                self._hook.fault(error, f"{kind} of {self.name}")
                return CONTINUE
        if self.aborted:
            assert self.decision is not None
            if self._hook.options.raise_on_abort:
                raise EpisodeAborted(f"the episode {self.name!r} was aborted: {self.decision.reason}.")
            return self.decision
        return decision

    # Where the checkpoint is -------------------------------------------------------------------------------------

    def _locate(
        self, kind: str, index: int | None, out: Any, tokens: Sequence[int] | None
    ) -> tuple[_Place | None, int]:
        """The checkpoint's place and index; no place for a turn that is empty."""
        if not kind.isidentifier() or (kind not in KINDS and index is None):
            raise UsageError(
                f"the checkpoint {kind!r} is unknown: give one of {', '.join(KINDS)}, or an event with its index, "
                'such as checkpoint("part", out, index=1).'
            )
        if out is None and tokens is None:
            raise StaleCheckpointError(
                f"{kind} of {self.name!r} has no state yet, for the newest one belongs to the token before the last: "
                "give what generate returned, or the conversation's ids as tokens=."
            )
        if kind == "observation" and tokens is None:
            raise UsageError(
                "an observation ends where the caller's text does: give the conversation's ids as tokens=."
            )
        row = self._hook.row_of(self)
        try:
            if out is not None:
                place = self._in_output(row, kind, out, tokens)
            else:
                assert tokens is not None
                place = self._in_tokens(row, [int(i) for i in tokens])
        except ModelError as error:
            self._hook.fault(error, f"{kind} of {self.name}")
            return None, 0
        if self._prompt is None:
            self._prompt = len(place.ids) if kind == "prompt" else place.start
        if kind not in ("prompt", "observation"):
            self._begin_turn(place.start, kind)
            if place.start is not None and len(place.ids) <= place.start:
                return None, 0
        if index is None:
            index = 0 if kind == "prompt" else self.round
        elif kind in ("action", "observation", "thought"):
            self.round = index
        return place, index

    def _in_output(self, row: int, kind: str, out: Any, tokens: Sequence[int] | None) -> _Place:
        sequences = getattr(out, "sequences", out)
        rows = self._hook.n_rows
        if not isinstance(sequences, Tensor) or sequences.ndim != 2:
            raise UsageError(f"a checkpoint was given {type(out).__name__}: give what generate returned, or tokens=.")
        if len(sequences) != rows or getattr(out, "beam_indices", None) is not None:
            raise UsageError(
                f"generate returned {len(sequences)} sequences for {rows} episodes, or searched with beams: sample "
                "one sequence per episode, without beams and with num_return_sequences=1."
            )
        sequences = sequences.detach().cpu()
        track = self._hook.recorder.track
        if track.problem and track.problem != NOTHING_RUN:
            raise ModelError(f"the states of this output are lost, for {track.problem}.")
        if not track.holds(sequences):
            raise StaleCheckpointError(
                f"the model has not just sampled this output for {self.name!r}: call checkpoint right after generate "
                "and inside the hook, or give the conversation's ids as tokens=."
            )
        mask = track.full_mask(sequences.shape[1])
        conversation: list[int] = sequences[row][mask[row]].tolist()
        start = int(mask[row, : track.prompt].sum())
        if tokens is not None:
            ids = [int(i) for i in tokens]
            if not ids or ids != conversation[: len(ids)]:
                raise UsageError(
                    f"tokens holds {len(ids)} ids that do not begin this output's row {row}: give the first ids of "
                    "that row, padding left out, or leave out the output."
                )
            return _Place(ids, start if len(ids) > start else None, sequences)
        if kind == "prompt":
            return _Place(conversation[:start], None, sequences)
        while len(conversation) > start and conversation[-1] in self._hook.end_ids:
            conversation.pop()
        return _Place(conversation, start, sequences)

    def _in_tokens(self, row: int, ids: list[int]) -> _Place:
        if not ids:
            raise UsageError("tokens is empty: give the conversation's ids up to the checkpoint's token.")
        track = self._hook.recorder.track
        prompt, fed = track.row_ids(row, track.prompt), track.row_ids(row)
        start = len(prompt) if prompt and len(prompt) < len(ids) and ids[: len(prompt)] == prompt else None
        if self._hook.n_rows == 1 and fed and len(fed) < len(ids) and ids[: len(fed)] == fed:
            more = torch.tensor([ids[len(fed) :]], dtype=torch.long)
            return _Place(ids, start, torch.cat([track.ids, more], dim=1))
        return _Place(ids, start)

    def _begin_turn(self, start: int | None, kind: str) -> None:
        if start is None and kind in KINDS and not (kind == "action" and ("thought", self.round) in self._decided):
            self.round += 1
        elif start is not None and start != self._turn_start:
            self.round += 1
            self._turn_start = start
            self._thought, self._thought_seen, self._thought_text = None, False, ""

    def _check_order(self, place: _Place, kind: str, index: int) -> None:
        ids, last = place.ids, self._last
        if len(ids) < len(last) and last[: len(ids)] == ids:
            raise StaleCheckpointError(
                f"{kind} of {self.name!r} lies before a checkpoint that was decided on already: "
                "call checkpoint in the order of the tokens."
            )
        if ids == last and (kind, index) in self._decided:
            raise StaleCheckpointError(
                f"{kind}:{index} of {self.name!r} was decided on at this token already: run the model first."
            )

    # What the checkpoint shows -----------------------------------------------------------------------------------

    def _states(self, place: _Place) -> States:
        """States at the place's token: those at hand, else by feeding what the cache lacks, else encoded anew."""
        recorder, row = self._hook.recorder, self._hook.row_of(self)
        found = recorder.track.find(row, place.ids)
        if found is None and place.sequences is not None and recorder.extend(place.sequences):
            found = recorder.track.find(row, place.ids)
        return found if found is not None else recorder.encode(place.ids)[0]

    def _signals(
        self, kind: str, place: _Place, states: States, out: Any, counters: tuple[int | None, ...]
    ) -> dict[str, float]:
        """Surface signals by name; NaN for one that is not known here."""
        if kind == "prompt":
            turn: tuple[float, ...] = (0.0,) * (1 + len(LOGPROBS))
        elif kind == "observation":
            turn = self._turn_signals
        elif place.start is None:
            turn = (math.nan,) * (1 + len(LOGPROBS))
        else:
            count = len(place.ids) - place.start
            turn = (float(count), *self._logprobs(place.ids, place.start, out))
            self._turn_lengths[place.start] = count
        self._turn_signals = turn
        spent = math.nan if self._prompt is None else float(len(place.ids) - self._prompt)
        given = [math.nan if c is None else float(c) for c in counters]
        values = (spent, float(self.round), *turn, *given)
        names = ("tokens_so_far", "round", "turn_tokens", *LOGPROBS, *COUNTERS)
        return dict(zip(names, values, strict=True))

    def _logprobs(self, ids: list[int], start: int, out: Any) -> tuple[float, float, float]:
        """Mean and minimum log-probability, and mean entropy (nats), of a turn's ids at temperature 1."""
        row, n = self._hook.row_of(self), len(ids) - start
        steps = getattr(out, "logits", None)  # never `scores`: those went through temperature and top-p
        if steps is not None and len(steps) >= n:
            logits = torch.stack([step[row] for step in steps[:n]])
        elif self._hook.reads_logprobs:
            logits = self._hook.recorder.encode(ids, n + 1)[1][:-1]
        else:
            return math.nan, math.nan, math.nan
        logprobs = torch.log_softmax(logits.float(), dim=-1)
        chosen = logprobs.gather(1, torch.tensor(ids[start:], device=logprobs.device)[:, None]).double()
        entropies = torch.special.entr(logprobs.exp()).sum(-1).double()
        return float(chosen.mean()), float(chosen.min()), float(entropies.mean())

    def see_turn(self, row: int, conversation: list[int], start: int) -> None:
        """A turn while it is sampled: decide at its thought as soon as the label shows and the state is there."""
        if self.aborted:
            return
        self._begin_turn(start, "thought")
        self._find_thought(conversation, start)
        if self._thought is not None and self._hook.recorder.track.find(row, self._thought) is not None:
            self._settle_thought(_Place(self._thought, start))

    def _find_thought(self, conversation: list[int], start: int) -> None:
        place = None if self._thought_seen else thought_place(self._hook.decode, conversation[start:])
        if place is not None:
            turn = self._hook.decode(conversation[start:])
            self._thought_seen = True
            self._thought = conversation[: start + place + 1]
            self._thought_text = turn[: _thought_end(turn)].strip()

    def _late_thought(self, kind: str, place: _Place) -> None:
        """Decide at the turn's thought if it was not possible while sampling: `generate` ran without our criterion, or
        ended on the token that thought and label share."""
        if kind == "thought":
            self._thought_seen = True
        elif kind not in KINDS or kind == "action":
            if self._hook.reads_thoughts and place.start is not None:
                self._find_thought(place.ids, place.start)
            self._settle_thought(place)

    def _settle_thought(self, place: _Place) -> None:
        thought, self._thought = self._thought, None
        if thought is None:
            return
        self.asked.add("thought")
        if self._prompt is None:
            self._prompt = place.start
        own = _Place(thought, place.start, place.sequences)
        states = self._states(own)
        values = self._signals("thought", own, states, None, (None,) * len(COUNTERS))
        self._judge("thought", self.round, own, states, values, Told())

    # The decision ------------------------------------------------------------------------------------------------

    def _judge(
        self,
        kind: str,
        index: int,
        place: _Place,
        states: States,
        values: dict[str, float],
        told: Told,
    ) -> Decision:
        name = checkpoint_name(kind, index)
        turn = self._hook.decode(place.ids[place.start :]) if place.start is not None and kind != "prompt" else ""
        account = self._account
        account.follow(kind, self.round, turn, told)
        account.check(name, kind, self.round, told, self._hook.reads(name), self._hook.taps(name))
        checkpoint = Checkpoint(
            kind=kind,
            index=index,
            round=self.round,
            position=len(place.ids) - 1,
            tokens=len(place.ids) - (self._prompt if self._prompt is not None else len(place.ids)),
            generated=sum(self._turn_lengths.values()),
            calls=told.calls,
            seconds=time.perf_counter() - self._started,
            final=told.final,
            signals=self._hook.shown_signals(name, values),
            checks=dict(told.checks or {}),
        )
        moment = Moment(
            checkpoint=checkpoint,
            hidden={layer: self._cast(state) for layer, state in states.items()},
            transcript=account.transcript(kind, self.round) if "text" in self._hook.reads(name) else (),
            thought="" if kind != "thought" else self._thought_text or turn.strip(),
            action=told.action,
            observation=told.observation,
            rounds_left=sys.maxsize,  # the caller's loop has its own limits
            tokens_left=sys.maxsize,
            turn="" if kind in ("prompt", "thought", "observation") else turn,
        )
        if place.ids != self._last:
            self._last = place.ids
            self._decided.clear()
        self._decided.add((kind, index))
        account.seen.add(name)
        return self._note(checkpoint.name, self._hook.decide(self._watch, moment))

    def _cast(self, state: NDArray[np.float32]) -> NDArray[np.float32]:
        dtype = self._hook.options.store_dtype
        return state if dtype is None else cast(state, dtype)

    def _note(self, name: str, decision: Decision) -> Decision:
        if decision.gate and not math.isnan(decision.score):
            self.scores[name] = decision.score
        wanted = decision.action
        if self._hook.options.shadow and wanted != "continue":
            reason = f"shadow, would {wanted}: {decision.reason}"
            decision = Decision(gate=decision.gate, score=decision.score, threshold=decision.threshold, reason=reason)
        if wanted != "continue" and self.decision is None:
            self.decision = decision
        if decision.action == "abort":
            self.aborted = True
            self.decision = decision
            _log.info("the episode %r was aborted: %s", self.name, decision.reason)
        return decision
