"""How episodes fail: one failure mode each, by rules on the stored transcript, or as a file says.

The rules look at the *losing stretch*: the turns of the part in which the episode was lost, up to the round that
doomed it where the environment knows that round, else the turns of its last part. A turn that the budget cut short
is left out. In order, the first that holds names the mode:

1. `invalid_action`: at least `INVALID_SHARE` of the turns held no action that could be carried out.
2. `loop`: at least `LOOP_RUN` identical valid actions in a row, or at least `LOOP_SHARE` of the turns repeated an
   action of the stretch. Case and blanks aside; trying again after a tool error is no repeat.
3. `gave_up`: the stretch ends in a finish whose answer says that there is none (`NO_ANSWER`).
4. `tool_error`: the last tool that was used in it failed or found nothing.
5. `out_of_budget`: the episode was truncated, and nothing had doomed it before.
6. `wrong_answer`: all others; what they ended with was not right.
"""

from __future__ import annotations

import csv
import difflib
import io
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probecascade.episode import Episode, Step
from probecascade.errors import DataError, NothingToDoError, UsageError
from probecascade.evaluation.backtest import chosen_episodes
from probecascade.intervals import DEFAULT, Interval, Resampling, share_interval
from probecascade.policies import FAILURE_MODES, Cascade, score_run
from probecascade.policies.rules import FAILED_SEARCH, normalise
from probecascade.policies.taps import stored
from probecascade.store import Run
from probecascade.thresholds.firing import first_firing

INVALID_SHARE = 0.5
LOOP_RUN = 3
LOOP_SHARE = 0.5
LOOP_TURNS = 4
"""Turns that a stretch needs before the share of repeats says anything: a search tried twice is no loop."""

NO_ANSWER = frozenset(
    {
        *("unknown", "none", "n/a", "na", "unsure", "not sure", "not found", "not available", "no answer"),
        *("i don't know", "i do not know", "don't know", "do not know", "no information", "cannot answer"),
        *("can't answer", "cannot be determined", "i cannot answer", "i give up", "give up"),
    }
)
"""Answers, in lower case and without outer blanks and dots, that say there is none."""

EXAMPLES = 3
_COLUMNS = ("episode_id", "mode")
_BOTH = " and ".join(_COLUMNS)


def failure_mode(episode: Episode) -> str:
    """The mode in which an episode failed, one of `FAILURE_MODES`; DataError for one that did not fail."""
    if not (episode.labelled and episode.failed):
        raise DataError(
            f"episode {episode.episode_id!r} ended as {episode.outcome}: only failures have a failure mode."
        )
    turns = losing_stretch(episode)
    invalid = sum(not _valid(step) for step in turns)
    if turns and invalid >= INVALID_SHARE * len(turns):
        return "invalid_action"
    if _loops(turns):
        return "loop"
    if turns and turns[-1].action == "finish" and _says_none(turns[-1].argument):
        return "gave_up"
    tools = [step for step in turns if step.observation_kind in ("content", *FAILED_SEARCH)]
    if tools and tools[-1].observation_kind in FAILED_SEARCH:
        return "tool_error"
    unanswered = episode.outcome == "truncated" and episode.doomed_round is None
    return "out_of_budget" if unanswered else "wrong_answer"


def losing_stretch(episode: Episode) -> tuple[Step, ...]:
    """The turns of the part in which the episode was lost, up to the round that doomed it where that is known."""
    steps = episode.steps
    if episode.doomed_round is not None:
        steps = tuple(step for step in steps if step.round <= episode.doomed_round)
    elif episode.outcome == "truncated" and steps and steps[-1].finish_reason == "turn_limit":
        steps = steps[:-1]
    return tuple(step for step in steps if step.part == steps[-1].part)


def _valid(step: Step) -> bool:
    return bool(step.action) and step.observation_kind != "invalid"


def _loops(turns: Sequence[Step]) -> bool:
    tried: set[tuple[str, str]] = set()
    last, run, longest, repeats = None, 0, 0, 0
    for step in turns:
        if not _valid(step):
            continue
        key = (step.action, normalise(step.argument))
        run = run + 1 if key == last else 1
        longest = max(longest, run)
        repeats += key in tried
        last = key
        if step.observation_kind == "tool_error":
            last, run = None, 0
        else:
            tried.add(key)
    return longest >= LOOP_RUN or (len(turns) >= LOOP_TURNS and repeats >= LOOP_SHARE * len(turns))


def _says_none(answer: str) -> bool:
    return normalise(answer).replace("’", "'").strip(" .!?\"'") in NO_ANSWER


def failure_modes(run: Run) -> NDArray[np.object_]:
    """(n_episodes,) str: every failed labelled episode's mode by the rules, empty for all others.

    Empty too where the rounds of a failed episode are not known, as those of imported states are not.
    """
    episodes = run.episodes
    modes = np.full(len(run), "", dtype=object)
    for index in np.flatnonzero(episodes.labelled & episodes.failed):
        episode = run.episode(int(index))
        if episode.steps or not any(point.round for point in episode.checkpoints):
            modes[index] = failure_mode(episode)
    return modes


def override_modes(run: Run, modes: NDArray[np.object_], path: Path, *, allow_new: bool = False) -> NDArray[np.object_]:
    """The modes with those that a file gives in place of the rules'.

    The file is CSV with the columns `episode_id` and `mode`, or JSONL (`.jsonl`) with these keys; others are passed
    over. DataError naming the line for an episode that is not in the run, did not fail or stands there twice, and
    for a mode that is not one of `FAILURE_MODES` (with `allow_new`: that is empty, unprintable or `success`); also
    for a file without both columns, each once, or without a line below them.
    """
    place = {name: index for index, name in enumerate(run.episodes.episode_id.tolist())}
    lost = run.episodes.labelled & run.episodes.failed
    replaced = modes.copy()
    seen: set[str] = set()
    for line, entry in _entries(path):
        name, mode = entry["episode_id"], entry["mode"].strip()
        where = f"line {line} of {str(path)!r}"
        if name not in place:
            raise DataError(f"{where} names the episode {name!r}, which is not in the run: give ids of its failures.")
        if not lost[place[name]]:
            outcome = run.episodes.outcome[place[name]]
            raise DataError(f"{where} gives a failure mode to {name!r}, which ended as {outcome}: leave it out.")
        if name in seen:
            raise DataError(f"{where} names the episode {name!r} again: give each once.")
        if mode not in FAILURE_MODES and not (allow_new and mode):
            close = difflib.get_close_matches(mode, FAILURE_MODES, n=1)
            meant = f"did you mean {close[0]}?" if close else f"the modes are {', '.join(FAILURE_MODES)};"
            raise DataError(f"{where} gives the mode {mode!r}: {meant} modes of your own need --allow-new.")
        if mode == "success" or not mode.isprintable():
            raise DataError(f"{where} gives the mode {mode!r}: give a failure mode, as plain text.")
        seen.add(name)
        replaced[place[name]] = mode
    if not seen:
        raise DataError(f"{str(path)!r} gives no failure mode: give CSV or JSONL with {_BOTH}.")
    return replaced


def _entries(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    try:
        text = path.read_bytes().decode("utf-8-sig", "surrogatepass")
    except UnicodeDecodeError as error:
        raise DataError(f"{str(path)!r} is no UTF-8 text: give CSV or JSONL with {_BOTH}.") from error
    for line, entry in _json_lines(path, text) if path.suffix == ".jsonl" else _csv_lines(path, text):
        if not isinstance(entry, dict) or not all(isinstance(entry.get(key), str) for key in _COLUMNS):
            raise DataError(f"line {line} of {str(path)!r} lacks episode_id or mode: give both on every line.")
        yield line, entry


def _json_lines(path: Path, text: str) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                entry = json.loads(line, object_pairs_hook=_distinct)
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"line {number} of {str(path)!r} is no JSON ({error}): give one object a line."
                ) from error
            yield number, entry


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entry = dict(pairs)
    if len(entry) < len(pairs):
        raise ValueError("a key is repeated")
    return entry


def _csv_lines(path: Path, text: str) -> Iterator[tuple[int, Any]]:
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        names = list(reader.fieldnames or ())
        if any(names.count(key) != 1 for key in _COLUMNS):
            raise DataError(f"{str(path)!r} is no CSV whose first line names {_BOTH}, each once: write that line.")
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise DataError(f"{str(path)!r} is no CSV ({error}): give CSV or JSONL with {_BOTH}.") from error


@dataclass(frozen=True, slots=True)
class ModeRow:
    """One failure mode in a run.

    `share`: of all failures, with an interval over groups. `tokens`, `rounds`: means over its episodes.
    `doomed_round`: median round whose end doomed them, of the `doomed_known` in which the environment knows it; NaN
    without any. `examples`: ids of its first episodes.
    """

    mode: str
    count: int
    share: Interval
    tokens: float
    rounds: float
    doomed_round: float
    doomed_known: int
    examples: tuple[str, ...]


def mode_table(run: Run, modes: NDArray[np.object_], resampling: Resampling = DEFAULT) -> tuple[ModeRow, ...]:
    """Counts, shares and costs by mode, most frequent first; modes without an episode are left out.

    modes: (n_episodes,) as `failure_modes` returns them. NothingToDoError where no episode has one.
    """
    if modes.shape != (len(run),):
        raise UsageError(f"{modes.size} modes were given for {len(run)} episodes: give one each, empty for successes.")
    episodes, failed = run.episodes, modes != ""
    if not failed.any():
        why = "failed and has a transcript to read it from" if (episodes.labelled & episodes.failed).any() else "failed"
        raise NothingToDoError(f"no labelled episode of {str(run.path)!r} {why}: there are no failure modes to count.")
    rows = []
    for mode, count in sorted(Counter(modes[failed].tolist()).items(), key=lambda item: (-item[1], item[0])):
        own = modes == mode
        doomed = episodes.doomed_round[own]
        known = doomed[doomed >= 0]
        rows.append(
            ModeRow(
                mode=mode,
                count=count,
                share=share_interval(own, failed, episodes.group, resampling),
                tokens=float(episodes.tokens[own].mean()),
                rounds=float(episodes.rounds[own].mean()),
                doomed_round=float(np.median(known)) if known.size else float("nan"),
                doomed_known=int(known.size),
                examples=tuple(episodes.episode_id[own][:EXAMPLES].tolist()),
            )
        )
    return tuple(rows)


def modes_of_aborts(cascade: Cascade, run: Run, split: str, *, explored: bool = False) -> dict[str, dict[str, int]]:
    """How often the aborts of each likely failure mode hit which mode by the rules, or a success.

    Of the labelled episodes of a split that a gate with a mode probe aborts first; empty for a cascade without such
    gates. `explored` is that of `backtest_run`, which raises the same.
    """
    chosen = np.flatnonzero(chosen_episodes(cascade, run, split, explored=explored))
    table = score_run(run, cascade.gates, gate_answers=cascade.gate_answers)
    first = np.full(len(run), -1)
    first[chosen] = first_firing(table.scores[chosen], cascade.thresholds, table.tokens_after[chosen])
    found: dict[str, dict[str, int]] = {}
    for g, gate in enumerate(cascade.gates):
        if gate.modes is None or not (first == g).any():
            continue
        episodes = run.rows(gate.checkpoint).episode
        aborted = first[episodes] == g
        shown = stored(run, gate.checkpoint, gate.taps, frozenset()).take(aborted)
        likeliest = gate.mode_probabilities(shown).argmax(axis=1)
        for index, place in zip(episodes[aborted].tolist(), likeliest.tolist(), strict=True):
            failed = bool(run.episodes.failed[index])
            truth = failure_mode(run.episode(index)) if failed else "success"
            counts = found.setdefault(gate.modes.names[place], {})
            counts[truth] = counts.get(truth, 0) + 1
    return found
