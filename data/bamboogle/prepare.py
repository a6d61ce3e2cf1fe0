"""Turn an official Bamboogle file into a task file of the project.

    python data/bamboogle/prepare.py bamboogle.csv bamboogle.jsonl.gz

The official files are at https://github.com/ofirpress/self-ask (MIT); nothing is fetched here.
"""

from __future__ import annotations

import sys

from probecascade.environments import prepare

if __name__ == "__main__":
    sys.exit(prepare(sys.argv[1:], ("bamboogle",), __doc__ or ""))
