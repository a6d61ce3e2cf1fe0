"""`probecascade study`: a published study of stopping agents, played with one's own model or read from a file."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probecascade.errors import UsageError

if TYPE_CHECKING:
    from probecascade.evaluation.judged_useless import Comparison, StudyEpisode, StudyFile, Summary

INTERRUPTED = 130
NAMES = ("judged-useless",)
_UNAIDED = ("none", "unaided")  # conditions that the others are compared against if nothing else is said

Group = tuple[str, str, str]  # model, split, condition


def study(
    name: Annotated[str, typer.Argument(help="Which study: judged-useless.")],
    recipe: Annotated[
        Path | None, typer.Argument(help="What to play: a recipe such as extract/judged-useless.toml.")
    ] = None,
    episodes: Annotated[
        Path | None, typer.Option(help="Recorded episodes: .jsonl, gzipped (.gz) or not, one object a line.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder of the study that is played; it must not exist yet.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the study in that folder.")] = False,
    limit: Annotated[int | None, typer.Option(help="Play the first so many tasks of the recipe only.")] = None,
    device: Annotated[str | None, typer.Option(help="Where to play: auto, cpu, cuda, cuda:1 ...")] = None,
    k: Annotated[int, typer.Option(help="Useless verdicts in a row after which answers are counted.")] = 5,
    budget: Annotated[
        int | None,
        typer.Option(help="Actions that the agent could take (the last one is left out); default: as played, else 8."),
    ] = None,
    cost: Annotated[float, typer.Option(help="What a tool call costs, where a right answer is worth 1.")] = 0.05,
    by: Annotated[
        str | None,
        typer.Option(help="Judge whose verdicts count in every condition; default: in each, the one that drives it."),
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="Condition that the others are compared against; default: none or unaided.")
    ] = None,
    margin: Annotated[
        float | None, typer.Option(help="How much mean6 may be lower for a condition to count as non-inferior: 0.05.")
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            "--report", help="New HTML file of figures and episodes; with a recipe, default: report.html in -o."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the resampling of questions.")] = 0,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the main table as Markdown.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int | None:
    """Measure whether agents act on tool results that they judge useless (arXiv 2610.06191).

    With a recipe, its tasks are played under every condition of its section [study], whatever conditions have in
    common only once; the folder then holds the episodes as such a file, and Ctrl-C keeps what was played. Or the
    episodes come from a file.

    A line of the file is an episode: question_id, regime (clean, persistent, recover_after_1 to _3,
    late_onset_from_3), verdicts (USELESS, USEFUL or anything else, one per observation), actions (one name per
    step, such as search; finish is an answer) and success; optional are condition, model, split, injected (which
    observations were failures, one per observation, null where there was no result to replace; else the regime's name
    tells), judges (verdicts of further judges by name) and beliefs (continuing and answering, a probability each per
    observation). Files of the study's public release are read as they are.

    delta compares, after the same number of observations, how often the agent answers where all were judged useless
    and where the latest was, but an earlier one was not: about 0 for an agent that stops by the clock, above 0 for
    one that acts on its verdicts. delta_as_worded is the same with another reading of "an earlier one". mean6 is
    the success over clean and the five failing regimes, of questions that have all six. Everything is said per
    model and condition, with 95 % intervals from 2,000 resamples of questions, beside the published figures of
    other models.

    In a condition that was played here the verdicts are those of the judge that drives its rule, so that a rule driven
    at random has a delta too; --by measures all conditions by the verdicts of one judge.

    Exit codes: 0 also for a file with faults, which are left out and listed; 2 for one without a usable episode.

    Examples:

      probecascade study judged-useless extract/judged-useless.toml -o studies/mine

      probecascade study judged-useless --episodes episodes.jsonl --report study.html

      probecascade study judged-useless --episodes studies/mine/episodes.jsonl --markdown

      probecascade study judged-useless --episodes episodes.jsonl.gz --against budget --margin 0.05 --json
    """
    if name not in NAMES:
        raise UsageError(f"there is no study {name!r}: choose {', '.join(NAMES)}.")
    path = _file(recipe, episodes, output)
    if recipe is None and (resume or limit is not None or device is not None):
        option = "--resume" if resume else "--limit" if limit is not None else "--device"
        raise UsageError(f"{option} is about playing a recipe: give one, or leave it out.")
    if as_json and markdown:
        raise UsageError("--json and --markdown are two ways to print: give one of them.")
    _check_measures(k, budget, cost, margin, seed)
    if page is not None:
        from probecascade.cli.study_page import check_page

        check_page(page, output)
    learnt: dict[str, Any] | None = None
    if recipe is not None and output is not None:
        from probecascade.cli.study_folder import EPISODES
        from probecascade.cli.study_recipe import check_named
        from probecascade.cli.study_run import run_study

        check_named(recipe, against, by)
        if resume and not output.exists():
            typer.echo(f"probecascade: there is no {output} yet, so a new study begins.", err=True)
        try:
            learnt = run_study(recipe, output, resume=resume, limit=limit, device=device)
        except KeyboardInterrupt:
            if not output.exists():
                typer.echo("probecascade: stopped before anything was played.", err=True)
                return INTERRUPTED
            again = shlex.join(["probecascade", "study", name, str(recipe), "-o", str(output), "--resume"])
            typer.echo(f"probecascade: stopped; what was played is in {output}. To go on:\n  {again}", err=True)
            return INTERRUPTED
        path = output / EPISODES
    from probecascade.cli.study_text import markdown as as_markdown
    from probecascade.cli.study_text import text
    from probecascade.cli.tables import print_json
    from probecascade.evaluation import Resampling
    from probecascade.evaluation.judged_useless import STUDY, judged_by, read_study, summarise
    from probecascade.report import study_answer

    budget = budget if budget is not None else rounds_of(path)
    resampling = Resampling(STUDY.confidence, STUDY.resamples, seed)
    file = read_study(path)
    if by is not None:
        file = judged_by(file, by)
    groups = file.groups()
    summaries = {group: summarise(each, k, budget, cost, resampling) for group, each in groups.items()}
    compared = comparisons(groups, against, budget, cost, margin, resampling)
    measured = record(path, file, summaries, compared)
    if page is not None or learnt is not None:
        from probecascade.cli.study_page import write_page

        page = write_page(page, path, measured, list(summaries), k, cost)
    if as_json:
        told: dict[str, Any] = {} if learnt is None else {"learnt": learnt}
        if page is not None:
            told["report"] = str(page)
        print_json({**measured, **told})
        return None
    if markdown:
        typer.echo(as_markdown(summaries, k, cost))
        return None
    if learnt is not None:
        from probecascade.cli.study_run import tell

        tell(learnt)
    typer.echo(text(file, summaries, compared, study_answer(measured), k, cost))
    if page is not None:
        typer.echo(f"written to {page}: open it in a browser", err=True)
    return None


def _check_measures(k: int, budget: int | None, cost: float, margin: float | None, seed: int) -> None:
    """UsageError for numbers with which nothing can be measured, before anything is played."""
    from probecascade.evaluation.judged_useless import STUDY, answer_rate_after_k, check_budget, utility_measure
    from probecascade.evaluation.judged_useless.compare import check_margin
    from probecascade.intervals import Resampling

    answer_rate_after_k((), k)
    utility_measure(cost)
    check_margin(margin)
    Resampling(STUDY.confidence, STUDY.resamples, seed)
    if budget is not None:
        check_budget(budget)


def _file(recipe: Path | None, episodes: Path | None, output: Path | None) -> Path:
    """The file that is read in the end. UsageError where nothing, or too much, says what to do."""
    if recipe is not None and episodes is not None:
        raise UsageError("give a recipe to play or --episodes FILE to read, not both.")
    if episodes is not None:
        return episodes
    if recipe is None:
        raise UsageError("nothing says what to measure: give a recipe, or recorded episodes with --episodes FILE.")
    if output is None:
        raise UsageError("no folder was given for the study: add -o, such as -o studies/mine.")
    return output


def rounds_of(episodes: Path) -> int:
    """The actions that an agent could take in the study whose folder holds this file; else those of the published one.

    Of a study that was played, its `study.json` beside the file tells.
    """
    import json

    from probecascade.cli.study_folder import ABOUT
    from probecascade.evaluation.judged_useless import BUDGET, check_budget

    try:
        rounds = int(json.loads((episodes.parent / ABOUT).read_text("utf-8"))["recipe"]["agent"]["max_rounds"])
        check_budget(rounds)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError, UsageError):
        return BUDGET
    return rounds


def comparisons(
    groups: dict[Group, list[StudyEpisode]],
    against: str | None,
    budget: int,
    cost: float,
    margin: float | None,
    resampling: Any,
) -> dict[tuple[str, str], tuple[Comparison, ...]]:
    """The comparisons of each model and split that has several conditions, and one to compare them against."""
    from probecascade.evaluation.judged_useless import (
        compare_conditions,
        delta_measure,
        mean6_measure,
        utility_measure,
    )

    measures = (mean6_measure(), delta_measure(budget=budget), utility_measure(cost))
    found = {}
    for model, split in dict.fromkeys((model, split) for model, split, _ in groups):
        conditions = {name: each for (m, s, name), each in groups.items() if (m, s) == (model, split)}
        chosen = against if against is not None else next((name for name in _UNAIDED if name in conditions), None)
        if chosen in conditions and len(conditions) > 1:
            found[model, split] = compare_conditions(conditions, chosen, measures, margin, resampling)
    wanted = f"against {against}" if against is not None else "with --margin"
    if not found and (against is not None or margin is not None):
        names = ", ".join(dict.fromkeys(condition or "(none named)" for _, _, condition in groups))
        raise UsageError(
            f"nothing can be compared {wanted}: the file's conditions are {names}; give --against one of several."
        )
    return found


def record(
    path: Path,
    file: StudyFile,
    summaries: dict[Group, Summary],
    compared: dict[tuple[str, str], tuple[Comparison, ...]],
) -> dict[str, Any]:
    """Everything as JSON values. The measures stand per group, and at the top too where there is only one."""
    from dataclasses import asdict

    from probecascade.evaluation.judged_useless import published_figures
    from probecascade.evaluation.judged_useless.published import SOURCE

    groups = [
        {"model": model, "split": split, "condition": condition, **_measures(summary)}
        for (model, split, condition), summary in summaries.items()
    ]
    return {
        **(_measures(next(iter(summaries.values()))) if len(summaries) == 1 else {}),
        "path": str(path),
        "faults": [asdict(fault) for fault in file.faults],
        "unknown_regimes": file.unknown,
        "groups": groups,
        "comparisons": [
            {"model": model, "split": split, **asdict(each)}
            for (model, split), table in compared.items()
            for each in table
        ],
        "published": {"source": SOURCE, "figures": [asdict(row) for row in published_figures(split=None)]},
    }


def _measures(summary: Summary) -> dict[str, Any]:
    """The headline numbers under the study's names, and every measure with interval, n and note under `details`."""
    from dataclasses import asdict

    delta, worded = summary.delta.delta, summary.delta_as_worded.delta
    return {
        "delta": delta.value,
        "delta_interval": _ends(delta.low, delta.high),
        "delta_as_worded": worded.value,
        "delta_as_worded_interval": _ends(worded.low, worded.high),
        "integration_index": summary.integration_index.value,
        "mean6": summary.mean6.value,
        "answer_rate_after_k": summary.answer_rate_after_k.value,
        "utility": summary.utility.value,
        "tool_calls": summary.tool_calls.value,
        "details": asdict(summary),
    }


def _ends(low: float | None, high: float | None) -> Sequence[float] | None:
    return None if low is None or high is None else [low, high]
