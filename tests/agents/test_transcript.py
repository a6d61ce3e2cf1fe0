from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from short_episodes import AGAIN, FINISH, KINDS, NOTHING, PAGE, RIGHT, SEARCH, play

from probecascade.agents.transcript import text_at
from probecascade.episode import CONTINUE, Decision, Moment, Observation, Task
from probecascade.evaluation import replay_policy
from probecascade.store import Run, RunWriter

QUESTION = Observation("Who is Ada's mother?", "next_part")
INVALID = Observation("Invalid action. Write one.", "invalid")


@dataclass
class Reader:
    layers: tuple[int, ...] = ()
    texts: dict[str, str] = field(default_factory=dict)

    def begin(self, task: Task) -> Reader:
        return self

    def decide(self, moment: Moment) -> Decision:
        self.texts[moment.checkpoint.name] = text_at(moment)
        return CONTINUE


def test_the_text_is_what_was_written_and_read_so_far() -> None:
    reader = Reader()
    play([SEARCH, FINISH], [PAGE, RIGHT], reader)
    first = "Look her up.\nAction: Search[Ada]"
    page = f"{first}\nObservation: Ada: Born in London."
    assert reader.texts == {
        "prompt": "",
        "thought:1": "Look her up.",
        "action:1": first,
        "observation:1": page,
        "thought:2": f"{page}\nI know.",
        "action:2": f"{page}\nI know.\nAction: Finish[London]",
        "part:1": f"{page}\nI know.\nAction: Finish[London]",
    }


def test_the_same_text_live_stored_and_replayed(tmp_path: Path) -> None:
    turns = [SEARCH, " Hm.\nno action at all\nObservation: made up", AGAIN, FINISH, FINISH]
    reader = Reader()
    played = play(turns, [NOTHING, INVALID, PAGE, QUESTION, RIGHT], reader)
    assert set(reader.texts) == set(played.names)
    assert {name.split(":")[0] for name in reader.texts} == set(KINDS)
    layers = played.model.layers
    width = played.model.d_model
    with RunWriter(tmp_path / "run", {}, layers=layers, d_model=width, dtype="float32") as writer:
        writer.add(played.recording)
    run = Run.open(tmp_path / "run")
    assert {name: run.texts(name)[0] for name in run.checkpoint_names} == reader.texts
    again = Reader()
    replay_policy(again, played.recording, layers=layers)
    assert again.texts == reader.texts
