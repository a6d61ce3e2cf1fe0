"""`explain`: tokens, neighbours and transcripts, on a tiny model whose lotteries give away who wins."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probecascade import cli
from probecascade.cli.explain_text import coloured, explain_text, wants_colour
from probecascade.evaluation.tokens import TokenScore
from probecascade.policies import Cascade
from probecascade.store import Run

from .conftest import D_MODEL, refused


@pytest.fixture(scope="module")
def cascade(lottery_run: Path) -> Path:
    output = lottery_run / "explained"
    options = ["--recall", "0.5,0.9", "--gates", "observation:1,observation:2", "--layers", "2"]
    assert cli.main(["fit", str(lottery_run / "run"), *options, "-o", str(output)]) == 0
    return output


def explained(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> Mapping[str, Any]:
    capsys.readouterr()
    assert cli.main(["explain", *arguments, "--json"]) == 0
    record: Mapping[str, Any] = json.loads(capsys.readouterr().out)
    return record


def test_tokens_and_neighbours_of_a_gate(lottery_run: Path, cascade: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(cascade), "--gate", "observation:2", "--run", str(lottery_run / "run"), "--top", "5"]
    record = explained(arguments, capsys)
    assert (record["gate"], record["layer"]) == ("observation:2", 2)
    assert record["direction"]["linear"]
    (lens,) = record["lens"]
    shifts = [token["shift"] for token in lens["promoted"]]
    assert len(shifts) == len(lens["suppressed"]) == 5
    assert shifts == sorted(shifts, reverse=True)
    assert shifts[0] > 0 > lens["suppressed"][0]["shift"]
    assert (lens["norm"], lens["tied"], lens["random"]) == ("LlamaRMSNorm", False, 200)
    assert lens["reading"].startswith("the last layer")
    pairs = [(tuple(pair["first"]), tuple(pair["second"])) for pair in record["cosines"]]
    assert (("observation:1", 2), ("observation:2", 2)) in pairs
    assert (("observation:2", 0), ("observation:2", 1)) in pairs
    assert all(-1 <= pair[key] <= 1 for pair in record["cosines"] for key in ("raw", "whitened"))
    assert explained(arguments, capsys) == record
    text = explain_text(record)
    assert "tokens at observation:2, layer 2" in text
    assert repr(lens["promoted"][0]["text"]) in text
    assert "observation:1 layer 2 – observation:2 layer 2" in text
    assert max(map(len, text.splitlines())) <= 120


def test_without_a_run_the_model_must_be_named_where_the_cascade_only_knows_a_folder(
    cascade: Path, model_folder: Path, other_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = explained([str(cascade), "--model", str(model_folder)], capsys)
    assert record["gate"] == "observation:1"
    assert record["cosines"] == []
    assert record["lens"][0]["step"] == "one unit of log-odds"
    assert cli.main(["explain", str(cascade), "--model", str(other_model)]) == 2
    assert "the cascade was fitted with model.weights" in capsys.readouterr().err
    assert cli.main(["explain", str(cascade), "--model", str(other_model), "--force"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "observation:1" in out


def test_scores_along_a_transcript_meet_the_stored_ones_at_checkpoints(
    lottery_run: Path, cascade: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = lottery_run / "run"
    record = explained([str(cascade), "--gate", "observation:2", "--run", str(run), "--episode", "7"], capsys)
    stored, gate = Run.open(run), Cascade.load(cascade).gates[1]
    episode = stored.episode(7)
    assert record["episode_id"] == episode.episode_id
    assert len(record["tokens"]) == len(episode.token_ids) - episode.prompt_tokens + 1
    scores = gate.probe.score(stored.hidden(7)[:, stored.layers.index(2)])
    found = {name: token["score"] for token in record["tokens"] for name in token["checkpoints"]}
    for point, score in zip(episode.checkpoints, scores, strict=True):
        assert found[point.name] == pytest.approx(score, abs=5e-3)
    assert "observation:2 only" in record["note"]
    capsys.readouterr()
    assert cli.main(["explain", str(cascade), "--run", str(run), "--episode", episode.episode_id]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "\x1b" not in out
    assert re.search(r"\d\.\d{4}\s+[+-]\d+\.\d\d\s+prompt\n", out)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_only_where_they_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert not wants_colour()  # pytest captures stdout, which is then no terminal
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert wants_colour()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_colour()


def test_the_coloured_transcript_holds_its_text_and_ends_every_colour() -> None:
    tokens = [
        TokenScore(0, " a", 0.1, -2.0),
        TokenScore(1, "\nb", 0.9, 2.0, ("action:1",)),
        TokenScore(2, "c", float("nan"), float("nan")),
    ]
    shown = coloured(tokens)
    assert re.sub(r"\x1b\[[\d;]*m", "", shown) == " a\nb⟨action:1 0.90⟩c"
    for line in shown.split("\n"):
        assert line.count("\x1b[0m") * 2 == line.count("\x1b")
    assert shown.endswith("c")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gate", "part:9"], "--gate is 'part:9', but the cascade has the gates observation:1, observation:2"),
        (["--episode", "1"], "--episode names an episode of a run: add --run"),
        (["--run", "RUN", "--episode", "1", "--top", "5"], "--top is about the tokens of a direction"),
        (["--run", "RUN", "--episode", "999"], "the episode '999' is not in"),
        (["--run", "nowhere"], "nowhere"),
        (["--top", "0"], "--top"),
    ],
)
def test_a_wrong_option_is_one_sentence(
    lottery_run: Path, cascade: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    given = [str(lottery_run / "run") if a == "RUN" else a for a in arguments]
    capsys.readouterr()
    assert cli.main(["explain", str(cascade), *given]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert err.count("\n") == 1


def test_a_probe_without_a_single_direction_says_so(lottery_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, run = lottery_run / "bent-explained", str(lottery_run / "run")
    command = ["fit", run, "--recall", "0.9", "--gates", "observation:1", "--layers", "2"]
    assert cli.main([*command, "--probe", "mlp", "-o", str(output)]) == 0
    capsys.readouterr()
    assert cli.main(["explain", str(output)]) == 2
    said = capsys.readouterr().err
    assert (
        "the probe at observation:1, of kind MLPProbe, has no single direction: give --run, over whose states" in said
    )
    assert "with a probe that has one (logistic, elastic-net, mass-mean, mass-mean-whitened or lda" in said
    assert cli.main(["explain", str(output), "--run", run]) == 0
    out = capsys.readouterr().out
    assert "the probe is not linear: single gradients have a mean cosine of" in out
    assert max(map(len, out.splitlines())) <= 120
    assert cli.main(["steer", str(lottery_run / "recipe.toml"), "--cascade", str(output)]) == 2
    said = capsys.readouterr().err
    assert "has no single direction, so that there is nothing to steer along: give a gate or a cascade" in said
    assert "give a run" not in said


def test_a_probe_on_signals_has_no_direction(lottery_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = lottery_run / "surface-explained"
    command = ["fit", str(lottery_run / "run"), "--recall", "0.9", "--gates", "observation:1", "--uses", "signals"]
    assert cli.main([*command, "-o", str(output)]) == 0
    capsys.readouterr()
    assert cli.main(["explain", str(output)]) == 2
    assert "no gate of this cascade reads hidden states" in capsys.readouterr().err
    assert cli.main(["explain", str(output), "--gate", "observation:1"]) == 2
    assert "reads signals, and a direction is one of states alone" in capsys.readouterr().err


@pytest.fixture
def imported(tmp_path: Path) -> tuple[Path, Path]:
    """A run of states that another program dumped, and a cascade fitted on it."""
    rng, lines = np.random.default_rng(0), []
    for n in range(80):
        states = rng.normal(size=(8, 2, D_MODEL)).astype(np.float32) + n % 2
        np.savez(tmp_path / f"{n}.npz", hidden_states=states, token_ids=rng.integers(1, 300, 8), layers=[1, 2])
        points = {"prompt": 3, "action:1": 5, "observation:1": 7}
        line = {"file": f"{n}.npz", "episode_id": f"e{n}", "group": f"g{n}", "failed": n % 2 == 1}
        lines.append(json.dumps(line | {"checkpoints": points}))
    (tmp_path / "index.jsonl").write_text("\n".join(lines))
    run, cascade = tmp_path / "imported", tmp_path / "cascade"
    command = ["import", str(tmp_path / "index.jsonl"), "--model", "Qwen/some", "-o", str(run)]
    assert cli.main(command) == 0
    fit = ["fit", str(run), "--recall", "0.9", "--gates", "action:1", "--layers", "2"]
    assert cli.main([*fit, "-o", str(cascade)]) == 0
    return run, cascade


def test_imported_states_are_shown_through_a_model_that_is_given_only(
    imported: tuple[Path, Path], model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, cascade = imported
    command = [str(cascade), "--run", str(run), "--episode", "e3"]
    for more in ([], ["--model", str(model_folder)]):
        capsys.readouterr()
        said = refused(["explain", *command, *more], capsys)
        assert "were imported from 'vllm', which does not run here" in said
        assert "neither the model nor a transcript" in said
        assert "give --model and --force" in said
    assert "were imported from 'vllm'" in refused(["explain", *command[:3]], capsys)
    record = explained([*command, "--model", str(model_folder), "--force"], capsys)
    assert [token["position"] for token in record["tokens"]] == [3, 4, 5, 6, 7]
    assert [token["checkpoints"] for token in record["tokens"]] == [["prompt"], [], ["action:1"], [], ["observation:1"]]
