"""What would tell a reader how a run ended, and its removal.

A recorded run often carries its own label: "Answer is CORRECT" after the last action, the page that a shop shows
after the purchase, the words with which a game says that it is won. A probe that reads such a text predicts nothing.
Three rules, the same for every run whatever its outcome, so that what is missing tells nothing either:

1. a run ends with its first `finish` action, however it is written; later rounds are dropped;
2. the last round keeps its turn and loses its observation: nothing can be saved after it;
3. a verdict in fixed words is cut out wherever it stands, up to the end of its line.

What the agent itself believes ("the answer is correct, no further actions are needed") is its behaviour and stays.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from probecascade.agents.recorded.records import RecordedStep

FINISH = "finish"
_FINISH = re.compile(r"[\s*`]*(?:action ?\d*:\s*)?finish\s*(?:[\[({:*`]|\Z)", re.IGNORECASE)
_TEXTS = ("text", "thought", "argument", "observation")

# In the words of the environments that write them, capitals included: an agent's own "the answer is correct" differs.
_VERDICTS = (
    r"(?:Observation(?: \d+)?: )?[Ee]pisode finished\W+reward\s*[=:].*",  # ReAct, FireAct
    r"(?:[Aa]nswer|ANSWER)\s+(?:is|IS)\s+(?:IN)?CORRECT\b.*",  # Reflexion, KnowAgent
    r"^(?i:correct answer): .*",  # the log of a Reflexion trial
    r"^-+ ?BEGIN (?:CORRECT|INCORRECT|HALTED) AGENTS ?-+.*",
    r"^Trial summary: .*",
    r"Your score \(min 0\.0, max 1\.0\)[:\s]*[\d.]*",  # WebShop
    r"^Reward Details\b.*",
    r"\*\*\* ?(?:The End|You have won|You have died|You lost!?) ?\*\*\*.*",  # text games
    r"^You (?:won|lost)!.*",
    r"\(total \d+ out of a possible \d+\).*",
    r"^You scored \d+ out of a possible \d+.*",
    r"^STATUS: (?:OK|FAIL|SUCCESS)\b.*",  # Reflexion on ALFWorld
    r"^#+ ?(?:ENVIRONMENT|TRIAL) .*(?:success|fail).*",
    r"\{[^{}\n]*'gt_answer':[^{}\n]*\}",  # what the ReAct notebooks print
    r"\{[^{}\n]*[\"']reward[\"']: ?(?:[\d.]+|[Tt]rue|[Ff]alse)[^{}\n]*\}",  # tau-bench's evaluation
    r"^(?:reward|Reward|REWARD) ?[=:] ?(?:True|False|[\d.]+)\b.*",
    r"^(?:(?i:gold|ground[- ]truth)|Expected)(?i: answer| label)?: .*",
)
# One of these stands in every verdict: looking for them first spares most texts the patterns.
_HINTS = (
    *("eward", "REWARD", "CORRECT", "orrect answer", "orrect Answer", "HALTED", "Trial summary", "Your score", "***"),
    *("You won!", "You lost!", "out of a possible", "STATUS", "ENVIRONMENT", "TRIAL", "gt_answer", "Expected"),
    *("Gold", "gold", "GOLD", "Ground", "ground", "GROUND"),
)
_VERDICT = re.compile("|".join(f"(?:{pattern})" for pattern in _VERDICTS), re.MULTILINE)
_TOLD = r"(?:[Aa]nswer|ANSWER)\s+(?:is|IS)"
_REWARD = r"(?:reward(?: =|[\"']:)|finished\W+reward\s*[=:])"
_SAYS_SUCCESS = re.compile(
    rf"{_TOLD}\s+CORRECT\b|{_REWARD} ?(?:1(?:\.0+)?\b|[Tt]rue)|^STATUS: (?:OK|SUCCESS)|\* ?You have won"
    r"|^You won!|max 1\.0\)[:\s]*1\.0",
    re.MULTILINE,
)
_SAYS_FAILURE = re.compile(
    rf"{_TOLD}\s+INCORRECT\b|{_REWARD} ?(?:0(?:\.\d+)?\b|[Ff]alse)|^STATUS: FAIL|\* ?You (?:have died|lost)"
    r"|^You lost!|max 1\.0\)[:\s]*0\.",
    re.MULTILINE,
)
# Reflections open so, also right behind a question, and go on until a blank line or the question.
_REFLECTION = re.compile(
    r"(?:You have attempted to answer (?:the )?following question before and failed"
    r"|^(?:Reflections?:|Your memory for the task below:))(?:.|\n)*?(?=\n[ \t]*\n|^Question|\Z)",
    re.MULTILINE,
)


def verdicts(text: str) -> list[str]:
    """Every verdict in fixed words that stands in the text, as it stands there."""
    if not any(hint in text for hint in _HINTS):
        return []
    return [match.group().strip() for match in _VERDICT.finditer(text)]


def without_verdicts(text: str) -> str:
    """The text with the verdicts cut out, and itself where it holds none."""
    return _VERDICT.sub("", text).strip() if verdicts(text) else text


def without_reflections(text: str) -> str:
    """The text without what an agent was told of its earlier, failed trials at the same task."""
    cut, found = _REFLECTION.subn("", text)
    return cut.strip() if found else text


def told_failed(text: str) -> bool | None:
    """Whether the last verdict in the text says that the run failed; None where there is none."""
    success = [match.start() for match in _SAYS_SUCCESS.finditer(text)]
    failure = [match.start() for match in _SAYS_FAILURE.finditer(text)]
    if not success and not failure:
        return None
    return max(failure, default=-1) > max(success, default=-1)


def _finishes(step: RecordedStep) -> bool:
    """Whether the action is `finish`, also in a spelling that is no call: Finish(x), **Finish[x]**, Finish: x."""
    return step.action == FINISH or _FINISH.match(step.action or step.argument) is not None


@dataclasses.dataclass(frozen=True, slots=True)
class Closed:
    """A run's rounds without what tells its outcome, and what was dropped to get there."""

    steps: tuple[RecordedStep, ...]
    after_finish: int  # rounds that followed the first finish
    observation: bool  # whether the last round had an observation
    verdicts: tuple[str, ...]  # that stood anywhere else


def closed(steps: Sequence[RecordedStep]) -> Closed:
    """Apply the three rules. The last round of every run has an empty observation of kind `finish`."""
    ends = next((i for i, step in enumerate(steps) if _finishes(step)), len(steps) - 1)
    kept = list(steps[: ends + 1])
    if not kept:
        return Closed((), 0, False, ())
    had = bool(kept[-1].observation.strip())
    kept[-1] = dataclasses.replace(kept[-1], observation="", observation_kind=FINISH)
    found: list[str] = []
    # Most runs hold none at all, which one look at the whole run tells.
    if verdicts("\n".join(piece for step in kept for piece in (step.text, step.observation))):
        for i, step in enumerate(kept):
            found += verdicts(step.text) + verdicts(step.observation)
            kept[i] = dataclasses.replace(step, **{name: without_verdicts(getattr(step, name)) for name in _TEXTS})
    return Closed(tuple(kept), len(steps) - len(kept), had, tuple(found))
