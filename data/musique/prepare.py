"""Turn an official MuSiQue file into a task file of the project.

    python data/musique/prepare.py musique_ans_v1.0_dev.jsonl musique.jsonl.gz

The official files are at https://github.com/stonybrooknlp/musique (CC BY 4.0); nothing is fetched here.
"""

from __future__ import annotations

import sys

from probecascade.environments import prepare

if __name__ == "__main__":
    sys.exit(prepare(sys.argv[1:], ("musique",), __doc__ or ""))
