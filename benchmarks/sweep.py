"""How fast the sweep fits every layer of every checkpoint, beside a loop of scikit-learn over the same folds.

Both sides get the same simulated states, folds and strengths in one process and take turns checkpoint by
checkpoint. `benchmarks/README.md` says what each does.

    python benchmarks/sweep.py --json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
from machine import machine, positive
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from calibrate import PeakMemory, timed
from probecascade.errors import ProbecascadeError
from probecascade.probes import auroc, grouped_folds
from probecascade.probes.batched import sweep_layers
from probecascade.probes.crossval import Fold
from probecascade.probes.fit import STRENGTHS

MOST_DIFFERENCE = 0.003
_PER_GROUP = 2

Floats = NDArray[np.float64]
States = Mapping[int, NDArray[np.float32]]

# What is fitted -------------------------------------------------------------------------------------------------------


def labels(n: int, seed: int) -> tuple[NDArray[np.bool_], NDArray[np.intp]]:
    """Whether each episode failed, three in five of them, and its group, (n,) each."""
    return np.random.default_rng(seed).random(n) < 0.6, np.arange(n) // _PER_GROUP


def states(failed: NDArray[np.bool_], n_layers: int, d: int, seed: Sequence[int]) -> States:
    """Of each layer (n, d): normal along random axes, with a planted direction that is clearest in the middle.

    The variance of the k-th axis is exp(-k / (0.19 d)) / k, which is how it falls in the residual stream of
    SmolLM2-135M (d = 576). The direction leans on the axes 3 to 30.
    """
    rng = np.random.default_rng(list(seed))
    axis = np.arange(1, d + 1)
    spread = np.sqrt(np.exp(-axis / (0.19 * d)) / axis)
    direction = np.where((axis >= 3) & (axis <= 30), rng.choice((-1.0, 1.0), size=d), 0.0)
    made = {}
    for layer in range(n_layers):
        clear = 0.5 * np.sin(np.pi * (layer + 0.5) / n_layers)
        along = rng.normal(size=(len(failed), d)) + clear * np.where(failed, 0.5, -0.5)[:, None] * direction
        turn, _ = np.linalg.qr(rng.normal(size=(d, d)))
        made[layer] = ((along * spread) @ turn + rng.normal(size=d)).astype(np.float32)
    return made


# The two sides --------------------------------------------------------------------------------------------------------


def swept(
    made: States,
    failed: NDArray[np.bool_],
    groups: NDArray[np.intp],
    folds: list[Fold],
    inner_folds: int | None,
    threads: int,
) -> Floats:
    """Out-of-fold P(failure) of every layer, (n_layers, n), by the package."""
    found = sweep_layers(
        made.__getitem__, list(made), failed, groups, folds=folds, inner_folds=inner_folds, threads=threads
    )
    return found.scores


def looped(
    made: States,
    failed: NDArray[np.bool_],
    groups: NDArray[np.intp],
    folds: list[Fold],
    inner_folds: int | None,
    dtype: str,
) -> Floats:
    """The same by scikit-learn, fit by fit, with states of this dtype.

    As the package does, it takes the strength with the least log-loss over all folds, or in each fold the one
    with the least over the inner folds of its training rows.
    """
    scores = np.empty((len(made), len(failed)))
    for place, stored in enumerate(made.values()):
        rows = stored.astype(dtype)
        logits = loop_over_folds(rows, failed, folds)
        best = [best_strength(logits, failed)] * len(folds)
        if inner_folds is not None:
            best = [
                best_strength(loop_over_folds(rows[train], failed[train], inner), failed[train])
                for train, _ in folds
                for inner in [grouped_folds(failed[train], groups[train], inner_folds, 0)]
            ]
        for (_, test), k in zip(folds, best, strict=True):
            scores[place, test] = logits[k, test]
    return scores


def loop_over_folds(rows: NDArray[Any], failed: NDArray[np.bool_], folds: list[Fold]) -> Floats:
    """Out-of-fold logits at every strength, (n_strengths, n), each fold's at the overall log-odds of failure.

    Each fold is scaled once for all strengths.
    """
    logits = np.empty((len(STRENGTHS), len(failed)))
    for train, test in folds:
        scaler = StandardScaler().fit(rows[train])
        features, unseen = scaler.transform(rows[train]), scaler.transform(rows[test])
        shift = _log_odds(failed) - _log_odds(failed[train])
        for k, strength in enumerate(STRENGTHS):
            model = LogisticRegression(C=strength, max_iter=10_000).fit(features, failed[train])
            logits[k, test] = model.decision_function(unseen) + shift
    return logits


def best_strength(logits: Floats, failed: NDArray[np.bool_]) -> int:
    """Which strength has the least log-loss."""
    return int(np.argmin(np.logaddexp(0.0, np.where(failed, -logits, logits)).mean(axis=1)))


def _log_odds(failed: NDArray[np.bool_]) -> float:
    return float(np.log(failed.mean() / (1.0 - failed.mean())))


# What is measured -----------------------------------------------------------------------------------------------------


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of both sides, how far their AUROCs differ, and the memory of all."""
    failed, groups = labels(options.episodes, options.seed)
    folds = grouped_folds(failed, groups, options.folds, options.seed)
    seconds = {"sweep": 0.0, "sklearn": 0.0}
    values: dict[str, list[float]] = {name: [] for name in seconds}
    with PeakMemory() as memory:
        for checkpoint in tqdm(range(options.checkpoints), unit="checkpoint", file=sys.stderr, disable=None):
            made = states(failed, options.layers, options.dims, (options.seed, checkpoint))
            runs = [take_turns(made, failed, groups, folds, options) for _ in range(options.repeats)]
            for name in seconds:
                seconds[name] += statistics.median(run[name][0] for run in runs)
                values[name] += [auroc(scores, failed) for scores in runs[0][name][1]]
    return {
        "speedup_vs_sklearn": seconds["sklearn"] / seconds["sweep"],
        "auroc_difference": float(np.abs(np.subtract(values["sweep"], values["sklearn"])).max()),
        "gigabytes": memory.growth / 1e9,
        "sweep_seconds": seconds["sweep"],
        "sklearn_seconds": seconds["sklearn"],
        "auroc_lowest": min(values["sweep"]),
        "auroc_highest": max(values["sweep"]),
    }


def take_turns(
    made: States,
    failed: NDArray[np.bool_],
    groups: NDArray[np.intp],
    folds: list[Fold],
    options: argparse.Namespace,
) -> dict[str, tuple[float, Any]]:
    """Seconds and scores of both sides on one checkpoint."""
    inner = options.inner_folds
    return {
        "sweep": timed(lambda: swept(made, failed, groups, folds, inner, options.threads)),
        "sklearn": timed(lambda: looped(made, failed, groups, folds, inner, options.dtype)),
    }


# The command ----------------------------------------------------------------------------------------------------------


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    add = parser.add_argument
    add("--json", action="store_true", help="print one JSON object on one line")
    add("--layers", type=positive, default=30, help="layers of a checkpoint (default: 30)")
    add("--checkpoints", type=positive, default=6, help="checkpoints (default: 6)")
    add("--episodes", type=positive, default=1000, help="episodes (default: 1000)")
    add("--dims", type=positive, default=576, help="width of a state (default: 576)")
    add("--folds", type=positive, default=5, help="folds of whole groups (default: 5)")
    add("--inner-folds", type=positive, help="choose strengths within each fold over so many (default: on the folds)")
    add("--repeats", type=positive, default=1, help="runs of each side on each checkpoint (default: 1)")
    add("--threads", type=positive, default=1, help="threads of either side (default: 1)")
    add(
        "--dtype", choices=("float32", "float64"), default="float32", help="of scikit-learn's states (default: float32)"
    )
    add("--seed", type=int, default=0)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. 1 if the AUROCs differ by too much, 2 on bad input."""
    options = read_options(arguments)
    given = ("layers", "checkpoints", "episodes", "dims", "folds", "inner_folds", "threads", "dtype")
    settings = {name: getattr(options, name) for name in given}
    ran_on = machine() | {"scikit-learn": version("scikit-learn"), "strengths": len(STRENGTHS)} | settings
    try:
        with threadpool_limits(options.threads):
            report = measure(options) | {"ran_on": ran_on}
    except ProbecascadeError as error:
        print(f"benchmarks/sweep.py: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps(report, indent=None if options.json else 2))
    return int(report["auroc_difference"] > MOST_DIFFERENCE)


if __name__ == "__main__":
    raise SystemExit(main())
