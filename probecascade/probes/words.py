"""Text as numbers: how often the words and pairs of words of a frozen vocabulary occur, weighted by their rarity."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probecascade.errors import DataError
from probecascade.probes.kinds import Arrays, frozen, pick
from probecascade.probes.linear import LinearProbe
from probecascade.probes.scoring import row_products

Array = NDArray[np.float64]

MIN_GROUPS = 5
"""Groups in which a term must occur to enter the vocabulary: names of one task alone say nothing of another."""

MAX_TERMS = 1000
"""The vocabulary holds at most so many terms, those of most groups first."""

_WORD = re.compile(r"[^\W_]+")


def terms_of(text: str) -> Counter[str]:
    """The words of a text, case folded, and its pairs of neighbouring words, each with its count."""
    words = _WORD.findall(text.casefold())
    return Counter(words) + Counter(f"{first} {second}" for first, second in itertools.pairwise(words))


def vocabulary(texts: Sequence[str], codes: NDArray[np.intp]) -> tuple[str, ...]:
    """Terms that occur in at least `MIN_GROUPS` groups, at most `MAX_TERMS`, sorted. codes: group of each text, (n,).

    It goes by the number of groups alone and never sees a label. DataError if there is no such term.
    """
    seen: dict[str, set[int]] = {}
    for text, code in zip(texts, codes.tolist(), strict=True):
        for term in terms_of(text):
            seen.setdefault(term, set()).add(code)
    common = sorted((-len(groups), term) for term, groups in seen.items() if len(groups) >= MIN_GROUPS)
    if not common:
        raise DataError(
            f"no word of the transcripts so far occurs in {MIN_GROUPS} groups or more: leave out the text, or look at "
            "a later checkpoint."
        )
    return tuple(sorted(term for _, term in common[:MAX_TERMS]))


def term_roots(texts: Sequence[str], terms: Sequence[str]) -> Array:
    """Square root of how often each term occurs in each text, (n, n_terms): a term said often counts less each time."""
    place = {term: column for column, term in enumerate(terms)}
    counts = np.zeros((len(texts), len(terms)))
    for row, text in enumerate(texts):
        for term, count in terms_of(text).items():
            if term in place:
                counts[row, place[term]] = count
    return np.sqrt(counts)


def encode_terms(terms: Sequence[str]) -> NDArray[np.uint8]:
    """The vocabulary as bytes."""
    return np.frombuffer("\n".join(terms).encode(), dtype=np.uint8)


def decode_terms(stored: NDArray[Any]) -> tuple[str, ...]:
    """Inverse of `encode_terms`."""
    return tuple(stored.tobytes().decode().split("\n"))


@dataclass(frozen=True)
class Rarity:
    """The step that weighs the columns from `start` on as terms: learns how rare each is in the training rows."""

    start: int

    def fit(self, rows: Array) -> Rare:
        """Inverse document frequency ln((1 + n) / (1 + n_with)) + 1 of each term (smoothed, as in scikit-learn)."""
        holding = (rows[:, self.start :] > 0).sum(axis=0)
        return Rare(self.start, np.log((1 + len(rows)) / (1 + holding)) + 1)


@dataclass(frozen=True, eq=False)
class Rare:
    """Columns from `start` on times `weights` (n_terms,), then divided by their length; the others as they are."""

    start: int
    weights: Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", frozen(self.weights))

    def apply(self, rows: Array) -> Array:
        """(n, width) -> (n, width); a row has the same bits alone and in any batch."""
        found = rows.copy()
        words = found[:, self.start :]
        words *= self.weights
        length = np.sqrt(row_products(np.square(words), np.ones((1, words.shape[1]))))
        words /= np.where(length > 0, length, 1.0)
        return found

    def before(self, probe: LinearProbe) -> None:
        """Dividing by the length is not linear."""
        return None

    def spec(self) -> dict[str, Any]:
        """Its kind and start."""
        return {"kind": "rarity", "start": self.start}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Its weights."""
        return {"weights": self.weights}


def load_rare(start: int, arrays: Arrays) -> Rare:
    """The fitted weighting of these arrays."""
    return Rare(start, pick(arrays, ("weights",))["weights"])
