"""Scoring of short answers and verdicts as the official evaluations of their data sets do it.

Sources: `evaluate-v2.0.py` of https://rajpurkar.github.io/SQuAD-explorer/ (normalisation, exact match, F1),
`hotpot_evaluate_v1.py` of https://hotpotqa.github.io (yes and no), https://fever.ai (verdicts) and arXiv 2610.06191
(F1 of token sets, 0.6 as success).
"""

from __future__ import annotations

import re
import string
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from probecascade.episode import Task
from probecascade.errors import DataError

Score = Literal["exact", "f1", "set-f1", "verdict"]

F1_SUCCESS = 0.6
"""F1 from which on an answer counts as right (arXiv 2610.06191)."""

SUPPORTS, REFUTES, NOT_ENOUGH_INFO = "SUPPORTS", "REFUTES", "NOT ENOUGH INFO"
_LABELS = f"{SUPPORTS}, {REFUTES} or {NOT_ENOUGH_INFO}"

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CLOSED = frozenset(("yes", "no", "noanswer"))
_VERDICTS = (
    (SUPPORTS, re.compile(r"\bsupport(s|ed|ing)?\b|^true$")),
    (REFUTES, re.compile(r"\brefut(e|es|ed|ing)\b|^false$")),
    (NOT_ENOUGH_INFO, re.compile(r"\bnot enough\b|\binsufficient\b|\b(un|not )verifiable\b|^nei$")),
)
_DENIED = re.compile(r"\b(not|neither|cannot|never|nor)( \w+)? (support|refut)")


def normalise(text: str) -> str:
    """Lower case, without ASCII punctuation, without articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, answers: Sequence[str]) -> bool:
    """Whether the prediction equals one of the answers after normalisation."""
    given = normalise(prediction)
    return any(given == normalise(answer) for answer in answers)


def token_f1(prediction: str, answers: Sequence[str]) -> float:
    """Best F1 over the answers, in [0, 1], of the multisets of normalised tokens.

    Where one side has no token left, the F1 is 1.0 if both have none and 0.0 otherwise. No answers: 0.0.
    """
    return max((_f1(normalise(prediction).split(), normalise(a).split()) for a in answers), default=0.0)


def hotpot_f1(prediction: str, answers: Sequence[str]) -> float:
    """As `token_f1`, but a yes, no or "noanswer" on either side has to be the whole of the other (HotpotQA)."""
    given = normalise(prediction)
    scores = []
    for answer in answers:
        wanted = normalise(answer)
        closed = given in _CLOSED or wanted in _CLOSED
        scores.append(float(given == wanted) if closed else _f1(given.split(), wanted.split()))
    return max(scores, default=0.0)


def token_set_f1(prediction: str, answers: Sequence[str]) -> float:
    """As `token_f1`, of the sets of tokens: a word that is repeated counts once (arXiv 2610.06191)."""
    given = sorted(set(normalise(prediction).split()))
    return max((_f1(given, sorted(set(normalise(answer).split()))) for answer in answers), default=0.0)


def verdict(text: str) -> str:
    """The FEVER label that a text gives: SUPPORTS, REFUTES or NOT ENOUGH INFO; empty for none or several of them.

    Any case, the usual forms ("supported", "refute", "NEI", "not enough information") and words around them; `true`
    and `false` only if nothing else is said. A denied one ("not supported") is no label.
    """
    said = " ".join(re.sub(r"[\W_]+", " ", text.lower()).split())
    found = [label for label, pattern in _VERDICTS if pattern.search(said)]
    return found[0] if len(found) == 1 and not _DENIED.search(said) else ""


def verdict_match(prediction: str, answers: Sequence[str]) -> bool:
    """Whether the prediction gives the label of one of the answers; see `verdict`."""
    given = verdict(prediction)
    return given != "" and any(given == verdict(answer) for answer in answers)


def answer_fault(task: Task, score: Score) -> str:
    """Why no prediction can be right in a part of the task under this score, as a sentence; empty where one can."""
    if score != "verdict":
        return ""
    answers = (answer for part in task.parts for answer in part.answers)
    unknown = next((answer for answer in answers if not verdict(answer)), None)
    return "" if unknown is None else f"the answer {unknown!r} is no verdict; give {_LABELS}"


def check_scorable(tasks: Iterable[Task], score: Score) -> None:
    """DataError naming the first task whose answers cannot be met under this score."""
    for task in tasks:
        fault = answer_fault(task, score)
        if fault:
            asked = textwrap.shorten(task.parts[0].question, 80, placeholder=" ...")
            raise DataError(f'task {task.task_id!r} ({asked}): {fault}, or another score than "{score}"')


SCORES: Mapping[Score, Callable[[str, Sequence[str]], float]] = {
    "exact": lambda prediction, answers: float(exact_match(prediction, answers)),
    "f1": hotpot_f1,
    "set-f1": token_set_f1,
    "verdict": lambda prediction, answers: float(verdict_match(prediction, answers)),
}
"""How an answer may be scored, by name; each gives a number in [0, 1]."""


def _f1(given: list[str], wanted: list[str]) -> float:
    if not given or not wanted:
        return float(given == wanted)
    common = (Counter(given) & Counter(wanted)).total()
    return 2 * common / (len(given) + len(wanted))
