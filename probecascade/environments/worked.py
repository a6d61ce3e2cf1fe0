"""Worked examples for questions and claims over pages: invented people, places and things, none in any data set.

Each is played in the wiki that the agent will use, so what its tools answer is what they will answer to the agent.
"""

from __future__ import annotations

from dataclasses import dataclass

from probecascade.environments.examples import Example, ExamplePart, ExampleTurn
from probecascade.environments.official import CLAIM
from probecascade.environments.wiki import WikiEnvironment, WikiSettings
from probecascade.episode import Action, Paragraph, Part, Task


@dataclass(frozen=True, slots=True)
class _Script:
    """A question, its pages, and (thought, tool, argument) turns; the last one finishes."""

    question: str
    pages: tuple[Paragraph, ...]
    turns: tuple[tuple[str, str, str], ...]


_QUESTIONS = (
    _Script(
        "In which year was the architect of the Velmora Opera House born?",
        (
            Paragraph(
                "Velmora Opera House",
                (
                    "The Velmora Opera House is a theatre in the port of Velmora.",
                    "It was designed by Ilse Tarnow and opened in 1931.",
                ),
            ),
            Paragraph("Ilse Tarnow", ("Ilse Tarnow (1887 – 1960) was an architect of theatres and bridges.",)),
        ),
        (
            ("I need to search Velmora Opera House and find its architect.", "search", "Velmora Opera House"),
            (
                "The architect is Ilse Tarnow. I need to search Ilse Tarnow and find the year of birth.",
                "search",
                "Ilse Tarnow",
            ),
            ("Ilse Tarnow was born in 1887. The answer is 1887.", "finish", "1887"),
        ),
    ),
    _Script(
        "Are the Kessin Reed and the Marrow Pike both fish?",
        (
            Paragraph("Kessin Reed", ("The Kessin Reed is a grass that grows on lake shores.",)),
            Paragraph("Marrow Pike", ("The Marrow Pike is a fish of cold rivers.",)),
        ),
        (
            ("I need to search Kessin Reed and find if it is a fish.", "search", "Kessin Reed"),
            ("The Kessin Reed is a grass, not a fish. They are not both fish. The answer is no.", "finish", "no"),
        ),
    ),
    _Script(
        "Which instrument did the founder of the Bramwick Quartet play?",
        (
            Paragraph(
                "Bramwick Quartet", ("The Bramwick Quartet was a group of musicians founded by Otto Lindqvast.",)
            ),
            Paragraph(
                "Otto Lindqvast",
                (
                    "Otto Lindqvast was a musician from the town of Bramwick.",
                    "As a young man he sailed to the north.",
                    "He played the viola in all his concerts.",
                ),
            ),
        ),
        (
            ("I need to search Bramwick Quartet and find its founder.", "search", "Bramwick Quartet"),
            (
                "The founder is Otto Lindqvast. I need to search Otto Lindqvast and find the instrument.",
                "search",
                "Otto Lindqvast",
            ),
            ("I need to look up played and find the instrument.", "lookup", "played"),
            ("Otto Lindqvast played the viola. The answer is viola.", "finish", "viola"),
        ),
    ),
)

_CLAIMS = (
    _Script(
        CLAIM.format(claim="Nadia Ferrow recorded an album in 1994."),
        (
            Paragraph(
                "Nadia Ferrow",
                ("Nadia Ferrow is a singer.", "Her first album, Low Tide, was recorded in the winter of 1994."),
            ),
        ),
        (
            ("I need to search Nadia Ferrow and find if she recorded an album in 1994.", "search", "Nadia Ferrow"),
            ("Her first album was recorded in 1994. The claim is true.", "finish", "SUPPORTS"),
        ),
    ),
    _Script(
        CLAIM.format(claim="The Orsk Canal is in a desert."),
        (Paragraph("Orsk Canal", ("The Orsk Canal is a waterway.", "It crosses the forests of the Lower Orsk.")),),
        (
            ("I need to search Orsk Canal and find where it is.", "search", "Orsk Canal"),
            ("The Orsk Canal crosses forests, not a desert. The claim is false.", "finish", "REFUTES"),
        ),
    ),
    _Script(
        CLAIM.format(claim="Peter Hallom owns a boat."),
        (Paragraph("Peter Hallom", ("Peter Hallom is a painter.", "He lives in the town of Sundmark.")),),
        (
            ("I need to search Peter Hallom and find if he owns a boat.", "search", "Peter Hallom"),
            ("I need to look up boat and find if the page tells of one.", "lookup", "boat"),
            ("Nothing tells whether he owns a boat.", "finish", "NOT ENOUGH INFO"),
        ),
    ),
)


def worked_examples(settings: WikiSettings) -> tuple[Example, ...]:
    """Three worked examples for a wiki with these settings: claims where verdicts are scored, else questions.

    Turns that look a word up are left out where the wiki has no such tool.
    """
    scripts = _CLAIMS if settings.score == "verdict" else _QUESTIONS
    return tuple(_played(script, settings) for script in scripts)


def _played(script: _Script, settings: WikiSettings) -> Example:
    wiki = WikiEnvironment.of(settings)
    answer = script.turns[-1][2]
    wiki.reset(Task("worked", "worked", (Part(script.question, (answer,)),), script.pages))
    turns = []
    for thought, tool, argument in script.turns:
        if tool not in wiki.tools:
            continue
        action = Action(tool, argument)
        seen = wiki.step(action)
        turns.append(ExampleTurn(thought, action, "" if seen.done else seen.text))
    return (ExamplePart(script.question, tuple(turns)),)
