"""Atlas: an invented world, made to order, in which a small model can fail early, silently and at a price.

A task is an errand of several parts, each a question about one person that takes one to three pages to
answer. Nothing in it is real, no name occurs in two groups, and the pages hold wrong facts of the right kind
beside the right ones (the town of birth beside the home town, a former country beside the present one).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

from probecascade.environments.examples import Example, ExamplePart, ExampleTurn
from probecascade.environments.flaky import FlakyEnvironment, tool_error
from probecascade.environments.names import ENDINGS, invented_name
from probecascade.environments.wiki import WikiEnvironment
from probecascade.episode import Action, Paragraph, Part, Task
from probecascade.errors import UsageError
from probecascade.interfaces import Environment

QUESTIONS: dict[str, str] = {
    "city": "In which city does the {trade} {person} live?",
    "residence": "In which country does the {trade} {person} live?",
    "country": "In which country is the home city of the {trade} {person}?",
    "mayor": "Who is the mayor of the home city of the {trade} {person}?",
    "currency": "What is the currency of the country of the home city of the {trade} {person}?",
}
"""Question types and how they are asked: one page to read for `city` and `residence`, two for `country` and `mayor`,
three for `currency`."""

DISTRACTORS = ("order", "birthplace", "former", "neighbour", "mayor")
"""What may lead astray: the country told before the city (`order`, for `residence` only), the city of birth (a page
of its own, in another country), what a city or currency was before, the country across the border, and the mayors
of cities."""

TRADES = ("poet", "painter", "singer", "dancer", "doctor", "pilot", "chemist", "baker")

T = TypeVar("T")

_EXAMPLE_CHAINS = 6  # chains at the front of the book of names that only the worked examples use


@dataclass(frozen=True, slots=True)
class AtlasSettings:
    """What makes one set of tasks. The same settings give the same tasks on every machine.

    `groups` only says how many tasks `atlas_tasks` yields: group g is the same in a set of any size.
    `distracted` is the share of tasks whose first page holds the wrong facts that `distractors` names, or tells the
    right ones in an unusual order (`order`): doom, if it comes, comes early. `flakiness` is the share of first
    searches that fail; it shapes the worked examples and the environment,
    not the tasks. Raises UsageError for a value out of range.
    """

    seed: int = 0
    groups: int = 1200
    parts: int = 3
    question: str = "residence"
    distractors: tuple[str, ...] = ("order",)
    distracted: float = 0.3
    flakiness: float = 0.15

    def __post_init__(self) -> None:
        for name, value in (("groups", self.groups), ("parts", self.parts)):
            if value < 1:
                raise UsageError(f"{name} is {value}; an atlas needs at least 1")
        if self.question not in QUESTIONS:
            raise UsageError(f"unknown question type {self.question!r}; choose from {', '.join(QUESTIONS)}")
        unknown = [kind for kind in self.distractors if kind not in DISTRACTORS]
        if unknown:
            raise UsageError(f"unknown distractor {unknown[0]!r}; choose from {', '.join(DISTRACTORS)}")
        for name, share in (("distracted", self.distracted), ("flakiness", self.flakiness)):
            if not 0.0 <= share <= 1.0:
                raise UsageError(f"{name} is {share}; give a share from 0 to 1")


@dataclass(frozen=True, slots=True)
class _Chain:
    """All the names that one part is made of."""

    person: str
    home: str
    birthplace: str
    country: str
    birth_country: str
    former_country: str
    neighbour: str
    mayor: str
    birth_mayor: str
    old_mayor: str
    currency: str
    birth_currency: str
    former_currency: str
    neighbour_currency: str
    old_currency: str


_KINDS = {
    "person": "person",
    **dict.fromkeys(("mayor", "birth_mayor", "old_mayor"), "official"),
    **dict.fromkeys(("home", "birthplace"), "city"),
    **dict.fromkeys(("country", "birth_country"), "country"),
    **dict.fromkeys(("former_country", "neighbour"), "realm"),
    **dict.fromkeys(("currency", "birth_currency"), "currency"),
    **dict.fromkeys(("former_currency", "neighbour_currency", "old_currency"), "coin"),
}


def atlas_tasks(settings: AtlasSettings) -> Iterator[Task]:
    """The tasks of groups 0, 1, ... in order, made one at a time."""
    for group in range(settings.groups):
        yield atlas_task(settings, group)


def atlas_task(settings: AtlasSettings, group: int) -> Task:
    """The one task of a group, which may lie beyond `settings.groups` (for fresh tasks).

    `attributes["path"]` lists, part by part, the titles of the pages that lead to the answer. Raises
    UsageError for a negative group and where the names of the wanted length are used up.
    """
    if group < 0:
        raise UsageError(f"group {group} does not exist; groups count from 0")
    first = _EXAMPLE_CHAINS + group * settings.parts
    name = f"atlas-s{settings.seed}-p{settings.parts}-{group:05d}"
    task, _ = _errand(settings, name, range(first, first + settings.parts))
    return task


def atlas_environment(settings: AtlasSettings, seed: int = 0) -> Environment:
    """A wiki as flaky as the settings say; `seed` is the episode's."""
    if settings.flakiness == 0.0:
        return WikiEnvironment()
    return FlakyEnvironment(WikiEnvironment(), settings.flakiness, seed)


def atlas_examples(settings: AtlasSettings) -> tuple[Example, ...]:
    """Three worked examples of the set's question type, about people of no group.

    Two are errands of several parts (if tasks are) in which a failed search is repeated (if the tool is flaky), one
    recovers from a misspelt name. Observations are the environments' own.
    """
    return (
        _worked(settings, range(min(2, settings.parts)), misspelt=None, failed=0),
        _worked(settings, range(2, 3), misspelt=0, failed=None),
        _worked(settings, range(3, 3 + min(3, settings.parts)), misspelt=None, failed=min(2, settings.parts) - 1),
    )


def _errand(settings: AtlasSettings, name: str, numbers: range) -> tuple[Task, list[_Chain]]:
    rng = random.Random(f"atlas:{settings.seed}:{name}")
    chains = [_chain(settings, number) for number in numbers]
    parts = []
    pages: list[Paragraph] = []
    for number, chain in enumerate(chains):
        share = settings.distracted if number == 0 else 0.0
        trade = _pick(rng, TRADES)
        question = QUESTIONS[settings.question].format(trade=trade, person=chain.person)
        parts.append(Part(question, (_route(settings, chain)[-1],)))
        pages += _pages(settings, chain, trade, rng, rng.random() < share)
    # in order of title, so that the place of a page says nothing about the answer
    pages.sort(key=lambda page: page.title)
    paths = [list(_route(settings, chain)[:-1]) for chain in chains]
    attributes = {"set": "atlas", "question": settings.question, "path": paths}
    return Task(f"{name}-{settings.question}", name, tuple(parts), tuple(pages), attributes), chains


def _chain(settings: AtlasSettings, number: int) -> _Chain:
    """The names of one part, each from the numbers that belong to this part alone."""
    roles = fields(_Chain)
    same_kind = {kind: [role.name for role in roles if _KINDS[role.name] == kind] for kind in ENDINGS}
    names = {}
    for role in roles:
        peers = same_kind[_KINDS[role.name]]
        place = number * len(peers) + peers.index(role.name)
        names[role.name] = invented_name(_KINDS[role.name], place, settings.seed)
    return _Chain(**names)


def _pick(rng: random.Random, choices: Sequence[T]) -> T:
    # Python promises the same random() for a seed in every version, but not the same choice()
    return choices[int(rng.random() * len(choices))]


def _route(settings: AtlasSettings, chain: _Chain) -> tuple[str, ...]:
    """The titles of the pages to read, in order, and then the answer."""
    return {
        "city": (chain.person, chain.home),
        "residence": (chain.person, chain.country),
        "country": (chain.person, chain.home, chain.country),
        "mayor": (chain.person, chain.home, chain.mayor),
        "currency": (chain.person, chain.home, chain.country, chain.currency),
    }[settings.question]


def _pages(settings: AtlasSettings, chain: _Chain, trade: str, rng: random.Random, distracted: bool) -> list[Paragraph]:
    """The pages of one part: the person, the cities, and every country that they name."""
    c, kinds = chain, settings.distractors
    pages = [
        _person_page(settings, c, trade, rng, distracted),
        _city_page(settings, c, c.home, c.country, c.mayor, rng),
        _country_page(settings, c.country, c.currency, c.old_currency, rng),
    ]
    if "birthplace" in kinds:
        pages.append(_city_page(settings, c, c.birthplace, c.birth_country, c.birth_mayor, rng))
        pages.append(_country_page(settings, c.birth_country, c.birth_currency, "", rng))
    if "former" in kinds:
        pages.append(_country_page(settings, c.former_country, c.former_currency, "", rng))
    if "neighbour" in kinds:
        pages.append(_country_page(settings, c.neighbour, c.neighbour_currency, "", rng))
    return pages


def _person_page(settings: AtlasSettings, chain: _Chain, trade: str, rng: random.Random, distracted: bool) -> Paragraph:
    person, home, born = chain.person, chain.home, f"was born in {chain.birthplace}"
    lives = f"lives in {home}"
    if settings.question == "residence":
        lives = f"lives in the city of {home} in {chain.country}"
        if distracted and "order" in settings.distractors:
            lives = f"lives in {chain.country}, in the city of {home}"
    if distracted and "birthplace" in settings.distractors:
        lives = _pick(rng, (f"{born} and {lives}", f"{lives} and {born}"))
    return Paragraph(person, (f"The {trade} {person} {lives}.",))


def _city_page(
    settings: AtlasSettings, chain: _Chain, city: str, country: str, mayor: str, rng: random.Random
) -> Paragraph:
    sentences = [f"{city} is a city in {country}."]
    if "former" in settings.distractors:
        past = f"{city} was once part of {chain.former_country}"
        sentences = _pick(rng, ([sentences[0], f"{past}."], [f"{past} and is now a city in {country}."]))
    if "neighbour" in settings.distractors:
        sentences.append(f"{city} lies near the border with {chain.neighbour}.")
    if settings.question == "mayor" or "mayor" in settings.distractors:
        successor = "former" in settings.distractors and city == chain.home
        follows = f", who followed {chain.old_mayor}" if successor else ""
        sentences.append(f"The mayor of {city} is {mayor}{follows}.")
    return Paragraph(city, tuple(sentences))


def _country_page(
    settings: AtlasSettings, country: str, currency: str, old_currency: str, rng: random.Random
) -> Paragraph:
    money = f"The currency of {country} is the {currency}."
    if "former" in settings.distractors and old_currency:
        past = f"{country} once paid with the {old_currency}"
        past_first = f"{past}; the currency of {country} is now the {currency}."
        money = _pick(rng, (money[:-1] + f", which replaced the {old_currency}.", past_first))
    return Paragraph(country, (f"{country} is a country.", money))


def _worked(settings: AtlasSettings, numbers: range, *, misspelt: int | None, failed: int | None) -> Example:
    """An errand played without fault but for a misspelt name or (with a flaky tool) a failed search in one part."""
    task, chains = _errand(settings, f"example {numbers.start}", numbers)
    wiki = WikiEnvironment()
    wiki.reset(task)
    parts = []
    for number, (part, chain) in enumerate(zip(task.parts, chains, strict=True)):
        *titles, answer = _route(settings, chain)
        thoughts = _thoughts(settings, chain)
        turns = []
        for place, (title, thought) in enumerate(zip(titles, thoughts, strict=False)):
            if number == misspelt and place == 0:
                turns.append(ExampleTurn(thought, *_searched(wiki, _misspelt(title))))
            if number == failed and place == 0 and settings.flakiness > 0.0:
                search = Action("search", title)
                turns.append(ExampleTurn(thought, search, tool_error(search)))
            turns.append(ExampleTurn(thought, *_searched(wiki, title)))
        finish = Action("finish", answer)
        wiki.step(finish)
        parts.append(ExamplePart(part.question, (*turns, ExampleTurn(thoughts[-1], finish))))
    return tuple(parts)


def _searched(wiki: WikiEnvironment, title: str) -> tuple[Action, str]:
    action = Action("search", title)
    return action, wiki.step(action).text


def _thoughts(settings: AtlasSettings, chain: _Chain) -> tuple[str, ...]:
    """One thought before each step of the route: every search, and then the answer."""
    c = chain
    asks_mayor = settings.question == "mayor"
    facts = [
        f"The country is {c.country}." if settings.question == "residence" else f"{c.person} lives in {c.home}.",
        f"The mayor of {c.home} is {c.mayor}." if asks_mayor else f"{c.home} is in {c.country}.",
        f"The currency of {c.country} is the {c.currency}.",
    ]
    *titles, answer = _route(settings, chain)
    onward = [f"{fact} I need to search {title}." for fact, title in zip(facts, titles[1:], strict=False)]
    return (f"I need to search {c.person}.", *onward, f"{facts[len(titles) - 1]} The answer is {answer}.")


def _misspelt(name: str) -> str:
    """The name with its last vowel exchanged for the next one of the alphabet."""
    vowels = "aeiou"
    place = max(name.rfind(vowel) for vowel in vowels)
    return name[:place] + vowels[(vowels.index(name[place]) + 1) % len(vowels)] + name[place + 1 :]
