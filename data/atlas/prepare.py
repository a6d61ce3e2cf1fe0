"""Build `tasks.jsonl.gz`, the frozen copy of the default atlas, from the package.

python data/atlas/prepare.py [output]
"""

from __future__ import annotations

import sys
from pathlib import Path

from probecascade.environments import AtlasSettings, atlas_tasks, dump_tasks


def main(arguments: list[str]) -> None:
    """Write the file named by the first argument, by default the one beside this script."""
    output = Path(arguments[0]) if arguments else Path(__file__).with_name("tasks.jsonl.gz")
    count = dump_tasks(atlas_tasks(AtlasSettings()), output)
    print(f"{count} tasks written to {output}")


if __name__ == "__main__":
    main(sys.argv[1:])
