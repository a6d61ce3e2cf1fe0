from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from probecascade.environments import (
    F1_SUCCESS,
    exact_match,
    hotpot_f1,
    normalise,
    token_f1,
    token_set_f1,
    verdict,
    verdict_match,
)
from probecascade.environments.scoring import check_scorable
from probecascade.episode import Part, Task
from probecascade.errors import DataError


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("The Beatles!", "beatles"),
        ("  an   apple, a day ", "apple day"),
        ("Théâtre de l'Opéra", "théâtre de lopéra"),
        ("theatre", "theatre"),
        ("The", ""),
    ],
)
def test_normalise_as_squad(text: str, plain: str) -> None:
    assert normalise(text) == plain


def test_exact_match_accepts_any_of_the_answers() -> None:
    assert exact_match("the Brosk.", ("Brosk", "Old Brosk"))
    assert exact_match("old brosk", ("Brosk", "Old Brosk"))
    assert not exact_match("Brosk City", ("Brosk", "Old Brosk"))
    assert not exact_match("Brosk", ())


@pytest.mark.parametrize(
    ("given", "answers", "f1"),
    [
        ("Brosk", ("Brosk",), 1.0),
        ("the big red dog", ("red dog",), 0.8),  # precision 2/3, recall 1
        ("dog dog dog", ("dog cat",), 0.4),  # one shared token only: precision 1/3, recall 1/2
        ("dog dog", ("dog dog cat",), 0.8),  # two shared tokens, as multisets
        ("cat", ("dog", "black cat"), 2 / 3),  # the best answer counts
        ("", ("dog",), 0.0),
        ("the", ("a",), 1.0),  # nothing left on either side: equal, as in SQuAD 2.0
        ("dog", (), 0.0),
    ],
)
def test_token_f1(given: str, answers: tuple[str, ...], f1: float) -> None:
    assert token_f1(given, answers) == pytest.approx(f1)


@pytest.mark.parametrize(
    ("given", "answer", "f1", "hotpot", "sets"),
    [
        ("yes", "yes", 1.0, 1.0, 1.0),
        ("yes it is", "yes", 0.5, 0.0, 0.5),  # HotpotQA: a yes or no has to be the whole answer
        ("no", "no man's land", 0.5, 0.0, 0.5),
        ("Yes.", "yes", 1.0, 1.0, 1.0),
        ("the no answer", "noanswer", 0.0, 0.0, 0.0),
        ("dog dog dog", "dog cat", 0.4, 0.4, 2 / 3),  # as sets: precision 1, recall 1/2
        ("a dog", "the dog!", 1.0, 1.0, 1.0),
    ],
)
def test_the_three_f1(given: str, answer: str, f1: float, hotpot: float, sets: float) -> None:
    assert token_f1(given, (answer,)) == pytest.approx(f1)
    assert hotpot_f1(given, (answer,)) == pytest.approx(hotpot)
    assert token_set_f1(given, (answer,)) == pytest.approx(sets)
    assert hotpot_f1(given, ("xyz", answer)) == pytest.approx(hotpot)
    assert (hotpot_f1(given, ()), token_set_f1(given, ())) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("said", "label"),
    [
        ("SUPPORTS", "SUPPORTS"),
        ("supported.", "SUPPORTS"),
        ("The claim is Supported by the page", "SUPPORTS"),
        ("True", "SUPPORTS"),
        ("REFUTE", "REFUTES"),
        ("refuted", "REFUTES"),
        ("false", "REFUTES"),
        ("NOT ENOUGH INFO", "NOT ENOUGH INFO"),
        ("not_enough_info", "NOT ENOUGH INFO"),
        ("Not enough information.", "NOT ENOUGH INFO"),
        ("NEI", "NOT ENOUGH INFO"),
        ("not verifiable", "NOT ENOUGH INFO"),
        ("SUPPORTS or REFUTES", ""),
        ("not supported", ""),
        ("The page does not directly support it", ""),
        ("unsupported", ""),
        ("it is true that he sings", ""),
        ("", ""),
        ("Brosk", ""),
    ],
)
def test_verdicts_in_their_usual_spellings(said: str, label: str) -> None:
    assert verdict(said) == label
    assert verdict_match(said, ("SUPPORTS",)) == (label == "SUPPORTS")
    assert not verdict_match(said, ("no label",))


@pytest.mark.parametrize("agent", ["knowagent", "fireact"])
def test_our_f1_is_the_recorded_one_in_every_real_run(shared: Callable[[str], Path], agent: str) -> None:
    path = shared(f"trajectories_hotpotqa_{agent}_shared.jsonl.gz")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    assert len(records) == {"knowagent": 668, "fireact": 991}[agent]
    for record in records:
        ours = hotpot_f1(record["prediction"], (record["gold"],))
        assert round(ours, 4) == record["f1"]  # it is recorded with four digits
        assert (ours >= F1_SUCCESS) == record["success_f1_06"]
        assert token_f1(record["prediction"], (record["gold"],)) == ours


def test_answers_that_no_verdict_can_meet_are_found_before_anything_is_played() -> None:
    def claim(number: int, *answers: str) -> Task:
        return Task(f"c{number}", f"c{number}", (Part(f"Is claim {number} true?", answers),))

    sound = [claim(0, "SUPPORTS"), claim(1, "Not enough info", "NEI"), claim(2, "refuted")]
    check_scorable(sound, "verdict")
    unknown = [*sound, claim(3, "SUPPORTS", "perhaps")]
    check_scorable(unknown, "exact")
    with pytest.raises(DataError, match=r"^task 'c3' \(Is claim 3 true\?\): the answer 'perhaps' is no verdict"):
        check_scorable(unknown, "verdict")
