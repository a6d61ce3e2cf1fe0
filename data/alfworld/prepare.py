"""Unpack ALFWorld games from an archive (zip or tar) into a folder that `game_tasks` reads.

    python data/alfworld/prepare.py json_2.1.2_tw-pddl.zip games

The official archives are at https://github.com/alfworld/alfworld/releases (MIT); nothing is fetched here.
"""

from __future__ import annotations

import sys

from probecascade.environments import game_tasks, unpack_games
from probecascade.errors import ProbecascadeError


def main(arguments: list[str]) -> int:
    """Unpack the first argument into the second and say what is there."""
    if len(arguments) != 2:
        print(f"prepare.py: give an archive and a folder\n\n{__doc__}", file=sys.stderr)
        return 2
    archive, folder = arguments
    try:
        files = unpack_games(archive, folder)
        tasks = game_tasks(folder)
    except ProbecascadeError as error:
        print(f"prepare.py: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{files} files in {folder}: {len(tasks)} games to play, {len({task.group for task in tasks})} groups")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
