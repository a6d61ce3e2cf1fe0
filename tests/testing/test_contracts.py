from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probecascade.episode import CONTINUE, SIGNALS, Decision, Moment, Question, Task
from probecascade.interfaces import EpisodeWatch, StoppingPolicy, Verdict
from probecascade.policies import (
    Cascade,
    FailedSearches,
    FailOpen,
    FirstRepeatedFailedSearch,
    Gate,
    Never,
    RepeatedActions,
    Shadow,
    TokenLimit,
)
from probecascade.probes import LinearProbe
from probecascade.testing import ConstantProbe, EvidenceProbe, RecordingPolicy, check_policy, check_probe

WIDTH = 6
PROBE = LinearProbe(np.zeros(WIDTH), np.full(WIDTH, 2.0), np.linspace(-1, 1, WIDTH), 0.1)
SURFACE = LinearProbe(
    np.zeros(4), np.ones(4), np.full(4, 0.1), -1.0, uses="signals", columns=("round", "not_found"), roots=True
)


@pytest.mark.parametrize("probe", [PROBE, SURFACE, ConstantProbe(0.5), EvidenceProbe()])
def test_our_probes_keep_the_contract(probe: Any) -> None:
    check_probe(probe, WIDTH, checks=["tool_exists"])


def test_the_fake_sees_all_that_it_is_shown() -> None:
    states, signals = np.ones((1, WIDTH)), np.ones((1, len(SIGNALS)))
    given: dict[str, Any] = {"texts": ["a"], "checks": {"tool_exists": np.ones(1)}}
    others = [
        EvidenceProbe().score(2 * states, signals, **given),
        EvidenceProbe().score(states, 2 * signals, **given),
        EvidenceProbe().score(states, signals, **given | {"texts": ["b"]}),
        EvidenceProbe().score(states, signals, **given | {"checks": {"tool_exists": np.zeros(1)}}),
    ]
    assert len({float(score[0]) for score in [EvidenceProbe().score(states, signals, **given), *others]}) == 5


class Unbounded:
    def score(self, states: NDArray[Any], signals: NDArray[Any] | None = None) -> NDArray[np.float64]:
        return np.asarray(states.astype(np.float64).sum(axis=1))


class Halved:
    def score(self, states: NDArray[Any], signals: NDArray[Any] | None = None) -> Any:
        return PROBE.score(states).astype(np.float32)


class Column:
    def score(self, states: NDArray[Any], signals: NDArray[Any] | None = None) -> NDArray[np.float64]:
        return PROBE.score(states)[:, None]


class Relative:
    """Compares a row with its batch."""

    def score(self, states: NDArray[Any], signals: NDArray[Any] | None = None) -> NDArray[np.float64]:
        return PROBE.score(states - states.mean(axis=0)) if len(states) else np.zeros(0)


class Counting:
    """Compares a text with the others of its batch."""

    reads = frozenset({"text"})

    def score(self, states: Any, signals: Any = None, *, texts: Any, checks: Any) -> NDArray[np.float64]:
        return np.array([len(text) / (1 + sum(map(len, texts))) for text in texts], dtype=np.float64)


class Writing:
    def score(self, states: NDArray[Any], signals: NDArray[Any] | None = None) -> NDArray[np.float64]:
        scores = PROBE.score(states)
        states *= 0.5
        return scores


class Fickle:
    def __init__(self) -> None:
        self.asked = 0

    def score(self, states: NDArray[Any], signals: NDArray[Any] | None = None) -> NDArray[np.float64]:
        self.asked += 1
        return np.full(len(states), 1 / (1 + self.asked))


class Leaky:
    def score(self, states: NDArray[Any], signals: NDArray[Any] | None = None) -> NDArray[np.float64]:
        clean = np.isfinite(states).all(axis=1)
        scores = np.full(len(states), np.nan)
        scores[clean] = PROBE.score(states[clean])
        return scores


@pytest.mark.parametrize(
    ("probe", "promise"),
    [
        (Unbounded(), r"lies in \[0, 1\]"),
        (Halved(), "float64"),
        (Column(), "one score per row"),
        (Relative(), "bit for bit"),
        (Counting(), "bit for bit"),
        (Writing(), "leaves its inputs alone"),
        (Fickle(), "whenever asked"),
        (Leaky(), "nan is refused"),
        (object(), "a probe has score"),
    ],
)
def test_a_probe_that_breaks_a_promise_is_told_which(probe: Any, promise: str) -> None:
    with pytest.raises(AssertionError, match=promise):
        check_probe(probe, WIDTH)


def cascade() -> Cascade:
    gates = [Gate("action:1", 2, PROBE, 0.5), Gate("part:1", 0, PROBE, 0.5), Gate("observation:2", None, SURFACE, 0.4)]
    return Cascade(gates)


class Asking(RecordingPolicy):
    def begin(self, task: Task) -> EpisodeWatch:
        return _AskingWatch()


class _AskingWatch:
    def decide(self, moment: Moment) -> Generator[Question, str, Decision]:
        said = yield Question("Is it enough?")
        return Decision(action="answer", reason=said) if moment.checkpoint.kind == "observation" else CONTINUE


@pytest.mark.parametrize(
    "make_policy",
    [
        cascade,
        Never,
        FirstRepeatedFailedSearch,
        FailedSearches,
        RepeatedActions,
        lambda: TokenLimit(30),
        lambda: Shadow(cascade()),
        lambda: FailOpen(cascade()),
        RecordingPolicy,
        Asking,
        lambda: RecordingPolicy([1], {"observation:1": Decision(append=" Go on.", allow=("finish",))}),
    ],
)
def test_our_policies_keep_the_contract(make_policy: Any) -> None:
    check_policy(make_policy, WIDTH)


class Made:
    """A policy made of one function of the moment and of how many moments the policy has seen."""

    def __init__(self, decide: Any, layers: Sequence[int] = (1,)) -> None:
        self.layers = layers
        self._decide = decide
        self.seen = 0

    def begin(self, task: Task) -> EpisodeWatch:
        return self

    def decide(self, moment: Moment) -> Verdict:
        self.seen += 1
        verdict: Verdict = self._decide(self, moment)
        return verdict


def spoil(policy: Made, moment: Moment) -> Decision:
    moment.hidden[1][0] = 0.0
    return CONTINUE


def mumble(policy: Made, moment: Moment) -> Generator[Any, str, Decision]:
    yield "Is it enough?"
    return CONTINUE


def forget(policy: Made, moment: Moment) -> Generator[Any, str, Any]:
    yield Question("Is it enough?")


STOP = Decision(action="abort", reason="enough")


@pytest.mark.parametrize(
    ("policy", "promise"),
    [
        (lambda: Made(lambda p, m: STOP if p.seen > 9 else CONTINUE), "among others that are live"),
        (lambda: Made(lambda p, m: None), "decide returns a Decision"),
        (lambda: Made(mumble), "yields questions and nothing else"),
        (lambda: Made(forget), "a generator returns a Decision"),
        (lambda: Made(lambda p, m: replace(STOP, reason="")), "gives its reason"),
        (lambda: Made(lambda p, m: replace(STOP, append="x")), "only a continue is steered"),
        (lambda: Made(lambda p, m: Decision(allow=())), "at least one tool"),
        (lambda: Made(lambda p, m: replace(STOP, action="halt")), "is continue, abort or answer"),
        (lambda: Made(lambda p, m: CONTINUE, layers=(1, 1)), "distinct whole numbers"),
        (lambda: Made(lambda p, m: CONTINUE, layers=(-1,)), "distinct whole numbers"),
    ],
)
def test_a_policy_that_breaks_a_promise_is_told_which(policy: Any, promise: str) -> None:
    with pytest.raises(AssertionError, match=promise):
        check_policy(policy, WIDTH)


def test_a_policy_that_writes_into_the_states_fails() -> None:
    with pytest.raises(ValueError, match="read-only"):
        check_policy(lambda: Made(spoil), WIDTH)


def test_the_recording_policy_is_a_policy() -> None:
    policy: StoppingPolicy = RecordingPolicy([3])
    assert list(policy.layers) == [3]
    assert len(SIGNALS) == 9


def test_the_fakes_need_no_torch() -> None:
    code = "import sys, probecascade.testing; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
