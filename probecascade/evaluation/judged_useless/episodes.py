"""Episodes of agents whose tools fail, as the measures need them, and the JSON Lines files that hold them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from probecascade.agents.recorded import Fault
from probecascade.agents.recorded.source import read_source
from probecascade.environments.failures import Regime
from probecascade.errors import DataError, UsageError
from probecascade.policies.judged import BELIEFS

OWN = "own"
"""The name under which an episode's own verdicts stand beside those of its further judges."""

USELESS = "USELESS"
USEFUL = "USEFUL"
FINISH = "finish"
NO_CALLS = frozenset((FINISH, "invalid", ""))
"""Actions that are no tool calls: an answer, and a turn without a valid action."""

_INJECTED = ("persistent", "recover_after_1", "recover_after_2", "recover_after_3", "late_onset_from_3")
_MISSING = tuple(f"missing_{n}" for n in range(1, 10))
FAILURE_REGIMES = (*_INJECTED, *_MISSING)
"""The five regimes of the study whose failures are injected, and the natural ones: so many of the pages that hold the
answer are not among those that can be found (`missing_0` is as it should be)."""
SIX_REGIMES = ("clean", *_INJECTED)
_KINDS = frozenset(("plausible", "answerless"))  # regimes that are named after what stands in a result's place

_KEYS = ("question_id", "regime", "verdicts", "actions", "success")


@dataclass(frozen=True, slots=True)
class StudyEpisode:
    """One episode: what the agent did, how each observation was judged, and whether its answer was right.

    `verdicts[i]` judges the observation that `actions[i]` returned, in upper case: USELESS, USEFUL, or anything else
    (such as UNPARSED); empty where no verdict was asked for. There may be fewer verdicts than observations; nothing is
    known of the later ones. `actions` has one lower-case name per step, `finish` included, which can only be the last.
    `injected[i]` tells whether the i-th observation was a failure put in place of the result, None where there was no
    result to replace; `injected` is None where that was not recorded. `judges` holds the verdicts of further judges on
    the same observations, by name; `judge` is the name of the one whose verdicts `verdicts` are, where it is known.
    `beliefs` holds, for `continuing` and for `answering` at once, the probability of success that the model stated
    after each of them, None where it stated none.

    Raises DataError where the parts do not fit together.
    """

    question_id: str
    regime: str
    verdicts: tuple[str, ...]
    actions: tuple[str, ...]
    success: bool
    condition: str = ""
    injected: tuple[bool | None, ...] | None = None
    model: str = ""
    split: str = ""
    judges: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    beliefs: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    judge: str = ""

    def __post_init__(self) -> None:
        if FINISH in self.actions[:-1]:
            raise DataError(f"action {self.actions.index(FINISH) + 1} of {len(self.actions)} is finish, not the last")
        # A turn without a valid action may or may not have been answered with an observation.
        room = sum(action != FINISH for action in self.actions)
        if len(self.verdicts) > room:
            raise DataError(f"{len(self.verdicts)} verdicts on at most {room} observations")
        if self.injected is not None and len(self.injected) > room:
            raise DataError(f"{len(self.injected)} marks of injected failures on at most {room} observations")
        if OWN in self.judges or (self.judge and self.judge in self.judges):
            name = OWN if OWN in self.judges else self.judge
            raise DataError(f"a further judge is named {name!r}, as the first one is")
        for name, verdicts in self.judges.items():
            if len(verdicts) != len(self.verdicts):
                raise DataError(f"{len(verdicts)} verdicts of the judge {name!r} beside {len(self.verdicts)} others")
        for name, stated in self.beliefs.items():
            if name not in BELIEFS or len(stated) != len(self.verdicts):
                raise DataError(
                    f"{len(stated)} beliefs in {name!r} beside {len(self.verdicts)} verdicts, not one each in "
                    f"{' and '.join(map(repr, BELIEFS))}"
                )

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """What no two episodes of a file share: model, condition, split, question and regime."""
        return self.model, self.condition, self.split, self.question_id, self.regime

    @property
    def calls(self) -> int:
        """Tool calls: all actions but an answer and turns without a valid action."""
        return sum(action not in NO_CALLS for action in self.actions)

    @property
    def answered(self) -> bool:
        """Whether the episode ended with an answer."""
        return self.actions[-1:] == (FINISH,)

    @property
    def truth(self) -> tuple[bool | None, ...] | None:
        """Which of the judged observations were injected failures: as recorded, else as the regime's name says.

        None where neither tells.
        """
        if self.injected is not None:
            return self.injected
        struck = _struck(self.regime)
        return None if struck is None else tuple(struck.strikes(call) for call in range(1, len(self.verdicts) + 1))


@lru_cache
def _struck(regime: str) -> Regime | None:
    try:
        return Regime.named(regime)
    except UsageError:
        return None


def natural(regime: str) -> bool:
    """Whether it is a regime in which nothing is injected, but pages may be missing."""
    return regime == "missing_0" or regime in _MISSING


def is_known(regime: str) -> bool:
    """Whether the name is that of a regime of the study, natural ones included, or of `environments.failures`."""
    return regime in _KINDS or natural(regime) or _struck(regime) is not None


@dataclass(frozen=True, slots=True)
class StudyFile:
    """What a file holds: its episodes in order, what is wrong in it, and its `unknown` regimes with their counts."""

    episodes: tuple[StudyEpisode, ...]
    faults: tuple[Fault, ...] = ()
    unknown: Mapping[str, int] = field(default_factory=dict)

    def groups(self) -> dict[tuple[str, str, str], list[StudyEpisode]]:
        """The episodes of each model, split and condition, in the order in which these first appear."""
        found: dict[tuple[str, str, str], list[StudyEpisode]] = {}
        for episode in self.episodes:
            found.setdefault((episode.model, episode.split, episode.condition), []).append(episode)
        return found


def read_study(path: Path) -> StudyFile:
    """Read episodes from JSON Lines or a JSON array, gzipped or not.

    Keys: `question_id`, `regime`, `verdicts`, `actions`, `success` and, where there are any, `condition`, `model`,
    `split`, `injected`, `judge`, `judges` (names with verdicts) and `beliefs` (names with numbers or null), as
    `StudyEpisode` describes them. The layout of the public release of arXiv 2610.06191 (`data/README.md` in its
    repository) is the same with `judgments` for `verdicts`; its null, no verdict asked for, is read as an empty one.
    Where a record has both keys, `verdicts` counts.

    A record that cannot be used, and the second of two for the same model, condition, split, question and regime, is
    left out and becomes a fault with its line. An unknown regime is kept and counted. Raises UsageError for a file
    that cannot be opened and DataError for one without any usable episode.
    """
    source = read_source(path)
    if source.text is not None:
        raise DataError(f"{path.name} is no JSON; give one JSON object a line, with the keys {', '.join(_KEYS)}.")
    faults = list(source.faults)
    found: dict[tuple[str, ...], tuple[int, StudyEpisode]] = {}
    for line, value in source.records:
        try:
            episode = _episode(value)
        except DataError as error:
            faults.append(Fault(line, f"{error}: left out"))
            continue
        first, _ = found.setdefault(episode.key, (line, episode))
        if first != line:
            same = "the same question, regime and condition"
            faults.append(Fault(line, f"{same} as in line {first} ({episode.question_id}, {episode.regime}): left out"))
    faults.sort(key=lambda fault: fault.line)
    if not found:
        more = f" (and {len(faults) - 1} more faults)" if len(faults) > 1 else ""
        why = f"line {faults[0].line}: {faults[0].problem}{more}" if faults else "it has no records"
        raise DataError(f"{path.name} holds no usable episode, {why}; give objects with the keys {', '.join(_KEYS)}.")
    episodes = tuple(episode for _, episode in found.values())
    unknown = Counter(episode.regime for episode in episodes if not is_known(episode.regime))
    return StudyFile(episodes, tuple(faults), dict(unknown))


def judged_by(file: StudyFile, judge: str) -> StudyFile:
    """The same episodes, all with the verdicts of one judge, whether it drives their rule or is among the further ones.

    UsageError where an episode has none of that judge.
    """
    without = [each for each in file.episodes if judge not in (each.judge, *each.judges)]
    if without:
        known = dict.fromkeys(name for each in file.episodes for name in (each.judge, *each.judges) if name)
        first = f"question {without[0].question_id!r}, condition {without[0].condition!r}"
        raise UsageError(
            f"{len(without)} of {len(file.episodes)} episodes have no verdicts of a judge {judge!r} ({first}); the "
            f"file names {', '.join(known) or 'no judge'}: choose one that all have."
        )
    changed = [
        each
        if each.judge == judge
        else replace(
            each,
            judge=judge,
            verdicts=each.judges[judge],
            judges={name: said for name, said in each.judges.items() if name != judge},
        )
        for each in file.episodes
    ]
    return replace(file, episodes=tuple(changed))


def _episode(value: Any) -> StudyEpisode:
    if not isinstance(value, Mapping):
        raise DataError("no JSON object")
    verdicts = "verdicts" if "verdicts" in value or "judgments" not in value else "judgments"
    missing = [key for key in _KEYS if (verdicts if key == "verdicts" else key) not in value]
    if missing:
        raise DataError(f"no {' and no '.join(missing)}")
    injected = value.get("injected")
    return StudyEpisode(
        question_id=_name(value, "question_id"),
        regime=_name(value, "regime"),
        verdicts=_verdicts(value[verdicts], verdicts),
        actions=_actions(value["actions"]),
        success=_flag(value["success"], "success"),
        condition=_label(value, "condition"),
        injected=None if injected is None else _injected(injected),
        model=_label(value, "model"),
        split=_label(value, "split"),
        judges=_judges(value.get("judges")),
        beliefs=_beliefs(value.get("beliefs")),
        judge=_label(value, "judge"),
    )


def _name(value: Mapping[str, Any], key: str) -> str:
    found = value[key]
    if isinstance(found, int) and not isinstance(found, bool):
        return str(found)
    if not isinstance(found, str) or not found.strip():
        raise DataError(f"{key} is {found!r:.60}, not a name")
    return found.strip()


def _label(value: Mapping[str, Any], key: str) -> str:
    return "" if value.get(key) in (None, "") else _name(value, key)


def _items(value: Any, key: str) -> Sequence[Any]:
    if not isinstance(value, list):
        raise DataError(f"{key} is {value!r:.60}, not a list")
    return value


def _flag(value: Any, key: str) -> bool:
    """True or false, also written as 1 or 0."""
    if not isinstance(value, int | float) or value not in (0, 1):
        raise DataError(f"{key} is {value!r:.60}, neither true nor false")
    return bool(value)


def _injected(value: Any) -> tuple[bool | None, ...]:
    return tuple(None if item is None else _flag(item, "injected") for item in _items(value, "injected"))


def _verdicts(value: Any, key: str) -> tuple[str, ...]:
    for item in _items(value, key):
        if item is not None and not isinstance(item, str):
            raise DataError(f"{key} holds {item!r:.60}, neither a word nor null")
    return tuple("" if item is None else item.strip().upper() for item in value)


def _actions(value: Any) -> tuple[str, ...]:
    for item in _items(value, "actions"):
        if not isinstance(item, str):
            raise DataError(f"actions holds {item!r:.60}, not the name of an action")
    return tuple(item.strip().lower() for item in value)


def _judges(value: Any) -> dict[str, tuple[str, ...]]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise DataError(f"judges is {value!r:.60}, not an object of names with verdicts")
    return {name: _verdicts(verdicts, f"judges.{name}") for name, verdicts in value.items()}


def _beliefs(value: Any) -> dict[str, tuple[float | None, ...]]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise DataError(f"beliefs is {value!r:.60}, not an object of names with numbers")
    found = {name: tuple(_items(numbers, f"beliefs.{name}")) for name, numbers in value.items()}
    for name, numbers in found.items():
        for number in numbers:
            if number is not None and not (isinstance(number, int | float) and 0 <= number <= 1):
                raise DataError(f"beliefs.{name} holds {number!r:.60}, neither a probability nor null")
    return found
