"""Recorded episodes read again by their model: other layers and checkpoints, from the very ids that were stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probecascade.agents.layout import LaidRound, LaidRun, thought_place, tokens_for
from probecascade.agents.parser import REACT, Actions, Form, opens_thinking, parse_turn
from probecascade.agents.react import AgentSettings
from probecascade.agents.record import EpisodeRecord
from probecascade.agents.recorded.records import RecordedStep
from probecascade.agents.replay import Plan, tell
from probecascade.episode import Checkpoint, Episode, Recording, Step, Task
from probecascade.errors import StoreError
from probecascade.interfaces import LanguageModel
from probecascade.models.requests import Fed, Feed, Request
from probecascade.store.schema import cast

ADDABLE = ("prompt", "thought", "action", "turn_mean", "observation")
"""Kinds of checkpoints whose places follow from the stored ids and steps, in the order within a round."""

States = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Reread:
    """What is read anew: `layers` are kept, `stored` are those of the run, all of which the model must keep.

    The first `shared` ids are those of a head that many episodes have in common, which is encoded once. States are
    rounded to `dtype`. What was stored must come out again within `tolerance` (relative L2 of a state). `add` are
    kinds of checkpoints that the run lacks, `form` is how its turns are written.
    """

    layers: Sequence[int]
    stored: Sequence[int]
    dtype: str
    shared: int
    tolerance: float
    add: tuple[str, ...] = ()
    form: Form = REACT


def form_of(model: LanguageModel, episode: Episode, actions: Actions) -> Form:
    """How the turns of an episode that an agent played are written: its prompt tells whether they begin by thinking."""
    return Form(actions, opens_thinking(model.decode(episode.token_ids[: episode.prompt_tokens].tolist())))


def tolerance(model_dtype: str, dtype: str) -> float:
    """Relative L2 by which a state may differ when it is computed again: a batch of another shape changes the last
    bits of what the model computes in `model_dtype`, and the store rounds to `dtype`."""
    if model_dtype != "float32":
        return 5e-2
    return 1e-2 if dtype == "bfloat16" else 2e-3


def reread(
    model: LanguageModel, episode: Episode, states: States, wanted: Reread
) -> Generator[Request, Any, Recording]:
    """The episode with its states at the wanted layers, and with the added checkpoints, as a conversation.

    `states` are those that were stored, (n_checkpoints, len(wanted.stored), d_model). The stored ids are fed and
    nothing is sampled. Where the places of added checkpoints cannot be told, none are added. Raises StoreError where
    a stored state does not come out again.
    """
    laid = laid_again(model, episode, wanted.form) if wanted.add else None
    plan = None if laid is None else Plan(laid, set(wanted.add))
    spans = [_span(point, episode.steps) for point in episode.checkpoints]
    own = {position for span in spans for position in span}
    keep = tuple(sorted(own if plan is None else own | set(plan.keep)))
    if not keep:
        return Recording(episode, np.zeros((0, len(wanted.layers), model.d_model), np.float32))
    ids = episode.token_ids.tolist() if plan is not None else episode.token_ids.tolist()[: keep[-1] + 1]
    shared = wanted.shared if keep[0] >= wanted.shared else 0
    fed: Fed = yield Feed(ids, keep=keep, shared=shared, score=() if plan is None else plan.scored)
    at = dict(zip(keep, fed.states, strict=True))
    place = {layer: column for column, layer in enumerate(model.layers)}
    found = _pooled(at, spans, (len(place), model.d_model))
    _compare(episode, cast(found[:, [place[layer] for layer in wanted.stored]], wanted.dtype), states, wanted)
    columns = [place[layer] for layer in wanted.layers]
    points, kept = list(episode.checkpoints), list(cast(found[:, columns], wanted.dtype))
    if laid is not None and plan is not None:
        planned = dataclasses.replace(fed, states=np.stack([at[p] for p in plan.keep]))
        new = _added(model, episode, laid, plan, planned, wanted)
        for point, state in zip(new.episode.checkpoints, new.hidden[:, columns], strict=True):
            if not _unfinished(point, episode):
                points.append(_settled(point, episode))
                kept.append(state)
    order = sorted(range(len(points)), key=lambda i: (points[i].position, _rank(points[i].kind)))
    again = dataclasses.replace(episode, checkpoints=tuple(points[i] for i in order))
    return Recording(again, np.stack([kept[i] for i in order]))


def laid_again(model: LanguageModel, episode: Episode, form: Form = REACT) -> LaidRun | None:
    """Where the pieces of a stored episode lie in its ids; None where its ids, steps and checkpoints do not fit."""
    if not len(episode.token_ids):
        return None
    dropped = int(episode.attributes.get("rounds_dropped", 0))
    steps = episode.steps[dropped:]
    told = episode.prompt_tokens + sum(step.turn_tokens + step.observation_tokens for step in steps)
    left = len(episode.token_ids) - told
    gaps = [left // n if n else 0 for n in (len(steps) - 1, len(steps)) if (left % n == 0 if n else left == 0)]
    for gap in (gap for gap in gaps if left >= 0):
        laid = _cut(model, episode, form, dropped, gap)
        if _fits(episode, laid):
            return laid
    return None


def _cut(model: LanguageModel, episode: Episode, form: Form, dropped: int, gap: int) -> LaidRun:
    """The pieces if `gap` ids lie between an observation and the next turn; those that were never read are blank."""
    ids, at = episode.token_ids.tolist(), episode.prompt_tokens
    rounds = []
    for number, step in enumerate(episode.steps):
        read = number >= dropped
        pieces = []
        for count in (step.turn_tokens, step.observation_tokens, gap):
            pieces.append(ids[at : at + count] if read else [0] * count)
            at += count if read else 0
        recorded = RecordedStep(
            step.text, step.thought, step.action, step.argument, step.observation, step.observation_kind
        )
        thought = _thought(model, pieces[0], step, form) if read else None
        rounds.append(LaidRound(recorded, pieces[0], thought, pieces[1], pieces[2]))
    return LaidRun(ids[: episode.prompt_tokens], tuple(rounds), dropped)


def _thought(model: LanguageModel, turn: list[int], step: Step, form: Form) -> int | None:
    if form == REACT:
        return thought_place(model, turn, step.thought if step.action else "")
    found = parse_turn(model.decode(turn), (), form)
    return tokens_for(model, turn, found.thought_end) - 1 if found.label is not None and found.thought_end else None


def _fits(episode: Episode, laid: LaidRun) -> bool:
    """Whether all ids are spoken for and every stored checkpoint stands at the end of a piece of its kind."""
    ends: dict[tuple[str, int], int] = {}
    at = len(laid.prompt)
    for number, each in enumerate(laid.rounds[laid.dropped :], laid.dropped + 1):
        ends["turn", number] = at + len(each.turn) - 1
        ends["observation", number] = at + len(each.turn) + len(each.observation) - 1
        at += each.length
    known = {"observation": "observation", "prompt": "", "thought": ""}
    checked = [(known.get(c.kind, "turn"), c) for c in episode.checkpoints]
    stand = all(ends.get((piece, c.round)) == c.position for piece, c in checked if piece)
    return stand and len(episode.token_ids) == at


def _added(model: LanguageModel, episode: Episode, laid: LaidRun, plan: Plan, fed: Fed, wanted: Reread) -> Recording:
    settings = AgentSettings(checkpoints=wanted.add, store_dtype=wanted.dtype)
    record = EpisodeRecord(
        Task(episode.task_id, episode.group, ()), episode.episode_id, episode.seed, settings, model, None
    )
    tell(record, laid, plan, fed, ends=episode.reason in ("finished", "answered", "recorded"))
    record.end(episode.outcome, episode.reason, episode.reward)
    return record.recording()


def _unfinished(point: Checkpoint, episode: Episode) -> bool:
    """Whether it would stand at the end of a turn that was stopped before its action was complete."""
    turn = point.kind in ("action", "turn_mean")
    return turn and episode.steps[point.round - 1].finish_reason == "stopped"


def _settled(point: Checkpoint, episode: Episode) -> Checkpoint:
    """An added checkpoint with the seconds of its place in the episode and the checks of its turn's action."""
    known = sorted((c.position, c.seconds) for c in episode.checkpoints)
    known.append((len(episode.token_ids), episode.seconds))
    at, spent = zip(*known, strict=True)
    seconds = float(np.interp(point.position, at, spent))
    beside = [c.checks for c in episode.checkpoints if c.position == point.position and c.round == point.round]
    return dataclasses.replace(point, seconds=seconds, checks=next(iter(beside), point.checks))


def _span(point: Checkpoint, steps: Sequence[Step]) -> range:
    """The positions whose states' mean is the checkpoint's state."""
    count = steps[point.round - 1].turn_tokens if point.kind == "turn_mean" else 1
    return range(point.position + 1 - count, point.position + 1)


def _pooled(at: dict[int, States], spans: Sequence[range], shape: tuple[int, int]) -> States:
    if not spans:
        return np.zeros((0, *shape), np.float32)
    return np.stack([np.stack([at[p] for p in span]).mean(axis=0, dtype=np.float64) for span in spans]).astype(
        np.float32
    )


def _rank(kind: str) -> float:
    return ADDABLE.index(kind) if kind in ADDABLE else ADDABLE.index("action") + 0.5


def _compare(episode: Episode, found: States, stored: States, wanted: Reread) -> None:
    gaps = np.linalg.norm(found - stored, axis=2) / np.maximum(np.linalg.norm(stored, axis=2), 1e-12)
    if gaps.size and not gaps.max() <= wanted.tolerance:
        row, column = np.unravel_index(int(np.nan_to_num(gaps, nan=np.inf).argmax()), gaps.shape)
        raise StoreError(
            f"{episode.checkpoints[int(row)].name} of episode {episode.episode_id!r} comes out another at layer "
            f"{wanted.stored[int(column)]} than it was stored (relative difference {gaps[row, column]:.2g}, allowed "
            f"{wanted.tolerance:g}): the run is damaged or was not made by this model from these ids; extract it anew."
        )


def common_head(episodes: list[Episode]) -> int:
    """How many first ids all these episodes have in common, at most their shortest prompt less one.

    Episodes that hold no ids are passed over, since nothing of them is read.
    """
    episodes = [episode for episode in episodes if len(episode.token_ids)]
    if not episodes:
        return 0
    head = episodes[0].token_ids
    longest = min(episode.prompt_tokens for episode in episodes) - 1
    for episode in episodes[1:]:
        same = head[:longest] == episode.token_ids[:longest]
        longest = longest if same.all() else int(np.argmin(same))
    return max(longest, 0)
