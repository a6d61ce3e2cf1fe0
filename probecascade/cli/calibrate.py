"""`probecascade calibrate`: thresholds with a promise from scores that came from anywhere, in a CSV file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer

from probecascade.errors import UsageError

NOT_CERTIFIED = 3  # exit code of --strict


def calibrate(
    scores: Annotated[Path, typer.Argument(help="CSV file of the episodes that certify the thresholds.")],
    catch: Annotated[
        str | None,
        typer.Option(help="Shares of the doomed to abort by a gate, rising: action:1=0.5,part:2=0.8."),
    ] = None,
    recall: Annotated[
        str | None, typer.Option(help="The same for every gate in order: shares of the doomed, .5,.7,.8.")
    ] = None,
    keep: Annotated[
        str | None, typer.Option(help="Share of the would-be successes that no gate may abort: 0.95.")
    ] = None,
    price_per_token: Annotated[
        float | None, typer.Option(help="With --worth-per-success: let prices choose the keep target.")
    ] = None,
    worth_per_success: Annotated[
        float | None, typer.Option(help="What one successful episode is worth, in the same currency.")
    ] = None,
    confidence: Annotated[float, typer.Option(help="Confidence of each promise.")] = 0.95,
    unit: Annotated[str, typer.Option(help="What the promise counts: episode, or group, each once.")] = "episode",
    largest_group: Annotated[
        int | None,
        typer.Option(help="Most episodes that a group can hold, known beforehand: for promises per episode of groups."),
    ] = None,
    method: Annotated[
        str, typer.Option(help="certified, or a rival: empirical, paper, uniform, single, maxrank.")
    ] = "certified",
    teachers: Annotated[
        Path | None, typer.Option(help="CSV file of out-of-fold scores of the episodes that fitted the probes.")
    ] = None,
    test: Annotated[Path | None, typer.Option(help="CSV file of other episodes to judge the thresholds on.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of all random choices.")] = 0,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write thresholds and promise to this JSON file.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Write figures to this folder (needs the extra `plot`).")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that exist.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 3 unless every target is certified.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int | None:
    """Set thresholds on a file of scores, by --keep, --catch (or --recall), both, or prices.

    Columns: `failed` (0, 1, true, false); one per gate, in order, empty where the episode did not reach it;
    optional `<gate>:after` (tokens strictly after the gate), `tokens` (all of the episode), `episode` (an id) and
    `group` (episodes of one task). With --price-per-token the keep target is the one worth most on the teachers,
    or without them on 30 % of the groups, which then certify nothing.

    Examples:

      probecascade calibrate scores.csv --keep 0.95 -o thresholds.json

      probecascade calibrate scores.csv --keep 0.9 --catch action:1=0.3,part:2=0.5 --test test.csv

      probecascade calibrate scores.csv --price-per-token 0.00001 --worth-per-success 0.05 --plot figures
    """
    asked = Asked(
        catch, recall, keep, _prices(price_per_token, worth_per_success), confidence, unit, method, seed, largest_group
    )
    asked.check()
    if output is not None and output.exists() and not overwrite:
        raise UsageError(f"{str(output)!r} exists already: choose another file, or add --overwrite.")
    if plot is not None:
        from probecascade.report import check_figures

        check_figures(plot, overwrite=overwrite)
    from probecascade.cli.calibrate_steps import Work, read_files

    work = Work(asked, read_files(scores, teachers, test), as_json)
    calibration = work.run()
    if calibration is None:
        work.finish("no thresholds were set, since no target would pay")
        return None
    if plot is not None:
        work.plot(calibration, plot, overwrite)
    if output is not None:
        work.write(output, overwrite)
    work.finish()
    if not strict or calibration.certified:
        return None
    from probecascade.thresholds.promise import missed_targets

    why = missed_targets(calibration) or f"the method {method} certifies nothing"
    typer.echo(f"probecascade: --strict: not certified: {why}.", err=True)
    return NOT_CERTIFIED


@dataclass(frozen=True, slots=True)
class Asked:
    """The options that say what to promise, and how."""

    catch: str | None
    recall: str | None
    keep: str | None
    prices: tuple[float, float] | None
    confidence: float
    unit: Any
    method: str
    seed: int
    largest_group: int | None = None

    def check(self) -> None:
        """UsageError for options that no file can make right."""
        from probecascade.thresholds import METHODS, parse_target

        given = [self.catch, self.recall, self.keep]
        if self.prices and any(value is not None for value in given):
            raise UsageError("--price-per-token chooses the target: leave out --keep, --catch and --recall.")
        if self.catch is not None and self.recall is not None:
            raise UsageError("--catch and --recall both say what to catch: give one of them.")
        if not self.prices and all(value is None for value in given):
            raise UsageError(
                "no target was given: add --keep 0.95, --catch GATE=0.8, --recall .5,.8 with one share per gate, or "
                "--price-per-token with --worth-per-success."
            )
        if self.method not in METHODS:
            raise UsageError(f"--method is {self.method!r}: give one of {', '.join(METHODS)}.")
        if self.unit not in ("episode", "group"):
            raise UsageError(f"--unit is {self.unit!r}: give episode or group.")
        if not 0 < self.confidence < 1:
            raise UsageError(f"--confidence is {self.confidence}, outside (0, 1): give a number such as 0.95.")
        if self.keep is not None:
            parse_target(self.keep, what="--keep target")

    def targets(self, gates: Sequence[str]) -> dict[int, Fraction]:
        """What to catch, by gate index. UsageError for shares that do not fit the gates or cannot be promised."""
        from probecascade.thresholds import Targets, match_gates, parse_rising

        if self.recall is not None:
            shares = parse_rising(self.recall, what="--recall target")
            match_gates(shares, gates)
            found = dict(enumerate(shares))
        else:
            found = _by_name(self.catch, gates)
        if not self.prices:
            Targets.parse(found or None, self.keep, len(gates))
        return found


def _by_name(catch: str | None, gates: Sequence[str]) -> dict[int, Fraction]:
    """`part:1=0.5,part:2=0.8` as shares by gate index, in the order of the gates."""
    from probecascade.thresholds import parse_target, percent

    found: dict[int, Fraction] = {}
    for part in () if catch is None else catch.split(","):
        name, _, share = (text.strip() for text in part.rpartition("="))
        if not name:
            raise UsageError(f"--catch holds {part!r}: give GATE=SHARE, such as {gates[0]}=0.5.")
        if name not in gates:
            raise UsageError(f"--catch names the gate {name!r}: the file has {', '.join(gates)}.")
        if gates.index(name) in found:
            raise UsageError(f"--catch names the gate {name!r} twice: give each gate one share.")
        found[gates.index(name)] = parse_target(share, what=f"--catch target of {name}")
    rising = sorted(found.items())
    for (before, low), (gate, high) in pairwise(rising):
        if high <= low:
            raise UsageError(
                f"--catch asks for {percent(high)} by {gates[gate]}, which does not rise above the {percent(low)} by "
                f"{gates[before]}: the shares are cumulative, so raise or drop the later one."
            )
    return dict(rising)


def _prices(price: float | None, worth: float | None) -> tuple[float, float] | None:
    if price is None and worth is None:
        return None
    if price is None or worth is None:
        raise UsageError("--price-per-token and --worth-per-success choose a target together: give both or neither.")
    return price, worth
