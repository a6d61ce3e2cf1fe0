"""Readers of verdicts: what a text says of the evidence, as a question's answer, a thought or mere overlap of words.

Definitions are those of arXiv 2610.06191; patterns and word lists are our own.
"""

from __future__ import annotations

import re
from typing import Literal, get_args

Word = Literal["USEFUL", "USELESS", "UNPARSED", "NONE"]
"""A verdict on one observation: NONE where nothing was said of it, UNPARSED where what was said is no verdict."""

WORDS: tuple[Word, ...] = get_args(Word)

READ_CHARACTERS = 400
"""So much of an observation is compared with the question by `overlap`."""

LEAST_OVERLAP = 0.25
"""Observations that share less of the question's content words are useless to the lexical detector."""

_CONTENT = re.compile(r"[^\W_]+")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_FUNCTION_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
        a about after all also an and any are as at be been before both but by can could did do does during each for
        from had has have her him his how i if in into is it its many may me more most much my no nor not of on one or
        other our out over s same she he should so some such t than that the their them then there these they this
        those through to under up us was we were what when where which while who whom whose why will with would you
        your
        """,
    )
)

_GOT = r"(?:result|results|search|page|pages|passage|passages|paragraph|observation|information|text|tool|it|this|that)"
_NEGATION = r"(?:not|n['’]t|never)"

_NEGATIVE = tuple(
    re.compile(pattern)
    for pattern in (
        rf"\b(?:is|was|are|were|does|do|did|has|have)\s*{_NEGATION}\b.{{0,30}}\b(?:useful|helpful|relevant|related)\b",
        rf"\b(?:does|do|did|could|would)\s*{_NEGATION} (?:help|answer|mention|contain|provide|give|say|tell|include)\b",
        rf"\b(?:does|do|did)\s*{_NEGATION} (?:seem|appear|look) (?:to be )?(?:useful|helpful|relevant|right|related)",
        r"\b(?:irrelevant|unrelated|unhelpful|useless|off[- ]topic)\b",
        r"\b(?:no|little|nothing) (?:\w+ )?(?:relevant|useful|helpful)\b",
        r"\bnothing (?:to do with|about|on|here|there)\b",
        r"\bno (?:information|mention|results?|evidence|answer|details?)\b",
        rf"\b(?:is|was|are|were)\s*{_NEGATION} (?:what|the (?:one|page|person|right|information)|about)\b",
        r"\b(?:could|can|did) ?(?:not|n['’]t) (?:find|locate|get|see)\b|\b(?:can['’]t|unable to) (?:find|locate)\b",
        rf"\bhas(?: got)? nothing\b|\b{_GOT} (?:failed|fails)\b",
        r"\b(?:wrong|incorrect|different|another) (?:page|person|article|result|topic|entity|film|place|one)\b",
        r"\binstead of (?:the|what)\b|\brather than (?:the|what) \w+",
        r"\b(?:the )?(?:search|tool|query) (?:is|seems|appears)(?: to be)? (?:broken|unreliable|failing|down)\b",
        r"\b(?:error|timed out|did not answer in time)\b",
        rf"\bstill (?:{_NEGATION}|do not|don['’]t|need|no|lack|missing)\b",
        r"\b(?:insufficient|not enough|lacks?|lacking|missing)\b",
        r"\bkeeps? (?:returning|giving|showing|failing)\b|\b(?:gave|returned|shows?) .{0,20}\b(?:same|wrong)\b",
        r"\b(?:unfortunately|however,? (?:the|this|it) (?:result|page|search)s?)\b",
    )
)
"""Ways to say that the evidence did not help."""

_POSITIVE = tuple(
    re.compile(pattern)
    for pattern in (
        rf"\b{_GOT} (?:is|was|are|were|seems?|looks?) (?:very )?(?:useful|helpful|relevant|informative)\b",
        r"\b(?:the|this) (?:page|passage|result|paragraph|text|observation) (?:says|states|mentions|tells|confirms)\b",
        r"\b(?:i|we) (?:now )?(?:know|found|have found|have (?:the|enough|all)|learned|see that)\b",
        r"\b(?:according to|based on) (?:the|this|that)\b",
        r"\b(?:this|that|which) (?:answers|confirms|tells|shows|gives|means)\b",
        r"\b(?:so|therefore|thus|hence),? the answer\b",
    )
)
"""Ways to say that it did."""


def read_answer(text: str) -> Word:
    """The verdict in the answer to a side question, in any case: USELESS before USEFUL; else UNPARSED."""
    said = text.upper()
    if "USELESS" in said:
        return "USELESS"
    return "USEFUL" if "USEFUL" in said else "UNPARSED"


def read_thought(thought: str) -> Word:
    """What the first two sentences of a thought say of the observation before it; NONE where they say nothing.

    A sentence that says both is taken at its complaint: "the page is relevant but does not mention her".
    """
    sentences = [part for part in _SENTENCE.split(thought.strip().lower()) if part.strip()]
    said = " ".join(sentences[:2])
    if any(pattern.search(said) for pattern in _NEGATIVE):
        return "USELESS"
    return "USEFUL" if any(pattern.search(said) for pattern in _POSITIVE) else "NONE"


def content_words(text: str) -> frozenset[str]:
    """Words of a text in lower case, without function words."""
    return frozenset(_CONTENT.findall(text.lower())) - _FUNCTION_WORDS


def overlap(question: str, observation: str) -> float:
    """Share in [0, 1] of the question's content words that the first 400 characters of an observation hold.

    1.0 for a question without any: nothing is missing then.
    """
    asked = content_words(question)
    return len(asked & content_words(observation[:READ_CHARACTERS])) / len(asked) if asked else 1.0


def found_nothing(observation: str) -> bool:
    """Whether the observation begins with "no results", in any case."""
    return observation.lstrip().lower().startswith("no results")


_NUMBER = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?|\.\d+)\s*(%|/\s*100|percent\b)?")


def read_probability(text: str) -> float | None:
    """The first number of an answer as a probability: "0.3", "30 %", "30". None for none, or one outside [0, 1].

    A number without a sign of percent is taken as it is up to 1, and as a percentage above it.
    """
    found = _NUMBER.search(text)
    if found is None:
        return None
    value = float(found[1])
    if found[2] or value > 1:
        value /= 100
    return value if value <= 1 else None
