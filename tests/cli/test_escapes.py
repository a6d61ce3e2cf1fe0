"""Text from outside cannot steer a terminal: ids, attributes and transcripts are shown with their escapes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "policies"))
from made_runs import HEADER, LAYERS, WIDTH, make_episode

from probecascade import cli
from probecascade.cli.escapes import in_line, shown
from probecascade.cli.explain_text import coloured
from probecascade.cli.tables import folded, print_json, table, wrapped
from probecascade.episode import Recording
from probecascade.evaluation.tokens import TokenScore
from probecascade.store import RunWriter

EVIL = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e\u2066\x00\r"
SAFE = r"\x1b[2J\x1b]0;owned\x07\x9b31m\u202e\u2066\x00\r"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Failed episodes whose ids, groups, attributes and transcripts hold what steers a terminal."""
    import numpy as np

    folder = tmp_path_factory.mktemp("evil") / "run"
    with RunWriter(folder, HEADER, layers=LAYERS, d_model=WIDTH, dtype="float32") as writer:
        for number in range(4):
            episode = make_episode(f"t{number}{EVIL}", f"g{number}{EVIL}", failed=True, rounds=3)
            steps = [replace(step, text=f" {EVIL}\u200d\nAction", observation=EVIL) for step in episode.steps]
            episode = replace(episode, steps=tuple(steps), attributes={"site": EVIL})
            states = np.ones((len(episode.checkpoints), len(LAYERS), WIDTH), dtype=np.float32)
            writer.add(Recording(episode, states))
    return folder


def harmless(text: str) -> bool:
    return all(sign in "\n\t" or (sign >= " " and sign not in "\x7f\x9b\u202e\u2066") for sign in text)


def test_only_what_steers_a_terminal_is_escaped() -> None:
    assert shown(EVIL) == SAFE
    kept = "a\tb\nc é 漢 👩\u200d💻 \\x1b"
    assert shown(kept) == kept
    assert shown("\u2028\x85\ud800\u200f") == r"\u2028\x85\ud800\u200f"
    assert in_line("a\nb\tc\x1b") == r"a\nb\tc\x1b"


@pytest.mark.parametrize("make", [table, folded])
def test_a_table_is_as_wide_as_what_is_shown(make: Callable[..., str]) -> None:
    lines = make(["name", "n"], [[EVIL, "1"], ["a\nb", EVIL]]).splitlines()
    assert [line.split()[0] for line in lines] == ["name", "─" * len(SAFE), SAFE, r"a\nb"]
    assert len(lines[1]) == 2 * len(SAFE) + 2


def test_sentences_and_coloured_tokens() -> None:
    assert wrapped(f"the id {EVIL} here") == f"the id {SAFE} here"
    assert SAFE in coloured([TokenScore(0, EVIL, 0.5, 0.0)])
    assert EVIL not in coloured([TokenScore(0, EVIL, float("nan"), float("nan"))])


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect", "RUN", "--limit", "4"],
        ["inspect", "RUN", "--episode", "0"],
        ["modes", "RUN"],
        ["transfer", "RUN", "--by", "task_id", "--checkpoints", "action:1"],
        ["transfer", "RUN", "--by", "site"],
        ["transfer", "RUN", "--train-on", "site=a", "--test-on", "site=b"],
        ["inspect", "RUN", "--episode", f"nobody{EVIL}"],
    ],
)
def test_no_verb_prints_it_raw(run: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    cli.main([str(run) if argument == "RUN" else argument for argument in arguments])
    out, err = capsys.readouterr()
    assert harmless(out + err)
    assert r"\x1b[2J" in out + err


def test_json_stays_as_it_is(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", str(run), "--episode", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"][0]["observation"] == EVIL
    print_json({"half": "\ud800"})
    assert json.loads(capsys.readouterr().out) == {"half": "\ud800"}
