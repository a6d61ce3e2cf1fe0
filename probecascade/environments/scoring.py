"""Scoring of short answers as the official SQuAD evaluation does it.

Source: `evaluate-v2.0.py` of https://rajpurkar.github.io/SQuAD-explorer/.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


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


def _f1(given: list[str], wanted: list[str]) -> float:
    if not given or not wanted:
        return float(given == wanted)
    common = (Counter(given) & Counter(wanted)).total()
    return 2 * common / (len(given) + len(wanted))
