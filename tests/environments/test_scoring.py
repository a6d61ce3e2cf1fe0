from __future__ import annotations

import pytest

from probecascade.environments import exact_match, normalise, token_f1


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
