"""Invented names: any number of them, all distinct, each computed from its own number alone.

A name is a stem (onset, vowel, coda) with an ending that tells its kind, such as Kasburg (a city), Dremia (a country)
or Anna Troskin (a person), so that a reader can guess the kind as with real names. A spelling can be read back in
one way only, hence two numbers never give one name. A keyed permutation of the numbers scatters the spellings.
"""

from __future__ import annotations

import hashlib

from probecascade.errors import UsageError

# Without g, h, p, w and z: with them the syllables spell words that nobody wants to read in a task.
ONSETS = (
    *("b", "d", "f", "j", "k", "l", "m", "n", "r", "s", "t", "v"),
    *("br", "dr", "fl", "fr", "kl", "kr", "sk", "sl", "sn", "st", "th", "tr"),
)
VOWELS = ("a", "e", "i", "o", "u")
CODAS = ("b", "d", "k", "l", "m", "n", "r", "s", "t", "v")
STEMS = len(ONSETS) * len(VOWELS) * len(CODAS)

GIVEN = (
    *("Anna", "Peter", "Maria", "John", "Laura", "Paul", "Emma", "David", "Julia", "Mark", "Sara", "Tom"),
    *("Alice", "Robert", "Helen", "James", "Nina", "Daniel", "Clara", "Simon", "Eva", "Martin", "Lucy", "Frank"),
)
ENDINGS: dict[str, tuple[str, ...]] = {
    "person": ("in", "er", "ov", "ell", "ett", "ard", "ic", "us", "an", "or", "en", "elt", "ick", "ow", "ert", "old"),
    "city": (
        "ton",
        "ville",
        "burg",
        "ford",
        "port",
        "dale",
        "by",
        "mouth",
        "haven",
        "field",
        "bridge",
        "wood",
        "stead",
        "worth",
        "cliff",
        "gate",
    ),
    "country": ("ia", "land", "onia", "avia", "eria", "ovia", "ania", "aria", "inia", "oria", "unia", "elia"),
    "realm": (
        "ora",
        "una",
        "esia",
        "adia",
        "uay",
        "ola",
        "mark",
        "stein",
        "ika",
        "ador",
        "isk",
        "olm",
        "atia",
        "eden",
        "omar",
        "ulan",
    ),
    "currency": ("o", "ar", "ek", "um", "el", "it", "une", "os", "ira", "ata", "een", "ox", "ul", "an", "ise", "ull"),
    "official": (
        "son",
        "ley",
        "mann",
        "berg",
        "sen",
        "ton",
        "wick",
        "ham",
        "stone",
        "well",
        "more",
        "hart",
        "kins",
        "low",
        "by",
        "croft",
    ),
    "coin": ("ot", "ip", "ock", "ish", "uff", "az", "eb", "om", "id", "oon", "ax", "il", "af", "ub", "esk", "ond"),
}
"""What the kinds of names end in. A person is one that tasks ask about; officials and coins only fill pages."""

_ROUNDS = 4


def names_of(kind: str) -> int:
    """How many names of a kind there are."""
    return STEMS * len(ENDINGS[kind])


def invented_name(kind: str, number: int, seed: int) -> str:
    """The name of that kind with this number (from 0). Distinct numbers give distinct names.

    Raises UsageError when the names of the kind are used up.
    """
    size = names_of(kind)
    if number >= size:
        raise UsageError(
            f"there are only {size} names of kind {kind}, and one more was asked for; ask for fewer groups"
        )
    rank, ending = divmod(_permuted(number, size, f"{seed}:{kind}"), len(ENDINGS[kind]))
    rank, coda = divmod(rank, len(CODAS))
    onset, vowel = divmod(rank, len(VOWELS))
    name = (ONSETS[onset] + VOWELS[vowel] + CODAS[coda] + ENDINGS[kind][ending]).capitalize()
    if kind not in ("person", "official"):
        return name
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=4).digest()
    return f"{GIVEN[int.from_bytes(digest, 'big') % len(GIVEN)]} {name}"


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
