"""`calibrate` from the command line: targets, prices, held-out episodes, and a sentence for every malformed file."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probecascade import cli
from probecascade.cli.scores import read_scores
from probecascade.thresholds import calibrate

from .conftest import refused as refused_command

GATES = ("action:1", "part:1", "action:2")
HEADER = ["episode", "failed", "group", *(name for gate in GATES for name in (gate, f"{gate}:after")), "tokens"]


def rows(n: int, *, seed: int = 0, prefix: str = "e", told: float = 1.5, size: int = 1) -> list[list[str]]:
    """Invented episodes; one in three ends before the last gate, `size` of them share a group."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(n):
        failed = bool(rng.random() < 0.5)
        cells: list[str] = []
        for place in range(len(GATES)):
            score = repr(float(rng.normal() + told * failed))
            cells += [score, str(100 * (3 - place))] if place < 2 or i % 3 else ["", ""]
        made.append([f"{prefix}{i}", "true" if failed else "0", f"{prefix} task {i // size}", *cells, "400"])
    return made


def write(path: Path, lines: Sequence[Sequence[str]], header: Sequence[str] = HEADER, drop: Sequence[str] = ()) -> Path:
    """A CSV file without the columns in `drop`."""
    use = [i for i, name in enumerate(header) if name not in drop]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([[line[i] for i in use] for line in (header, *lines)])
    return path


@pytest.fixture(scope="module")
def scores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("scores") / "scores.csv", rows(400))


def told(arguments: Sequence[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    assert cli.main(["calibrate", *arguments]) == code
    out, err = capsys.readouterr()
    assert (err == "") == (code == 0)
    return out


def found(arguments: Sequence[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(told([*arguments, "--json"], capsys, code))
    return record


def refused(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    return refused_command(["calibrate", *arguments], capsys)


def test_the_file_holds_what_calibrate_finds_in_full_precision(
    scores: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "thresholds.json"
    out = told([str(scores), "--keep", "0.9", "-o", str(output)], capsys)
    table = read_scores(scores)
    result = calibrate(table.data.scores, table.data.failed, table.groups, table.data.cost_after, keep=0.9, gates=GATES)
    record = json.loads(output.read_text(encoding="utf-8"))
    assert record["thresholds"] == [float(t) if np.isfinite(t) else None for t in result.thresholds]
    assert record["promise"] == result.promise
    assert record["certified"] is True
    flat = " ".join(out.split())
    assert result.promise in flat
    assert f"written to {output}" in out
    for words in ("Unit: each episode counts", "exchangeable", "over all calibrations, those without a certificate"):
        assert words in flat
    assert "which set the thresholds: these numbers flatter them" in out


def test_every_gate_has_every_number_with_an_interval(scores: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = found([str(scores), "--keep", "0.9"], capsys)["seen"]
    table = read_scores(scores)
    assert [gate["gate"] for gate in seen["gates"]] == list(GATES)
    stopped = np.zeros(len(table.data.failed), dtype=bool)
    for place, gate in enumerate(seen["gates"]):
        column = table.data.scores[:, place]
        alive = ~stopped & ~np.isnan(column)
        assert gate["alive_doomed"] + gate["alive_successes"] == alive.sum()
        assert gate["alive"]["value"] == pytest.approx(alive.mean())
        fires = alive & (column >= (np.inf if gate["threshold"] is None else gate["threshold"]))
        assert gate["fired_doomed"] == (fires & table.data.failed).sum()
        stopped |= fires
        assert gate["caught"]["value"] == pytest.approx(stopped[table.data.failed].mean())
        assert gate["kept"]["value"] == pytest.approx(1 - stopped[~table.data.failed].mean())
        for key in ("alive", "caught", "kept", "saved"):
            assert gate[key]["low"] <= gate[key]["value"] <= gate[key]["high"]
            assert gate[key]["low"] < gate[key]["high"]
    assert seen["gates"][-1]["saved"]["value"] == seen["saved"]["value"]
    assert seen["saved_of"] == "all tokens, strictly after the gate"


def test_catch_by_name_and_recall_in_order_are_the_same(scores: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = found([str(scores), "--catch", "action:1=0.1,part:1=0.2,action:2=0.3"], capsys)
    listed = found([str(scores), "--recall", ".1,.2,.3"], capsys)
    assert named["thresholds"] == listed["thresholds"]
    assert named["targets"]["catch"] == {"action:1": "1/10", "part:1": "1/5", "action:2": "3/10"}


def test_the_prediction_comes_before_the_promise(scores: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [str(scores), "--keep", "0.9", "--catch", "part:1=0.2"]
    out = told(command, capsys)
    assert out.index("Predicted from") < out.index("With 95 % confidence")
    assert found(command, capsys)["feasibility"]["likely"] is True


def test_strict_is_three_where_a_promise_is_not_given(
    scores: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = write(tmp_path / "few.csv", rows(40))
    assert "more successful" in found([str(few), "--keep", "0.95", "--strict"], capsys, 3)["promise"]
    assert cli.main(["calibrate", str(few), "--keep", "0.95", "--strict"]) == 3
    err = capsys.readouterr().err
    assert re.fullmatch(r"probecascade: --strict: not certified: keep 95 %: \d+ more successful .*needed\.\n", err)
    assert found([str(few), "--keep", "0.95"], capsys)["conditions"] == []
    assert found([str(scores), "--keep", "0.9", "--method", "empirical", "--strict"], capsys, 3)["certified"] is False
    assert found([str(scores), "--keep", "0.9", "--strict"], capsys)["certified"] is True


def test_test_episodes_are_judged_by_whole_groups(
    scores: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test = write(tmp_path / "test.csv", rows(200, seed=1, prefix="t", size=4))
    record = found([str(scores), "--keep", "0.9", "--test", str(test)], capsys)
    table, own = read_scores(test), read_scores(scores)
    result = calibrate(own.data.scores, own.data.failed, own.groups, own.data.cost_after, keep=0.9).evaluate(
        table.data.scores, table.data.failed, table.groups, table.data.cost_after, cost_total=table.total
    )
    judged = record["test"]
    assert judged["caught"]["count"] == result.caught_count
    assert judged["kept"]["count"] == result.kept_count
    assert judged["saved"]["value"] == result.saved["tokens"].share.value
    assert (judged["kept"]["low"], judged["kept"]["high"]) == (result.kept.low, result.kept.high)
    out = told([str(scores), "--keep", "0.9", "--test", str(test)], capsys)
    assert f"On the episodes of {test}, which shaped nothing" in out
    assert "95 % intervals over groups" in out


def test_teachers_leave_every_episode_to_certify(
    scores: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    teachers = write(tmp_path / "teachers.csv", rows(200, seed=2, prefix="q"))
    alone = found([str(scores), "--keep", "0.9"], capsys)
    taught = found([str(scores), "--keep", "0.9", "--teachers", str(teachers)], capsys)
    successes = taught["episodes"]["successes"]
    assert taught["certificates"][0]["among"] == successes == alone["episodes"]["successes"]
    assert taught["thresholds"] != alone["thresholds"]
    assert taught["teachers"]["groups"] == 200


def test_a_bound_on_groups_is_no_assumption(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "grouped.csv", rows(600, size=3))
    assert cli.main(["calibrate", str(path), "--keep", "0.8"]) == 0
    assert "larger than the largest seen (3)" in " ".join(capsys.readouterr().out.split())
    assert cli.main(["calibrate", str(path), "--keep", "0.8", "--largest-group", "4", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["largest_group"] == 4
    assert "largest seen" not in record["promise"]
    assert cli.main(["calibrate", str(path), "--keep", "0.8", "--largest-group", "2"]) == 2
    assert "one holds 3 episodes" in capsys.readouterr().err


def test_groups_count_once_by_unit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "grouped.csv", rows(600, size=3))
    record = found([str(path), "--keep", "0.9", "--unit", "group"], capsys)
    assert record["episodes"]["groups"] == 200
    assert record["certificates"][0]["among"] <= 200
    assert record["conditions"][0].startswith("Unit: each group counts once")
    ungrouped = write(tmp_path / "ungrouped.csv", rows(60), drop=["group"])
    words = refused([str(ungrouped), "--keep", "0.9", "--unit", "group"], capsys)
    assert "has no column 'group'" in words


def test_prices_choose_on_groups_that_then_certify_nothing(scores: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prices = ["--price-per-token", "0.002", "--worth-per-success", "1"]
    record = found([str(scores), *prices], capsys)
    assert record["targets"]["keep"] == record["operating"]["keep"] is not None
    assert (record["teachers"]["groups"], record["episodes"]["groups"]) == (120, 280)
    assert record["certificates"][0]["among"] == record["episodes"]["successes"]
    curve = record["operating"]["curve"]
    assert max(point["value"] for point in curve) == next(
        point["value"] for point in curve if point["keep"] == record["operating"]["keep"]
    )
    assert found([str(scores), *prices, "--seed", "1"], capsys)["seen"]["doomed"] != record["seen"]["doomed"]
    out = " ".join(told([str(scores), *prices], capsys).split())
    assert "Beside its neighbours" in out
    assert "chosen on the episodes that certify it" in out


def test_where_no_target_pays_it_says_so_and_stops(
    scores: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "thresholds.json"
    prices = ["--price-per-token", "0.000001", "--worth-per-success", "1"]
    command = [str(scores), *prices, "--strict", "-o", str(output)]
    out = told(command, capsys)
    assert "never aborting is worth most" in " ".join(out.split())
    (best,) = [line for line in out.splitlines() if line.endswith(" best")]
    assert best.startswith("never abort ")
    assert max(map(len, out.splitlines())) <= 120
    assert "no thresholds were set" in out
    assert not output.exists()
    record = found(command, capsys)
    assert record["operating"]["keep"] is None
    assert "thresholds" not in record


def test_a_file_without_tokens_counts_aborts_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare = write(
        tmp_path / "bare.csv", rows(300), drop=["episode", "group", "tokens", *(f"{gate}:after" for gate in GATES)]
    )
    record = found([str(bare), "--keep", "0.9"], capsys)
    table = read_scores(bare)
    aborted = sum(gate["fired_doomed"] + gate["fired_successes"] for gate in record["seen"]["gates"])
    assert record["seen"]["saved"]["value"] == pytest.approx(aborted / len(table.data.failed))
    assert "gives no tokens" in record["seen"]["saved_of"]
    words = refused([str(bare), "--price-per-token", "1", "--worth-per-success", "1"], capsys)
    assert "the columns 'tokens' and '<gate>:after'" in words


def test_what_exists_is_not_overwritten_unless_asked(
    scores: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, figures = tmp_path / "thresholds.json", tmp_path / "figures"
    command = [str(scores), "--keep", "0.9", "-o", str(output), "--plot", str(figures)]
    out = told(command, capsys)
    assert sorted(path.name for path in figures.iterdir()) == [
        "caught-by-gate.png",
        "saved-against-kept.png",
        "scores.png",
    ]
    assert str(figures / "scores.png") in out
    assert "exists already: choose another file, or add --overwrite" in refused(command, capsys)
    assert "exists already" in refused([*command[:3], "--plot", str(figures)], capsys)
    told([*command, "--overwrite"], capsys)
    missing = str(tmp_path / "no" / "thresholds.json")
    assert cli.main(["calibrate", *command[:3], "-o", missing]) == 2
    assert f"{missing!r} cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no target was given: add --keep 0.95"),
        (["--catch", "part:1=0.5", "--recall", "0.1,0.2,0.3"], "--catch and --recall both say"),
        (["--recall", "0.5,0.8"], "2 recall target(s) were given for 3 gate(s)"),
        (["--recall", "0.8,0.5,0.9"], "must rise strictly"),
        (["--catch", "part:1"], "--catch holds 'part:1': give GATE=SHARE, such as action:1=0.5"),
        (["--catch", "part:9=0.5"], "--catch names the gate 'part:9': the file has action:1, part:1, action:2"),
        (["--catch", "part:1=0.5,part:1=0.6"], "--catch names the gate 'part:1' twice"),
        (
            ["--catch", "action:1=0.5,part:1=0.4"],
            "--catch asks for 40 % by part:1, which does not rise above the 50 % by action:1",
        ),
        (["--recall", "0.5,0.8,1"], "catch target 1 cannot be promised"),
        (["--catch", "part:1=much"], "--catch target of part:1 'much' is not a number"),
        (["--keep", "1.2"], "--keep target 1.2 is outside (0, 1]"),
        (["--keep", "0.9", "--method", "magic"], "--method is 'magic': give one of certified"),
        (["--keep", "0.9", "--unit", "day"], "--unit is 'day': give episode or group"),
        (["--keep", "0.9", "--confidence", "95"], "--confidence is 95.0, outside (0, 1)"),
        (["--price-per-token", "1"], "give both or neither"),
        (["--keep", "0.9", "--price-per-token", "1", "--worth-per-success", "1"], "leave out --keep"),
        (["--price-per-token", "-1", "--worth-per-success", "1"], "the price per token is -1.0"),
    ],
)
def test_a_wrong_option_is_refused(
    scores: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert words in refused([str(scores), *arguments], capsys)


MALFORMED = {
    "no label": ("failed,a\n1,0.5\n,0.5\n", "line 3, column 'failed': the cell is '', but 0, 1, true or false"),
    "odd label": ("failed,a\nyes,0.5\n", "line 2, column 'failed': the cell is 'yes'"),
    "odd score": ("failed,a\n1,0.5\n0,high\n", "line 3, column 'a': the cell is 'high', but a number is expected"),
    "infinite score": ("failed,a\n1,inf\n", "line 2, column 'a': the cell is 'inf', but a finite number"),
    "no label column": ("fail,a\n1,0.5\n", "line 1: no column is called 'failed' (there are 'fail', 'a')"),
    "no gate": ("failed,group\n1,x\n", "line 1: there is no column of scores"),
    "same name": ("failed,a,a\n1,1,1\n", "line 1, column 'a': the name 'a' comes twice"),
    "no name": ("failed,a,\n1,1,1\n", "line 1, column 3: column 3 has no name"),
    "short line": ("failed,a\n1,0.5\n\n1\n", "line 4: 1 cells stand where the header has 2 columns"),
    "long line": ("failed,a\n1,0.5,3\n", "line 2: 3 cells stand where the header has 2 columns"),
    "repeated id": (
        "episode,failed,a\nx,1,1\ny,0,1\nx,0,1\n",
        "line 4, column 'episode': the episode 'x' stands on line 2",
    ),
    "empty id": ("episode,failed,a\n,1,1\n", "line 2, column 'episode': the cell is ''"),
    "empty group": ("group,failed,a\n,1,1\n", "line 2, column 'group': the cell is ''"),
    "tokens of no gate": ("failed,a,b:after\n1,1,1\n", "line 1, column 'b:after': there is no gate 'b'"),
    "some tokens": ("failed,a,b,b:after\n1,1,1,1\n", "line 1, column 'a': 'a:after' is missing"),
    "a score without tokens": ("failed,a,a:after\n1,1,\n", "line 2, column 'a:after': the cell is '', but the tokens"),
    "negative tokens": ("failed,a,a:after\n1,1,-3\n", "line 2, column 'a:after': the cell is '-3'"),
    "tokens without a score": (
        "failed,a,a:after\n1,,3\n",
        "line 2, column 'a:after': the cell is '3', but the episode has no",
    ),
    "too few in total": (
        "failed,a,a:after,tokens\n1,1,9,8\n",
        "line 2, column 'tokens': the cell is '8', but the tokens of",
    ),
    "no total": ("failed,a,tokens\n1,1,\n", "line 2, column 'tokens': the cell is ''"),
    "a header alone": ("failed,a\n", "holds 1 lines: give a header and one line for each episode"),
    "nothing": ("", "holds 0 lines"),
    "an open quote": ('failed,a\n1,"0.5\n', "line 2: this is not CSV"),
    "lines within a cell": ('episode,failed,a\n"x\ny",1,1\nz,1,b\n', "line 4, column 'a': the cell is 'b'"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_file_is_named_by_line_and_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    text, words = MALFORMED[case]
    path = tmp_path / "bad.csv"
    path.write_text(text, encoding="utf-8")
    said = refused([str(path), "--keep", "0.9"], capsys)
    assert f"{path}" in said
    assert words in said


def test_files_that_cannot_be_read_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "latin.csv"
    path.write_bytes(b"failed,a\n1,1\n0,\xe9\n")
    assert "line 3: this is not UTF-8 text" in refused([str(path), "--keep", "0.9"], capsys)
    assert "cannot be read" in refused([str(tmp_path / "none.csv"), "--keep", "0.9"], capsys)


def test_a_mark_of_byte_order_blank_lines_and_nan_are_read(tmp_path: Path) -> None:
    path = tmp_path / "odd.csv"
    path.write_text("failed, a ,b\nTRUE, 0.5,\n\n0,nan,1e-3\n", encoding="utf-8-sig")
    table = read_scores(path)
    assert table.gates == ("a", "b")
    assert table.data.failed.tolist() == [True, False]
    np.testing.assert_array_equal(table.data.scores, [[0.5, np.nan], [np.nan, 0.001]])
    assert table.cost_after is None


def test_other_files_must_fit_and_share_no_episode(
    scores: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = str(tmp_path / "other.csv")
    command = [str(scores), "--keep", "0.9", "--test", other]
    write(Path(other), rows(50), drop=["group"])
    assert "50 episodes are in both" in refused(command, capsys)
    write(Path(other), [["new", *row[1:]] for row in rows(1)])
    assert "1 groups are in both" in refused(command, capsys)
    write(Path(other), rows(50, prefix="t"), drop=["part:1", "part:1:after"])
    assert "line 1: the gates are action:1, action:2, those of" in refused(command, capsys)
    write(Path(other), rows(50, prefix="t"), drop=[f"{gate}:after" for gate in GATES])
    assert "one gives the tokens after each gate and the other does not" in refused(command, capsys)


def test_the_columns_of_another_file_may_come_in_another_order(tmp_path: Path, scores: Path) -> None:
    order = [0, 1, 2, 5, 6, 3, 4, 7, 8, 9]
    made = rows(30, prefix="t")
    turned = write(tmp_path / "t.csv", [[row[i] for i in order] for row in made], [HEADER[i] for i in order])
    straight = write(tmp_path / "s.csv", made)
    like = read_scores(scores)
    assert read_scores(turned).gates == ("part:1", "action:1", "action:2")
    np.testing.assert_array_equal(read_scores(turned, like).data.scores, read_scores(straight, like).data.scores)
