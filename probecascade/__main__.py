"""The command as its script and `python -m probecascade` start it."""

from __future__ import annotations

import io
import sys


def main() -> int:
    """Run the command line and return its exit code. Ctrl-C is one line already while its modules are imported."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # one of another alphabet gets escapes, as stderr does
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        from probecascade import cli

        return cli.main()
    except KeyboardInterrupt:
        sys.stderr.write("probecascade: stopped before the end.\n")
        return 130  # what a shell reports for a program that Ctrl-C ended


if __name__ == "__main__":
    sys.exit(main())
