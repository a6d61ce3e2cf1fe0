"""Episodes that were played here, as the study's file holds them."""

from __future__ import annotations

from typing import Any

from probecascade.episode import Episode, transcript_text
from probecascade.evaluation.judged_useless.episodes import natural
from probecascade.policies.judged import EvidenceLog, evidence_log, judges_of


def played_record(episode: Episode, regime: str, condition: str, judge: str, model: str) -> dict[str, Any]:
    """One line of a file of episodes, as JSON values; `verdicts` are those of the judge of that name.

    Beside what `read_study` reads there is what the episode cost: `tokens` generated and observed, `side_tokens` of
    side questions, `seconds`; and how it ended, `transcript` included. Of one task under several conditions, shared
    work is counted whole in each.
    """
    logs = {name: evidence_log(episode, name) for name in {*judges_of(episode), judge}}
    log = logs[judge]
    decision = episode.decision
    return {
        "question_id": episode.task_id,
        "regime": regime,
        "condition": condition,
        "model": model,
        "judge": judge,
        "verdicts": [_said(word) for word in log.verdicts],
        "actions": [step.action or "invalid" for step in episode.steps],
        "success": episode.outcome == "success",
        **({} if natural(regime) else {"injected": list(log.injected)}),
        "judges": {name: [_said(word) for word in logs[name].verdicts] for name in judges_of(episode) if name != judge},
        **_beliefs(log),
        "scores": {name: [_number(s) for s in logs[name].scores] for name in judges_of(episode)},
        "outcome": episode.outcome,
        "reason": episode.reason,
        "reward": episode.reward,
        "stopped": "" if decision is None else decision.reason,
        "group": episode.group,
        "seed": episode.seed,
        "tokens": episode.tokens,
        "side_tokens": episode.side_tokens,
        "seconds": round(episode.seconds, 3),
        "transcript": transcript_text(episode.steps),
    }


def _beliefs(log: EvidenceLog) -> dict[str, Any]:
    said = {"continuing": [_number(p) for p in log.continuing], "answering": [_number(p) for p in log.answering]}
    return {"beliefs": said} if any(p is not None for values in said.values() for p in values) else {}


def _said(word: str) -> str:
    return "" if word == "NONE" else word


def _number(score: float) -> float | None:
    return None if score != score else round(score, 6)
