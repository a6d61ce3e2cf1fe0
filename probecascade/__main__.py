"""`python -m probecascade`: the command, where its script is not on the path."""

import sys

from probecascade.cli import main

if __name__ == "__main__":
    sys.exit(main())
