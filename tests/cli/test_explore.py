"""`run --explore`: a random share of the aborts is let through, counted, recorded, and enough to recalibrate on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from probecascade import cli
from probecascade.policies import Cascade, Coin
from probecascade.store import Run


@pytest.fixture(scope="module")
def cascade(lottery_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fitted on the lotteries, whose observations give away who wins."""
    output = tmp_path_factory.mktemp("cascades") / "c"
    options = ["--recall", "0.5,0.9", "--gates", "observation:1,observation:2", "--layers", "2"]
    assert cli.main(["fit", str(lottery_run / "run"), *options, "-o", str(output), "--json"]) == 0
    return output


def test_explored_aborts_are_counted_recorded_and_recalibrated_on(
    lottery_run: Path, lottery: None, cascade: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live = tmp_path / "live"
    command = ["run", str(lottery_run / "recipe.toml"), "--cascade", str(cascade), "--tasks", "fresh"]
    capsys.readouterr()
    options = ["--limit", "60", "--explore", "0.5", "--no-twins", "-o", str(live)]
    assert cli.main([*command, *options, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    run, found = Run.open(live), record["explored"]
    coin = Coin.recorded(run.header)
    assert coin == Coin.of("0.5", 0)
    chosen = [i for i in range(60) if coin.explores(run.episodes.task_id[i])]
    decisions = {i: run.episode(i).decision for i in range(60)}
    passed = [i for i in chosen if decisions[i] is not None]
    assert (found["share"], found["seed"], found["episodes"]) == ("1/2", 0, len(chosen))
    assert found["let_through"] == len(passed) > 0
    assert found["failed"] == sum(bool(run.episodes.failed[i]) for i in passed) > 0
    assert found["failed"] + found["succeeded"] == len(passed)
    assert found["unlabelled"] == 0
    labelled = [i for i in range(60) if run.episodes.labelled[i]]
    doomed = [i for i in labelled if run.episodes.failed[i]]
    (watched,) = record["watch"]
    assert (watched["kind"], watched["gate"], watched["observed"]) == ("catch", "observation:2", len(doomed))
    missed, let_through = (sum((decisions[i] is None) == free for i in doomed) for free in (True, False))
    assert watched["share"] == pytest.approx(2 * let_through / (missed + 2 * let_through))
    for i in range(60):
        decision = decisions[i]
        if decision is None:
            continue
        assert decision.score >= decision.threshold
        assert (run.episodes.outcome[i] == "aborted") == (i not in chosen)
        assert decision.reason.startswith("let through by exploration: ") == (i in chosen)
    assert (
        sum(record["aborts_by_gate"].values())
        == record["outcomes"]["aborted"]
        == 60 - sum(run.episodes.labelled.tolist())
    )

    output = tmp_path / "renewed"
    assert (
        cli.main(["recalibrate", str(cascade), str(live), "--method", "empirical", "--force", "-o", str(output)]) == 0
    )
    out = capsys.readouterr().out
    assert f"{len(chosen)} labelled episodes of {live}: " in out
    assert f"only the {len(chosen)} that exploration chose before they began (50 % of the tasks) are used" in out
    assert Cascade.load(output).provenance["recalibrated"][0]["exploration"] == coin.record()

    judge = ["eval", str(cascade), str(live), "--split", "all"]
    assert cli.main(judge) == 0
    out = " ".join(capsys.readouterr().out.split())
    lost = record["outcomes"]["aborted"]
    assert f"note: {lost} of 60 episodes have no label and are left out ({lost} aborted)." in out
    assert f"Judge it by the {len(chosen)} that exploration let run to their end: add --explored." in out
    assert cli.main([*judge, "--explored", "--json"]) == 0
    judged = json.loads(capsys.readouterr().out)
    assert (judged["episodes"], judged["note"]) == (len(chosen), None)
    assert judged["caught"]["count"] == sum(bool(run.episodes.failed[i]) for i in passed)


def test_exploration_is_said_in_words_and_seen_by_the_twins(
    lottery_run: Path, lottery: None, cascade: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", str(lottery_run / "recipe.toml"), "--cascade", str(cascade), "--limit", "12"]
    capsys.readouterr()
    assert cli.main([*command, "--explore", "1"]) == 0
    out = capsys.readouterr().out
    assert "explored: 12 episodes, chosen at random; " in out
    assert "aborted: 0 at observation:1, 0 at observation:2" in out
    last = Cascade.load(cascade).calibration["certificates"][-1]
    assert (last["gate"], last["certified"]) == ("observation:2", False)
    flat = " ".join(out.split())
    assert "target of catch 90 % by observation:2 (aimed at; nothing was promised): not in doubt after " in flat
    assert "(each one that exploration let through stands for 1, since the others like it were aborted unseen)" in flat
    assert "promise of" not in out
    caught = next(line for line in out.splitlines() if line.startswith("failures caught"))
    assert "0.0 %" in caught


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--explore", "0"], "exploration share 0 is outside (0, 1]"),
        (["--explore", "some"], "exploration share 'some' is not a number"),
        (["--explore", "0.1", "--shadow"], "--shadow lets every abort pass already"),
    ],
)
def test_a_wrong_share_is_refused(
    lottery_run: Path, cascade: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    capsys.readouterr()
    assert cli.main(["run", str(lottery_run / "recipe.toml"), "--cascade", str(cascade), *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert err.count("\n") == 1
