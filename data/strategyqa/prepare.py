"""Turn an official StrategyQA file into a task file of the project.

    python data/strategyqa/prepare.py strategyqa_train.json strategyqa.jsonl.gz

The official files are at https://allenai.org/data/strategyqa (MIT); nothing is fetched here.
"""

from __future__ import annotations

import sys

from probecascade.environments import prepare

if __name__ == "__main__":
    sys.exit(prepare(sys.argv[1:], ("strategyqa",), __doc__ or ""))
