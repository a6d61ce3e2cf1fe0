"""What a provider bills, counted call by call from the transcripts, against the columns of the run."""

from __future__ import annotations

import numpy as np
import pytest
from made_runs import make_run

from probecascade.errors import UsageError
from probecascade.policies import fit_cascade
from probecascade.policies.billing import Accounts, check_billing
from probecascade.probes import LogisticFitter
from probecascade.store import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("runs") / "run")


def test_every_call_pays_for_the_conversation_before_it(run: Run) -> None:
    billed = Accounts(run).billed
    for index in range(0, len(run), 17):
        episode = run.episode(index)
        context, total = episode.prompt_tokens, 0
        for step in episode.steps:
            total += context + step.turn_tokens
            context += step.turn_tokens + step.observation_tokens
        assert billed[index] == total


def test_after_a_gate_only_later_calls_are_billed(run: Run) -> None:
    accounts = Accounts(run)
    after = accounts.billed_after(["action:1", "action:2"], gate_answers=True)
    rows = run.rows("action:2")
    for episode in rows.episode[::11]:
        record = run.episode(int(episode))
        first = record.prompt_tokens + record.steps[0].turn_tokens
        second = first + record.steps[0].observation_tokens + record.steps[1].turn_tokens
        assert after[episode, 0] == accounts.billed[episode] - first
        assert after[episode, 1] == accounts.billed[episode] - first - second
    missing = np.setdiff1d(np.arange(len(run)), rows.episode)
    assert np.isnan(after[missing, 1]).all()


def test_whole_rounds_credit_the_turn_that_was_just_generated(run: Run) -> None:
    rows = run.rows("action:2")
    loose = Accounts(run).from_round(["action:2"], gate_answers=True)[rows.episode, 0]
    strict = run.episodes.tokens[rows.episode] - rows.tokens
    own = np.array([run.episode(int(e)).steps[1].turn_tokens for e in rows.episode])
    np.testing.assert_array_equal(loose - strict, own)
    assert (own > 0).all()


def test_billing_decides_how_the_gates_are_weighed(run: Run) -> None:
    quick = LogisticFitter(strengths=(1e-2,), folds=3)
    gates = ["action:1", "action:2"]
    plain = fit_cascade(run, keep="0.8", gates=gates, fitter=quick, method="empirical")
    api = fit_cascade(run, keep="0.8", gates=gates, fitter=quick, method="empirical", billing="api")
    assert (plain.cascade.calibration["billing"], api.cascade.calibration["billing"]) == ("tokens", "api")
    assert api.calibration.seen.saved["tokens"].total > plain.calibration.seen.saved["tokens"].total


def test_unknown_billing_is_refused() -> None:
    assert check_billing("api") == "api"
    with pytest.raises(UsageError, match="billing is 'cash': give tokens"):
        check_billing("cash")
