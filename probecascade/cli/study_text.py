"""What `probecascade study` prints for people."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence

from probecascade.cli.escapes import in_line
from probecascade.cli.tables import folded, wrapped
from probecascade.evaluation.judged_useless import (
    Comparison,
    Estimate,
    Published,
    StudyFile,
    Summary,
    published_figures,
)
from probecascade.evaluation.judged_useless.published import AFTER_FIVE, JUDGED, SOURCE, published_name

Group = tuple[str, str, str]  # model, split, condition

_SHOWN = 10  # faults that are printed one by one


def text(
    file: StudyFile,
    summaries: Mapping[Group, Summary],
    compared: Mapping[tuple[str, str], tuple[Comparison, ...]],
    answer: Sequence[str],
    k: int,
    cost: float,
) -> str:
    """The whole page: what was read, the answer in words, the measures by group, what is undefined, comparisons, and
    published figures."""
    named = {name_of(group): summary for group, summary in summaries.items()}
    blocks = [
        _read(file, named),
        "\n".join(wrapped(in_line(sentence), "  ") for sentence in answer),
        "Does stopping follow the verdicts?\n" + _stopping(named, k),
        "h(run): share of answers after a run of so many useless verdicts (failing regimes; n: decisions)\n"
        + _hazard(named),
        "success by regime (n: episodes)\n" + _success(named),
        f"over the six regimes, with {cost:g} per call for the utility (n: questions with all six)\n" + _worth(named),
        "verdicts against the injected failures (n: verdicts)\n" + _judges(named),
        *_agreement(named),
        *_beliefs(named),
        "action that is the answer, by its number: episodes of the failing regimes\n" + _steps(named),
        *(_compared(place, table) for place, table in compared.items()),
        _published(list(summaries)),
        *_notes(named),
        *_faults(file),
    ]
    return "\n\n".join(blocks)


def markdown(summaries: Mapping[Group, Summary], k: int, cost: float) -> str:
    """The measures by group as a table in Markdown."""
    titles = ["condition", "Delta", "integration index", f"answers after {k} useless, failing regimes", "mean6"]
    titles += [f"utility at {cost:g} per call", "tool calls"]
    rows = [
        [
            html.escape(name_of(group), quote=False).replace("|", "\\|").replace("`", "\\`"),
            number(each.delta.delta, sign="+"),
            number(each.integration_index, 2, "+"),
            number(each.answer_rate_failing, 2),
            number(each.mean6),
            number(each.utility, sign="+"),
            number(each.tool_calls, 2),
        ]
        for group, each in summaries.items()
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in (titles, ["---"] * len(titles), *rows))


def name_of(group: Group) -> str:
    """Model, split and condition in few words."""
    return in_line(" ".join(part for part in group if part)) or "all episodes"


def number(found: Estimate, digits: int = 3, sign: str = "", unit: str = "n") -> str:
    """`0.335 [0.251, 0.413] n=300`, or `– n=0` where there is no value."""
    if found.value is None:
        return f"– {unit}={found.n}"
    shown = f"{found.value:{sign}.{digits}f}"
    if found.low is not None and found.high is not None:
        shown += f" [{found.low:{sign}.{digits}f}, {found.high:{sign}.{digits}f}]"
    return f"{shown} {unit}={found.n}"


def _read(file: StudyFile, named: Mapping[str, Summary]) -> str:
    questions = len({episode.question_id for episode in file.episodes})
    lines = [f"episodes  {len(file.episodes)} on {questions} questions, {len(file.faults)} faults"]
    if len(named) > 1:
        lines.append(f"groups    {', '.join(f'{name} ({each.episodes})' for name, each in named.items())}")
    if file.unknown:
        unknown = ", ".join(f"{name} ({count})" for name, count in file.unknown.items())
        lines.append(f"unknown regimes, in no measure but the success by regime: {unknown}")
    return "\n".join(wrapped(line, "          ") for line in lines)


def _stopping(named: Mapping[str, Summary], k: int) -> str:
    titles = ["condition", "delta", "delta as worded", "integration index", f"answer after {k}, persistent"]
    titles.append(f"answer after {k}, failing")
    rows = [
        [
            name,
            number(each.delta.delta, sign="+"),
            number(each.delta_as_worded.delta, sign="+"),
            number(each.integration_index, sign="+"),
            number(each.answer_rate_after_k),
            number(each.answer_rate_failing),
        ]
        for name, each in named.items()
    ]
    note = (
        "delta: answers where all observations so far were judged useless, less answers where the latest was but an "
        "earlier one was not, at the same number of observations (n: decisions); a plain description words the second "
        "arm otherwise, which is delta as worded; the published figures are of delta"
    )
    return folded(titles, rows) + "\n" + wrapped(note)


def _hazard(named: Mapping[str, Summary]) -> str:
    runs = sorted({run for each in named.values() for run in each.hazard})
    rows = [
        [name, *(number(each.hazard[run], 2) if run in each.hazard else "–" for run in runs)]
        for name, each in named.items()
    ]
    return folded(["condition", *(f"run {run}" for run in runs)], rows)


def _success(named: Mapping[str, Summary]) -> str:
    regimes = list(dict.fromkeys(regime for each in named.values() for regime in each.success))
    rows = [
        [name, *(number(each.success[regime], 2) if regime in each.success else "–" for regime in regimes)]
        for name, each in named.items()
    ]
    return folded(["condition", *regimes], rows)


def _worth(named: Mapping[str, Summary]) -> str:
    titles = ["condition", "mean6", "utility", "utility, verdicts charged too", "tool calls"]
    rows = [
        [
            name,
            number(each.mean6),
            number(each.utility, sign="+"),
            number(each.utility_with_verdicts, sign="+"),
            number(each.tool_calls, 2),
        ]
        for name, each in named.items()
    ]
    return folded(titles, rows)


def _judges(named: Mapping[str, Summary]) -> str:
    titles = ["condition", "right", "failures judged useless", "others not judged useless", "balanced", "verdicts"]
    rows = [
        [
            name,
            *(
                number(found, 2)
                for found in (
                    each.judge.accuracy,
                    each.judge.judged_useless,
                    each.judge.judged_intact,
                    each.judge.balanced,
                )
            ),
            ", ".join(f"{count} {verdict}" for verdict, count in each.verdicts.items() if count) or "–",
        ]
        for name, each in named.items()
    ]
    return folded(titles, rows)


def _agreement(named: Mapping[str, Summary]) -> Iterator[str]:
    """Of the first condition alone: in the others the judges are the same, and the episodes nearly so."""
    name, first = next(iter(named.items()))
    rows = [
        [
            in_line(pair.first),
            in_line(pair.second),
            "–" if pair.kappa is None else f"{pair.kappa:+.3f}",
            "–" if pair.agreed is None else f"{pair.agreed:.3f}",
            str(pair.n),
        ]
        for pair in first.agreement
        if pair.n
    ]
    if rows:
        more = "; --json has those of the other conditions" if len(named) > 1 else ""
        yield f"agreement of judges ({name}{more})\n{folded(['judge', 'and', 'kappa', 'same verdict', 'n'], rows)}"


def _beliefs(named: Mapping[str, Summary]) -> Iterator[str]:
    rows = [
        [name, str(run), f"{found.continuing:.3f}", f"{found.answering:.3f}", str(found.n)]
        for name, each in named.items()
        for run, found in each.beliefs.items()
    ]
    if rows:
        titles = ["condition", "run", "if it goes on", "if it answers now", "n"]
        title = "probability of success that the model states, by the run of useless verdicts (means; n: observations)"
        yield f"{title}\n{folded(titles, rows)}"


def _steps(named: Mapping[str, Summary]) -> str:
    numbers = sorted({step for each in named.values() for step in each.answer_steps})
    rows = [
        [name, *(str(each.answer_steps.get(step, 0)) for step in numbers), str(each.never_answered)]
        for name, each in named.items()
    ]
    return folded(["condition", *(str(step) for step in numbers), "never"], rows)


def _compared(place: tuple[str, str], table: Sequence[Comparison]) -> str:
    judged = any(each.margin is not None for each in table)
    rows = [
        [
            each.condition,
            each.measure,
            number(each.difference, sign="+"),
            "–" if each.p_value is None else f"{each.p_value:.4f}",
            "–" if each.p_holm is None else f"{each.p_holm:.4f}",
            *([_inferior(each)] if judged else []),
        ]
        for each in table
    ]
    of = in_line(" ".join(part for part in place if part))
    title = f"difference from {in_line(table[0].against)}{f' ({of})' if of else ''}, paired by question"
    note = f"p, Holm: corrected for the {sum(each.p_value is not None for each in table)} comparisons of this table"
    titles = ["condition", "measure", "difference", "p", "p, Holm", *(["non-inferior"] if judged else [])]
    return "\n".join([wrapped(title), folded(titles, rows), note])


def _inferior(each: Comparison) -> str:
    if each.margin is None:
        return "–"
    said = {None: "cannot be said", True: "yes", False: "not shown"}[each.noninferior]
    return f"{said} (margin {each.margin:g})"


def _published(groups: Sequence[Group]) -> str:
    rows = published_beside(groups)
    titles = ["published", "set", "condition", "delta", "mean6"]
    lines = [[row.model, row.split, row.condition, _interval(row), f"{row.mean6:.4f}"] for row in rows]
    title = f"PUBLISHED, for comparison, not measured here: {SOURCE}"
    return "\n".join([wrapped(title), folded(titles, lines), wrapped(f"{JUDGED}; {AFTER_FIVE}")])


def published_beside(groups: Sequence[Group]) -> list[Published]:
    """The figures of the file's own models and question sets where these were published, else of all four models."""
    conditions = {published_name(condition) for _, _, condition in groups if condition}
    known = {row.condition for row in published_figures(split=None)}
    wanted = conditions & known or {"unaided", "budget", "enforced_rule", "combo"}
    own = {(model, split) for model, split, _ in groups}
    rows = [row for row in published_figures(wanted, None) if (row.model, row.split) in own]
    return rows or list(published_figures(wanted))


def _interval(row: Published) -> str:
    return f"{row.delta:+.3f} [{row.low:+.3f}, {row.high:+.3f}]"


def _notes(named: Mapping[str, Summary]) -> Iterator[str]:
    """Why values are undefined, and what weakens others."""
    lines = []
    for name, each in named.items():
        parts = {
            "delta": each.delta.delta,
            "delta as worded": each.delta_as_worded.delta,
            "integration index": each.integration_index,
            "answers after a run, persistent": each.answer_rate_after_k,
            "answers after a run, failing": each.answer_rate_failing,
            "mean6": each.mean6,
            "utility": each.utility,
            "verdicts": each.judge.accuracy,
            "balanced": each.judge.balanced,
        }
        for title, found in parts.items():
            if found.note:
                what = "undefined, " if found.value is None else ""
                lines.append(wrapped(f"  {name}, {title}: {what}{found.note}", "    "))
            if found.skipped:
                lines.append(wrapped(f"  {name}, {title}: undefined in {found.skipped} resamples, left out", "    "))
    if lines:
        yield "\n".join(["notes", *lines])


def _faults(file: StudyFile) -> Iterator[str]:
    if not file.faults:
        return
    lines = [f"faults        {len(file.faults)}"]
    lines += [wrapped(f"  line {fault.line}: {fault.problem}", "    ") for fault in file.faults[:_SHOWN]]
    if len(file.faults) > _SHOWN:
        lines.append(f"  and {len(file.faults) - _SHOWN} more: --json prints all")
    yield "\n".join(lines)
