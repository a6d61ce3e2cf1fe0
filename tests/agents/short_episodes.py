"""Short scripted episodes, played through the real loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probecascade.agents.react import AgentSettings, ReActAgent
from probecascade.agents.templates import Template
from probecascade.episode import Episode, Observation, Part, Recording, Task
from probecascade.interfaces import Environment, StoppingPolicy
from probecascade.testing import ScriptedEnvironment, ScriptedModel

TASK = Task("task-1", "group-1", (Part("Where was Ada born?", ("London",)),), attributes={"hops": 1})
TEMPLATE = Template(
    name="test",
    head="Be brief.\n",
    first="Question: ",
    question="\nQuestion: ",
    observation="\nObservation: ",
    cue="\nThought:",
    finish=" I will answer now.\nAction: Finish[",
)
KINDS = ("prompt", "thought", "action", "observation", "part")

SEARCH = " Look her up.\nAction: Search[Ada]"
AGAIN = " Once more.\nAction: Search[Ada]"
FINISH = " I know.\nAction: Finish[London]"
PAGE = Observation("Ada: Born in London.", "content")
NOTHING = Observation("No page.", "not_found")
RIGHT = Observation("", "finish", done=True, reward=1.0)
WRONG = Observation("", "finish", done=True, reward=0.0, doomed=True)


@dataclass
class Played:
    recording: Recording
    model: ScriptedModel
    environment: Any

    @property
    def episode(self) -> Episode:
        return self.recording.episode

    @property
    def text(self) -> str:
        return self.model.decode(self.episode.token_ids.tolist())

    def until(self, name: str) -> str:
        """The text up to and including the token of a checkpoint."""
        (point,) = [c for c in self.episode.checkpoints if c.name == name]
        return self.model.decode(self.episode.token_ids[: point.position + 1].tolist())

    @property
    def names(self) -> list[str]:
        return [c.name for c in self.episode.checkpoints]


def play(
    turns: Sequence[str | Sequence[str]],
    observations: Sequence[Observation] = (PAGE, RIGHT),
    policy: StoppingPolicy | None = None,
    *,
    environment: Environment | None = None,
    otherwise: str = "Paris]",
    answers: Mapping[str, str] | None = None,
    capacity: int = 10_000,
    task: Task = TASK,
    **settings: Any,
) -> Played:
    model = ScriptedModel(turns, otherwise=otherwise, answers=answers, capacity=capacity)
    chosen = AgentSettings(**({"checkpoints": KINDS, "store_dtype": "float32"} | settings))
    agent = ReActAgent(model, TEMPLATE, chosen, end_ids=[model.end_id])
    acting = environment or ScriptedEnvironment(observations)
    (recording,) = model.run([agent.play(task, acting, 7, policy)])
    return Played(recording, model, acting)
