"""Turn official FEVER claims and its Wikipedia dump into a task file of the project and a file of pages.

    python data/fever/prepare.py paper_dev.jsonl fever.jsonl.gz --pages wiki-pages

The official files are at https://fever.ai/dataset/fever.html (CC BY-SA 3.0); nothing is fetched here.
"""

from __future__ import annotations

import sys

from probecascade.environments import prepare_fever

if __name__ == "__main__":
    sys.exit(prepare_fever(sys.argv[1:], __doc__ or ""))
