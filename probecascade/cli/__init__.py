"""The `probecascade` command: one module per verb, each of which imports what is heavy only when it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
import typer.main

from probecascade import __version__
from probecascade.cli.adapt import adapt
from probecascade.cli.calibrate import calibrate
from probecascade.cli.escapes import in_line
from probecascade.cli.eval import evaluate
from probecascade.cli.explain import explain
from probecascade.cli.extract import extract
from probecascade.cli.fit import fit
from probecascade.cli.import_states import import_states
from probecascade.cli.inspect import inspect
from probecascade.cli.modes import modes
from probecascade.cli.quickstart import quickstart
from probecascade.cli.recalibrate import recalibrate
from probecascade.cli.report import report
from probecascade.cli.reread import reread
from probecascade.cli.run import run
from probecascade.cli.steer import steer
from probecascade.cli.study import study
from probecascade.cli.sweep import sweep
from probecascade.cli.task_files import task_files
from probecascade.cli.transcripts import transcripts
from probecascade.cli.transfer import transfer
from probecascade.cli.triggers import triggers
from probecascade.errors import ProbecascadeError

INTERRUPTED = 130  # what a shell reports for a program that Ctrl-C ended
BROKEN_PIPE = 141  # what it reports for one whose reader, such as `head`, had seen enough

app = typer.Typer(
    name="probecascade",
    help=(
        "Abort doomed agent episodes early, from a local model's hidden states.\n\n"
        "Keep states with an extraction recipe, fit probes and thresholds on them, run the agent with the "
        "cascade attached, and compare. Every verb explains itself: probecascade VERB --help."
    ),
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"probecascade {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and stop.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


# Some docstrings begin with a sentence that the list of verbs would cut.
app.command("extract")(extract)
app.command("fit", short_help="Fit a probe per gate and set the thresholds.")(fit)
app.command("calibrate", short_help="Set thresholds on a file of scores from any model.")(calibrate)
app.command("run", short_help="Run the agent live with a cascade and without it.")(run)
app.command("eval", short_help="Say what a cascade would have caught, kept and saved.")(evaluate)
app.command("tasks", short_help="Say what a task file holds before anything runs.")(task_files)
app.command("inspect", short_help="Show what a run or a cascade holds, or one episode.")(inspect)
app.command("sweep", short_help="Probe every layer and checkpoint of a run.")(sweep)
app.command("explain")(explain)
app.command("steer", short_help="Push the hidden states along a probe's direction.")(steer)
app.command("transcripts", short_help="Say what a file of recorded runs holds.")(transcripts)
app.command("transfer", short_help="Fit probes on episodes of one kind, test on another.")(transfer)
app.command("adapt", short_help="Move a cascade's probes to new conditions.")(adapt)
app.command("recalibrate", short_help="Set a cascade's thresholds anew on new episodes.")(recalibrate)
app.command("report", short_help="Write one self-contained page about a run.")(report)
app.command("reread", short_help="Keep other layers of a run, without sampling anew.")(reread)
app.command("import", short_help="Make a run of hidden states that vLLM dumped.")(import_states)
app.command("modes", short_help="Count how the failed episodes of a run failed.")(modes)
app.command("triggers", short_help="Compare gates that always look with triggered ones.")(triggers)
app.command("study", short_help="Compute a published study of stopping on episodes.")(study)
app.command("quickstart", short_help="Extract, fit and compare on the embedded model.")(quickstart)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; `argv` defaults to that of the process.

    0 done, 1 nothing to do, 2 bad input, 130 interrupted, 141 nobody reads on, or what the verb returned as a
    number. Deliberate errors are one sentence on stderr.
    """
    command = typer.main.get_command(app)
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        # Not `command.main`, which turns Ctrl-C into an exit code without a word.
        with command.make_context("probecascade", arguments) as context:
            code = command.invoke(context)
        sys.stdout.flush()  # a reader that has gone is noticed here, not by the interpreter on its way out
    except typer.Exit as done:
        return done.exit_code
    except ProbecascadeError as error:
        return _refuse(str(error), error.exit_code)
    except typer.TyperException as error:
        return _refuse(error.format_message(), 2)
    except (typer.Abort, KeyboardInterrupt):
        return _refuse("stopped before the end.", INTERRUPTED)
    except BrokenPipeError:
        _let_go()
        return BROKEN_PIPE
    except OSError as error:
        where = "" if error.filename is None else f" {str(error.filename)!r}"
        return _refuse(f"cannot read or write{where}: {error.strerror or error}; choose another place.", 2)
    return code if isinstance(code, int) else 0


def _let_go() -> None:
    """Point stdout at nothing, so that what is still buffered does not fail once more when Python ends."""
    with open(os.devnull, "w", encoding="utf-8") as nothing:
        os.dup2(nothing.fileno(), sys.stdout.fileno())


def _refuse(sentence: str, code: int) -> int:
    typer.echo(f"probecascade: {in_line(sentence)}", err=True)
    return code
