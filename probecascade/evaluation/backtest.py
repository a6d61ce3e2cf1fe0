"""What a cascade would have done to the recorded episodes of a run: caught, kept and saved."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from probecascade.errors import DataError, NothingToDoError
from probecascade.intervals import DEFAULT, Resampling
from probecascade.policies import Cascade, score_run
from probecascade.policies.billing import Accounts, check_billing
from probecascade.store import Run, assign_split
from probecascade.thresholds import Backtest, Spending, backtest

BoolArray = NDArray[np.bool_]


def backtest_run(
    cascade: Cascade,
    run: Run,
    split: Literal["fit", "calibrate", "test", "all"] = "test",
    *,
    force: bool = False,
    billing: str = "tokens",
    resampling: Resampling = DEFAULT,
) -> Backtest:
    """What `cascade` would have done to the labelled episodes of a stored run.

    The split is by the cascade's own seed and shares; "all" takes every episode. With "test" and "all",
    groups that fitted the cascade are refused, so that "all" is for fresh runs. Savings are counted strictly after
    the gates; "whole rounds" is the looser convention of published code, for comparison. `billing="api"` adds
    "billed", in which every call pays for its whole prompt again. CascadeError if the run was
    made with another model (unless `force`), NothingToDoError if no labelled episode is left, DataError on
    overlap.
    """
    cascade.check_fits(run.header, force=force)
    chosen = chosen_episodes(cascade, run, split)
    table = score_run(run, cascade.gates, gate_answers=cascade.gate_answers)
    episodes = run.episodes
    columns = {
        "tokens": (table.tokens_after, episodes.tokens),
        "calls": (table.calls_after, episodes.calls),
        "seconds": (table.seconds_after, episodes.seconds),
    }
    names, accounts = [gate.checkpoint for gate in cascade.gates], Accounts(run)
    if check_billing(billing) == "api":
        columns["billed"] = (accounts.billed_after(names, gate_answers=cascade.gate_answers), accounts.billed)
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


def chosen_episodes(cascade: Cascade, run: Run, split: str) -> BoolArray:
    """(n_episodes,): the labelled episodes of a split, by the cascade's own seed and shares; "all" is all of them.

    NothingToDoError if there is none; DataError where the cascade records no split, or was fitted on what it is to
    be judged by.
    """
    episodes = run.episodes
    chosen: BoolArray = episodes.labelled.copy()
    if split != "all":
        settings = cascade.provenance.get("split", {})
        if not settings:
            raise DataError(
                "the cascade records no split, so its test episodes are unknown: "
                "back-test it on a fresh run with split 'all'."
            )
        names = assign_split(episodes.group.tolist(), seed=settings["seed"], shares=tuple(settings["shares"]))
        chosen &= names == split
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
