"""Turn an official HotpotQA file into a task file of the project.

    python data/hotpotqa/prepare.py hotpot_dev_distractor_v1.json hotpotqa.jsonl.gz

The official files are at https://hotpotqa.github.io (CC BY-SA 4.0); nothing is fetched here.
"""

from __future__ import annotations

import sys

from probecascade.environments import prepare

if __name__ == "__main__":
    sys.exit(prepare(sys.argv[1:], ("hotpotqa", "hotpotqa-columns"), __doc__ or ""))
