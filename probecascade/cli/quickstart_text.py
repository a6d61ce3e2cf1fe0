"""What `quickstart` says: its two tables, one aborted episode, and which probe beats nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from probecascade.cli.auroc import CheckpointAuroc
from probecascade.cli.fresh import Row
from probecascade.cli.tables import auroc_text, table, threshold_text, wrapped
from probecascade.episode import Episode
from probecascade.policies import Cascade
from probecascade.probes import Interval

_ROUNDS = 6  # of a transcript that are shown
_WIDTH = 110
_INDENT = "    "  # of a sentence that goes on in the next line


def auroc_report(found: Sequence[CheckpointAuroc]) -> str:
    """The table by checkpoint, and in words where the probe beats its baselines and where it does not."""
    rows = [
        [
            row.checkpoint + (" (last turn)" if row.closing else ""),
            auroc_text(row.probe),
            auroc_text(row.prompt),
            auroc_text(row.surface),
        ]
        for row in found
    ]
    titles = ["AUROC at", "probe on the states", "prompt-only probe", "surface baseline"]
    known = [row for row in found if _above_chance(row)]
    lines = [
        table(titles, rows),
        wrapped(
            "cross-fitted over whole groups, layer and strength chosen inside; 95 % intervals over groups. Scores "
            "of a probe that knows nothing lie somewhat below one half (docs/workbench.md says why).",
            _INDENT,
        ),
        *_at_chance(found),
        *_beaten("surface baseline", {row.checkpoint: row.over_surface for row in known}),
        *_beaten("prompt-only probe", {row.checkpoint: row.over_prompt for row in known if row.checkpoint != "prompt"}),
    ]
    return "\n".join(lines)


def _above_chance(row: CheckpointAuroc) -> bool:
    return row.probe.low > 0.5


def _at_chance(found: Sequence[CheckpointAuroc]) -> list[str]:
    """A sentence for the checkpoints where the probe is not shown to know anything, and so beats nothing."""
    names = [row.checkpoint for row in found if not _above_chance(row)]
    return [wrapped(f"the probe is not shown to be better than chance at {', '.join(names)}", _INDENT)] if names else []


def _beaten(rival: str, gains: Mapping[str, Interval]) -> list[str]:
    """A sentence for the checkpoints where the paired difference lies above 0, and one for the others."""
    lines = []
    for words, wanted in (("beats", True), ("is not shown to beat", False)):
        chosen = [
            f"{name} ({gain.value:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}])"
            for name, gain in gains.items()
            if (gain.low > 0) is wanted
        ]
        if chosen:
            sentence = f"the probe {words} the {rival} at {', '.join(chosen)}"
            lines.append(wrapped(sentence, _INDENT))
    return lines


def policy_report(rows: Sequence[Row]) -> str:
    """One policy per pair of lines: shares with their n, and below them the 95 % intervals."""
    lines: list[list[str]] = []
    for row in rows:
        outcome = row.outcome
        shares = (outcome.success, outcome.caught, outcome.kept, outcome.tokens_saved, outcome.calls_saved)
        cells = [*(_cell(share, 100, " %", 1) for share in shares), _cell(outcome.seconds, 1, " s", 2)]
        lines.append([outcome.name, *(value for value, _ in cells)])
        lines.append(["  run live" if row.live else "  read off the twins", *(interval for _, interval in cells)])
    titles = ["policy", "success", "failures caught", "successes kept", "tokens saved", "calls saved", "per episode"]
    notes = [
        "95 % intervals over groups; caught, kept and saved are counted by the twins: same tasks and seeds, no abort",
        "read off the twins: such a policy reads no hidden state, so the twins determine what it would have done",
    ]
    for row in rows:
        if row.outcome.diverged or row.outcome.unlabelled:
            notes.append(
                f"{row.outcome.name}: left out are {row.outcome.diverged} episodes that diverged from their twins and "
                f"{row.outcome.unlabelled} without a label"
            )
    return "\n".join([table(titles, lines), *notes])


def _cell(interval: Interval, factor: int, unit: str, digits: int) -> tuple[str, str]:
    if not interval.n:
        return "– n=0", ""
    value, low, high = (factor * x for x in (interval.value, interval.low, interval.high))
    return f"{value:.{digits}f}{unit} n={interval.n}", f"[{low:.{digits}f}, {high:.{digits}f}]"


def saves_no_more(probe: Row, surface: Row) -> str | None:
    """A sentence if the probe cascade did not save more tokens than the surface cascade."""
    own, other = probe.outcome.tokens_saved, surface.outcome.tokens_saved
    if own.value > other.value:
        return None
    return (
        f"the {probe.outcome.name} saved no more tokens than the {surface.outcome.name} on these tasks: "
        f"{100 * own.value:.1f} % against {100 * other.value:.1f} %"
    )


def pick_example(live: Sequence[Episode], twins: Sequence[Episode]) -> tuple[Episode, Episode] | None:
    """The aborted episode of a doomed task that passed most gates first, with its twin."""
    by_key = {(twin.task_id, twin.seed): twin for twin in twins}
    pairs = [(episode, by_key[episode.task_id, episode.seed]) for episode in live if episode.outcome == "aborted"]
    doomed = [(episode, twin) for episode, twin in pairs if twin.labelled and twin.failed]
    return max(doomed, key=lambda pair: len(pair[0].attributes["scores"]), default=None)


def transcript(episode: Episode, twin: Episode, cascade: Cascade) -> str:
    """The last rounds of an aborted episode with the score at each gate, and what its twin went on to spend."""
    thresholds = {gate.checkpoint: gate.threshold for gate in cascade.gates}
    scores: Mapping[str, float] = episode.attributes["scores"]
    stop = episode.decision.gate if episode.decision else ""

    def scored(round_: int, after_tool: bool) -> list[str]:
        return [
            f"    {p.name}: P(failure) {scores[p.name]:.3f}, threshold {threshold_text(thresholds[p.name])}"
            + ("  <- aborted here" if p.name == stop else "")
            for p in episode.checkpoints
            if p.round == round_ and p.name in scores and (p.kind == "observation") is after_tool
        ]

    hidden = len(episode.steps) - _ROUNDS
    lines = [f"  ... {hidden} earlier rounds" if hidden > 1 else "  ... 1 earlier round"] if hidden > 0 else []
    for step in episode.steps[-_ROUNDS:]:
        lines += _clipped(f"[{step.round}] {step.text.strip()}")
        lines += scored(step.round, False)
        lines += _clipped(f"Observation: {step.observation}") if step.observation else []
        lines += scored(step.round, True)
    lines.append(
        f"without the abort it went on for {twin.tokens - episode.tokens} tokens and "
        f"{twin.calls - episode.calls} tool calls, and failed ({twin.reason})"
    )
    return "\n".join(lines)


def _clipped(text: str) -> list[str]:
    lines = (line for line in text.splitlines() if line.strip())
    return [f"  {line if len(line) <= _WIDTH else f'{line[: _WIDTH - 1]}…'}" for line in lines]
