from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from probecascade.episode import SIGNALS
from probecascade.probes import SURFACE, LogisticFitter, auroc, fit_surface


def signals(n: int, seed: int = 0) -> NDArray[np.float32]:
    """Columns of the kinds that episodes bring: counts, lengths, log-probabilities, and a constant round."""
    rng = np.random.default_rng(seed)
    made = {
        "tokens_so_far": rng.integers(50, 400, size=n),
        "round": np.full(n, 2),
        "turn_tokens": rng.integers(10, 60, size=n),
        "logprob_mean": -rng.exponential(0.4, size=n),
        "logprob_min": -rng.exponential(3.0, size=n),
        "entropy_mean": rng.exponential(0.5, size=n),
        "failed_actions": rng.poisson(0.8, size=n),
        "repeated_actions": rng.poisson(0.4, size=n),
        "not_found": rng.poisson(0.6, size=n),
    }
    return np.stack([made[name] for name in SIGNALS], axis=1).astype(np.float32)


def test_surface_columns_are_signals() -> None:
    assert set(SURFACE) <= set(SIGNALS)
    assert len(set(SURFACE)) == len(SURFACE)


def test_every_surface_signal_is_used_where_it_tells() -> None:
    rng = np.random.default_rng(1)
    rows = signals(300)
    for name in SURFACE:
        if name == "round":
            continue
        column = rows[:, SIGNALS.index(name)]
        failed = column + 0.3 * column.std() * rng.normal(size=300) > column.mean()
        assert fit_surface(rows, failed, np.arange(300), LogisticFitter()).auroc > 0.8, name


def test_the_fitted_probe_scores_signals_and_ignores_states() -> None:
    rows = signals(200)
    failed = rows[:, SIGNALS.index("failed_actions")] > 0
    fitted = fit_surface(rows, failed, np.arange(200), LogisticFitter())
    assert fitted.probe.uses == "signals"
    assert fitted.probe.columns == SURFACE
    scores = fitted.probe.score(np.zeros((200, 3)), rows)
    assert auroc(scores, failed) > 0.99
    alone = np.concatenate([fitted.probe.score(None, rows[i : i + 1]) for i in range(200)])
    assert alone.tobytes() == scores.tobytes()


def test_it_finds_an_effect_that_bends_where_a_plain_linear_model_does_not() -> None:
    """Both very short and very long turns fail: order alone says nothing."""
    rng = np.random.default_rng(2)
    rows = signals(600)
    turn = rng.exponential(30.0, size=600).astype(np.float32)
    rows[:, SIGNALS.index("turn_tokens")] = turn
    failed = (turn < np.quantile(turn, 0.25)) | (turn > np.quantile(turn, 0.75))
    groups = np.arange(600)
    plain = LogisticFitter().fit(rows, failed, groups, columns=SURFACE)
    assert fit_surface(rows, failed, groups, LogisticFitter()).auroc > plain.auroc + 0.1


def test_uninformative_signals_give_chance() -> None:
    rng = np.random.default_rng(3)
    found = [
        fit_surface(signals(200, seed), rng.random(200) < 0.5, np.arange(200), LogisticFitter()).auroc
        for seed in range(10)
    ]
    assert abs(np.mean(found) - 0.5) < 0.04
