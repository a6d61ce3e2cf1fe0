"""Whatever is thrown at `calibrate` comes back with sound thresholds and an honest, grammatical sentence.

Warnings are errors in this suite, so a silent 0/0 fails here too.
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probecascade.thresholds import METHODS, Calibration, allowed_misses, calibrate, firing

NAN = float("nan")
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Arrays = dict[str, Any]


def plain(n: int, gates: int, seed: int = 0) -> tuple[Floats, Bools]:
    rng = np.random.default_rng(seed)
    failed = rng.random(n) < 0.5
    failed[0], failed[1] = True, False
    return rng.normal(size=(n, gates)) + 1.5 * failed[:, None], failed


def one_success(n: int = 30, successes: int = 1) -> tuple[Floats, Bools]:
    scores, _ = plain(n, 2)
    return scores, np.arange(n) >= successes


def a_gate_nobody_reached() -> tuple[Floats, Bools]:
    scores, failed = plain(60, 3)
    scores[:, 1] = NAN
    scores[::3] = NAN
    return scores, failed


def one_lone_score() -> tuple[Floats, Bools]:
    scores, failed = plain(40, 3)
    scores[:] = NAN
    scores[5, 2] = 0.5
    return scores, failed


def early_ends() -> tuple[Floats, Bools]:
    """A third of the successes end before the first gate."""
    scores, failed = plain(160, 3)
    scores[np.flatnonzero(~failed)[::3]] = NAN
    return scores, failed


def outliers() -> tuple[Floats, Bools]:
    scores, failed = plain(80, 2)
    scores[::10] *= 1e9
    return scores, failed


WORLDS: dict[str, tuple[Floats, Bools]] = {
    "two episodes": plain(2, 1),
    "two episodes, eight gates": plain(2, 8),
    "one success": one_success(),
    "one failure": (one_success()[0], ~one_success()[1]),
    "two successes": one_success(successes=2),
    "one gate": plain(200, 1),
    "eight gates": plain(90, 8),
    "identical scores": (np.full((50, 3), 0.25), plain(50, 3)[1]),
    "zeros of both signs": (np.where(plain(50, 2)[0] < 0, -0.0, 0.0), plain(50, 2)[1]),
    "two values": (np.round(1 / (1 + np.exp(-plain(90, 2)[0]))), plain(90, 2)[1]),
    "told apart": (np.repeat(plain(90, 2)[1][:, None], 2, axis=1) * 1.0, plain(90, 2)[1]),
    "the wrong way round": (-plain(90, 2)[0], plain(90, 2)[1]),
    "a gate nobody reached": a_gate_nobody_reached(),
    "one lone score": one_lone_score(),
    "early ends": early_ends(),
    "outliers": outliers(),
    "tiny": (plain(90, 2)[0] * 1e-300, plain(90, 2)[1]),
    "subnormal": (np.round(plain(90, 2)[0]) * 5e-324, plain(90, 2)[1]),
    "large": (plain(90, 2)[0] * 1e150, plain(90, 2)[1]),
}

NUMBER = r"(\d+)/(\d+)(?: \(\d+\.\d %\))?"
COUNTED = (
    r"On the calibration episodes \((?:1 failure|(?!1 )\d+ failures), (?:1 success|(?!1 )\d+ successes)\) "
    rf"these thresholds catch {NUMBER} of the failures and keep {NUMBER} of the successes"
)
UNTESTED = "not tested, because an earlier target failed"
MORE = (
    r"(?:1 more (?:group with a (?:doomed|successful) episode|(?:doomed|successful) episode)"
    r"|(?!1 )[1-9]\d* more (?:groups with a (?:doomed|successful) episode|(?:doomed|successful) episodes)) needed"
)
REASON = (
    rf"(?:keep|catch) [\d./]+ %(?: by gate \d)?: (?:{MORE}|{UNTESTED}|no number of episodes would do as things are)"
)
REASONS = rf" \({REASON}(?:; {REASON})*\)"
CAUGHT = r"[\d./]+ % are aborted by gate \d"
CLAUSE = (
    r"(?:at least [\d./]+ % of the episodes that would succeed are never aborted"
    rf"|of those that would fail at least {CAUGHT}(?:, {CAUGHT})*(?: and {CAUGHT})?)"
)
TOGETHER = (
    r" Keep and catch hold at [\d./]+ % each"
    r"(?:, and together at [\d./]+ % or more|; nothing is said of both together)\."
)
ASSUMED = (
    r"(?: The promise assumes that no group of new episodes is larger than the largest seen \(\d+\)\."
    r"| \d+ failed episodes reach a gate up to gate \d only after a later one: [\d./]+ % counts an abort at either, "
    r"whichever comes first\."
    r"| More than \d+ of the \d+ successes that certify lie above all that rank the gates, [^.]* choose the method "
    r"certified\.)"
)
UNIT = "(?:episodes|groups, counting one run of each group drawn at random|groups, counting all their episodes)"
SENTENCES = (
    rf"{COUNTED}; nothing is promised for new episodes(?:{REASONS})?\.",
    rf"With [\d./]+ % confidence over the calibration {UNIT}, "
    rf"{CLAUSE}(?: and {CLAUSE})?, provided new episodes are like these\."
    rf"(?:{TOGETHER})?{ASSUMED}*(?: Not promised{REASONS}\.)? {COUNTED}\.",
)


def assert_sound(result: Calibration, scores: Floats, failed: Bools) -> None:
    thresholds = result.thresholds
    assert thresholds.shape == scores.shape[1:]
    assert not np.isnan(thresholds).any()
    assert not np.isneginf(thresholds).any()
    fired = firing(scores, thresholds).any(axis=1)
    caught, kept = int((fired & failed).sum()), int((~fired & ~failed).sum())
    assert (result.seen.caught_count, result.seen.kept_count) == (caught, kept)
    assert result.certified == (len(result.certificates) > 0 and all(c.certified for c in result.certificates))
    for certificate in result.certificates:
        assert certificate.certified == (certificate.missing == 0 and certificate.tested)
        assert certificate.seen >= 0
        if certificate.certified and certificate.allowed is not None:
            assert certificate.seen <= certificate.allowed < certificate.among
            level = 1 - result.confidence
            assert certificate.allowed <= allowed_misses(certificate.among, 1 - certificate.target, delta=level)
    for number in result.needed.values():
        assert number is None or (type(number) is int and number >= 0)
    matched = re.fullmatch(SENTENCES[any(c.certified for c in result.certificates)], result.promise)
    assert matched, result.promise
    assert [int(text) for text in matched.groups()] == [caught, int(failed.sum()), kept, int((~failed).sum())]
    json.dumps(result.record(), allow_nan=False)


def targets(gates: int) -> list[Arrays]:
    last = gates - 1
    return [
        {"keep": 0.9},
        {"keep": 0.5, "confidence": 0.5},
        {"keep": 0.95, "confidence": 0.999},
        {"keep": "1/3", "confidence": 0.3},
        {"catch": {last: 0.6}},
        {"catch": {last: 0.99}, "confidence": 0.5},
        {"catch": {0: 0.3, last: 0.6} if last else {0: 0.3}, "confidence": 0.8},
        {"keep": 0.5, "catch": {last: 0.3}, "confidence": 0.6},
        {"keep": 0.6, "catch": {last: 0.5}, "confidence": 0.4},
    ]


def tried(scores: Floats, failed: Bools, settings: Arrays) -> None:
    for method in ("certified", "empirical") if settings.get("teachers") else METHODS:
        for wanted in targets(scores.shape[1]):
            if method in ("certified", "empirical") or "catch" not in wanted:
                result = calibrate(scores, failed, method=method, **{**wanted, **settings})
                assert_sound(result, scores, failed)


@pytest.mark.parametrize(("scores", "failed"), [pytest.param(*world, id=name) for name, world in WORLDS.items()])
def test_any_world_alone(scores: Floats, failed: Bools) -> None:
    tried(scores, failed, {})


@pytest.mark.parametrize(("scores", "failed"), WORLDS.values(), ids=WORLDS)
def test_any_world_with_few_teachers(scores: Floats, failed: Bools) -> None:
    known, labels = plain(4, scores.shape[1], seed=3)
    tried(scores, failed, {"teachers": (known * np.nanmax(np.abs(scores)), labels)})


@pytest.mark.parametrize("costs", ["zero", "rising", "huge"])
def test_any_costs(costs: str) -> None:
    scores, failed = early_ends()
    table = {"zero": 0.0 * scores, "rising": np.broadcast_to(np.arange(3.0), scores.shape), "huge": 1e12 + 0 * scores}
    tried(scores, failed, {"cost_after": np.where(np.isnan(scores), NAN, table[costs])})


GROUPS = {
    "singletons": lambda failed: np.arange(len(failed)),
    "fours": lambda failed: np.arange(len(failed)) // 4,
    "two halves": lambda failed: np.arange(len(failed)) % 2,
    "one of all": lambda failed: np.zeros(len(failed)),
    "one giant": lambda failed: np.maximum(np.arange(len(failed)) - 30, 0),
    "of one label": lambda failed: np.where(failed, 1000, 0) + np.arange(len(failed)) // 3,
}


FEW_GROUPS = [("one of all", "group"), ("two halves", "group")]


@pytest.mark.parametrize(
    ("kind", "unit"),
    [(kind, unit) for kind in GROUPS for unit in ("episode", "group") if (kind, unit) not in FEW_GROUPS],
)
@pytest.mark.parametrize("with_teachers", [False, True], ids=["alone", "teachers"])
def test_any_groups(kind: str, unit: str, with_teachers: bool) -> None:
    scores, failed = plain(120, 3)
    known = plain(60, 3, seed=1) if with_teachers else None
    tried(scores, failed, {"groups": GROUPS[kind](failed), "unit": unit, "teachers": known})


@pytest.mark.parametrize("wanted", [{"keep": 0.9}, {"catch": {2: 0.5}}], ids=["keep", "catch"])
@pytest.mark.parametrize("groups", [1, 2])
def test_groups_whose_draws_are_of_one_class_are_no_error(groups: int, wanted: Arrays) -> None:
    """The episodes hold both classes; it is only the certificate that is out of reach."""
    scores, failed = plain(120, 3)
    for seed in range(8):
        result = calibrate(scores, failed, np.arange(120) % groups, unit="group", seed=seed, **wanted)
        assert_sound(result, scores, failed)


@pytest.mark.parametrize("wanted", [{"keep": 0.5}, {"catch": {0: 0.3, 2: 0.5}}], ids=["keep", "catch"])
def test_groups_whose_episodes_mostly_end_before_the_gates(wanted: Arrays) -> None:
    scores, failed = plain(160, 3)
    scores[np.arange(160) % 7 > 1] = NAN
    assert_sound(calibrate(scores, failed, np.arange(160) // 4, **wanted), scores, failed)


def test_one_doomed_episode_tests_the_catch_and_leaves_none_to_read() -> None:
    scores, failed = WORLDS["one failure"]
    result = calibrate(scores, failed, keep=0.9, catch={1: 0.5}, confidence=0.6)
    assert_sound(result, scores, failed)


@pytest.mark.parametrize("method", ["single", "maxrank"])
def test_a_bound_for_independent_episodes_is_not_issued_for_dependent_ones(method: str) -> None:
    scores, failed = plain(400, 2)
    settings: Arrays = {"keep": 0.8, "method": method}
    assert calibrate(scores, failed, **settings).certified
    assert calibrate(scores, failed, np.arange(400), **settings).certified
    pooled = calibrate(scores, failed, np.arange(400) // 4, **settings)
    assert not pooled.certified
    assert pooled.needed["successful"] is None
    assert any("depend" in note for note in pooled.notes)
    per_group = calibrate(scores, failed, np.arange(400) // 4, unit="group", **settings)
    assert per_group.certified
    assert per_group.certificates[0].among < 100


@pytest.mark.parametrize("method", ["certified", "single", "maxrank"])
@pytest.mark.parametrize("successes", [1, 2, 5, 13, 20, 28])
def test_the_number_of_missing_successes_is_enough_and_at_most_one_too_many(method: str, successes: int) -> None:
    scores, _ = plain(200, 2)

    def after(more: int) -> Calibration:
        n = 20 + successes + more
        return calibrate(scores[:n], np.arange(n) < 20, keep=0.9, method=method)

    missing = after(0).needed["successful"]
    assert missing
    assert after(missing).certified
    assert not after(missing - 2).certified


def test_a_catch_that_was_never_tested_is_not_called_hopeless() -> None:
    """With too few successes for keep, nothing was learnt of the catch target."""
    scores, failed = plain(30, 2)
    result = calibrate(scores, failed, keep=0.95, catch={1: 0.3})
    assert not result.certified
    assert result.needed["doomed"] is not None


def test_what_is_seen_does_not_change_with_the_callers_arrays() -> None:
    rng = np.random.default_rng(0)
    failed = rng.random(200) < 0.5
    scores = rng.normal(size=(200, 2)) + 2.0 * failed[:, None]
    groups = np.arange(200)
    given = (scores.copy(), failed.copy(), groups.copy())
    result = calibrate(*given, keep=0.8)
    before = calibrate(scores, failed, groups, keep=0.8).seen
    given[0][:], given[1][:], given[2][:] = 0.0, True, 0
    assert result.seen == before


def test_gates_out_of_order_are_said_where_a_catch_target_counts_them() -> None:
    rng = np.random.default_rng(0)
    failed = np.arange(200) % 2 == 0
    scores = rng.normal(size=(200, 2)) + 2.0 * failed[:, None]
    costs = np.tile([20.0, 10.0], (200, 1))
    assert not calibrate(scores, failed, cost_after=costs, catch={0: 0.3, 1: 0.5}).notes
    costs[:7] = costs[:7, ::-1]
    (note,) = calibrate(scores, failed, cost_after=costs, catch={0: 0.3, 1: 0.5}).notes
    assert note.startswith("4 failed episodes reach a gate up to gate 0 only after a later one")
    assert not calibrate(scores, failed, cost_after=costs, keep=0.8).notes


@pytest.mark.parametrize("method", ["certified", "empirical", "paper", "uniform", "single", "maxrank"])
def test_the_largest_scores_that_are_taken_overflow_nowhere(method: str) -> None:
    scores, failed = plain(120, 3)
    widest = np.clip(scores, -1, 1) * 1e300
    for targets in ({"keep": 0.9},) if method != "certified" else ({"keep": 0.9}, {"keep": 0.8, "catch": {2: 0.5}}):
        for groups in (None, np.arange(len(failed)) // 3):
            calibrate(widest, failed, groups, method=method, **targets).evaluate(widest, failed, groups)


def test_ranks_that_leave_no_room_are_said_in_words() -> None:
    rng = np.random.default_rng(3)
    failed = np.arange(260) < 60
    scores = rng.normal(size=(260, 8))
    result = calibrate(scores, failed, keep=0.95, confidence=0.9, method="maxrank")
    assert result.certified
    assert np.isinf(result.thresholds).all()
    (note,) = [note for note in result.notes if "lie above all that rank the gates" in note]
    assert "no gate may fire" in note
    assert note[0].upper() + note[1:] in result.promise
    roomy = calibrate(scores[:, :1], failed, keep=0.9, confidence=0.9, method="maxrank")
    assert np.isfinite(roomy.thresholds).all()
    assert not roomy.notes
