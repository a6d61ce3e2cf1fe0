"""Input that cannot be right is refused by `calibrate` in one sentence, with the project's own errors."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from probecascade.errors import DataError, ProbecascadeError, UsageError
from probecascade.thresholds import calibrate, feasibility

NAN, INF = float("nan"), float("inf")
SCORES = np.array([[0.1, 0.4], [0.2, NAN], [0.9, 0.8], [0.7, 0.6]])
FAILED = np.array([False, False, True, True])
COSTS = np.array([[9.0, 4.0], [9.0, NAN], [9.0, 4.0], [9.0, 4.0]])


def changed(array: Any, place: tuple[int, int], value: float) -> Any:
    copy = array.copy()
    copy[place] = value
    return copy


def refused(error: type[ProbecascadeError], words: str, arguments: dict[str, Any]) -> None:
    settings = {"scores": SCORES, "failed": FAILED, "cost_after": COSTS, **arguments}
    if not {"catch", "keep"} & set(arguments):
        settings["keep"] = 0.5
    with pytest.raises(error, match=words) as caught:
        calibrate(**settings)
    text = str(caught.value)
    assert re.fullmatch(r"[^\n]{20,}[^.]\.", text), text
    assert not re.search(r"[.!?] [A-Z]", text), text
    assert not re.search(r"array\(|dtype|object at 0x", text), text


ARRAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "infinite score": ("infinite", {"scores": changed(SCORES, (0, 0), INF)}),
    "minus infinite score": ("infinite", {"scores": changed(SCORES, (0, 0), -INF)}),
    "scores beyond the differences of floats": (
        "scores reach 1.7e.308.*divide them all",
        {"scores": changed(SCORES, (0, 0), 1.7e308)},
    ),
    "flat scores": (r"shape \(4,\)", {"scores": SCORES[:, 0]}),
    "deep scores": (r"shape \(4, 2, 1\)", {"scores": SCORES[:, :, None]}),
    "no gate": (r"shape \(4, 0\)", {"scores": SCORES[:, :0], "cost_after": None}),
    "no episode": ("0 failed and 0 successful", {"scores": SCORES[:0], "failed": FAILED[:0], "cost_after": COSTS[:0]}),
    "fewer labels": ("3 labels were given for 4", {"failed": FAILED[:3]}),
    "labels in a column": ("labels", {"failed": FAILED[:, None]}),
    "labels 0 and 1": ("not booleans", {"failed": FAILED.astype(int)}),
    "labels 0.0 and 1.0": ("not booleans", {"failed": FAILED.astype(float)}),
    "labels as words": ("not booleans", {"failed": ["True", "False", "True", "False"]}),
    "labels with a gap": ("not booleans", {"failed": [True, False, None, True]}),
    "none failed": ("0 failed and 4 successful", {"failed": np.zeros(4, dtype=bool)}),
    "all failed": ("4 failed and 0 successful", {"failed": np.ones(4, dtype=bool)}),
    "no gate reached": ("none of the calibration episodes has a score at any gate", {"scores": SCORES * NAN}),
    "cost missing where a gate was reached": ("finite cost", {"cost_after": changed(COSTS, (0, 0), NAN)}),
    "negative cost": ("cost >= 0", {"cost_after": changed(COSTS, (0, 0), -1.0)}),
    "infinite cost": ("finite", {"cost_after": changed(COSTS, (0, 0), INF)}),
    "infinite cost of a gate not reached": ("infinite", {"cost_after": changed(COSTS, (1, 1), INF)}),
    "costs of another shape": ("costs have shape", {"cost_after": COSTS[:, :1]}),
    "fewer groups": ("3 groups were given for 4", {"groups": ["a", "b", "c"]}),
    "groups in a table": ("8 groups were given for 4", {"groups": [["a", "b"]] * 4}),
    "fewer ids": ("3 ids were given for 4", {"ids": ["a", "b", "c"]}),
    "an id twice": ("1 episode ids come twice .*'b'", {"ids": ["a", "b", "b", "c"]}),
    "an id twice, once as a number": ("come twice", {"ids": [1, "1", "2", "3"]}),
    "teachers with another number of gates": ("1 gates, the episodes 2", {"teachers": (SCORES[:, :1], FAILED)}),
    "teachers of one class": ("2 failed and 0 successful", {"teachers": (SCORES[2:], FAILED[2:])}),
    "teachers without labels": ("1 arrays of teachers", {"teachers": (SCORES,)}),
    "teachers with an infinite score": ("infinite", {"teachers": (changed(SCORES, (0, 0), INF), FAILED)}),
    "teachers with 0 and 1": ("not booleans", {"teachers": (SCORES, FAILED.astype(int))}),
    "teachers with fewer groups": ("2 groups were given for 4", {"teachers": (SCORES, FAILED, None, ["a", "b"])}),
}

USAGE: dict[str, tuple[str, dict[str, Any]]] = {
    "no target": ("neither", {"catch": None, "keep": None}),
    "an empty catch": ("neither", {"catch": {}}),
    **{
        f"keep {value!r}": ("keep target", {"keep": value})
        for value in (0, 1, 0.0, 1.0, -0.1, 1.5, NAN, INF, "x", "1/0")
    },
    "keep True": ("keep target True", {"keep": True}),
    **{f"catch {value!r}": ("catch target", {"catch": {0: value}}) for value in (0, 1, -0.1, 1.5, NAN, INF, "", None)},
    "catch that falls": ("50 % at gate 1 does not rise above 60 % at gate 0", {"catch": {0: 0.6, 1: 0.5}}),
    "catch that falls, given backwards": ("does not rise", {"catch": {1: 0.5, 0: 0.6}}),
    "catch that stays": ("does not rise", {"catch": {0: "1/2", 1: 0.5}}),
    **{f"catch at {g!r}": (f"gate {g!r}.*0 to 1", {"catch": {g: 0.5}}) for g in (2, -1, 1.0, "0", True, None, NAN)},
    **{f"confidence {c!r}": ("confidence", {"confidence": c}) for c in (0, 1, 0.0, 1.0, -0.5, 95, NAN, INF, True)},
    "unknown method": ("method is 'best'.*certified", {"method": "best"}),
    "unknown unit": ("unit is 'run'.*'group'", {"unit": "run"}),
    "fewer gate names": ("1 gates were named for 2", {"gates": ["action:1"]}),
    "a gate name twice": ("come twice in a, a", {"gates": ["a", "a"]}),
    **{
        f"{method} with catch": (f"method '{method}' sets thresholds for a keep target alone", targets)
        for method in ("paper", "uniform", "single", "maxrank")
        for targets in ({"method": method, "catch": {0: 0.5}, "keep": 0.5},)
    },
}


@pytest.mark.parametrize(("words", "arguments"), ARRAYS.values(), ids=ARRAYS)
def test_arrays_that_do_not_fit_are_refused(words: str, arguments: dict[str, Any]) -> None:
    refused(DataError, words, arguments)


@pytest.mark.parametrize(("words", "arguments"), USAGE.values(), ids=USAGE)
def test_settings_that_cannot_be_right_are_refused(words: str, arguments: dict[str, Any]) -> None:
    refused(UsageError, words, arguments)


@pytest.mark.parametrize("method", ["paper", "uniform", "single", "maxrank"])
def test_a_catch_target_alone_is_refused_by_the_keep_methods(method: str) -> None:
    refused(UsageError, "keep target alone", {"method": method, "catch": {0: 0.5}})


def test_a_group_that_teaches_and_certifies_is_refused() -> None:
    with pytest.raises(DataError, match=r"2 groups both teach and certify \(first: 'a'\)"):
        calibrate(
            SCORES, FAILED, ["a", "b", "c", "d"], keep=0.5, teachers=(SCORES, FAILED, COSTS, ["a", "b", "e", "f"])
        )


def test_feasibility_refuses_what_calibrate_refuses() -> None:
    with pytest.raises(DataError, match="not booleans"):
        feasibility(SCORES, FAILED.astype(int), catch={0: 0.5}, keep=0.5)
    with pytest.raises(UsageError, match="catch target"):
        feasibility(SCORES, FAILED, catch={0: 1.5}, keep=0.5)


def test_the_same_arrays_unspoilt_are_taken() -> None:
    """Else every refusal above might have another reason."""
    known = (SCORES, FAILED, COSTS, ["e", "f", "g", "h"])
    for method in ("certified", "empirical", "paper", "uniform", "single", "maxrank"):
        result = calibrate(
            SCORES,
            FAILED,
            ["a", "b", "c", "d"],
            COSTS,
            keep=0.5,
            confidence=0.6,
            teachers=known,
            method=method,
            ids=[1, 2, 3, 4],
            gates=["action:1", "action:2"],
        )
        assert result.gates == ("action:1", "action:2")
    assert calibrate(SCORES.tolist(), FAILED.tolist(), catch={1: 0.9, 0: "1/4"}).targets.catch[0][0] == 0


def test_costs_of_gates_that_were_not_reached_count_for_nothing() -> None:
    filled = changed(COSTS, (1, 1), 1e6)
    plain, padded = (calibrate(SCORES, FAILED, None, costs, keep=0.5, method="uniform") for costs in (COSTS, filled))
    assert padded.seen.saved == plain.seen.saved
