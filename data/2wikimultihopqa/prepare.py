"""Turn an official 2WikiMultiHopQA file into a task file of the project.

    python data/2wikimultihopqa/prepare.py dev.json 2wikimultihopqa.jsonl.gz

The official files are at https://github.com/Alab-NII/2wikimultihop (Apache-2.0; texts CC BY-SA). Nothing is fetched
here.
"""

from __future__ import annotations

import sys

from probecascade.environments import prepare

if __name__ == "__main__":
    sys.exit(prepare(sys.argv[1:], ("2wikimultihopqa", "hotpotqa"), __doc__ or ""))
