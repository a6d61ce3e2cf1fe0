from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from short_episodes import AGAIN, FINISH, KINDS, NOTHING, PAGE, RIGHT, SEARCH, play

from probecascade.agents.transcript import text_at
from probecascade.episode import CONTINUE, Action, Decision, Foresight, Moment, Observation, Task
from probecascade.evaluation import replay_policy
from probecascade.policies import Cascade, Gate, score_run
from probecascade.store import Run, RunWriter
from probecascade.testing import EvidenceProbe, ScriptedEnvironment

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


class Checked(ScriptedEnvironment):
    """Tells how long the argument is."""

    def foresee(self, action: Action) -> Foresight:
        return replace(super().foresee(action), checks={"length": float(len(action.argument))})


def test_a_gate_scores_in_the_loop_what_it_scores_from_the_run(tmp_path: Path) -> None:
    layers, taps = (0, 1), (("prompt", 1), ("action:1", 0), ("observation:1", 1))
    names = ("thought:2", "action:2", "part:1", "observation:2", "action:3")
    cascade = Cascade([Gate(name, None, EvidenceProbe(), 1.0, taps=(*taps, (name, 0), (name, 1))) for name in names])
    assert tuple(cascade.layers) == layers
    environment = Checked([PAGE, NOTHING, NOTHING, RIGHT])
    played = play([SEARCH, AGAIN, SEARCH, FINISH], policy=cascade, environment=environment, store_dtype="float16")
    model = played.model
    options = {"layers": model.layers, "d_model": model.d_model, "dtype": "float16"}
    with RunWriter(tmp_path / "run", {}, **options) as writer:
        writer.add(played.recording)
    run = Run.open(tmp_path / "run")
    live = run.episode(0).attributes["scores"]
    stored = dict(zip(names, score_run(run, cascade.gates).scores[0].tolist(), strict=True))
    assert set(live) == {"thought:2", "action:2", "observation:2", "action:3"}
    assert live == {name: stored[name] for name in live}
    assert len(set(live.values())) == len(live)
