"""Episodes from dumped hidden states: an index, JSON Lines, says whose they are and where the checkpoints stand.

    {"file": "hs_0.safetensors", "episode_id": "e0", "group": "question-17", "failed": true,
     "checkpoints": {"prompt": 211, "action:1": 240, "observation:1": 302, "action:2": 331}}

`file` is seen from the index's folder, positions count the dump's ids from 0. `task_id` (the group), `reward`,
`attributes`, and `token_ids` to check the dump against may be added; `failed` null or left out: no label. The prompt
ends at `prompt`, which every episode needs; a turn runs from there, or from the observation before it, to its `action`.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probecascade.episode import SIGNALS, Checkpoint, Episode, Outcome, Recording
from probecascade.errors import DataError, UsageError
from probecascade.store.dumps import Dump

_KEYS = {"file", "episode_id", "group", "task_id", "failed", "reward", "attributes", "token_ids", "checkpoints"}
_NEEDED = ("file", "episode_id", "group", "checkpoints")
_ROUND = re.compile(r"[1-9][0-9]{0,5}")
_ROUNDS = {"thought": 0, "action": 1, "observation": 2}


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of an index. `points` are (kind, index, position), in the order of their positions."""

    line: int
    file: Path
    episode_id: str
    task_id: str
    group: str
    failed: bool | None
    reward: float | None
    points: tuple[tuple[str, int, int], ...]
    attributes: Mapping[str, Any]
    token_ids: tuple[int, ...] | None

    @property
    def kinds(self) -> set[str]:
        return {kind for kind, _, _ in self.points}


def read_index(path: Path) -> list[Entry]:
    """The entries of an index. UsageError for a file that cannot be read, DataError naming a line that is wrong."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # a text may hold other line breaks
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the index {str(path)!r} cannot be read ({error}): give a file of JSON Lines.") from error
    entries: list[Entry] = []
    known: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = _entry(number, json.loads(line), path.parent)
            if entry.episode_id in known:
                raise DataError(f"the episode {entry.episode_id!r} is on line {known[entry.episode_id]} already")
        except (ValueError, TypeError, RecursionError, DataError) as error:
            raise DataError(f"{path.name}, line {number}: {error}; see `probecascade import --help`.") from error
        known[entry.episode_id] = number
        entries.append(entry)
    if not entries:
        raise DataError(f"the index {str(path)!r} names no episode: write one JSON object a line.")
    return entries


def _entry(line: int, record: Any, folder: Path) -> Entry:
    if not isinstance(record, dict):
        raise DataError(f"it holds {type(record).__name__} and no object")
    missing, unknown = [key for key in _NEEDED if key not in record], sorted(set(record) - _KEYS)
    if missing or unknown:
        raise DataError(f"{missing[0]!r} is missing" if missing else f"the key {unknown[0]!r} is unknown")
    for key in ("file", "episode_id", "group", "task_id"):
        if key in record and not (isinstance(record[key], str) and record[key].strip()):
            raise DataError(f"{key!r} is {record[key]!r} and no text")
    failed, reward, ids = record.get("failed"), record.get("reward"), record.get("token_ids")
    if failed is not None and not isinstance(failed, bool):
        raise DataError(f"'failed' is {failed!r}: give true, false or null")
    number = isinstance(reward, int | float) and not isinstance(reward, bool)
    if reward is not None and not (number and abs(reward) <= sys.float_info.max):
        raise DataError(f"'reward' is {str(reward)[:40]} and no finite number")
    if failed is not None and reward is not None and (reward >= 1 if failed else reward <= 0):
        raise DataError(f"'failed' is {str(failed).lower()} and 'reward' {reward:g}: one of them is wrong")
    if ids is not None and not (isinstance(ids, list) and all(type(i) is int for i in ids)):
        raise DataError("'token_ids' is no list of whole numbers")
    attributes = record.get("attributes", {})
    if not isinstance(attributes, dict):
        raise DataError(f"'attributes' is {attributes!r} and no object")
    try:
        json.dumps(attributes, allow_nan=False)
    except ValueError as error:
        raise DataError("'attributes' holds a number that is not finite") from error
    return Entry(
        line=line,
        file=folder / record["file"],
        episode_id=record["episode_id"],
        task_id=str(record.get("task_id", record["group"])),
        group=record["group"],
        failed=failed,
        reward=None if reward is None else float(reward),
        points=_points(record["checkpoints"]),
        attributes=attributes,
        token_ids=None if ids is None else tuple(ids),
    )


def _points(named: Any) -> tuple[tuple[str, int, int], ...]:
    if not isinstance(named, dict) or "prompt" not in named:
        raise DataError("'checkpoints' gives no position of 'prompt', the last id of the prompt")
    found = []
    for name, position in named.items():
        kind, _, number = name.partition(":")
        if type(position) is not int or position < 0:
            raise DataError(f"the position of {name} is {position!r}: give a whole number from 0 on")
        if name == "prompt":
            found.append(("prompt", 0, position))
        elif kind in _ROUNDS and _ROUND.fullmatch(number):
            found.append((kind, int(number), position))
        else:
            raise DataError(f"the checkpoint {name!r} is unknown: name prompt, thought:1, action:1, observation:1, ...")
    in_order = sorted(found, key=lambda point: (point[1], _ROUNDS.get(point[0], -1)))
    positions = [position for _, _, position in in_order]
    if any(b <= a for a, b in itertools.pairwise(positions)):
        raise DataError("the positions of the checkpoints do not rise from round to round")
    return tuple(in_order)


def imported(entry: Entry, dump: Dump) -> Recording:
    """The episode of an entry, with the dump's states at its checkpoints.

    What a dump does not tell is left out: steps are empty, seconds and the signals of the model's own probabilities
    are 0. DataError where ids or positions do not agree with the dump.
    """
    name = f"episode {entry.episode_id!r}"
    if entry.token_ids is not None and list(entry.token_ids) != dump.token_ids.tolist():
        raise DataError(
            f"{name} has {len(entry.token_ids)} ids in the index and {len(dump.token_ids)} in {str(dump.path)!r}, and "
            "they are not the same: the dump is that of another sequence."
        )
    last = entry.points[-1]
    if last[2] >= len(dump.token_ids):
        raise DataError(
            f"{name} has {last[0]}:{last[1]} at position {last[2]}, and {str(dump.path)!r} holds "
            f"{len(dump.token_ids)} ids: positions count from 0."
        )
    points = tuple(_checkpoints(entry.points))
    spent = points[-1]
    outcome: Outcome = "unlabelled" if entry.failed is None else "failure" if entry.failed else "success"
    prompt = entry.points[0][2] + 1
    after = len(dump.token_ids) - prompt - spent.tokens  # ids behind the last checkpoint
    closed = spent.kind in ("action", "prompt")
    episode = Episode(
        episode_id=entry.episode_id,
        task_id=entry.task_id,
        group=entry.group,
        seed=0,
        outcome=outcome,
        reward=float(entry.failed is False) if entry.reward is None else entry.reward,
        reason="imported",
        steps=(),
        checkpoints=points,
        token_ids=dump.token_ids,
        prompt_tokens=prompt,
        generated=spent.generated + (0 if closed else after),
        observed=spent.tokens - spent.generated + (after if closed else 0),
        calls=max(point.calls for point in points),
        seconds=0.0,
        attributes=entry.attributes,
    )
    return Recording(episode, dump.states([position for _, _, position in entry.points]))


def _checkpoints(points: Sequence[tuple[str, int, int]]) -> Iterator[Checkpoint]:
    start = begun = points[0][2] + 1  # of what came after the prompt, and of the turn
    generated = calls = turn = 0
    last = max((number for kind, number, _ in points if kind == "action"), default=0)
    ends = points[-1][0] == "action"
    for kind, number, position in points:
        if kind in ("thought", "action"):
            turn = position + 1 - begun
        elif kind == "observation":
            calls = number
        signals = dict.fromkeys(SIGNALS, 0.0) | {
            "tokens_so_far": float(position + 1 - start), "round": float(number), "turn_tokens": float(turn),
        }  # fmt: skip
        yield Checkpoint(
            kind=kind,
            index=number,
            round=number,
            position=position,
            tokens=position + 1 - start,
            generated=generated + (turn if kind in ("thought", "action") else 0),
            calls=calls,
            seconds=0.0,
            final=kind == "action" and ends and number == last,
            signals=tuple(signals[name] for name in SIGNALS),
        )
        if kind == "action":
            generated += turn
        if kind in ("action", "observation"):
            begun = position + 1
