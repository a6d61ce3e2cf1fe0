"""The command itself: version, help, exit codes, one sentence per refusal, and a fast start."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from made_runs import make_run

import probecascade
from probecascade import cli
from probecascade.errors import NothingToDoError, RecipeError


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Registers a function as the verb `probe` of an app that is thrown away afterwards."""
    app = typer.Typer(callback=cli._options, invoke_without_command=True, rich_markup_mode=None)

    def register(function: Callable[[], object]) -> None:
        app.command("probe")(function)

    monkeypatch.setattr(cli, "app", app)
    return register


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"probecascade {probecascade.__version__}\n"
    assert cli.main([]) == 0
    plain = capsys.readouterr().out
    assert cli.main(["--help"]) == 0
    assert capsys.readouterr().out == plain
    assert "Usage: probecascade" in plain


def test_the_list_of_verbs_has_whole_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    verbs = [line for line in capsys.readouterr().out.split("Commands:\n")[1].splitlines() if line]
    assert len(verbs) == len(cli.app.registered_commands)
    assert [line for line in verbs if not line.endswith(".") or line.endswith("...")] == []


@pytest.mark.parametrize("arguments", [["--nope"], ["nonverb"]])
def test_a_wrong_command_line_is_one_sentence(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("probecascade: No such")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code"), [(RecipeError("x.toml, line 3: no."), 2), (NothingToDoError("no episode."), 1)]
)
def test_a_deliberate_error_is_its_sentence_and_its_code(
    verb: Callable[[Callable[[], object]], None],
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    code: int,
) -> None:
    def fail() -> None:
        raise error

    verb(fail)
    assert cli.main(["probe"]) == code
    assert capsys.readouterr() == ("", f"probecascade: {error}\n")


@pytest.mark.parametrize(("result", "code"), [(None, 0), (0, 0), (3, 3)])
def test_a_verb_chooses_its_code(verb: Callable[[Callable[[], object]], None], result: int | None, code: int) -> None:
    def finish() -> int | None:
        return result

    verb(finish)
    assert cli.main(["probe"]) == code


def test_ctrl_c_is_130(verb: Callable[[Callable[[], object]], None]) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    verb(interrupt)
    assert cli.main(["probe"]) == 130


def test_ctrl_c_during_imports_is_130_and_one_line() -> None:
    code = (
        "import sys\nfrom importlib.abc import MetaPathFinder\n"
        "class Hasty(MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'probecascade.cli.transfer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Hasty())\n"
        "from probecascade.__main__ import main\nsys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code, "modes"], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "probecascade: stopped before the end.\n")


def test_a_refusal_that_names_what_steers_a_terminal_is_one_line(
    verb: Callable[[Callable[[], object]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise RecipeError("the task \x1b]0;title\x07\r\n\u202etxt is unknown.")

    verb(fail)
    assert cli.main(["probe"]) == 2
    said = capsys.readouterr().err
    assert said == "probecascade: the task \\x1b]0;title\\x07\\r\\n\\u202etxt is unknown.\n"


def test_a_fault_of_ours_is_not_dressed_as_bad_input(verb: Callable[[Callable[[], object]], None]) -> None:
    def fault() -> None:
        raise RuntimeError("a bug")

    verb(fault)
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main(["probe"])


def test_the_command_starts_without_torch() -> None:
    code = (
        "import sys; from probecascade.cli import main, recipes; main(['--version']); "
        "sys.exit(bool({'torch', 'transformers', 'sklearn', 'h5py'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "probecascade", "--version"], check=True, capture_output=True, text=True
    )
    assert done.stdout == f"probecascade {probecascade.__version__}\n"


def test_a_terminal_of_another_alphabet_gets_escapes(tmp_path: Path) -> None:
    """A table has rules that Latin-1 cannot hold."""
    make_run(tmp_path / "run", groups=3)
    command = [sys.executable, "-m", "probecascade", "inspect", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "latin-1"}, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\\u2500\\u2500" in done.stdout


@pytest.mark.parametrize("many", [False, True], ids=["found at the end", "found in the middle"])
def test_a_reader_that_has_seen_enough_ends_it_without_a_word(many: bool) -> None:
    code = (
        "import sys, typer\nfrom probecascade import cli\n"
        "app = typer.Typer(callback=cli._options, invoke_without_command=True)\n"
        "def probe():\n"
        "    sys.stdin.readline()\n"  # until the reader is gone
        f"    [sys.stdout.write('line\\n') for _ in range({100_000 if many else 3})]\n"
        "app.command('probe')(probe)\ncli.app = app\nsys.exit(cli.main(['probe']))"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        process.stdin.write(b"\n")
        process.stdin.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == cli.BROKEN_PIPE
