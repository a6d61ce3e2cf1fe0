"""What a cascade would have done to the recorded episodes of a run: caught, kept and saved."""

from __future__ import annotations

from collections import Counter
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from probecascade.errors import DataError, NothingToDoError
from probecascade.intervals import DEFAULT, Resampling
from probecascade.policies import Cascade, Coin, GateTable, score_run
from probecascade.policies.billing import Accounts, check_billing
from probecascade.policies.explore import explored_episodes, stopped_episodes
from probecascade.store import Run
from probecascade.thresholds import Backtest, Spending, backtest
from probecascade.thresholds.promise import counted

BoolArray = NDArray[np.bool_]


def backtest_run(
    cascade: Cascade,
    run: Run,
    split: Literal["fit", "calibrate", "test", "all"] = "test",
    *,
    force: bool = False,
    billing: str = "tokens",
    explored: bool = False,
    resampling: Resampling = DEFAULT,
    scored: GateTable | None = None,
) -> Backtest:
    """What `cascade` would have done to the labelled episodes of a stored run.

    The split is by the cascade's own seed and shares; "all" takes every episode. With "test" and "all",
    groups that fitted the cascade are refused, so that "all" is for fresh runs. Savings are counted strictly after
    the gates; "whole rounds" is the looser convention of published code, for comparison, where the run tells of its
    rounds. `billing="api"` adds
    "billed", in which every call pays for its whole prompt again.
    `explored` keeps only those that the run's exploration let run to their end, a fair sample where a policy stopped
    others. `scored`: what `score_run` gives for this cascade and run, where that is known already.
    CascadeError if the run was made with another model (unless `force`), NothingToDoError if no labelled episode is
    left, DataError on overlap.
    """
    cascade.check_fits(run.header, force=force)
    chosen = chosen_episodes(cascade, run, split, explored=explored)
    table = scored or score_run(run, cascade.gates, gate_answers=cascade.gate_answers)
    episodes = run.episodes
    columns = {
        "tokens": (table.tokens_after, episodes.tokens),
        "calls": (table.calls_after, episodes.calls),
        "seconds": (table.seconds_after, episodes.seconds),
    }
    names, accounts = [gate.checkpoint for gate in cascade.gates], Accounts(run)
    if check_billing(billing) == "api":
        columns["billed"] = (accounts.billed_after(names, gate_answers=cascade.gate_answers), accounts.billed)
    if accounts.known:
        columns["whole rounds"] = (accounts.from_round(names, gate_answers=cascade.gate_answers), episodes.tokens)
    return backtest(
        table.scores[chosen],
        cascade.thresholds,
        episodes.failed[chosen],
        {name: Spending(after[chosen], total[chosen].astype(np.float64)) for name, (after, total) in columns.items()},
        groups=episodes.group[chosen],
        final=table.final[chosen],
        resampling=resampling,
    )


def chosen_episodes(cascade: Cascade, run: Run, split: str, *, explored: bool = False) -> BoolArray:
    """(n_episodes,): the labelled episodes of a split, by the cascade's own seed and shares; "all" is all of them.

    `explored`: only those that the run's exploration chose. NothingToDoError if there is none; DataError where the
    cascade records no split, or was fitted on what it is to be judged by, or nothing was explored.
    """
    episodes = run.episodes
    chosen: BoolArray = episodes.labelled & _of_split(cascade, run, split)
    if explored:
        coin = Coin.recorded(run.header)
        if coin is None:
            raise DataError("nothing was explored in this run: judge all of it, or record one with `run --explore`.")
        chosen &= explored_episodes(run, coin)
    if not chosen.any():
        raise NothingToDoError(f"the {split} episodes of this run hold no labelled one: extract more of them.")
    if split in ("test", "all"):
        seen = cascade.overlap(episodes.group[chosen].tolist())
        if seen:
            raise DataError(
                f"{len(seen)} groups of these episodes (first: {seen[0]!r}) fitted the cascade, so its "
                "numbers on them would flatter it: choose split 'test' of that run, or fresh groups."
            )
    return chosen


def left_out(cascade: Cascade, run: Run, split: str = "test", *, explored: bool = False) -> str:
    """A note on the episodes of a split that have no label and count for nothing; empty where all count.

    Stopped ones are no random sample: what is left are those that no gate fired on, on which a cascade looks as if it
    caught less and kept more than it does, unless exploration chose them beforehand.
    """
    of = _of_split(cascade, run, split)
    coin = Coin.recorded(run.header)
    if explored and coin is not None:
        of &= explored_episodes(run, coin)
    without = Counter(run.episodes.outcome[of & ~run.episodes.labelled].tolist())
    if not without:
        return ""
    kinds = ", ".join(f"{n} {outcome}" for outcome, n in sorted(without.items()))
    what = f"{without.total()} of {counted(int(of.sum()), 'episode')} have no label and are left out ({kinds})."
    if not (of & stopped_episodes(run)).any():
        return what
    what += (
        " Those that a policy stopped are no random sample, so what is caught and kept among the rest is biased: it is"
        " not what the cascade does to all episodes."
    )
    if coin is None:
        return what + " Record a run with --shadow, or with --explore, to judge it."
    n = int((of & run.episodes.labelled & explored_episodes(run, coin)).sum())
    return what + f" Judge it by the {n} that exploration let run to their end: add --explored."


def _of_split(cascade: Cascade, run: Run, split: str) -> BoolArray:
    """(n_episodes,): the episodes of a split, labelled or not; "all" is all of them."""
    if split == "all":
        return np.ones(len(run), dtype=np.bool_)
    if not cascade.provenance.get("split"):
        raise DataError(
            "the cascade records no split, so its test episodes are unknown: "
            "back-test it on a fresh run with split 'all'."
        )
    chosen: BoolArray = cascade.split_of(run.episodes.group.tolist()) == split
    return chosen
