"""Invented names: any number of them, all distinct, each computed from its own number alone.

A name is a row of syllables (onset + vowel) and a coda, such as Trodan or Kesuri; only the first onset may be
a cluster. Every onset is a non-empty run of consonants and every vowel a single letter, so a spelling can be
read back in one way only and two numbers never give one name. A keyed permutation of the numbers scatters
the spellings.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from probecascade.errors import UsageError

# Without g, h, p, w and z: with them the syllables spell words that nobody wants to read in a task.
ONSETS = ("b", "d", "f", "j", "k", "l", "m", "n", "r", "s", "t", "v")
CLUSTERS = ("br", "dr", "fl", "fr", "kl", "kr", "sk", "sl", "sn", "st", "th", "tr")
VOWELS = ("a", "e", "i", "o", "u")
CODAS = ("", "d", "k", "l", "m", "n", "r", "s", "th")

_ROUNDS = 4


def names_of_length(syllables: int) -> int:
    """How many names have that many syllables."""
    count = (len(ONSETS) + len(CLUSTERS)) * len(VOWELS) * len(CODAS)
    for _ in range(syllables - 1):
        count *= len(ONSETS) * len(VOWELS)
    return count


def invented_name(number: int, seed: int, syllables: Sequence[int]) -> str:
    """The name with this number (from 0); lengths take turns. Distinct numbers give distinct names.

    Raises UsageError when the names of one length are used up.
    """
    turn, which = divmod(number, len(syllables))
    length = syllables[which]
    size = names_of_length(length)
    if turn >= size:
        raise UsageError(
            f"there are only {size} names of {length} syllables, and name {turn + 1} was asked for; "
            "ask for fewer groups or longer names"
        )
    return _spell(_permuted(turn, size, f"{seed}:{length}"), length)


def _spell(rank: int, syllables: int) -> str:
    rank, coda = divmod(rank, len(CODAS))
    letters = [CODAS[coda]]
    for onsets in (*[ONSETS] * (syllables - 1), ONSETS + CLUSTERS):
        rank, vowel = divmod(rank, len(VOWELS))
        rank, onset = divmod(rank, len(onsets))
        letters.append(onsets[onset] + VOWELS[vowel])
    return "".join(reversed(letters)).capitalize()


def _permuted(index: int, size: int, key: str) -> int:
    """A bijection of range(size): a Feistel network, walked until it is back inside the range.

    Source: Black and Rogaway, Ciphers with Arbitrary Finite Domains, CT-RSA 2002, section 5 (cycle walking).
    """
    half = ((size - 1).bit_length() + 1) // 2
    mask = (1 << half) - 1
    while True:
        left, right = index >> half, index & mask
        for step in range(_ROUNDS):
            digest = hashlib.blake2b(f"{key}:{step}:{right}".encode(), digest_size=4).digest()
            left, right = right, left ^ (int.from_bytes(digest, "big") & mask)
        index = left << half | right
        if index < size:
            return index
