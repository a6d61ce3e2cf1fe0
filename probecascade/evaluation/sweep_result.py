"""What a sweep found: rows of plain JSON values, out-of-fold scores, and the folder that keeps both."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from probecascade.errors import StoreError

Row = dict[str, Any]

METRICS = ("auroc", "auprc", "brier", "ece", "caught_at_keep", "pair_accuracy")
"""What is measured of every column of scores, in the order in which it is shown."""

FORMAT = 1
_TEXT, _ARRAYS = "sweep.json", "scores.safetensors"
_ARRAY_FIELDS = ("scores", "baseline_scores", "fold")


@dataclass(frozen=True, eq=False)
class SweepResult:
    """Every layer, checkpoint and probe of a run, measured on shared folds, beside the baselines.

    Rows are dicts of JSON values. In `cells`, `baselines` and `selected` each of METRICS is an interval
    {value, low, high, n, groups} (value, low and high None where it does not exist; `pair_accuracy` also has
    `n_pairs`). In `cells` and `selected`, `above_chance` says whether the AUROC exceeds one half at a level that
    holds over all rows of the sweep; `within_above_chance` of `selected`, whether the pair accuracy does (None where
    too few groups hold both outcomes).

    run: folder. episodes, groups, failed: labelled ones in the run. folds, seed, confidence, keep: as asked.
    checkpoints, layers, probes: what was swept, in order. skipped: checkpoints left out, with n and the reason.
    absent: baselines that could not be had, {name, checkpoint, reason}. own_folds: checkpoints with folds of their
    own, because a shared one lacks a class there.
    cells: {checkpoint, layer, probe, n, failed, closing} and metrics. baselines: {checkpoint, name} and metrics.
    selected: {checkpoint, n, failed, closing, probe, chosen, chosen_probes} and metrics: layer and probe chosen
    anew without each scored fold, `chosen` counts the folds by layer; `gains` by baseline: the paired
    difference of `auroc` and `pair_accuracy`; `selectivity`: AUROC less that of the same probe on shuffled labels.
    verdicts: what it comes to, in sentences.

    scores: by checkpoint, (n_episodes,) float64 in the order of the run: out-of-fold P(failure) of the selected
    probe, NaN where the episode is not there or has no label. baseline_scores: by name and checkpoint, likewise
    (of `random` and `shuffled` the first draw). fold: by checkpoint, (n_episodes,) int64, -1 where not there.
    """

    run: str
    episodes: int
    groups: int
    failed: int
    folds: int
    seed: int
    confidence: float
    keep: float
    checkpoints: list[str]
    layers: list[int]
    probes: list[str]
    skipped: list[Row]
    absent: list[Row]
    own_folds: list[str]
    cells: list[Row]
    baselines: list[Row]
    selected: list[Row]
    verdicts: list[str]
    scores: Mapping[str, NDArray[np.float64]]
    baseline_scores: Mapping[str, Mapping[str, NDArray[np.float64]]]
    fold: Mapping[str, NDArray[np.int64]]

    def record(self) -> Row:
        """All but the arrays, as JSON values."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name not in _ARRAY_FIELDS}

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write sweep.json and scores.safetensors into a new folder, whole or not at all. StoreError if it exists."""
        path = Path(folder)
        check_new(path)
        text = json.dumps({"format": FORMAT, **self.record()}, indent=2, ensure_ascii=False, allow_nan=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
        try:
            (draft / _TEXT).write_text(text + "\n", encoding="utf-8")
            (draft / _ARRAYS).write_bytes(save_arrays(dict(self._named_arrays())))
            draft.chmod(path.parent.stat().st_mode & 0o777)
            draft.rename(path)
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _named_arrays(self) -> Iterator[tuple[str, NDArray[Any]]]:
        for checkpoint, values in self.scores.items():
            yield f"scores/{checkpoint}", values
        for name, by_checkpoint in self.baseline_scores.items():
            for checkpoint, values in by_checkpoint.items():
                yield f"baseline_scores/{name}/{checkpoint}", values
        for checkpoint, folds in self.fold.items():
            yield f"fold/{checkpoint}", folds

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """The sweep that `save` wrote there. StoreError names a file that is absent, damaged or too new."""
        path = Path(folder)
        if not (path / _TEXT).is_file():
            raise StoreError(f"there is no sweep at {str(path)!r}: give a folder that `probecascade sweep -o` made.")
        try:
            record = json.loads((path / _TEXT).read_text(encoding="utf-8"))
            version = int(record.pop("format"))
            if version > FORMAT:
                raise StoreError(f"{str(path)!r} has format {version}, newer than {FORMAT}: update probecascade.")
            return cls(**record, **_nested(load_arrays((path / _ARRAYS).read_bytes()), record["checkpoints"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
            raise StoreError(
                f"{str(path)!r} holds a damaged sweep ({type(error).__name__}: {error}): sweep the run again."
            ) from error


def check_new(path: Path) -> None:
    """StoreError if something is there already, for a result is never put in the place of another; or nothing can be.

    So that this is known before the work, not after it.
    """
    if path.exists() or path.is_symlink():
        raise StoreError(f"{str(path)!r} exists already: choose another place.")
    above = next(parent for parent in path.absolute().parents if parent.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        why = "may not be written to" if above.is_dir() else "is a file"
        raise StoreError(f"{str(path)!r} cannot be made, since {str(above)!r} {why}: choose another place.")


def _nested(named: Mapping[str, NDArray[Any]], checkpoints: Sequence[str]) -> dict[str, Any]:
    """Arrays by field and by the names below it, from names such as `baseline_scores/surface/action:1`.

    In the order of the checkpoints, which the file does not keep.
    """
    arrays: dict[str, dict[str, Any]] = {name: {} for name in _ARRAY_FIELDS}
    place_of = {name: place for place, name in enumerate(checkpoints)}
    for key, values in sorted(named.items(), key=lambda item: place_of[item[0].rsplit("/", 1)[1]]):
        kind, *place = key.split("/")
        held = arrays[kind]
        for name in place[:-1]:
            held = held.setdefault(name, {})
        held[place[-1]] = values
    return arrays
