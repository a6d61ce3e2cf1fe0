"""What a probe has to beat: scores from less than the hidden state, on the same episodes in the same folds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from probecascade.errors import UsageError
from probecascade.evaluation.crossfit import Fold, LayerScores, Reached, Read, Selection, score_layers, select
from probecascade.probes import SURFACE, grouped_folds
from probecascade.probes.linear import signal_features
from probecascade.probes.solver import log_odds
from probecascade.store import Run

Array = NDArray[np.float64]
Labels = NDArray[np.bool_]

BASELINES = ("majority", "prompt", "surface", "tfidf", "embedding", "random", "shuffled")
"""In the order in which they are shown."""

IN_WORDS: Mapping[str, str] = {
    "majority": "the share of failures",
    "prompt": "the prompt-only probe",
    "surface": "the surface baseline",
    "tfidf": "the text baseline (TF-IDF)",
    "embedding": "the embedding layer",
    "random": "a random direction",
    "shuffled": "the same probe on shuffled labels",
}

_DIRECTIONS, _SHUFFLES = 10, 5
_TEXT_STRENGTHS = (0.1, 1.0, 10.0, 100.0)
_FREQUENT = 2  # documents that a term must occur in
_INNER = 3


@dataclass(frozen=True, eq=False)
class Comparison:
    """What a baseline may look at: a checkpoint, its folds, and what was found and chosen there.

    known_prompts: scores of the prompt-only probe by `same_rows`, shared by all checkpoints and added to.
    """

    run: Run
    reached: Reached
    folds: Sequence[Fold]
    layers: tuple[int, ...]
    found: Mapping[str, LayerScores]
    selection: Selection
    seed: int
    known_prompts: dict[bytes, Array]

    @property
    def same_rows(self) -> bytes:
        """What episodes and folds these are: scores from one earlier state are the same wherever these are."""
        return self.reached.episode.tobytes() + b"".join(test.tobytes() for _, test in self.folds)


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """Scores (n,) of a baseline and the labels that they are scores of."""

    scores: Array
    failed: Labels


def check_baselines(names: Sequence[str]) -> None:
    """UsageError for a baseline that there is not, or one named twice."""
    unknown = [name for name in names if name not in BASELINES]
    if unknown or len(set(names)) < len(names):
        raise UsageError(
            f"the baselines {', '.join(names)} were given: name some of {', '.join(BASELINES)}, each once."
        )


def baseline(name: str, at: Comparison) -> list[Draw] | str:
    """The baseline's draws, of which the mean counts (one, but for what is random), or why it cannot be had."""
    made = _MAKERS[name](at)
    if isinstance(made, str):
        return made
    return made if isinstance(made, list) else [Draw(made, at.reached.failed)]


def _majority(at: Comparison) -> Array:
    return np.full(len(at.reached), float(at.reached.failed.mean()))


def _prompt(at: Comparison) -> Array | str:
    """The state before the agent's first word, its layer chosen as the probe's is."""
    if at.reached.name == "prompt":
        if "logistic" in at.found:
            at.known_prompts[at.same_rows] = select({"logistic": at.found["logistic"]}, at.folds).scores
        return "this is the prompt itself"
    read = at.reached.states_at(at.run, "prompt")
    if read is None:
        return "the run does not hold the state at `prompt` of all these episodes"
    reached = at.reached
    if at.same_rows not in at.known_prompts:
        found = score_layers("logistic", read, at.layers, reached.failed, reached.codes, at.folds, at.seed)
        at.known_prompts[at.same_rows] = select({"logistic": found}, at.folds).scores
    return at.known_prompts[at.same_rows]


def _surface(at: Comparison) -> Array:
    signals = at.run.rows(at.reached.name).signals[at.reached.use]
    features = signal_features(signals, SURFACE, roots=True)
    return _first(_logistic(at, lambda _: features))


def _embedding(at: Comparison) -> Array | str:
    if 0 not in at.run.layers:
        return "layer 0 is not stored"
    stored = at.found.get("logistic")
    if stored is not None and 0 in stored.layers:
        return _first(stored.scores[stored.layers.index(0) :])
    return _first(_logistic(at, at.reached.states(at.run)))


def _random(at: Comparison) -> list[Draw]:
    """One number per episode, along directions drawn blindly in the chosen layer's standardised states."""
    states = at.reached.states(at.run)(at.selection.layer).astype(np.float64)
    spread = states.std(axis=0)
    directions = np.random.default_rng(at.seed).normal(size=(states.shape[1], _DIRECTIONS))
    directions /= np.where(spread > 0, spread, 1.0)[:, None]
    along = (states - states.mean(axis=0)) @ directions
    scores = _logistic(at, lambda k: along[:, [k]], range(_DIRECTIONS))
    return [Draw(row, at.reached.failed) for row in scores]


def _shuffled(at: Comparison) -> list[Draw]:
    """Hewitt and Liang's control task: the chosen probe and layer, taught labels shuffled within each fold.

    Shuffling within folds leaves every fold its share of failures. A probe that scores well even so would be
    learning the folds and not the labels.
    """
    reached, layer = at.reached, at.selection.layer
    states = reached.states(at.run)(layer)
    draws = []
    for shuffle in range(_SHUFFLES):
        rng = np.random.default_rng([at.seed, shuffle])
        labels = reached.failed.copy()
        for _, test in at.folds:
            labels[test] = rng.permutation(labels[test])
        found = score_layers(at.selection.probe, lambda _: states, [layer], labels, reached.codes, at.folds, at.seed)
        draws.append(Draw(found.scores[0], labels))
    return draws


def _logistic(at: Comparison, read: Read, layers: Sequence[int] = (0,)) -> Array:
    return score_layers("logistic", read, layers, at.reached.failed, at.reached.codes, at.folds, at.seed).scores


def _first(rows: Array) -> Array:
    row: Array = rows[0]
    return row


def _tfidf(at: Comparison) -> Array | str:
    """Words and pairs of words of the transcript so far, weighted by TF-IDF, in an L2 logistic regression.

    Counting is a matter of each text alone and done once; vocabulary, document frequencies and strength come from
    the training rows of each fold.
    """
    from sklearn.feature_extraction.text import CountVectorizer  # here, because it takes a second to import

    texts = at.run.texts(at.reached.name)
    used = [text for text, use in zip(texts, at.reached.use, strict=True) if use]
    if not any(text.strip() for text in used):
        return "nothing has been written yet"
    counts = CountVectorizer(ngram_range=(1, 2), token_pattern=r"(?u)\b\w+\b").fit_transform(used).tocsr()
    failed, codes = at.reached.failed, at.reached.codes
    scores = np.empty(len(failed))
    for train, test in at.folds:
        inner = grouped_folds(failed[train], codes[train], _INNER, at.seed)
        losses = np.zeros(len(_TEXT_STRENGTHS))
        for inner_train, inner_test in inner:
            wanted = failed[train[inner_test]]
            logits = _text_logits(counts, failed, train[inner_train], train[inner_test], _TEXT_STRENGTHS)
            losses += np.logaddexp(0.0, np.where(wanted, -logits, logits)).sum(axis=1)
        best = _TEXT_STRENGTHS[int(np.argmin(losses))]
        shift = log_odds(failed) - log_odds(failed[train])
        scores[test] = expit(_text_logits(counts, failed, train, test, (best,))[0] + shift)
    return scores


def _text_logits(
    counts: Any, failed: Labels, train: NDArray[np.intp], test: NDArray[np.intp], strengths: Sequence[float]
) -> Array:
    """Logits of the test rows of counts (n, n_terms; sparse) at each strength, (n_strengths, n_test)."""
    from sklearn.feature_extraction.text import TfidfTransformer
    from sklearn.linear_model import LogisticRegression

    known = np.asarray((counts[train] > 0).sum(axis=0)).ravel() >= _FREQUENT
    if not known.any():
        return np.full((len(strengths), len(test)), log_odds(failed[train]))
    weighing = TfidfTransformer(sublinear_tf=True).fit(counts[train][:, known])
    rows, others = (weighing.transform(counts[part][:, known]) for part in (train, test))
    fits = [LogisticRegression(C=strength, max_iter=1000).fit(rows, failed[train]) for strength in strengths]
    return np.stack([fit.decision_function(others) for fit in fits])


_MAKERS: Mapping[str, Callable[[Comparison], Array | list[Draw] | str]] = {
    "majority": _majority,
    "prompt": _prompt,
    "surface": _surface,
    "tfidf": _tfidf,
    "embedding": _embedding,
    "random": _random,
    "shuffled": _shuffled,
}
