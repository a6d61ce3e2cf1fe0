"""`import`: dumps as vLLM writes them and plain .npz become ordinary runs; every refusal names the file or line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from probecascade import cli
from probecascade.episode import SIGNALS
from probecascade.store import Run

from .conftest import refused

POINTS = {"prompt": 3, "thought:1": 5, "action:1": 6, "observation:1": 9, "action:2": 11}
N, LAYERS, WIDTH = 13, 2, 4
Index = Callable[..., list[str]]


def states(seed: int, dtype: torch.dtype = torch.bfloat16, n: int = N) -> torch.Tensor:
    return torch.tensor(np.random.default_rng(seed).normal(size=(n, LAYERS, WIDTH))).to(dtype)


def ids(seed: int, n: int = N) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(0, 1000, n)]


@pytest.fixture
def index(tmp_path: Path) -> Index:
    """Writes an index with these changes to its lines, and gives the command that imports it."""

    def made(*lines: dict[str, Any], raw: str = "") -> list[str]:
        (tmp_path / "dumps").mkdir(exist_ok=True)
        path = tmp_path / "dumps" / "index.jsonl"
        whole = [
            {"file": f"hs_{n}.safetensors", "episode_id": f"e{n}", "group": f"g{n}", "checkpoints": POINTS} | line
            for n, line in enumerate(lines)
        ]
        for n, line in enumerate(whole):
            target = path.parent / line["file"]
            if line["file"] == f"hs_{n}.safetensors" and not target.exists():
                save_file({"hidden_states": states(n), "token_ids": torch.tensor(ids(n))}, target)
        path.write_text("".join(json.dumps(line) + "\n" for line in whole) + raw, encoding="utf-8")
        return ["import", str(path), "--model", "Qwen/some", "--layers", "9,18", "-o", str(tmp_path / "run")]

    return made


def test_a_run_from_what_vllm_dumps(index: Index, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = index({"failed": True, "attributes": {"dataset": "x"}}, {"failed": False}, {"token_ids": ids(2)})
    assert cli.main([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["outcomes"] == {"failure": 1, "success": 1, "unlabelled": 1}
    assert (told["layers"], told["dtype"], told["checkpoints"]) == ([9, 18], "bfloat16", 15)
    run = Run.open(tmp_path / "run")
    assert run.header["model"] == {"model": "Qwen/some", "backend": "vllm"}
    assert run.header["checkpoints"] == ["prompt", "thought", "action", "observation"]
    for number in range(3):
        episode = run.episode(number)
        assert episode.token_ids.tolist() == ids(number)
        expected = states(number).float().numpy()[list(POINTS.values())]
        np.testing.assert_array_equal(run.hidden(number), expected)
    first = run.episode(0)
    assert (first.outcome, first.reward, first.group, first.attributes) == ("failure", 0.0, "g0", {"dataset": "x"})
    assert run.episode(1).reward == 1.0
    assert (first.prompt_tokens, first.tokens, first.generated, first.observed, first.calls) == (4, 9, 5, 4, 1)
    told_of = {c.name: (c.position, c.tokens, c.generated, c.calls, c.final) for c in first.checkpoints}
    assert told_of == {
        "prompt": (3, 0, 0, 0, False),
        "thought:1": (5, 2, 2, 0, False),
        "action:1": (6, 3, 3, 0, False),
        "observation:1": (9, 6, 3, 1, False),
        "action:2": (11, 8, 5, 1, True),
    }
    turns = [c.signals[SIGNALS.index("turn_tokens")] for c in first.checkpoints]
    assert turns == [0, 2, 3, 3, 2]


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_plain_arrays(index: Index, tmp_path: Path, dtype: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = index({"file": "a.npz"})
    hidden = states(7).float().numpy().astype(dtype)
    np.savez(tmp_path / "dumps" / "a.npz", hidden_states=hidden, token_ids=np.array(ids(7)), layers=np.array([9, 18]))
    at = command.index("--layers")
    assert cli.main([*command[:at], *command[at + 2 :]]) == 0  # the file says which layers they are
    run = Run.open(tmp_path / "run")
    assert (run.layers, run.dtype) == ((9, 18), "float16" if dtype == "float16" else "float32")
    np.testing.assert_array_equal(run.hidden(0), hidden.astype(np.float32)[list(POINTS.values())])


def test_what_else_a_dump_holds_is_left_alone(index: Index, tmp_path: Path) -> None:
    command = index({})
    tensors = {"hidden_states": states(0), "token_ids": torch.tensor(ids(0)), "loss_mask": torch.ones(N).bool()}
    save_file(tensors, tmp_path / "dumps" / "hs_0.safetensors")
    assert cli.main(command) == 0
    np.testing.assert_array_equal(Run.open(tmp_path / "run").hidden(0), states(0).float()[list(POINTS.values())])


def test_layers_may_count_from_the_last_block(index: Index, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [*index({}), "--blocks", "28"]
    command[command.index("9,18")] = "9,-1"
    assert cli.main(command) == 0
    assert Run.open(tmp_path / "run").layers == (9, 28)


def test_it_goes_on_with_the_same_index_only(index: Index, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index({})
    (tmp_path / "dumps/hs_1.safetensors").write_bytes(b"cut off")
    command = index({}, {})
    assert "cannot be read" in refused(command, capsys)
    assert list(Run.open(tmp_path / "run").episodes.episode_id) == ["e0"]  # what was stored stays
    assert "exists already" in refused(command, capsys)
    save_file({"hidden_states": states(1), "token_ids": torch.tensor(ids(1))}, tmp_path / "dumps/hs_1.safetensors")
    assert cli.main([*command, "--resume"]) == 0
    assert list(Run.open(tmp_path / "run").episodes.episode_id) == ["e0", "e1"]
    capsys.readouterr()
    command = index({}, {}, {})
    assert "'index.jsonl' is not the one that the run was begun with" in refused([*command, "--resume"], capsys)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"hidden_states": states(0, n=9)}, "9 states for 13 ids"),
        ({"hidden_states": states(0)[:, 0].contiguous()}, "expected numbers of shape (n_tokens, n_layers, d_model)"),
        ({"hidden_states": states(0).to(torch.int64)}, "expected numbers"),
        ({"token_ids": torch.tensor(ids(0)).float()}, "expected integers (n,)"),
        ({"token_ids": -torch.tensor(ids(0)) - 1}, "ids outside 0.."),
        ({"hidden_states": None}, "holds no 'hidden_states'"),
        ({"token_ids": torch.ones(N, dtype=torch.bool)}, "token_ids has the type BOOL"),
        ({"hidden_states": states(0)[:, :1].contiguous()}, "holds 1 layers, and 2 are named"),
    ],
)
def test_dumps_that_cannot_be_right(
    index: Index, tmp_path: Path, tensors: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = index({})
    good = {"hidden_states": states(0), "token_ids": torch.tensor(ids(0))}
    changed = {name: tensor for name, tensor in (good | tensors).items() if tensor is not None}
    save_file(changed, tmp_path / "dumps" / "hs_0.safetensors")
    assert words in refused(command, capsys)
    assert not (tmp_path / "run").exists()


def test_files_that_are_no_dumps(index: Index, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, content, words in (
        ("a.safetensors", b"nonsense", "cannot be read"),
        ("a.npz", b"nonsense", "cannot be read"),
        ("a.safetensors.zst", b"", "unpack it first"),
        ("a.pt", b"", "give a .safetensors or .npz file"),
    ):
        command = index({"file": name})
        (tmp_path / "dumps" / name).write_bytes(content)
        assert words in refused(command, capsys)
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"failed": "yes"}, "line 1: 'failed' is 'yes'"),
        ({"reward": True}, "line 1: 'reward' is True"),
        ({"reward": float("nan")}, "line 1: 'reward' is nan"),
        ({"reward": 10**400}, "line 1: 'reward' is 1000"),
        ({"failed": True, "reward": 1}, "line 1: 'failed' is true and 'reward' 1: one of them is wrong"),
        ({"attributes": {"a": float("inf")}}, "line 1: 'attributes' holds a number that is not finite"),
        ({"group": " "}, "line 1: 'group' is ' ' and no text"),
        (
            {"checkpoints": {"prompt": 3, f"action:{2**70}": 6}},
            "line 1: the checkpoint 'action:1180591620717411303424'",
        ),
        ({"checkpoints": {"prompt": 3, "action:01": 6}}, "line 1: the checkpoint 'action:01' is unknown"),
        ({"label": True}, "line 1: the key 'label' is unknown"),
        ({"group": 3}, "line 1: 'group' is 3 and no text"),
        ({"attributes": []}, "line 1: 'attributes' is []"),
        ({"token_ids": "abc"}, "line 1: 'token_ids' is no list"),
        ({"checkpoints": {"action:1": 4}}, "line 1: 'checkpoints' gives no position of 'prompt'"),
        ({"checkpoints": {"prompt": 4, "action:1": 4}}, "line 1: the positions of the checkpoints do not rise"),
        ({"checkpoints": {"prompt": 4, "part:1": 9}}, "line 1: the checkpoint 'part:1' is unknown"),
        ({"checkpoints": {"prompt": -1}}, "line 1: the position of prompt is -1"),
        ({"checkpoints": {"prompt": 3, "action:1": N}}, f"at position {N}, and"),
        ({"token_ids": ids(5)}, "the dump is that of another sequence"),
    ],
)
def test_lines_that_cannot_be_right(
    index: Index, tmp_path: Path, line: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in refused(index(line), capsys)
    assert not (tmp_path / "run").exists() or not len(Run.open(tmp_path / "run"))


def test_what_else_is_refused(index: Index, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "line 2: 'file' is missing" in refused(index({}, raw="{}\n"), capsys)
    assert "line 2: it holds list and no object" in refused(index({}, raw="[]\n"), capsys)
    assert "line 2: Expecting" in refused(index({}, raw="{\n"), capsys)
    assert "the episode 'e0' is on line 1 already" in refused(index({}, {"episode_id": "e0"}), capsys)
    assert "names no episode" in refused(index(), capsys)
    command = index({})
    assert "cannot be read" in refused([*command[:1], str(tmp_path / "none"), *command[2:]], capsys)
    at = command.index("--layers")
    assert "does not say which layers" in refused([*command[:at], *command[at + 2 :]], capsys)
    assert "--blocks is 0" in refused([*command, "--blocks", "0"], capsys)
    assert "dtype 'int8' cannot be stored" in refused([*command, "--dtype", "int8"], capsys)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["safetensors", "npz", "compressed"])
@pytest.mark.parametrize("damage", ["cut off", "changed inside"])
def test_a_damaged_dump_loses_nothing_and_says_how_to_go_on(
    index: Index, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, damage: str
) -> None:
    dumped = tmp_path / f"second.{'safetensors' if kind == 'safetensors' else 'npz'}"
    if kind == "safetensors":
        save_file({"hidden_states": states(1).float(), "token_ids": torch.tensor(ids(1))}, dumped)
    else:
        save = np.savez if kind == "npz" else np.savez_compressed
        save(dumped, hidden_states=states(1).float(), token_ids=ids(1))
    sound = dumped.read_bytes()
    half = len(sound) // 3
    kept = b"" if damage == "cut off" else bytes(255 - b for b in sound[half : half + 60]) + sound[half + 60 :]
    if (kind, damage) == ("safetensors", "changed inside"):
        kept = sound[half : half + 60]  # other numbers cannot be told from these ones, a shorter file can
    first = {"file": str(tmp_path / "first.npz")}
    np.savez(first["file"], hidden_states=states(0).float(), token_ids=ids(0))
    command = index(first, {"file": str(dumped)}, first)
    dumped.write_bytes(sound[:half] + kept)
    said = refused(command, capsys)
    assert "cannot be read" in said
    assert f"; 1 of 3 episodes are stored in {str(tmp_path / 'run')!r} and stay: give the same command with" in said
    assert list(Run.open(tmp_path / "run").episodes.episode_id) == ["e0"]
    assert "1 of 3 episodes are stored" in refused([*command, "--resume"], capsys)
    dumped.write_bytes(sound)
    assert cli.main([*command, "--resume"]) == 0
    run = Run.open(tmp_path / "run")
    assert list(run.episodes.episode_id) == ["e0", "e1", "e2"]
    np.testing.assert_array_equal(run.hidden(1), states(1).float()[list(POINTS.values())])


@pytest.mark.parametrize("kind", ["safetensors", "npz"])
def test_a_damaged_first_dump_leaves_no_folder(
    index: Index, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    command = index({"file": f"first.{kind}"})
    target = tmp_path / "dumps" / f"first.{kind}"
    if kind == "npz":
        np.savez_compressed(target, hidden_states=states(0).float(), token_ids=ids(0))
    else:
        save_file({"hidden_states": states(0), "token_ids": torch.tensor(ids(0))}, target)
    target.write_bytes(target.read_bytes()[:-30])
    assert "cannot be read" in refused(command, capsys)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dumps"]


def test_dumps_of_two_models_are_not_mixed(index: Index, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = index({}, {})
    other = {"hidden_states": states(1, torch.float16), "token_ids": torch.tensor(ids(1))}
    save_file(other, tmp_path / "dumps" / "hs_1.safetensors")
    assert "import the dumps of one model at a time" in refused(command, capsys)


def test_what_is_wrong_from_the_start_leaves_nothing(
    index: Index, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "line 2: there is no dump" in refused(index({}, {"file": "absent.safetensors"}), capsys)
    assert f"at position {N}, and" in refused(index({"checkpoints": {"prompt": N}}), capsys)
    assert "line 1: maximum recursion depth" in refused(index(raw="[" * 100_000), capsys)
    assert not (tmp_path / "run").exists()


def test_other_line_breaks_and_a_byte_order_mark_are_text(index: Index, tmp_path: Path) -> None:
    command = index({"group": "one"})
    path = tmp_path / "dumps/index.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"one", "a\u2028b".encode()))
    assert cli.main(command) == 0
    assert Run.open(tmp_path / "run").episodes.group.tolist() == ["a\u2028b"]


def test_refused_states_are_told(index: Index, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    huge = np.random.default_rng(0).normal(size=(N, LAYERS, WIDTH))
    huge[POINTS["action:1"]] = 1e300
    np.savez(tmp_path / "huge.npz", hidden_states=huge, token_ids=ids(0))
    command = index({"file": str(tmp_path / "huge.npz")})
    assert cli.main(command) == 0
    assert "1 checkpoint refused: not finite, or too large for float32" in capsys.readouterr().out
    assert "action:1" not in Run.open(tmp_path / "run").checkpoint_names


@pytest.mark.parametrize("layers", [[9.0, 18.5], ["a", "b"]])
def test_layers_that_are_no_numbers(
    index: Index, tmp_path: Path, layers: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "odd.npz", hidden_states=states(0).float(), token_ids=ids(0), layers=layers)
    assert "expected whole numbers (n_layers,)" in refused(index({"file": str(tmp_path / "odd.npz")}), capsys)


def test_an_npz_that_is_none(index: Index, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (tmp_path / "plain.npz").open("wb") as file:
        np.save(file, states(0).float())
    assert "one array without a name" in refused(index({"file": str(tmp_path / "plain.npz")}), capsys)


def test_a_cascade_from_an_imported_run(index: Index, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng, lines = np.random.default_rng(0), []
    for n in range(240):
        dumped = rng.normal(size=(N, LAYERS, WIDTH)).astype(np.float32)
        dumped[POINTS["action:1"]] += 2.0 * (n % 2)
        np.savez(tmp_path / f"{n}.npz", hidden_states=dumped, token_ids=ids(n))
        lines.append({"file": str(tmp_path / f"{n}.npz"), "failed": None if n % 10 == 9 else n % 2 == 1})
    assert cli.main(index(*lines)) == 0
    run, cascade = str(tmp_path / "run"), str(tmp_path / "cascade")
    fit = ["fit", run, "--keep", "0.9", "--gates", "action:1"]
    capsys.readouterr()
    assert "does not tell what each call took" in refused([*fit, "--billing", "api", "-o", cascade], capsys)
    assert cli.main([*fit, "-o", cascade]) == 0
    capsys.readouterr()
    assert cli.main(["eval", cascade, run, "--split", "test", "--json"]) == 0
    told = capsys.readouterr().out
    assert '"tokens"' in told
    assert "whole rounds" not in told  # nothing tells where a round began
